#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 400
# vm-full: 1200
"""1,000 uploads stall on a zero-copy queue, some of them send single bytes: healthy uploads go on beside them, the stalled ones
hold no receive buffers, and all of them end well when their peers go on.  The NIC gives every packet a buffer of its own, so
that the area has about as many buffers as there are stalled peers (FULL=1: also with packets that share buffers)."""
import resource
import subprocess
import threading
import time

import node as nodes
import nsim
import staller
import vmtest
import zcrxnode

COUNT, SIZE, BUFFERS = 1000, 30_000, 1024
MIB = 1 << 20


def read_back(numbers):
    """How many of these objects differ from what was sent."""
    endpoint = zcrxnode.endpoint()
    bad = [number for number in numbers if endpoint.request("GET", f"/zcrx/stalled/{number}") !=
           (200, staller.body_of(number, SIZE))]
    endpoint.close()
    return bad


def healthy(node, pair, seed):
    """Pushes beside the stalled uploads; what the node did meanwhile is noted, so that a deadlock says where it is."""
    results = []
    pusher = threading.Thread(target=lambda: results.append(zcrxnode.push(pair, 4, 2 * MIB, seed)))
    pusher.start()
    while pusher.is_alive():
        pusher.join(20)
        if pusher.is_alive():
            names = ("penstock_received_bytes_total", "penstock_rx_buffers_free", "penstock_rx_starved_total",
                     "penstock_rx_area_exhausted_total", "penstock_rx_refills_total", "penstock_uploads_in_flight")
            vmtest.note(", ".join(f"{name[9:]} {node.total(name, 'bulk'):.0f}" for name in names) +
                        f", alloc_fail {pair.stats()['rx_alloc_fail']}")
    return results[0]


def siege(node, pair, share):
    pair.knob("rx_dma/share", share)
    what = "shared buffers" if share else "a buffer per packet"
    process = pair.client("python3", "/vm/staller.py", zcrxnode.ADDRESS, str(zcrxnode.PORT), "zcrx", str(COUNT), str(SIZE), "10",
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    vmtest.check(f"{what}: {COUNT} uploads stall, some of them send single bytes",
                 process.stdout.readline().strip() == "stalled", node.log_tail())
    process.stdin.write("single bytes\n")
    process.stdin.flush()
    began = time.monotonic()
    for turn in range(2):
        text, status = healthy(node, pair, 10 * share + turn)
        vmtest.check(f"  healthy uploads beside them are bit-exact ({turn + 1})", status == 0, text)
    took = time.monotonic() - began
    held = node.total("penstock_uploads_in_flight")
    vmtest.check("  all that reached their body are still uploads in flight", held == COUNT * 3 // 4, held)
    # What they hold is taken from them when half of the buffers are.
    free = vmtest.until(60, lambda: node.total("penstock_rx_buffers_free", "bulk") >= BUFFERS // 2)
    vmtest.check("  and leave half of the receive buffers to others", free, node.total("penstock_rx_buffers_free", "bulk"))
    vmtest.note(f"{what}: healthy 2 x 8 MiB there and back {took:.1f} s; fewest buffers free "
                f"{node.total('penstock_rx_buffers_free_low', 'bulk'):.0f} of {BUFFERS}; "
                f"copied {zcrxnode.Copies(node).by_reason()}")
    answer = process.communicate("go on\n")[0].strip()
    vmtest.check("  they go on and every one is answered 200", process.returncode == 0, answer)
    vmtest.note(answer)
    bad = read_back(range(0, COUNT, 1 if vmtest.FULL else 9))
    vmtest.check("  and read back bit-exact", not bad, f"{len(bad)} differ: {bad[:5]}")
    vmtest.check("  nothing of them is left", vmtest.until(60, lambda: node.total("penstock_uploads_in_flight") == 0),
                 node.total("penstock_uploads_in_flight"))


# A descriptor for each connection, which the node inherits.
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
pair = nsim.Pair(queues=4, prepared=False)
node = nodes.prepare()
zcrxnode.configure(32, area_mib=32, connections=COUNT + 100, limits=", body_timeout: 10m, head_timeout: 10m, idle_timeout: 10m, send_timeout: 10m")
if vmtest.check("the node becomes ready", node.start(), node.log_tail()):
    zcrxnode.make_bucket(pair)
    for share in (0, 1) if vmtest.FULL else (0,):
        siege(node, pair, share)
    vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
pair.close()
