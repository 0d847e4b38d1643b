#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock penstock-hang
# vm-modules: ext4 veth bridge sch_netem tcp_bbr
# vm-timeout: 900
# vm-full: 1800
"""Our TCP engine against Linux TCP over a bad wire (xdpwan.py): loss, reordering, duplication, delay, frame sizes, both families, two
kinds of sender, many connections, stalls; the server's kernel stays silent. Case 72 has the rest of the matrix."""
import node as nodes
import vmtest
import xdpnode
import xdpwan

wire = xdpnode.Wire()
node = xdpnode.prepare(wire)
watch = xdpnode.KernelWatch()
xdpwan.conditions(wire)
xdpwan.conditions_are_real(node)
xdpwan.many(wire, node, (64 if vmtest.FULL else 4) * xdpwan.KIB)
wire.condition("delay", "1ms")
xdpwan.node_stands_still(wire, node)
xdpwan.client_does_not_read(wire, node)
wire.condition()
xdpwan.partial_checksums(wire, node)
xdpnode.kernel_is_silent(wire, watch)
xdpwan.frame_sizes(wire, node)
vmtest.check("SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
wire.mtu(1500)
nodes.release(xdpwan.store_stands_still(wire, 12 * xdpwan.MIB))
wire.close()
