#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 400
# vm-full: 1500
"""kill -9 under a load that arrives by zero-copy receive, 10 times (FULL=1: 50): nothing acknowledged is lost, and the
NIC, which the node manages, is put back each time: by `penstock nic undo` or by the next start, to exactly what was found."""
import kill9
import node as nodes
import nsim
import vmtest
import zcrxnode

KILLS = 50 if vmtest.FULL else 10


def served(state):
    """A prepared NIC without what may differ from start to start: the numbers of rules."""
    rules = [line for line in state["rules"].splitlines() if "Filter:" not in line]
    return {**state, "rules": rules}


def differs(one, other):
    """The parts in which two snapshots differ, for the report."""
    return {key: (one[key], other[key]) for key in one if one[key] != other[key]}


def restore_by_hand(node, pair, found, wrong):
    vmtest.run(node.program, "nic", "undo", "--config", node.config)
    wrong += [f"after nic undo: {differs(pair.snapshot(), found)}"] if pair.snapshot() != found else []


def main():
    pair = nsim.Pair(queues=4, prepared=False)
    found, wrong, by_hand = pair.snapshot(), [], 0
    node = nodes.prepare()
    zcrxnode.configure(32, area_mib=16)
    if not vmtest.check("the node prepares the NIC and becomes ready", node.start(), node.log_tail()):
        return
    serving = served(pair.snapshot())
    vmtest.check("  its NIC is changed", serving != served(found), found)
    siege = kill9.Siege(node, "zcrx-kill9", zcrxnode.endpoint)
    siege.make_bucket()
    for turn in range(KILLS):
        siege.load_until_killed()
        wrong += ["a killed node restored the NIC"] if pair.snapshot() == found else []
        if siege.chance.random() < 0.5:
            restore_by_hand(node, pair, found, wrong)
            by_hand += 1
        if not siege.restart():
            return
        state = served(pair.snapshot())
        wrong += [f"kill {turn}: prepared otherwise: {differs(state, serving)}"] if state != serving else []
    siege.judge()
    vmtest.check(f"after each kill the NIC is put back, {by_hand} times by nic undo, {KILLS - by_hand} times by the next start",
                 not wrong, str(wrong[:2]))
    vmtest.check("  and the load came through the NIC", node.total("penstock_receives_total", "bulk") > 0, "no receives")
    siege.space_is_returned()
    vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
    vmtest.check("  and the NIC is as it was found", pair.snapshot() == found, differs(pair.snapshot(), found))
    nodes.release(node)
    pair.close()


main()
