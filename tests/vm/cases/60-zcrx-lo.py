#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4
# vm-timeout: 150
"""A node with a zcrx listener on loopback (device-less: the kernel copies, all else is real): objects land bit-exact."""
import subprocess

import node as nodes
import vmtest
import zcrxnode


def push(connections, size, seed, *words):
    return subprocess.run(["python3", "/vm/pusher.py", "127.0.0.1", str(node.port), "zcrx", str(connections), str(size),
                           str(seed), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


vmtest.run("ip", "link", "set", "lo", "mtu", "9000")
node = nodes.prepare(receive="zcrx", extra="interface: lo, rx_buffer_size: 0")
if not vmtest.check("the node becomes ready", node.start(), node.log_tail()):
    raise SystemExit(1)
path = node.metrics()
vmtest.check("the listener's path is zcrx", any('listener="bulk"' in key and 'path="zcrx"' in key for key in path), "")
vmtest.run("curl", "-sSf", "-X", "PUT", f"http://127.0.0.1:{node.port}/zcrx")
for connections, size in ((1, 0), (1, 1), (4, 5_000), (64, 100_000), (4, 3_000_001)):
    done = push(connections, size, size % 97)
    vmtest.check(f"{connections} objects of about {size} bytes, any head length, are bit-exact", done.returncode == 0,
                 done.stdout.strip())
# The sender's pages cut packets wherever they end, so only heads that are multiples of 4 keep the payload in step (and the
# drive takes fragments at multiples of 4); whether a client waits for 100 Continue is left to its dice.
copies = zcrxnode.Copies(node)
done = push(8, 4_000_000, 5, "aligned")
vmtest.check("8 objects of 4 MB behind heads of a multiple of 4 bytes are bit-exact", done.returncode == 0, done.stdout.strip())
vmtest.check("  and less than 0.1 % of their payload is copied because of how it lies", copies.share(False) < 0.001,
             f"{copies.share(False):.3%} {copies.by_reason()}")
vmtest.note(f"received {node.total('penstock_received_bytes_total', 'bulk'):.0f} bytes; copied by us: " + ", ".join(
    f"{key.split('reason=')[1].split(chr(34))[1]} {value:.0f}" for key, value in node.metrics().items()
    if key.startswith("penstock_copied_bytes_total") and 'listener="bulk"' in key and value))
vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
