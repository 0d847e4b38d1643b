#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The S3 core over real sockets with curl: every way curl sends a body, ranges, conditions, errors."""

import hashlib
import os
import subprocess

from node import Lane, Node, need, run

lane = Lane()
curl = need("curl")


def call(*arguments, data=None):
    """(status, headers, body) of the last answer."""
    head = os.path.join(node.folder, "head")
    done = subprocess.run([curl, "-sS", "--max-time", "60", "-D", head, *arguments], input=data, capture_output=True)
    assert done.returncode == 0, f"curl {arguments}: {done.returncode} {done.stderr!r}"
    with open(head) as f:
        last = f.read().replace("\r\n", "\n").strip().split("\n\n")[-1].split("\n")
    headers = dict((k.lower(), v.strip()) for k, _, v in (line.partition(":") for line in last[1:]))
    return int(last[0].split()[1]), headers, done.stdout


def code(body):
    return body.decode().partition("<Code>")[2].partition("</Code>")[0]


with Node() as node:
    bucket = node.url + "/bkt"
    path = os.path.join(node.folder, "payload")
    payload = os.urandom(3_000_001)
    with open(path, "wb") as f:
        f.write(payload)
    empty = os.path.join(node.folder, "empty")
    with open(empty, "wb"):
        pass

    @lane.test
    def a_bucket_is_created_twice_and_seen():
        assert call("-X", "PUT", bucket)[0] == 200
        assert call("-X", "PUT", bucket + "/")[0] == 200
        assert call("-I", bucket)[0] == 200
        assert call("-I", node.url + "/absent")[0] == 404
        assert b"<Name>bkt</Name>" in call(node.url + "/")[2]

    @lane.test
    def a_file_sent_with_expect_reads_back():
        status, headers, _ = call("-T", path, bucket + "/file")
        assert status == 200 and "-" in headers["etag"], headers
        assert call(bucket + "/file")[2] == payload

    @lane.test
    def a_file_sent_without_expect_reads_back():
        assert call("-T", path, "-H", "Expect:", bucket + "/glued")[0] == 200
        assert call(bucket + "/glued")[2] == payload

    @lane.test
    def data_binary_reads_back():
        assert call("-X", "PUT", "--data-binary", "@" + path, bucket + "/binary")[0] == 200
        assert call(bucket + "/binary")[2] == payload

    @lane.test
    def a_stream_of_unknown_length_reads_back():
        assert call("-T", "-", bucket + "/stream", data=payload)[0] == 200
        assert call(bucket + "/stream")[2] == payload

    @lane.test
    def an_empty_object_reads_back():
        for name, arguments in (("length", ["-T", empty]), ("chunked", ["-T", "-"])):
            assert call(*arguments, bucket + "/empty-" + name, data=b"")[0] == 200
            status, headers, body = call(bucket + "/empty-" + name)
            assert (status, headers["content-length"], body) == (200, "0", b"")

    @lane.test
    def ranges_are_parts_of_the_object():
        for text, begin, end in (("0-0", 0, 1), ("5-99", 5, 100), ("-7", len(payload) - 7, len(payload)),
                                 ("2999999-", 2999999, len(payload)), ("262143-262145", 262143, 262146)):
            status, headers, body = call("-r", text, bucket + "/file")
            assert status == 206 and body == payload[begin:end], text
            assert headers["content-range"] == f"bytes {begin}-{end - 1}/{len(payload)}"
        status, headers, body = call("-r", "9999999-", bucket + "/file")
        assert status == 416 and code(body) == "InvalidRange"

    @lane.test
    def conditions_are_decided_by_etag_and_date():
        _, headers, _ = call("-I", bucket + "/file")
        etag, date = headers["etag"], headers["last-modified"]
        for header, status in ((f"If-Match: {etag}", 200), ('If-Match: "other"', 412), (f"If-None-Match: {etag}", 304),
                               ('If-None-Match: "other"', 200), (f"If-Modified-Since: {date}", 304),
                               (f"If-Unmodified-Since: {date}", 200),
                               ("If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT", 412)):
            assert call("-H", header, bucket + "/file")[0] == status, header

    @lane.test
    def a_conditional_put_is_decided_by_the_store():
        assert call("-T", path, "-H", "If-None-Match: *", bucket + "/file")[0] == 412
        assert call("-T", path, "-H", "If-None-Match: *", bucket + "/fresh")[0] == 200
        assert call("-T", path, "-H", 'If-Match: "no"', bucket + "/fresh")[0] == 412
        etag = call("-I", bucket + "/fresh")[1]["etag"]
        assert call("-T", path, "-H", f"If-Match: {etag}", bucket + "/fresh")[0] == 200

    @lane.test
    def metadata_comes_back():
        assert call("-T", path, "-H", "Content-Type: text/x-test", "-H", "x-amz-meta-Mood: good  one", "-H",
                    "Cache-Control: no-store", bucket + "/meta")[0] == 200
        _, headers, _ = call("-I", bucket + "/meta")
        assert headers["content-type"] == "text/x-test" and headers["x-amz-meta-mood"] == "good  one"
        assert headers["cache-control"] == "no-store"
        big = "x-amz-meta-a: " + "v" * 2048
        status, _, body = call("-T", path, "-H", big, bucket + "/meta2")
        assert status == 400 and code(body) == "MetadataTooLarge"

    @lane.test
    def digests_are_verified():
        import base64
        md5 = base64.b64encode(hashlib.md5(payload).digest()).decode()
        wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        assert call("-T", path, "-H", f"Content-MD5: {md5}", bucket + "/md5")[0] == 200
        status, _, body = call("-T", path, "-H", f"Content-MD5: {wrong}", bucket + "/wrong")
        assert status == 400 and code(body) == "BadDigest"
        sha = hashlib.sha256(payload).hexdigest()
        assert call("-T", path, "-H", f"x-amz-content-sha256: {sha}", bucket + "/sha")[0] == 200
        status, _, body = call("-T", path, "-H", f"x-amz-content-sha256: {sha[::-1]}", bucket + "/wrong")
        assert status == 400 and code(body) == "XAmzContentSHA256Mismatch"
        assert call("-I", bucket + "/wrong")[0] == 404

    @lane.test
    def errors_carry_code_and_request_id():
        for arguments, status, want in ((["-T", path, node.url + "/absent/key"], 404, "NoSuchBucket"),
                                        ([bucket + "/absent"], 404, "NoSuchKey"),
                                        (["-X", "PUT", node.url + "/Bad_Name"], 400, "InvalidBucketName"),
                                        (["-X", "PUT", bucket + "/key?acl"], 501, "NotImplemented"),
                                        (["-X", "PATCH", bucket + "/key"], 405, "MethodNotAllowed"),
                                        (["-X", "BREW", bucket + "/key"], 405, "MethodNotAllowed"),
                                        ([bucket + "?policy"], 404, "NoSuchBucketPolicy")):
            got, headers, body = call(*arguments)
            assert (got, code(body)) == (status, want), (arguments, got, body)
            assert headers["x-amz-request-id"].encode() in body

    @lane.test
    def probes_of_clients_are_answered():
        assert b"LocationConstraint" in call(bucket + "?location")[2]
        assert b"VersioningConfiguration" in call(bucket + "?versioning")[2]
        assert call(bucket + "?location=")[0] == 200

    @lane.test
    def listings_page_fold_and_encode():
        for name in ("a/1", "a/2", "b/1", "c", "d%20e", "f%C3%BC"):
            assert call("-T", empty, f"{node.url}/bkt/list/{name}")[0] == 200
        body = call(bucket + "?list-type=2&prefix=list/&delimiter=/")[2].decode()
        assert "<Prefix>list/a/</Prefix>" in body and "<Key>list/c</Key>" in body and "list/a/1" not in body
        body = call(bucket + "?prefix=list/&encoding-type=url")[2].decode()
        assert "<Key>list/d%20e</Key>" in body and "<Key>list/f%C3%BC</Key>" in body, body
        seen, token = [], ""
        for _ in range(20):
            body = call(bucket + "?list-type=2&max-keys=1&prefix=list/" + token)[2].decode()
            seen += [body.partition("<Key>")[2].partition("</Key>")[0]]
            if "<IsTruncated>false" in body:
                break
            token = "&continuation-token=" + body.partition("<NextContinuationToken>")[2].partition("<")[0]
        assert seen == ["list/a/1", "list/a/2", "list/b/1", "list/c", "list/d e", "list/f\u00fc"], seen

    @lane.test
    def many_requests_share_a_connection():
        out = run([curl, "-sS", "-w", "%{num_connects}\n", "-o", "/dev/null", bucket + "/meta", "-o", "/dev/null",
                   bucket + "/file"])
        assert out.split() == [b"1", b"0"], out

    @lane.test
    def a_bucket_with_objects_stays_and_an_empty_one_goes():
        assert call("-X", "DELETE", bucket + "/file")[0] == 204
        assert call("-X", "DELETE", bucket + "/file")[0] == 204
        assert call(bucket + "/file")[0] == 404
        status, _, body = call("-X", "DELETE", bucket)
        assert status == 409 and code(body) == "BucketNotEmpty"
        assert call("-X", "PUT", node.url + "/gone")[0] == 200
        assert call("-X", "DELETE", node.url + "/gone")[0] == 204
        assert call("-I", node.url + "/gone")[0] == 404

    @lane.test
    def metrics_tell_what_happened():
        assert node.metric("penstock_requests_total", operation="PutObject", status="2xx") >= 8
        assert node.metric("penstock_payload_stored_bytes_total", listener="bulk") >= 4 * len(payload)
        assert node.metric("penstock_uploads_in_flight") == 0

lane.close()
