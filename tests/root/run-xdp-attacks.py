#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node with `receive: af_xdp` on the host under forged segments (tests/vm/guest/xdpattacks.py: SYN flood, off-path and on-path attackers),
both families, both directions; the kernel never answers for the node's port."""
import xdphost

import vmtest
import xdpattacks
import xdpnode

SIZE = 4 * xdpattacks.MIB  # of an object: so much that there is time to forge something

wire = xdphost.Wire()
node = xdpnode.prepare(wire, connections=64)
watch = xdpnode.KernelWatch()
wire.condition("delay", "1ms")
for version in (4, 6):
    xdpattacks.off_path(wire, version, SIZE)
    xdpattacks.on_path(wire, version, SIZE)
    for mode in ("rst", "fin"):
        xdpattacks.exact_ends_an_upload(wire, mode, version)
    xdpattacks.exact_rst_ends_a_download(wire, node, version)
for version in (4, 6):
    xdpattacks.flood(wire, version, version)
wire.pushed("after all of it the node serves as before", 4, 256 * xdpattacks.KIB, 5)
xdpnode.kernel_is_silent(wire, watch)
vmtest.check("SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
xdphost.close()
