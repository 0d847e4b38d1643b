# SPDX-License-Identifier: Apache-2.0
"""Helpers for cases written in Python (`import vmtest`); the same reports as lib.sh."""
import os
import subprocess
import sys
import time

# `make test-vm FULL=1`: everything at the size that the proof asks for; otherwise at what fits CI's time.
FULL = os.path.exists("/vm/full")
# How many times longer than usual things may take (`tests/vm/run --patience`).
PATIENCE = int(open("/vm/patience").read()) if os.path.exists("/vm/patience") else 1


def passed(text):
    print("PASS " + text, flush=True)


def failed(text, detail):
    print(f"FAIL {text}: {detail}", flush=True)


def skipped(text, reason):
    print(f"SKIP {text}: {reason}", flush=True)


def check(text, condition, detail=""):
    """Reports one fact; returns whether it held."""
    if condition:
        passed(text)
    else:
        failed(text, detail)
    return bool(condition)


def note(text):
    """A line for the reader that is no result."""
    print("# " + text, flush=True)


def until(seconds, condition, pause=0.02):
    """Polls `condition` until it gives something true, which is returned, or None at the deadline (times PATIENCE)."""
    deadline = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(pause)
    return None


def run(*command, **options):
    """Runs set-up that must work; ends the case with its output when it does not."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode:
        failed("set-up", f"{' '.join(map(str, command))} exited {done.returncode}: {done.stdout.strip()[-800:]}")
        sys.exit(1)
    return done.stdout


def load(module, *parameters):
    """Inserts a module and what it needs; the case names it in vm-have."""
    with open(f"/vm/modules/{module}.needs") as listing:
        needed = listing.read().split()
    with open("/proc/modules") as listing:
        present = {line.split()[0] for line in listing}
    for name in needed:
        if name not in present:
            run("insmod", f"/vm/modules/{name}.ko", *(parameters if name == module else ()))
