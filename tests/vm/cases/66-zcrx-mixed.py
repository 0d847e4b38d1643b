#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-drive: nvme size=7G
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 400
# vm-full: 7200
"""MTU 1500 and 9000 with a staging pool of 64 KiB in all: what does not go from the NIC's buffers to the drive as it lies would
have to fit there.  One object of 64 MiB, then 64 connections with heads of any length, mixed; copied payload by counters.
FULL=1: objects of 64 MiB on the 64 connections, and of 16 MiB with every other buffer size."""
import time

import node as nodes
import nsim
import vmtest
import zcrxnode

MIB = 1 << 20
# MTU, KiB of a buffer, MiB of each of 64 objects at once.
RUNS = [(9000, 128, 64), (1500, 32, 64)] if vmtest.FULL else [(1500, 32, 1), (9000, 128, 1)]
if vmtest.FULL:
    RUNS += [(mtu, size, 16) for mtu in (1500, 9000) for size in (4, 32, 128, 1024) if (mtu, size, 64) not in RUNS]
# Of an object: less than a block at either end, and what precedes the first block boundary in a later extent.
COPIED_MAX = 0.001 if vmtest.FULL else 2 * 1024 / MIB


def measure(node, pair, what, seed, connections, size, most):
    before, kernel, began = zcrxnode.Copies(node), zcrxnode.Copies(node).by_kernel(), time.monotonic()
    text, status = zcrxnode.push(pair, connections, size, seed)
    vmtest.check(f"{what}: {connections} objects of {size // MIB} MiB at once, any head length, are bit-exact", status == 0, text)
    share, by_kernel = before.share(vmtest.FULL), before.by_kernel() - kernel
    vmtest.check(f"  copied payload under {most:.1%}, none by the kernel", share < most and by_kernel == 0,
                 f"{share:.4%} ({before.by_reason()}), {by_kernel} by the kernel")
    vmtest.note(f"{what}, {connections} x {size // MIB} MiB: {before.share():.4%} copied, {before.share(False):.4%} apart from pressure; "
                f"since the start {before.by_reason()}; there and back {time.monotonic() - began:.0f} s")
    remove(node, seed, connections)


def remove(node, seed, connections):
    """Deletes what a measurement stored: the drive has room for one of them."""
    endpoint = zcrxnode.endpoint()
    statuses = {endpoint.request("DELETE", f"/zcrx/{seed}/{number}")[0] for number in range(connections)}
    endpoint.close()
    vmtest.check("  they are deleted", statuses == {204}, statuses)


pair = nsim.Pair(queues=4, prepared=False)
node = nodes.prepare(staging="64KiB")
for mtu, size, each in RUNS:
    pair.mtu(mtu)
    # On a busy host the guest may stand still for longer than a peer may pause; that is not what is looked at here.
    zcrxnode.configure(size, limits=", body_timeout: 10m, head_timeout: 10m, idle_timeout: 10m, send_timeout: 10m")
    what = f"MTU {mtu}, buffers of {size} KiB"
    if not vmtest.check(f"{what}: the node becomes ready", node.start(), node.log_tail()):
        continue
    if (mtu, size, each) == RUNS[0]:
        zcrxnode.make_bucket(pair)
    measure(node, pair, what, 1, 1, 64 * MIB, 0.001)
    measure(node, pair, what, 2, 64, each * MIB, COPIED_MAX)
    vmtest.check("  SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
pair.close()
