#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the XDP program off an interface as `bpftool link detach` does: finds the BPF link by the interface's index and detaches it.
`ip link set dev X xdp off` cannot: the kernel refuses it while a link holds the program. Prints how many links were detached."""
import ctypes
import os
import platform
import struct
import sys

SYSCALL = {"x86_64": 321, "aarch64": 280}[platform.machine()]
OBJ_GET_INFO_BY_FD, LINK_GET_FD_BY_ID, LINK_GET_NEXT_ID, LINK_DETACH = 15, 30, 31, 34
LINK_TYPE_XDP = 6
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attr):
    result = libc.syscall(SYSCALL, command, ctypes.byref(attr), ctypes.sizeof(attr))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def buffer(*words):
    return ctypes.create_string_buffer(struct.pack(f"{len(words)}I", *words).ljust(128, b"\0"), 128)


def interface_of(fd):
    """The index of the interface that an XDP link is on; 0 for other links and detached ones."""
    info = ctypes.create_string_buffer(256)
    attr = ctypes.create_string_buffer(struct.pack("IIQ", fd, 256, ctypes.addressof(info)).ljust(128, b"\0"), 128)
    bpf(OBJ_GET_INFO_BY_FD, attr)
    kind, _, _, _, index = struct.unpack_from("IIIII", info)
    return index if kind == LINK_TYPE_XDP else 0


def main():
    with open(f"/sys/class/net/{sys.argv[1]}/ifindex", encoding="ascii") as file:
        wanted = int(file.read())
    link, count = 0, 0
    while True:
        attr = buffer(link)
        try:
            bpf(LINK_GET_NEXT_ID, attr)
        except FileNotFoundError:
            break
        link = struct.unpack_from("II", attr.raw)[1]
        fd = bpf(LINK_GET_FD_BY_ID, buffer(link))
        if interface_of(fd) == wanted:
            bpf(LINK_DETACH, buffer(fd))
            count += 1
        os.close(fd)
    print(count)
    return 0 if count > 0 else 1


sys.exit(main())
