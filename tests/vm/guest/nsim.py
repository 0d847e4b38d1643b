# SPDX-License-Identifier: Apache-2.0
"""The software NIC for cases (`import nsim`): a netdevsim device here, linked to one in namespace `client`.

A case that uses it says `vm-need: nsim` and `vm-have: netdevsim`.  Pair() sets everything up as a
server with a real zero-copy NIC would: header split on, hardware GRO on, ordinary traffic kept on queue 0
by the RSS table (prepared=False leaves that to the node).  close() removes it all, and fails when the module cannot be unloaded afterwards.
"""
import contextlib
import ctypes
import os
import pathlib
import subprocess

import genl
import rtnl
import vmtest

BUS = pathlib.Path("/sys/bus/netdevsim")
DEBUG = pathlib.Path("/sys/kernel/debug/netdevsim")


def write(path, value):
    """Writes one value to a file of sysfs, debugfs or procfs."""
    with open(path, "w") as file:
        file.write(str(value))


def _enter(path):
    """Moves the calling thread, and no other, to a network namespace."""
    file = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(file, 0x40000000):
            raise OSError(ctypes.get_errno(), f"setns {path}")
    finally:
        os.close(file)


@contextlib.contextmanager
def client_side():
    """Sockets that this thread opens meanwhile belong to the client's namespace; they stay there."""
    _enter("/run/netns/client")
    try:
        yield
    finally:
        _enter("/proc/1/ns/net")


class Pair:
    """Device `nic` in this namespace (10.7.0.1, fd00:7::1), `cli` in the other (10.7.0.2, fd00:7::2)."""

    def __init__(self, queues=2, number=10, prepared=True):
        self.number = number
        if not os.path.ismount("/sys/kernel/debug"):
            vmtest.run("mount", "-t", "debugfs", "none", "/sys/kernel/debug")
        vmtest.load("netdevsim")
        # Freed receive buffers otherwise wait on a list per CPU and keep the page pool alive.
        write("/proc/sys/net/core/skb_defer_max", 0)
        vmtest.run("ip", "netns", "add", "client")
        for offset, name in ((0, "nic"), (1, "cli")):
            write(BUS / "new_device", f"{number + offset} 1 {queues}")
            vmtest.run("ip", "link", "set", self._first_name(number + offset), "name", name)
        vmtest.run("ip", "link", "set", "cli", "netns", "client")
        self._link()
        for where, name, host in (([], "nic", 1), (["-n", "client"], "cli", 2)):
            vmtest.run("ip", *where, "addr", "add", f"10.7.0.{host}/24", "dev", name)
            vmtest.run("ip", *where, "addr", "add", f"fd00:7::{host}/64", "dev", name, "nodad")
            vmtest.run("ip", *where, "link", "set", name, "up")
        if not prepared:
            return
        genl.set_header_split("nic")
        self.ethtool("-K", "rx-gro-hw", "on")
        self.ethtool("-X", "equal", "1")

    @staticmethod
    def _first_name(number):
        folder = BUS / "devices" / f"netdevsim{number}" / "net"
        return vmtest.until(5, lambda: folder.is_dir() and os.listdir(folder))[0]

    @staticmethod
    def _link():
        here, there = (os.open(path, os.O_RDONLY) for path in ("/proc/self/ns/net", "/run/netns/client"))
        index = int(vmtest.run("ip", "-n", "client", "-o", "link", "show", "cli").split(":")[0])
        write(BUS / "link_device", f"{here}:{genl.index('nic')} {there}:{index}")
        os.close(here)
        os.close(there)

    def ethtool(self, option, *arguments):
        """ethtool on the receiving device, e.g. ethtool("-K", "rx-gro-hw", "off")."""
        return vmtest.run("ethtool", option, "nic", *arguments)

    def steer(self, port, queue, version=4):
        """Leads TCP to this port to a queue; returns the rule's number."""
        out = self.ethtool("-N", "flow-type", f"tcp{version}", "dst-port", str(port), "action", str(queue))
        return out.split()[-1]

    @staticmethod
    def mtu(size):
        """Both ends; connections that are opened from now on have the segment size of it."""
        vmtest.run("ip", "link", "set", "nic", "mtu", str(size))
        vmtest.run("ip", "-n", "client", "link", "set", "cli", "mtu", str(size))

    def full_bursts(self):
        """Makes the client send packets as full as TSO lets them, however slowly the guest runs.

        Linux sizes a burst by its pacing rate, which is the window over the measured round-trip time: on a guest that waits
        for its host bursts shrink.  Here 45 segments (the most of 1448 bytes in 64 KiB) are the least as well; the first
        flight and the send buffer are large, so that neither the window nor a full buffer ends a packet early.
        """
        for name, value in (("tcp_min_tso_segs", "45"), ("tcp_wmem", "4096 134217728 134217728")):
            self.client("sh", "-c", f"echo {value} >/proc/sys/net/ipv4/{name}").wait()
        for words in (["10.7.0.0/24", "src", "10.7.0.2"], ["-6", "fd00:7::/64"]):
            family = ["-6"] if words[0] == "-6" else []
            vmtest.run("ip", *family, "-n", "client", "route", "replace", *words[len(family):], "dev", "cli", "initcwnd", "4000")

    def packets_up_to(self, size):
        """How long TCP packets may be at either end, of IPv4 and IPv6; 65536 is the default, more is BIG TCP.

        The least burst of full_bursts() goes with it: 45 segments of 64 KiB, 180 of 256 KiB.
        """
        with client_side():
            rtnl.set_limits("cli", gso_max_size=size, gso_ipv4_max_size=size)
        rtnl.set_limits("nic", gro_max_size=size, gro_ipv4_max_size=size)
        self.client("sh", "-c", f"echo {45 * size // 65536} >/proc/sys/net/ipv4/tcp_min_tso_segs").wait()

    def knob(self, name, value, device=0):
        """Sets a file below the port's debugfs folder, e.g. knob("rx_dma/stride", 1)."""
        write(DEBUG / f"netdevsim{self.number + device}" / "ports" / "0" / name, value)

    def snapshot(self):
        """All that a node may change of the NIC, as a dict of what ethtool and netlink say."""
        rings = genl.Family("ethtool").ask(15, [(1, [(2, genl.text("nic"))])])[0]
        state = {"rings": {kind: value for kind, value in rings.items() if kind != 1}}
        for name, option in (("features", "-k"), ("channels", "-l"), ("rss", "-x"), ("rules", "-n")):
            state[name] = self.ethtool(option)
        return state

    def stats(self):
        """ethtool -S as a dict."""
        lines = (line.split(":") for line in self.ethtool("-S").splitlines()[1:])
        return {name.strip(): int(value) for name, value in lines}

    @staticmethod
    def client(*command, **options):
        """Starts a command in the client's namespace."""
        return subprocess.Popen(("ip", "netns", "exec", "client", *command), text=True, **options)

    def delete(self, device=0):
        """Removes a device as if it were pulled out."""
        write(BUS / "del_device", self.number + device)

    def close(self):
        for device in (1, 0):
            if (BUS / "devices" / f"netdevsim{self.number + device}").exists():
                self.delete(device)
        vmtest.run("ip", "netns", "del", "client")
        subprocess.run(["timeout", "20", "rmmod", "netdevsim"], check=False)
        vmtest.check("nothing holds the driver in the end", not pathlib.Path("/sys/module/netdevsim").exists())
