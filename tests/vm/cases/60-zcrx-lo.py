#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4
# vm-timeout: 150
"""A node with a zcrx listener on loopback (device-less: the kernel copies, all else is real): objects land bit-exact."""
import subprocess

import node as nodes
import vmtest

vmtest.run("ip", "link", "set", "lo", "mtu", "9000")
node = nodes.prepare(receive="zcrx", extra="interface: lo, rx_buffer_size: 0")
if not vmtest.check("the node becomes ready", node.start(), node.log_tail()):
    raise SystemExit(1)
path = node.metrics()
vmtest.check("the listener's path is zcrx", any('listener="bulk"' in key and 'path="zcrx"' in key for key in path), "")
vmtest.run("curl", "-sSf", "-X", "PUT", f"http://127.0.0.1:{node.port}/zcrx")
for connections, size in ((1, 0), (1, 1), (4, 5_000), (64, 100_000), (4, 3_000_001)):
    done = subprocess.run(["python3", "/vm/pusher.py", "127.0.0.1", str(node.port), "zcrx", str(connections), str(size),
                           str(size % 97)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    vmtest.check(f"{connections} objects of about {size} bytes, any head length, are bit-exact", done.returncode == 0,
                 done.stdout.strip())
vmtest.note(f"received {node.total('penstock_received_bytes_total', 'bulk'):.0f} bytes; copied by us: " + ", ".join(
    f"{key.split('reason=')[1].split(chr(34))[1]} {value:.0f}" for key, value in node.metrics().items()
    if key.startswith("penstock_copied_bytes_total") and 'listener="bulk"' in key and value))
vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
nodes.release(node)
