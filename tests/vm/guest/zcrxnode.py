# SPDX-License-Identifier: Apache-2.0
"""A node with a zcrx listener on the software NIC (`import zcrxnode`), pushed to from namespace `client`."""
import subprocess

import node as nodes
import nsim
import s3load

ADDRESS = "10.7.0.1"
PORT = 9000


def configure(buffer_kib, more="", area_mib=64, connections=128, queues="1", manage="true", limits="", address=ADDRESS):
    """Rewrites node.py's configuration: the S3 listener receives by zcrx from these queues of `nic`, one for each worker.

    more: further keys of the listener, limits: of its limits; both begin with a comma.
    """
    listener = (f'  - {{ name: bulk, protocol: s3, address: "{address}:{PORT}", receive: zcrx, access: anonymous, '
                f"allow_remote_anonymous: true, interface: nic, queues: [{queues}], hugepages: 2MiB, manage_nic: {manage}, "
                f"rx_buffer_size: {buffer_kib}KiB, rx_area_size: {area_mib}MiB, "
                f"limits: {{ connections_max: {connections}, uploads_max: {connections}{limits} }}{more} }}\n")
    with open("/tmp/penstock.yaml") as file:
        text = file.read()
    start = text.index("  - { name: bulk")
    text = text[:start] + listener + text[text.index("  - { name: pipe"):]
    with open("/tmp/penstock.yaml", "w") as file:
        file.write(text)


def make_bucket(pair):
    pair.client("curl", "-sSf", "-X", "PUT", f"http://{ADDRESS}:{PORT}/zcrx").wait()


def endpoint():
    """A client on the other side of the NIC."""
    return s3load.Endpoint(ADDRESS, PORT, inside=nsim.client_side)


def push(pair, connections, size, seed, *only, address=ADDRESS):
    """(what pusher.py printed, exit status); `only`: "put" or "get"."""
    process = pair.client("python3", "/vm/pusher.py", address, str(PORT), "zcrx", str(connections), str(size), str(seed), *only,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return process.communicate()[0].strip(), process.returncode


class Copies:
    """What was received and copied since it was made."""

    def __init__(self, node):
        self.node = node
        self.received, self.copied, self.pressed = self.totals()

    def totals(self):
        return (self.node.total("penstock_received_bytes_total", 'listener="bulk"'),
                self.node.total("penstock_copied_bytes_total", 'listener="bulk"'),
                self.node.total("penstock_copied_bytes_total", 'listener="bulk"', 'reason="pressure"'))

    def share(self, with_pressure=True):
        """Of what was received, the part that was copied.  Pressure copies less than a block whenever a client has paused for a
        tenth of a second, so how often it does is a matter of how fast the guest runs, not of how payload lies."""
        received, copied, pressed = self.totals()
        copied -= self.copied + (0 if with_pressure else pressed - self.pressed)
        return copied / max(received - self.received, 1)

    def by_reason(self):
        return ", ".join(f"{key.split('reason=')[1].split(chr(34))[1]} {value:.0f}"
                         for key, value in self.node.metrics().items()
                         if key.startswith("penstock_copied_bytes_total") and 'listener="bulk"' in key and value)

    def by_kernel(self):
        return self.node.total("penstock_rx_kernel_copied_bytes_total", 'listener="bulk"')

