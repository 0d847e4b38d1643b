# SPDX-License-Identifier: Apache-2.0
"""Runs one guest: drives, QEMU command line, deadline, and what its output means.

Owns the work folder of a boot (build/vm/NAME): drives, console.log, results.log, out/.  A guest that
hangs is killed, one that panics is recognised from its console.  Must not choose kernels or cases.
"""
import os
import pathlib
import re
import selectors
import subprocess
import threading
import time

QEMU = "qemu-system-x86_64"
TAP_UP = pathlib.Path(__file__).resolve().parent / "tap-up"
# Software emulation only: the lane must behave the same on hosts with and without virtualisation.
MACHINE = ["-M", "q35", "-accel", "tcg,thread=multi", "-cpu",
           "Haswell-v4,-pcid,-x2apic,-tsc-deadline,-invpcid,-spec-ctrl", "-net", "none",
           "-no-reboot", "-display", "none", "-monitor", "none"]
BOOT_SECONDS = 180  # until the guest is heard of; it takes 6 on two quiet CPUs
PANIC = re.compile(r"Kernel panic - not syncing.*")


class Report:
    """Counts of one or more boots, printed as they come in; boots in parallel share one."""

    def __init__(self):
        self.lock = threading.Lock()
        self.passed = self.failed = self.skipped = 0
        self.failures = []

    def add(self, case, verdict, text):
        # A skip for a reason that CI could have set up away is a failure there; "host: ..." is none of them.
        if verdict == "skip" and os.environ.get("CI") == "true" and ": host: " not in f": {text}":
            verdict, text = "fail", "skipped in CI: " + text
        word = {"pass": "ok  ", "fail": "FAIL", "skip": "SKIP"}[verdict]
        with self.lock:
            print(f"  {word} {case}: {text}", flush=True)
            self.passed += verdict == "pass"
            self.failed += verdict == "fail"
            self.skipped += verdict == "skip"
            if verdict == "fail":
                self.failures.append(f"{case}: {text}")

    def say(self, text):
        with self.lock:
            print(text, flush=True)


def size_bytes(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]


def drive_arguments(drives, work):
    """Creates the drives' files; returns QEMU's arguments and the guest's block device names.

    A drive `from=` an earlier boot is a file of ../drives; a named one is created there.
    """
    arguments, devices = [], []
    for number, drive in enumerate(drives):
        folder = work.parent / "drives" if "name" in drive or "from" in drive else work
        folder.mkdir(exist_ok=True)
        path = folder / drive.get("from", drive.get("name", f"drive{number}") + ".img")
        if "from" not in drive:
            path.unlink(missing_ok=True)
            path.touch()
            os.truncate(path, size_bytes(drive.get("size", "512M")))
        elif not path.exists():
            raise FileNotFoundError(f"drive {path.name} of an earlier case is not there")
        arguments += block_nodes(drive, number, path) + [
            "-device", f"nvme,drive=node{number},serial=penstock{number},"
            f"logical_block_size={drive.get('lba', '512')},"
            f"physical_block_size={drive.get('lba', '512')}" +
            ("," + drive["options"] if "options" in drive else "")]
        devices.append(f"nvme{number}n1")
    return arguments, devices


def has_device(name):
    """Whether this QEMU emulates a device. Its exit status does not say."""
    said = subprocess.run([QEMU, "-nodefaults", "-device", f"{name},help"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True).stdout
    return f"{name} options" in said


def nic_arguments(nics):
    """Network cards on one hub, nothing else on it: the text of a `vm-nic` is QEMU's device with its options.

    The Nth has the address 52:54:00:00:00:0N, by which a case finds it. A hub feeds one queue, so where a card wants more they all hang
    on taps and a bridge instead, in a network namespace of QEMU's own that ends with it.
    """
    arguments = []
    for number, text in enumerate(nics, 1):
        device, _, queues = text.partition(" queues=")
        port = f"tap,ifname=port{number},script={TAP_UP},downscript=no" if nics_need_taps(nics) else "hubport,hubid=0"
        arguments += ["-netdev", f"{port},id=port{number}" + (f",queues={queues}" if queues else ""),
                      "-device", f"{device},netdev=port{number},mac=52:54:00:00:00:{number:02x},romfile="]
    return arguments


def nics_need_taps(nics):
    return any(" queues=" in text for text in nics)


def has_taps():
    """Whether this machine makes a tap on a bridge in a namespace of its own."""
    made = "ip tuntap add dev port0 mode tap && ip link add cards type bridge"
    return subprocess.run(["unshare", "--net", "sh", "-c", made], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def block_nodes(drive, number, path):
    """The block layer under one drive: a file, or a write log over a file.

    Flushes need not reach the host's disk, only the log, so the files ignore them.
    """
    plain = f"driver=file,cache.no-flush=on,filename={path}"
    if drive.get("log") != "yes":
        return ["-blockdev", f"{plain},node-name=node{number}"]
    log = path.with_suffix(".log")
    log.unlink(missing_ok=True)
    log.touch()
    return ["-blockdev", f"{plain},node-name=file{number}",
            "-blockdev", f"driver=file,cache.no-flush=on,filename={log},node-name=log{number}",
            "-blockdev", f"driver=blklogwrites,node-name=node{number},file=file{number},"
            f"log=log{number},log-sector-size=512"]


def command_line(kernel, initramfs, boot, drives, work):
    """QEMU's arguments up to the serial ports."""
    out = work / "out.img"
    out.unlink(missing_ok=True)
    out.touch()
    os.truncate(out, 256 << 20)
    # The kernel's timer test counts ticks against the host's clock; an emulated CPU on a busy host fails it and hangs.
    append = f"console=ttyS0 no_timer_check panic=-1 quiet oops=panic mitigations=off {boot['cmdline']}"
    inside = ["unshare", "--net"] if nics_need_taps(boot.get("nics", [])) else []
    return [*inside, QEMU, *MACHINE, "-smp", boot["cpus"], "-m", boot["memory"], "-kernel", str(kernel),
            "-initrd", str(initramfs), "-append", append,
            "-blockdev", f"driver=file,cache.no-flush=on,filename={out},node-name=out",
            "-device", "virtio-blk-pci,drive=out", *drives, *nic_arguments(boot.get("nics", []))]


class Guest:
    """One running guest and the parser of its result port."""

    def __init__(self, command, work, cases, report):
        self.work, self.report = work, report
        self.cases = {case.name: case for case in cases}
        self.boot_seconds = BOOT_SECONDS
        self.deadline = BOOT_SECONDS + sum(case.timeout + 5 for case in cases)
        self.command = ["nice", "-n", os.environ.get("PENSTOCK_VM_NICE", "10"), *command,
                        "-serial", f"file:{work}/console.log", "-serial", "chardev:results",
                        "-chardev", "stdio,id=results,signal=off"]
        self.current = None
        self.results = 0
        self.failed = False
        self.finished = set()
        self.down = False
        self.heard = False

    def run(self):
        """Runs to the end or the deadline; every case ends with at least one result.

        Software emulation now and then stops before the guest says a word; that guest, which did nothing yet, is started once more.
        """
        in_time = self._boot()
        if not in_time and not self.heard:
            self.report.say(f"       guest of {next(iter(self.cases))} said nothing for {self._patience()} s: started once more")
            in_time = self._boot()
        if not self.down:
            self._explain(in_time)
        self._unpack()

    def _patience(self):
        return self.deadline if self.heard else min(self.boot_seconds, self.deadline)

    def _boot(self):
        process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        try:
            return self._read(process)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _read(self, process):
        start = time.monotonic()
        selector = selectors.DefaultSelector()
        selector.register(process.stdout, selectors.EVENT_READ)
        rest = b""
        with open(self.work / "results.log", "wb", buffering=0) as log:
            while True:
                if not selector.select(max(0, start + self._patience() - time.monotonic())):
                    return False
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    return True
                self.heard = True
                log.write(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._line(line.decode(errors="replace").rstrip("\r"))

    def _line(self, line):
        mark = re.match(r"@@(\w+) ?(.*)$", line)
        verdict = re.match(r"(PASS|FAIL|SKIP) (.*)$", line)
        if mark:
            self._mark(mark.group(1), mark.group(2))
        elif verdict and self.current:
            self._result(verdict.group(1).lower(), verdict.group(2))
        else:
            self.report.say(f"    | {self.current or 'boot'}: {line}")

    def _result(self, verdict, text):
        self.results += 1
        self.failed |= verdict == "fail"
        self.report.add(self.current, verdict, text)

    def _mark(self, kind, text):
        words = text.split()
        if kind == "begin":
            self.current, self.results, self.failed = words[0], 0, False
            self.started = time.monotonic()
        elif kind == "late":
            self._result("fail", f"not finished after {words[1]} s, killed")
        elif kind == "splat":
            self._result("fail", "kernel report: " + text.split(" ", 1)[1])
        elif kind == "end":
            self._end(int(words[1]))
        elif kind == "up":
            self.report.say(f"       guest of {next(iter(self.cases))} is up: Linux {words[0]}, {words[1]} s")
        elif kind == "down":
            self.down = True
        else:
            self.report.add("boot", "fail", text)

    def _end(self, code):
        if code and not self.failed:
            self._result("fail", f"exited {code} without a failed check")
        elif not self.results:
            self._result("fail", "checked nothing")
        self.report.say(f"       {self.current} took {time.monotonic() - self.started:.1f} s")
        self.finished.add(self.current)
        self.current = None

    def _explain(self, in_time):
        """The guest did not power off by itself: say why, show the console, fail what is left."""
        console = (self.work / "console.log").read_text(errors="replace") if \
            (self.work / "console.log").exists() else ""
        panic = PANIC.search(console)
        why = panic.group(0) if panic else \
            "QEMU ended early" if in_time else f"guest hung, killed after {self._patience()} s"
        tail = "\n".join("    ! " + line for line in console.splitlines()[-40:])
        self.report.say(f"  console tail of the guest of {next(iter(self.cases))}:\n{tail}")
        for name in self.cases:
            if name not in self.finished:
                self.report.add(name, "fail", why if name == self.current else "not run: " + why)

    def _unpack(self):
        """Files the cases left in /out."""
        image, folder = self.work / "out.img", self.work / "out"
        folder.mkdir(exist_ok=True)
        subprocess.run(["tar", "-xf", str(image), "-C", str(folder)], stderr=subprocess.DEVNULL)
        image.unlink()


def shell(command):
    """An interactive guest on this terminal; ctrl-a x ends it."""
    return subprocess.run([*command, "-serial", "mon:stdio"]).returncode
