#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node killed with SIGKILL again and again under load: nothing answered is lost, nothing is partial, no space leaks.

    run-kill9.py [CYCLES]     (100; SEED=n starts the random numbers elsewhere)
"""

import os
import random
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from pusher import Model, Node, Pusher, empty, verify, wait_until  # noqa: E402


def cycle(node, model, seed):
    rng = random.Random(seed)
    pusher = Pusher(node, model, seed)
    goal = model.acks + rng.randrange(1, 40)
    pusher.start()
    try:
        wait_until(lambda: model.acks >= goal, 60, f"SEED={seed}: the node does not answer under load")
    finally:
        pusher.stopping.set()
        node.kill()
        pusher.stop()
    # Now and then the start itself is killed, somewhere in recovery.
    if rng.random() < 0.2:
        node.start_and_kill(rng.uniform(0.0, 0.1))
    node.start()
    return verify(node, model)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first = int(os.environ.get("SEED", "1"))
    work = tempfile.mkdtemp(prefix="penstock-kill9.")
    # A copy: whoever builds meanwhile does not change what is tested.
    binary = shutil.copy(os.environ.get("PENSTOCK", "build/penstock"), os.path.join(work, "penstock"))
    node = Node(work, os.path.join(work, "node.log"), binary)
    model = Model()
    faults, done, left = [], 0, 0
    begin = time.monotonic()
    try:
        node.format()
        node.start()
        status = node.request("PUT", "/box")[0]
        if status != 200:
            raise RuntimeError(f"CreateBucket answers {status}")
        for seed in range(first, first + count):
            faults += [f"SEED={seed}: {x}" for x in cycle(node, model, seed)]
            done += 1
            if faults:
                break
        left = empty(node, model)
    finally:
        node.kill()
        shutil.rmtree(work, ignore_errors=True)
    for fault in faults:
        print("     " + fault)
    good = not faults
    print(f"{'ok  ' if good else 'FAIL'} {done} kills, {model.acks} answered changes, nothing lost or partial ({time.monotonic() - begin:.0f} s)")
    print(f"{'ok  ' if left == 0 else 'FAIL'} no space is left behind after {done} kills ({left} bytes)")
    passed = good + (left == 0)
    print(f"{passed} passed, {2 - passed} failed, 0 skipped")
    return 0 if passed == 2 else 1


if __name__ == "__main__":
    sys.exit(main())
