#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-modules: ext4
# vm-timeout: 600
"""kill -9 under load, 50 times: what was acknowledged is there bit-exact after each restart, what was not is
whole or absent, the node starts, and no space leaks."""
import kill9
import node as nodes
import s3load
import vmtest

KILLS = 50


def main():
    node = nodes.prepare()
    if not vmtest.check("the node becomes ready", node.start(), node.log_tail()):
        return
    siege = kill9.Siege(node, "kill9", lambda: s3load.Endpoint("127.0.0.1", node.port))
    siege.make_bucket()
    for _ in range(KILLS):
        siege.load_until_killed()
        if not siege.restart():
            return
    siege.judge()
    siege.space_is_returned()
    vmtest.check("SIGTERM ends it with status 0", node.stop() == 0, node.log_tail())
    nodes.release(node)


main()
