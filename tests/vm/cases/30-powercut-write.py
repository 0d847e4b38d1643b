#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-drive: nvme size=96M name=powercut log=yes
# vm-modules: ext4 loop
# vm-timeout: 120
"""Loads a node whose store and index lie on a drive under a write log; 31-powercut-verify cuts the power in it.

After each answer, and before its next request, a client writes a marker block to a spare partition of the
same drive: a marker in the log means that the answer came before what follows it in the log."""
import json
import mmap
import os
import threading

import disk
import node as nodes
import s3load
import vmtest

CLIENTS, OPERATIONS = 4, 60
lock = threading.Lock()
block = mmap.mmap(-1, 512)


def write_marker(file, text):
    with lock:
        block[:] = text.encode().ljust(512, b"\0")
        os.pwrite(file, block, 0)


def acknowledged(file):
    return lambda op: write_marker(file, "PENSTOCK-ACK " + json.dumps([op.client, op.number]))


node = nodes.prepare(logged=True)
markers = os.open("/dev/nvme0n1p3", os.O_RDWR | os.O_DIRECT)
if not vmtest.check("the node becomes ready", node.start(), node.log_tail()):
    raise SystemExit(1)
s3load.Endpoint("127.0.0.1", node.port).request("PUT", f"/{s3load.BUCKET}")
write_marker(markers, "PENSTOCK-START")
clients = [s3load.Client("127.0.0.1", node.port, s3load.make_plan("cut", number, OPERATIONS, keys=6),
                         on_ack=acknowledged(markers)) for number in range(CLIENTS)]
for client in clients:
    client.start()
for client in clients:
    client.join()
vmtest.check(f"{CLIENTS * OPERATIONS} operations were acknowledged",
             all(client.position == OPERATIONS for client in clients),
             str([(client.position, client.refused, client.lost) for client in clients]))
vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
