#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No upload is ever seen in part. Each form in which S3 takes bytes (one request with a length, HTTP chunks, the STREAMING forms with a
length or inside HTTP chunks, a part, a copy, a completion, a multi-delete) is broken off in the middle in each way there is: the peer
ends, resets, stalls, sends other bytes than it signed, or the node is killed. Oracle: HEAD, GET and listings show what was there before."""

import hashlib
import os
import random
import re
import socket
import struct

from node import Lane, Node, wait_for
from sigv4 import Signer, crc32, crc32_trailer, http_chunks, unsigned_chunks

lane = Lane()
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"
DATA = random.Random(3).randbytes(150_001)
PIECES = [DATA[i:i + 65536] for i in range(0, len(DATA), 65536)]
OLD = b"what was there before"
SIGNED, TRAILER, UNSIGNED = ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
                             "STREAMING-UNSIGNED-PAYLOAD-TRAILER")


class Form:
    """One way to send DATA: the literal payload hash, and whether the body lies inside HTTP chunks."""

    def __init__(self, name, payload, in_chunks, detects):
        self.name, self.payload, self.in_chunks = name, payload, in_chunks
        self.detects = detects  # the code for a changed byte, None: nothing tells

    def stream(self, node, target):
        """(head, body) as they go over the wire."""
        path, _, query = target.partition("?")
        host = f"127.0.0.1:{node.s3_port}"
        more = {}
        if self.payload.startswith("STREAMING"):
            more = {"Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(DATA))}
        if self.payload in (TRAILER, UNSIGNED):
            more["x-amz-trailer"] = "x-amz-checksum-crc32"
        headers = signer.headers("PUT", host, path, query, self.payload, more)
        seed = headers["Authorization"].rpartition("=")[2]
        body = {SIGNED: lambda: signer.chunks(seed, PIECES), TRAILER: lambda: signer.chunks(seed, PIECES, crc32_trailer(DATA)),
                UNSIGNED: lambda: unsigned_chunks(PIECES, crc32_trailer(DATA))}.get(self.payload, lambda: DATA)()
        if self.in_chunks:
            body = http_chunks(body)
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Content-Length"] = str(len(body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"PUT {target} HTTP/1.1\r\n{lines}\r\n".encode(), body


FORMS = [Form("length", "UNSIGNED-PAYLOAD", False, None), Form("chunked", "UNSIGNED-PAYLOAD", True, None),
         Form("hashed", hashlib.sha256(DATA).hexdigest(), False, "XAmzContentSHA256Mismatch"),
         Form("hashed-chunked", hashlib.sha256(DATA).hexdigest(), True, "XAmzContentSHA256Mismatch"),
         Form("signed", SIGNED, False, "SignatureDoesNotMatch"), Form("signed-chunked", SIGNED, True, "SignatureDoesNotMatch"),
         Form("trailer", TRAILER, False, "SignatureDoesNotMatch"), Form("trailer-chunked", TRAILER, True, "SignatureDoesNotMatch"),
         Form("unsigned", UNSIGNED, False, "BadDigest"), Form("unsigned-chunked", UNSIGNED, True, "BadDigest")]
signer = Signer(KEY, SECRET)


def receive(sock):
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def code(answer):
    found = re.search(rb"<Code>(.*?)</Code>", answer)
    return found.group(1).decode() if found else answer[:200]


def element(body, name):
    return re.search(f"<{name}>(.*?)</{name}>".encode(), body).group(1).decode()


def signed(node, method, target, body=b"", more=None):
    path, _, query = target.partition("?")
    headers = signer.headers(method, f"127.0.0.1:{node.s3_port}", path, query, hashlib.sha256(body).hexdigest(), more)
    return node.request(method, target, body=body or None, headers=headers)


class Before:
    """A key that is there, one that is not and an upload with one part, per form; and what must still be so."""

    def __init__(self, node, folder):
        self.node, self.folder, self.uploads = node, folder, {}
        for form in FORMS:
            assert signed(node, "PUT", self.path(form, "old"), OLD)[0] == 200
            upload = element(signed(node, "POST", self.path(form, "multi") + "?uploads=")[2], "UploadId")
            status, head, body = signed(node, "PUT", self.path(form, "multi") + f"?partNumber=1&uploadId={upload}", OLD)
            assert status == 200, body
            self.uploads[form.name] = (upload, head["etag"])

    def path(self, form, what):
        return f"/bkt/{self.folder}/{form.name}/{what}"

    def targets(self, form):
        upload, _ = self.uploads[form.name]
        multi = self.path(form, "multi")
        return [self.path(form, "old"), self.path(form, "new"), f"{multi}?partNumber=1&uploadId={upload}",
                f"{multi}?partNumber=2&uploadId={upload}"]

    def still_holds(self):
        node = self.node
        wait_for(lambda: node.metric("penstock_uploads_in_flight") == 0, "the uploads to be given up")
        listed = signed(node, "GET", f"/bkt?list-type=2&prefix={self.folder}%2F")[2].decode()
        assert re.findall("<Key>(.*?)</Key>", listed) == sorted(self.path(form, "old")[5:] for form in FORMS), listed
        assert set(re.findall("<Size>(.*?)</Size>", listed)) == {str(len(OLD))}, listed
        for form in FORMS:
            assert signed(node, "GET", self.path(form, "old"))[2] == OLD, form.name
            assert signed(node, "HEAD", self.path(form, "new"))[0] == 404, form.name
            upload, etag = self.uploads[form.name]
            parts = signed(node, "GET", self.path(form, "multi") + f"?uploadId={upload}")[2]
            assert re.findall(rb"<PartNumber>(\d+)<", parts) == [b"1"] and etag.strip('"').encode() in parts, (form.name, parts)
        assert node.metric("penstock_store_puts_in_flight") == 0


def cuts(body):
    """Nothing, the first bytes, inside the first chunk's line and payload, in the middle, and all but the end."""
    return [0, 1, 60, 40_000, len(body) // 2, len(body) - 3, len(body) - 1]


CREDENTIALS = f"key {KEY} {SECRET}\n  allow all *\n"

with Node(credentials=CREDENTIALS, limits="body_timeout: 1s") as node:
    assert signed(node, "PUT", "/bkt")[0] == 200

    @lane.test
    def a_peer_that_stalls_is_told_so_and_changes_nothing():
        before = Before(node, "stall")
        socks = []
        for form in FORMS:
            for target in before.targets(form):
                head, body = form.stream(node, target)
                socks.append((form, node.connect()))
                socks[-1][1].sendall(head + body[:len(body) // 2])
        for form, sock in socks:
            answer = receive(sock)
            assert code(answer) == "RequestTimeout", (form.name, answer)
            sock.close()
        before.still_holds()

with Node(credentials=CREDENTIALS) as node:
    assert signed(node, "PUT", "/bkt")[0] == 200

    @lane.test
    def every_form_stores_what_was_sent():
        """So that what follows is about good requests that were broken off."""
        for form in FORMS:
            with node.connect() as sock:
                head, body = form.stream(node, f"/bkt/{form.name}")
                sock.sendall(head + body)
                answer = sock.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 "), (form.name, answer)
            assert signed(node, "GET", f"/bkt/{form.name}")[2] == DATA, form.name

    @lane.test
    def a_peer_that_ends_in_the_middle_is_told_and_changes_nothing():
        before = Before(node, "end")
        for form in FORMS:
            for target in before.targets(form):
                head, body = form.stream(node, target)
                for cut in cuts(body):
                    with node.connect() as sock:
                        sock.sendall(head + body[:cut])
                        sock.shutdown(socket.SHUT_WR)
                        answer = receive(sock)
                    assert answer.startswith(b"HTTP/1.1 400 ") and code(answer) == "IncompleteBody", (form.name, target, cut, answer)
        before.still_holds()

    @lane.test
    def a_peer_that_resets_in_the_middle_changes_nothing():
        before = Before(node, "reset")
        for form in FORMS:
            for target in before.targets(form):
                head, body = form.stream(node, target)
                for cut in cuts(body):
                    with node.connect() as sock:
                        sock.sendall(head + body[:cut])
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") == 0, "the connections to be gone")
        before.still_holds()

    @lane.test
    def other_bytes_than_were_signed_or_summed_change_nothing():
        """In the middle of the payload, and in its last byte."""
        before = Before(node, "changed")
        for form in FORMS:
            if form.detects is None:
                continue
            for target in before.targets(form):
                head, body = form.stream(node, target)
                for at in (body.index(DATA[70_000:70_020]), body.index(DATA[-20:]) + 19):
                    with node.connect() as sock:
                        sock.sendall(head + body[:at] + bytes([body[at] ^ 1]) + body[at + 1:])
                        sock.shutdown(socket.SHUT_WR)
                        answer = receive(sock)
                    assert code(answer) == form.detects, (form.name, target, at, answer)
        before.still_holds()

    @lane.test
    def a_missing_or_false_end_of_a_stream_changes_nothing():
        """A chunk or the trailer left out while all lengths agree: only the framing can tell."""
        before = Before(node, "end-of-stream")
        for form in FORMS:
            if not form.payload.startswith("STREAMING") or form.in_chunks:
                continue
            for target in before.targets(form):
                _, body = form.stream(node, target)
                last = body.index(DATA[-20:]) + 20
                second = body.index(PIECES[1][:20])
                second = body.rindex(b"\r\n", 0, second - 2) + 2
                third = body.rindex(b"\r\n", 0, body.index(PIECES[2][:20]) - 2) + 2
                for changed in (body[:last] + b"\r\n", body[:second] + body[third:], body[:last] + b"\r\n0\r\n\r\n" + b"x" * 300):
                    head, _ = form.stream(node, target)
                    head = re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % len(changed), head)
                    with node.connect() as sock:
                        sock.sendall(head + changed)
                        sock.shutdown(socket.SHUT_WR)
                        answer = receive(sock)
                    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 ")), (form.name, target, answer)
        before.still_holds()

    @lane.test
    def copies_completions_and_deletes_that_fail_change_nothing():
        before = Before(node, "meta")
        form = FORMS[0]
        old, new = before.path(form, "old"), before.path(form, "new")
        upload, etag = before.uploads[form.name]
        multi = before.path(form, "multi")
        for target in (old, new, f"{multi}?partNumber=1&uploadId={upload}", f"{multi}?partNumber=2&uploadId={upload}"):
            for source, more, want in (("/bkt/absent", {}, "NoSuchKey"), ("/absent/x", {}, "NoSuchBucket"), ("nothing", {}, "InvalidArgument"),
                                       ("/bkt/length", {"x-amz-copy-source-if-match": "x"}, "PreconditionFailed"),
                                       ("/bkt/length", {"x-amz-copy-source-if-none-match": "*"}, "PreconditionFailed"),
                                       ("/bkt/length", {"x-amz-copy-source-range": "bytes=5-999999"}, "InvalidArgument")):
                if "range" in str(more) and "?" not in target:
                    continue
                status, _, body = signed(node, "PUT", target, more={"x-amz-copy-source": source, **more})
                assert status >= 400 and code(body) == want, (target, source, more, body)
        good = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>".encode()
        for document in (good[:-30], good.replace(b"<ETag>", b"<ETag>x"), good + b"<more/>", b"", b"<Delete></Delete>"):
            status, _, body = signed(node, "POST", f"{multi}?uploadId={upload}", document)
            assert status == 400, (document, body)
        document = "".join(f"<Object><Key>{before.path(f, 'old')[5:]}</Key></Object>" for f in FORMS)
        delete = f"<Delete>{document}</Delete>".encode()
        for body in (delete[:-9], delete[:len(delete) // 2], delete.replace(b"</Delete>", b"</Deleted>")):
            assert code(signed(node, "POST", "/bkt?delete=", body)[2]) == "MalformedXML"
        for more in ({"Content-MD5": "1B2M2Y8AsgTpgAmY7PhCfg=="}, {"x-amz-checksum-crc32": crc32(b"")}):
            assert code(signed(node, "POST", "/bkt?delete=", delete, more)[2]) == "BadDigest"
        # Broken off on the wire: ends and resets at several places.
        for target, body in ((f"{multi}?uploadId={upload}", good), ("/bkt?delete=", delete)):
            path, _, query = target.partition("?")
            head = signer.headers("POST", f"127.0.0.1:{node.s3_port}", path, query, "UNSIGNED-PAYLOAD", {"Content-Length": str(len(body))})
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            for cut in (0, 1, len(body) // 2, len(body) - 1):
                for end in ("fin", "reset"):
                    with node.connect() as sock:
                        sock.sendall(f"POST {target} HTTP/1.1\r\n{lines}\r\n".encode() + body[:cut])
                        if end == "fin":
                            sock.shutdown(socket.SHUT_WR)
                            assert code(receive(sock)) == "IncompleteBody", (target, cut)
                        else:
                            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") == 0, "the connections to be gone")
        before.still_holds()

    @lane.test
    def a_node_killed_in_the_middle_of_every_form_shows_the_old_state():
        before = Before(node, "killed")
        socks = []
        for form in FORMS:
            for target in before.targets(form):
                head, body = form.stream(node, target)
                for cut in (len(body) // 2, len(body) - 1):
                    socks.append(node.connect())
                    socks[-1].sendall(head + body[:cut])
        wait_for(lambda: node.metric("penstock_uploads_in_flight") == len(socks), "every upload to be under way")
        node.process.kill()
        node.process.wait()
        for sock in socks:
            sock.close()
        node.start()
        before.still_holds()

lane.close()
