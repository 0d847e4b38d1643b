#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: tests/bench/xsk_rate
# vm-file: /usr/sbin/xdp-bench
# vm-file: /usr/lib/x86_64-linux-gnu/bpf/xdp-dispatcher.o
# vm-modules: veth
# vm-timeout: 600
# vm-lane: bench
"""Frames alone, in the stock kernel, where xdp-tools' programs load: our XSK layer receives and drops; xdp-bench of xdp-tools drops and
redirects; programs of ours give the same verdicts and count nothing. One veth and one sender for all, one after the other. Software
emulation: only the ratios say something."""
import re
import signal
import statistics
import subprocess
import time

import vmtest

SECONDS, ROUNDS = 3, 3
RATE = "xsk_rate"


def inside(where, *command):
    return ("ip", "netns", "exec", where, *command)


def wire():
    for name in ("here", "there"):
        vmtest.run("ip", "netns", "add", name)
    vmtest.run("ip", "-n", "here", "link", "add", "x0", "type", "veth", "peer", "name", "x1", "netns", "there")
    vmtest.run("ip", "-n", "here", "link", "add", "y0", "type", "veth", "peer", "name", "y1")
    vmtest.run("ip", "-n", "here", "addr", "add", "10.79.0.1/24", "dev", "x0")
    for where, name in (("here", "x0"), ("there", "x1"), ("here", "y0"), ("here", "y1")):
        vmtest.run("ip", "-n", where, "link", "set", name, "up")


def taken():
    """Frames that XDP programs of x0 have seen, by the driver's count."""
    text = vmtest.run(*inside("here", "ethtool", "-S", "x0"))
    return sum(int(value) for value in re.findall(r"rx_queue_\d+_xdp_packets: (\d+)", text))


def send(size):
    mac = vmtest.run(*inside("here", "cat", "/sys/class/net/x0/address")).strip()
    vmtest.run(*inside("there", RATE, "send", "x1", str(SECONDS), str(size), mac))


def ours(size):
    receiver = subprocess.Popen(inside("here", RATE, "drop", "x0", str(SECONDS)), stdout=subprocess.PIPE, text=True)
    receiver.stdout.readline()
    send(size)
    said = receiver.communicate()[0].strip()
    return float(said) if receiver.returncode == 0 else 0


def other(size, *command):
    program = subprocess.Popen(inside("here", *command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
    first = program.stdout.readline().strip()
    before, start = taken(), time.monotonic()
    send(size)
    rate = (taken() - before) / (time.monotonic() - start)
    program.send_signal(signal.SIGINT)
    rest = program.communicate()[0]
    if rate == 0:
        vmtest.note(f"{' '.join(command)}: {first} {rest[-600:]}")
    return rate


def main():
    wire()
    # What is redirected is dropped at the far end without a packet being made of it.
    sink = subprocess.Popen(inside("here", RATE, "verdict", "y1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    sink.stdout.readline()
    receivers = (("our XSK layer, receive and drop", ours),
                 ("xdp-bench drop", lambda size: other(size, "xdp-bench", "drop", "x0")),
                 ("xdp-bench redirect", lambda size: other(size, "xdp-bench", "redirect", "x0", "y0")),
                 ("bare XDP_DROP", lambda size: other(size, RATE, "verdict", "x0")),
                 ("bare XDP_REDIRECT", lambda size: other(size, RATE, "verdict", "x0", "y0")))
    for size in (64, 1514):
        base = None
        for name, measure in receivers:
            rates = [measure(size) for _ in range(ROUNDS)]
            rate = statistics.median(rates)
            base = base or rate
            vmtest.check(f"{size} bytes, {name}: frames arrive", rate > 0, "it does not load here")
            vmtest.note(f"| {size} | {name} | {rate:,.0f} frames/s ({min(rates):,.0f} to {max(rates):,.0f}) | "
                        f"{rate / base if base else 0:.2f} of our XSK layer |")
    sink.communicate("")


main()
