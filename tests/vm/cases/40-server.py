#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4
# vm-timeout: 240
"""A node on the emulated NVMe: objects from curl land, read back bit-exact, survive a restart."""
import hashlib
import os
import subprocess

import node as nodes
import vmtest

SIZES = [0, 1, 511, 512, 4096, 65_537, 1 << 20, 5_000_001]


def curl(*arguments):
    """curl's answer body; None when it did not succeed."""
    done = subprocess.run(["curl", "-sS", "--fail-with-body", "--max-time", "60", *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.stdout if done.returncode == 0 else None


def digest_of(body):
    return None if body is None else hashlib.sha256(body).hexdigest()


def put_and_get(base, size, how):
    body = os.urandom(size)
    with open("/tmp/body", "wb") as file:
        file.write(body)
    url = f"{base}/vm-load/{how}/{size}"
    if how == "stream":
        done = subprocess.run(["curl", "-sS", "--fail-with-body", "-T", "-", url], input=body, stdout=subprocess.PIPE)
        stored = done.returncode == 0
    else:
        stored = curl("-T", "/tmp/body", url) is not None
    back = curl(url) if stored else None
    vmtest.check(f"{how} of {size} bytes reads back bit-exact", back == body,
                 f"stored {stored}, got {None if back is None else len(back)} bytes")
    return url, digest_of(body)


def raw_upload(node):
    import socket
    body = os.urandom(100_001)
    with socket.create_connection(("127.0.0.1", node.raw_port), timeout=30) as connection:
        connection.sendall(body)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read().decode()
    vmtest.check("a raw stream is answered with its size", "100001" in answer, repr(answer))
    status = curl(f"http://127.0.0.1:{node.port}/captures?list-type=2")
    vmtest.check("and listed in its bucket", status is not None and b"<Size>100001</Size>" in status, repr(status))


node = nodes.prepare()
if not vmtest.check("the node becomes ready", node.start(), node.log_tail()):
    raise SystemExit(1)
base = f"http://127.0.0.1:{node.port}"
vmtest.check("a bucket is made", curl("-X", "PUT", f"{base}/vm-load") is not None, "refused")
stored = [put_and_get(base, size, how) for how in ("length", "stream") for size in SIZES]
part = curl("-r", "1000-70000", f"{base}/vm-load/length/5000001")
vmtest.check("a range has its length", part is not None and len(part) == 69_001, "no range")
raw_upload(node)
vmtest.check("a delete succeeds", curl("-X", "DELETE", stored[3][0]) is not None, "refused")
vmtest.check("and the object is gone", curl(stored[3][0]) is None, "still there")
vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
if vmtest.check("it starts again", node.start(), node.log_tail()):
    lost = [url for url, digest in stored if url != stored[3][0] and digest_of(curl(url)) != digest]
    vmtest.check(f"{len(stored) - 1} objects are there after the restart", not lost, f"lost {lost}")
nodes.release(node)
