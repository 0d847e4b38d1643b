# SPDX-License-Identifier: Apache-2.0
"""Our TCP engine against Linux TCP over a bad wire (`import xdpwan`): loss, reordering, duplication, delay, frame sizes, both families,
two kinds of sender, many connections, stalls. Every object is put and read back byte for byte; only deadlines are measured.

Shared by cases 70 and 72 in the guest, where netem is, and by tests/root/run-xdp-wan.py on the host, so it asks for nothing but what
xdpnode.Wire has.
"""
import os
import signal
import subprocess
import threading
import time

import vmtest
import xdpnode

KIB, MIB = 1 << 10, 1 << 20
MTUS = (1280, 1500, 3498, 9000)
LOSSES = {"nothing lost": (), "1 % lost": ("loss", "1%"), "5 % lost": ("loss", "5%"),
          "1 % lost, 2 % doubled, a quarter overtaken": ("loss", "1%", "duplicate", "2%", "reorder", "75%", "50%")}


def conditions(wire):
    wire.pushed("a perfect wire, CUBIC: bit-exact", 4, MIB, 1)
    wire.sender("bbr")
    wire.condition("delay", "1ms", "loss", "1%")
    wire.pushed("1 ms, 1 % lost each way, BBR: bit-exact", 2, MIB, 2)
    wire.condition("delay", "100ms")
    wire.pushed("100 ms each way, BBR: bit-exact", 4, 96 * KIB, 3)
    wire.sender("cubic")
    wire.condition("delay", "5ms", "2ms", "loss", "5%", "duplicate", "3%")
    wire.pushed("5 ms, 5 % lost, 3 % doubled, CUBIC: bit-exact", 4, 256 * KIB, 4)
    wire.condition("delay", "10ms", "reorder", "75%", "50%", "loss", "1%")
    wire.pushed("one in four packets overtaken, 1 % lost, CUBIC: bit-exact", 2, 512 * KIB, 5)


def tcp(node, event):
    return node.total("penstock_xdp_tcp_total", f'event="{event}"')


def conditions_are_real(node):
    """What the engine has met says that the wire was as bad as it was told to be, both ways."""
    for event, meaning in (("segments_out_of_order", "gaps"), ("segments_duplicate", "duplicates"),
                           ("fast_recoveries", "losses of our own"), ("bytes_retransmitted", "repeats of our own")):
        vmtest.check(f"the engine has met {meaning}", vmtest.until(10, lambda event=event: tcp(node, event) > 0), event)


def many(wire, node, size):
    wire.condition("delay", "2ms", "loss", "1%")
    wire.pushed("256 connections at once, both families, 1 % lost: bit-exact", 256, size, 6,
                hosts=(f"{xdpnode.SERVER},{xdpnode.SERVER6}",), words=("together",))
    peak = node.total("penstock_worker_connections_peak")
    vmtest.check("  the node had them at the same time", peak >= 256, peak)


SLOW_READER = """
import hashlib, socket, sys, threading
s = socket.create_connection((sys.argv[1], 9000), timeout=120)
s.sendall(b"GET /wan/stalled HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
threading.Event().wait(5)
answer = b""
while part := s.recv(1 << 20):
    answer += part
print(hashlib.sha256(answer.partition(b"\\r\\n\\r\\n")[2]).hexdigest(), flush=True)
"""


def node_stands_still(wire, node):
    """5 s without an answer; the duration is what is tested."""
    running = [wire.push(4, 2 * MIB, 7 + number, host) for number, host in enumerate((xdpnode.SERVER, xdpnode.SERVER6))]
    vmtest.until(30, lambda: node.total("penstock_uploads_in_flight") > 0 or all(one.poll() is not None for one in running))
    was_running = any(one.poll() is None for one in running)
    node.process.send_signal(signal.SIGSTOP)
    threading.Event().wait(5)
    node.process.send_signal(signal.SIGCONT)
    said = [one.communicate()[0].strip() for one in running]
    vmtest.check("the node stands still for 5 s during transfers: bit-exact", not any(one.returncode for one in running) and was_running,
                 said)


def client_does_not_read(wire, node):
    """The peer's window stays closed for 5 s."""
    body = os.path.join(os.path.dirname(node.config), "stalled")
    with open(body, "wb") as file:
        file.write(os.urandom(8_000_000))
    wire.start("client", "curl", "-sSf", "-T", body, f"http://{xdpnode.SERVER}:{xdpnode.PORT}/wan/stalled").wait()
    want = subprocess.run(["sha256sum", body], capture_output=True, text=True).stdout.split()[0]
    readers = [wire.start("client", "python3", "-c", SLOW_READER, host, stdout=subprocess.PIPE) for host in (xdpnode.SERVER, xdpnode.SERVER6)]
    wire.pushed("  others beside clients that do not read", 2, 256 * KIB, 9)
    got = [reader.communicate()[0].strip() for reader in readers]
    vmtest.check("clients that do not read for 5 s get their object", got == [want, want], f"{got} is not {want}")
    vmtest.check("  the engine has probed their closed windows", vmtest.until(10, lambda: tcp(node, "window_probes_out") > 0))


def store_stands_still(wire, size):
    """Writes hang for 5 s or more, so buffers and then the engine's window fill; the Linux sender has to wait and to probe."""
    hang = os.path.join(wire.folder, "hang")
    os.environ.update(HANG_OPS="write", HANG_FILE=hang)
    node = xdpnode.prepare(wire, program="penstock-hang", store="  flush_deadline: 120s\n", area_mib=8, connections=32)
    open(hang, "x").close()
    began = time.monotonic()
    running = [wire.push(1, size, 11 + number, host) for number, host in enumerate((xdpnode.SERVER, xdpnode.SERVER6))]
    closed = vmtest.until(60, lambda: tcp(node, "zero_window_probes_in") > 0 or all(one.poll() is not None for one in running))
    vmtest.check("writes hang: the engine's window closes and the peer probes it", closed and tcp(node, "zero_window_probes_in") > 0)
    threading.Event().wait(max(0.0, began + 5 - time.monotonic()))
    os.remove(hang)
    said = [one.communicate()[0].strip() for one in running]
    vmtest.check("  when they go on, so do the uploads go on: bit-exact", not any(one.returncode for one in running), said)
    vmtest.check("  SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
    return node


def partial_checksums(wire, node):
    """A peer that leaves checksums to hardware there is not is named and gets nothing; with computed ones it is served."""
    for host, peer in ((xdpnode.SERVER, xdpnode.CLIENT), (f"[{xdpnode.SERVER6}]", xdpnode.CLIENT6)):
        wire.start("client", "ethtool", "-K", "x1", "tx", "on", stdout=subprocess.DEVNULL).wait()
        before = tcp(node, "drop_checksum_partial")
        knock = wire.start("client", "curl", "-s", "--max-time", "60", "-o", "/dev/null", f"http://{host}:{xdpnode.PORT}/wan/none")
        vmtest.check(f"partial checksums of {peer} are counted by that name",
                     vmtest.until(30, lambda before=before: tcp(node, "drop_checksum_partial") > before))
        want = f"event=xdp_partial_checksums interface=x0 peer={peer} "

        def is_named(want=want):
            with open(node.log, errors="replace") as log:
                return want in log.read()
        vmtest.check("  and the log names it", vmtest.until(10, is_named), node.log_tail())
        knock.kill()
        knock.wait()
        wire.start("client", "ethtool", "-K", "x1", "tx", "off", stdout=subprocess.DEVNULL).wait()
    wire.pushed("with computed ones it is served: bit-exact", 2, 64 * KIB, 10)


def frame_sizes(wire, node, mtus=(1280, 3498, 9000)):
    for mtu in mtus:
        node.stop()
        wire.condition()
        wire.mtu(mtu)
        xdpnode.started(node)
        watch = xdpnode.KernelWatch()
        wire.pushed(f"MTU {mtu}, perfect: bit-exact", 2, MIB, mtu)
        wire.condition("delay", "1ms", "1ms", "loss", "2%", "reorder", "50%")
        wire.pushed(f"MTU {mtu}, 2 % lost, half overtaken: bit-exact", 2, 512 * KIB, mtu + 1)
        wire.condition()
        xdpnode.kernel_is_silent(wire, watch)


def matrix(wire, node):
    """Frame size x sender x delay x loss with reordering and duplication, both families at once."""
    seed = 0
    for mtu in MTUS:
        node.stop()
        wire.condition()
        wire.mtu(mtu)
        xdpnode.started(node)
        watch = xdpnode.KernelWatch()
        for sender in ("cubic", "bbr"):
            wire.sender(sender)
            for delay in (1, 20, 100):
                for name, loss in LOSSES.items():
                    seed += 1
                    wire.condition("delay", f"{delay}ms", *loss)
                    # So much that a window opens, so little that 5 % lost over 200 ms ends.
                    wire.pushed(f"MTU {mtu}, {sender}, {delay} ms, {name}: bit-exact", 2, (512 if delay < 20 else 128) * KIB, seed)
        wire.condition()
        xdpnode.kernel_is_silent(wire, watch)
