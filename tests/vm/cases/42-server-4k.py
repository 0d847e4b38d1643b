#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-drive: nvme size=128M lba=4096
# vm-drive: nvme size=64M
# vm-memory: 1G
# vm-modules: ext4 xfs loop
# vm-timeout: 240
"""A node on a drive with 4 KiB logical blocks, its index on a drive of its own: a seeded load of puts of every
size, overwrites and deletes reads back as it should, also after a restart and after kill -9."""
import node as nodes
import s3load
import vmtest

CLIENTS, OPERATIONS = 3, 40

plans = [s3load.make_plan("4k", client, OPERATIONS, keys=6, size_max=600_000) for client in range(CLIENTS)]


def faults(node):
    endpoint = s3load.Endpoint("127.0.0.1", node.port)
    return [fault for plan in plans for fault in s3load.verify(endpoint, plan, OPERATIONS)]


node = nodes.prepare("/dev/nvme0n1", "/dev/nvme1n1")
if not vmtest.check("the node becomes ready", node.start(), node.log_tail()):
    raise SystemExit(1)
s3load.Endpoint("127.0.0.1", node.port).request("PUT", f"/{s3load.BUCKET}")
clients = [s3load.Client(s3load.Endpoint("127.0.0.1", node.port), plan) for plan in plans]
for client in clients:
    client.start()
for client in clients:
    client.join()
vmtest.check(f"{CLIENTS * OPERATIONS} operations are acknowledged", all(c.position == OPERATIONS for c in clients),
             str([(c.position, c.refused, c.lost) for c in clients]))
found = faults(node)
vmtest.check("everything reads back", not found, str(found[:3]))
vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
if vmtest.check("it starts again", node.start(), node.log_tail()):
    found = faults(node)
    vmtest.check("everything is there after the restart", not found, str(found[:3]))
    node.kill()
if vmtest.check("it starts after kill -9", node.start(), node.log_tail()):
    found = faults(node)
    vmtest.check("everything is there after kill -9", not found, str(found[:3]))
nodes.release(node)
