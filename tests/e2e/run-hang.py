#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A device or an index that stops answering. The program is linked over filters whose operations hang while a file exists
(hang_device.c): clients are told with 503 after flush_deadline, nothing of theirs appears (but for changes whose transaction had
begun when the index hung), the device comes back with all of its space, and SIGTERM ends the node all the same."""

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


def ends_all_the_same(ops, suspect=lambda node: node.is_suspect, may_appear=False):
    data = os.urandom(1 << 20)
    with Hanging(ops, node="drain_timeout: 2s") as node:
        node.request("PUT", "/bkt")
        assert node.request("PUT", "/bkt/old", body=data)[0] == 200
        node.hang()
        threads, answers = together(2, lambda i: node.request("PUT", f"/bkt/new{i}", body=data))
        wait_for(suspect(node), "the device to be suspect")
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
        seen = [node.request("GET", f"/bkt/new{i}") for i in range(2)]
        assert all(status == 404 or (may_appear and body == data) for status, _, body in seen), [answer[::2] for answer in seen]


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


def index_is_suspect(node):
    return lambda: node.metric("penstock_index_suspect") == 1


def index_hangs_and_answers(ops, calls, others):
    """Calls that need what hangs: 503 after the deadline, and at once from then on. The others are served. Ready again in the end."""
    data = os.urandom(300_000)
    with Hanging(ops) as node:
        node.request("PUT", "/bkt")
        assert node.request("PUT", "/bkt/old", body=data)[0] == 200
        used = node.metric("penstock_device_used_bytes")
        assert node.request("PUT", "/bkt/gone", body=data)[0] == 200
        node.stop()
        node.start()  # With no page of the index in memory yet.
        node.hang()
        for _ in range(2):
            threads, answers = together(len(calls), lambda i: node.request(*calls[i], body=data if calls[i][1].startswith("/bkt/new") else None))
            for thread in threads:
                thread.join()
            assert all(refused(answer) for answer in answers), [(call, answer[::2]) for call, answer in zip(calls, answers)]
            assert index_is_suspect(node)() and node.admin("/readyz")[0] == 503, node.admin("/readyz")
        for call, status in others:
            assert node.request(*call)[0] == status, call
        node.go_on()
        wait_for(lambda: node.admin("/readyz")[0] == 200, "the index to be good again")
        assert "event=index_state thread=" in node.log_text() and "state=ok" in node.log_text(), node.log_text()
        assert node.request("GET", "/bkt/old")[2] == data
        assert node.request("PUT", "/bkt/last", body=data)[0] == 200 and node.request("DELETE", "/bkt/last")[0] == 204
        left = {key: node.request("GET", f"/bkt/{key}") for key in ("gone", "new0", "new1", "new2", "new3")}
        assert all(status == 404 or body == data for status, _, body in left.values()), left
        objects = 1 + sum(status == 200 for status, _, _ in left.values())
        wait_for(lambda: node.metric("penstock_device_used_bytes") == objects * used, "the space of what was refused")
        return left


@lane.test
def changes_are_503_while_the_index_does_not_sync_and_reads_go_on():
    calls = [("PUT", f"/bkt/new{i}") for i in range(4)] + [("DELETE", "/bkt/gone"), ("PUT", "/other"), ("POST", "/bkt/m?uploads")]
    index_hangs_and_answers("index-sync", calls, [(("GET", "/bkt/old"), 200), (("GET", "/bkt?list-type=2"), 200)])


@lane.test
def what_needs_the_index_is_503_while_it_cannot_be_read():
    calls = [("GET", "/bkt/old"), ("GET", "/bkt?list-type=2"), ("HEAD", "/bkt/old"), ("PUT", "/bkt/new0"), ("GET", "/")]
    left = index_hangs_and_answers("index-read", [call for call in calls if call[0] != "HEAD"], [(("HEAD", "/bkt/old"), 503)])
    assert left["new0"][0] == 404


@lane.test
def nobody_is_left_without_an_answer_when_what_hangs_keeps_every_exchange():
    with Hanging("index-sync", limits="connections_max: 4") as node:
        node.request("PUT", "/bkt")
        assert node.request("PUT", "/bkt/old", body=b"data")[0] == 200
        raw = [node.connect(raw=True) for _ in range(4)]
        for sock in raw:
            sock.sendall(b"bytes")
        wait_for(lambda: node.metric("penstock_uploads_in_flight", listener="pipe") == 4, "what keeps the other half of the exchanges")
        node.hang()
        threads, answers = together(4, lambda i: node.request("PUT", f"/other{i}"))
        for thread in threads:
            thread.join()
        assert all(refused(answer) for answer in answers), answers
        status, headers, _ = node.request("GET", "/bkt/old")
        assert status == 503 and headers["connection"] == "close", (status, headers)
        node.go_on()
        wait_for(lambda: node.request("GET", "/bkt/old")[2] == b"data", "the index to be good again")
        for sock in raw:
            sock.close()


@lane.test
def sigterm_ends_a_node_whose_index_hangs():
    ends_all_the_same("index-sync", lambda node: index_is_suspect(node), may_appear=True)


lane.close()
