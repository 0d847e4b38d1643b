#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peers that ask for much and do not read, on a node with few buffers: whoever reads is served all the same, and those who begin to read
later get every byte. Objects, ranges, compressed objects, listings and multi-deletes. No rate is compared: a healthy request either ends
within its deadline, which is shorter than every timeout of the node, or was starved."""

import hashlib
import os
import random
import resource
import socket

from node import Lane, Node, wait_for

lane = Lane()
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
DEADLINE = 200  # s; send_timeout and body_timeout are longer, so what they free comes too late


def stalled(node, request):
    """A connection that has sent `request` and reads nothing: the kernel's buffers fill, some MiB on loopback, then it stands."""
    sock = node.connect(timeout=DEADLINE)
    sock.sendall(request)
    return sock


def read_raw(sock):
    """Everything up to FIN."""
    pieces = []
    while piece := sock.recv(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def read_all(sock):
    """Everything up to FIN: (head, body), the body without its chunks."""
    head, _, body = read_raw(sock).partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return head, body
    plain = b""
    while True:
        line, _, body = body.partition(b"\r\n")
        size = int(line, 16)
        if size == 0:
            assert body == b"\r\n", body[:100]
            return head, plain
        assert body[size:size + 2] == b"\r\n"
        plain, body = plain + body[:size], body[size + 2:]


def get_head(path, more=""):
    return f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{more}\r\n".encode()


def recalled(node):
    return node.metric("penstock_sends_recalled_total", listener="bulk")


@lane.test
def a_hundred_stalled_readers_stop_nobody_and_lose_nothing():
    with Node(node="staging_size: 4MiB", limits="send_timeout: 600s") as node:
        node.request("PUT", "/bkt")
        data = random.Random(1).randbytes(16 << 20)
        assert node.request("PUT", "/bkt/large", body=data)[0] == 200
        asked = []
        for i in range(100):
            first = 0 if i % 2 == 0 else 1000 + 4099 * i
            sock = stalled(node, get_head("/bkt/large", f"Range: bytes={first}-\r\n" if first > 0 else ""))
            asked.append((first, sock))
        wait_for(lambda: node.metric("penstock_downloads_in_flight") == 100, "100 downloads", DEADLINE)
        wait_for(lambda: recalled(node) >= 1, "a reader to be passed over", DEADLINE)
        for _ in range(2):
            got, _, body = node.request("GET", "/bkt/large", timeout=DEADLINE)
            assert got == 200 and body == data
        assert node.metric("penstock_downloads_in_flight") == 100, "the stalled ones are still there"
        for first, sock in asked[::50] + asked[1::50]:
            head, body = read_all(sock)
            assert head.startswith(b"HTTP/1.1 20") and hashlib.sha256(body).digest() == hashlib.sha256(data[first:]).digest()
        for _, sock in asked:
            sock.close()
        print(f"     {recalled(node):.0f} sends recalled")
        wait_for(lambda: node.metric("penstock_downloads_in_flight") == 0, "downloads to end")


@lane.test
def stalled_readers_of_compressed_objects_give_their_streams_to_others():
    with Node(node="compression_streams: 4", s3="compression: { type: zstd }", limits="send_timeout: 600s") as node:
        node.request("PUT", "/bkt")
        words = [os.urandom(12).hex() for _ in range(4000)]
        data = " ".join(random.Random(2).choices(words, k=320_000)).encode()
        assert node.request("PUT", "/bkt/text", body=data)[0] == 200
        assert node.request("HEAD", "/bkt/text")[1].get("x-penstock-stored-as") == "zstd"
        asked = []
        for i in range(12):
            first = 0 if i % 2 == 0 else 333_333 * i % 3_000_000
            asked.append((first, stalled(node, get_head("/bkt/text", f"Range: bytes={first}-\r\n"))))
        wait_for(lambda: node.metric("penstock_downloads_in_flight") == 12, "the downloads", DEADLINE)
        for _ in range(2):
            got, _, body = node.request("GET", "/bkt/text", timeout=DEADLINE)
            assert got == 200 and body == data
        assert recalled(node) > 0
        for first, sock in asked[::5]:
            head, body = read_all(sock)
            assert head.startswith(b"HTTP/1.1 206") and body == data[first:], (first, len(body))
        for _, sock in asked:
            sock.close()  # Else the drain at the end waits for those who still stall.


@lane.test
def stalled_readers_of_listings_give_their_blocks_to_others():
    with Node(limits="send_timeout: 600s") as node:
        node.request("PUT", "/bkt")
        keys = [f"{i:03}-" + "k" * 900 for i in range(700)]
        for start in range(0, len(keys), 100):
            with node.connect() as sock:
                put = b"".join(f"PUT /bkt/{key} HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx".encode() for key in keys[start:start + 99])
                put += f"PUT /bkt/{keys[start + 99]} HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx".encode()
                sock.sendall(put)
                assert read_all(sock)[1].count(b"HTTP/1.1 200 OK") == 99
        want = node.request("GET", "/bkt?list-type=2")[2]
        assert want.count(b"<Key>") == 700 and len(want) > 600_000
        # Requests behind each other, so that the kernel's buffers cannot hold the answers.
        count, each = 34, 6
        pipeline = get_head("/bkt?list-type=2").replace(b"Connection: close\r\n", b"") * (each - 1) + get_head("/bkt?list-type=2")
        socks = [stalled(node, pipeline) for _ in range(count)]
        wait_for(lambda: recalled(node) > 0, "a listing to be passed over", DEADLINE)
        for _ in range(2):
            got, _, body = node.request("GET", "/bkt?list-type=2", timeout=DEADLINE)
            assert got == 200 and body == want
        for sock in socks[::13]:
            rest = read_raw(sock)
            plain = 0
            for _ in range(each):
                head, _, rest = rest.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 OK") and b"chunked" in head, head
                body = b""
                while True:
                    line, _, rest = rest.partition(b"\r\n")
                    size = int(line, 16)
                    body, rest = body + rest[:size], rest[size + 2:]
                    if size == 0:
                        break
                assert body == want, (plain, len(body), len(want))
                plain += 1
            assert rest == b""
        for sock in socks:
            sock.close()


@lane.test
def stalled_multi_deletes_do_not_keep_others_from_deleting():
    with Node(limits="body_timeout: 600s") as node:
        node.request("PUT", "/bkt")
        assert node.request("PUT", "/bkt/key", body=b"x")[0] == 200
        socks = [stalled(node, b"POST /bkt?delete HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n<Delete>") for _ in range(8)]
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") == 8, "the connections")
        xml = "<Delete><Object><Key>key</Key></Object></Delete>"
        got, _, body = node.request("POST", "/bkt?delete", body=xml, timeout=DEADLINE)
        assert got == 200 and b"<Deleted><Key>key</Key>" in body, (got, body)
        assert node.metric("penstock_limits_hit_total", limit="stuck") > 0
        for sock in socks:
            sock.close()
        assert node.request("HEAD", "/bkt/key")[0] == 404

lane.close()
