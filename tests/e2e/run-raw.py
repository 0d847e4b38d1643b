#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Raw streams over real sockets: nc, the preamble, and every way a stream can end without being complete."""

import os
import socket
import struct
import subprocess

from node import Lane, Node, need, wait_for

lane = Lane()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def send(data, reset=False):
    """Sends a stream and returns the answer line ("" when there is none)."""
    sock = node.connect(raw=True)
    sock.sendall(data)
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        return ""
    sock.shutdown(socket.SHUT_WR)
    answer = b""
    while True:
        piece = sock.recv(65536)
        if not piece:
            break
        answer += piece
    sock.close()
    return answer.decode()


def stored():
    body = node.request("GET", "/captures?list-type=2")[2].decode()
    return body.count("<Key>")


with Node(limits="body_timeout: 1s") as node:
    payload = os.urandom(700_001)

    @lane.test
    def nc_lands_an_object_and_prints_its_line():
        done = subprocess.run([need("nc"), "-N", "127.0.0.1", str(node.raw_port)], input=payload, capture_output=True,
                              timeout=30)
        fields = dict(field.split("=", 1) for field in done.stdout.decode().split())
        assert fields["size"] == str(len(payload)), done
        assert node.request("GET", "/captures/" + fields["key"])[2] == payload
        assert int(fields["crc32c"], 16) == crc32c(payload)

    @lane.test
    def the_bucket_was_there_from_the_start():
        assert node.request("HEAD", "/captures")[0] == 200

    @lane.test
    def a_preamble_that_is_kept_stores_under_its_key():
        crc = crc32c(b"hello")
        answer = send(f"PENSTOCK/1 key=dir/a%20b size=5 crc32c={crc:08x}\nhello".encode())
        assert answer == f"key=dir/a%20b size=5 crc32c={crc:08x}\n", answer
        assert node.request("GET", "/captures/dir/a%20b")[2] == b"hello"

    @lane.test
    def a_preamble_that_is_broken_stores_nothing():
        before = stored()
        for stream, want in ((b"PENSTOCK/1 key=x size=6\nhello", "IncompleteBody the stream has not the size="),
                             (b"PENSTOCK/1 key=x size=4\nhello", "IncompleteBody the stream has not the size="),
                             (b"PENSTOCK/1 key=x crc32c=00000000\nhello", "BadDigest"),
                             (b"PENSTOCK/1 what=x\nhello", "InvalidRequest"),
                             (b"PENSTOCK/1 ", "IncompleteBody"), (b"PENSTOCK/1 key=x size=5", "IncompleteBody"),
                             (b"PENSTOCK/1 key=%ff%fe\nhello", "InvalidRequest"), (b"PENSTOCK/1 key=\xff\nhello", "InvalidRequest"),
                             (b"PENSTOCK/1 key=\nhello", "InvalidRequest"), (b"PENSTOCK/1 size=-5\nhello", "InvalidRequest"),
                             (b"PENSTOCK/1 size=5 size=6\nhello", "InvalidRequest"),
                             (b"PENSTOCK/1 size=99999999999999999999\nhello", "InvalidRequest"),
                             (b"PENSTOCK/1 key=" + b"a" * 1025 + b"\nhello", "InvalidRequest"),
                             (b"PENSTOCK/1 key=" + b"a" * 100_000, "RequestHeaderSectionTooLarge")):
            answer = send(stream)
            assert answer.startswith("error=" + want), (stream, answer)
        assert stored() == before

    @lane.test
    def a_reset_before_fin_stores_nothing():
        before, resets = stored(), node.metric("penstock_connections_reset_total", listener="pipe")
        send(payload, reset=True)
        wait_for(lambda: node.metric("penstock_connections_reset_total", listener="pipe") > resets, "the reset to be seen")
        wait_for(lambda: node.metric("penstock_store_puts_in_flight") == 0, "the upload to be given up")
        assert stored() == before

    @lane.test
    def a_timeout_before_fin_stores_nothing():
        before = stored()
        with node.connect(raw=True) as sock:
            sock.sendall(b"half")
            assert sock.recv(1000).startswith(b"error=RequestTimeout")
        assert stored() == before

    @lane.test
    def a_connection_without_a_byte_stores_nothing():
        before = stored()
        assert send(b"") == ""
        assert stored() == before

    @lane.test
    def many_streams_at_once_get_keys_of_their_own():
        before = stored()
        socks = [node.connect(raw=True) for _ in range(50)]
        for i, sock in enumerate(socks):
            sock.sendall(b"stream %d" % i)
        keys = set()
        for sock in socks:
            sock.shutdown(socket.SHUT_WR)
            keys.add(sock.recv(1000).split()[0])
            sock.close()
        assert len(keys) == 50 and stored() == before + 50

lane.close()
