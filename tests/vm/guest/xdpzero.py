# SPDX-License-Identifier: Apache-2.0
"""The check that payload goes from the frames of an emulated network card to the emulated NVMe with no copy (`import xdpzero`).

Card 1 is the node's, card 2 is put into namespace `client`; both hang on one hub of QEMU's, which passes plain frames only, so the
client's are cut and summed before they leave it. Shared by the cases of each kind of card that has zero-copy AF_XDP.
"""
import os
import subprocess

import node as nodes
import vmtest
import xdpnode
import zcrxnode

MIB = 1 << 20


def card(number):
    """The name of a card by its address."""
    wanted = f"52:54:00:00:00:{number:02x}"

    def find():
        for name in os.listdir("/sys/class/net"):
            with open(f"/sys/class/net/{name}/address") as file:
                if file.read().strip() == wanted:
                    return name
        return None
    name = vmtest.until(20, find)
    if not name:
        vmtest.failed("set-up", f"no network card {wanted}")
        raise SystemExit(1)
    return name


def cable(queues=1):
    """Names and addresses the two cards as xdpnode does with its veth, and gives the node's so many queues."""
    vmtest.run("ip", "netns", "add", "client")
    vmtest.run("ip", "link", "set", card(1), "name", "x0")
    vmtest.run("ip", "link", "set", card(2), "netns", "client", "name", "x1")
    for where, name, host in (([], "x0", 1), (["-n", "client"], "x1", 2)):
        vmtest.run("ip", *where, "addr", "replace", f"10.77.0.{host}/24", "dev", name)
        vmtest.run("ip", *where, "addr", "replace", f"fd00:77::{host}/64", "dev", name, "nodad")
        vmtest.run("ip", *where, "link", "set", name, "up")
    subprocess.run(["ip", "netns", "exec", "client", "ethtool", "-K", "x1", "tx", "off"], check=False, stdout=subprocess.DEVNULL)
    subprocess.run(["ethtool", "-L", "x0", "combined", str(queues)], check=False, stderr=subprocess.DEVNULL)
    have = len([name for name in os.listdir("/sys/class/net/x0/queues") if name.startswith("rx-")])
    if not vmtest.check(f"the card has {queues} queue{'s' * (queues > 1)}", have == queues, have):
        raise SystemExit(1)


def push(host, connections, size, seed):
    process = xdpnode.Wire.start("client", "python3", f"{xdpnode.HERE}/pusher.py", host, str(xdpnode.PORT), "wan", str(connections),
                                 str(size), str(seed), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return process.communicate()[0].strip(), process.returncode


def measure(staging, host, seed, workers=1, queues=1):
    """One node with such a staging pool, by one of its addresses. Queues are shared out among the workers; those of one worker have their
    frames together."""
    node = nodes.prepare(staging=staging, workers=workers)
    xdpnode.configure(area_mib=16, connections=32, more=", manage_nic: true")
    if not vmtest.check(f"staging {staging}, {workers} worker{'s' * (workers > 1)}: the node becomes ready", node.start(), node.log_tail()):
        raise SystemExit(1)
    modes = modes_said(node)[-queues:]
    vmtest.check("  and reports zero-copy for each queue", len(modes) == queues and all("zero-copy" in mode for mode in modes), modes)
    watch = xdpnode.KernelWatch()
    xdpnode.Wire.start("client", "curl", "-sSf", "-X", "PUT", f"http://{xdpnode.SERVER}:{xdpnode.PORT}/wan").wait()
    copies = zcrxnode.Copies(node)
    text, status = push(host, 1, 64 * MIB, seed)
    vmtest.check(f"staging {staging}: an object of 64 MiB by {'IPv6' if ':' in host else 'IPv4'} is bit-exact", status == 0, text)
    received = copies.totals()[0] - copies.received
    vmtest.check("  its payload came through the card", received >= 64 * MIB - 300, received)
    vmtest.check("  copied payload under 1 %", copies.share() < 0.01, f"{copies.share():.4%} ({copies.by_reason()})")
    vmtest.check("  and none by the kernel", copies.by_kernel() == 0, copies.by_kernel())
    vmtest.note(f"staging {staging}: {copies.share():.4%} copied ({copies.by_reason()})")
    text, status = push(f"{xdpnode.SERVER},{xdpnode.SERVER6}", 16, 100_000, seed + 1)
    vmtest.check(f"staging {staging}: 16 connections of both families, any head length, are bit-exact", status == 0, text)
    if queues > 1:
        several(node, staging, seed + 2, workers)
    xdpnode.kernel_is_silent(xdpnode.Wire, watch)
    vmtest.check("  SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
    nodes.release(node)


def several(node, staging, seed, workers):
    """Objects over several connections, which hashing spreads over the queues."""
    copies = zcrxnode.Copies(node)
    text, status = push(f"{xdpnode.SERVER},{xdpnode.SERVER6}", 8, 3 * MIB, seed)
    vmtest.check(f"staging {staging}: 8 objects of 3 MiB at once are bit-exact", status == 0, text)
    vmtest.check("  copied payload under 1 %", copies.share() < 0.01 and copies.by_kernel() == 0,
                 f"{copies.share():.4%} ({copies.by_reason()}), {copies.by_kernel()} by the kernel")
    vmtest.note(f"staging {staging}, {workers} workers: {copies.share():.4%} copied ({copies.by_reason()})")
    if workers > 1:
        peaks = [node.total("penstock_worker_connections_peak", f'worker="{number}"') for number in range(workers)]
        vmtest.check("  each worker had connections", all(peaks), peaks)


def modes_said(node):
    """What each line about the mode says."""
    with open(node.log, errors="replace") as log:
        return [line.partition("mode=")[2].partition(" why")[0] for line in log if "xdp_open" in line]


def mode_said(node):
    return (modes_said(node) or ["nothing"])[-1]


def run():
    cable()
    measure("8MiB", xdpnode.SERVER, 0)
    measure("64KiB", xdpnode.SERVER6, 10)
    vmtest.run("ip", "netns", "del", "client")


def run_queues(queues=2):
    """Several queues: a worker each, and all of them at one worker, which has their frames in one UMEM."""
    cable(queues)
    measure("8MiB", xdpnode.SERVER6, 30, workers=queues, queues=queues)
    measure("64KiB", xdpnode.SERVER, 40, workers=1, queues=queues)
    vmtest.run("ip", "netns", "del", "client")
