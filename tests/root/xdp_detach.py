#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the XDP programs of a process off, as `bpftool link detach` does. `ip link set dev X xdp off` cannot: the kernel refuses it while
a link holds the program. Links are found among the process's descriptors, because a link tells the index of its interface but not the
network namespace, and other tests have interfaces of the same index. Prints how many links were detached."""
import ctypes
import os
import platform
import struct
import sys

SYSCALL = {"x86_64": 321, "aarch64": 280}[platform.machine()]
LINK_GET_FD_BY_ID, LINK_DETACH = 30, 34
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, word):
    attr = ctypes.create_string_buffer(struct.pack("I", word).ljust(128, b"\0"), 128)
    result = libc.syscall(SYSCALL, command, attr, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def links(pid):
    for name in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            with open(f"/proc/{pid}/fdinfo/{name}", encoding="ascii") as file:
                fields = dict(line.split(":", 1) for line in file if ":" in line)
        except FileNotFoundError:
            continue
        if fields.get("link_type", "").strip() == "xdp":
            yield int(fields["link_id"])


def main():
    found = list(links(int(sys.argv[1])))
    for link in found:
        fd = bpf(LINK_GET_FD_BY_ID, link)
        bpf(LINK_DETACH, fd)
        os.close(fd)
    print(len(found))
    return 0 if found else 1


sys.exit(main())
