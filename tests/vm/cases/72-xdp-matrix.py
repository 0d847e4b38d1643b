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
import xdpwan

wire = xdpnode.Wire()
node = xdpnode.prepare(wire, connections=64)
xdpwan.matrix(wire, node)
vmtest.check("SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
wire.close()
