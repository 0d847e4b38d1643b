#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 1800
# vm-lane: bench
"""What a receive-buffer size costs from NIC queue to NVMe, in counts that emulation does not distort; CPU only as ratios.

The sender's packets are as full as TSO lets them: 45 segments, 65,160 bytes; in the second table, with BIG TCP, 180 segments and
260,640 bytes.
"""
import node as nodes
import nsim
import vmtest
import zcrxnode

MIB = 1 << 20
OBJECT = 64 * MIB
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
BIG_SIZES = (4, 32, 128, 1024)


def figures(node):
    total = node.total
    return {"completions": total("penstock_receives_total", "bulk"), "refills": total("penstock_rx_refills_total", "bulk"),
            "writes": total("penstock_device_writes_total"), "fragments": total("penstock_device_write_fragments_total"),
            "cpu": total("penstock_worker_cpu_seconds_total"), "copied": total("penstock_copied_bytes_total", 'listener="bulk"'),
            "kernel": total("penstock_rx_kernel_copied_bytes_total", 'listener="bulk"')}


def measure(pair, node, size, fresh=False):
    """Figures of one PUT; None when the node does not start.  It is read back afterwards, so that what is counted is right."""
    zcrxnode.configure(size, connections=8)
    if not vmtest.check(f"{size} KiB: the node becomes ready", node.start(), node.log_tail()):
        return None
    if fresh:
        zcrxnode.make_bucket(pair)
    before = figures(node)
    text, status = zcrxnode.push(pair, 1, OBJECT, 1, "put")
    after = figures(node)
    if status == 0:
        text, status = zcrxnode.push(pair, 1, OBJECT, 1, "get")
    vmtest.check(f"{size} KiB: the object is bit-exact", status == 0, text)
    node.stop()
    return {name: after[name] - before[name] for name in after}


def table(rows, base):
    vmtest.note("| rx_buffer_size | completions | fewer than 4 KiB | refill entries | write commands | fragments | "
                "worker CPU, 4 KiB = 1 | copied by us | by the kernel |")
    vmtest.note("|---|---|---|---|---|---|---|---|---|")
    for size, row in rows.items():
        name = f"{size} KiB" if size < 1024 else "1 MiB"
        vmtest.note(f"| {name} | {row['completions']:,.0f} | {base['completions'] / max(row['completions'], 1):.1f} x | "
                    f"{row['refills']:,.0f} | {row['writes']:,.0f} | {row['fragments']:,.0f} | "
                    f"{row['cpu'] / base['cpu']:.2f} | {row['copied']:,.0f} B | {row['kernel']:,.0f} |")


pair = nsim.Pair(queues=4, prepared=False)
pair.full_bursts()
node = nodes.prepare()
rows = {size: measure(pair, node, size, fresh=size == SIZES[0]) for size in SIZES}
pair.packets_up_to(4 * 65536)
big = {size: measure(pair, node, size) for size in BIG_SIZES}
if vmtest.check("every row was measured", all(rows.values()) and all(big.values())):
    vmtest.note("PUT of one object of 64 MiB, MTU 1500, packets of 64 KiB")
    table(rows, rows[SIZES[0]])
    vmtest.note("the same, packets of 256 KiB (BIG TCP); columns that compare do so with the first row above")
    table(big, rows[SIZES[0]])
nodes.release(node)
pair.close()
