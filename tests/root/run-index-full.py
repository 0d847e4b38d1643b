#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The index's file system fills up under a running node (a small tmpfs holds data_dir, the store lies elsewhere).

Expected: puts get 507 with S3's error document, reads and deletes go on, puts are taken again after deletes, and after a restart
everything that was answered is there. Small objects with large headers fill the index long before the store.
"""

import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from pusher import Node  # noqa: E402

BODY = b"x" * 100
HEADERS = {f"x-amz-meta-{i}": "v" * 240 for i in range(7)}
PUTS_MAX = 20000


def put(node, number):
    return node.request("PUT", f"/box/key-{number:06}", BODY, HEADERS)


def main():
    if os.environ.get("FULL_NAMESPACE") is None and shutil.which("unshare"):
        os.environ["FULL_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    work = tempfile.mkdtemp(prefix="penstock-full.")
    data = os.path.join(work, "data")
    os.mkdir(data)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=14m", "tmpfs", data], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"SKIP index-full: host: no tmpfs can be mounted: {done.stderr.strip()}")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    results = []

    def result(name, good, why=""):
        results.append(good)
        print(("ok   " if good else "FAIL ") + name + (f": {why}" if not good else ""), flush=True)

    binary = shutil.copy(os.environ.get("PENSTOCK", "build/penstock"), os.path.join(work, "penstock"))
    node = Node(work, os.path.join(work, "node.log"), binary)
    try:
        node.format()
        node.start()
        assert node.request("PUT", "/box")[0] == 200
        stored = 0
        status, body = 200, b""
        refused = 0
        while refused < 20 and stored < PUTS_MAX:  # a single refusal may be one before the log was written back
            status, body, _ = put(node, stored)
            stored += status == 200
            refused = refused + 1 if status != 200 else 0
        result(f"the index is full after {stored} objects: 507 with a document", status == 507 and b"<Error>" in body, f"{status} {body[:200]}")
        statuses = {put(node, 900000 + i)[0] for i in range(5)}
        result("it stays 507 while nothing is deleted", statuses == {507}, str(statuses))
        status, body, _ = node.request("GET", "/box/key-000007")
        result("objects are read", status == 200 and body == BODY, str(status))
        status, body, _ = node.request("GET", "/box?list-type=2&max-keys=10")
        result("objects are listed", status == 200 and body.count(b"<Key>") == 10, str(status))
        deleted = [node.request("DELETE", f"/box/key-{i:06}")[0] for i in range(stored // 2)]
        result(f"{len(deleted)} deletes are taken", set(deleted) == {204}, str(set(deleted)))
        again = [put(node, i)[0] for i in range(stored // 4)]
        result(f"{len(again)} puts are taken afterwards", set(again) == {200}, f"{again.count(200)} of {len(again)}: {set(again)}")
        node.kill()
        node.start()
        wanted = set(range(stored // 4)) | set(range(stored // 2, stored))
        missing = [i for i in sorted(wanted) if node.request("GET", f"/box/key-{i:06}")[1] != BODY]
        result("all of it is there after a kill", not missing, f"{len(missing)} missing")
        result("what was deleted is not", node.request("GET", f"/box/key-{stored // 2 - 1:06}")[0] == 404)
    finally:
        if not all(results):
            print(node.tail(), end="")
        node.kill()
        subprocess.run(["umount", data], capture_output=True)
        shutil.rmtree(work, ignore_errors=True)
    print(f"{results.count(True)} passed, {results.count(False)} failed, 0 skipped")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
