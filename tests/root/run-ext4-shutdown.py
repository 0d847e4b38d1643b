#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Power cuts of a running node: EXT4_IOC_SHUTDOWN on a loop file system that holds both index and store.

    run-ext4-shutdown.py [CUTS]     (200; SEED=n starts the random numbers elsewhere)

The ioctl stops the file system at once and throws away what its journal has not got: after it every write and sync fails, and
after unmounting and mounting only what was synced is there. Under load from six writers, at a random number of answers, the plug
is pulled; the node is killed, the file system mounted again, the node started, and every key compared with what was answered.

Negative control: a build whose index does not sync (PENSTOCK_FAULT_NO_INDEX_SYNC) must lose something under the same test. (A build without
the payload flush cannot lose here: O_DIRECT writes reach the loop device at once. tests/sim has that control.)
"""

import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from pusher import Model, Node, Pusher, empty, verify, wait_until  # noqa: E402

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
CONTROL_CUTS = 12


class Plug:
    """The file system in a file; in memory where there is room, so that the host's disk does not set the pace."""

    def __init__(self):
        base = "/dev/shm" if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 1 << 30 else None
        self.work = tempfile.mkdtemp(prefix="penstock-plug.", dir=base)
        self.image = os.path.join(self.work, "ext4.img")
        self.mount_point = os.path.join(self.work, "mnt")
        os.mkdir(self.mount_point)
        self.mounted = False
        with open(self.image, "wb") as f:
            f.truncate(256 << 20)
        self.run("mkfs.ext4", "-q", "-F", self.image)

    @staticmethod
    def run(*words):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")

    def mount(self):
        self.run("mount", "-o", "loop", self.image, self.mount_point)
        self.mounted = True

    def try_unmount(self):
        try:
            self.run("umount", self.mount_point)
        except RuntimeError as e:
            if "busy" in str(e):
                return False
            raise
        return True

    def unmount(self):
        # The kernel closes a killed process's io_uring, and the files it holds, a little after the process is gone.
        wait_until(self.try_unmount, 30, "the file system stays busy")
        self.mounted = False

    def pull(self):
        fd = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", self.mount_point], capture_output=True)
        shutil.rmtree(self.work, ignore_errors=True)


def cut(node, plug, model, seed):
    """One cycle under load; returns the faults found after it."""
    rng = random.Random(seed)
    pusher = Pusher(node, model, seed)
    goal = model.acks + rng.randrange(3, 80)
    pusher.start()
    try:
        wait_until(lambda: model.acks >= goal, 60, f"SEED={seed}: the node does not answer under load")
        model.unplug()
        plug.pull()
    finally:
        pusher.stopping.set()
        node.kill()
        pusher.stop()
        model.replug()
    plug.unmount()
    plug.mount()
    try:
        node.start()
    except RuntimeError as e:  # a store that does not open any more is a fault, and what a control may bring about
        return [str(e)]
    return verify(node, model)


def cycles(binary, count, first_seed, until_fault):
    """Returns (cycles done, answered changes, faults, bytes left after deleting everything)."""
    plug = Plug()
    node = None
    model = Model()
    faults = []
    done = 0
    try:
        plug.mount()
        # A copy: whoever builds meanwhile does not change what is tested.
        binary = shutil.copy(binary, os.path.join(plug.work, "penstock"))
        node = Node(plug.mount_point, os.path.join(plug.work, "node.log"), binary)
        node.format()
        node.start()
        status = node.request("PUT", "/box")[0]
        if status != 200:
            raise RuntimeError(f"CreateBucket answers {status}")
        for seed in range(first_seed, first_seed + count):
            found = cut(node, plug, model, seed)
            done += 1
            faults += [f"SEED={seed}: {x}" for x in found]
            if faults and (until_fault or node.process is None or node.process.poll() is not None or len(faults) > 10):
                break
        left = empty(node, model) if not faults else 0
        return done, model.acks, faults, left
    finally:
        if node is not None:
            node.kill()
        plug.close()


def control_binary():
    out = "build/no-index-sync"
    words = ["make", "-s", f"O={out}", "CPPFLAGS=-DPENSTOCK_FAULT_NO_INDEX_SYNC", "build"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError("the control does not build: " + done.stderr[-500:])
    return f"{out}/penstock"


def can_run():
    try:
        plug = Plug()
    except (RuntimeError, FileNotFoundError) as e:
        return str(e)
    try:
        plug.mount()
        plug.pull()
        return None
    except (RuntimeError, OSError) as e:
        return str(e)
    finally:
        plug.close()


def enter_own_mounts():
    """Runs the rest in a mount namespace of its own: a namespace that somebody else makes meanwhile would copy our mount and keep
    the file system alive, shut down, after we have unmounted it."""
    if os.environ.get("PLUG_NAMESPACE") is None and shutil.which("unshare"):
        os.environ["PLUG_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])


def main():
    enter_own_mounts()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(os.environ.get("SEED", "1"))
    why = can_run()
    if why is not None:
        print(f"SKIP ext4-shutdown: host: no loop mount of ext4 that can be shut down here: {why}")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    passed = failed = 0

    def result(name, good):
        nonlocal passed, failed
        passed, failed = passed + good, failed + (not good)
        print(("ok   " if good else "FAIL ") + name, flush=True)

    begin = time.monotonic()
    done, acks, faults, left = cycles(os.environ.get("PENSTOCK", "build/penstock"), count, seed, False)
    for fault in faults:
        print("     " + fault)
    result(f"{done} power cuts, {acks} answered changes, nothing lost or partial ({time.monotonic() - begin:.0f} s)", not faults and done == count)
    result(f"no space is left behind after {done} cuts ({left} bytes)", left == 0 and not faults)
    done, acks, faults, _ = cycles(control_binary(), CONTROL_CUTS, seed, True)
    result(f"control: without the index's sync something is lost (after {done} cuts)", bool(faults))
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
