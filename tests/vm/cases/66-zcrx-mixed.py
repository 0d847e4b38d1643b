#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-drive: nvme size=3G
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 400
# vm-full: 2400
"""MTU 1500 and 9000 with a staging pool of 64 KiB in all: what does not go from the NIC's buffers to the drive as it lies would
have to fit there.  One object of 64 MiB, then 64 connections with heads of any length, mixed; copied payload by counters.
FULL=1: every buffer size, and objects of 16 MiB on the 64 connections."""
import node as nodes
import nsim
import vmtest
import zcrxnode

MIB = 1 << 20
RUNS = [(mtu, size) for mtu in (1500, 9000) for size in (4, 32, 128, 1024)] if vmtest.FULL else [(1500, 32), (9000, 128)]
EACH = 16 * MIB if vmtest.FULL else MIB
# Of an object: less than a block at either end, and what precedes the first block boundary in a later extent.
COPIED_MAX = 0.001 if vmtest.FULL else 2 * 1024 / EACH


def measure(node, pair, what, seed, connections, size, most):
    before, kernel = zcrxnode.Copies(node), zcrxnode.Copies(node).by_kernel()
    text, status = zcrxnode.push(pair, connections, size, seed)
    vmtest.check(f"{what}: {connections} objects of {size // MIB} MiB at once, any head length, are bit-exact", status == 0, text)
    share, by_kernel = before.share(vmtest.FULL), before.by_kernel() - kernel
    vmtest.check(f"  copied payload under {most:.1%}, none by the kernel", share < most and by_kernel == 0,
                 f"{share:.4%} ({before.by_reason()}), {by_kernel} by the kernel")
    vmtest.note(f"{what}, {connections} x {size // MIB} MiB: {before.share():.4%} copied, {share:.4%} apart from pauses of clients")


pair = nsim.Pair(queues=4, prepared=False)
node = nodes.prepare(staging="64KiB")
for mtu, size in RUNS:
    pair.mtu(mtu)
    # On a busy host the guest may stand still for longer than a peer may pause; that is not what is looked at here.
    zcrxnode.configure(size, limits=", body_timeout: 10m, head_timeout: 10m, idle_timeout: 10m, send_timeout: 10m")
    what = f"MTU {mtu}, buffers of {size} KiB"
    if not vmtest.check(f"{what}: the node becomes ready", node.start(), node.log_tail()):
        continue
    if (mtu, size) == RUNS[0]:
        zcrxnode.make_bucket(pair)
    measure(node, pair, what, 1, 1, 64 * MIB, 0.001)
    measure(node, pair, what, 2, 64, EACH, COPIED_MAX)
    vmtest.check("  SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
pair.close()
