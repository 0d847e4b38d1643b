#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes one receive queue of an interface with an AF_XDP socket of its own, so that nobody else can have it, says "held" and keeps it
until its input ends: what a node meets when a socket that had the queue before is still there. It steers no frame to itself."""

import ctypes
import mmap
import os
import socket
import struct
import sys

AF_XDP, SOL_XDP = 44, 283
XDP_RX_RING, XDP_UMEM_REG, XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING = 2, 4, 5, 6
XDP_COPY = 2
FRAMES, FRAME_SIZE = 64, 4096

interface, queue = sys.argv[1], int(sys.argv[2])
frames = mmap.mmap(-1, FRAMES * FRAME_SIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(frames))
xsk = socket.socket(AF_XDP, socket.SOCK_RAW, 0)
# struct xdp_umem_reg: addr, len, chunk_size, headroom, flags
xsk.setsockopt(SOL_XDP, XDP_UMEM_REG, struct.pack("=QQIIII", address, FRAMES * FRAME_SIZE, FRAME_SIZE, 0, 0, 0))
for ring in (XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING):
    xsk.setsockopt(SOL_XDP, ring, struct.pack("=I", FRAMES))
# struct sockaddr_xdp: family, flags, ifindex, queue_id, shared_umem_fd
place = struct.pack("=HHIII", AF_XDP, XDP_COPY, socket.if_nametoindex(interface), queue, 0)
libc = ctypes.CDLL(None, use_errno=True)
if libc.bind(xsk.fileno(), place, len(place)) != 0:
    error = ctypes.get_errno()
    sys.exit(f"{interface} queue {queue}: {os.strerror(error)}")
print("held", flush=True)
sys.stdin.read()
