#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-modules: ext4
# vm-prog: zcrx_stream
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 400
"""What a zcrx listener says when it cannot have its queue, and what it shows of the queue when it has it."""
import ctypes
import resource
import subprocess

import genl
import node as nodes
import nsim
import vmtest
import zcrxnode

CAP_NET_ADMIN, CAP_IPC_LOCK = 12, 14
PR_CAPBSET_DROP = 24
libc = ctypes.CDLL(None)
CONFIG = "/tmp/penstock.yaml"


def said(*arguments, without=()):
    """What a node prints that does not start; a node that starts is an error of the case."""
    def drop():
        for capability in without:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        if CAP_IPC_LOCK in without:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
    process = subprocess.Popen(("penstock", *(arguments or ("serve",)), "--config", CONFIG), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, preexec_fn=drop)
    try:
        return process.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return "it started: " + process.communicate()[0][-300:]


def refused(text, words, **options):
    out = said(**options)
    vmtest.check(f"{text}: says so", words in out, out[-600:])


def edit(old, new):
    with open(CONFIG) as file:
        text = file.read()
    with open(CONFIG, "w") as file:
        file.write(text.replace(old, new))


def before_the_kernel(pair):
    zcrxnode.configure(32, manage="false")
    refused("a NIC that nobody prepared", "nic is not prepared; run `ethtool -K nic rx-gro-hw on && ethtool -")
    zcrxnode.configure(32)
    vmtest.run("ip", "link", "set", "nic", "down")
    refused("an interface that is down", "the interface is down; ip link set dev nic up")
    vmtest.run("ip", "link", "set", "nic", "up")
    rule = pair.steer(22, 1)
    refused("a rule of somebody else to the queue", f"rule {rule} steers other packets to queue 1; delete it")
    pair.ethtool("-N", "delete", rule)
    rule = pair.steer(9000, 3)
    refused("a rule that leads our port elsewhere", f"rule {rule} steers ")
    pair.ethtool("-N", "delete", rule)
    edit("hugepages: 2MiB", "hugepages: none")
    refused("large buffers in small pages", "needs huge pages for buffers above 4KiB; set hugepages: 2MiB or 1GiB")
    zcrxnode.configure(32, queues="1, 3")
    edit("workers: 1", "workers: 2")
    refused("queues that do not follow each other", "must follow each other")
    edit("workers: 2", "workers: 1")


def a_queue_in_use(pair):
    genl.set_header_split("nic")
    pair.ethtool("-K", "rx-gro-hw", "on")
    pair.ethtool("-X", "equal", "1")
    other = subprocess.Popen(("zcrx_stream", "recv", "nic", "1", "5100", "1048576"), stdout=subprocess.PIPE, text=True)
    vmtest.check("another process has the queue", other.stdout.readline().strip() == "listening")
    zcrxnode.configure(32)
    refused("a queue in use", "queue 1 belongs to another zero-copy receiver")
    other.kill()
    other.wait()
    vmtest.until(20, lambda: "belongs to another" not in said("nic", "plan"))


def half_way(pair):
    """The NIC is prepared, then a worker cannot have its memory: what was changed is put back."""
    zcrxnode.configure(32)
    found = pair.ethtool("-x"), pair.ethtool("-n"), pair.ethtool("-k")
    out = said(without=(CAP_IPC_LOCK,))
    vmtest.check("a start that fails half way had changed the NIC", "event=nic_changed" in out and
                 "event=start_failed" in out, out[-900:])
    now = pair.ethtool("-x"), pair.ethtool("-n"), pair.ethtool("-k")
    vmtest.check("  and left it as it was found", "event=nic_restored" in out and now == found, f"{now} was {found}")


def capabilities():
    zcrxnode.configure(32)
    vmtest.run("penstock", "nic", "apply", "--config", CONFIG)
    zcrxnode.configure(32, manage="false")
    refused("no CAP_NET_ADMIN", "needs CAP_NET_ADMIN", without=(CAP_NET_ADMIN,))
    refused("no memory may be locked", "RLIMIT_MEMLOCK is 1048576 bytes", without=(CAP_IPC_LOCK,))


def granted(node):
    """On the prepared NIC: log, /metrics and probe agree with what the kernel reports of queue and page pool."""
    if not vmtest.check("a node on the prepared NIC becomes ready", node.start(), node.log_tail()):
        return
    vmtest.check("  log: granted, reported of the queue and of its page pool",
                 "rx_buffer_size=32768 reported=32768 pool=32768" in node.log_tail(40), node.log_tail(4))
    size = node.total("penstock_rx_buffer_size_bytes", 'listener="bulk"')
    vmtest.check("  /metrics: granted", size == 32768, size)
    probe = said("probe")
    vmtest.check("  probe: queue and page pool", "queue 1 receives by zcrx: buffers of 32KiB, its page pool of 32KiB" in probe,
                 probe[-600:])
    node.stop()


def huge_pages(node):
    vmtest.run("penstock", "nic", "undo", "--config", CONFIG)
    zcrxnode.configure(32)
    edit("hugepages: 2MiB", "hugepages: 1GiB")
    if vmtest.check("1 GiB pages that are not there: the node starts all the same", node.start(), node.log_tail()):
        log = node.log_tail(40)
        vmtest.check("  on pages of 2 MiB, and says why", "hugepages_fallback" in log and "0 are free" in log and
                     "pages=2MiB" in log, log[-900:])
        node.stop()


pair = nsim.Pair(queues=4, prepared=False)
node = nodes.prepare()
before_the_kernel(pair)
a_queue_in_use(pair)
half_way(pair)
capabilities()
granted(node)
huge_pages(node)
nodes.release(node)
pair.close()
