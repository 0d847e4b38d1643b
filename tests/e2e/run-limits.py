#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The node under peers that are many, slow, silent or sudden: 1,000 connections, stalled uploads beside a healthy one, requests cut at
every byte, a full device, drain, kill -9. Oracle: what was answered 200 reads back bit-exact, everything else is absent."""

import hashlib
import os
import resource
import socket
import subprocess
import threading
import time

from node import Lane, Node, need, wait_for

lane = Lane()
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def receive(sock, ends=lambda data: False):
    data = b""
    while not ends(data):
        piece = sock.recv(65536)
        if not piece:
            break
        data += piece
    return data


def put_head(key, size, more=""):
    return f"PUT /bkt/{key} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n{more}\r\n".encode()


def status(answer):
    return int(answer.split()[1]) if answer else 0


def resident(node):
    with open(f"/proc/{node.process.pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))


def put_rate(node, key, data):
    start = time.monotonic()
    assert node.request("PUT", "/bkt/" + key, body=data, timeout=120)[0] == 200
    return len(data) / (time.monotonic() - start)


@lane.test
def a_thousand_connections_are_served_at_once():
    with Node() as node:
        node.request("PUT", "/bkt")
        socks = [node.connect() for _ in range(1000)]
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") >= 1000, "1,000 connections")
        for i, sock in enumerate(socks):
            sock.sendall(put_head(f"many/{i:04}", 10) + b"%010d" % i)
        answers = [receive(sock, lambda data: b"\r\n\r\n" in data) for sock in socks]
        assert all(status(answer) == 200 for answer in answers)
        for sock in socks:
            sock.close()
        for i in range(0, 1000, 37):
            assert node.request("GET", f"/bkt/many/{i:04}")[2] == b"%010d" % i
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") == 0, "all connections to be gone")


@lane.test
def a_thousand_stalled_uploads_neither_stop_a_healthy_one_nor_take_memory():
    with Node(size="1GiB") as node:
        node.request("PUT", "/bkt")
        data = os.urandom(64 << 20)
        before = resident(node)
        solo = max(put_rate(node, "solo", data) for _ in range(3))
        socks = [node.connect() for _ in range(1000)]
        for i, sock in enumerate(socks):
            sock.sendall(put_head(f"stalled/{i}", 200_000) + b"s" * (1000 + 7 * i))
        wait_for(lambda: node.metric("penstock_uploads_in_flight") == 1000, "1,000 uploads")
        beside = max(put_rate(node, "beside", data) for _ in range(3))
        grown = resident(node) - before
        print(f"     solo {solo / 1e6:.0f} MB/s, beside 1,000 stalled uploads {beside / 1e6:.0f} MB/s, "
              f"resident +{grown / 1e6:.1f} MB")
        assert node.request("GET", "/bkt/beside")[2] == data
        assert beside > solo / 8, "the healthy upload was starved"  # How much slower is for the bench to say
        assert grown < 64 << 20, f"{grown} bytes more"
        for sock in socks:
            sock.close()
        wait_for(lambda: node.metric("penstock_uploads_in_flight") == 0, "stalled uploads to be given up")
        wait_for(lambda: node.metric("penstock_rx_buffers_free", listener="bulk") ==
                 node.metric("penstock_rx_buffers_per_worker", listener="bulk"), "every receive buffer to be free")


@lane.test
def requests_cut_at_every_byte_are_answered_alike():
    with Node() as node:
        node.request("PUT", "/bkt")
        stream = (put_head("cut", 5, "x-amz-meta-a: b\r\n") + b"hello" +
                  b"PUT /bkt/chunky HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n" +
                  b"GET /bkt/chunky HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        for cut in range(1, len(stream)):
            with node.connect() as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(stream[:cut])
                seen = node.metric("penstock_received_bytes_total", listener="bulk") if cut % 50 == 0 else None
                if seen is not None:
                    wait_for(lambda: node.metric("penstock_received_bytes_total", listener="bulk") >= seen, "the first piece")
                sock.sendall(stream[cut:])
                answer = receive(sock)
            assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3 and answer.endswith(b"\r\n\r\nabcdefg"), (cut, answer)


@lane.test
def a_reset_at_every_byte_of_an_upload_leaves_nothing():
    import struct
    with Node() as node:
        node.request("PUT", "/bkt")
        stream = put_head("reset", 5) + b"hello"
        for cut in range(len(stream)):
            sock = node.connect()
            sock.sendall(stream[:cut])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") == 0, "the connections to be gone")
        assert node.request("HEAD", "/bkt/reset")[0] == 404
        assert node.metric("penstock_store_puts_in_flight") == 0


@lane.test
def uploads_given_up_while_they_are_hashed_keep_nothing():
    import struct
    with Node() as node:
        node.request("PUT", "/bkt")
        body = os.urandom(1 << 20)
        for i in range(60):
            sock = node.connect()
            sock.sendall(put_head("hashed", 2 * len(body), f"x-amz-content-sha256: {64 * '0'}\r\n") + body)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") == 0, "the connections to be gone")
        node.terminate()
        assert node.wait(15) == 0  # A drain ends when nothing is held any more
        node.start()


@lane.test
def peers_that_send_ahead_and_read_nothing_do_not_take_all_receive_buffers():
    with Node(s3="rx_buffer_size: 128KiB\n    rx_area_size: 1MiB") as node:
        node.request("PUT", "/bkt")
        body = os.urandom(16 << 20)
        assert node.request("PUT", "/bkt/big", body=body)[0] == 200
        socks = [node.connect() for _ in range(24)]
        for sock in socks:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(b"GET /bkt/big HTTP/1.1\r\nHost: h\r\n\r\n" * 2)
        wait_for(lambda: node.metric("penstock_rx_buffers_free", listener="bulk") == 0, "the buffers to be taken")
        assert node.request("PUT", "/bkt/other", body=body, timeout=10)[0] == 200
        assert node.metric("penstock_limits_hit_total", limit="sent_ahead") > 0
        for sock in socks:
            sock.close()


@lane.test
def a_connection_holds_no_more_receive_buffers_than_allowed_and_still_uploads():
    """Buffers of a bound do not fill a device write: what is there has to be written, or the upload would wait for room it holds itself."""
    body = os.urandom(8 << 20)
    peaks = {}
    for most in (2, 5, 0):
        with Node(s3="rx_buffer_size: 4KiB\n    rx_area_size: 1MiB", limits=f"buffers_per_connection_max: {most}") as node:
            total = node.metric("penstock_rx_buffers_per_worker", listener="bulk")
            node.request("PUT", "/bkt")
            wait_for(lambda: node.metric("penstock_rx_buffers_free", listener="bulk") == total, "every buffer to be free")
            assert node.request("PUT", "/bkt/key", body=body)[0] == 200
            assert node.request("GET", "/bkt/key")[2] == body
            peaks[most] = total - node.metric("penstock_rx_buffers_free_low", listener="bulk")
    assert 1 <= peaks[2] <= 2 and 1 <= peaks[5] <= 5 and peaks[0] > 5, peaks


@lane.test
def early_errors_reach_clients_that_send_on():
    with Node() as node:
        body = b"x" * (8 << 20)
        for more in ("", "Expect: 100-continue\r\n"):
            with node.connect() as sock:
                sock.sendall(put_head("key", len(body), more) + body)
                answer = receive(sock)
            assert status(answer) == 404 and b"NoSuchBucket" in answer and b"Connection: close" in answer, answer[:500]


@lane.test
def a_full_device_is_507_for_every_client_and_ingest_resumes():
    with Node(size="64MiB") as node:
        node.request("PUT", "/bkt")
        piece = os.urandom(4 << 20)
        kept = []
        for i in range(40):
            got, _, body = node.request("PUT", f"/bkt/fill-{i}", body=piece)
            if got != 200:
                assert got == 507 and b"InsufficientStorage" in body, (got, body)
                break
            kept.append(f"fill-{i}")
        else:
            raise AssertionError("the device never filled")
        said = [line for line in node.log_text().splitlines() if "event=device_full" in line]
        assert len(said) == 1 and "store.img" in said[0] and "free_bytes=" in said[0] and "size_bytes=" in said[0], said
        assert node.metric("penstock_device_full") == 1 and node.metric("penstock_limits_hit_total", limit="space") > 0
        answers = []

        def push(more):
            with node.connect(timeout=60) as sock:
                sock.sendall(put_head("more", len(piece), more))
                if more:
                    answers.append(receive(sock))
                    return
                sock.sendall(piece)
                answers.append(receive(sock))
        threads = [threading.Thread(target=push, args=(more,)) for more in ("", "Expect: 100-continue\r\n") * 8]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [status(answer) for answer in answers] == [507] * 16, answers
        stream = subprocess.run([need("curl"), "-sS", "--max-time", "60", "-T", "-", node.url + "/bkt/stream"],
                                input=os.urandom(80 << 20), capture_output=True)
        assert b"InsufficientStorage" in stream.stdout, stream
        upload = node.request("POST", "/bkt/parts?uploads")[2].decode().partition("<UploadId>")[2].partition("</UploadId>")[0]
        for headers in ({}, {"Transfer-Encoding": "chunked"}):  # Refused before a byte, and in the middle
            body = piece if not headers else b"%x\r\n" % (80 << 20) + bytes(80 << 20)
            with node.connect(timeout=60) as sock:
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()) or f"Content-Length: {len(body)}\r\n"
                sock.sendall(f"PUT /bkt/parts?partNumber=1&uploadId={upload} HTTP/1.1\r\nHost: h\r\n{lines}\r\n".encode() + body)
                answer = receive(sock)
            assert status(answer) == 507 and b"InsufficientStorage" in answer, answer[:300]
        assert b"<Part>" not in node.request("GET", f"/bkt/parts?uploadId={upload}")[2]
        assert node.request("GET", "/bkt/fill-0")[2] == piece
        for key in kept[: len(kept) // 2]:
            assert node.request("DELETE", "/bkt/" + key)[0] == 204
        wait_for(lambda: node.request("PUT", "/bkt/again", body=piece)[0] == 200, "space to be usable again")
        assert node.request("GET", "/bkt/again")[2] == piece
        assert node.log_text().count("event=device_full") == 1, "said once, however many uploads were refused"
        assert node.log_text().count("event=device_has_space") == 1 and node.metric("penstock_device_full") == 0
        assert node.request("PUT", "/bkt/huge", headers={"Content-Length": str(1 << 40)})[0] == 507
        assert node.metric("penstock_device_full") == 0, "too much at once is not the device's fault"


@lane.test
def announced_sizes_take_no_space_and_what_cannot_fit_is_507_at_once():
    with Node(size="256MiB") as node:
        node.request("PUT", "/bkt")
        got, _, body = node.request("PUT", "/bkt/huge", body=b"", headers={"Content-Length": str(1 << 40), "Expect": "100-continue"})
        assert got == 507 and b"InsufficientStorage" in body, (got, body)
        socks = [node.connect() for _ in range(60)]
        for i, sock in enumerate(socks):
            sock.sendall(put_head(f"stalled/{i}", 150 << 20) + b"s" * (2000 + 5 * i))
        wait_for(lambda: node.metric("penstock_uploads_in_flight") == 60, "60 uploads")
        data = os.urandom(100 << 20)  # 60 x 150 MiB are announced, 100 of 256 MiB are needed
        assert node.request("PUT", "/bkt/real", body=data, timeout=120)[0] == 200
        assert node.metric("penstock_device_used_bytes") < (100 + 61) << 20
        for sock in socks:
            sock.close()
        wait_for(lambda: node.metric("penstock_device_used_bytes") < 101 << 20, "what they held to be free")
        assert node.request("GET", "/bkt/real")[2] == data


@lane.test
def a_drain_finishes_uploads_and_exits_with_0():
    with Node() as node:
        node.request("PUT", "/bkt")
        busy, idle = node.connect(), node.connect()
        busy.sendall(put_head("drained", 10) + b"hello")
        wait_for(lambda: node.metric("penstock_uploads_in_flight") == 1, "the upload to begin")
        node.terminate()
        assert idle.recv(10) == b""
        wait_for(lambda: node.admin("/readyz")[0] != 200, "the node not to be ready")
        busy.sendall(b"there")
        answer = receive(busy)
        assert status(answer) == 200 and b"Connection: close" in answer, answer
        busy.close()
        assert node.wait() == 0
        node.start()
        assert node.request("GET", "/bkt/drained")[2] == b"hellothere"


@lane.test
def a_drain_past_its_timeout_resets_what_is_left():
    with Node(node="drain_timeout: 1s") as node:
        node.request("PUT", "/bkt")
        with node.connect() as sock:
            sock.sendall(put_head("never", 10) + b"hello")
            wait_for(lambda: node.metric("penstock_uploads_in_flight") == 1, "the upload to begin")
            node.terminate()
            try:
                assert sock.recv(100) == b""
            except ConnectionResetError:
                pass
        assert node.wait() == 0
        node.start()
        assert node.request("HEAD", "/bkt/never")[0] == 404


@lane.test
def a_reader_sees_one_version_while_it_is_overwritten_and_deleted():
    with Node(size="128MiB") as node:
        node.request("PUT", "/bkt")
        old = os.urandom(12 << 20)  # More than socket buffers hold, so that the reader is still at it.
        assert node.request("PUT", "/bkt/key", body=old)[0] == 200
        with node.connect(timeout=60) as sock:
            sock.sendall(b"GET /bkt/key HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            first = sock.recv(1000)
            for i in range(12):
                assert node.request("PUT", "/bkt/key", body=os.urandom(12 << 20))[0] in (200, 507)
            assert node.request("DELETE", "/bkt/key")[0] == 204
            for i in range(8):
                node.request("PUT", f"/bkt/other-{i}", body=os.urandom(8 << 20))
            answer = first + receive(sock)
        body = answer.partition(b"\r\n\r\n")[2]
        assert hashlib.sha256(body).digest() == hashlib.sha256(old).digest()


@lane.test
def what_was_answered_200_survives_kill_9():
    with Node(size="256MiB") as node:
        node.request("PUT", "/bkt")
        acked, lock = {}, threading.Lock()
        for cycle in range(5):
            def push(worker):
                for i in range(1000):
                    key, data = f"{cycle}-{worker}-{i}", os.urandom(1000 + 7919 * worker)
                    try:
                        if node.request("PUT", "/bkt/" + key, body=data, timeout=10)[0] == 200:
                            with lock:
                                acked[key] = hashlib.sha256(data).digest()
                    except OSError:
                        return
                    except Exception:
                        return
            threads = [threading.Thread(target=push, args=(worker,)) for worker in range(4)]
            for thread in threads:
                thread.start()
            want = 40 * (cycle + 1)
            wait_for(lambda: len(acked) >= want, f"{want} objects")
            node.process.kill()
            node.process.wait()
            for thread in threads:
                thread.join()
            node.start()
        for key, digest in acked.items():
            got, _, body = node.request("GET", "/bkt/" + key)
            assert got == 200 and hashlib.sha256(body).digest() == digest, key
        assert node.metric("penstock_objects") >= len(acked)

@lane.test
def a_soft_limit_of_open_files_does_not_limit_connections():
    class Limited(Node):
        command = ["prlimit", "--nofile=128:4096", *Node.command]
    with Limited() as node:
        socks = [node.connect() for _ in range(400)]
        for sock in socks:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert all(sock.recv(12) == b"HTTP/1.1 200" for sock in socks)
        for sock in socks:
            sock.close()


lane.close()
