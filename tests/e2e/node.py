# SPDX-License-Identifier: Apache-2.0
"""Starts the built program on free ports with a store of its own, for the end-to-end scripts, and counts their tests.

    from node import Node, Lane
    lane = Lane()
    with Node() as node:
        @lane.test
        def a_put_reads_back(): ...
    lane.close()

A node is ended by its own process id. Nothing here sleeps to let something happen: conditions are polled with a deadline.
"""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PENSTOCK = os.environ.get("PENSTOCK", os.path.join(TOP, "build", "penstock"))


def free_ports(count):
    held = []
    for _ in range(count):
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        held.append(sock)
    ports = [sock.getsockname()[1] for sock in held]
    for sock in held:
        sock.close()
    return ports


def wait_for(condition, what, seconds=20):
    """Polls until condition() is true; its value is returned."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.01)


class Node:
    """limits, s3 and raw are further YAML of the listeners; store of the store; listeners are further list items."""

    # Where the S3 and admin listeners are, and how the program is started: another place may put it into a network namespace.
    host = "127.0.0.1"
    command = [PENSTOCK]

    def __init__(self, workers=1, size="256MiB", limits="", s3="", raw="", store="", node="", credentials=None, listeners=""):
        self.folder = tempfile.mkdtemp(prefix="penstock-e2e-", dir=os.environ.get("E2E_FOLDER"))
        self.s3_port, self.raw_port, self.admin_port = free_ports(3)
        self.url = f"http://{self.host}:{self.s3_port}"
        access = "access: anonymous"
        if credentials is not None:
            path = os.path.join(self.folder, "credentials")
            with open(path, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write(credentials)
            access = f"access: authenticated\n    credentials: {path}"
        self.config = os.path.join(self.folder, "penstock.yaml")
        with open(self.config, "w") as f:
            f.write(f"""
node: {{ name: e2e, data_dir: {self.folder}/data, workers: {workers}{', ' + node if node else ''} }}
store:
  devices: [ {{ path: {self.folder}/store.img, size: {size} }} ]
{store}
listeners:
  - name: bulk
    protocol: s3
    address: "{self.host}:{self.s3_port}"
    {access}
    {s3}
    limits: {{ {limits} }}
  - name: pipe
    protocol: raw
    address: "127.0.0.1:{self.raw_port}"
    bucket: captures
    key_template: "{{listener}}/{{date}}/{{time}}-{{peer}}-{{seq}}"
    {raw}
    limits: {{ {limits} }}
{listeners}
admin: {{ address: "{self.host}:{self.admin_port}" }}
""")
        self.process = None
        try:
            subprocess.run([*self.command, "format", "--config", self.config], check=True, capture_output=True)
            self.start()
        except BaseException:  # Nobody gets a node to clean up after.
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def start(self):
        self.log_path = os.path.join(self.folder, "log")
        self.log = open(self.log_path, "ab")
        self.process = subprocess.Popen([*self.command, "serve", "--config", self.config], stderr=self.log,
                                        stdout=self.log)
        try:
            wait_for(self.is_ready, "the node to be ready", 60)
        except AssertionError:
            self.process.kill()
            raise AssertionError("the node did not start:\n" + self.log_text())
        except BaseException:  # Told to end meanwhile: the node must not stay behind.
            self.process.kill()
            raise

    def is_ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the node ended with {self.process.returncode}:\n" + self.log_text())
        try:
            return self.admin("/readyz")[0] == 200
        except OSError:
            return False

    def log_text(self):
        with open(self.log_path) as f:
            return f.read()

    def admin(self, path, method="GET"):
        conn = http.client.HTTPConnection(self.host, self.admin_port, timeout=10)
        conn.request(method, path)
        response = conn.getresponse()
        body = response.read().decode()
        conn.close()
        return response.status, body

    def metric(self, name, **labels):
        """The sum of a metric's samples whose labels match."""
        total = 0.0
        for line in self.admin("/metrics")[1].splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == name and all(f'{k}="{v}"' in head for k, v in labels.items()):
                total += float(value)
        return total

    def request(self, method, path, body=None, headers=None, timeout=30):
        """One request on a connection of its own: (status, headers, body)."""
        conn = http.client.HTTPConnection(self.host, self.s3_port, timeout=timeout)
        conn.request(method, path, body=body, headers=headers or {})
        response = conn.getresponse()
        data = response.read()
        conn.close()
        return response.status, dict((k.lower(), v) for k, v in response.getheaders()), data

    def connect(self, raw=False, timeout=30):
        return socket.create_connection(("127.0.0.1", self.raw_port) if raw else (self.host, self.s3_port), timeout=timeout)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds=60):
        return self.process.wait(seconds)

    def stop(self):
        """Ends in good order and expects that to work."""
        if self.process.poll() is None:
            self.terminate()
            status = self.wait()
            assert status == 0, f"exit status {status}:\n" + self.log_text()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        try:
            if self.process.poll() is None:
                if kind is None:
                    self.stop()
                else:
                    self.process.kill()
                    self.process.wait()
            elif kind is None:
                raise AssertionError("the node had ended already:\n" + self.log_text())
        finally:
            self.log.close()
            shutil.rmtree(self.folder, ignore_errors=True)


class Skip(Exception):
    """Raised by a test: the argument is the reason ("host: ..." when nothing could be installed against it)."""


class Lane:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def test(self, function):
        """Runs a test at once."""
        name = function.__name__
        start = time.monotonic()
        try:
            function()
        except Skip as reason:
            self.skipped += 1
            print(f"SKIP {name}: {reason}", flush=True)
        except Exception:
            self.failed += 1
            print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
        else:
            self.passed += 1
            print(f"ok   {name} ({time.monotonic() - start:.1f} s)", flush=True)
        return function

    def close(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        sys.exit(1 if self.failed else 0)


def need(program):
    """Path of a program of the release, or Skip."""
    for folder in ("/usr/bin", "/usr/local/bin", "/bin"):
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK):
            return path
    raise Skip(f"{program} is not installed")


def run(command, **options):
    """Runs a client; its output is in the error when it fails."""
    options.setdefault("timeout", 120)
    done = subprocess.run(command, capture_output=True, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-4000:]!r}\n{done.stderr[-4000:]!r}"
    return done.stdout
