# SPDX-License-Identifier: Apache-2.0
"""Runs on the host what the VM's cases 70 to 72 run in the guest (`import xdphost`, first of all).

Importing it starts the script again inside namespaces of its own: a network with nothing in it, and mounts in which the names of further
network namespaces are its own, so that the guest's modules find the names and ports that they use and several scripts may run at once.
All of it ends with the script. Between the ends lies badwire.py instead of netem. FULL=1 gives the longer forms.

Owns the folder, the node's files and the totals line. It must not decide what is tested.
"""
import atexit
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INSIDE = "PENSTOCK_XDP_HOST"
ENTER = ("mkdir -p /run/netns && mount -t tmpfs none /run/netns && mount -t sysfs none /sys && ip link set lo up && "
         "exec python3 \"$@\"")


def enter():
    name = os.path.basename(sys.argv[0])
    unshare = ["unshare", "--net", "--mount", "--propagation", "private"]
    made = "mkdir -p /run/netns && mount -t tmpfs none /run/netns && mount -t sysfs none /sys && ip link add name x0 type veth peer name x1"
    if subprocess.run([*unshare, "sh", "-c", made], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        print(f"SKIP {name}: host: no network and mount namespaces, or no veth\n0 passed, 0 failed, 1 skipped")
        raise SystemExit(0)
    os.environ[INSIDE] = "yes"
    os.execvp(unshare[0], [*unshare, "sh", "-c", ENTER, "sh", os.path.abspath(sys.argv[0]), *sys.argv[1:]])


if INSIDE not in os.environ:
    enter()

# The bodies of the cases are the guest's.
sys.path.insert(0, os.path.join(TOP, "tests", "vm", "guest"))
import node as nodes  # noqa: E402
import vmtest  # noqa: E402
import xdpnode  # noqa: E402

vmtest.FULL = bool(os.environ.get("FULL"))
counts = {"ok  ": 0, "FAIL": 0, "SKIP": 0}


def say(word, text):
    counts[word] += 1
    print(f"{word} {text}", flush=True)


vmtest.passed = lambda text: say("ok  ", text)
vmtest.failed = lambda text, detail: say("FAIL", f"{text}: {detail}")
vmtest.skipped = lambda text, reason: say("SKIP", f"{text}: {reason}")
binary = os.environ.get("PENSTOCK", os.path.join(TOP, "build", "penstock"))
os.environ["PATH"] = os.path.dirname(os.path.abspath(binary)) + ":" + os.environ["PATH"]


class Wire(xdpnode.Wire):
    """The guest's, with badwire.py between the ends."""

    patience = 100

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="penstock-xdp-")
        self.relay = None
        atexit.register(self.end)
        super().__init__()

    def connect(self):
        for where, name in (("wire", "m0"), ("wire", "m1"), ("client", "x1")):
            vmtest.run("ip", "netns", "exec", where, "ethtool", "-K", name, "gro", "off")
        vmtest.run("ethtool", "-K", "x0", "tx", "off")  # The kernel's own packets; a relay carries no partial checksums.
        seed = int(os.environ.get("SEED", random.randrange(1 << 31)))
        vmtest.note(f"seed {seed} (SEED={seed} has the wire throw the same dice)")
        self.relay = self.start("wire", "python3", os.path.join(TOP, "tests", "root", "badwire.py"), "m0", "m1", str(seed),
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def condition(self, *words):
        self.relay.stdin.write(" ".join(words) + "\n")
        self.relay.stdin.flush()
        if self.relay.stdout.readline() != "ok\n":
            vmtest.failed("set-up", "the bad wire has ended")
            raise SystemExit(1)

    def reaches(self, host):
        """As the guest's, but a host may have no ping: whoever refuses a connection is there."""
        knock = "import socket, sys\ntry: socket.create_connection((sys.argv[1], 7), 1)\nexcept ConnectionRefusedError: sys.exit(0)\nsys.exit(1)"
        return self.quiet("python3", "-c", knock, host)

    def sender(self, congestion_control):
        """As the guest's; a host may lack one. Asking for it loads its module."""
        with socket.socket() as probe:
            try:
                probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
            except OSError:
                vmtest.skipped(f"a {congestion_control} sender", f"host: this kernel has no {congestion_control}")
                return
        super().sender(congestion_control)

    def make_node(self, program="penstock", store=""):
        device, config = os.path.join(self.folder, "store.img"), os.path.join(self.folder, "penstock.yaml")
        with open(device, "wb") as file:
            file.truncate(512 << 20)
        data = os.path.join(self.folder, "data")
        shutil.rmtree(data, ignore_errors=True)
        os.makedirs(data)
        nodes.write_config(config, device, data, staging="16MiB", store=store)
        node = nodes.Node(config, log=os.path.join(self.folder, "node.log"), program=program)
        node.format()
        atexit.register(lambda: node.process and node.process.poll() is None and node.kill())
        return node

    def end(self):
        if self.relay:
            self.relay.stdin.close()
            self.relay.wait()
        if counts["FAIL"] and os.path.exists(os.path.join(self.folder, "node.log")):
            with open(os.path.join(self.folder, "node.log"), errors="replace") as log:
                print("     " + "     ".join(log.readlines()[-20:]), flush=True)
        shutil.rmtree(self.folder)


def close():
    """Prints the totals and ends the script."""
    print(f"{counts['ok  ']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped", flush=True)
    raise SystemExit(1 if counts["FAIL"] else 0)
