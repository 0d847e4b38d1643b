#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""badwire.py ONE OTHER SEED: what netem does, for hosts without it: carries frames between two interfaces and delays, loses, doubles and
reorders them, each way alike.

Reads conditions from standard input, one per line, in the words of netem that the tests use, and answers `ok` when they hold:

    delay Nms [Mms]      every frame waits N milliseconds, give or take up to M
    loss P%              is lost
    duplicate P%         comes twice
    reorder P% [C%]      does not wait, and so overtakes those that do (the correlation C is not kept)

An empty line is a perfect wire. ARP and neighbour discovery are never lost, so that the two ends find each other. It must not change a
frame. Ends when standard input does.
"""
import heapq
import itertools
import random
import select
import socket
import sys
import time

SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
SO_RCVBUFFORCE = 33
BATCH = 64


def port(interface):
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    one.bind((interface, 0))
    one.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    one.setblocking(False)
    return one


def is_tcp(frame):
    kind = frame[12:14]
    return (kind == b"\x08\0" and frame[23] == 6) or (kind == b"\x86\xdd" and frame[20] == 6)


class Condition:
    def __init__(self, words):
        self.delay = self.jitter = self.loss = self.duplicate = self.reorder = 0.0
        at = 0
        while at < len(words):
            name = words[at]
            values = list(itertools.takewhile(lambda word: word[0].isdigit(), words[at + 1:]))
            if name == "delay":
                self.delay = float(values[0].removesuffix("ms")) / 1000
                self.jitter = float(values[1].removesuffix("ms")) / 1000 if len(values) > 1 else 0.0
            elif name in ("loss", "duplicate", "reorder"):
                setattr(self, name, float(values[0].removesuffix("%")) / 100)
            else:
                raise ValueError(f"no such condition: {name}")
            at += 1 + len(values)


class Wire:
    def __init__(self, one, other, seed):
        self.ports = {socket_.fileno(): (socket_, peer) for socket_, peer in ((one, other), (other, one))}
        self.dice, self.waiting, self.count = random.Random(seed), [], itertools.count()
        self.condition = Condition([])

    def carry(self, to, frame):
        condition, dice = self.condition, self.dice
        if condition.loss and is_tcp(frame) and dice.random() < condition.loss:
            return
        for _ in range(2 if dice.random() < condition.duplicate else 1):
            wait = condition.delay + (dice.uniform(-condition.jitter, condition.jitter) if condition.jitter else 0)
            if wait <= 0 or dice.random() < condition.reorder:
                self.send(to, frame)
            else:
                heapq.heappush(self.waiting, (time.monotonic() + wait, next(self.count), to, frame))

    @staticmethod
    def send(to, frame):
        try:
            to.send(frame)
        except (BlockingIOError, OSError):
            pass  # A full queue or an interface that is being set: a wire loses that, too.

    def take(self, number):
        """A batch from one port; the other port and the heap get their turn in between."""
        here, there = self.ports[number]
        for _ in range(BATCH):
            try:
                frame = here.recv(65536)
            except OSError:
                return
            self.carry(there, frame)

    def give(self):
        now = time.monotonic()
        while self.waiting and self.waiting[0][0] <= now:
            _, _, to, frame = heapq.heappop(self.waiting)
            self.send(to, frame)

    def run(self):
        watched = [sys.stdin, *self.ports]
        while True:
            wait = max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            for ready in select.select(watched, [], [], wait)[0]:
                if ready is not sys.stdin:
                    self.take(ready)
                    continue
                line = sys.stdin.readline()
                if not line:
                    return
                self.condition = Condition(line.split())
                print("ok", flush=True)
            self.give()


if __name__ == "__main__":
    Wire(port(sys.argv[1]), port(sys.argv[2]), int(sys.argv[3])).run()
