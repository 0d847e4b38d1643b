#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4 veth bridge sch_netem
# vm-timeout: 600
"""Forged segments against our TCP engine: a SYN flood, off-path guesses, an on-path attacker. Transfers go on bit-exact; one whose
connection an on-path attacker ends with the exact number leaves no object behind; and the server's kernel never answers for our port."""
import subprocess

import node as nodes
import vmtest
import xdpnode

KIB, MIB = 1 << 10, 1 << 20

VICTIM = """
import socket, sys
s = socket.create_connection(("10.77.0.1", 9000), timeout=60)
s.sendall(b"PUT /wan/victim-%s HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 1000000\\r\\n\\r\\n" % sys.argv[1].encode() + b"v" * 300000)
print("half", flush=True)
sys.stdin.readline()
try:
    s.sendall(b"v" * 700000)
    answer = s.recv(100).split()
    print(answer[1].decode() if answer else "closed", flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""


class Attack:
    """attacker.py in the middle of the wire."""

    def __init__(self, wire, mode):
        self.process = wire.start("wire", "python3", "/vm/attacker.py", mode, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdout.readline()  # It has opened its socket.

    def wait(self):
        return self.process.stdout.readline().strip()

    def end(self):
        """(segments forged, segments of the server seen)"""
        words = self.process.communicate("")[0].split()
        return (int(words[-3]), int(words[-1])) if len(words) >= 4 else (0, 0)


def during(wire, mode, text, seed, more=1):
    """Uploads and downloads while segments are forged for their connections; at least `more` of these."""
    attack = Attack(wire, mode)
    wire.pushed(text, 4, MIB, seed, hosts=(xdpnode.SERVER,))
    sent, answered = attack.end()
    vmtest.check(f"  {more} or more segments were forged for them", sent >= more and answered > 0, f"{sent}, {answered} of the server's")


def flood(wire, node):
    attack = Attack(wire, "flood")
    running = wire.push(4, 2 * MIB, 1)
    told = attack.wait()
    wire.pushed("connections made in a flood of SYNs: bit-exact", 8, 64 * KIB, 2)
    said = running.communicate()[0].strip()
    vmtest.check("transfers begun before it: bit-exact", running.returncode == 0 and told == "sent", said)
    sent, answered = attack.end()
    vmtest.check("  it was more than half-open connections are kept, and was answered all the same", sent >= 4000 and answered > 1100,
                 f"{sent} SYNs, {answered} segments of the server")


def exact_ends_it(wire, node, mode):
    """The attacker listens before the victim connects, and strikes when all of its bytes are acknowledged."""
    attack = Attack(wire, mode)
    victim = wire.start("client", "python3", "-c", VICTIM, mode, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    victim.stdout.readline()
    struck = attack.wait()
    said = victim.communicate("go\n")[0].strip()
    vmtest.check(f"an exact {mode.upper()} of an on-path attacker ends the upload", struck == "sent" and said not in ("200", ""), said)
    code = subprocess.run(["ip", "netns", "exec", "client", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}",
                           f"http://{xdpnode.SERVER}:9000/wan/victim-{mode}"], capture_output=True, text=True).stdout
    vmtest.check("  and no object, whole or in part, is there", code == "404", code)


wire = xdpnode.Wire()
watch = xdpnode.KernelWatch()
node = xdpnode.prepare(wire, connections=64)
wire.condition("delay", "1ms")
flood(wire, node)
during(wire, "blind", "RST, FIN, SYN and data of an off-path attacker: bit-exact", 3, more=100)
during(wire, "near", "RST, SYN, stale data and impossible ACKs of an on-path attacker: bit-exact", 4, more=100)
for mode in ("rst", "fin"):
    exact_ends_it(wire, node, mode)
wire.pushed("after all of it the node serves as before", 4, 256 * KIB, 5)
xdpnode.kernel_is_silent(wire, watch)
watch.close()
vmtest.check("SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
wire.close()
