#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 500
# vm-lane: bench
"""What a receive-buffer size costs from NIC queue to NVMe, in counts that emulation does not distort; times only as ratios."""
import node as nodes
import nsim
import vmtest
import zcrxnode

MIB = 1 << 20
OBJECT = 64 * MIB
SIZES = (4, 32, 128, 1024)


def figures(node):
    total = node.total
    return {"completions": total("penstock_receives_total", "bulk"), "writes": total("penstock_device_writes_total"),
            "fragments": total("penstock_device_write_fragments_total"), "cpu": total("penstock_worker_cpu_seconds_total"),
            "copied": total("penstock_copied_bytes_total", 'listener="bulk"'),
            "kernel": total("penstock_rx_kernel_copied_bytes_total", 'listener="bulk"')}


pair = nsim.Pair(queues=4, prepared=False)
node = nodes.prepare()
rows = {}
for size in SIZES:
    zcrxnode.configure(size)
    if not vmtest.check(f"{size} KiB: the node becomes ready", node.start(), node.log_tail()):
        continue
    if size == SIZES[0]:
        zcrxnode.make_bucket(pair)
    before = figures(node)
    text, status = zcrxnode.push(pair, 1, OBJECT, size)
    vmtest.check(f"{size} KiB: the object is bit-exact", status == 0, text)
    after = figures(node)
    rows[size] = {name: after[name] - before[name] for name in after}
    node.stop()
vmtest.note("one object of 64 MiB, written and read back; 4 KiB buffers = 1")
vmtest.note(f"{'rx_buffer_size':>14} {'completions':>12} {'fewer':>6} {'write commands':>15} {'fragments':>10} {'worker CPU':>11} "
            f"{'copied bytes':>13} {'by kernel':>10}")
for size, row in rows.items():
    base = rows[SIZES[0]]
    vmtest.note(f"{size:>10} KiB {row['completions']:>12.0f} {base['completions'] / max(row['completions'], 1):>5.1f}x "
                f"{row['writes']:>15.0f} {row['fragments']:>10.0f} {row['cpu'] / base['cpu']:>11.2f} {row['copied']:>13.0f} "
                f"{row['kernel']:>10.0f}")
nodes.release(node)
pair.close()
