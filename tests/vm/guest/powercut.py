# SPDX-License-Identifier: Apache-2.0
"""What the power-cut cases share: the load that is written under a log, its markers, and the disks of a cut.

After each answer, and before its next request, a client writes a marker block to a spare partition of every
logged drive: a marker in a log before the cut means that the answer came before the cut.  A run begins with a
marker of its own, so that one log can hold several runs.
"""
import http.client
import json
import mmap
import multiprocessing
import os
import shutil
import subprocess
import threading

import disk
import node as nodes
import s3load
import vmtest
import writelog

START, ACK = "PENSTOCK-START", "PENSTOCK-ACK"


# ---- writing ---------------------------------------------------------------------------------------------

class Markers:
    """Writes marker blocks to the third partition of each drive, one at a time."""

    def __init__(self, devices):
        self.files = [os.open(device + "p3", os.O_RDWR | os.O_DIRECT) for device in devices]
        self.block, self.lock = mmap.mmap(-1, 512), threading.Lock()

    def write(self, text):
        with self.lock:
            self.block[:] = text.encode().ljust(512, b"\0")
            for file in self.files:
                os.pwrite(file, self.block, 0)

    def close(self):
        for file in self.files:
            os.close(file)


def write_load(run, plans, devices, listen=None, look=lambda node: None, **options):
    """Formats a node on the drives, walks the plans under the log as run `run`, stops the node; returns faults.

    listen: (changes the configuration's S3 listener, gives an Endpoint of it); default: what node.py writes.
    look: called with the node before it is stopped.
    """
    node = nodes.prepare(devices[0], devices[1] if len(devices) > 1 else None, logged=True, **options)
    configure, connect = listen or (lambda: None, lambda: s3load.Endpoint("127.0.0.1", node.port))
    configure()
    if not node.start():
        return [f"the node does not become ready: {node.log_tail()}"]
    connect().request("PUT", f"/{s3load.BUCKET}")
    markers = Markers(devices)
    markers.write(f"{START} {json.dumps([run])}")
    clients = [s3load.Client(connect(), plan, on_ack=lambda op: markers.write(
        f"{ACK} {json.dumps([run, op.client, op.number])}")) for plan in plans]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    faults = [f"client {client.plan[0].client} ended at {client.position}: {client.refused or client.lost}"
              for client in clients if client.position < len(client.plan)]
    look(node)
    if node.stop() != 0:
        faults.append(f"SIGTERM does not end the node with status 0: {node.log_tail()}")
    markers.close()
    nodes.release(node)
    return faults


# ---- cutting ---------------------------------------------------------------------------------------------

class Run:
    """The part of a log that one run wrote: where it starts, its acknowledgements."""

    def __init__(self, log, run, plans):
        self.log, self.plans = log, plans
        starts = [(index, json.loads(data[len(START):].rstrip(b"\0"))[0]) for index, data in log.find(START.encode())]
        self.start = next((index for index, name in starts if name == run), None)
        if self.start is None:
            vmtest.failed("set-up", f"the log has no run {run}")
            raise SystemExit(1)
        acks = [(index, *json.loads(data[len(ACK):].rstrip(b"\0"))) for index, data in log.find(ACK.encode())]
        self.acks = [(index, client, number) for index, name, client, number in acks if name == run]

    def positions_at(self, cut):
        """How many operations of each plan were acknowledged before the cut."""
        positions = [0] * len(self.plans)
        for index, client, number in self.acks:
            if index <= cut:
                positions[client] = max(positions[client], number + 1)
        return positions


class Disk:
    """The disk of one log, made anew for each cut from what was durable at the cut before."""

    def __init__(self, log, size, path):
        self.log, self.path, self.base_path, self.end = log, path, path + ".base", 0
        self.base = os.open(self.base_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.truncate(self.base_path, size)

    def make(self, cut, seed, lies_from=None):
        """Cuts must not fall; lies_from: entry from which on no flush was honoured.  Returns the tally."""
        boundary = writelog.boundary(self.log, cut if lies_from is None else lies_from)
        writelog.apply_durable(self.log, self.base, self.end, boundary)
        self.end = max(self.end, boundary)
        shutil.copyfile(self.base_path, self.path)
        file = os.open(self.path, os.O_RDWR)
        tally = writelog.apply_volatile(self.log, file, boundary, cut, seed, 512, lies_from is None)
        os.close(file)
        return tally


class Bench:
    """One worker's mount point, ports and node, on the disks of a cut."""

    def __init__(self, number):
        self.mount, self.shift = f"/mnt{number}", 100 * number
        self.config, self.log = f"/tmp/penstock{number}.yaml", f"/tmp/node{number}.log"
        os.makedirs(self.mount, exist_ok=True)

    def with_node(self, store, index, check):
        """store, index: (file, size of its drive).  Returns check(node)'s faults, or why there is no node."""
        loops = [disk.loop_attach(path, *disk.layout(size)[part]) for part, (path, size) in ((0, store), (1, index))]
        done = subprocess.run(["mount", "-t", "ext4", loops[1], self.mount], stderr=subprocess.PIPE, text=True)
        nodes.write_config(self.config, loops[0], self.mount + "/data", shift=self.shift)
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
            for loop in loops:
                disk.loop_detach(loop)


def read_back(plans, positions):
    """A check for with_node: every key is as the plans say, and a new object can be stored."""
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


class Verdict:
    """What a number of cuts showed."""

    def __init__(self):
        self.cuts = self.bad = 0
        self.faults, self.tally = [], [0, 0, 0]

    def add(self, cut, tally, faults):
        self.cuts += 1
        self.bad += bool(faults)
        self.tally = [a + b for a, b in zip(self.tally, tally)]
        self.faults += [f"cut {cut}: {fault}" for fault in faults[:2]]

    def merge(self, other):
        self.cuts, self.bad = self.cuts + other.cuts, self.bad + other.bad
        self.faults = (self.faults + other.faults)[:6]
        self.tally = [a + b for a, b in zip(self.tally, other.tally)]


def one_drive(device, name, plans, size, cuts, control_cuts):
    """Cuts a log whose drive held store and index at `cuts` places and reports; on a disk that lies about flushes, at
    `control_cuts` places, losses must be found."""
    log = writelog.Log(device)
    run = Run(log, name, plans)

    def verify(number, places, lies_from=None):
        bench, image, verdict = Bench(number), Disk(log, size, f"/tmp/cut{number}"), Verdict()
        for cut in places:
            tally = image.make(cut, "cut", lies_from)
            drive = (image.path, size)
            verdict.add(cut, tally, bench.with_node(drive, drive, read_back(plans, run.positions_at(cut))))
        return verdict

    expected = sum(map(len, plans))
    vmtest.check("the log holds the markers", len(run.acks) == expected, f"{len(run.acks)} of {expected}")
    found = share(verify, writelog.choose_cuts(log, cuts, "cut", run.start + 1))
    kept, dropped, torn = found.tally
    vmtest.check(f"{found.cuts} cuts ({kept} volatile writes kept, {dropped} dropped, {torn} torn): nothing acknowledged "
                 "is lost, nothing is partial", not found.bad, f"{found.bad} cuts: {found.faults}")
    # How many is chance, as it hangs on where the log was cut: that there were enough is what 100 cuts are for.
    vmtest.check("the cuts dropped and tore writes", dropped > cuts // 6 and torn > cuts // 50, str(found.tally))
    found = share(lambda number, places: verify(number, places, run.start),
                  writelog.choose_cuts(log, control_cuts, "control", run.start + 1))
    vmtest.check(f"control: a disk that lies about flushes is found out ({found.bad} of {found.cuts})", found.bad > 0, "not once")


def share(work, cuts, workers=2):
    """Splits rising cuts among processes; work(number, cuts) returns a Verdict; returns their sum."""
    context, running = multiprocessing.get_context("fork"), []
    for number in range(workers):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=lambda n=number, s=sender: s.send(work(n, cuts[n::workers])))
        process.start()
        # Without this a worker that died would never read as end of file.
        sender.close()
        running.append((process, receiver))
    total = Verdict()
    for process, receiver in running:
        total.merge(receiver.recv())
        process.join()
    return total
