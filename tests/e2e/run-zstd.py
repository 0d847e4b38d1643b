#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compressed objects end to end: clients see payload, its sizes and its digests; the device holds less; what was stored compressed stays
readable after a restart, without compression configured, and by the command-line tool on a stopped store."""

import base64
import hashlib
import http.client
import os
import random
import re
import threading
import xml.etree.ElementTree
import zlib

from node import PENSTOCK, Lane, Node, need, run, wait_for

lane = Lane()
ZSTD = "compression: { type: zstd, prefixes: 'bkt/z' }"
FRAME = 262144


def text_of(size, seed=1):
    """Compresses to about a third, within a frame: what is repeated is longer than a frame."""
    words = [b"%x" % (seed * 7919 + i * i) for i in range(997)]
    out = b" ".join(random.Random(seed).choices(words, k=min(size, 300_000) // 5 + 1))
    return (out * (size // len(out) + 1))[:size]


def put(node, key, data, **headers):
    status, answer, body = node.request("PUT", "/bkt/" + key, body=data,
                                        headers={k.replace("_", "-"): v for k, v in headers.items()})
    assert status == 200, (status, body)
    return answer


def get(node, key, **headers):
    return node.request("GET", "/bkt/" + key, headers=headers)


with Node(s3=ZSTD, size="512MiB", limits="buffers_per_connection_max: 64") as node:
    assert node.request("PUT", "/bkt")[0] == 200

    @lane.test
    def payload_of_every_size_reads_back_and_takes_less():
        for size in (4096, 100_001, FRAME - 1, FRAME, FRAME + 1, 5 * FRAME + 17, 40_000_003):
            data = text_of(size)
            put(node, f"z/{size}", data)
            status, head, body = get(node, f"z/{size}")
            assert status == 200 and body == data and head["content-length"] == str(size)
            assert head["x-penstock-stored-as"] == "zstd"
            assert int(head["x-penstock-stored-size"]) < size * 0.7, head
            status, head, body = node.request("HEAD", f"/bkt/z/{size}")
            assert status == 200 and body == b"" and head["content-length"] == str(size)
            stored = int(head["x-penstock-stored-size"])
            assert stored < size * 0.7 and head["x-penstock-stored-ratio"] == f"{size / stored:.2f}", head

    @lane.test
    def random_ranges_give_their_bytes():
        data = text_of(7 * FRAME + 99, 3)
        put(node, "z/ranges", data)
        rng = random.Random(5)
        for _ in range(60):
            first = rng.randrange(len(data))
            last = min(len(data) - 1, first + rng.choice((0, 1, 1000, FRAME, 3 * FRAME)))
            status, head, body = get(node, "z/ranges", Range=f"bytes={first}-{last}")
            assert status == 206 and body == data[first:last + 1]
            assert head["content-range"] == f"bytes {first}-{last}/{len(data)}"
        assert get(node, "z/ranges", Range=f"bytes={len(data)}-")[0] == 416

    @lane.test
    def checksums_and_etags_are_those_of_the_payload():
        data = text_of(3 * FRAME + 1, 9)
        md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
        sha = base64.b64encode(hashlib.sha256(data).digest()).decode()
        answer = put(node, "z/sums", data, Content_MD5=md5, x_amz_checksum_sha256=sha)
        assert answer["etag"] == '"' + hashlib.md5(data).hexdigest() + '"', answer
        assert answer["x-amz-checksum-sha256"] == sha
        status, head, body = node.request("GET", "/bkt/z/sums", headers={"x-amz-checksum-mode": "ENABLED"})
        assert body == data and head["x-amz-checksum-sha256"] == sha, head
        wrong = base64.b64encode(b"x" * 32).decode()
        status, _, body = node.request("PUT", "/bkt/z/sums", body=b"a" * FRAME, headers={"x-amz-checksum-sha256": wrong})
        assert status == 400 and b"BadDigest" in body
        assert get(node, "z/sums")[2] == data

    @lane.test
    def lists_show_the_payload_size():
        body = node.request("GET", "/bkt?list-type=2&prefix=z/ranges")[2]
        assert b"<Size>%d</Size>" % (7 * FRAME + 99) in body, body

    @lane.test
    def noise_and_other_prefixes_are_stored_plain():
        noise = random.Random(1).randbytes(3 * FRAME + 5)
        before = node.metric("penstock_compression_useless_total")
        put(node, "z/noise", noise)
        put(node, "other", text_of(FRAME))
        for key, data in (("z/noise", noise), ("other", text_of(FRAME))):
            status, head, body = get(node, key)
            assert body == data and "x-penstock-stored-as" not in head
        assert node.metric("penstock_compression_useless_total") == before + 1

    @lane.test
    def copies_keep_the_stored_form():
        data = get(node, "z/ranges")[2]
        for key, more in (("copy", {}), ("copy2", {"x-amz-metadata-directive": "REPLACE", "x-amz-meta-a": "b"})):
            status, _, body = node.request("PUT", "/bkt/" + key, headers={"x-amz-copy-source": "/bkt/z/ranges", **more})
            assert status == 200, body
            status, head, body = get(node, key)
            assert body == data and head["x-penstock-stored-as"] == "zstd"

    def begin(key, **headers):
        body = node.request("POST", f"/bkt/{key}?uploads", headers=headers)[2]
        return body.split(b"<UploadId>")[1].split(b"<")[0].decode()

    def complete(key, upload, etags):
        xml = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in etags)
        status, _, body = node.request("POST", f"/bkt/{key}?uploadId={upload}",
                                       body=f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode())
        assert status == 200, body
        return body

    def put_parts(key, upload, pieces):
        etags = []
        for number, piece in enumerate(pieces, 1):
            status, head, body = node.request("PUT", f"/bkt/{key}?partNumber={number}&uploadId={upload}", body=piece)
            assert status == 200, body
            etags.append((number, head["etag"]))
        return etags

    @lane.test
    def parts_are_compressed_each_for_itself():
        """Compressible and incompressible parts in turn, with odd lengths and an empty one: sizes, ranges over their borders, single parts."""
        five = 5 << 20
        pieces = [text_of(five + 17, 1), random.Random(2).randbytes(five + 3), text_of(five, 3), text_of(five + FRAME, 4), b""]
        data = b"".join(pieces)
        upload = begin("z/parts", **{"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-type": "FULL_OBJECT"})
        etags = put_parts("z/parts", upload, pieces)
        listed = node.request("GET", f"/bkt/z/parts?uploadId={upload}")[2]
        assert re.findall(rb"<Size>(\d+)<", listed) == [b"%d" % len(piece) for piece in pieces], listed
        body = complete("z/parts", upload, etags)
        crc = base64.b64encode(zlib.crc32(data).to_bytes(4, "big"))
        assert b"<ChecksumCRC32>" + crc + b"<" in body, body
        status, head, body = get(node, "z/parts")
        assert status == 200 and body == data and head["x-penstock-stored-as"] == "zstd", head
        assert int(head["x-penstock-stored-size"]) < len(data) * 0.8
        assert b"<Size>%d<" % len(data) in node.request("GET", "/bkt?list-type=2&prefix=z/parts")[2]
        at = 0
        for number, piece in enumerate(pieces, 1):
            if piece:
                status, head, body = node.request("GET", f"/bkt/z/parts?partNumber={number}")
                assert status == 206 and body == piece and head["x-amz-mp-parts-count"] == "5", (number, head)
                assert head["content-range"] == f"bytes {at}-{at + len(piece) - 1}/{len(data)}", head
            for first in (at - 1, at, at + len(piece) - 1):
                for length in (1, 2, FRAME + 1, five + 100):
                    first, last = max(0, first), min(len(data), max(0, first) + length) - 1
                    if last >= first:
                        body = get(node, "z/parts", Range=f"bytes={first}-{last}")[2]
                        assert body == data[first:last + 1], (number, first, last)
            at += len(piece)

    @lane.test
    def a_part_sent_again_and_too_small_parts_are_judged_by_their_payload():
        """5 MiB of text take less in the store, and are no less than 5 MiB for it."""
        upload = begin("z/again")
        put_parts("z/again", upload, [b"x" * (5 << 20), text_of(100_000)])
        etags = put_parts("z/again", upload, [text_of(5 << 20, 8), text_of(FRAME, 9)])
        complete("z/again", upload, etags)
        assert get(node, "z/again")[2] == text_of(5 << 20, 8) + text_of(FRAME, 9)
        upload = begin("z/small")
        etags = put_parts("z/small", upload, [text_of((5 << 20) - 1, 8), text_of(FRAME, 9)])
        xml = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in etags)
        status, _, body = node.request("POST", f"/bkt/z/small?uploadId={upload}",
                                       body=f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode())
        assert status == 400 and b"EntityTooSmall" in body, body

    @lane.test
    def parts_are_copied_from_compressed_objects():
        """The whole, which stays as it lies; pieces, which are read; and out of an object that has compressed parts itself."""
        five = 5 << 20
        whole, parted = text_of(five + 9, 21), get(node, "z/parts")[2]
        put(node, "z/source", whole)
        upload = begin("z/copied")
        wanted, etags = [], []
        for number, (source, data, piece) in enumerate((("z/source", whole, None), ("z/source", whole, (1, five)), ("z/parts", parted, None),
                                                        ("z/parts", parted, (five - 5, 2 * five + 77)), ("z/source", whole, (FRAME, FRAME))), 1):
            more = {} if piece is None else {"x-amz-copy-source-range": f"bytes={piece[0]}-{piece[1]}"}
            status, _, body = node.request("PUT", f"/bkt/z/copied?partNumber={number}&uploadId={upload}",
                                           headers={"x-amz-copy-source": "/bkt/" + source, **more})
            assert status == 200, body
            etags.append((number, re.search(rb"<ETag>(.*?)</ETag>", body).group(1).decode()))
            wanted.append(data if piece is None else data[piece[0]:piece[1] + 1])
        complete("z/copied", upload, etags)
        assert get(node, "z/copied")[2] == b"".join(wanted)
        assert get(node, "z/source")[2] == whole and get(node, "z/parts")[2] == parted

    @lane.test
    def streams_of_unknown_length_are_compressed_unless_they_are_tiny():
        for size in (0, 1, 4095, 4096, FRAME, 3 * FRAME + 5):
            data = text_of(size, 6)
            pieces = [data[i:i + 70_000] for i in range(0, size, 70_000)]
            conn = http.client.HTTPConnection("127.0.0.1", node.s3_port, timeout=30)
            conn.request("PUT", "/bkt/z/stream", body=iter(pieces), headers={"Transfer-Encoding": "chunked"}, encode_chunked=True)
            answer = conn.getresponse()
            assert answer.status == 200, answer.read()
            conn.close()
            status, head, body = get(node, "z/stream")
            assert body == data and ("x-penstock-stored-as" in head) == (size >= 4096), (size, head)

    @lane.test
    def many_at_once_and_overwrites_read_back():
        failures = []

        def client(number):
            for turn in range(4):
                data = text_of(FRAME * 3 + number * 1000 + turn, number * 10 + turn)
                put(node, f"z/many{number}", data)
                if get(node, f"z/many{number}")[2] != data:
                    failures.append((number, turn))
        threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures

    @lane.test
    def the_aws_client_puts_and_gets_multipart_and_single():
        aws = need("aws")
        for size in (FRAME * 4, 20_000_000):
            data = text_of(size, 4)
            source, target = os.path.join(node.folder, "in"), os.path.join(node.folder, "out")
            with open(source, "wb") as f:
                f.write(data)
            env = dict(os.environ, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_DEFAULT_REGION="us-east-1",
                       AWS_CONFIG_FILE="/dev/null", AWS_SHARED_CREDENTIALS_FILE="/dev/null")
            run([aws, "--endpoint-url", node.url, "s3", "cp", "--quiet", source, "s3://bkt/z/aws"], env=env)
            run([aws, "--endpoint-url", node.url, "s3", "cp", "--quiet", "s3://bkt/z/aws", target], env=env)
            with open(target, "rb") as f:
                assert f.read() == data

    @lane.test
    def metrics_count_payload_and_stored_bytes():
        plain, stored = (node.metric(f"penstock_compressed_{kind}_bytes_total", listener="bulk") for kind in ("plain", "stored"))
        assert plain > 40_000_000 and 0 < stored < plain, (plain, stored)
        print(f"# ratio {plain / stored:.2f}")
        assert node.metric("penstock_copied_bytes_total", reason="filter") >= plain

    @lane.test
    def the_zstd_tool_reads_what_is_stored():
        """Of an object, and of one in parts that are all compressed, both through the running node and from a stopped store."""
        tool = need("zstd")
        upload = begin("z/tool")
        pieces = [text_of(5 << 20, 11), text_of(FRAME + 9, 12)]
        complete("z/tool", upload, put_parts("z/tool", upload, pieces))
        put(node, "z/whole", text_of(3 * FRAME + 1, 13))
        for running in (True, False):
            if not running:
                node.stop()
            for key, data in (("z/tool", b"".join(pieces)), ("z/whole", text_of(3 * FRAME + 1, 13))):
                path = os.path.join(node.folder, "stored.zst")
                run([PENSTOCK, "get", "--stored", "--config", node.config, "bkt/" + key, path])
                assert os.path.getsize(path) < len(data) * 0.8
                assert run([tool, "-dc", path]) == data, (running, key)
        node.start()

    @lane.test
    def a_restart_without_compression_still_reads_them():
        data = get(node, "z/ranges")[2]
        node.stop()
        with open(node.config) as f:
            config = f.read()
        with open(node.config, "w") as f:
            f.write(config.replace(ZSTD, ""))
        node.start()
        status, head, body = get(node, "z/ranges")
        assert body == data and head["x-penstock-stored-as"] == "zstd"
        put(node, "z/plain-now", data)
        assert "x-penstock-stored-as" not in get(node, "z/plain-now")[1]

    @lane.test
    def the_tool_reads_them_from_a_stopped_store():
        data = get(node, "z/ranges")[2]
        node.stop()
        try:
            out = os.path.join(node.folder, "cli")
            run([PENSTOCK, "get", "--config", node.config, "bkt/z/ranges", out])
            with open(out, "rb") as f:
                assert f.read() == data
            stat = run([PENSTOCK, "stat", "--config", node.config, "bkt/z/ranges"]).decode()
            assert str(len(data)) in stat and "x-penstock-stored-size" in stat, stat
        finally:
            node.start()

with Node(s3="compression: { type: zstd, level: 9 }", size="512MiB", limits="send_timeout: 100ms") as node:
    assert node.request("PUT", "/bkt")[0] == 200
    LONG = text_of(24 << 20, 31)
    put(node, "source", LONG)

    def copy_begun(upload):
        """A part copied out of the middle, which has to be read and compressed: (connection, what came until the head was there)."""
        sock = node.connect()
        sock.sendall(f"PUT /bkt/copy?partNumber=1&uploadId={upload} HTTP/1.1\r\nHost: h\r\nx-amz-copy-source: /bkt/source\r\nx-amz-copy-source-range:"
                     f" bytes=1-{len(LONG) - 1}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += (piece := sock.recv(65536))
            assert piece, answer
        return sock, answer

    def document(sock, answer):
        """The rest: its XML, without the chunks' framing."""
        while piece := sock.recv(65536):
            answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and b"\r\nTransfer-Encoding: chunked" in head, head
        plain = b""
        while (size := int((line := body.partition(b"\r\n"))[0], 16)) > 0:
            plain, body = plain + line[2][:size], line[2][size + 2:]
        assert body == b"0\r\n\r\n", body
        return plain

    def expect_copy():
        """By pieces that the socket's buffers hold: whoever reads slowly is reset in this configuration."""
        assert node.request("HEAD", "/bkt/copy")[1]["content-length"] == str(len(LONG) - 1)
        for first in (0, 5 * FRAME - 9, len(LONG) // 2, len(LONG) - 1 - 10_000):
            last = min(first + 9_999, len(LONG) - 2)
            assert get(node, "copy", Range=f"bytes={first}-{last}")[2] == LONG[first + 1:last + 2], first

    @lane.test
    def a_copy_that_takes_long_is_answered_before_its_end():
        """A quarter of send_timeout is far less than it takes: 200 and white space come first, then how it went, whatever that is."""
        upload = begin("copy")
        plain = document(*copy_begun(upload))
        assert re.fullmatch(rb"<\?xml [^>]*\?>\n *<CopyPartResult .*</CopyPartResult>", plain, re.S), plain
        assert xml.etree.ElementTree.fromstring(plain) is not None
        complete("copy", upload, [(1, re.search(rb"<ETag>(.*?)</ETag>", plain).group(1).decode())])
        expect_copy()
        for _ in range(20):  # The abort may come too late; once it must not.
            upload = begin("copy")
            sock, answer = copy_begun(upload)
            assert node.request("DELETE", f"/bkt/copy?uploadId={upload}")[0] == 204
            plain = document(sock, answer)
            if b"<Error>" in plain:
                break
        # The wire said 200; the metrics say what became of it, and the copies that were aborted too late are good ones.
        wait_for(lambda: node.metric("penstock_requests_total", operation="UploadPartCopy", status="late_4xx") == 1, "the late error")
        assert re.fullmatch(rb"<\?xml [^>]*\?>\n *<Error><Code>NoSuchUpload</Code>.*</Error>", plain, re.S), plain
        expect_copy()

    @lane.test
    def a_reader_that_leaves_after_the_early_answer_leaves_nothing():
        upload = begin("copy")
        copy_begun(upload)[0].close()
        wait_for(lambda: node.metric("penstock_store_puts_in_flight") == 0, "the copy to be given up")
        assert node.request("DELETE", f"/bkt/copy?uploadId={upload}")[0] == 204
        expect_copy()

lane.close()
