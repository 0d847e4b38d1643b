#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-drive: nvme size=128M lba=4096
# vm-drive: nvme size=64M
# vm-memory: 1G
# vm-modules: ext4 xfs loop
# vm-timeout: 240
"""A node by NVMe passthrough (/dev/ng0n1): what clients store reads back bit-exact, payload goes out in fragments
without a copy for the device's sake, the block device of the same drive opens the same store, and neither is
opened while the other is in use."""
import hashlib
import os
import subprocess

import disk
import node as nodes
import vmtest

BLOCK, PASSTHROUGH, CONTROLLER = "/dev/nvme0n1", "/dev/ng0n1", "/dev/nvme0"
CONFIG, SIZES = "/tmp/penstock.yaml", [0, 1, 4095, 65_537, 3_000_001]
expected = {}


def curl(*arguments):
    """curl's answer body; None when it did not succeed."""
    done = subprocess.run(["curl", "-sS", "--fail-with-body", "--max-time", "60", *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.stdout if done.returncode == 0 else None


def penstock(*arguments):
    """(exit status, all output) of a penstock command with our configuration."""
    done = subprocess.run(["penstock", *arguments, "--config", CONFIG], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def configure(device):
    nodes.write_config(CONFIG, device, "/mnt/data")


def put(base, name):
    for size in SIZES:
        body = os.urandom(size)
        with open("/tmp/body", "wb") as file:
            file.write(body)
        url = f"/vm-pass/{name}/{size}"
        if vmtest.check(f"{name}: a PUT of {size} bytes succeeds", curl("-T", "/tmp/body", base + url) is not None, "refused"):
            expected[url] = hashlib.sha256(body).hexdigest()


def wrong(base):
    bodies = {url: curl(base + url) for url in expected}
    return [url for url, body in bodies.items() if body is None or hashlib.sha256(body).hexdigest() != expected[url]]


def serve(node, device, name):
    """One life of a node on `device`: everything stored before is there, more is stored and is there."""
    configure(device)
    if not vmtest.check(f"the node becomes ready on {device}", node.start(), node.log_tail()):
        return
    base = f"http://127.0.0.1:{node.port}"
    if not expected:
        curl("-X", "PUT", f"{base}/vm-pass")
    lost = wrong(base)
    vmtest.check(f"{name}: {len(expected)} objects of before read back bit-exact", not lost, str(lost))
    put(base, name)
    lost = wrong(base)
    vmtest.check(f"{name}: all {len(expected)} objects read back bit-exact", not lost, str(lost))
    if device == PASSTHROUGH:
        copied = node.total("penstock_copied_bytes_total", 'reason="device"')
        vmtest.check("no byte was copied because of the device", copied == 0, str(copied))
        refused("its block device cannot be opened exclusively meanwhile", BLOCK)
        status, text = penstock("check")
        vmtest.check("check names the passthrough device while the node runs", "NVMe passthrough: namespace 1" in text, text)
    vmtest.check(f"{name}: SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())


def refused(what, device):
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
        vmtest.failed(what, "it could")
    except OSError as error:
        vmtest.check(what, error.errno == 16, str(error))


index = disk.partition("/dev/nvme1n1")[1]
vmtest.run("mkfs.ext4", "-q", "-F", index)
vmtest.run("mount", "-t", "ext4", index, "/mnt")
os.makedirs("/mnt/data", exist_ok=True)

configure(CONTROLLER)
status, text = penstock("format", "--force")
vmtest.check("the controller's device is refused by name", status != 0 and "no NVMe namespace" in text, text)
configure(PASSTHROUGH)
holder = os.open(BLOCK, os.O_RDONLY | os.O_EXCL)
status, text = penstock("format", "--force")
vmtest.check("a namespace whose block device is held is refused", status != 0 and "is in use" in text, text)
os.close(holder)
status, text = penstock("format", "--force")
vmtest.check("format writes by passthrough", status == 0, text)
status, text = penstock("check")
vmtest.check("check names the device and what it takes", "memory aligned to 4, offsets to 4096" in text, text)

node = nodes.Node(CONFIG)
serve(node, PASSTHROUGH, "first")
with open(node.log) as log:
    line = next((line for line in log if PASSTHROUGH in line and "dma_alignment=" in line), "")
vmtest.check("the start-up self-test found that fragments go as they lie", "fragments=1" in line, line)
serve(node, BLOCK, "block")
serve(node, PASSTHROUGH, "again")
vmtest.run("umount", "/mnt")
