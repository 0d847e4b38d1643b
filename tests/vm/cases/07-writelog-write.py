#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-drive: nvme size=64M name=writelog log=yes
# vm-memory: 1G
# vm-modules: ext4 loop
"""Writes to a drive under a write log, for 08-writelog-check: plain, synchronous, and a file system on top."""
import mmap
import os

import disk
import vmtest

AREA = 48 << 20     # The last 16 MiB are for plain writes; ext4 has what lies before.
DEVICE = "/dev/nvme0n1"

page = mmap.mmap(-1, 4096)
plain = os.open(DEVICE, os.O_RDWR | os.O_DIRECT)
forced = os.open(DEVICE, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)


def write(file, number, text):
    page[:] = text.encode().ljust(4096, b".")
    os.pwrite(file, page, AREA + number * 4096)


for number in range(32):
    write(plain, number, f"PLAIN {number}")
os.fsync(plain)
for number in range(32, 64):
    write(forced, number, f"FORCED {number}")
write(plain, 64, "AFTER")
os.fsync(plain)
vmtest.run("mkfs.ext4", "-q", DEVICE, "40M")
write(forced, 65, "READY")
loop = disk.loop_attach(DEVICE, 0, 40 << 20, direct=True)
vmtest.run("mount", "-t", "ext4", loop, "/mnt")
for number in range(20):
    with open(f"/mnt/file{number}", "w") as file:
        file.write(f"content {number}\n" * 500)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open("/mnt", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    write(plain, 66, f"SYNCED {number}")
vmtest.run("umount", "/mnt")
disk.loop_detach(loop)
vmtest.passed("written under a log")
