#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-after: 07-writelog-write
# vm-drive: nvme from=writelog.log
# vm-drive: nvme from=writelog.img
# vm-memory: 1G
# vm-timeout: 150
# vm-modules: ext4 loop
"""The write log tells what the drive was told: replayed whole it gives the drive's content, and the flush
requests that durability hangs on are in it.  ext4 and what was synced into it survive cuts made from it, and do
not when flushes are ignored, which shows that the cuts bite."""
import os
import subprocess

import disk
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


def lost_after(cut, honest):
    """Makes the drive of a cut; returns what is wrong with its file system or the files synced before, or None."""
    file = os.open("/tmp/cut", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.truncate(file, SIZE)
    start = writelog.boundary(log, cut if honest else ready)
    writelog.apply_durable(log, file, 0, start)
    writelog.apply_volatile(log, file, start, cut, "ext4", 512, honest)
    os.close(file)
    loop = disk.loop_attach("/tmp/cut", 0, 40 << 20)
    try:
        mounted = subprocess.run(["mount", "-t", "ext4", loop, "/mnt"], stderr=subprocess.PIPE, text=True)
        if mounted.returncode:
            return mounted.stderr.strip()
        lost = [number for index, number in synced if index <= cut and not is_whole(number)]
        vmtest.run("umount", "/mnt")
        checked = subprocess.run(["e2fsck", "-fn", loop], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return f"lost files {lost}" if lost else checked.stdout.strip()[-200:] if checked.returncode else None
    finally:
        disk.loop_detach(loop)


def is_whole(number):
    try:
        with open(f"/mnt/file{number}") as file:
            return file.read() == f"content {number}\n" * 500
    except OSError:
        return False


def synced_files_survive_cuts():
    cuts = writelog.choose_cuts(log, CUTS, "ext4", ready)
    broken = [f"cut {cut}: {text}" for cut in cuts for text in [lost_after(cut, True)] if text]
    vmtest.check(f"ext4 is whole and has all synced files after {CUTS} cuts", not broken, str(broken[:2]))
    lied = [text for text in (lost_after(cut, False) for cut in cuts) if text]
    vmtest.check(f"a disk that lies about flushes is found out ({len(lied)} of {CUTS})", lied, "nothing broke")


# Before this marker mkfs was at work, and a half-made file system may be anything.
ready = next(index for index, _ in log.find(b"READY"))
synced = [(index, int(data[7:40].split(b".")[0])) for index, data in log.find(b"SYNCED ")]
whole_log_gives_the_drive()
forced_writes_are_durable_before_they_return()
synced_files_survive_cuts()
