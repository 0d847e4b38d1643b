#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node with `receive: af_xdp` on the host, and Linux TCP across a bad wire (tests/vm/guest/xdpwan.py: loss, reordering, duplication,
delay, frame sizes, both families and senders, 256 connections, stalls); the kernel never answers for the node's port. FULL=1: the whole
matrix of conditions, too."""
import xdphost

import vmtest
import xdpnode
import xdpwan

wire = xdphost.Wire()
node = xdpnode.prepare(wire)
watch = xdpnode.KernelWatch()
xdpwan.conditions(wire)
xdpwan.conditions_are_real(node)
xdpwan.many(wire, node, (64 if vmtest.FULL else 16) * xdpwan.KIB)
wire.condition("delay", "1ms")
xdpwan.node_stands_still(wire, node)
xdpwan.client_does_not_read(wire, node)
xdpnode.kernel_is_silent(wire, watch)
if vmtest.FULL:
    xdpwan.matrix(wire, node)
else:
    xdpwan.frame_sizes(wire, node)
vmtest.check("SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
wire.mtu(1500)
xdpwan.store_stands_still(wire, 24 * xdpwan.MIB)
xdphost.close()
