#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""pusher.py HOST[,HOST] PORT BUCKET CONNECTIONS SIZE SEED [put|get] [aligned] [together] [sender=NAME] [timeout=SECONDS]: an S3 client
that varies what a head looks like on the wire.

Each connection PUTs one object of SIZE bytes (give or take a few hundred, seeded) with a head padded to a random length,
sometimes waiting for 100 Continue, sometimes gluing head and body together, then reads it back and compares (put and get: only
the one or the other; aligned: heads have lengths that are multiples of 4; together: none reads before all have put, so that all
connections are open at once; sender: congestion control of its sockets; timeout: of each call, default 600).  Several hosts take
turns.  Prints `pushed BYTES bad COUNT first ERROR` and exits 0 when nothing was bad.
"""
import random
import socket
import sys
import threading

BLOCK = 1 << 20


class Body:
    """Deterministic bytes without holding them: a random block, rotated by an odd step in each repetition."""

    def __init__(self, seed, size):
        self.block = random.Random(seed).randbytes(min(BLOCK, max(size, 1)))
        self.size = size

    def parts(self):
        sent = turn = 0
        while sent < self.size:
            at = turn * 7919 % len(self.block)
            part = (self.block[at:] + self.block[:at])[:self.size - sent]
            yield part
            sent += len(part)
            turn += 1


def read_head(stream):
    """Status and Content-Length of an answer."""
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline().strip()):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, length


def head_of(path, size, pad, expect):
    return (f"PUT {path} HTTP/1.1\r\nHost: penstock\r\nContent-Length: {size}\r\n"
            f"X-Pad: {'p' * pad}\r\n" + ("Expect: 100-continue\r\n" if expect else "") + "\r\n").encode()


def put(connection, stream, path, body, dice, aligned=False):
    expect, pad = body.size > 0 and dice.random() < 0.5, dice.randrange(256)
    if aligned:
        pad += -len(head_of(path, body.size, pad, expect)) % 4
    head = head_of(path, body.size, pad, expect)
    parts = body.parts()
    if expect:
        connection.sendall(head)
        status, _ = read_head(stream)
        if status != 100:
            return f"PUT {path}: {status} instead of 100"
    else:
        connection.sendall(head + next(parts, b""))
    for part in parts:
        connection.sendall(part)
    status, length = read_head(stream)
    stream.read(length)
    return None if status == 200 else f"PUT {path}: {status}"


def get(connection, stream, path, body):
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: penstock\r\n\r\n".encode())
    status, length = read_head(stream)
    if (status, length) != (200, body.size):
        return f"GET {path}: {status}, {length} bytes instead of {body.size}"
    for part in body.parts():
        if stream.read(len(part)) != part:
            return f"GET {path}: other bytes than were put"
    return None


def main():
    host, port, bucket, connections, size, seed = sys.argv[1:7]
    only = [word for word in sys.argv[7:] if word in ("put", "get")]
    aligned, together = ("aligned" in sys.argv[7:]), "together" in sys.argv[7:]
    sender = [word.removeprefix("sender=") for word in sys.argv[7:] if word.startswith("sender=")]
    timeout = [int(word.removeprefix("timeout=")) for word in sys.argv[7:] if word.startswith("timeout=")]
    port, connections, size, seed = int(port), int(connections), int(size), int(seed)
    errors, lock, total, hosts = [], threading.Lock(), [0], host.split(",")
    all_have_put = threading.Barrier(connections)

    def one(number):
        dice = random.Random(seed * 1000 + number)
        body = Body(dice.random(), max(0, size + dice.randrange(-300, 300)))
        path = f"/{bucket}/{seed}/{number}"
        try:
            with socket.create_connection((hosts[number % len(hosts)], port), timeout=(timeout or [600])[0]) as connection:
                for name in sender:  # The kernel refuses one that it does not have.
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
                stream = connection.makefile("rb")
                error = None if only == ["get"] else put(connection, stream, path, body, dice, aligned)
                if together:
                    all_have_put.wait()
                error = error or (None if only == ["put"] else get(connection, stream, path, body))
        except (OSError, ValueError, IndexError, threading.BrokenBarrierError) as problem:
            error = f"{path}: {problem!r}"
            all_have_put.abort()
        with lock:
            total[0] += body.size
            if error:
                errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"pushed {total[0]} bad {len(errors)} first {errors[0] if errors else '-'}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
