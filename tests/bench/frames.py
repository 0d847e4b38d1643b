# SPDX-License-Identifier: Apache-2.0
"""Frames per second over a veth: our XSK layer next to xdp-tools' `xdp-bench` and to bare programs of the same verdicts.

One sender on one CPU puts TCP frames in at the far end as fast as it can (live frames of BPF_PROG_TEST_RUN), and each receiver takes them
in turn, round after round, so that what the machine does meanwhile meets all of them. Owns the two network namespaces and what runs
in them. Shared by run-xdp on the host and by a case of the VM lane, whose kernel is one that xdp-bench loads on; it knows of no node.
"""
import json
import os
import re
import signal
import statistics
import subprocess
import time

ATTACH_SECONDS = 60
# What an XSK layer's figure is put in relation to, by the name of the receiver.
OURS = "XSK layer, receive and drop"


def inside(where, *command):
    return ["ip", "netns", "exec", where, *command]


def run(*command, **options):
    return subprocess.run(command, check=True, **options)


class Veth:
    """Two namespaces and a veth between them: x0 at `here`, 10.79.0.1, and x1 `there`. The far end's offloads are off, as if on a wire."""

    def __init__(self, here, there, mtu):
        self.here, self.there = here, there
        for name in (here, there):
            run("ip", "netns", "add", name)
        run("ip", "-n", here, "link", "add", "x0", "mtu", str(mtu), "type", "veth", "peer", "name", "x1", "mtu", str(mtu), "netns", there)
        for where, name, host in ((here, "x0", 1), (there, "x1", 2)):
            run("ip", "-n", where, "addr", "add", f"10.79.0.{host}/24", "dev", name)
            run("ip", "-n", where, "link", "set", name, "up")
            run("ip", "-n", where, "link", "set", "lo", "up")
        run(*inside(there, "ethtool", "-K", "x1", "tx", "off"), stdout=subprocess.DEVNULL)
        run(*inside(here, "ethtool", "-K", "x0", "gro", "off", "tx", "off"), stdout=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in (self.here, self.there):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


class Frames:
    """The receivers at one end of a Veth. `rate` and `xdp_bench` are paths of programs."""

    def __init__(self, veth, rate, xdp_bench, seconds):
        self.veth, self.rate, self.xdp_bench, self.seconds = veth, rate, xdp_bench, seconds
        self.refused = {}  # What a receiver that did not load said, by its name.
        self.notes = {}
        self.mac = self.link("x0")["address"]
        self.receivers = (
            (OURS, self.ours),
            ("xdp-bench drop", lambda: self.theirs("drop", "x0")),
            ("xdp-bench redirect", lambda: self.theirs("redirect", "x0", "y0")),
            ("bare XDP_DROP", lambda: self.other("bare XDP_DROP", rate, "verdict", "x0")),
            ("bare XDP_REDIRECT", lambda: self.other("bare XDP_REDIRECT", rate, "verdict", "x0", "y0")))

    def theirs(self, verb, *interfaces):
        """xdp-bench; its libxdp wants a bpf file system, which the /sys of a network namespace lacks."""
        return self.other(f"xdp-bench {verb}", "sh", "-c", 'mount -t bpf bpf /sys/fs/bpf; exec "$@"', "sh", self.xdp_bench, verb, *interfaces)

    def link(self, interface):
        done = run("ip", "-n", self.veth.here, "-j", "link", "show", interface, capture_output=True, text=True)
        return json.loads(done.stdout)[0]

    def until(self, condition):
        deadline = time.monotonic() + ATTACH_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"frames: x0 has not become ready for the next receiver in {ATTACH_SECONDS} s")
            time.sleep(0.02)

    def taken(self):
        """Frames that XDP programs of x0 have seen, by the driver's count."""
        text = run(*inside(self.veth.here, "ethtool", "-S", "x0"), capture_output=True, text=True).stdout
        return sum(int(value) for value in re.findall(r"rx_?(?:queue_)?\d+_xdp_packets: (\d+)", text))

    def send(self, size):
        run(*inside(self.veth.there, self.rate, "send", "x1", str(self.seconds), str(size), self.mac))

    def ours(self):
        """Frames per second that our XSK layer receives and drops, as it counts itself."""
        receiver = subprocess.Popen(inside(self.veth.here, self.rate, "drop", "x0", str(self.seconds)), stdout=subprocess.PIPE, text=True)
        mode = receiver.stdout.readline().strip()

        def result():
            rate = receiver.communicate()[0].strip()
            if receiver.returncode or not mode.startswith("ready"):
                raise SystemExit("frames: xsk_rate received nothing")
            self.notes[OURS] = mode.partition(" ")[2]
            return float(rate)
        return result

    def other(self, name, *command):
        """Frames per second that another program takes, by the driver's count over the time of sending; None if it does not load."""
        program = subprocess.Popen(inside(self.veth.here, *command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.until(lambda: "xdp" in self.link("x0") or program.poll() is not None)
        if program.poll() is not None:
            self.refused[name] = program.communicate()[0]
            return None
        attached = self.link("x0")["xdp"].get("prog", {}).get("name", "")
        self.notes[name] = f"program {attached}" if attached else ""
        before, start = self.taken(), time.monotonic()

        def result():
            rate = (self.taken() - before) / (time.monotonic() - start)
            program.send_signal(signal.SIGINT)
            program.communicate()
            return rate
        return result

    def measure(self, size, rounds):
        """{receiver: [frames per second of each round]} of those that load, at frames of so many bytes."""
        found = {}
        for _ in range(rounds):
            for name, open_receiver in self.receivers:
                if name in self.refused:
                    continue
                result = open_receiver()
                if result:
                    self.send(size)
                    found.setdefault(name, []).append(result())
                self.until(lambda: "xdp" not in self.link("x0"))
        return found


def sink(veth, rate):
    """Adds y0, where frames may be redirected to; what goes there is dropped at its far end without a packet being made of it."""
    run("ip", "-n", veth.here, "link", "add", "y0", "type", "veth", "peer", "name", "y1")
    for name in ("y0", "y1"):
        run("ip", "-n", veth.here, "link", "set", name, "up")
    program = subprocess.Popen(inside(veth.here, rate, "verdict", "y1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if program.stdout.readline() != "ready\n":
        raise SystemExit("frames: no program on y1")
    return program


def why_refused(said):
    """A line on why xdp-bench has not loaded, of what it printed."""
    missing = re.search(r"kernel BTF type ID of '(\w+)'", said)
    if missing:
        return (f"this version of it wants the tracepoint {missing.group(1)}, which this kernel lacks (Linux has dropped it); the one "
                "that `deploy/deps/setup bench` compiles does not")
    if "not found" in said:
        return "it is not there; `deploy/deps/setup bench` compiles it"
    return (said.strip().splitlines() or ["it ended without a word"])[-1]


def report(say, refuse, size, frames, found):
    """Medians of what `measure` found, and the medians of the ratios within a round."""
    for name, rates in found.items():
        say(f"{size} byte frames, {name}", "M/s", statistics.median(rates) / 1e6, frames.notes.get(name, ""))
    for name, rates in found.items():
        if name != OURS:
            ratio = statistics.median(ours / theirs for ours, theirs in zip(found[OURS], rates))
            say(f"{size} byte frames, XSK layer / {name}", "ratio", ratio)
    for name, said in frames.refused.items():
        refuse(f"{size} byte frames, {name}: {why_refused(said)}")


def names():
    """Of a pair of namespaces that no other run has."""
    return f"psb{os.getpid()}s", f"psb{os.getpid()}c"
