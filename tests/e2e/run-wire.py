#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an unfriendly or unusual peer writes on the wire: framing that lies, odd chunks, keys of every byte, ranges at every edge, odd methods
and targets. Oracle: a definite answer to each request, nothing visible that was not answered 200, and a node that serves the next one."""

import base64
import hashlib
import os
import random
import socket
import struct
import urllib.parse
import xml.etree.ElementTree as xml

from node import Lane, Node, wait_for

lane = Lane()
NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def receive_all(sock):
    data = b""
    try:
        while True:
            piece = sock.recv(1 << 20)
            if not piece:
                return data
            data += piece
    except ConnectionResetError:
        return data


def talk(stream, half_close=False):
    """Everything the node answers to these bytes until it closes."""
    with node.connect(timeout=20) as sock:
        sock.sendall(stream)
        if half_close:
            sock.shutdown(socket.SHUT_WR)
        return receive_all(sock)


def statuses(answer):
    """Of each answer in a row; each body is skipped by its Content-Length."""
    found = []
    while answer:
        head, _, answer = answer.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        found.append(int(lines[0].split()[1]))
        length = [int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:")]
        if found[-1] >= 200 and length:
            answer = answer[length[0]:]
    return found


def code(body):
    return body.decode("utf-8", "replace").partition("<Code>")[2].partition("</Code>")[0]


def absent(key):
    return node.request("HEAD", "/bkt/" + key)[0] == 404


def head(method, target, *headers, version="1.1"):
    return (f"{method} {target} HTTP/{version}\r\nHost: h\r\n" + "".join(h + "\r\n" for h in headers) + "\r\n").encode()


with Node() as node:
    assert node.request("PUT", "/bkt")[0] == 200
    payload = random.Random(1).randbytes(600_001)
    assert node.request("PUT", "/bkt/ranged", body=payload)[0] == 200
    assert node.request("PUT", "/bkt/none", body=b"")[0] == 200

    @lane.test
    def ranges_at_every_edge():
        size = len(payload)
        edges = [0, 1, 4095, 4096, 262143, 262144, size - 2, size - 1]
        for a in edges:
            for b in edges + [size, size + 1, 2 ** 63 - 1, 2 ** 64, 10 ** 30]:
                got, headers, body = node.request("GET", "/bkt/ranged", headers={"Range": f"bytes={a}-{b}"})
                if b < a:  # RFC 9110 section 14.1.1: invalid, so ignored
                    assert (got, len(body)) == (200, size), (a, b, got)
                    continue
                assert got == 206 and body == payload[a:b + 1], (a, b, got, len(body))
                assert headers["content-range"] == f"bytes {a}-{min(b, size - 1)}/{size}", headers
        for n in (1, size - 1, size, size + 1, 10 ** 30):
            got, headers, body = node.request("GET", "/bkt/ranged", headers={"Range": f"bytes=-{n}"})
            assert got == 206 and body == payload[max(0, size - n):], (n, got)
        for text, want in (("bytes=-0", 416), (f"bytes={size}-", 416), (f"bytes={10 ** 30}-", 416), ("bytes=-", 200), ("bytes=a-b", 200),
                           ("lines=0-1", 200), ("bytes=0-1,3-4", 200), ("bytes 0-1", 200), ("bytes=0-0", 206)):
            got, headers, body = node.request("GET", "/bkt/ranged", headers={"Range": text})
            assert got == want, (text, got)
            assert got != 416 or headers["content-range"] == f"bytes */{size}", headers
        for text in ("bytes=0-0", "bytes=0-", "bytes=-1"):
            got = node.request("GET", "/bkt/none", headers={"Range": text})
            assert got[0] == 416 or (got[0] == 200 and got[2] == b""), (text, got)
        got, headers, body = node.request("HEAD", "/bkt/ranged", headers={"Range": "bytes=5-6"})
        assert (got, body) in ((206, b""), (200, b"")) and headers["content-length"] == ("2" if got == 206 else str(size))

    @lane.test
    def keys_of_every_byte_and_length():
        keys = ["a" * n for n in (1, 255, 511, 512, 1023, 1024)] + ["é" * 512, "😀" * 256]
        keys += ["c" + chr(c) + "x" for c in range(0, 0x180)]
        keys += ["/", "//", "a//b", "./a", "../../etc/passwd", "a/./b", "a/../b", "trailing/", " lead", "trail ", "%41", "a+b", "a b", "?", "#"]
        for i, key in enumerate(keys):
            path = "/bkt/" + urllib.parse.quote(key, safe="" if i % 2 else "/")
            body = b"%d" % i
            got = node.request("PUT", path, body=body)
            assert got[0] == 200, (key, got)
        for i, key in enumerate(keys):
            path = "/bkt/" + urllib.parse.quote(key, safe="/" if i % 2 else "")
            assert node.request("GET", path)[2] == b"%d" % i, key
        want = sorted([k.encode() for k in keys] + [b"ranged", b"none"])
        seen, start = [], ""
        while True:
            got, _, body = node.request("GET", "/bkt?list-type=2&encoding-type=url&max-keys=7&start-after=" + urllib.parse.quote(start, safe=""))
            assert got == 200, body
            page = [urllib.parse.unquote(k.text) for k in xml.fromstring(body).iter(NAMESPACE + "Key")]
            if not page:
                break
            seen += page
            start = page[-1]
        assert [k.encode() for k in seen] == want, (len(seen), len(want))
        for key in keys:
            assert node.request("DELETE", "/bkt/" + urllib.parse.quote(key, safe=""))[0] == 204
        for path, want_code in (("/bkt/" + "a" * 1025, "KeyTooLongError"), ("/bkt/%ff", None), ("/bkt/%zz", None),
                                ("/bkt/%ed%a0%80", None), ("/bkt/%", None), ("/bkt/%c0%80", None)):
            got, _, body = node.request("PUT", path, body=b"x")
            assert got == 400 and (want_code is None or code(body) == want_code), (path, got, body)

    @lane.test
    def listing_pages_as_a_model_does():
        rng = random.Random(7)
        assert node.request("PUT", "/lists")[0] == 200
        keys = set()
        while len(keys) < 160:
            keys.add("".join(rng.choice("ab/é😀.~") for _ in range(rng.randint(1, 7))))
        for key in keys:
            assert node.request("PUT", "/lists/" + urllib.parse.quote(key, safe=""), body=b"x")[0] == 200
        ordered = sorted(keys, key=lambda k: k.encode())

        def model(prefix, delimiter):
            out = []
            for key in ordered:
                if not key.startswith(prefix):
                    continue
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                entry = ("p", key[:cut + len(delimiter)]) if cut >= 0 else ("k", key)
                if not out or out[-1] != entry:
                    out.append(entry)
            return out

        def entries(root):
            found = []
            for name, kind in (("Contents", "k"), ("CommonPrefixes", "p")):
                for node_ in root.findall(NAMESPACE + name):
                    found.append((kind, urllib.parse.unquote(node_[0].text)))
            return sorted(found, key=lambda e: e[1].encode())
        for _ in range(60):
            prefix = "" if rng.random() < .4 else rng.choice(ordered)[:rng.randint(1, 3)]
            delimiter = rng.choice(["", "/", "a", "//", "é", "ab"])
            pages, version = rng.choice([1, 2, 3, 5, 1000]), rng.choice([1, 2])
            seen, more = [], {}
            for _ in range(400):
                query = {"prefix": prefix, "delimiter": delimiter, "max-keys": pages, "encoding-type": "url", **more}
                if version == 2:
                    query["list-type"] = 2
                got, _, body = node.request("GET", "/lists?" + urllib.parse.urlencode(query))
                assert got == 200, body
                root = xml.fromstring(body)
                page = entries(root)
                assert len(page) <= pages
                seen += page
                if root.findtext(NAMESPACE + "IsTruncated") == "false":
                    break
                if version == 2:
                    more = {"continuation-token": root.findtext(NAMESPACE + "NextContinuationToken")}
                    assert int(root.findtext(NAMESPACE + "KeyCount")) == len(page)
                else:
                    marker = root.findtext(NAMESPACE + "NextMarker")
                    more = {"marker": urllib.parse.unquote(marker) if marker else page[-1][1]}
            want = model(prefix, delimiter)
            want.sort(key=lambda e: e[1].encode())
            assert seen == want, (prefix, delimiter, pages, version, seen, want)
        for query, want in (("max-keys=0", 200), ("max-keys=-1", 400), ("max-keys=x", 400), ("max-keys=99999999999", None),
                            ("list-type=2&continuation-token=garbage", 400), ("list-type=2&continuation-token=", None),
                            ("encoding-type=what", 400), ("list-type=3", None)):
            got = node.request("GET", "/lists?" + query)
            assert got[0] in ((want,) if want else (200, 400, 501)), (query, got)

    @lane.test
    def a_body_that_is_not_what_was_declared_stores_nothing():
        wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        for i, (headers, body, want) in enumerate((
                ({"Content-MD5": wrong}, b"hello", "BadDigest"), ({"Content-MD5": "xyz"}, b"hello", "InvalidDigest"),
                ({"x-amz-content-sha256": hashlib.sha256(b"other").hexdigest()}, b"hello", "XAmzContentSHA256Mismatch"),
                ({"x-amz-content-sha256": "0" * 63}, b"hello", None), ({"x-amz-checksum-crc32": "AAAAAA=="}, b"hello", "BadDigest"),
                ({"x-amz-checksum-crc32c": "short"}, b"hello", None),
                ({"x-amz-content-sha256": hashlib.sha256(b"other").hexdigest()}, b"", "XAmzContentSHA256Mismatch"),
                ({"Content-MD5": wrong}, b"", "BadDigest"))):
            got, _, answer = node.request("PUT", f"/bkt/lie-{i}", body=body, headers=headers)
            assert got == 400 and (want is None or code(answer) == want), (headers, got, answer)
            assert absent(f"lie-{i}")
        answer = talk(head("PUT", "/bkt/short", "Content-Length: 10") + b"hello", half_close=True)
        assert statuses(answer) == [400] and code(answer) == "IncompleteBody" and absent("short"), answer
        answer = talk(head("PUT", "/bkt/short", "Transfer-Encoding: chunked") + b"5\r\nhello\r\n", half_close=True)
        assert statuses(answer) == [400] and absent("short"), answer

    @lane.test
    def framing_that_two_readers_could_read_differently_is_refused():
        smuggled = b"GET /bkt/none HTTP/1.1\r\nHost: h\r\n\r\n"
        for fields in (["Content-Length: 5", "Transfer-Encoding: chunked"], ["Content-Length: 5", "Content-Length: 6"],
                       ["Content-Length: 5, 6"], ["Content-Length: +5"], ["Content-Length: 0x5"], ["Content-Length: -1"],
                       ["Content-Length: 18446744073709551617"], ["Content-Length: 5 5"], ["Content-Length:"],
                       ["Transfer-Encoding: gzip, chunked"], ["Transfer-Encoding: chunked, identity"], ["Transfer-Encoding: xchunked"],
                       ["Transfer-Encoding : chunked"], ["Content-Length: 5", " folded: x"], ["Nocolon"], ["Bad\0name: x"], ["A: b\0c"],
                       ["A: b\rc"], ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], ["Transfer-Encoding:\x0bchunked"]):
            answer = talk(head("PUT", "/bkt/smuggle", *fields) + b"0\r\n\r\n" + smuggled)
            found = statuses(answer)
            assert len(found) == 1 and 400 <= found[0] < 600, (fields, answer)
            assert absent("smuggle"), fields
        assert statuses(talk(head("GET", "/bkt/none", version="1.1").replace(b"Host: h\r\n", b""))) == [400]

    @lane.test
    def chunks_of_odd_sizes_and_shapes():
        rng = random.Random(3)
        for round_ in range(12):
            data, framed = b"", b""
            for _ in range(rng.randint(1, 40)):
                piece = rng.randbytes(rng.choice([1, 2, 3, 5, 511, 4095, 4097, 16383, 65537]))
                size = b"%x" % len(piece)
                size = rng.choice([size, size.upper(), b"000" + size, size + b";ext=1", size + b';q="a;b"'])
                framed += size + b"\r\n" + piece + b"\r\n"
                data += piece
            framed += b"0\r\n" + rng.choice([b"", b"X-Trailer: y\r\n"]) + b"\r\n"
            stream = head("PUT", "/bkt/chunks", "Transfer-Encoding: chunked") + framed + head("GET", "/bkt/chunks", "Connection: close")
            with node.connect() as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while stream:
                    cut = rng.choice([1, 2, 7, 100, 4096, 70000])
                    sock.sendall(stream[:cut])
                    stream = stream[cut:]
                answer = receive_all(sock)
            assert statuses(answer) == [200, 200] and answer.endswith(data), (round_, answer[:300])
        for bad in (b"5\r\nhelloX\r\n0\r\n\r\n", b"g\r\n", b"-5\r\nhello\r\n", b"\r\n\r\n", b"ffffffffffffffffff\r\n", b"5 \nhello\r\n0\r\n\r\n",
                    b"0x5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\nbad trailer\r\n\r\n", b"1" * 100000):
            answer = talk(head("PUT", "/bkt/badchunk", "Transfer-Encoding: chunked") + bad, half_close=True)
            assert statuses(answer)[0] in (400, 501) and absent("badchunk"), (bad[:40], answer)

    @lane.test
    def many_requests_in_one_segment_are_answered_in_order():
        stream = b""
        for i in range(300):
            stream += head("PUT", f"/bkt/pipe-{i}", f"Content-Length: {i}") + b"p" * i
            stream += head("GET", f"/bkt/pipe-{i}") + head("HEAD", f"/bkt/pipe-{i}") if i % 3 == 0 else b""
        stream += head("GET", "/bkt/none", "Connection: close")
        with node.connect() as sock:
            sock.sendall(stream)
            answer = receive_all(sock)
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 300 + 200 + 1, answer.count(b"HTTP/1.1 ")

    @lane.test
    def heads_at_and_past_the_limit():
        for size, want in ((16384, 200), (16385, None), (40000, None), (1 << 20, None)):
            start = f"GET /bkt/none HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX: "
            answer = talk((start + "y" * (size - len(start) - 4) + "\r\n\r\n").encode())
            assert statuses(answer) == ([want] if want else statuses(answer)) and statuses(answer)[0] in (200, 400, 431), (size, answer[:200])
            assert want == 200 or statuses(answer)[0] != 200
        assert statuses(talk(b"GET /bkt/" + b"a" * 20000 + b" HTTP/1.1\r\nHost: h\r\n\r\n"))[0] in (400, 414, 431)
        many = b"".join(b"X-%d: y\r\n" % i for i in range(1500))
        assert statuses(talk(b"GET /bkt/none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + many + b"\r\n"))[0] in (200, 400, 431)

    @lane.test
    def odd_methods_versions_and_targets():
        for stream, want in (
                (head("GET", "/bkt/none", version="1.0"), (200,)), (b"GET /bkt/none HTTP/1.0\r\n\r\n", (200,)),
                (head("GET", "http://h/bkt/none", "Connection: close"), (200,)), (head("GET", "http://h:1/bkt/none", "Connection: close"), (200,)),
                (head("PUT", "/bkt/ten", "Content-Length: 2", version="1.0") + b"hi", (200,)),
                (head("PUT", "/bkt/x", "Transfer-Encoding: chunked", version="1.0") + b"0\r\n\r\n", (200, 400, 501)),
                (head("PUT", "/bkt/nolength", "Connection: close"), (411, 200)),
                (head("GET", "*"), (400,)), (head("OPTIONS", "*", "Connection: close"), (200, 400, 405, 403, 501)),
                (head("CONNECT", "h:80"), (400, 405, 501)), (head("TRACE", "/bkt/none", "Connection: close"), (405, 501, 400)),
                (head("PATCH", "/bkt/none", "Connection: close"), (405, 501)), (head("POST", "/bkt/none", "Connection: close"), (405, 400, 501, 411)),
                (head("BREW", "/bkt/none"), (405,)), (head("get", "/bkt/none"), (405,)), (head("B(W", "/bkt/none"), (400,)), (b"\0\0\0\0\r\n\r\n", (400,)),
                (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500, (400,)), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 405, 505, 501)),
                (b"GET /bkt/none HTTP/2.0\r\nHost: h\r\n\r\n", (400, 505)), (b"GET /bkt/none HTTP/9.9\r\nHost: h\r\n\r\n", (400, 505)),
                (b"GET /bkt/none\r\n\r\n", (400, 505)), (b"\r\n\r\nGET /bkt/none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", (200, 400)),
                (b"GET  /bkt/none HTTP/1.1\r\nHost: h\r\n\r\n", (200, 400)), (b"GET /bkt/no\0ne HTTP/1.1\r\nHost: h\r\n\r\n", (400,)),
                (head("GET", "/bkt/none#frag", "Connection: close"), (200, 400, 404)), (head("GET", "bkt/none"), (400,)),
                (head("DELETE", "/", "Connection: close"), (405, 400, 501)), (head("PUT", "/", "Connection: close"), (405, 400, 501)),
                (head("PUT", "/UPPER", "Connection: close"), (400,)), (head("PUT", "/a", "Connection: close"), (400,)),
                (head("PUT", "/" + "a" * 64, "Connection: close"), (400,)), (head("PUT", "/1.2.3.4", "Connection: close"), (400,)),
                (head("PUT", "/a..b", "Connection: close"), (400,)), (head("GET", "/bkt?acl", "Connection: close"), (501, 200)),
                (head("GET", "/bkt/none", "Expect: 200-ok", "Connection: close"), (417, 200)),
                (head("GET", "/bkt/none", "Content-Length: 3", "Connection: close") + b"abc", (200, 400))):
            with node.connect(timeout=10) as sock:
                sock.sendall(stream)
                if want != (200,) or b"1.0" not in stream:
                    sock.shutdown(socket.SHUT_WR)
                answer = receive_all(sock)
            found = statuses(answer)
            assert found and found[0] in want, (stream[:80], found, answer[:300])

    @lane.test
    def a_reset_anywhere_in_an_upload_leaves_nothing():
        rng = random.Random(5)
        for i in range(60):
            body = rng.randbytes(rng.choice([5, 5000, 300_000]))
            stream = head("PUT", f"/bkt/rst-{i}", f"Content-Length: {len(body)}") + body
            with node.connect() as sock:
                sock.sendall(stream[:rng.randrange(len(stream))])
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") == 0, "the connections to be gone")
        assert node.metric("penstock_store_puts_in_flight") == 0
        assert all(absent(f"rst-{i}") for i in range(60))

    @lane.test
    def many_buckets():
        for i in range(300):
            assert node.request("PUT", f"/many-{i:03}")[0] == 200
        body = node.request("GET", "/")[2].decode()
        assert body.count("<Name>many-") == 300
        for i in range(300):
            assert node.request("DELETE", f"/many-{i:03}")[0] == 204
        assert node.request("DELETE", "/bkt")[0] == 409 and node.request("DELETE", "/many-000")[0] == 404

lane.close()
