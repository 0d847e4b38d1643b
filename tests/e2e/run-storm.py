#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many clients at once that put, overwrite, copy, delete, upload parts, read slowly and leave at odd moments, on a node with little memory and
little space, in several shapes. Every body says which version of which key it is, so that each read is judged: a whole version that was
once put under that key, or absent. At the end everything is deleted and all space must be back. STORM_SEED and STORM_SECONDS set the run."""

import hashlib
import http.client
import os
import random
import socket
import struct
import threading
import time

from node import Lane, Node, wait_for

lane = Lane()
SEED = int(os.environ.get("STORM_SEED", "1"))
SECONDS = float(os.environ.get("STORM_SECONDS", "6"))
PART = 5 << 20


def body_of(key, version, size):
    """Self-describing bytes: their own digest comes first, so that a mix of two versions cannot pass."""
    rest = random.Random(f"{key}-{version}").randbytes(max(0, size - 48))
    text = b"%16d" % size
    return hashlib.sha256(text + rest).digest() + text + rest


def is_whole(body):
    return len(body) >= 48 and int(body[32:48]) == len(body) and hashlib.sha256(body[32:]).digest() == body[:32]


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Client(threading.Thread):
    def __init__(self, node, number):
        super().__init__()
        self.node, self.number, self.rng = node, number, random.Random(f"{SEED}/{number}")
        self.problems, self.done = [], {}

    def run(self):
        end = time.monotonic() + SECONDS
        version = 0
        while time.monotonic() < end and not self.problems:
            version += 1
            action = self.rng.choice([self.put, self.put, self.get, self.get, self.delete, self.copy, self.leave, self.chunked, self.parts,
                                      self.leave_reading, self.stream])
            key = f"k{self.rng.randrange(12)}"
            try:
                got = action(key, f"{self.number}-{version}")
            except (OSError, http.client.HTTPException) as error:
                self.problems.append(f"{action.__name__} {key}: {error!r}")
                return
            self.done[(action.__name__, got)] = self.done.get((action.__name__, got), 0) + 1

    def expect(self, got, allowed, what):
        if got[0] not in allowed:
            self.problems.append(f"{what}: {got[0]} {got[2][:300]!r}")
        return got[0]

    def body(self, key, version):
        return body_of(key, version, self.rng.choice([48, 100, 4095, 4096, 70_000, 262_144, 900_001, 3_000_003]))

    def put(self, key, version):
        return self.expect(self.node.request("PUT", "/bkt/" + key, body=self.body(key, version)), (200, 507), "put")

    def chunked(self, key, version):
        body = self.body(key, version)
        pieces = [body[i:i + 50_000] for i in range(0, len(body), 50_000)]
        conn = http.client.HTTPConnection("127.0.0.1", self.node.s3_port, timeout=30)
        try:
            conn.request("PUT", "/bkt/" + key, body=iter(pieces), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
            response = conn.getresponse()
            return self.expect((response.status, {}, response.read()), (200, 507), "chunked")
        except (BrokenPipeError, ConnectionResetError):
            return "broken"  # http.client does not read an answer that comes while it sends
        finally:
            conn.close()

    def get(self, key, version):
        got = self.node.request("GET", "/bkt/" + key)
        if got[0] == 200 and not is_whole(got[2]):
            self.problems.append(f"get {key}: {len(got[2])} bytes of no version")
        return self.expect(got, (200, 404), "get")

    def delete(self, key, version):
        return self.expect(self.node.request("DELETE", "/bkt/" + key), (204,), "delete")

    def copy(self, key, version):
        source = f"/bkt/k{self.rng.randrange(12)}"
        return self.expect(self.node.request("PUT", "/bkt/" + key, headers={"x-amz-copy-source": source}), (200, 404, 507, 400), "copy")

    def leave(self, key, version):
        body = self.body(key, version)
        with self.node.connect() as sock:
            sock.sendall(f"PUT /bkt/{key} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            try:
                sock.sendall(body[:self.rng.randrange(len(body))])
            except OSError:
                return "refused"
            if self.rng.random() < .5:
                reset(sock)
        return "left"

    def leave_reading(self, key, version):
        with self.node.connect() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(f"GET /bkt/{key} HTTP/1.1\r\nHost: h\r\n\r\n".encode() * 3)
            sock.recv(self.rng.choice([1, 1000, 100_000]))
            if self.rng.random() < .5:
                reset(sock)
        return "left"

    def stream(self, key, version):
        with self.node.connect(raw=True) as sock:
            body = self.body(key, version)
            try:
                sock.sendall(f"PENSTOCK/1 key={key} size={len(body)}\n".encode() + body)
                sock.shutdown(socket.SHUT_WR)
                answer = sock.recv(1000)
                if not answer.startswith((b"key=", b"error=InsufficientStorage")):
                    self.problems.append(f"stream {key}: {answer!r}")
                return answer.partition(b"=")[0].decode()
            except OSError:
                return "refused"

    def parts(self, key, version):
        got = self.node.request("POST", f"/bkt/{key}?uploads")
        if self.expect(got, (200, 507), "begin") != 200:
            return 507
        upload = got[2].decode().partition("<UploadId>")[2].partition("</UploadId>")[0]
        body = body_of(key, version, PART + self.rng.choice([48, 70_001]))
        path = f"/bkt/{key}?uploadId={upload}"
        etags = []
        for i, piece in enumerate((body[:PART], body[PART:])):
            got = self.node.request("PUT", f"{path}&partNumber={i + 1}", body=piece)
            if self.expect(got, (200, 507), "part") != 200:
                break
            etags.append(got[1]["etag"])
        if len(etags) < 2 or self.rng.random() < .3:
            return self.expect(self.node.request("DELETE", path), (204,), "abort")
        xml = "".join(f"<Part><PartNumber>{i + 1}</PartNumber><ETag>{etag}</ETag></Part>" for i, etag in enumerate(etags))
        got = self.node.request("POST", path, body=f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode())
        if self.expect(got, (200, 507), "complete") == 507:
            return self.expect(self.node.request("DELETE", path), (204,), "abort")
        return 200


def used(node):
    return node.metric("penstock_device_used_bytes")


def storm(cycles=1, clients=12, **shape):
    with Node(**shape) as node:
        assert node.request("PUT", "/bkt")[0] == 200
        empty = used(node)
        for cycle in range(cycles):
            threads = [Client(node, f"{cycle}/{i}") for i in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            problems = [problem for thread in threads for problem in thread.problems]
            assert not problems, "\n".join(problems[:5]) + "\n" + node.log_text()[-3000:]
        totals = {}
        for thread in threads:
            for what, count in thread.done.items():
                totals[what] = totals.get(what, 0) + count
        print("     " + " ".join(f"{name}:{got}x{count}" for (name, got), count in sorted(totals.items(), key=str)))
        wait_for(lambda: node.metric("penstock_connections_open") == 0, "all connections to end")
        wait_for(lambda: node.metric("penstock_store_puts_in_flight") == 0, "all uploads to end")
        for bucket in ("bkt", "captures"):
            for i in range(12):
                assert node.request("DELETE", f"/{bucket}/k{i}")[0] == 204
        wait_for(lambda: used(node) == empty, f"all space to be free again (used {used(node)}, was {empty})")
        for listener in ("bulk", "pipe"):
            wait_for(lambda: node.metric("penstock_rx_buffers_free", listener=listener) ==
                     node.metric("penstock_rx_buffers_per_worker", listener=listener) * shape.get("workers", 1), "all receive buffers")
        node.stop()
        node.start()
        assert used(node) == empty, (used(node), empty)


@lane.test
def one_worker_with_room():
    storm(size="512MiB")


@lane.test
def little_space_so_that_uploads_are_refused():
    storm(size="40MiB")


@lane.test
def small_buffers_and_the_smallest_area():
    storm(size="256MiB", s3="rx_buffer_size: 4KiB\n    rx_area_size: 64KiB", raw="rx_buffer_size: 4KiB\n    rx_area_size: 64KiB")


@lane.test
def big_buffers_and_the_smallest_area():
    storm(size="256MiB", s3="rx_buffer_size: 1MiB\n    rx_area_size: 8MiB", raw="rx_buffer_size: 1MiB\n    rx_area_size: 8MiB")


@lane.test
def two_workers_md5_etags_and_a_small_staging_pool():
    storm(size="256MiB", workers=2, node="staging_size: 4MiB", s3="etag: md5")

lane.close()
