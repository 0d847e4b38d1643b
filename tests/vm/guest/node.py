# SPDX-License-Identifier: Apache-2.0
"""Starts, watches and kills a penstock node in the guest.

Owns the process and its log file.  Must not know what a case stores in it.
"""
import http.client
import os
import signal
import subprocess

import disk
import vmtest

PORT, RAW_PORT, ADMIN_PORT = 9000, 9001, 9600

# Small pools: at start a node touches all memory it will ever use, which takes an emulated machine long.
CONFIG = """\
node:  {{ name: vm, data_dir: {data_dir}, workers: {workers}, staging_size: {staging} }}
store:
  devices: [ {devices} ]
  write_unit: {write_unit}
{store}listeners:
  - {{ name: bulk, protocol: s3, address: "127.0.0.1:{port}", receive: {receive}, access: anonymous,
      rx_area_size: 4MiB, limits: {{ connections_max: 64, uploads_max: 64 }}{extra} }}
  - {{ name: pipe, protocol: raw, address: "127.0.0.1:{raw_port}", receive: socket, bucket: captures,
      key_template: "{{listener}}/{{seq}}", rx_area_size: 4MiB, limits: {{ connections_max: 16, uploads_max: 16 }} }}
admin: {{ address: "127.0.0.1:{admin_port}" }}
"""


def write_config(path, device, data_dir, receive="socket", workers=1, extra="", shift=0,
                 staging="8MiB", write_unit="1MiB", store=""):
    """Writes a configuration; `device` may be several, separated by spaces; `store` is further lines of that section, `extra`
    continues the S3 listener's keys, `shift` moves all ports."""
    devices = ", ".join(f"{{ path: {path} }}" for path in device.split())
    with open(path, "w") as file:
        file.write(CONFIG.format(devices=devices, store=store, data_dir=data_dir, receive=receive, workers=workers,
                                 staging=staging, write_unit=write_unit, port=PORT + shift,
                                 raw_port=RAW_PORT + shift, admin_port=ADMIN_PORT + shift,
                                 extra=", " + extra if extra else ""))
    return path


class Node:
    """One node by its configuration file; start() and kill() may alternate."""

    def __init__(self, config, shift=0, log="/out/node.log", program="penstock"):
        self.config, self.log, self.program = config, log, program
        self.port, self.raw_port, self.admin_port = PORT + shift, RAW_PORT + shift, ADMIN_PORT + shift
        self.process = None

    def format(self):
        return vmtest.run("penstock", "format", "--force", "--config", self.config)

    def start(self, seconds=240):
        """Starts the node; returns whether it became ready in time (why not is in its log)."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.program, "serve", "--config", self.config],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return bool(vmtest.until(seconds, lambda: self.process.poll() is not None or self.ready())) and \
            self.process.poll() is None

    def ready(self):
        try:
            return self.admin("/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def admin(self, path):
        """(status, text) of a GET on the admin listener."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metrics(self):
        """Every sample of /metrics as {name with labels: value}."""
        samples = {}
        for line in self.admin("/metrics")[1].splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def total(self, name, *labels):
        """Sum of a metric's samples whose labels contain all of `labels`."""
        return sum(value for key, value in self.metrics().items()
                   if key.split("{")[0] == name and all(label in key for label in labels))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, seconds=120):
        """SIGTERM; returns the exit status, or None when it had to be killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def log_tail(self, lines=5):
        with open(self.log, errors="replace") as log:
            return " / ".join(line.strip() for line in log.readlines()[-lines:])


def prepare(device="/dev/nvme0n1", index_device=None, mount="/mnt", logged=False, program="penstock", **options):
    """Partitions the drive or drives, makes and mounts the index's ext4, formats the store; returns the node.

    logged: the drives have a write log, in which every forced write of ext4 must show (see disk.loop_attach).
    options: of write_config().
    """
    store, index, _ = disk.partition(device)
    if index_device:
        index = disk.partition(index_device)[1]
    loop = disk.loop_attach(index, direct=True) if logged else None
    vmtest.run("mkfs.ext4", "-q", "-F", loop or index)
    vmtest.run("mount", "-t", "ext4", loop or index, mount)
    os.makedirs(f"{mount}/data", exist_ok=True)
    node = Node(write_config("/tmp/penstock.yaml", store, f"{mount}/data", **options), program=program)
    node.mount, node.loop = mount, loop
    node.format()
    return node


def release(node):
    """Undoes prepare() so that the drive is free again."""
    if node.process and node.process.poll() is None:
        node.kill()
    vmtest.run("umount", node.mount)
    if node.loop:
        disk.loop_detach(node.loop)
