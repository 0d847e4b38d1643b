#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A device that stops answering. The program is linked over a filter whose flushes or writes hang while a file exists
(hang_device.c): clients are told with 503 after flush_deadline, nothing of theirs appears, the device comes back with all of its
space, and SIGTERM ends the node all the same."""

import os

from hanging import Hanging, together
from node import Lane, wait_for

lane = Lane()


def refused(answer):
    status, _, body = answer
    return status == 503 and b"<Code>ServiceUnavailable</Code>" in body


@lane.test
def uploads_that_wait_for_a_flush_are_503_and_leave_nothing():
    data = os.urandom(3 << 20)
    with Hanging("flush") as node:
        node.request("PUT", "/bkt")
        assert node.request("PUT", "/bkt/old", body=data)[0] == 200
        used = node.metric("penstock_device_used_bytes")
        node.hang()
        threads, answers = together(6, lambda i: node.request("PUT", "/bkt/old" if i == 0 else f"/bkt/new{i}", body=data[i:]))
        wait_for(node.is_suspect, "the device to be suspect")
        for thread in threads:
            thread.join()
        assert all(refused(answer) for answer in answers), [answer[::2] for answer in answers]
        assert refused(node.request("PUT", "/bkt/later", body=data)), "what comes later is refused at once"
        assert node.request("GET", "/bkt/old")[2] == data, "what is there is still read"
        wait_for(lambda: node.metric("penstock_device_used_bytes") == used, "the space of what was refused")
        node.go_on()
        wait_for(lambda: node.request("PUT", "/bkt2")[0] in (200, 409) and not node.is_suspect(), "the device to be good again")
        assert b"new" not in node.request("GET", "/bkt?list-type=2")[2]
        assert node.request("GET", "/bkt/old")[2] == data
        assert node.request("PUT", "/bkt/new1", body=data)[0] == 200
        node.stop()
        node.start()
        assert node.request("GET", "/bkt/new1")[2] == data and node.request("HEAD", "/bkt/new2")[0] == 404
        assert node.metric("penstock_device_used_bytes") == 2 * used


def ends_all_the_same(ops):
    data = os.urandom(1 << 20)
    with Hanging(ops, node="drain_timeout: 2s") as node:
        node.request("PUT", "/bkt")
        assert node.request("PUT", "/bkt/old", body=data)[0] == 200
        node.hang()
        threads, answers = together(2, lambda i: node.request("PUT", f"/bkt/new{i}", body=data))
        wait_for(node.is_suspect, "the device to be suspect")
        for thread in threads:
            thread.join()
        assert all(refused(answer) for answer in answers), [answer[::2] for answer in answers]
        node.terminate()
        status = node.wait()
        assert status == 1, f"exit status {status}:\n" + node.log_text()
        assert "event=stop_timeout" in node.log_text(), node.log_text()
        node.go_on()
        node.start()
        assert node.request("GET", "/bkt/old")[2] == data
        assert node.request("HEAD", "/bkt/new0")[0] == 404 and node.request("HEAD", "/bkt/new1")[0] == 404


@lane.test
def sigterm_ends_a_node_whose_flush_hangs():
    ends_all_the_same("flush")


@lane.test
def sigterm_ends_a_node_whose_writes_hang():
    ends_all_the_same("write")


@lane.test
def a_flush_that_returns_during_the_drain_lets_the_node_end_in_order():
    with Hanging("flush") as node:
        node.request("PUT", "/bkt")
        node.hang()
        threads, answers = together(1, lambda i: node.request("PUT", "/bkt/new", body=b"data"))
        wait_for(node.is_suspect, "the device to be suspect")
        threads[0].join()
        assert refused(answers[0]), answers
        node.terminate()
        wait_for(lambda: "event=draining" in node.log_text(), "the drain")
        node.go_on()
        assert node.wait() == 0, node.log_text()
        node.start()
        assert node.request("HEAD", "/bkt/new")[0] == 404


lane.close()
