#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-after: 07-writelog-write
# vm-drive: nvme from=writelog.log
# vm-drive: nvme from=writelog.img
# vm-memory: 1G
# vm-modules: ext4 loop
"""The write log tells what the drive was told: replayed whole it gives the drive's content, and the flush
and FUA requests that durability hangs on are in it.  ext4 survives cuts made from it, and does not when
flushes are ignored, which shows that the cuts bite."""
import os
import subprocess

import vmtest
import writelog

LOG, DRIVE, SIZE = "/dev/nvme0n1", "/dev/nvme1n1", 64 << 20
CUTS = 8
log = writelog.Log(LOG)


def whole_log_gives_the_drive():
    file = os.open("/tmp/whole", os.O_RDWR | os.O_CREAT)
    os.truncate(file, SIZE)
    writelog.apply_durable(log, file, 0, log.count)
    same = subprocess.run(["cmp", "/tmp/whole", DRIVE]).returncode == 0
    vmtest.check(f"{log.count} entries replayed give the drive's content", same, "they differ")
    os.close(file)
    os.unlink("/tmp/whole")


def forced_writes_are_durable_before_they_return():
    """One at a time with O_DSYNC: each is marked FUA, or a flush stands before the next write."""
    found = [index for index, _ in log.find(b"FORCED ")]
    loose = [index for index in found if not log.entries[index].flags & writelog.FUA and
             not any(entry.flags & writelog.FLUSH for entry in log.entries[index + 1:index + 2])]
    vmtest.check("32 O_DSYNC writes are in the log", len(found) == 32, f"{len(found)}")
    vmtest.check("each is FUA or followed by a flush", not loose, f"entries {loose[:5]} are neither")
    plain = [index for index, _ in log.find(b"PLAIN ")]
    between = [entry for entry in log.entries[plain[0]:plain[-1]] if entry.flags & writelog.FLUSH]
    vmtest.check("plain writes have no flush between them", not between, f"{len(between)} flushes")
    after = next(index for index, _ in log.find(b"AFTER"))
    vmtest.check("fsync leaves a flush", log.entries[after + 1].flags & writelog.FLUSH, "no flush follows")


def broken_after(cut, honest):
    """Makes the drive of a cut; returns what e2fsck or mount hold against it, or None."""
    file = os.open("/tmp/cut", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.truncate(file, SIZE)
    start = writelog.boundary(log, cut) if honest else 0
    writelog.apply_durable(log, file, 0, start)
    writelog.apply_volatile(log, file, start, cut, "ext4", 512, honest)
    os.close(file)
    loop = vmtest.run("losetup", "-f").strip()
    vmtest.run("losetup", loop, "/tmp/cut")
    try:
        mounted = subprocess.run(["mount", "-t", "ext4", loop, "/mnt"], stderr=subprocess.PIPE, text=True)
        if mounted.returncode:
            return mounted.stderr.strip()
        vmtest.run("umount", "/mnt")
        checked = subprocess.run(["e2fsck", "-fn", loop], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return checked.stdout.strip()[-200:] if checked.returncode else None
    finally:
        vmtest.run("losetup", "-d", loop)


def file_system_survives_cuts():
    # Before this marker mkfs was at work, and a half-made file system may be anything.
    ready = next(index for index, _ in log.find(b"READY"))
    cuts = writelog.choose_cuts(log, CUTS, "ext4", ready)
    broken = [(cut, text) for cut in cuts for text in [broken_after(cut, True)] if text]
    vmtest.check(f"ext4 is whole after {CUTS} cuts", not broken, str(broken[:1]))
    lied = sum(1 for cut in cuts if broken_after(cut, False))
    vmtest.check(f"a disk that lies about flushes breaks it ({lied} of {CUTS})", lied > 0, "nothing broke")


whole_log_gives_the_drive()
forced_writes_are_durable_before_they_return()
file_system_survives_cuts()
