#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4 veth bridge 8021q
# vm-file: /usr/bin/setpriv
# vm-file: deploy/systemd/penstock.service
# vm-timeout: 300
"""Peers on VLANs: one tag, and two (QinQ), both families, beside one without. What comes over a VLAN is answered over it. The peer's
kernel reads the answers, so that a wrong tag is no answer."""
import os
import subprocess

import node as nodes
import vmtest
import xdpnode

KIB = 1 << 10
HERE, THERE = (), ("-n", "client")


def vlan(parent, name, protocol, number, mtu, addresses=True):
    """One on each end. A tag more makes a frame longer than every card takes, so the inner one of two is smaller."""
    for where, end, host in ((HERE, "x0", 1), (THERE, "x1", 2)):
        device = name.replace("x0", end)
        vmtest.run("ip", *where, "link", "add", "link", parent.replace("x0", end), "name", device, "mtu", str(mtu), "type", "vlan",
                   "protocol", protocol, "id", str(number))
        vmtest.run("ip", *where, "link", "set", device, "up")
        if addresses:
            vmtest.run("ip", *where, "addr", "add", f"10.80.{number}.{host}/24", "dev", device)
            vmtest.run("ip", *where, "addr", "add", f"fd80:{number}::{host}/64", "dev", device, "nodad")


def tags_in_bytes():
    """As on a wire, not beside the packet as between two virtual cards."""
    off = ("txvlan", "off", "tx-vlan-stag-hw-insert", "off")
    vmtest.run("ip", "netns", "exec", "wire", "ethtool", "-K", "m0", *off)
    vmtest.run("ip", "netns", "exec", "client", "ethtool", "-K", "x1", *off)
    vmtest.run("ethtool", "-K", "x0", "rxvlan", "off", "rx-vlan-stag-hw-parse", "off")


def kernel_resets():
    with open("/proc/net/snmp") as file:
        names, values = [line.split() for line in file if line.startswith("Tcp:")]
    return int(values[names.index("OutRsts")])


def check_unprivileged(config):
    """The kernel's verifier is stricter with who has CAP_BPF and not CAP_PERFMON: check loads the program once."""
    with open("/vm/penstock.service") as file:
        granted = [line for line in file if line.startswith("AmbientCapabilities=")][0].split("=")[1].split()
    caps = ",".join(["-all"] + ["+" + name[4:].lower() for name in granted])
    os.chmod(config, 0o644)
    return subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={caps}", f"--ambient-caps={caps}",
                           f"--bounding-set={caps}", "penstock", "check", "--config", config], text=True, stdout=subprocess.PIPE).stdout


wire = xdpnode.Wire()
tags_in_bytes()
vlan("x0", "x0.5", "802.1Q", 5, 1500)
vlan("x0", "x0.7", "802.1ad", 7, 1500, addresses=False)
vlan("x0.7", "x0.7.9", "802.1Q", 9, 1496)
node = xdpnode.prepare(wire, connections=64)
before = kernel_resets()
for text, hosts in (("one tag", ("10.80.5.1", "fd80:5::1")), ("two tags", ("10.80.9.1", "fd80:9::1")),
                    ("none, at the same time as tags", (xdpnode.SERVER, "10.80.5.1", "10.80.9.1"))):
    opened = node.total("penstock_xdp_tcp_total", 'event="conns_opened"')
    wire.pushed(f"{text}: bit-exact there and back", 2, 512 * KIB, 1, hosts=hosts)
    vmtest.check("  by the engine, not by the kernel", vmtest.until(
        10, lambda: node.total("penstock_xdp_tcp_total", 'event="conns_opened"') >= opened + 2 * len(hosts)))
vmtest.check("the server's kernel has reset nobody", kernel_resets() == before, kernel_resets() - before)
vmtest.check("SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
found = check_unprivileged(node.config)
vmtest.check("this kernel's verifier takes the program of an unprivileged user", "receive: af_xdp" in found and
             not [line for line in found.splitlines() if line.startswith("fail") and "receive:" in line], found)
nodes.release(node)
wire.close()
