# SPDX-License-Identifier: Apache-2.0
"""Block device set-up in the guest: partitions and loop devices, by ioctl, because busybox's tools differ.

A node under test keeps its store on the first partition and its index, in ext4, on the second, so that one
write log under the one drive orders both.  The third, of 1 MiB, is for the client's marker blocks.
"""
import errno
import fcntl
import os
import struct

import vmtest

BLKRRPART, BLKSSZGET, BLKGETSIZE64 = 0x125F, 0x1268, 0x80081272
LOOP_CTL_GET_FREE, LOOP_CONFIGURE, LOOP_CLR_FD = 0x4C82, 0x4C0A, 0x4C01
LO_FLAGS_DIRECT_IO = 16
MIB = 1 << 20


def layout(size_bytes, index_mib=24):
    """(offset, length) of store, index and markers on a drive."""
    total = size_bytes // MIB
    store = total - index_mib - 2
    return [(MIB, store * MIB), ((1 + store) * MIB, index_mib * MIB), ((1 + store + index_mib) * MIB, MIB)]


def size_of(device):
    with open(device, "rb") as file:
        return struct.unpack("Q", fcntl.ioctl(file, BLKGETSIZE64, bytes(8)))[0]


def lba_size_of(device):
    with open(device, "rb") as file:
        return struct.unpack("I", fcntl.ioctl(file, BLKSSZGET, bytes(4)))[0]


def partition(device, index_mib=24):
    """Writes a partition table with our layout; returns the three partitions' paths."""
    lba = lba_size_of(device)
    table = bytearray(512)
    for number, (offset, length) in enumerate(layout(size_of(device), index_mib)):
        struct.pack_into("<B3sB3sII", table, 446 + 16 * number, 0, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff",
                         offset // lba, length // lba)
    table[510:] = b"\x55\xaa"
    with open(device, "r+b") as file:
        file.write(table)
        file.flush()
        os.fsync(file.fileno())
        fcntl.ioctl(file, BLKRRPART)
    names = [f"{device}p{number}" for number in (1, 2, 3)]
    if not vmtest.until(60, lambda: all(os.path.exists(name) for name in names)):
        vmtest.failed("set-up", f"{device} shows no partitions")
        raise SystemExit(1)
    return names


def loop_attach(path, offset=0, length=0, direct=False):
    """A loop device on part of a file or device; returns its path.

    A loop device has a write cache but no FUA, so the kernel sends a flush after each forced write.  The
    NVMe that QEMU emulates announces FUA and ignores it: a file system whose flushes must be in a write log
    is mounted through a direct loop device on its partition.
    """
    info = struct.pack("<5Q4I160s", 0, 0, 0, offset, length, 0, 0, 0, LO_FLAGS_DIRECT_IO if direct else 0, b"")
    with open(path, "r+b") as backing, open("/dev/loop-control", "r+b", buffering=0) as control:
        config = struct.pack("<II", backing.fileno(), 512) + info + bytes(64)
        for _ in range(20):
            device = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
            try:
                with open(device, "r+b", buffering=0) as loop:
                    fcntl.ioctl(loop, LOOP_CONFIGURE, config)
                return device
            except OSError as error:
                # Another process may have taken the free one in between.
                if error.errno != errno.EBUSY:
                    raise
    raise OSError(errno.EBUSY, "no loop device stays free")


def loop_detach(device):
    with open(device, "rb", buffering=0) as loop:
        fcntl.ioctl(loop, LOOP_CLR_FD)
