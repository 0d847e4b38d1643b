#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""S3 on the running node as a client library would write it: multipart uploads and their checksums, checksums in trailers, presigned
requests of every method, virtual hosts, sub-resources, keys that change while the node runs, policies. Oracle: S3's documented answers."""

import base64
import email.utils
import hashlib
import http.client
import os
import re
import signal
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

from node import Lane, Node, wait_for
from sigv4 import Signer, crc32, crc32_trailer, unsigned_chunks

lane = Lane()
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"
PART = 5 << 20


def code(body):
    return re.search(rb"<Code>(.*?)</Code>", body).group(1).decode()


def element(body, name):
    found = re.search(f"<{name}>(.*?)</{name}>".encode(), body)
    return found.group(1).decode() if found else None


def begin(node, key, **headers):
    status, answer, body = node.request("POST", f"/bkt/{key}?uploads=", headers={k.replace("_", "-"): v for k, v in headers.items()})
    assert status == 200, body
    return element(body, "UploadId"), answer


def complete(node, key, upload, parts, headers=None):
    xml = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in parts)
    return node.request("POST", f"/bkt/{key}?uploadId={upload}", headers=headers,
                        body=f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode())


with Node(size="256MiB") as node:
    assert node.request("PUT", "/bkt")[0] == 200
    pieces = [bytes([i + 1]) * (PART + i * 4097) for i in range(2)] + [b"tail"]
    whole = b"".join(pieces)

    def upload_parts(key, upload):
        etags = []
        for number, piece in enumerate(pieces, 1):
            status, head, body = node.request("PUT", f"/bkt/{key}?partNumber={number}&uploadId={upload}", body=piece)
            assert status == 200, body
            etags.append((number, head["etag"]))
        return etags

    @lane.test
    def a_checksum_of_the_whole_is_made_from_those_of_the_parts():
        """The parts name no algorithm: they get the upload's. The answer is checked against a CRC over all bytes."""
        upload, head = begin(node, "full", x_amz_checksum_algorithm="CRC32", x_amz_checksum_type="FULL_OBJECT")
        assert (head["x-amz-checksum-algorithm"], head["x-amz-checksum-type"]) == ("CRC32", "FULL_OBJECT"), head
        status, _, body = complete(node, "full", upload, upload_parts("full", upload))
        assert status == 200 and element(body, "ChecksumCRC32") == crc32(whole), body
        assert element(body, "ChecksumType") == "FULL_OBJECT", body
        status, head, body = node.request("GET", "/bkt/full", headers={"x-amz-checksum-mode": "ENABLED"})
        assert body == whole and head["x-amz-checksum-crc32"] == crc32(whole) and head["x-amz-checksum-type"] == "FULL_OBJECT", head

    @lane.test
    def listings_say_what_an_upload_was_created_with_and_what_its_parts_have():
        for key, more, kind in (("listed-full", {"x_amz_checksum_type": "FULL_OBJECT"}, "FULL_OBJECT"), ("listed-parts", {}, "COMPOSITE")):
            upload, _ = begin(node, key, x_amz_checksum_algorithm="CRC32", **more)
            etags = upload_parts(key, upload)
            parts = node.request("GET", f"/bkt/{key}?uploadId={upload}")[2]
            uploads = node.request("GET", f"/bkt?uploads&prefix={key}")[2]
            for body in (parts, uploads):
                assert (element(body, "ChecksumAlgorithm"), element(body, "ChecksumType")) == ("CRC32", kind), body
            assert re.findall(rb"<ChecksumCRC32>(.*?)</", parts) == [crc32(piece).encode() for piece in pieces], parts
            assert re.findall(rb"<ETag>(.*?)</", parts) == [etag.replace('"', "&quot;").encode() for _, etag in etags], parts
            assert node.request("GET", f"/bkt/other?uploadId={upload}")[0] == 404, "an upload is one of its key"
            node.request("DELETE", f"/bkt/{key}?uploadId={upload}")
        upload, _ = begin(node, "listed-none")
        for path in (f"/bkt/listed-none?uploadId={upload}", "/bkt?uploads&prefix=listed-none"):
            assert b"Checksum" not in node.request("GET", path)[2]
        node.request("DELETE", f"/bkt/listed-none?uploadId={upload}")
        status, _, body = node.request("GET", "/bkt/nobody?attributes")
        assert status == 501 and code(body) == "NotImplemented", body

    @lane.test
    def a_checksum_of_checksums_counts_its_parts():
        upload, head = begin(node, "composite", x_amz_checksum_algorithm="CRC32")
        assert head["x-amz-checksum-type"] == "COMPOSITE", head
        status, _, body = complete(node, "composite", upload, upload_parts("composite", upload))
        sums = b"".join(zlib.crc32(piece).to_bytes(4, "big") for piece in pieces)
        assert status == 200 and element(body, "ChecksumCRC32") == crc32(sums) + "-3", body
        assert element(body, "ChecksumType") == "COMPOSITE", body
        for stated, expected in (("", 200), ("-3", 200), ("-2", 400)):  # minio-go states it without the number of parts
            upload, head = begin(node, "stated", x_amz_checksum_algorithm="CRC32")
            status, _, body = complete(node, "stated", upload, upload_parts("stated", upload), {"x-amz-checksum-crc32": crc32(sums) + stated})
            assert status == expected, (stated, status, body)
        assert code(body) == "BadDigest", body

    @lane.test
    def other_checksums_of_the_whole():
        data = [b"a" * PART, b"b" * 1000]
        for name, field in (("CRC32C", "ChecksumCRC32C"), ("CRC64NVME", "ChecksumCRC64NVME")):
            # CRC64NVME is of the whole without being asked.
            more = {"x_amz_checksum_type": "FULL_OBJECT"} if name == "CRC32C" else {}
            upload, head = begin(node, name, x_amz_checksum_algorithm=name, **more)
            assert head["x-amz-checksum-type"] == "FULL_OBJECT", head
            etags = []
            for i, piece in enumerate(data, 1):
                etags.append((i, node.request("PUT", f"/bkt/{name}?partNumber={i}&uploadId={upload}", body=piece)[1]["etag"]))
            status, _, body = complete(node, name, upload, etags)
            # The same bytes put at once must have the same checksum.
            status, head, _ = node.request("PUT", f"/bkt/{name}-at-once", body=b"".join(data), headers={"x-amz-checksum-algorithm": name})
            assert status == 200 and element(body, field) == head[f"x-amz-checksum-{name.lower()}"], (body, head)

    @lane.test
    def types_that_cannot_be_are_refused():
        for algorithm, kind in (("SHA256", "FULL_OBJECT"), ("CRC64NVME", "COMPOSITE"), (None, "FULL_OBJECT"), ("CRC32", "HALF")):
            headers = {"x-amz-checksum-type": kind, **({"x-amz-checksum-algorithm": algorithm} if algorithm else {})}
            status, _, body = node.request("POST", "/bkt/bad?uploads", headers=headers)
            assert status == 400 and code(body) == "InvalidRequest", (algorithm, kind, body)
        upload, _ = begin(node, "fixed", x_amz_checksum_algorithm="CRC32")
        etags = upload_parts("fixed", upload)
        status, _, body = complete(node, "fixed", upload, etags, {"x-amz-checksum-type": "FULL_OBJECT"})
        assert status == 400 and code(body) == "InvalidRequest", body
        status, _, body = complete(node, "fixed", upload, etags, {"x-amz-checksum-crc32": crc32(b"other") + "-3"})
        assert status == 400 and code(body) == "BadDigest", body
        assert node.request("HEAD", "/bkt/fixed")[0] == 404
        assert complete(node, "fixed", upload, etags)[0] == 200  # What was refused left the upload as it was.

    @lane.test
    def answers_to_parts_that_do_not_fit():
        upload, _ = begin(node, "order")
        etags = upload_parts("order", upload)
        for parts, want in ((etags[::-1], "InvalidPartOrder"), ([(1, '"wrong"')], "InvalidPart"), ([etags[0], (9, etags[0][1])], "InvalidPart"),
                            ([], "MalformedXML"), ([etags[1], (4, "x")], "InvalidPart")):
            status, _, body = complete(node, "order", upload, parts)
            assert status == 400 and code(body) == want, (parts, body)
        tiny = node.request("PUT", f"/bkt/order?partNumber=1&uploadId={upload}", body=b"tiny")[1]["etag"]  # Sent again: replaces
        status, _, body = complete(node, "order", upload, [(1, tiny), etags[1]])
        assert status == 400 and code(body) == "EntityTooSmall", body
        for number in ("0", "10001", "x", ""):
            assert node.request("PUT", f"/bkt/order?partNumber={number}&uploadId={upload}", body=b"x")[0] == 400, number
        assert node.request("HEAD", "/bkt/order")[0] == 404
        assert node.request("DELETE", f"/bkt/order?uploadId={upload}")[0] == 204
        status, _, body = complete(node, "order", upload, etags)
        assert status == 404 and code(body) == "NoSuchUpload", body

    @lane.test
    def parts_of_one_upload_do_not_wait_for_one_another():
        """A part that stalls half-way, and seven others on connections of their own; then the object without the stalled one."""
        upload, _ = begin(node, "apart")
        with node.connect() as sock:
            sock.sendall(f"PUT /bkt/apart?partNumber=1&uploadId={upload} HTTP/1.1\r\nHost: h\r\nContent-Length: {PART}\r\n\r\n".encode() +
                         b"s" * 70_000)
            wait_for(lambda: node.metric("penstock_uploads_in_flight") == 1, "the first part to begin")
            with ThreadPoolExecutor(7) as pool:
                answers = list(pool.map(lambda number: node.request("PUT", f"/bkt/apart?partNumber={number}&uploadId={upload}",
                                                                    body=bytes([number]) * PART), range(2, 9)))
            assert [answer[0] for answer in answers] == [200] * 7, answers
            assert node.metric("penstock_multipart_uploads_open_bytes") >= 7 * PART
            etags = [(number, answer[1]["etag"]) for number, answer in zip(range(2, 9), answers)]
            assert complete(node, "apart", upload, etags)[0] == 200
        assert node.request("GET", "/bkt/apart")[2] == b"".join(bytes([number]) * PART for number in range(2, 9))
        node.request("DELETE", "/bkt/apart")

    @lane.test
    def an_abort_gives_the_space_of_its_parts_back_at_once():
        held = node.metric("penstock_multipart_uploads_open_bytes")
        upload, _ = begin(node, "aborted")
        for number in (1, 2, 3):
            assert node.request("PUT", f"/bkt/aborted?partNumber={number}&uploadId={upload}", body=bytes(PART))[0] == 200
        assert node.metric("penstock_multipart_uploads_open_bytes") == held + 3 * PART
        used = node.metric("penstock_device_used_bytes")
        assert node.request("DELETE", f"/bkt/aborted?uploadId={upload}")[0] == 204
        assert node.metric("penstock_multipart_uploads_open_bytes") == held
        wait_for(lambda: node.metric("penstock_device_used_bytes") <= used - 3 * PART, "the space to be back")

    @lane.test
    def completions_aborts_and_parts_at_the_same_time_leave_one_of_the_two():
        """Two completions, an abort and a part that is sent again, all at once: the object is whole or absent, and nothing is held."""
        for turn in range(12):
            key = f"race{turn}"
            upload, _ = begin(node, key)
            etag = node.request("PUT", f"/bkt/{key}?partNumber=1&uploadId={upload}", body=b"first")[1]["etag"]
            actions = [lambda: complete(node, key, upload, [(1, etag)]), lambda: complete(node, key, upload, [(1, etag)]),
                       lambda: node.request("DELETE", f"/bkt/{key}?uploadId={upload}"),
                       lambda: node.request("PUT", f"/bkt/{key}?partNumber=1&uploadId={upload}", body=b"again")]
            with ThreadPoolExecutor(4) as pool:
                done = [future.result() for future in [pool.submit(action) for action in actions[turn % 4:] + actions[:turn % 4]]]
            assert all(status in (200, 204, 400, 404) for status, _, _ in done), done
            completed = [body for status, _, body in done if status == 200 and b"CompleteMultipartUploadResult" in body]
            status, _, body = node.request("GET", f"/bkt/{key}")
            assert (status, body) == (200, b"first") if completed else status == 404, (turn, done, status, body)
            if not completed:
                node.request("DELETE", f"/bkt/{key}?uploadId={upload}")
        listed = node.request("GET", "/bkt?uploads")[2]
        assert b"<Key>race" not in listed, listed

    @lane.test
    def sizes_up_to_five_tebibytes_are_counted():
        """Nobody sends that much here: what is asked is whether there is room, before a byte of it comes."""
        def ask(size, target="/bkt/huge"):
            with node.connect() as sock:
                sock.sendall(f"PUT {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\nExpect: 100-continue\r\n\r\n".encode())
                answer = b""
                while piece := sock.recv(65536):
                    answer += piece
            return int(answer.split()[1]), code(answer)
        upload, _ = begin(node, "huge")
        for target in ("/bkt/huge", f"/bkt/huge?partNumber=1&uploadId={upload}"):
            assert ask(5 << 40, target) == (507, "InsufficientStorage")
            assert ask((5 << 40) + 1, target) == (400, "EntityTooLarge")
            assert ask((1 << 63) - 1, target) == (400, "EntityTooLarge")
            assert ask(1 << 64, target)[0] == 400

    @lane.test
    def ten_thousand_parts():
        """Copied parts cost no payload, so 48.8 GiB fit a small store. Completion and reads at the edges of parts; then it is deleted."""
        block = os.urandom(PART)
        assert node.request("PUT", "/bkt/block", body=block)[0] == 200
        upload, _ = begin(node, "many")
        etags = {}

        def copy(first):
            conn = http.client.HTTPConnection("127.0.0.1", node.s3_port, timeout=60)
            for number in range(first, 10001, 16):
                conn.request("PUT", f"/bkt/many?partNumber={number}&uploadId={upload}", headers={"x-amz-copy-source": "/bkt/block"})
                answer = conn.getresponse()
                body = answer.read()
                assert answer.status == 200, body
                etags[number] = element(body, "ETag").replace("&quot;", '"')
            conn.close()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(copy, range(1, 17)))
        marker, listed = 0, []
        while marker is not None:
            body = node.request("GET", f"/bkt/many?uploadId={upload}&part-number-marker={marker}")[2]
            listed += [int(number) for number in re.findall(rb"<PartNumber>(\d+)<", body)]
            marker = int(element(body, "NextPartNumberMarker")) if element(body, "IsTruncated") == "true" else None
        assert listed == list(range(1, 10001))
        status, _, body = complete(node, "many", upload, sorted(etags.items()))
        assert status == 200 and element(body, "ETag").replace("&quot;", "").endswith("-10000"), body
        size = 10000 * PART
        assert node.request("HEAD", "/bkt/many")[1]["content-length"] == str(size)
        status, head, body = node.request("GET", "/bkt/many?partNumber=10000")
        assert status == 206 and body == block and head["x-amz-mp-parts-count"] == "10000", head
        for first in (0, PART - 10, 4999 * PART - 1, size - 20):
            body = node.request("GET", "/bkt/many", headers={"Range": f"bytes={first}-{first + 19}"})[2]
            assert body == (block + block)[first % PART:first % PART + 20], first
        assert b"<Size>%d</Size>" % size in node.request("GET", "/bkt?list-type=2&prefix=many")[2]
        assert node.request("DELETE", "/bkt/many")[0] == 204 and node.request("GET", "/bkt/block")[2] == block

    @lane.test
    def a_multi_delete_is_verified_by_the_checksum_in_its_trailer():
        def request(document, trailer):
            body = unsigned_chunks([document[:20], document[20:]], trailer)
            return node.request("POST", "/bkt?delete=", body=body, headers={
                "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x-amz-trailer": "x-amz-checksum-crc32",
                "Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(document))})
        for i in range(2):
            assert node.request("PUT", f"/bkt/gone{i}", body=b"x")[0] == 200
        document = b"<Delete><Object><Key>gone0</Key></Object><Object><Key>gone1</Key></Object></Delete>"
        for trailer, want in ((crc32_trailer(b"other"), "BadDigest"), ("x-amz-checksum-sha1:AAAA", None)):
            status, _, body = request(document, trailer)
            assert status == 400 and want in (None, code(body)), body
            assert node.request("HEAD", "/bkt/gone0")[0] == 200, "deleted by a document that arrived damaged"
        status, _, body = request(document, crc32_trailer(document))
        assert status == 200 and body.count(b"<Deleted>") == 2, body
        assert node.request("HEAD", "/bkt/gone0")[0] == 404

    @lane.test
    def sub_resources_that_clients_probe():
        node.request("PUT", "/bkt/v/a", body=b"1")
        for query in ("?location", "?location="):
            status, _, body = node.request("GET", "/bkt" + query)
            assert status == 200 and b"LocationConstraint" in body, body
        for query in ("?versions", "?versions=", "?versions&prefix=v/"):
            status, _, body = node.request("GET", "/bkt" + query)
            assert status == 200 and b"<VersionId>null</VersionId><IsLatest>true</IsLatest>" in body, body
            assert b"<Key>v/a</Key>" in body and b"DeleteMarker" not in body
        status, _, body = node.request("GET", "/bkt?versioning")
        assert status == 200 and b"VersioningConfiguration" in body and b"Enabled" not in body, body
        assert node.request("GET", "/bkt/v/a?versionId=null")[2] == b"1"
        assert node.request("GET", "/bkt/v/a?versionId=other")[0] == 404
        for method, target in (("GET", "/bkt?inventory"), ("GET", "/bkt?notification"), ("GET", "/bkt/v/a?torrent"),
                               ("POST", "/bkt/v/a?select&select-type=2"), ("PUT", "/bkt?replication"), ("PUT", "/bkt/v/a?retention")):
            status, _, body = node.request(method, target)
            assert status in (404, 501) and code(body), (method, target, status, body)
        assert node.request("PUT", "/bkt/plain", body=b"x", headers={"x-amz-storage-class": "GLACIER", "x-amz-sdk-checksum-algorithm": "NEW9",
                                                                    "x-amz-nobody-knows": "1"})[0] == 200


with Node(size="128MiB", s3="etag: md5") as node:
    @lane.test
    def copied_parts_have_the_digests_that_were_asked_for():
        """An MD5 for its ETag where the listener says so, and the upload's checksum: of a piece they are known by reading it only."""
        assert node.request("PUT", "/bkt")[0] == 200
        data = os.urandom(PART + 70_001)
        assert node.request("PUT", "/bkt/source", body=data)[0] == 200
        pieces = [(0, len(data) - 1), (3, PART + 9), (100, 4099)]
        upload, _ = begin(node, "copied", x_amz_checksum_algorithm="CRC32", x_amz_checksum_type="FULL_OBJECT")
        etags = []
        for number, (first, last) in enumerate(pieces, 1):
            status, _, body = node.request("PUT", f"/bkt/copied?partNumber={number}&uploadId={upload}", headers={
                "x-amz-copy-source": "/bkt/source", "x-amz-copy-source-range": f"bytes={first}-{last}"})
            assert status == 200, body
            piece = data[first:last + 1]
            assert hashlib.md5(piece).hexdigest() in element(body, "ETag") and element(body, "ChecksumCRC32") == crc32(piece), body
            etags.append((number, element(body, "ETag")))
        status, _, body = complete(node, "copied", upload, etags)
        want = b"".join(data[first:last + 1] for first, last in pieces)
        assert status == 200 and element(body, "ChecksumCRC32") == crc32(want), body
        md5s = b"".join(hashlib.md5(data[first:last + 1]).digest() for first, last in pieces)
        assert hashlib.md5(md5s).hexdigest() + "-3" in element(body, "ETag"), body
        assert node.request("GET", "/bkt/copied")[2] == want
        status, _, body = node.request("PUT", "/bkt/copied?partNumber=1&uploadId=none", headers={"x-amz-copy-source": "/bkt/source"})
        assert status == 404 and code(body) == "NoSuchUpload", body
        # A peer that leaves while its copy is made: nothing stays behind.
        upload, _ = begin(node, "left")
        for _ in range(20):
            with node.connect() as sock:
                sock.sendall(f"PUT /bkt/left?partNumber=1&uploadId={upload} HTTP/1.1\r\nHost: h\r\nx-amz-copy-source: /bkt/source\r\n"
                             "x-amz-copy-source-range: bytes=1-5000000\r\nContent-Length: 0\r\n\r\n".encode())
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") == 0, "the connections to be gone")
        wait_for(lambda: node.metric("penstock_store_puts_in_flight") == 0, "the copies to be over")


with Node(credentials=f"key {KEY} {SECRET}\n  allow all *\n", s3="virtual_host_domain: s3.example.org") as node:
    signer = Signer(KEY, SECRET)
    host = f"127.0.0.1:{node.s3_port}"

    def signed(method, path, query="", body=b"", host=host, by=signer, more=None):
        headers = by.headers(method, host, path, query, hashlib.sha256(body).hexdigest(), more)
        return node.request(method, path + ("?" + query if query else ""), body=body or None, headers=headers)

    assert signed("PUT", "/bkt")[0] == 200

    @lane.test
    def presigned_requests_of_every_method():
        def do(method, path, query="", body=None, by=signer, as_method=None, expires=60):
            return node.request(as_method or method, by.presigned(method, host, path, query, expires), body=body, headers={"Host": host})
        assert do("PUT", "/bkt/pre%20%2B1", body=b"by url")[0] == 200
        assert do("GET", "/bkt/pre%20%2B1")[2] == b"by url"
        assert do("HEAD", "/bkt/pre%20%2B1")[1]["content-length"] == "6"
        assert do("GET", "/bkt", "list-type=2&prefix=pre")[0] == 200
        status, _, body = do("POST", "/bkt/pre-parts", "uploads=")
        assert status == 200, body
        upload = element(body, "UploadId")
        status, head, body = do("PUT", "/bkt/pre-parts", f"partNumber=1&uploadId={upload}", body=b"part")
        assert status == 200, body
        xml = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{head['etag']}</ETag></Part></CompleteMultipartUpload>"
        assert do("POST", "/bkt/pre-parts", f"uploadId={upload}", body=xml.encode())[0] == 200
        assert do("GET", "/bkt/pre-parts")[2] == b"part"
        # The method is signed: a URL for reading neither deletes nor overwrites.
        for wrong in ("DELETE", "PUT", "HEAD"):
            assert do("GET", "/bkt/pre-parts", as_method=wrong)[0] == 403, wrong
        assert do("GET", "/bkt/pre-parts")[2] == b"part"
        late = Signer(KEY, SECRET, offset_s=-120)
        status, _, body = do("GET", "/bkt/pre-parts", by=late)
        assert status == 403 and b"expired" in body, body
        assert do("GET", "/bkt/pre-parts", by=late, expires=600)[0] == 200
        for expires in (604801, 0, -1):
            status, _, body = do("GET", "/bkt/pre-parts", expires=expires)
            assert status in (400, 403), (expires, body)
        assert do("DELETE", "/bkt/pre-parts")[0] == 204
        assert do("HEAD", "/bkt/pre-parts")[0] == 404

    @lane.test
    def the_clock_may_differ_by_a_quarter_of_an_hour():
        for offset, want in ((-880, 200), (880, 200), (-920, 403), (920, 403)):
            status, _, body = signed("GET", "/bkt", by=Signer(KEY, SECRET, offset_s=offset))
            assert status == want and (want == 200 or code(body) == "RequestTimeTooSkewed"), (offset, body)

    @lane.test
    def what_is_not_signed_or_changed_is_refused_with_its_code():
        headers = signer.headers("GET", host, "/bkt/x", "", hashlib.sha256(b"").hexdigest())
        status, _, body = node.request("GET", "/bkt/x", headers={**headers, "x-amz-meta-late": "1"})
        assert status == 403 and code(body) == "AccessDenied", body
        status, _, body = signed("GET", "/bkt", by=Signer("NOBODY", SECRET))
        assert status == 403 and code(body) == "InvalidAccessKeyId", body
        status, _, body = signed("GET", "/bkt", by=Signer(KEY, "wrong"))
        assert status == 403 and code(body) == "SignatureDoesNotMatch", body
        status, _, body = signed("GET", "/bkt", by=Signer(KEY, SECRET, region="eu-west-1"))
        assert status == 400 and code(body) == "AuthorizationHeaderMalformed" and element(body, "Region") == "us-east-1", body
        status, _, body = node.request("GET", "/bkt", headers={"Authorization": f"AWS {KEY}:c2lnbmF0dXJl", "Date": "Mon, 30 Nov 2026 00:00:00 GMT"})
        assert status == 400 and code(body) == "InvalidRequest" and b"AWS4-HMAC-SHA256" in body, body
        status, _, body = node.request("GET", f"/bkt/x?AWSAccessKeyId={KEY}&Signature=abc&Expires=9999999999")
        assert status == 400 and b"AWS4-HMAC-SHA256" in body, body
        # An empty payload signed before a body that is not empty: some peers let it pass.
        headers = signer.headers("PUT", host, "/bkt/sneaked", "", hashlib.sha256(b"").hexdigest())
        status, _, body = node.request("PUT", "/bkt/sneaked", body=b"sneaked in", headers=headers)
        assert status == 400 and code(body) == "XAmzContentSHA256Mismatch", body
        assert signed("HEAD", "/bkt/sneaked")[0] == 404

    @lane.test
    def nobody_is_told_to_continue_who_will_be_refused():
        """Whatever can be known from the head is said in place of the 100, and the connection is closed."""
        upload = element(signed("POST", "/bkt/part", "uploads=")[2], "UploadId")
        for path, query, by, more, want in (
                ("/bkt/k", "", Signer(KEY, "wrong"), {}, "SignatureDoesNotMatch"), ("/absent/k", "", signer, {}, "NoSuchBucket"),
                ("/bkt/k", "", Signer(KEY, SECRET, offset_s=2000), {}, "RequestTimeTooSkewed"),
                ("/bkt/part", f"partNumber=0&uploadId={upload}", signer, {}, "InvalidArgument"),
                ("/bkt/part", "partNumber=1&uploadId=none", signer, {}, "NoSuchUpload"), ("/bkt/k", "", signer, {"Content-MD5": "x"}, "InvalidDigest"),
                ("/bkt/k", "", signer, {"Content-Length": str(1 << 43)}, "EntityTooLarge"),
                ("/bkt/k", "", signer, {"Content-Length": str(1 << 42)}, "InsufficientStorage"),
                ("/bkt/k", "", signer, {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-sha1": "x"}, "InvalidRequest"),
                ("/bkt/k", "", signer, {"x-amz-meta-long": "m" * 3000}, "MetadataTooLarge")):
            headers = by.headers("PUT", host, path, query, "UNSIGNED-PAYLOAD", {"Content-Length": "5", **more})
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            with node.connect() as sock:
                sock.sendall(f"PUT {path}{'?' + query if query else ''} HTTP/1.1\r\n{lines}Expect: 100-continue\r\n\r\n".encode())
                answer = b""
                while piece := sock.recv(65536):
                    answer += piece
            assert b" 100 " not in answer.partition(b"\r\n")[0] and code(answer) == want, (path, more, answer)
            assert b"\r\nConnection: close\r\n" in answer, answer

    @lane.test
    def every_answer_says_the_time():
        """SDKs sign with our clock after one answer with a wrong Date: it must be right, in errors too."""
        for target in ("/bkt", "/absent/key", "/bkt?list-type=2"):
            before = int(time.time())
            status, head, _ = node.request("GET", target)
            said = email.utils.parsedate_to_datetime(head["date"]).timestamp()
            assert status >= 400 and before - 1 <= said <= time.time() + 1, (head, before)
        assert "date" in signed("HEAD", "/bkt")[1]

    @lane.test
    def a_bucket_in_the_host_name():
        virtual = "bkt.s3.example.org"
        assert signed("PUT", "/dir/in%20host", body=b"virtual", host=virtual)[0] == 200
        assert signed("GET", "/bkt/dir/in%20host")[2] == b"virtual"
        assert signed("GET", "/dir/in%20host", host=virtual)[2] == b"virtual"
        status, _, body = signed("GET", "/", "list-type=2&prefix=dir/", host=virtual)
        assert status == 200 and b"<Key>dir/in host</Key>" in body and b"<Name>bkt</Name>" in body, body
        assert signed("GET", "/bkt/dir/in%20host", host="s3.example.org")[2] == b"virtual"  # The domain itself: path style
        target = signer.presigned("GET", virtual, "/dir/in%20host")
        assert node.request("GET", target, headers={"Host": virtual})[2] == b"virtual"
        assert signed("GET", "/dir/in%20host", host="absent.s3.example.org")[0] == 404
        assert signed("DELETE", "/dir/in%20host", host=virtual)[0] == 204
        assert signed("HEAD", "/bkt/dir/in%20host")[0] == 404

    def write_credentials(text):
        path = os.path.join(node.folder, "credentials")
        with open(path, "w") as f:
            f.write(text)
        node.process.send_signal(signal.SIGHUP)

    @lane.test
    def keys_are_read_again_on_sighup_and_a_bad_file_changes_nothing():
        """A connection that is kept open sees new keys too; a file that is wrong leaves the old ones in use and says so."""
        conn = http.client.HTTPConnection("127.0.0.1", node.s3_port, timeout=30)

        def ask(by):
            conn.request("GET", "/bkt?list-type=2", headers=by.headers("GET", host, "/bkt", "list-type=2"))
            answer = conn.getresponse()
            return answer.status if answer.read() is not None else None
        old, new = Signer(KEY, SECRET), Signer("NEWKEY", "a-secret-of-the-new-key-40-characters-long")
        assert (ask(old), ask(new)) == (200, 403)
        write_credentials("key NEWKEY a-secret-of-the-new-key-40-characters-long\n  allow all *\n")
        wait_for(lambda: ask(new) == 200, "the new key to be taken")
        assert ask(old) == 403
        said = node.log_text().count("credentials")
        write_credentials("key NEWKEY\n  allow everything\n")
        wait_for(lambda: node.log_text().count("credentials") > said, "the bad file to be named in the log")
        assert (ask(new), ask(old)) == (200, 403)
        write_credentials(f"key {KEY} {SECRET}\n  allow all *\n")
        wait_for(lambda: ask(old) == 200, "the first key to be back")
        assert ask(new) == 403
        conn.close()


POLICIES = f"""key {KEY} {SECRET}
  allow all *
key READER a-secret-of-the-reader
  allow read,list bkt/in/
key WRITER a-secret-of-the-writer
  allow write bkt/in/
key DELETER a-secret-of-the-deleter
  allow delete bkt/in/
"""

with Node(credentials=POLICIES, limits="object_size_max: 100000") as node:
    host = f"127.0.0.1:{node.s3_port}"

    def ask(by, method, path, query="", body=b"", more=None):
        headers = by.headers(method, host, path, query, hashlib.sha256(body).hexdigest(), more)
        return node.request(method, path + ("?" + query if query else ""), body=body or None, headers=headers)

    owner = Signer(KEY, SECRET)
    assert ask(owner, "PUT", "/bkt")[0] == 200

    @lane.test
    def a_key_may_what_its_policy_says_under_its_prefix_and_nothing_else():
        """Every kind of request by three keys with one right each, under their prefix and beside it."""
        upload = {}
        for place in ("in", "out"):
            assert ask(owner, "PUT", f"/bkt/{place}/a", body=b"x")[0] == 200
            upload[place] = element(ask(owner, "POST", f"/bkt/{place}/open", "uploads=")[2], "UploadId")
        for name, secret, right in (("READER", "a-secret-of-the-reader", "read"), ("WRITER", "a-secret-of-the-writer", "write"),
                                    ("DELETER", "a-secret-of-the-deleter", "delete")):
            by = Signer(name, secret)
            for place in ("in", "out"):
                open_upload = f"uploadId={upload[place]}"
                for method, path, query, needs, good in (
                        ("GET", f"/{place}/a", "", "read", 200), ("HEAD", f"/{place}/a", "", "read", 200), ("GET", f"/{place}/a", "tagging=", "read", 200),
                        ("GET", "", f"list-type=2&prefix={place}%2F", "read", 200), ("GET", "", f"prefix={place}%2F&versions=", "read", 200),
                        ("PUT", f"/{place}/b", "", "write", 200), ("POST", f"/{place}/m", "uploads=", "write", 200),
                        ("PUT", f"/{place}/open", "partNumber=1&" + open_upload, "write", 200), ("DELETE", f"/{place}/b", "", "delete", 204)):
                    want = good if needs == right and place == "in" else 403
                    got, _, body = ask(by, method, "/bkt" + path, query, b"y" if method == "PUT" else b"")
                    assert got == want, (name, method, path, query, got, body)
            for method, path, query in (("GET", "/bkt", "list-type=2"), ("GET", "/bkt", "uploads="), ("PUT", "/new", ""), ("DELETE", "/bkt", "")):
                assert ask(by, method, path, query)[0] == 403, (name, method, path, query)
            # A copy needs both ends.
            assert ask(by, "PUT", "/bkt/in/copy", more={"x-amz-copy-source": "/bkt/in/a"})[0] == 403
            document = b"<Delete><Object><Key>in/b</Key></Object><Object><Key>out/a</Key></Object></Delete>"
            md5 = base64.b64encode(hashlib.md5(document).digest()).decode()
            body = ask(by, "POST", "/bkt", "delete=", document, {"Content-MD5": md5})[2]
            assert (b"<Deleted><Key>in/b" in body) == (right == "delete") and b"<Error><Key>out/a" in body, (name, body)
        assert ask(owner, "GET", "/bkt/out/a")[2] == b"x"
        assert node.request("GET", "/bkt/in/a")[0] == 403

    @lane.test
    def objects_and_parts_above_the_configured_size_are_refused():
        """With a length at once, before 100; without one when the limit is passed."""
        upload = element(ask(owner, "POST", "/bkt/large", "uploads=")[2], "UploadId")
        for query in ("", f"partNumber=1&uploadId={upload}"):
            assert ask(owner, "PUT", "/bkt/large", query, b"z" * 100000)[0] == 200
            status, _, body = ask(owner, "PUT", "/bkt/large", query, b"y" * 100001)
            assert status == 400 and code(body) == "EntityTooLarge", body
            headers = owner.headers("PUT", host, "/bkt/large", query, "UNSIGNED-PAYLOAD", {"Transfer-Encoding": "chunked"})
            conn = http.client.HTTPConnection("127.0.0.1", node.s3_port, timeout=30)
            conn.request("PUT", "/bkt/large" + ("?" + query if query else ""), body=iter([b"y" * 50000] * 3), headers=headers, encode_chunked=True)
            answer = conn.getresponse()
            body = answer.read()
            assert answer.status == 400 and code(body) == "EntityTooLarge", body
            conn.close()
        assert ask(owner, "GET", "/bkt/large")[2] == b"z" * 100000

lane.close()
