#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Today's AWS SDK for JavaScript and minio-js, from npm: what no package of the release sends (checksum trailers over plain HTTP)."""

import os
import shutil
import subprocess

from node import TOP, Lane, Node, Skip, need, run

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"
FOLDER = os.path.join(TOP, "build", "deps", "js")
lane = Lane()


def install():
    """Once per build folder; the modules lie beside a copy of the script that imports them."""
    os.makedirs(FOLDER, exist_ok=True)
    for name in ("package.json", "clients.mjs"):
        shutil.copy(os.path.join(TOP, "tests", "e2e", "js", name), FOLDER)
    if not os.path.isdir(os.path.join(FOLDER, "node_modules", "minio")):
        done = subprocess.run([need("npm"), "install", "--no-audit", "--no-fund"], cwd=FOLDER, capture_output=True,
                              timeout=300)
        if done.returncode != 0:
            raise Skip("npm could not install the clients: " + done.stderr.decode()[-200:].replace("\n", " "))


def client(name, node):
    install()
    run([need("node"), os.path.join(FOLDER, "clients.mjs"), name, node.url, KEY, SECRET], cwd=FOLDER)


with Node() as anonymous, Node(credentials=f"key {KEY} {SECRET}\n  allow all *\n") as signed:
    @lane.test
    def the_aws_sdk_for_javascript_anonymous():
        client("sdk", anonymous)

    @lane.test
    def the_aws_sdk_for_javascript_signed():
        client("sdk", signed)

    @lane.test
    def minio_js_anonymous():
        client("minio", anonymous)

    @lane.test
    def minio_js_signed():
        client("minio", signed)

lane.close()
