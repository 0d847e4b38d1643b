#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: tests/bench/xsk_rate deps/xdptools/usr/sbin/xdp-bench
# vm-file: tests/bench/frames.py
# vm-modules: veth
# vm-timeout: 1800
# vm-boot: own
# vm-lane: bench
"""What our XSK layer receives next to xdp-tools' own `xdp-bench drop` and `redirect`, on a kernel that has the tracepoints it needs.

Under software emulation frames per second say nothing about any machine, so what counts are the ratios within a round: the same sender,
the same veth, the same kernel, one receiver after the other. tests/bench/run-xdp measures the same on the host.
"""
import frames
import vmtest

ROUNDS, SECONDS = 5, 3
RATE, XDP_BENCH = "/usr/bin/xsk_rate", "/usr/bin/xdp-bench"


def say(what, unit, value, note=""):
    vmtest.note(f"{what:<52} {value:12.3f} {unit:<9} {note}")


def refuse(text):
    vmtest.failed("xdp-bench loads", text)


with frames.Veth(*frames.names(), 1500) as veth:
    drain = frames.sink(veth, RATE)
    receivers = frames.Frames(veth, RATE, XDP_BENCH, SECONDS)
    for size in (64, 1514):
        found = receivers.measure(size, ROUNDS)
        frames.report(say, refuse, size, receivers, found)
        vmtest.check(f"each of the {len(receivers.receivers)} receivers took frames of {size} bytes in each of {ROUNDS} rounds",
                     len(found) == len(receivers.receivers) and all(min(rates) > 0 for rates in found.values()), found)
    drain.communicate("")
