#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock protect/penstock nsim
# vm-have: netdevsim
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 200
"""Not a counter but a proof: with the receive area mapped PROT_NONE objects land all the same, so no CPU copy touches it.

The server of this case (netcore/base/peek.h) reads payload only through a second, read-only mapping, and only for heads,
checksums and the counted ragged pieces; any other touch is a fault.
"""
import node as nodes
import nsim
import vmtest
import zcrxnode

pair = nsim.Pair(queues=4, prepared=False)
node = nodes.prepare()
zcrxnode.configure(32)
node.program = "penstock-protect"
if vmtest.check("a node with a protected area becomes ready", node.start(), node.log_tail()):
    zcrxnode.make_bucket(pair)
    with open(f"/proc/{node.process.pid}/maps") as maps:
        untouchable = sum(int(end, 16) - int(start, 16) for start, end in
                          (line.split()[0].split("-") for line in maps if line.split()[1].startswith("---") and "penstock-arena" in line))
    vmtest.check("64 MiB of huge pages may not be touched", untouchable == 64 << 20, untouchable)
    for mtu in (1500, 9000):
        pair.mtu(mtu)
        text, status = zcrxnode.push(pair, 2, 16 << 20, mtu)
        vmtest.check(f"MTU {mtu}: objects of 16 MiB are bit-exact", status == 0, text)
        text, status = zcrxnode.push(pair, 32, 60_000, mtu + 1)
        vmtest.check(f"MTU {mtu}: 32 connections, any head length, are bit-exact", status == 0, text)
    vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
pair.close()
