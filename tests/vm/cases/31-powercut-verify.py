#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-after: 30-powercut-write
# vm-drive: nvme from=powercut.log
# vm-modules: ext4 loop
# vm-timeout: 400
"""Cuts the power at 100 places of the log that 30-powercut-write left, starts the node on each disk and reads
everything back.  Control: on a disk that lies about flushes, losses must be found."""
import concurrent.futures
import http.client
import json
import multiprocessing
import os
import shutil
import subprocess

import disk
import node as nodes
import s3load
import vmtest
import writelog

CUTS, CONTROL_CUTS, SIZE, WORKERS = 100, 12, 96 << 20, 2
CLIENTS, OPERATIONS = 4, 60
LOG = "/dev/nvme0n1"
plans = [s3load.make_plan("cut", number, OPERATIONS, keys=6) for number in range(CLIENTS)]
log = writelog.Log(LOG)
start = next(index for index, _ in log.find(b"PENSTOCK-START"))
marks = [(index, *json.loads(data[13:].rstrip(b"\0"))) for index, data in log.find(b"PENSTOCK-ACK ")]


def positions_at(cut):
    """How many operations of each client were acknowledged before the cut."""
    positions = [0] * CLIENTS
    for index, client, number in marks:
        if index <= cut:
            positions[client] = max(positions[client], number + 1)
    return positions


class Bench:
    """One worker's disk, mount point and ports.

    The disk as of a durable boundary is advanced from cut to cut and copied for each.
    """

    def __init__(self, number):
        self.base, self.cut, self.mount = f"/tmp/base{number}", f"/tmp/cut{number}", f"/mnt{number}"
        self.config, self.log, self.shift = f"/tmp/penstock{number}.yaml", f"/tmp/node{number}.log", 100 * number
        os.makedirs(self.mount, exist_ok=True)
        self.file = os.open(self.base, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.truncate(self.base, SIZE)
        self.end = 0

    def make_disk(self, cut, seed, honest):
        boundary = writelog.boundary(log, cut if honest else start)
        writelog.apply_durable(log, self.file, self.end, boundary)
        self.end = max(self.end, boundary)
        shutil.copyfile(self.base, self.cut)
        file = os.open(self.cut, os.O_RDWR)
        tally = writelog.apply_volatile(log, file, boundary, cut, seed, 512, honest)
        os.close(file)
        return tally

    def with_node(self, check):
        """Starts a node on the cut disk; returns the faults that check(node) finds, or why it did not start."""
        parts = disk.layout(SIZE)
        store, index = disk.loop_attach(self.cut, *parts[0]), disk.loop_attach(self.cut, *parts[1])
        done = subprocess.run(["mount", "-t", "ext4", index, self.mount], stderr=subprocess.PIPE, text=True)
        nodes.write_config(self.config, store, self.mount + "/data", shift=self.shift)
        node = nodes.Node(self.config, self.shift, self.log)
        try:
            if done.returncode:
                return ["the index's file system does not mount: " + done.stderr.strip()]
            if not node.start():
                return ["the node does not start: " + node.log_tail()]
            return check(node)
        except (OSError, http.client.HTTPException) as error:
            return [f"the node went away: {error!r} {node.log_tail()}"]
        finally:
            if node.process and node.process.poll() is None:
                node.kill()
            if not done.returncode:
                vmtest.run("umount", self.mount)
            disk.loop_detach(store)
            disk.loop_detach(index)


def read_back(positions):
    def check(node):
        endpoint = s3load.Endpoint("127.0.0.1", node.port)
        faults = [fault for plan, position in zip(plans, positions)
                  for fault in s3load.verify(endpoint, plan, position)]
        status, answer = endpoint.request("PUT", f"/{s3load.BUCKET}/after", b"x" * 5000)
        if status != 200:
            faults.append(f"a new object is refused: {status} {answer[:200]!r}")
        endpoint.close()
        return faults
    return check


def run_share(number, cuts, seed, honest):
    """One worker's share of the cuts; returns (cuts with faults, first faults, kept, dropped and torn writes)."""
    bench, bad, shown, sums = Bench(number), 0, [], [0, 0, 0]
    for cut in cuts:
        tally = bench.make_disk(cut, seed, honest)
        sums = [a + b for a, b in zip(sums, tally)]
        faults = bench.with_node(read_back(positions_at(cut)))
        if faults:
            bad += 1
            shown += [f"cut {cut}: {fault}" for fault in faults[:2]]
    return bad, shown[:4], sums


def run_cuts(number, seed, honest):
    """Shares the cuts among the workers and sums their answers."""
    cuts = writelog.choose_cuts(log, number, seed, start + 1)
    with concurrent.futures.ProcessPoolExecutor(WORKERS, multiprocessing.get_context("fork")) as pool:
        shares = [pool.submit(run_share, worker, cuts[worker::WORKERS], seed, honest) for worker in range(WORKERS)]
        answers = [share.result() for share in shares]
    return (sum(answer[0] for answer in answers), [fault for answer in answers for fault in answer[1]],
            [sum(column) for column in zip(*(answer[2] for answer in answers))])


vmtest.check("the log holds the markers", len(marks) == CLIENTS * OPERATIONS, f"{len(marks)}")
bad, shown, sums = run_cuts(CUTS, "cut", True)
vmtest.check(f"{CUTS} cuts ({sums[0]} volatile writes kept, {sums[1]} dropped, {sums[2]} torn): nothing "
             "acknowledged is lost, nothing is partial", not bad, f"{bad} cuts: {shown}")
vmtest.check("the cuts dropped and tore writes", sums[1] > CUTS // 4 and sums[2] > 0, str(sums))
bad, shown, _ = run_cuts(CONTROL_CUTS, "control", False)
vmtest.check(f"control: a disk that lies about flushes is found out ({bad} of {CONTROL_CUTS})", bad > 0, "nothing noticed")
for fault in shown[:2]:
    vmtest.note(fault)
