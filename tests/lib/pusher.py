# SPDX-License-Identifier: Apache-2.0
"""A node under random load with an oracle, for the tests that pull the plug (tests/root/run-ext4-shutdown.py, tests/e2e/run-kill9.py).

Node      starts, kills and asks one `penstock serve` in a folder.
Pusher    threads that put, overwrite, delete and upload in parts; each key has one writer, so the order of its changes is known.
          What was answered with success is remembered as it is answered; a change without an answer may or may not have happened.
verify    reads every key: it must hold the version last answered or one without an answer, byte for byte.

The bytes of a version follow from key and version, and say the version in their first 16 bytes. This module must not sleep where
an event can be waited for.
"""

import hashlib
import http.client
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time

KEYS_PER_THREAD = 6
ABSENT = 0


def content(key, version):
    seed = f"{key}/{version}".encode()
    size = int.from_bytes(hashlib.sha256(seed).digest()[:4], "little")
    size = size % 3000 if size % 3 else size % 400000
    return b"%016d" % version + hashlib.shake_128(seed).digest(size)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        threading.Event().wait(0.005)


class Node:
    def __init__(self, folder, log, binary=None, size="64MiB"):
        self.binary = binary or os.environ.get("PENSTOCK", "build/penstock")
        self.folder, self.log = folder, log
        self.port, self.admin = free_ports(2)
        self.config = log + ".yaml"
        self.process = None
        with open(self.config, "w") as f:
            f.write(
                f"node:      {{ name: plug, data_dir: {folder}/data, workers: 1, staging_size: 8MiB }}\n"
                f"store:\n  devices: [ {{ path: {folder}/store.img, size: {size} }} ]\n"
                "listeners:\n"
                f'  - {{ name: bulk, protocol: s3, address: "127.0.0.1:{self.port}", access: anonymous, rx_buffer_size: 64KiB,'
                " rx_area_size: 8MiB, limits: { connections_max: 64, uploads_max: 64 } }\n"
                f'admin:     {{ address: "127.0.0.1:{self.admin}" }}\n'
            )

    def command(self, *words):
        return subprocess.run([self.binary, words[0], "--config", self.config, *words[1:]], capture_output=True, text=True)

    def format(self):
        done = self.command("format")
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)

    def ready(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the node ended with {self.process.returncode}:\n" + self.tail())
        try:
            return self.request("GET", "/readyz", port=self.admin)[0] == 200
        except OSError:
            return False

    def tail(self):
        with open(self.log) as f:
            return "".join(f.readlines()[-15:])

    def start(self):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen([self.binary, "serve", "--config", self.config], stderr=log, stdout=log)
        wait_until(self.ready, 60, "the node did not become ready")

    def start_and_kill(self, seconds):
        """Kills the node wherever its start has come to after a random time (which is the point: no event is waited for)."""
        with open(self.log, "a") as log:
            self.process = subprocess.Popen([self.binary, "serve", "--config", self.config], stderr=log, stdout=log)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        self.process = None

    def request(self, method, path, body=None, headers=None, port=None, timeout=20):
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=headers or {}, encode_chunked=not isinstance(body, bytes) and body is not None)
            response = connection.getresponse()
            return response.status, response.read(), response.headers
        except http.client.HTTPException as e:
            raise OSError(str(e)) from e
        finally:
            connection.close()

    def used_bytes(self):
        text = self.request("GET", "/metrics", port=self.admin)[1].decode()
        found = re.findall(r"^penstock_device_used_bytes\{[^}]*\} (\S+)$", text, re.M)
        if not found:
            raise RuntimeError("no penstock_device_used_bytes in /metrics")
        return sum(int(float(x)) for x in found)


class Model:
    """What is known of each key. One writer thread per key; the reader comes when no writer runs."""

    def __init__(self):
        self.answered = {}  # key -> version; ABSENT
        self.maybe = {}  # key -> versions without an answer
        self.acks = 0
        self.next_version = 0
        self.late_acks = 0
        self.unplugged = False  # an answer from now on promises nothing
        self.lock = threading.Lock()

    def begin(self, key, deletes=False):
        with self.lock:
            self.next_version += 0 if deletes else 1
            version = ABSENT if deletes else self.next_version
            self.maybe.setdefault(key, set()).add(version)
            return version

    def unplug(self):
        """Called before the plug is pulled. In a real power cut nobody hears an answer after it; here the process lives a moment
        longer, and the kernel lets a sync that overlaps the shutdown succeed although its metadata never reached the journal."""
        with self.lock:
            self.unplugged = True

    def replug(self):
        with self.lock:
            self.unplugged = False

    def decided(self, key, version, success):
        with self.lock:
            if success and self.unplugged:
                self.late_acks += 1
            elif success:
                # Later than everything before it, so what was open before is settled.
                self.answered[key] = version
                self.maybe[key] = set()
                self.acks += 1


class Pusher:
    def __init__(self, node, model, seed, threads=6):
        self.node, self.model = node, model
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(random.Random(seed * 1000 + t), t)) for t in range(threads)]

    def start(self):
        for t in self.threads:
            t.start()

    def stop(self):
        self.stopping.set()
        for t in self.threads:
            t.join()

    def run(self, rng, number):
        while not self.stopping.is_set():
            try:
                self.step(rng, f"t{number}/key-{rng.randrange(KEYS_PER_THREAD)}")
            except OSError:
                # The plug was pulled, or is about to be: no answer, so the outcome is open.
                if self.stopping.wait(0.01):
                    return

    def step(self, rng, key):
        what = rng.random()
        if what < 0.2:
            version = self.model.begin(key, deletes=True)
            status = self.node.request("DELETE", f"/box/{key}")[0]
            self.model.decided(key, version, status == 204)
        elif what < 0.35:
            self.parts(rng, key)
        else:
            version = self.model.begin(key)
            body = content(key, version)
            if what < 0.5:  # unknown length
                cut = rng.randrange(len(body) + 1)
                payload = iter([x for x in (body[:cut], body[cut:]) if x])
                status = self.node.request("PUT", f"/box/{key}", payload, {"Transfer-Encoding": "chunked"})[0]
            else:
                status = self.node.request("PUT", f"/box/{key}", body)[0]
            self.model.decided(key, version, status == 200)

    def parts(self, rng, key):
        status, body, _ = self.node.request("POST", f"/box/{key}?uploads")
        upload = re.search(rb"<UploadId>([^<]+)</UploadId>", body)
        if status != 200 or not upload:
            return
        upload = upload.group(1).decode()
        version = self.model.begin(key)
        for _ in range(rng.randrange(1, 3)):  # sent once or twice
            status, _, headers = self.node.request("PUT", f"/box/{key}?partNumber=1&uploadId={upload}", content(key, version))
        if status != 200:
            return
        if rng.random() < 0.2:
            self.node.request("DELETE", f"/box/{key}?uploadId={upload}")
            return
        xml = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{headers['ETag']}</ETag></Part></CompleteMultipartUpload>"
        status, body, _ = self.node.request("POST", f"/box/{key}?uploadId={upload}", xml.encode())
        self.model.decided(key, version, status == 200 and b"<Error>" not in body)


def verify(node, model):
    """Returns a list of sentences, one for each key that is wrong. What was found is the new truth."""
    faults = []
    for key in sorted(set(model.answered) | set(model.maybe)):
        wanted = {model.answered.get(key, ABSENT)} | model.maybe.get(key, set())
        status, body, _ = node.request("GET", f"/box/{key}")
        found = ABSENT
        if status == 200:
            found = int(body[:16]) if body[:16].isdigit() else -1
            if found == -1 or body != content(key, found):
                faults.append(f"{key}: version {found} is not whole ({len(body)} bytes)")
        elif status != 404:
            faults.append(f"{key}: GET answers {status} {body[:200]}")
            continue
        if found not in wanted:
            faults.append(f"{key}: holds version {found}, answered or possible: {sorted(wanted)}")
        model.answered[key] = found
        model.maybe[key] = set()
    return faults


def empty(node, model):
    """Deletes all objects and uploads and returns the bytes that the node still counts as used."""
    for key in model.answered:
        node.request("DELETE", f"/box/{key}")
    while True:
        body = node.request("GET", "/box?uploads")[1]
        uploads = re.findall(rb"<Upload>.*?<Key>([^<]+)</Key>.*?<UploadId>([^<]+)</UploadId>", body, re.S)
        if not uploads:
            break
        for key, upload in uploads:
            node.request("DELETE", f"/box/{key.decode()}?uploadId={upload.decode()}")
    return node.used_bytes()


