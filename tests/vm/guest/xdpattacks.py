# SPDX-License-Identifier: Apache-2.0
"""Forged segments against our TCP engine (`import xdpattacks`): a SYN flood, off-path guesses, an on-path attacker. Transfers go on
bit-exact; one whose connection an on-path attacker ends with the exact number leaves no object behind.

Shared by case 71 in the guest and tests/root/run-xdp-attacks.py on the host. The segments are made by attacker.py.
"""
import subprocess

import vmtest
import xdpnode

KIB, MIB = 1 << 10, 1 << 20
HOSTS = {4: xdpnode.SERVER, 6: xdpnode.SERVER6}

UPLOAD = """
import socket, sys
s = socket.create_connection((sys.argv[1], 9000), timeout=60)
s.sendall(b"PUT /wan/%s HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 1000000\\r\\n\\r\\n" % sys.argv[2].encode() + b"v" * 300000)
print("half", flush=True)
sys.stdin.readline()
try:
    s.sendall(b"v" * 700000)
    answer = s.recv(100).split()
    print(answer[1].decode() if answer else "closed", flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""
# It reads nothing before it is told to, so its window closes with half a megabyte and more in it, and the numbers stand still.
DOWNLOAD = """
import socket, sys
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
s.settimeout(60)
s.connect((sys.argv[1], 9000))
print("connected", flush=True)
sys.stdin.readline()
s.sendall(b"GET /wan/%s HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n" % sys.argv[2].encode())
print("asked", flush=True)
sys.stdin.readline()
total = 0
try:
    while part := s.recv(1 << 20):
        total += len(part)
    print("closed after", total, flush=True)
except OSError as error:
    print(type(error).__name__, "after", total, flush=True)
"""
LARGE = 12 * MIB


class Attack:
    """attacker.py in the middle of the wire."""

    def __init__(self, wire, mode, version):
        self.process = wire.start("wire", "python3", f"{xdpnode.HERE}/attacker.py", mode, str(version), stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        self.process.stdout.readline()  # It has opened its socket.

    def wait(self):
        return self.process.stdout.readline().strip()

    def end(self):
        """(segments forged, segments of the server seen)"""
        words = self.process.communicate("")[0].split()
        return (int(words[-3]), int(words[-1])) if len(words) >= 4 else (0, 0)


def during(wire, mode, text, version, seed, size, more=100):
    """Uploads, then downloads, while segments are forged for their connections; at least `more` of these each time."""
    for only in ("put", "get"):
        attack = Attack(wire, mode, version)
        wire.pushed(f"IPv{version}, {only}: {text}: bit-exact", 4, size, seed, hosts=(HOSTS[version],), words=(only,))
        sent, answered = attack.end()
        vmtest.check(f"  {more} or more segments were forged for them", sent >= more and answered > 0,
                     f"{sent}, {answered} of the server's")


def off_path(wire, version, size):
    during(wire, "blind", "RST, FIN, SYN and data of an off-path attacker", version, 30 + version, size)


def on_path(wire, version, size):
    during(wire, "near", "RST, FIN, SYN, stale data and impossible ACKs of an on-path attacker", version, 40 + version, size)


def flood(wire, version, seed):
    """The last of the attacks: while handshakes are cookies the server knows nothing of, an on-path attacker can answer for the client."""
    attack = Attack(wire, "flood", version)
    running = wire.push(4, 2 * MIB, seed, HOSTS[version])
    told = attack.wait()
    wire.pushed(f"IPv{version}: connections made in a flood of SYNs: bit-exact", 8, 64 * KIB, seed + 1, hosts=(HOSTS[version],))
    said = running.communicate()[0].strip()
    vmtest.check("  transfers begun before it: bit-exact", running.returncode == 0 and told == "sent", said)
    sent, answered = attack.end()
    vmtest.check("  it was more than half-open connections are kept, and was answered all the same", sent >= 4000 and answered > 1100,
                 f"{sent} SYNs, {answered} segments of the server")


def exact_ends_an_upload(wire, mode, version):
    """The attacker listens before the victim connects, and strikes when all of its bytes are acknowledged."""
    name = f"victim-{mode}-{version}"
    attack = Attack(wire, mode, version)
    victim = wire.start("client", "python3", "-c", UPLOAD, HOSTS[version], name, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    victim.stdout.readline()
    struck = attack.wait()
    said = victim.communicate("go\n")[0].strip()
    vmtest.check(f"IPv{version}: an exact {mode.upper()} of an on-path attacker ends the upload",
                 struck == "sent" and said not in ("200", ""), said)
    code = subprocess.run(["ip", "netns", "exec", "client", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}",
                           f"http://{xdpnode.SERVER}:{xdpnode.PORT}/wan/{name}"], capture_output=True, text=True).stdout
    vmtest.check("  and no object, whole or in part, is there", code == "404", code)


def exact_rst_ends_a_download(wire, node, version):
    """What the answer held comes back; the client, to which nobody sent the RST, learns it by its next segment."""
    name = f"large-{version}"
    wire.start("client", "sh", "-c", f"head -c {LARGE} /dev/zero | curl -sSf -T - -H 'Expect:' "
               f"'http://{xdpnode.SERVER}:{xdpnode.PORT}/wan/{name}'").wait()

    def open_now():
        return node.total("penstock_connections_open", 'listener="bulk"')
    vmtest.until(5, lambda: open_now() == 0)
    before = open_now()
    vmtest.note(f"{before:.0f} connections open before")
    attack = Attack(wire, "rst", version)
    victim = wire.start("client", "python3", "-c", DOWNLOAD, HOSTS[version], name, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    victim.stdout.readline()
    was_there = vmtest.until(10, lambda: open_now() > before)
    victim.stdin.write("ask\n")
    victim.stdin.flush()
    victim.stdout.readline()
    struck = attack.wait()
    gone = was_there and vmtest.until(20, lambda: open_now() <= before)
    said = victim.communicate("go\n")[0].strip()
    vmtest.check(f"IPv{version}: an exact RST of an on-path attacker ends the download, and the node lets the connection go",
                 struck == "sent" and gone and said.startswith("ConnectionResetError"), (struck, was_there, gone, said))
    vmtest.check("  not the whole object came", 300_000 < int(said.split()[-1]) < LARGE, said)
