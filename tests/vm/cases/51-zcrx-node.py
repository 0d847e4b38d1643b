#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 420
"""From NIC queue to NVMe without a copy: a node on the software NIC, which it prepares and puts back itself."""
import subprocess

import node as nodes
import nsim
import vmtest

MIB = 1 << 20
ADDRESS = "10.7.0.1"


def nic_state(pair):
    """What an administrator would compare: header split, features, RSS table, rules."""
    words = vmtest.run("ethtool", "-k", "nic").splitlines()
    return ([line for line in words if "gro-hw" in line or "ntuple" in line],
            vmtest.run("ethtool", "-x", "nic").split("RSS hash key")[0], vmtest.run("ethtool", "-n", "nic"))


def configure(buffer_size):
    with open("/tmp/penstock.yaml") as file:
        text = file.read()
    head, _, rest = text.partition("  - { name: bulk")
    rest = rest.split("\n", 1)[1]
    listener = (f"  - {{ name: bulk, protocol: s3, address: \"{ADDRESS}:9000\", receive: zcrx, access: anonymous, "
                f"allow_remote_anonymous: true, interface: nic, queues: [1], hugepages: 2MiB, manage_nic: true, "
                f"rx_buffer_size: {buffer_size}KiB, rx_area_size: 64MiB }}\n")
    with open("/tmp/penstock.yaml", "w") as file:
        file.write(head + listener + rest)


def push(pair, connections, size, seed):
    process = pair.client("python3", "/vm/pusher.py", ADDRESS, "9000", "zcrx", str(connections), str(size), str(seed),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return process.communicate()[0].strip(), process.returncode


def copied(node):
    return node.total("penstock_copied_bytes_total", 'listener="bulk"')


def round_of(node, pair, buffer_size):
    before = copied(node)
    received = node.total("penstock_received_bytes_total", 'listener="bulk"')
    text, status = push(pair, 1, 64 * MIB, buffer_size)
    vmtest.check(f"{buffer_size} KiB buffers: an object of 64 MiB is bit-exact", status == 0, text)
    received = node.total("penstock_received_bytes_total", 'listener="bulk"') - received
    share = (copied(node) - before) / max(received, 1)
    vmtest.check(f"{buffer_size} KiB buffers: copied payload under 0.1 %", share < 0.001, f"{share:.4%} of {received:.0f}")
    vmtest.check("  and the kernel's copy fallback was not used",
                 node.total("penstock_rx_kernel_copied_bytes_total", 'listener="bulk"') == 0,
                 node.total("penstock_rx_kernel_copied_bytes_total", 'listener="bulk"'))
    text, status = push(pair, 64, 60_000, buffer_size + 1)
    vmtest.check(f"{buffer_size} KiB buffers: 64 connections, any head length, are bit-exact", status == 0, text)
    vmtest.note(f"{buffer_size} KiB: share copied {share:.4%}, " + ", ".join(
        f"{key.split('reason=')[1].split(chr(34))[1]} {value:.0f}" for key, value in node.metrics().items()
        if key.startswith("penstock_copied_bytes_total") and 'listener="bulk"' in key and value) +
        f"; completions {node.total('penstock_receives_total', 'bulk'):.0f}")


pair = nsim.Pair(queues=4, prepared=False)
found = nic_state(pair)
node = nodes.prepare(index_mib=48)
for buffer_size in (4, 32, 128, 1024):
    configure(buffer_size)
    if not vmtest.check(f"{buffer_size} KiB buffers: the node prepares the NIC and becomes ready", node.start(), node.log_tail()):
        continue
    vmtest.check("  its NIC is changed", nic_state(pair) != found, found)
    if buffer_size == 4:
        pair.client("curl", "-sSf", "-X", "PUT", f"http://{ADDRESS}:9000/zcrx").wait()
    round_of(node, pair, buffer_size)
    if buffer_size == 32:
        node.kill()
        vmtest.check("after kill -9 the node starts again", node.start(), node.log_tail())
    vmtest.check("  SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
    vmtest.check("  the NIC is as it was found", nic_state(pair) == found, f"{nic_state(pair)} was {found}")
nodes.release(node)
pair.close()
