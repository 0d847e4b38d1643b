# SPDX-License-Identifier: Apache-2.0
"""A node with an af_xdp listener, and Linux TCP at the other end of a bad wire (`import xdpnode`).

    root namespace  x0 ---- m0  namespace wire: a bridge  m1 ---- x1  namespace client
    node, af_xdp            netem towards both ends               tests/vm/guest/pusher.py

The bridge is there because packets that AF_XDP sends pass no queueing discipline of their own interface. Checksums of the client are
computed (`tx off`), as a wire would carry them; nothing turns the engine's verification off. Owns the namespaces and the listener's
configuration. A case names the modules veth, bridge and, for conditions, sch_netem. On hosts without netem tests/root/xdphost.py has
a Wire of its own, with which the bodies of the cases (xdpwan.py, xdpattacks.py) run there too.
"""
import os
import socket
import struct
import subprocess
import threading
import time

import node as nodes
import vmtest

HERE = os.path.dirname(os.path.abspath(__file__))
PORT = 9000
SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
SERVER6, CLIENT6 = "fd00:77::1", "fd00:77::2"


def configure(area_mib=32, connections=320, interface="x0", more="", limits="", path="/tmp/penstock.yaml"):
    """Rewrites node.py's configuration: the S3 listener takes both families by af_xdp. `more`: further keys of it, `limits`: of its
    limits; both begin with a comma."""
    listener = (f'  - {{ name: bulk, protocol: s3, address: "[::]:{PORT}", receive: af_xdp, access: anonymous, '
                f"allow_remote_anonymous: true, interface: {interface}, rx_buffer_size: 4KiB, rx_area_size: {area_mib}MiB, "
                f"limits: {{ connections_max: {connections}, uploads_max: {connections}{limits} }}{more} }}\n")
    with open(path) as file:
        text = file.read()
    start = text.index("  - { name: bulk")
    with open(path, "w") as file:
        file.write(text[:start] + listener + text[text.index("  - { name: pipe"):])


class Wire:
    """The two ends and what is between them."""

    folder = "/tmp"  # for files of the tests
    congestion_control = "cubic"  # of the client's sockets
    patience = 600  # seconds that they wait for the server at most

    def __init__(self, mtu=1500):
        for name in ("wire", "client"):
            vmtest.run("ip", "netns", "add", name)
        vmtest.run("ip", "link", "add", "x0", "type", "veth", "peer", "name", "m0", "netns", "wire")
        vmtest.run("ip", "-n", "wire", "link", "add", "m1", "type", "veth", "peer", "name", "x1", "netns", "client")
        self.mtu(mtu)
        for port in ("m0", "m1"):
            vmtest.run("ip", "-n", "wire", "link", "set", port, "up")
        self.connect()
        for where, name, host in (([], "x0", 1), (["-n", "client"], "x1", 2)):
            vmtest.run("ip", *where, "addr", "add", f"10.77.0.{host}/24", "dev", name)
            vmtest.run("ip", *where, "addr", "add", f"fd00:77::{host}/64", "dev", name, "nodad")
            vmtest.run("ip", *where, "link", "set", name, "up")
        vmtest.run("ip", "netns", "exec", "client", "ethtool", "-K", "x1", "tx", "off")
        vmtest.run("ethtool", "-K", "x0", "gro", "off")
        if not vmtest.until(20, lambda: self.reaches(SERVER) and self.reaches(SERVER6)):
            vmtest.failed("set-up", "the client does not reach the server's addresses")
            raise SystemExit(1)

    def connect(self):
        """What lies between m0 and m1."""
        vmtest.run("ip", "-n", "wire", "link", "add", "bridge", "type", "bridge")
        for port in ("m0", "m1"):
            vmtest.run("ip", "-n", "wire", "link", "set", port, "master", "bridge")
        vmtest.run("ip", "-n", "wire", "link", "set", "bridge", "up")

    @staticmethod
    def make_node(**options):
        """A node whose store is formatted, and the path of its configuration; the caller releases it with node.release."""
        return nodes.prepare(staging="16MiB", **options)

    def mtu(self, size):
        """Sets it everywhere; the node must not run."""
        for where, name in (([], "x0"), (["-n", "wire"], "m0"), (["-n", "wire"], "m1"), (["-n", "client"], "x1")):
            vmtest.run("ip", *where, "link", "set", name, "mtu", str(size))

    def condition(self, *words):
        """netem's words towards both ends; none: a perfect wire."""
        for port in ("m0", "m1"):
            kind = ["netem", "limit", "20000", *words] if words else ["pfifo", "limit", "20000"]
            vmtest.run("tc", "-n", "wire", "qdisc", "replace", "dev", port, "root", *kind)

    def sender(self, congestion_control):
        """What the client's kernel sends with from now on. Per socket: the default of a network namespace may only be one that the host
        has unlocked."""
        self.congestion_control = congestion_control

    @staticmethod
    def start(where, *command, **options):
        """Starts a command in a namespace."""
        return subprocess.Popen(("ip", "netns", "exec", where, *command), text=True, **options)

    @staticmethod
    def quiet(*command):
        return subprocess.run(("ip", "netns", "exec", "client", *command), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0

    def reaches(self, host):
        """Whether the client's packets get there and back."""
        return self.quiet("ping", "-6" if ":" in host else "-4", "-c", "1", "-W", "1", host)

    def push(self, connections, size, seed, host=SERVER, words=()):
        """Starts pusher.py: each connection puts an object and reads it back."""
        return self.start("client", "python3", f"{HERE}/pusher.py", host, str(PORT), "wan", str(connections), str(size), str(seed),
                          f"sender={self.congestion_control}", f"timeout={self.patience}", *words,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def pushed(self, text, connections, size, seed, hosts=(SERVER, SERVER6), words=()):
        """Objects over each address at the same time, there and back; reports whether every byte came."""
        start = time.monotonic()
        running = [self.push(connections, size, seed * 100 + number, host, words) for number, host in enumerate(hosts)]
        said = [process.communicate()[0].strip() for process in running]
        fine = vmtest.check(text, not any(process.returncode for process in running), " / ".join(said))
        vmtest.note(f"{time.monotonic() - start:.1f} s for {connections * len(hosts)} connections with {size} bytes each")
        return fine

    def make_bucket(self):
        self.start("client", "curl", "-sSf", "-X", "PUT", f"http://{SERVER}:{PORT}/wan").wait()

    @staticmethod
    def close():
        vmtest.run("ip", "link", "del", "x0")
        for name in ("wire", "client"):
            vmtest.run("ip", "netns", "del", name)


class KernelWatch:
    """Counts TCP packets that the server's own kernel sends through x0, by IP version and source port. What AF_XDP sends is not seen here: it enters
    the driver below the place where packet sockets listen."""

    def __init__(self, interface="x0"):
        self.ports = {}
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((interface, 0))
        self.socket.settimeout(0.2)
        self.is_open = True
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        while self.is_open:
            try:
                frame, (_, _, kind, _, _) = self.socket.recvfrom(200)
            except OSError:
                continue
            version, at = {0x0800: (4, 34), 0x86dd: (6, 54)}.get(struct.unpack_from("!H", frame, 12)[0], (0, 0))
            if kind == socket.PACKET_OUTGOING and version and frame[23 if version == 4 else 20] == 6:
                key = version, struct.unpack_from("!H", frame, at)[0]
                self.ports[key] = self.ports.get(key, 0) + 1

    def close(self):
        self.is_open = False
        self.thread.join()
        self.socket.close()


def kernel_is_silent(wire, watch):
    """That the watch sees the kernel's answers at all, and none from our port. The node must run: only then the port is ours."""
    for host in (SERVER, SERVER6):
        wire.quiet("python3", "-c", f"import socket; socket.create_connection(('{host}', 7), 5)")
    vmtest.check("the server's kernel answers for a port that is not ours, which shows",
                 vmtest.until(10, lambda: (4, 7) in watch.ports and (6, 7) in watch.ports), watch.ports)
    vmtest.check("and has not sent one segment from our port", not {(4, PORT), (6, PORT)} & set(watch.ports), watch.ports)
    watch.close()


def started(node):
    """Starts the node; ends the case where it does not become ready in the mode that veth has."""
    if not vmtest.check("the node becomes ready", node.start(), node.log_tail()):
        raise SystemExit(1)
    with open(node.log, errors="replace") as log:
        modes = [line.partition("mode=")[2].partition(" why")[0] for line in log if "event=xdp_open" in line]
    vmtest.check("  by native XDP with one copy", modes[-1:] == ['"native XDP with one copy"'], modes)


def prepare(wire, program="penstock", store="", **options):
    """A node that is ready behind the wire, or the end of the case."""
    node = wire.make_node(program=program, store=store)
    configure(path=node.config, **options)
    started(node)
    wire.make_bucket()
    return node
