#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-modules: ext4
# vm-timeout: 300
"""A listener on ordinary sockets and the NIC's own buffers: planned, applied, taken back; or one line that says why not.

Stock kernels do not let users set rx-buf-len, which is what is checked there. On a kernel with the patches 2xx (`make
test-vm-kernel`) the size is set, used and put back as it was found, by the node and by `penstock nic`.
"""
import subprocess

import genl
import node as nodes
import nsim
import vmtest
import zcrxnode

MIB = 1 << 20
QUEUE_GET, QUEUE_SET, RX = 10, 17, 0
Q_ID, Q_IFINDEX, Q_TYPE, Q_BUF_LEN = 1, 2, 3, 9
CANNOT = "has no rx-buf-len per queue"

netdev = genl.Family("netdev")


def address_queue(index):
    return [(Q_ID, genl.u32(index)), (Q_IFINDEX, genl.u32(genl.index("nic"))), (Q_TYPE, genl.u32(RX))]


def lengths():
    """What is in force on both queues; 0 where the kernel does not say."""
    return [genl.number(netdev.ask(QUEUE_GET, address_queue(queue))[0].get(Q_BUF_LEN, b"")) for queue in (0, 1)]


def set_length(queue, length):
    netdev.ask(QUEUE_SET, address_queue(queue) + [(Q_BUF_LEN, genl.u32(length))])


def configure(more):
    """The S3 listener receives on ordinary sockets from `nic`; `more` are further keys."""
    with open("/tmp/penstock.yaml") as file:
        text = file.read()
    start = text.index("  - { name: bulk")
    listener = (f'  - {{ name: bulk, protocol: s3, address: "{zcrxnode.ADDRESS}:{zcrxnode.PORT}", receive: socket, '
                f"access: anonymous, allow_remote_anonymous: true, rx_area_size: 4MiB, "
                f"limits: {{ connections_max: 64, uploads_max: 64 }}, {more} }}\n")
    with open("/tmp/penstock.yaml", "w") as file:
        file.write(text[:start] + listener + text[text.index("  - { name: pipe"):])


def penstock_nic(action):
    """(exit status, output) of `penstock nic ACTION`."""
    done = subprocess.run(("penstock", "nic", action, "--config", "/tmp/penstock.yaml"), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def equal(text, expected, actual):
    vmtest.check(text, expected == actual, f"expected {expected}, got {actual}")


def says(text, words, output):
    vmtest.check(text, words in output, output)


def log_of(node):
    with open(node.log) as file:
        return file.read()


def upload(pair, node, text):
    if not node.total("penstock_requests_total"):
        zcrxnode.make_bucket(pair)
    out, status = zcrxnode.push(pair, 4, 2 * MIB, 24)
    vmtest.check(text, status == 0, out)


def without(pair, node):
    """A stock kernel: the reason in one line, everywhere, and the listener works."""
    status, out = penstock_nic("plan")
    says("nic plan says that this kernel cannot", CANNOT, out)
    equal("  and that is no failure", 0, status)
    equal("nic apply has nothing to do", 0, penstock_nic("apply")[0])
    says("probe says so", "does not let users set rx-buf-len per queue", vmtest.run("penstock", "probe", "--config",
                                                                                 "/tmp/penstock.yaml"))
    vmtest.check("the node starts", node.start(), node.log_tail())
    says("its log says so in the listener's line", CANNOT, next((line for line in log_of(node).splitlines()
                                                           if "listener_plan" in line and "bulk" in line), ""))
    upload(pair, node, "uploads are bit-exact")
    equal("SIGTERM ends it with status 0", 0, node.stop())
    vmtest.note("setting rx-buf-len was not run: this kernel lacks the patches 2xx (make test-vm-kernel runs it)")


def by_hand():
    """penstock nic plan, apply, undo; what a person had set comes back."""
    set_length(1, 8192)
    status, out = penstock_nic("plan")
    says("nic plan shows the device's length, its maximum and the queue that differs",
         "rx-buf-len 4KiB, at most 1MiB, queue 1 8KiB", out)
    says("  and the command", f'"id": 1, "rx-buf-len": {64 << 10}', out)
    equal("  changing nothing", (0, [4096, 8192]), (status, lengths()))
    equal("nic apply sets both queues", (0, [65536, 65536]), (penstock_nic("apply")[0], lengths()))
    says("nic plan then has nothing to change", "nothing to change", penstock_nic("plan")[1])
    equal("nic undo gives each what it had", (0, [4096, 8192]), (penstock_nic("undo")[0], lengths()))
    set_length(1, 0)
    equal("  the default by 0", [4096, 4096], lengths())


def by_node(pair, node):
    vmtest.check("the node starts", node.start(), node.log_tail())
    equal("  with its buffer size on the queues it names", [65536, 65536], lengths())
    says("  and says so", "rx-buf-len 64KiB is set on 2 queues of nic", log_of(node))
    before = pair.stats()["rx_hds_bytes"]
    upload(pair, node, "uploads through ordinary sockets are bit-exact")
    grown = pair.stats()["rx_hds_bytes"] - before
    vmtest.check("  and came through the queue's own buffers", grown >= 8 * MIB, grown)
    node.kill()
    equal("killed, it leaves them", [65536, 65536], lengths())
    vmtest.check("the next start finds the journal and becomes ready", node.start(), node.log_tail())
    equal("  with the size set again", [65536, 65536], lengths())
    equal("SIGTERM ends it with status 0", 0, node.stop())
    equal("  and the queues are as they were found", [4096, 4096], lengths())


def others_change(node):
    """A value that somebody else has set meanwhile stays."""
    vmtest.check("the node starts", node.start(), node.log_tail())
    set_length(0, 16384)
    equal("SIGTERM ends it with status 0", 0, node.stop())
    equal("a length that was changed meanwhile is left alone, the other taken back", [16384, 4096], lengths())
    says("  and the log says so", "nic_left_alone", log_of(node))
    set_length(0, 0)


def kept(node):
    penstock_nic("apply")
    vmtest.check("after nic apply the node starts", node.start(), node.log_tail())
    equal("  and finds what was applied", [65536, 65536], lengths())
    equal("SIGTERM ends it with status 0", 0, node.stop())
    equal("  and leaves it", [65536, 65536], lengths())
    equal("nic undo takes it back", (0, [4096, 4096]), (penstock_nic("undo")[0], lengths()))


def refusal(pair, node):
    """The kernel says no: its words are in the log, nothing is half done, the listener receives all the same."""
    pair.knob("rx_dma/fail_restart", 2)  # a mask: the second of the two
    vmtest.check("a kernel that refuses keeps no listener from starting", node.start(), node.log_tail())
    says("  its words are in the log", "restarting the rx queue failed", log_of(node))
    equal("  and the queues are as before", [4096, 4096], lengths())
    upload(pair, node, "  uploads are bit-exact")
    equal("SIGTERM ends it with status 0", 0, node.stop())
    pair.knob("rx_dma/fail_restart", 0)


pair = nsim.Pair()
node = nodes.prepare()
configure("interface: nic, queues: [0, 1], manage_nic: true, rx_buffer_size: 64KiB")
if lengths() == [0, 0]:
    without(pair, node)
else:
    pair.knob("rx_dma/always", 1)
    by_hand()
    by_node(pair, node)
    others_change(node)
    kept(node)
    refusal(pair, node)
nodes.release(node)
pair.close()
