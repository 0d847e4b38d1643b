#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers allocate nothing on the data path. The program linked with a guard on its heap (heap_guard.c, where the exceptions are
listed) ends at the first allocation of a worker after its start; here it serves each kind of request. `make check-heap` puts the
whole end-to-end lane through it. That the guard is there is known from a planted allocation, which must end the program, and
from the line that it prints when a node ends."""

import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading

import node as nodes
from hanging import Hanging
from node import Lane, Node, need, run, wait_for

GUARDED = os.environ.get("PENSTOCK_HEAP", os.path.join(nodes.TOP, "build", "penstock-heap"))
lane = Lane()


class Guarded(Node):
    command = [GUARDED]

    def stop(self):
        """Keeps what the guard says at the end: the turns of workers, and the calls of each excepted library."""
        super().stop()
        line = re.search(r"heap_guard: (turns=.*)", self.log_text()).group(1)
        self.report = {name: int(count) for name, count in (part.split("=") for part in line.split())}


@lane.test
def a_planted_allocation_ends_the_program():
    os.environ["HEAP_GUARD_PLANT"] = "1"
    try:
        with Guarded() as node:
            raise RuntimeError("it runs:\n" + node.log_text())
    except AssertionError as ended:
        assert "heap_guard: malloc(1) on a worker" in str(ended), ended
        assert f"ended with {-signal.SIGABRT}" in str(ended.__context__), ended.__context__
    finally:
        del os.environ["HEAP_GUARD_PLANT"]


@lane.test
def every_s3_operation_is_served():
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run-s3.py")
    done = subprocess.run([sys.executable, script], env={**os.environ, "PENSTOCK": GUARDED}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert not re.search(r"^SKIP|^0 passed", done.stdout, re.M), done.stdout


@lane.test
def raw_streams_and_large_objects_plain_and_compressed_are_served():
    payload = os.urandom(20_000_003)
    with Guarded(s3="compression: { type: zstd }") as node:
        node.request("PUT", "/bkt")
        for key, body in (("random", payload), ("zeros", bytes(20_000_003))):
            assert node.request("PUT", "/bkt/" + key, body=body)[0] == 200
            assert node.request("GET", "/bkt/" + key)[2] == body
            assert node.request("GET", "/bkt/" + key, headers={"Range": "bytes=5-1000004"})[2] == body[5:1000005]
        with node.connect(raw=True) as sock:
            sock.sendall(b"PENSTOCK/1 key=raw\n" + payload)
            sock.shutdown(1)
            assert sock.recv(1000).startswith(b"key=raw size=20000003 "), "raw"
    assert node.report["turns"] > 100, node.report


@lane.test
def tls_is_served_and_only_its_library_allocates():
    with tempfile.TemporaryDirectory() as folder:
        cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        run([need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj",
             "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
        os.chmod(key, 0o600)
        with Guarded(s3=f"tls: {{ certificate: {cert}, key: {key} }}") as node:
            url = f"https://127.0.0.1:{node.s3_port}/bkt"
            curl = [need("curl"), "-sSf", "--cacert", cert, "--max-time", "60"]
            run([*curl, "-X", "PUT", url])
            payload = os.urandom(5_000_011)
            run([*curl, "-T", "-", url + "/key"], input=payload)
            assert run([*curl, url + "/key"]) == payload
        assert node.report["libssl.so"] > 0, node.report


class GuardedHanging(Hanging):
    command = [GUARDED]


def waits_in_short_pieces(headers):
    """Some 20,000 pieces of one byte lie in a receive buffer. They wait while the device is silent: the upload is paused, and is
    whole in the end."""
    first, ones = os.urandom(8 << 20), os.urandom(100_000)
    head = "PUT /bkt/key HTTP/1.1\r\nHost: e2e\r\n" + headers
    body = b"%x\r\n%b\r\n" % (len(first), first) + b"".join(b"1\r\n%c\r\n" % one for one in ones) + b"0\r\n\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n" if not headers else f"Content-Length: {len(body)}\r\n\r\n"
    with GuardedHanging("write", deadline="60s", limits="uploads_max: 1, upload_queue_max: 1GiB") as node:
        node.request("PUT", "/bkt")
        node.hang()
        with node.connect() as sock:
            sender = threading.Thread(target=sock.sendall, args=(head.encode() + body,))
            sender.start()
            wait_for(lambda: node.metric("penstock_upload_pauses_total") > 0, "the upload to be paused")
            node.go_on()
            sender.join()
            assert sock.recv(1000).startswith(b"HTTP/1.1 200 "), "the answer"
        assert node.request("GET", "/bkt/key")[2] == first + ones


@lane.test
def chunks_of_one_byte_wait_for_a_silent_device():
    waits_in_short_pieces("")


@lane.test
def aws_chunks_of_one_byte_wait_for_a_silent_device():
    size = (8 << 20) + 100_000
    waits_in_short_pieces(f"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nx-amz-decoded-content-length: {size}\r\n"
                          "Content-Encoding: aws-chunked\r\n")


lane.close()
