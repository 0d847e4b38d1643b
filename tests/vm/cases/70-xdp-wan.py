#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4 veth bridge sch_netem tcp_bbr
# vm-timeout: 900
"""Our TCP engine against Linux TCP over a bad wire: loss, reordering, duplication, delay, frame sizes, both families, two kinds of
sender, many connections, stalls. Every object is put and read back byte for byte; only deadlines are measured. Case 72 has the rest
of the matrix."""
import signal
import subprocess
import threading

import node as nodes
import vmtest
import xdpnode

KIB, MIB = 1 << 10, 1 << 20


def conditions(wire):
    wire.pushed("a perfect wire, CUBIC: bit-exact", 4, MIB, 1)
    wire.sender("bbr")
    wire.condition("delay", "1ms", "loss", "1%")
    wire.pushed("1 ms, 1 % lost each way, BBR: bit-exact", 2, MIB, 2)
    wire.condition("delay", "100ms")
    wire.pushed("100 ms each way, BBR: bit-exact", 4, 256 * KIB, 3)
    wire.sender("cubic")
    wire.condition("delay", "5ms", "2ms", "loss", "5%", "duplicate", "3%")
    wire.pushed("5 ms, 5 % lost, 3 % doubled, CUBIC: bit-exact", 4, 256 * KIB, 4)
    wire.condition("delay", "10ms", "reorder", "75%", "50%", "loss", "1%")
    wire.pushed("one in four packets overtaken, 1 % lost, CUBIC: bit-exact", 2, MIB, 5)


def many(wire, node):
    wire.condition("delay", "2ms", "loss", "1%")
    before = node.total("penstock_connections_opened_total", 'listener="bulk"')
    wire.pushed("256 connections at once, 1 % lost: bit-exact", 256, 4 * KIB, 6, hosts=(xdpnode.SERVER,))
    opened = node.total("penstock_connections_opened_total", 'listener="bulk"') - before
    vmtest.check("  each of them reached the node", opened >= 256, opened)


SLOW_READER = """
import hashlib, socket, sys, threading
s = socket.create_connection(("10.77.0.1", 9000), timeout=120)
s.sendall(b"GET /wan/stalled HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
threading.Event().wait(5)
answer = b""
while part := s.recv(1 << 20):
    answer += part
print(hashlib.sha256(answer.partition(b"\\r\\n\\r\\n")[2]).hexdigest(), flush=True)
"""


def stalls(wire, node):
    """Both windows closed for 5 s: the node does not run, then a client does not read. The durations are what is tested."""
    wire.condition("delay", "1ms")
    running = wire.push(4, 2 * MIB, 7)
    vmtest.until(30, lambda: node.total("penstock_uploads_in_flight") > 0 or running.poll() is not None)
    was_running = running.poll() is None
    node.process.send_signal(signal.SIGSTOP)
    threading.Event().wait(5)
    node.process.send_signal(signal.SIGCONT)
    said = running.communicate()[0].strip()
    vmtest.check("the node stands still for 5 s during uploads: bit-exact", running.returncode == 0 and was_running, said)
    wire.start("client", "sh", "-c", "head -c 8000000 /dev/urandom >/tmp/stalled; "
               "curl -sSf -T /tmp/stalled http://10.77.0.1:9000/wan/stalled").wait()
    want = subprocess.run(["sha256sum", "/tmp/stalled"], capture_output=True, text=True).stdout.split()[0]
    reader = wire.start("client", "python3", "-c", SLOW_READER, stdout=subprocess.PIPE)
    wire.pushed("  others beside a client that does not read", 2, 256 * KIB, 8)
    got = reader.communicate()[0].strip()
    vmtest.check("a client that does not read for 5 s gets its object", got == want, f"{got} is not {want}")


def frame_sizes(wire, node):
    for mtu in (1280, 3498, 9000):
        node.stop()
        wire.condition()
        wire.mtu(mtu)
        if vmtest.check(f"MTU {mtu}: the node starts", node.start(), node.log_tail()):
            wire.pushed(f"MTU {mtu}, perfect: bit-exact", 2, MIB, mtu)
            wire.condition("delay", "1ms", "1ms", "loss", "2%", "reorder", "50%")
            wire.pushed(f"MTU {mtu}, 2 % lost, half overtaken: bit-exact", 2, 512 * KIB, mtu + 1)


wire = xdpnode.Wire()
node = xdpnode.prepare(wire)
watch = xdpnode.KernelWatch()
conditions(wire)
many(wire, node)
stalls(wire, node)
xdpnode.kernel_is_silent(wire, watch)
watch.close()
frame_sizes(wire, node)
vmtest.check("SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
wire.close()
