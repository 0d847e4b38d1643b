# SPDX-License-Identifier: Apache-2.0
"""A node over devices whose flushes or writes hang while a file exists (hang_device.c), for the end-to-end scripts."""

import os
import shutil
import tempfile
import threading

import node as nodes
from node import Node


class Hanging(Node):
    command = [os.environ.get("PENSTOCK_HANG", os.path.join(nodes.TOP, "build", "penstock-hang"))]

    def __init__(self, ops, deadline="1s", **options):
        self.place = tempfile.mkdtemp(prefix="penstock-e2e-hang-")
        self.file = os.path.join(self.place, "hang")
        os.environ.update(HANG_OPS=ops, HANG_FILE=self.file)
        super().__init__(store=f"  flush_deadline: {deadline}", **options)

    def hang(self):
        open(self.file, "x").close()

    def go_on(self):
        if os.path.exists(self.file):
            os.remove(self.file)

    def is_suspect(self):
        return self.metric("penstock_device_state") == 1

    def __exit__(self, kind, value, trace):
        try:
            super().__exit__(kind, value, trace)
        finally:
            shutil.rmtree(self.place)


def together(count, call):
    """The results of so many calls at once."""
    results = [None] * count

    def one(i):
        results[i] = call(i)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads, results
