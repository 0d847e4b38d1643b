# SPDX-License-Identifier: Apache-2.0
"""kill -9 under load, again and again, and what must hold after each restart (`import kill9`).

The cases choose the path by which the load arrives and what else they look at after a kill and after a start.  Owns
the clients and what was acknowledged to them; must not know of listeners or NICs.
"""
import random
import time

import s3load
import vmtest


class Siege:
    """A node under a seeded load that is killed at random moments; `connect()` gives an Endpoint of its S3 listener."""

    def __init__(self, node, name, connect, clients=3, length=600):
        self.node, self.connect, self.chance = node, connect, random.Random(name)
        self.plans = [s3load.make_plan(name, client, length, keys=4, size_max=120_000) for client in range(clients)]
        self.positions = [0] * clients
        self.faults, self.refused, self.slowest, self.kills = [], [], 0.0, 0

    def make_bucket(self):
        self.connect().request("PUT", f"/{s3load.BUCKET}")

    def load_until_killed(self):
        """Runs the clients and kills the node after some more acknowledgements."""
        clients = [s3load.Client(self.connect(), plan, position) for plan, position in zip(self.plans, self.positions)]
        for client in clients:
            client.start()
        goal = sum(self.positions) + self.chance.randrange(1, 15)
        vmtest.until(120, lambda: sum(c.position for c in clients) >= goal or not any(c.is_alive() for c in clients), 0.002)
        self.node.kill()
        self.kills += 1
        for client in clients:
            client.join()
        self.positions = [client.position for client in clients]
        self.refused += [client.refused for client in clients if client.refused]

    def restart(self):
        """Starts the node and reads everything back; False when it does not become ready."""
        began = time.monotonic()
        if not self.node.start():
            vmtest.failed(f"the node starts after kill {self.kills}", self.node.log_tail())
            return False
        self.slowest = max(self.slowest, time.monotonic() - began)
        endpoint = self.connect()
        self.faults += [f"kill {self.kills}: {fault}" for plan, position in zip(self.plans, self.positions)
                        for fault in s3load.verify(endpoint, plan, position)]
        endpoint.close()
        return True

    def judge(self):
        """Reports what held over all kills."""
        vmtest.check(f"{sum(self.positions)} operations over {self.kills} kills: none lost, torn or mixed",
                     not self.faults, str(self.faults[:3]))
        vmtest.check("no operation was refused", not self.refused, str(self.refused[:3]))
        vmtest.check("every client got on", min(self.positions) > self.kills, str(self.positions))
        vmtest.note(f"slowest start {self.slowest:.1f} s")

    def space_is_returned(self):
        """With every object deleted the device must be as empty as before the first upload."""
        endpoint = self.connect()
        for key in {operation.key for plan in self.plans for operation in plan}:
            endpoint.request("DELETE", f"/{s3load.BUCKET}/{key}")
        endpoint.close()
        used = vmtest.until(60, lambda: self.node.total("penstock_device_used_bytes") == 0) or \
            self.node.total("penstock_device_used_bytes")
        vmtest.check("no space is used when all objects are deleted", used is True, f"{used} bytes are")
