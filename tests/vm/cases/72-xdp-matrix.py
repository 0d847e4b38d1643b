#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4 veth bridge sch_netem tcp_bbr
# vm-lane: xdp
# vm-timeout: 3600
"""The whole matrix of case 70's conditions: frame size x delay x loss with reordering and duplication x sender, both families at once.
`tests/vm/run --lane xdp` runs it; it is too long for every change."""
import node as nodes
import vmtest
import xdpnode

KIB = 1 << 10
LOSSES = {"nothing lost": (), "1 % lost": ("loss", "1%"), "5 % lost": ("loss", "5%"),
          "1 % lost, 2 % doubled, a quarter overtaken": ("loss", "1%", "duplicate", "2%", "reorder", "75%", "50%")}

wire = xdpnode.Wire()
node = xdpnode.prepare(wire, connections=64)
seed = 0
for mtu in (1280, 1500, 3498, 9000):
    node.stop()
    wire.condition()
    wire.mtu(mtu)
    if not vmtest.check(f"MTU {mtu}: the node starts", node.start(), node.log_tail()):
        continue
    for sender in ("cubic", "bbr"):
        wire.sender(sender)
        for delay in (1, 20, 100):
            for name, loss in LOSSES.items():
                seed += 1
                wire.condition("delay", f"{delay}ms", *loss)
                # So much that a window opens, so little that 5 % lost over 200 ms ends.
                wire.pushed(f"MTU {mtu}, {sender}, {delay} ms, {name}: bit-exact", 2, (512 if delay < 20 else 128) * KIB, seed)
vmtest.check("SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
wire.close()
