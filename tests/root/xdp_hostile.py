# SPDX-License-Identifier: Apache-2.0
"""xdp_hostile.py PORT ADMIN [ATTACK...]: peers of bad manners against a node with `receive: af_xdp`, forged frame by frame on x1.

The forged peers have addresses that no kernel here has, so nothing answers for them but this program. While an attack holds whatever it
could get, a client of the kernel uploads and downloads beside it, bit-exact; afterwards connections and frames come back. One line for each
test, as the lanes print them.
"""
import hashlib
import http.client
import random
import re
import socket
import struct
import sys
import threading
import time
import urllib.request

FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32
EDGE = 1 << 32
SERVER, HERE = "10.78.0.1", "10.78.0.2"
SERVER6 = "fd78::1"
MAC_SERVER, MAC_HERE = bytes.fromhex("02000a4e0001"), bytes.fromhex("02000a4e0002")
PORT, ADMIN = int(sys.argv[1]), sys.argv[2]
failed = []


def result(name, good, why=""):
    print(("ok   " if good else "FAIL ") + name + ("" if good else f": {why}"), flush=True)
    if not good:
        failed.append(name)


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def checksum(data):
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def tcp_bytes(source, dest, port, to, seq, ack, flags, window, options=b"", payload=b""):
    options += b"\0" * (-len(options) % 4)
    data = struct.pack("!HHIIBBHHH", port, to, seq % EDGE, ack % EDGE, (20 + len(options)) // 4 << 4, flags, window, 0, 0)
    data += options + payload
    tail = struct.pack("!HH", 6, len(data)) if len(source) == 4 else struct.pack("!II", len(data), 6)
    return data[:16] + struct.pack("!H", checksum(source + dest + tail + data)) + data[18:]


def ip4(source, dest, data, proto=6, fragment=0x4000):
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(data), 7, fragment, 64, proto, 0) + source + dest
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + data


def ip6(source, dest, data, proto=6):
    return struct.pack("!IHBB", 0x60000000, len(data), proto, 64) + source + dest + data


def ethernet(data, tags=b"", source=MAC_HERE, dest=MAC_SERVER):
    kind = b"\x08\0" if data[0] >> 4 == 4 else b"\x86\xdd"
    return dest + source + tags + kind + data


def address(text):
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


class Wire:
    """Everything that the node sends to addresses that are nobody's is noted by peer."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        self.socket.bind(("x1", 0))
        self.peers, self.unknown = {}, 0
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            frame, (_, _, kind, _, _) = self.socket.recvfrom(2048)
            if kind == socket.PACKET_OUTGOING or len(frame) < 54 or frame[12:14] != b"\x08\0" or frame[23] != 6:
                continue
            port = struct.unpack_from("!H", frame, 36)[0]
            peer = self.peers.get((frame[30:34], port))
            if peer is not None:
                peer.heard(frame)
            elif frame[30:34] != socket.inet_aton(HERE):
                self.unknown += 1

    def send(self, frame):
        while True:
            try:
                self.socket.send(frame)
                return
            except (BlockingIOError, OSError) as error:
                if error.errno not in (11, 105):
                    raise


class Peer:
    """One connection, every number of which is ours to choose."""
    count = 0

    def __init__(self, wire, options=b"\2\4\5\xb4\4\2", window=65535, shift=0):
        Peer.count += 1
        self.wire, self.options, self.window, self.shift = wire, options, window, shift
        self.ip = socket.inet_aton(f"10.78.{1 + Peer.count // 200 % 200}.{1 + Peer.count % 200}")
        self.port = 1024 + Peer.count
        self.isn = random.getrandbits(32)
        self.seq, self.next, self.acked, self.offered = self.isn, 0, None, 0
        self.synack = self.reset = self.fin = False
        self.first = None  # the node's first byte
        self.got, self.answers = {}, 0
        self.auto = None  # called for each segment with data
        wire.peers[(self.ip, self.port)] = self

    def heard(self, frame):
        total = struct.unpack_from("!H", frame, 16)[0]
        seq, ack, offset, flags, window = struct.unpack_from("!IIBBH", frame, 38)
        data = frame[34 + (offset >> 4) * 4:14 + total]
        self.answers += 1
        if flags & RST:
            self.reset = True
            return
        if flags & SYN:
            self.first = self.next = (seq + 1) % EDGE
            self.synack = True
        self.acked, self.offered = ack, window
        if data:
            self.got.setdefault((seq - self.first) % EDGE, data)
        end = (seq + len(data) + bool(flags & FIN)) % EDGE
        if not flags & SYN and (end - self.next) % EDGE < EDGE // 2:
            self.next = end
        self.fin |= bool(flags & FIN)
        if self.auto is not None and (data or flags & FIN):
            self.auto(self)

    def frame(self, flags, seq, payload=b"", ack=None, options=b"", window=None):
        ack = self.next if ack is None else ack
        window = self.window if window is None else window
        return ethernet(ip4(self.ip, socket.inet_aton(SERVER), tcp_bytes(
            self.ip, socket.inet_aton(SERVER), self.port, PORT, seq, ack if flags & ACK else 0, flags, window, options, payload)))

    def say(self, flags=ACK, seq=None, payload=b"", **more):
        self.wire.send(self.frame(flags, self.seq if seq is None else seq, payload, **more))

    def syn(self):
        self.seq = self.isn
        self.say(SYN, options=self.options)

    def opened(self):
        self.syn()
        for _ in range(5):
            if wait_for(lambda: self.synack or self.reset, 2):
                break
            self.syn()
        if self.synack:
            self.seq = self.isn + 1
            self.say()
        return self.synack

    def tell(self, data):
        """The next bytes, and again until they are acknowledged."""
        start = self.seq
        self.seq += len(data)
        for _ in range(20):
            for at in range(0, len(data), 1400):
                self.say(ACK | PSH, start + at, data[at:at + 1400])
            if wait_for(lambda: self.reset or (self.acked is not None and (self.acked - self.seq) % EDGE < EDGE // 2), 0.5):
                return not self.reset
        return False

    def put(self, key, size):
        return self.tell(f"PUT /bucket/{key} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())

    def get(self, key):
        return self.tell(f"GET /bucket/{key} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    def stream(self):
        whole, at = b"", 0
        while at in self.got:
            whole += self.got[at]
            at += len(self.got[at])
        return whole

    def gone(self):
        self.say(RST | ACK, self.acked if self.acked is not None else self.seq)
        self.wire.peers.pop((self.ip, self.port), None)


def metrics():
    with urllib.request.urlopen(f"http://{ADMIN}/metrics", timeout=20) as answer:
        return dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))


def metric(pattern):
    return sum(float(value) for name, value in metrics().items() if re.search(pattern, name))


def held(state):
    return metric(rf'^penstock_xdp_held.*state="{state}"')


def tcp(event):
    return metric(rf'^penstock_xdp_tcp_total.*event="{event}"')


def request(method, key, body=None, host=SERVER):
    connection = http.client.HTTPConnection(host, PORT, timeout=60)
    try:
        connection.request(method, f"/bucket/{key}", body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


BODY = random.Random(1).randbytes(1_500_011)


def normal(name, host=SERVER):
    """A client as any other, while all of that goes on."""
    start, why, good = time.monotonic(), "", False
    try:
        status, _ = request("PUT", "normal", BODY, host)
        again, body = request("GET", "normal", None, host)
        good, why = status == 200 and again == 200 and body == BODY, f"{status} {again} {len(body)}"
    except OSError as error:
        why = repr(error)
    result(f"{name}: a client beside it is served bit-exact", good, why)
    print(f"     {time.monotonic() - start:.2f} s", file=sys.stderr, flush=True)


def recovered(name, peers):
    for peer in peers:
        peer.gone()
    seen = tcp("frames_in")  # what is shown may be a second old
    request("HEAD", "normal")
    wait_for(lambda: tcp("frames_in") > seen)
    good = wait_for(lambda: held("conns") == 0 and held("frames_held") == 0)
    result(f"{name}: connections and frames come back", good, f"conns {held('conns')} frames_held {held('frames_held')}")


# ---- attacks: each returns its peers while they hold on ----

def many(wire, count, **more):
    peers = [Peer(wire, **more) for _ in range(count)]
    for peer in peers:
        peer.syn()
    wait_for(lambda: all(peer.synack for peer in peers), 3)
    for peer in peers:
        if peer.synack or peer.opened():
            peer.seq = peer.isn + 1
            peer.say()
    return [peer for peer in peers if peer.synack]


def tiny(wire):
    """One byte in a frame, as much as is let in."""
    peers = many(wire, 24)
    for peer in peers:
        peer.put("tiny", 1 << 20)
    for at in range(400):
        for peer in peers:
            peer.say(ACK, peer.seq + at, b"t")
    return peers


def tiny_head(wire):
    """A head that never ends, byte by byte."""
    peers = many(wire, 24)
    for at, byte in enumerate(b"GET /bucket/x HTTP/1.1\r\nHost: x\r\nX-Long: " + b"y" * 300):
        for peer in peers:
            peer.say(ACK, peer.seq + at, bytes([byte]))
    return peers


def holes(wire):
    """Everything but the first byte, as far as the window goes."""
    peers = many(wire, 48)
    for peer in peers:
        peer.put("holes", 1 << 30)
    for at in range(1, 60001, 1200):
        for peer in peers:
            peer.say(ACK, peer.seq + at, b"h" * 1199)
    return peers


def pinned(wire):
    """Holes with a hole between any two bytes."""
    peers = many(wire, 48)
    for peer in peers:
        peer.put("pinned", 1 << 30)
    for at in range(1, 600, 2):
        for peer in peers:
            peer.say(ACK, peer.seq + at, b"p")
    return peers


def halves(wire):
    """Half of a body, in order, and then silence."""
    peers = many(wire, 48)
    for peer in peers:
        peer.put("halves", 1 << 20)
    for at in range(0, 50000, 1000):
        for peer in peers:
            peer.say(ACK, peer.seq + at, b"b" * 1000)
    return peers


def zero_window(wire):
    """An answer is asked for and nothing of it taken."""
    peers = many(wire, 48)
    for peer in peers:
        peer.window = 0
        peer.get("normal")
        peer.say()
    return peers


def flicker(wire):
    """The same, but the window opens by a byte, and closes."""
    peers = zero_window(wire)
    for turn in range(200):
        for peer in peers[:8]:
            peer.say(window=turn & 1)
    return peers


def slow(wire):
    """A byte of an answer at a time."""
    peers = many(wire, 24)
    for peer in peers:
        peer.window = 1
        peer.auto = lambda it: it.say(window=1)
        peer.get("normal")
    return peers


def optimist(wire):
    """ACKs of what was not sent, of parts of segments, many times; SACK of everything and of nothing."""
    peers = many(wire, 8)
    for peer in peers:
        peer.get("normal")
    for turn in range(100):
        for peer in peers:
            base = peer.first
            sack = struct.pack("!BBBBIIII", 1, 1, 5, 18, (base + random.getrandbits(18)) % EDGE, (base + random.getrandbits(18)) % EDGE,
                               random.getrandbits(32), random.getrandbits(32))
            peer.say(ack=(peer.next + 1_000_000 * turn) % EDGE)
            peer.say(ack=(peer.first + turn) % EDGE, options=sack)
            peer.say(ack=(peer.first - turn - 1) % EDGE, options=sack)
    return peers


def options(wire):
    """Options that nobody should send."""
    stamp = struct.pack("!BBII", 8, 10, 0xffffffff, 0)
    kinds = [b"\3\3\xff", b"\3\3\x0e", b"\2\4\0\1", b"\2\4\0\0", b"\2\4\0\x58", b"\2\4\xff\xff", b"\2\0", b"\2\1", b"\3\xff", b"\5\2", b"\5\x0a" + b"\0" * 8,
             b"\x13\x12" + b"\0" * 16, b"\xfe\4\0\0", stamp, stamp + b"\3\3\x0e\2\4\0\1", b"\1" * 40, b"\0" * 40, b"\x08\x0a\0"]
    peers = []
    for kind in kinds * 2:
        peer = Peer(wire, options=kind)
        peer.syn()
        peers.append(peer)
    wait_for(lambda: all(peer.synack for peer in peers), 1)
    for peer in peers:
        if peer.synack:
            peer.seq = peer.isn + 1
            for value in (0, 0x7fffffff, 0x80000000, 1):
                peer.say(ACK, payload=b"GET /bucket/normal HTTP/1.1\r\nHost: x\r\n\r\n", options=struct.pack("!BBBBII", 1, 1, 8, 10, value, value))
            peer.say(ACK, payload=b"GET /bucket/normal HTTP/1.1\r\nHost: x\r\n\r\n")
    return peers


def fins(wire):
    """Open and close, open and close."""
    peers = []
    for _ in range(6):
        some = many(wire, 40)
        for peer in some:
            peer.say(FIN | ACK)
            peer.say(FIN | ACK, payload=b"GET / HTTP/1.1\r\n")
            peer.say(FIN)
            peer.say(FIN | SYN | RST | PSH | ACK | URG)
        peers += some
    return peers


def past_the_end(wire):
    """FINs in front of what was sent already, and inside it."""
    peers = many(wire, 24)
    for peer in peers:
        peer.put("past", 100_000)
        peer.say(ACK, peer.seq + 2000, b"a" * 1000)
        peer.say(ACK | FIN, peer.seq + 2500)
        peer.say(ACK, peer.seq + 4000, b"a" * 1000)
        peer.say(ACK, peer.seq, b"b" * 1000)
        peer.say(ACK, peer.seq + 1000, b"b" * 1000)
    return peers


def too_many(wire):
    """More connections than there may be."""
    return many(wire, 60) + many(wire, 60)


def forged(wire):
    """Frames that are nobody's: from ourselves, from groups, to groups, port 0, fragments, extension headers, tags, endless chains."""
    server, server6 = socket.inet_aton(SERVER), address(SERVER6)
    here6 = address("fd78::99")

    def syn(source, dest=server, port=4000, to=PORT):
        return tcp_bytes(source, dest, port, to, random.getrandbits(32), 0, SYN, 1000, b"\2\4\5\xb4")
    four, six = socket.inet_aton("10.78.0.99"), here6
    frames = [ethernet(ip4(source, server, syn(source))) for source in map(socket.inet_aton, (
        SERVER, "127.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "10.78.0.255", "240.0.0.1"))]
    frames += [ethernet(ip4(server, server, syn(server, port=PORT))), ethernet(ip4(four, server, syn(four, port=0)))]
    frames += [ethernet(ip4(four, dest, syn(four, dest))) for dest in map(socket.inet_aton, ("10.78.0.255", "224.0.0.1", "127.0.0.1", "255.255.255.255"))]
    for mac in (b"\xff" * 6, b"\1\0\x5e\0\0\1", MAC_SERVER, b"\0" * 6):
        frames += [ethernet(ip4(four, server, syn(four)), source=mac), ethernet(ip4(four, server, syn(four)), dest=mac)]
    frames += [ethernet(ip4(four, server, syn(four)), tags) for tags in (b"\x81\0\0\0", b"\x81\0\0\x64", b"\x88\xa8\0\1\x81\0\0\2", b"\x81\0\0\1" * 3, b"\x81\0\xff\xff")]
    frames += [ethernet(ip4(four, server, syn(four), fragment=field)) for field in (0x2000, 1, 0x2001, 0x8000)]
    for source in ("::1", "::", "ff02::1", "::ffff:10.78.0.99", SERVER6, "fe80::1"):
        frames.append(ethernet(ip6(address(source), server6, syn(address(source), server6))))
    mapped = address("::ffff:" + SERVER)
    frames.append(ethernet(ip6(six, mapped, syn(six, mapped))))
    data = syn(six, server6)
    for chain in ([0], [0, 0], [43], [44], [60], [60] * 7, [60] * 9, [60] * 60, [51], [43, 44, 60], [0, 60, 43], [59], [255]):
        packet, following = data, 6
        for kind in reversed(chain):
            body = struct.pack("!BBHI", following, 0, 1 if kind == 44 else 0, 0) if kind != 51 else struct.pack("!BBHIII", following, 2, 0, 1, 1, 0)
            packet, following = body + packet, kind
        frames.append(ethernet(ip6(six, server6, packet, following)))
    for cut in range(14, 74, 3):
        frames.append(ethernet(ip4(four, server, syn(four)))[:cut].ljust(60, b"\0"))
    for _ in range(20):
        for frame in frames:
            wire.send(frame)
    return []


def too_big(wire):
    """ICMP that says of connections what is not so."""
    peers = many(wire, 16)
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    server = socket.inet_aton(SERVER)
    for peer in peers:
        peer.window = 1
        peer.get("normal")
    for mtu in (0, 1, 68, 576, 1279, 1500, 65535):
        for peer in peers:
            for seq in (0, peer.first, (peer.first + 70000) % EDGE, random.getrandbits(32)):
                quote = ip4(server, peer.ip, struct.pack("!HHI", PORT, peer.port, seq))
                head = struct.pack("!BBHHH", 3, 4, 0, 0, mtu)
                raw.sendto(head[:2] + struct.pack("!H", checksum(head + quote)) + head[4:] + quote, (SERVER, 0))
    raw.close()
    return peers


def resets(wire):
    """RSTs and SYNs with numbers near the true ones, for connections that go on."""
    peers = many(wire, 16)
    for peer in peers:
        peer.put("resets", 100_000)
    for _ in range(200):
        for peer in peers:
            near = peer.seq + random.randint(-70000, 70000)
            near += near == peer.seq
            peer.say(RST, near)
            peer.say(SYN, near)
            peer.say(RST | ACK, near, ack=random.getrandbits(32))
    return peers


ATTACKS = [tiny, tiny_head, holes, pinned, halves, zero_window, flicker, slow, optimist, options, fins, past_the_end, too_many, forged, too_big, resets]


# ---- what is stored ----

def overlaps(wire):
    """Segments that contradict each other: what was acknowledged first is what is stored, hashed and given out."""
    chooser = random.Random(5)
    size = 120_000
    peer = Peer(wire)
    if not peer.opened() or not peer.put("overlaps", size):
        result("overlapping segments: the upload begins", False)
        return
    base, truth = peer.seq, random.Random(9).randbytes(size)
    lie = bytes(255 - byte for byte in truth)

    def mark():
        return (peer.acked - base) % EDGE if (peer.acked - base) % EDGE < EDGE // 2 else 0
    deadline = time.monotonic() + 60
    while mark() < size and time.monotonic() < deadline and not peer.reset:
        at = mark()
        upper = min(at + 1400, size)
        if at > 0:  # lies about what is acknowledged, up to the edge and not a byte beyond
            back = chooser.randint(1, min(at, 1400))
            peer.say(ACK, base + at - back, lie[at - back:at])
        front = at - chooser.randint(0, min(at, 300))  # the truth, overlapping lies in front
        peer.say(ACK, base + front, lie[front:at] + truth[at:max(at, min(upper, front + 1400))])
        wait_for(lambda: mark() > at or peer.reset, 1)
    wait_for(lambda: b"\r\n\r\n" in peer.stream(), 10)
    answer = peer.stream()
    etag = re.search(rb'etag: "([0-9a-f]+)"', answer, re.I)
    status, body = request("GET", "overlaps")
    result("overlapping segments: what was acknowledged first is what is stored", status == 200 and body == truth, f"{status} {answer[:60]} {mark()}")
    result("  and what was hashed", etag is not None and etag.group(1).decode() == hashlib.md5(truth).hexdigest(), answer[:200])
    recovered("overlapping segments", [peer])


def main():
    wire = Wire()
    chosen = sys.argv[3:] or [attack.__name__ for attack in ATTACKS] + ["overlaps"]
    result("a bucket is made", request("PUT", "")[0] == 200)
    normal("before all of it")
    for attack in ATTACKS:
        if attack.__name__ not in chosen:
            continue
        name = attack.__doc__.rstrip(".")
        peers = attack(wire)
        print(f"     {attack.__name__}: {len(peers)} peers, conns {held('conns')}, frames_held {held('frames_held')}, "
              f"ooo {held('frames_out_of_order')}", file=sys.stderr, flush=True)
        normal(name)
        recovered(name, peers)
    if "overlaps" in chosen:
        overlaps(wire)
    normal("after all of it")
    normal("after all of it, over IPv6", SERVER6)


main()
sys.exit(bool(failed))
