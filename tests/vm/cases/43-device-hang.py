#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4 dm-mod
# vm-file: /usr/sbin/dmsetup
# vm-drive: nvme size=512M
# vm-drive: nvme size=512M
# vm-timeout: 480
"""A store on two devices, one of them a device-mapper target that is suspended (everything sent to it hangs) and later fails
everything. Uploads go on on the other, what waits for it ends with an S3 error, it comes back, and nothing acknowledged is lost."""
import http.client
import os
import re
import statistics
import threading
import time

import disk
import node as nodes
import vmtest

SLOW = "/dev/dm-0"
SIZE, PATIENCE = 64 << 10, 90


def request(method, key, body=None):
    """(status, S3 error code or None, body, seconds)"""
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", nodes.PORT, timeout=PATIENCE)
    try:
        connection.request(method, "/bkt/" + key if key else "/bkt", body=body)
        answer = connection.getresponse()
        data = answer.read()
        code = re.search(rb"<Code>(\w+)</Code>", data) if answer.status >= 300 else None
        return answer.status, code.group(1).decode() if code else None, data, time.monotonic() - begun
    except (OSError, http.client.HTTPException) as trouble:
        return 0, repr(trouble), b"", time.monotonic() - begun
    finally:
        connection.close()


acknowledged = {}


def put_some(prefix, count):
    """Uploads one after the other; returns their outcomes. What got a 200 is remembered."""
    outcomes = []
    for i in range(count):
        key, body = f"{prefix}-{i}", os.urandom(SIZE + i)
        outcome = request("PUT", key, body)
        if outcome[0] == 200:
            acknowledged[key] = body
        outcomes.append(outcome)
    return outcomes


def median_ms(outcomes):
    return 1000 * statistics.median(outcome[3] for outcome in outcomes if outcome[0] == 200)


def all_are_200(outcomes):
    return all(outcome[0] == 200 for outcome in outcomes)


def read_all(may_fail):
    """Reads everything acknowledged: (whole, refused with 5xx and a code, anything else)."""
    whole, refused, wrong = [], [], []
    for key, body in list(acknowledged.items()):
        status, code, data, _ = request("GET", key)
        fate = whole if status == 200 and data == body else refused if may_fail and status in (500, 503) and code else wrong
        fate.append((key, status, code))
    return whole, refused, wrong


def table(target):
    vmtest.run("dmsetup", "--noudevsync", "suspend", "--nolockfs", "--noflush", "slow")
    vmtest.run("dmsetup", "--noudevsync", "load", "slow", "--table", target)
    vmtest.run("dmsetup", "--noudevsync", "resume", "slow")


def state(node):
    return node.total("penstock_device_state", SLOW)


def hang(node):
    vmtest.run("dmsetup", "--noudevsync", "suspend", "--nolockfs", "--noflush", "slow")
    outcomes = [[] for _ in range(4)]
    clients = [threading.Thread(target=lambda n=n: outcomes[n].extend(put_some(f"at-hang-{n}", 6))) for n in range(4)]
    for client in clients:
        client.start()
    noticed = vmtest.until(PATIENCE, lambda: state(node) == 1)
    vmtest.check("a device that answers nothing is suspect", noticed, node.log_tail())
    for client in clients:
        client.join()
    flat = [outcome for part in outcomes for outcome in part]
    bad = [outcome for outcome in flat if outcome[0] != 200]
    vmtest.note(f"{len(flat)} uploads around the moment: {len(bad)} refused")
    vmtest.check("what waited for it is refused with 503, the rest is stored",
                 all(outcome[:2] == (503, "ServiceUnavailable") for outcome in bad) and len(bad) < len(flat), repr(bad)[:500])
    during = put_some("during", 30)
    vmtest.check("30 uploads land on the other device meanwhile", all_are_200(during), repr([o[:2] for o in during]))
    with open(node.log) as log:
        text = log.read()
    vmtest.check("the log names the device", re.search(rf'device_state path="?{SLOW}"? state=suspect', text), node.log_tail())
    return during


def reads_meanwhile():
    whole, refused, wrong = read_all(may_fail=True)
    vmtest.note(f"of {len(acknowledged)} objects {len(whole)} are on the other device, {len(refused)} are refused")
    vmtest.check("objects of the other device are read, those of the silent one refused", whole and refused and not wrong,
                 f"{len(whole)} whole, {len(refused)} refused, wrong {wrong[:5]}")


def comes_back(node):
    vmtest.run("dmsetup", "--noudevsync", "resume", "slow")
    vmtest.check("it is good again when it answers", vmtest.until(PATIENCE, lambda: state(node) == 0), node.log_tail())
    before = node.total("penstock_device_written_bytes_total", SLOW)
    after = put_some("after", 30)
    vmtest.check("uploads succeed again", all_are_200(after), node.log_tail())
    vmtest.check("also on that device", node.total("penstock_device_written_bytes_total", SLOW) > before, node.log_tail())
    whole, _, wrong = read_all(may_fail=False)
    vmtest.check(f"all {len(acknowledged)} acknowledged objects read back bit-exact", not wrong, repr(wrong[:5]))
    return after


def fails(node, linear):
    table(linear.split(" linear")[0] + " error")
    outcomes = put_some("failing", 12)
    bad = [outcome for outcome in outcomes if outcome[0] != 200]
    vmtest.note(f"while every operation fails: {len(bad)} of {len(outcomes)} uploads refused")
    vmtest.check("uploads to a device that fails everything are refused with an S3 error, others are stored",
                 len(bad) < len(outcomes) and all(o[0] in (500, 503) and o[1] for o in bad), repr(bad)[:500])
    whole, refused, wrong = read_all(may_fail=True)
    vmtest.check("objects of the other device are still read", whole and refused and not wrong, repr(wrong[:5]))
    table(linear)


store, index, _ = disk.partition("/dev/nvme0n1")
with open("/sys/block/nvme1n1/size") as file:
    LINEAR = f"0 {file.read().strip()} linear /dev/nvme1n1 0"
vmtest.run("dmsetup", "--noudevsync", "create", "slow", "--table", LINEAR)
vmtest.run("mkfs.ext4", "-q", "-F", index)
vmtest.run("mount", "-t", "ext4", index, "/mnt")
os.makedirs("/mnt/data", exist_ok=True)
node = nodes.Node(nodes.write_config("/tmp/hang.yaml", f"{store} {SLOW}", "/mnt/data",
                                     store="  flush_deadline: 2s\n  read_deadline: 2s\n"))
node.mount, node.loop = "/mnt", None
node.format()
if not vmtest.check("the node becomes ready", node.start(), node.log_tail()):
    raise SystemExit(1)
request("PUT", "")
before = put_some("before", 30)
vmtest.check("uploads take turns on both devices", all_are_200(before) and
             node.total("penstock_device_written_bytes_total", SLOW) > 0, repr([o[:2] for o in before]))
during = hang(node)
reads_meanwhile()
after = comes_back(node)
# For the reader, not checked: what an upload costs in an emulated machine is its host's load before all.
vmtest.note(f"median upload {median_ms(before):.0f} ms before, {median_ms(during):.0f} ms while the other device hangs, "
            f"{median_ms(after):.0f} ms after: {median_ms(during) / median_ms(before):.2f} and "
            f"{median_ms(during) / median_ms(after):.2f} times")
fails(node, LINEAR)
vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
if vmtest.check("it starts again", node.start(), node.log_tail()):
    _, _, lost = read_all(may_fail=False)
    vmtest.check(f"all {len(acknowledged)} acknowledged objects are there after the restart", not lost, repr(lost[:5]))
nodes.release(node)
vmtest.run("dmsetup", "--noudevsync", "remove", "slow")
