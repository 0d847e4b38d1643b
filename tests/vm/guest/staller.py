#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""staller.py HOST PORT BUCKET COUNT SIZE DRIPPING: COUNT uploads that stop in the middle, DRIPPING of which go on byte by byte.

Connections stop in turn: within the head, right behind it, soon after it, and well inside a body of SIZE bytes.  Prints
`stalled` when all have stopped.  After a line on its standard input some of those that are in their body send single bytes as
fast as the kernel takes them.  Another line ends that: every connection sends the rest and waits for its answer.  Prints
`single BYTES finished COUNT bad COUNT first ERROR` and exits 0 when every upload was answered 200.
"""
import hashlib
import resource
import socket
import sys
import threading

STOPS = ("head", "behind the head", "early", "late")


def body_of(number, size):
    """The whole body of upload `number`; whoever reads it back makes it the same way."""
    block = hashlib.sha256(b"stalled %d" % number).digest()
    return (block * (size // len(block) + 1))[:size]


class Upload:
    def __init__(self, address, bucket, number, size):
        self.path, self.body = f"/{bucket}/stalled/{number}", body_of(number, size)
        self.stop = STOPS[number % len(STOPS)]
        self.head = (f"PUT {self.path} HTTP/1.1\r\nHost: penstock\r\nX-Pad: {'p' * (number % 97)}\r\n"
                     f"Content-Length: {size}\r\n\r\n").encode()
        first = {"head": self.head[:40], "behind the head": self.head, "early": self.head + self.body[:300],
                 "late": self.head + self.body[:size * 2 // 3]}[self.stop]
        self.sent = len(first)
        self.socket = socket.create_connection(address, timeout=300)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(first)

    def single(self):
        """Sends one more byte unless only the last one is left."""
        whole = self.head + self.body
        if self.sent < len(whole) - 1:
            self.socket.sendall(whole[self.sent:self.sent + 1])
            self.sent += 1
            return 1
        return 0

    def finish(self):
        """Sends the rest; None or what was wrong with the answer."""
        try:
            self.socket.sendall((self.head + self.body)[self.sent:])
            answer = self.socket.recv(4096)
            self.socket.close()
        except OSError as error:
            return f"{self.path} (stopped {self.stop}): {error!r}"
        return None if answer.startswith(b"HTTP/1.1 200") else f"{self.path} (stopped {self.stop}): {answer[:60]!r}"


def main():
    host, port, bucket, count, size, wanted = sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:7])
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
    uploads = [Upload((host, port), bucket, number, size) for number in range(count)]
    ending, sent = threading.Event(), [0]
    print("stalled", flush=True)

    def drip():
        dripping = [upload for upload in uploads if upload.stop in ("early", "late")][:wanted]
        while not ending.is_set():
            step = sum(upload.single() for upload in dripping)
            sent[0] += step
            if not step:
                return

    sys.stdin.readline()
    thread = threading.Thread(target=drip)
    thread.start()
    sys.stdin.readline()
    ending.set()
    thread.join()
    errors = [error for error in (upload.finish() for upload in uploads) if error]
    print(f"single {sent[0]} finished {count} bad {len(errors)} first {errors[0] if errors else '-'}", flush=True)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
