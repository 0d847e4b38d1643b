#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4 veth bridge sch_netem
# vm-timeout: 600
# vm-full: 1800
"""Forged segments against our TCP engine (xdpattacks.py): a SYN flood, off-path guesses, an on-path attacker, and the server's kernel
never answers for our port. Each attack with one family, FULL=1: with both."""
import node as nodes
import vmtest
import xdpattacks
import xdpnode

wire = xdpnode.Wire()
node = xdpnode.prepare(wire, connections=64)
watch = xdpnode.KernelWatch()
wire.condition("delay", "1ms")
for version in (4, 6):
    if vmtest.FULL or version == 6:
        xdpattacks.off_path(wire, version, xdpattacks.MIB)
    if vmtest.FULL or version == 4:
        xdpattacks.on_path(wire, version, xdpattacks.MIB)
    for mode in ("rst", "fin"):
        if vmtest.FULL or (mode == "rst") == (version == 4):
            xdpattacks.exact_ends_an_upload(wire, mode, version)
    if vmtest.FULL or version == 6:
        xdpattacks.exact_rst_ends_a_download(wire, node, version)
for version in (4, 6) if vmtest.FULL else (4,):
    xdpattacks.flood(wire, version, version)
wire.pushed("after all of it the node serves as before", 4, 256 * xdpattacks.KIB, 5)
xdpnode.kernel_is_silent(wire, watch)
vmtest.check("SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
wire.close()
