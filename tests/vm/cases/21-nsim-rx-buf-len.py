#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-lane: kernel
# vm-have: netdevsim
# vm-prog: zcrx_stream
# vm-cmdline: hugepages=72
# vm-timeout: 300
"""Setting the Rx buffer length from user space: layers, refusals, how long a setting lasts (patched kernel only)."""
import hashlib
import socket
import subprocess
import threading

import genl
import nsim
import vmtest

RX, TX = 0, 1
QUEUE_GET, QUEUE_SET = 10, 17
Q_ID, Q_IFINDEX, Q_TYPE, Q_IO_URING, Q_BUF_LEN = 1, 2, 3, 6, 9
RINGS_GET, RINGS_SET = 15, 16
R_HEADER, R_BUF_LEN, R_BUF_LEN_MAX = 1, 10, 19
MIB = 1 << 20

netdev, ethtool = genl.Family("netdev"), genl.Family("ethtool")


def queue(index, name="nic"):
    """(length in force, length of the memory provider) of an Rx queue."""
    answer = netdev.ask(QUEUE_GET, [(Q_ID, genl.u32(index)), (Q_IFINDEX, genl.u32(genl.index(name))), (Q_TYPE, genl.u32(RX))])[0]
    provider = genl.unpack(answer[Q_IO_URING]).get(1) if Q_IO_URING in answer else None
    return genl.number(answer.get(Q_BUF_LEN, b"")), provider and genl.number(provider)


def lengths():
    return [queue(0)[0], queue(1)[0]]


def set_queue(index, length, name="nic", kind=RX):
    netdev.ask(QUEUE_SET, [(Q_ID, genl.u32(index)), (Q_IFINDEX, genl.u32(genl.index(name))), (Q_TYPE, genl.u32(kind)),
                           (Q_BUF_LEN, genl.u32(length))])


def set_device(length, name="nic"):
    ethtool.ask(RINGS_SET, [(R_HEADER, [(2, genl.text(name))]), (R_BUF_LEN, genl.u32(length))])


def rings():
    answer = ethtool.ask(RINGS_GET, [(R_HEADER, [(2, genl.text("nic"))])])[0]
    return genl.number(answer.get(R_BUF_LEN, b"")), genl.number(answer.get(R_BUF_LEN_MAX, b""))


def equal(text, expected, actual):
    vmtest.check(text, expected == actual, f"expected {expected}, got {actual}")


def refused(text, errno_name, reason, function, *arguments, **options):
    """The request must fail with this errno and give a reason that contains these words."""
    before = lengths()
    try:
        function(*arguments, **options)
        vmtest.failed("refused: " + text, "it was accepted")
    except genl.Refused as error:
        vmtest.check("refused: " + text, error.name == errno_name and reason in error.text, str(error))
    equal("  and nothing changed", before, lengths())


def layers():
    equal("default: a page on each queue", [4096, 4096], lengths())
    equal("device-wide length and its maximum", (4096, MIB), rings())
    set_queue(1, 32768)
    equal("a queue's own length", [4096, 32768], lengths())
    set_device(65536)
    equal("the device's length is for queues without their own", [65536, 32768], lengths())
    equal("  and reads back", 65536, rings()[0])
    set_queue(1, 0)
    equal("0 for the queue: the device's again", [65536, 65536], lengths())
    set_queue(0, 8192)
    set_device(0)
    equal("0 for the device: the default, but for the queue with its own", [8192, 4096], lengths())
    set_queue(0, 0)
    equal("0 for that too: as in the beginning", [4096, 4096], lengths())


def refusals():
    refused("no power of two", "ERANGE", "power of two", set_queue, 1, 12288)
    refused("less than a page", "ERANGE", "not within", set_queue, 1, 1024)
    refused("more than the driver takes", "ERANGE", "not within", set_queue, 1, 2 * MIB)
    refused("a queue that does not exist", "ERANGE", "out of range", set_queue, 7, 8192)
    refused("a Tx queue", "EINVAL", "only rx queues", set_queue, 0, 8192, kind=TX)
    refused("a device that cannot", "EOPNOTSUPP", "does not support", set_queue, 0, 8192, name="lo")
    refused("device-wide more than the maximum", "ERANGE", "maximum of 1048576", set_device, 2 * MIB)
    refused("device-wide no power of two", "ERANGE", "power of two", set_device, 12288)
    refused("a device without such a ring parameter", "EOPNOTSUPP", "", set_device, 8192, name="lo")


def failures(pair):
    """A queue that cannot be restarted: the setting before stays, for every queue."""
    set_queue(0, 8192)
    pair.knob("rx_dma/fail_restart", 2)
    refused("a queue that cannot be restarted", "ENOMEM", "restarting the rx queue failed", set_queue, 1, 16384)
    refused("device-wide, the second queue cannot be restarted", "ENOMEM", "Restart of Rx queue 1 failed", set_device, 32768)
    equal("  the device's length is the old one", 4096, rings()[0])
    set_queue(0, 0)
    pair.knob("rx_dma/fail_restart", 0)
    equal("  and nothing of it lingers", [4096, 4096], lengths())


def provider():
    set_queue(1, 8192)
    for wish, expected in ((["buf=32768"], (32768, 32768)), ([], (4096, 4096))):
        holder = subprocess.Popen(["zcrx_stream", "recv", "nic", "1", "5200", "1", *wish], stdout=subprocess.PIPE, text=True)
        holder.stdout.readline()
        equal(f"a memory provider overrides the user ({' '.join(wish) or 'no wish: default'})", expected, queue(1))
        set_queue(1, 16384)
        equal("  also a setting made meanwhile", expected, queue(1))
        holder.kill()
        holder.wait()
        back = vmtest.until(20, lambda: queue(1) == (16384, None))
        vmtest.check("  which comes into force when it goes", back, queue(1))
    set_queue(1, 0)


def lifetime(pair):
    set_queue(1, 16384)
    vmtest.run("ip", "link", "set", "nic", "down")
    set_queue(0, 8192)
    vmtest.run("ip", "link", "set", "nic", "up")
    equal("settings outlast down and up, and can be made while down", [8192, 16384], lengths())
    pair.ethtool("-X", "default")
    pair.ethtool("-L", "combined", "1")
    pair.ethtool("-L", "combined", "2")
    pair.ethtool("-X", "equal", "1")
    equal("a deactivated queue loses its setting, the other does not", [8192, 4096], lengths())
    set_queue(0, 0)


def receive_all(listener, digests):
    connection, _ = listener.accept()
    digest = hashlib.sha256()
    while data := connection.recv(MIB):
        digest.update(data)
    digests.append(digest.hexdigest())


def traffic(pair):
    """An ordinary socket, the stack's own buffers, and a length that changes under it."""
    pair.knob("rx_dma/always", 1)
    body = bytes(range(251)) * (16 * MIB // 251)
    with open("/tmp/body", "wb") as file:
        file.write(body)
    listener, digests = socket.create_server(("10.7.0.1", 5300)), []
    receiver = threading.Thread(target=receive_all, args=(listener, digests))
    receiver.start()
    before = pair.stats()["rx_hds_bytes"]
    sender = pair.client("sh", "-c", "exec nc 10.7.0.1 5300 </tmp/body")
    for turn in range(12):
        set_queue(0, (4096, 32768, MIB, 65536)[turn % 4])
        vmtest.until(5, lambda: pair.stats()["rx_hds_bytes"] > before + turn * MIB)
    receiver.join(60)
    sender.wait()
    vmtest.check("16 MiB into an ordinary socket while the length changes", digests == [hashlib.sha256(body).hexdigest()], digests)
    vmtest.check("  through the queue's own buffers", pair.stats()["rx_hds_bytes"] - before >= len(body), pair.stats())
    pair.knob("rx_dma/always", 0)
    set_queue(0, 0)


def main():
    pair = nsim.Pair()
    layers()
    refusals()
    failures(pair)
    provider()
    lifetime(pair)
    traffic(pair)
    set_queue(1, 32768)
    pair.close()


main()
