#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 400
"""Faults of NIC and peers under a zcrx node: no byte lost or altered, each is in the log and counted, and the node goes on."""
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time

import node as nodes
import nsim
import vmtest
import zcrxnode

MIB = 1 << 20


@contextlib.contextmanager
def told(event, metric, *labels):
    """What happens inside must put this event into the log and raise this metric."""
    mark, before = os.path.getsize(node.log), node.total(metric, *labels)
    yield

    def fresh():
        with open(node.log, errors="replace") as log:
            log.seek(mark)
            return [line for line in log if f"event={event} " in line]
    lines = vmtest.until(30, fresh, 0.2)
    grown = vmtest.until(10, lambda: node.total(metric, *labels) > before, 0.2)
    vmtest.check(f"  it is in the log ({event}) and counted ({metric})", lines and grown, f"log {lines}, counted {grown}")


def pushed(text, pair, connections, size, seed):
    out, status = zcrxnode.push(pair, connections, size, seed)
    return vmtest.check(text, status == 0, out)


def pushed_while(text, pair, disturb, seed, size=24 * MIB, most=16):
    """Pushes two objects; `disturb` runs again and again meanwhile, until it has done so often enough: on a slow machine an upload
    that is disturbed all the time would never end."""
    result = []
    pusher = threading.Thread(target=lambda: result.append(zcrxnode.push(pair, 2, size, seed)))
    pusher.start()
    turns = 0
    while pusher.is_alive() and turns < most:
        disturb()
        turns += 1
        pusher.join(0.5)
    pusher.join()
    out, status = result[0]
    vmtest.check(f"{text} ({turns} times)", status == 0 and turns > 0, out)


def unsplit_packets():
    with told("zcrx_kernel_copies", "penstock_rx_kernel_copied_bytes_total", 'listener="bulk"'):
        pair.knob("rx_dma/no_split_every", 7)
        pushed("every seventh packet not split: bit-exact", pair, 4, 2 * MIB, 1)
        pair.knob("rx_dma/no_split_every", 0)


def failing_allocations():
    with told("nic_no_buffers", "penstock_nic_no_buffers_total"):
        pair.knob("rx_dma/fail_alloc_every", 5)
        pushed("every fifth buffer allocation fails: bit-exact", pair, 4, 2 * MIB, 2)
        pair.knob("rx_dma/fail_alloc_every", 0)


def wrong_queue():
    """The rule is deleted, so packets arrive on queue 0 and are copied by the kernel."""
    rule = next(line.split(":")[1].strip() for line in pair.ethtool("-n").splitlines() if line.startswith("Filter:"))
    with told("zcrx_kernel_copies", "penstock_rx_kernel_copied_bytes_total", 'listener="bulk"'):
        pair.ethtool("-N", "delete", rule)
        pushed("packets on another queue than ours: bit-exact", pair, 4, 2 * MIB, 3)
    pair.ethtool("-N", "flow-type", "tcp4", "dst-ip", zcrxnode.ADDRESS, "dst-port", "9000", "action", "1")


def queue_resets():
    with told("nic_queue_restarted", "penstock_nic_queue_restarts_total"):
        pushed_while("the queue is reset during uploads: bit-exact", pair, lambda: pair.knob("queue_reset", "1 1"), 4)


def down_and_up():
    def bounce():
        vmtest.run("ip", "link", "set", "nic", "down")
        vmtest.run("ip", "link", "set", "nic", "up")
        vmtest.run("ip", "addr", "replace", "fd00:7::1/64", "dev", "nic", "nodad")
    with told("nic_down", "penstock_nic_down_total"):
        pushed_while("the interface goes down and up during uploads: bit-exact", pair, bounce, 5, 8 * MIB)


STALLED = """
import socket, sys, time
held = []
for number in range(int(sys.argv[1])):
    s = socket.create_connection(("10.7.0.1", 9000), timeout=60)
    s.sendall(b"PUT /zcrx/stalled/%d HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 1000000\\r\\n\\r\\n" % number + b"s" * 300)
    held.append(s)
print("stalled", flush=True)
one = held[0]
while True:
    try:
        one.sendall(b"1")
    except OSError:
        pass
    time.sleep(0.002)
"""


def stalled_peers():
    count = 200
    process = pair.client("python3", "-c", STALLED, str(count), stdout=subprocess.PIPE)
    vmtest.check(f"{count} uploads stall, one of them sends single bytes", process.stdout.readline().strip() == "stalled", "")
    start = time.monotonic()
    pushed("a healthy upload beside them is bit-exact", pair, 2, 8 * MIB, 6)
    vmtest.note(f"healthy 16 MiB there and back beside {count} stalled uploads: {time.monotonic() - start:.1f} s; "
                f"free buffers {node.total('penstock_rx_buffers_free', 'bulk'):.0f}")
    process.kill()
    process.wait()


def area_exhausted():
    """The node is stopped while peers send: what arrives stays in the sockets, one buffer for each packet, until there is
    none left and the NIC drops.  Then the node goes on, and what was dropped is sent again."""
    vmtest.check("the node stops", node.stop() == 0, node.log_tail())
    zcrxnode.configure(32, area_mib=4, connections=256, limits=", head_timeout: 10m, body_timeout: 10m")
    if not vmtest.check("the node starts with an area of 128 buffers", node.start(), node.log_tail()):
        return
    pair.knob("rx_dma/share", 0)
    with told("zcrx_area_exhausted", "penstock_rx_area_exhausted_total", 'listener="bulk"'):
        before = pair.stats()["rx_alloc_fail"]
        peers = pair.client("python3", "/vm/staller.py", zcrxnode.ADDRESS, "9000", "zcrx", "200", "20000", "90",
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        peers.stdout.readline()
        node.process.send_signal(signal.SIGSTOP)
        peers.stdin.write("single bytes\n")
        peers.stdin.flush()
        full = vmtest.until(60, lambda: pair.stats()["rx_alloc_fail"] > before)
        node.process.send_signal(signal.SIGCONT)
        vmtest.check("the NIC runs out of receive buffers", full, pair.stats())
        answer = peers.communicate("go on\n")[0].strip()
        vmtest.check("  no upload is lost by that", peers.returncode == 0, answer)
    pair.knob("rx_dma/share", 1)


def removed():
    """The device is pulled out under an upload: its peers are gone, the rest of the node is not."""
    pusher = pair.client("python3", "/vm/pusher.py", zcrxnode.ADDRESS, "9000", "zcrx", "2", str(64 * MIB), "7",
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    vmtest.until(20, lambda: node.total("penstock_uploads_in_flight") > 0 or pusher.poll() is not None)
    with told("nic_removed", "penstock_nic_removed_total"):
        pair.delete()
        pusher.kill()
        pusher.wait()
    with socket.create_connection(("127.0.0.1", node.raw_port), timeout=30) as raw:
        raw.sendall(b"still here")
        raw.shutdown(socket.SHUT_WR)
        answer = raw.makefile("rb").read().decode()
    vmtest.check("the NIC is removed during an upload; the other listener goes on", "size=10" in answer, answer)


pair = nsim.Pair(queues=4, prepared=False)
node = nodes.prepare()
# Faults that come faster than TCP's retransmissions make these wait for minutes, which is no reason to give a peer up.
zcrxnode.configure(32, area_mib=32, connections=512, limits=", body_timeout: 10m, head_timeout: 10m, idle_timeout: 10m")
if vmtest.check("the node becomes ready", node.start(), node.log_tail()):
    zcrxnode.make_bucket(pair)
    for fault in (unsplit_packets, failing_allocations, wrong_queue, queue_resets, down_and_up, stalled_peers,
                  area_exhausted, removed):
        fault()
        if not vmtest.check(f"  the node is well after {fault.__name__}", node.process.poll() is None and node.ready(),
                            node.log_tail()):
            break
    node.stop()
nodes.release(node)
pair.close()
