#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-nic: virtio-net-pci,iommu_platform=on,disable-legacy=on
# vm-nic: virtio-net-pci
# vm-modules: ext4 virtio_net
# vm-lane: xdp
# vm-timeout: 600
"""A card that stops sending: the hub's other card loses its driver, so QEMU takes no packet from ours any more and its driver completes
none. Busy polling gives way to interrupts, after the deadline the zero-copy sockets are made anew, and when the other card is back the
download and the upload that were under way go on, on their connections, bit by bit."""
import hashlib
import os
import subprocess

import node as nodes
import vmtest
import xdpnode
import xdpzero

MIB = 1 << 20
URL = f"http://{xdpnode.SERVER}:{xdpnode.PORT}/wan"


def driver(action, device):
    with open(f"/sys/bus/virtio/drivers/virtio_net/{action}", "w") as file:
        file.write(device)


def come_back(device):
    """The other card as it was."""
    driver("bind", device)
    vmtest.run("ip", "link", "set", xdpzero.card(2), "netns", "client", "name", "x1")
    vmtest.run("ip", "-n", "client", "addr", "add", f"{xdpnode.CLIENT}/24", "dev", "x1")
    vmtest.run("ip", "-n", "client", "link", "set", "x1", "up")


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def curl(*arguments):
    return xdpnode.Wire.start("client", "curl", "-sSf", "--max-time", "280", *arguments, stderr=subprocess.PIPE)


def ended(process):
    said = process.communicate()[1].strip()
    return process.returncode == 0, said


def stuck(node, device):
    event = {name: f'event="{name}"' for name in ("stuck", "renewed", "busy_polls", "busy_stopped", "wrong", "tx_lost")}
    count = {name: (lambda label=label: node.total("penstock_xdp_socket_total", label)) for name, label in event.items()}
    with open("/tmp/big", "wb") as file:
        file.write(os.urandom(32 * MIB))
    fine, said = ended(curl("-T", "/tmp/big", f"{URL}/big"))
    vmtest.check("an object is put while the worker polls", fine and count["busy_polls"]() > 0, said)
    down = curl("--limit-rate", "2M", "-o", "/tmp/down", f"{URL}/big")
    up = curl("--limit-rate", "2M", "-T", "/tmp/big", f"{URL}/up")
    sent = node.total("penstock_sent_bytes_total")
    vmtest.until(60, lambda: node.total("penstock_uploads_in_flight") > 0 and node.total("penstock_sent_bytes_total") > sent + MIB)
    driver("unbind", device)
    vmtest.check("busy polling that makes no progress gives way to interrupts", vmtest.until(60, lambda: count["busy_stopped"]() > 0),
                 node.log_tail())
    vmtest.check("a driver that completes nothing is found out", vmtest.until(60, lambda: count["stuck"]() > 0), node.log_tail())
    vmtest.check("  and its sockets are made anew", vmtest.until(60, lambda: count["renewed"]() > 0), node.log_tail())
    with open(node.log, errors="replace") as log:
        text = log.read()
    for word in ("event=xdp_busy_stopped", "event=xdp_lost", "event=xdp_renewed"):
        vmtest.check(f"  the log has {word}", word in text, node.log_tail())
    vmtest.check("  the connections are still there", node.total("penstock_connections_open", 'listener="bulk"') == 2,
                 node.total("penstock_connections_open", 'listener="bulk"'))
    come_back(device)
    for name, process in (("download", down), ("upload", up)):
        fine, said = ended(process)
        vmtest.check(f"the {name} goes on and ends well", fine, said)
    fine, said = ended(curl("-o", "/tmp/up", f"{URL}/up"))
    vmtest.check("what was downloaded is bit-exact", digest("/tmp/down") == digest("/tmp/big"))
    vmtest.check("what was uploaded, too", fine and digest("/tmp/up") == digest("/tmp/big"), said)
    vmtest.check("nothing impossible came from the driver", count["wrong"]() == 0, count["wrong"]())
    vmtest.note(f"{count['tx_lost']():.0f} packets were lost with the old sockets")


def main():
    device = os.path.basename(os.path.realpath(f"/sys/class/net/{xdpzero.card(2)}/device"))
    xdpzero.cable()
    node = nodes.prepare(staging="8MiB")
    # How long an emulated card takes to come back is the host's affair: no limit of the node's shall end the transfers meanwhile.
    xdpnode.configure(area_mib=16, connections=32, more=", busy_poll: 2ms, manage_nic: true",
                      limits=", body_timeout: 10m, send_timeout: 10m, tcp_user_timeout: 10m")
    if vmtest.check("the node becomes ready", node.start(), node.log_tail()):
        vmtest.check("  and reports zero-copy", "zero-copy" in xdpzero.mode_said(node), xdpzero.mode_said(node))
        xdpnode.Wire.start("client", "curl", "-sSf", "-X", "PUT", URL).wait()
        stuck(node, device)
        vmtest.check("SIGTERM ends the node with status 0", node.stop() == 0, node.log_tail())
    nodes.release(node)
    vmtest.run("ip", "netns", "del", "client")


main()
