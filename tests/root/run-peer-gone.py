#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peers that vanish without a word. Node and clients live in two network namespaces; what the node sends is led to a hardware address that
nobody has, so that the peer hears nothing while its own packets still arrive. An idle connection is given up by tcp_keepalive, one with an
answer under way by tcp_user_timeout, and nothing else ends it: beside each is a listener without that limit, whose connection stays."""

import ctypes
import os
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from node import Lane, Node, wait_for  # noqa: E402 (the folder is another lane's)

HERE, THERE = f"psg{os.getpid()}s", f"psg{os.getpid()}c"
lane = Lane()
libc = ctypes.CDLL(None, use_errno=True)


def ip(*arguments, netns=HERE):
    subprocess.run(["ip", "-n", netns, *arguments], check=True, capture_output=True)


def enter(name):
    """This thread's network namespace; sockets stay in the one where they were made."""
    fd = os.open("/run/netns/" + name, os.O_RDONLY)
    try:
        if libc.setns(fd, 0x40000000) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(fd)


class There(Node):
    host = "10.79.0.1"

    def __init__(self, with_limit, without):
        """The listener to test, and one without its limit for comparison. Our own deadlines are far away."""
        appear()
        others = "head_timeout: 600s, idle_timeout: 600s, send_timeout: 600s, body_timeout: 600s"
        self.plain_port = 18999
        super().__init__(limits=f"{with_limit}, {others}", s3="allow_remote_anonymous: true", listeners=f"""
  - {{ name: without, protocol: s3, address: "10.79.0.1:{self.plain_port}", access: anonymous, allow_remote_anonymous: true,
      limits: {{ {without}, {others} }} }}""")

    def connect_from_there(self, port):
        enter(THERE)
        try:
            return socket.create_connection((self.host, port), timeout=60)
        finally:
            enter(HERE)

    def open(self, listener):
        return self.metric("penstock_connections_open", listener=listener)


def vanish():
    ip("neigh", "replace", "10.79.0.2", "lladdr", "02:00:0a:4f:00:99", "dev", "x0", "nud", "permanent")


def appear():
    ip("neigh", "replace", "10.79.0.2", "lladdr", "02:00:0a:4f:00:02", "dev", "x0", "nud", "permanent")


def both_connected(node):
    socks = [node.connect_from_there(port) for port in (node.s3_port, node.plain_port)]
    wait_for(lambda: node.open("bulk") == 1 and node.open("without") == 1, "both connections")
    return socks


def gone_and_the_other_stays(node, socks):
    wait_for(lambda: node.open("bulk") == 0, "the connection to be given up", 60)
    assert node.metric("penstock_connections_reset_total", listener="bulk") == 1
    assert node.open("without") == 1, "without the limit nothing ends it"
    for sock in socks:
        sock.close()


def test_all():
    @lane.test
    def an_idle_peer_that_is_gone_is_given_up_by_tcp_keepalive():
        with There("tcp_keepalive: 1s, tcp_user_timeout: 0", "tcp_keepalive: 0, tcp_user_timeout: 0") as node:
            socks = both_connected(node)
            vanish()
            gone_and_the_other_stays(node, socks)

    @lane.test
    def an_idle_peer_that_answers_is_kept():
        with There("tcp_keepalive: 1s, tcp_user_timeout: 1s", "tcp_keepalive: 0, tcp_user_timeout: 0") as node:
            with node.connect_from_there(node.s3_port) as sock:
                wait_for(lambda: keepalives_seen() >= 3, "three probes to be answered")
                assert node.open("bulk") == 1
                sock.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                assert sock.recv(12) == b"HTTP/1.1 200"

    @lane.test
    def a_peer_that_acknowledges_nothing_is_given_up_by_tcp_user_timeout():
        with There("tcp_keepalive: 0, tcp_user_timeout: 1s", "tcp_keepalive: 0, tcp_user_timeout: 0") as node:
            socks = both_connected(node)
            vanish()
            for sock in socks:
                sock.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            gone_and_the_other_stays(node, socks)


def keepalives_seen():
    """Probes that this namespace's TCP has sent."""
    out = subprocess.run(["ip", "netns", "exec", HERE, "nstat", "-asz", "TcpExtTCPKeepAlive"], check=True, capture_output=True, text=True)
    return int(out.stdout.split()[-2])


try:
    try:
        for name in (HERE, THERE):
            subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        print(f"SKIP peer-gone: host: no network namespaces: {error.stderr.decode().strip()}\n0 passed, 0 failed, 1 skipped")
        sys.exit(0)
    ip("link", "set", "lo", "up")
    ip("link", "add", "x0", "address", "02:00:0a:4f:00:01", "type", "veth", "peer", "name", "x1", "netns", THERE, "address",
       "02:00:0a:4f:00:02")
    ip("addr", "add", "10.79.0.1/24", "dev", "x0")
    ip("addr", "add", "10.79.0.2/24", "dev", "x1", netns=THERE)
    ip("link", "set", "x0", "up")
    ip("link", "set", "x1", "up", netns=THERE)
    appear()
    enter(HERE)
    test_all()
    lane.close()
finally:
    for name in (HERE, THERE):
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
