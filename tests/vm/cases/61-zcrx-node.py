#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 420
"""From NIC queue to NVMe without a copy: a node on the software NIC, which it prepares and puts back itself."""
import node as nodes
import nsim
import vmtest
import zcrxnode

MIB = 1 << 20


def nic_state(pair):
    """What an administrator would compare: features, RSS table, rules."""
    words = vmtest.run("ethtool", "-k", "nic").splitlines()
    return ([line for line in words if "gro-hw" in line or "ntuple" in line],
            vmtest.run("ethtool", "-x", "nic").split("RSS hash key")[0], vmtest.run("ethtool", "-n", "nic"))


def measure(node, pair, size):
    copies = zcrxnode.Copies(node)
    text, status = zcrxnode.push(pair, 1, 64 * MIB, size)
    vmtest.check(f"{size} KiB buffers: an object of 64 MiB is bit-exact", status == 0, text)
    vmtest.check(f"{size} KiB buffers: copied payload under 0.1 %", copies.share() < 0.001, f"{copies.share():.4%}")
    vmtest.check("  and the kernel's copy fallback was not used", copies.by_kernel() == 0, copies.by_kernel())
    vmtest.note(f"{size} KiB: {copies.share():.4%} copied ({copies.by_reason()}); "
                f"{node.total('penstock_receives_total', 'bulk'):.0f} completions")
    text, status = zcrxnode.push(pair, 64, 60_000, size + 1)
    vmtest.check(f"{size} KiB buffers: 64 connections, any head length, are bit-exact", status == 0, text)


pair = nsim.Pair(queues=4, prepared=False)
found = nic_state(pair)
node = nodes.prepare()
for size in (4, 32, 128, 1024):
    zcrxnode.configure(size)
    if not vmtest.check(f"{size} KiB buffers: the node prepares the NIC and becomes ready", node.start(), node.log_tail()):
        continue
    vmtest.check("  its NIC is changed", nic_state(pair) != found, found)
    vmtest.check("  the kernel reports the buffer size", f"reported={size * 1024}" in node.log_tail(40), node.log_tail(3))
    if size == 4:
        zcrxnode.make_bucket(pair)
    measure(node, pair, size)
    if size == 32:
        node.kill()
        vmtest.check("after kill -9 the node starts again", node.start(), node.log_tail())
    vmtest.check("  SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
    vmtest.check("  the NIC is as it was found", nic_state(pair) == found, f"{nic_state(pair)} was {found}")
nodes.release(node)
pair.close()
