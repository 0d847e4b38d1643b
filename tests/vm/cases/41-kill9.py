#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4
# vm-timeout: 600
"""kill -9 under load, 50 times: what was acknowledged is there bit-exact after each restart, what was not is
whole or absent, the node starts, and no space leaks."""
import random
import time

import node as nodes
import s3load
import vmtest

KILLS, CLIENTS = 50, 3


def load_until_killed(node, plans, positions, moment):
    """Runs the clients, kills the node after `moment` more acknowledgements; returns the new positions."""
    clients = [s3load.Client("127.0.0.1", node.port, plan, position) for plan, position in zip(plans, positions)]
    goal = sum(positions) + moment
    for client in clients:
        client.start()
    vmtest.until(120, lambda: sum(c.position for c in clients) >= goal or not any(c.is_alive() for c in clients), 0.002)
    node.kill()
    for client in clients:
        client.join()
    return [client.position for client in clients], [client.refused for client in clients if client.refused]


def check_all(node, plans, positions):
    endpoint = s3load.Endpoint("127.0.0.1", node.port)
    faults = [fault for plan, position in zip(plans, positions) for fault in s3load.verify(endpoint, plan, position)]
    endpoint.close()
    return faults


def main():
    node = nodes.prepare()
    chance = random.Random("kill9")
    plans = [s3load.make_plan("kill9", client, 600, keys=4, size_max=120_000) for client in range(CLIENTS)]
    positions, faults, refused, slow = [0] * CLIENTS, [], [], 0.0
    if not vmtest.check("the node becomes ready", node.start(), node.log_tail()):
        return
    s3load.Endpoint("127.0.0.1", node.port).request("PUT", f"/{s3load.BUCKET}")
    for turn in range(KILLS):
        positions, answers = load_until_killed(node, plans, positions, chance.randrange(1, 15))
        refused += answers
        began = time.monotonic()
        if not node.start():
            vmtest.failed(f"the node starts after kill {turn}", node.log_tail())
            return
        slow = max(slow, time.monotonic() - began)
        faults += [f"kill {turn}: {fault}" for fault in check_all(node, plans, positions)]
    vmtest.check(f"{sum(positions)} operations over {KILLS} kills: none lost, torn or mixed", not faults, str(faults[:3]))
    vmtest.check("no operation was refused", not refused, str(refused[:3]))
    vmtest.check("every client got on", min(positions) > KILLS, str(positions))
    vmtest.note(f"slowest start {slow:.1f} s")
    space_is_returned(node, plans)
    vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
    nodes.release(node)


def space_is_returned(node, plans):
    """With every object deleted the device must be as empty as before the first upload."""
    endpoint = s3load.Endpoint("127.0.0.1", node.port)
    for key in {operation.key for plan in plans for operation in plan}:
        endpoint.request("DELETE", f"/{s3load.BUCKET}/{key}")
    endpoint.close()
    used = vmtest.until(60, lambda: node.total("penstock_device_used_bytes") == 0) or \
        node.total("penstock_device_used_bytes")
    vmtest.check("no space is used when all objects are deleted", used is True, f"{used} bytes are")


main()
