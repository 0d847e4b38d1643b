# SPDX-License-Identifier: Apache-2.0
"""Signs requests as S3 clients do: Signature Version 4 in a header or in the query, and the STREAMING forms of a body. Written from
the public rules and not from the server's code, so that both can be wrong in different ways only. Standard library only.
"""

import base64
import datetime
import hashlib
import hmac
import urllib.parse
import zlib

EMPTY = hashlib.sha256(b"").hexdigest()


def quote(text, safe="/~"):
    return urllib.parse.quote(text, safe=safe)


def digest(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Signer:
    def __init__(self, key, secret, region="us-east-1", offset_s=0):
        self.key, self.region = key, region
        now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=offset_s)
        self.time = now.strftime("%Y%m%dT%H%M%SZ")
        self.scope = f"{self.time[:8]}/{region}/s3/aws4_request"
        self.signing_key = ("AWS4" + secret).encode()
        for text in self.scope.split("/"):
            self.signing_key = digest(self.signing_key, text)

    def signature(self, text):
        return digest(self.signing_key, text).hex()

    def canonical_signature(self, method, path, query, headers, signed, payload):
        names = sorted(name.lower() for name in signed)
        lower = {name.lower(): str(value).strip() for name, value in headers.items()}
        pairs = sorted((quote(k, "~"), quote(v, "~")) for k, v in urllib.parse.parse_qsl(query, keep_blank_values=True))
        canonical = "\n".join([method, path, "&".join(f"{k}={v}" for k, v in pairs),
                               *[f"{name}:{lower[name]}" for name in names], "", ";".join(names), payload])
        return self.signature("\n".join(["AWS4-HMAC-SHA256", self.time, self.scope,
                                         hashlib.sha256(canonical.encode()).hexdigest()]))

    def headers(self, method, host, path, query="", payload=EMPTY, more=None):
        """The headers of a signed request; `path` is as sent, `payload` the literal x-amz-content-sha256."""
        headers = {"Host": host, "x-amz-date": self.time, "x-amz-content-sha256": payload, **(more or {})}
        signature = self.canonical_signature(method, path, query, headers, headers, payload)
        signed = ";".join(sorted(name.lower() for name in headers))
        headers["Authorization"] = (f"AWS4-HMAC-SHA256 Credential={self.key}/{self.scope}, SignedHeaders={signed}, "
                                    f"Signature={signature}")
        return headers

    def presigned(self, method, host, path, query="", expires=60):
        """The target of a presigned request."""
        more = [("X-Amz-Algorithm", "AWS4-HMAC-SHA256"), ("X-Amz-Credential", f"{self.key}/{self.scope}"),
                ("X-Amz-Date", self.time), ("X-Amz-Expires", str(expires)), ("X-Amz-SignedHeaders", "host")]
        query = (query + "&" if query else "") + "&".join(f"{k}={quote(v, '~')}" for k, v in more)
        signature = self.canonical_signature(method, path, query, {"Host": host}, ["host"], "UNSIGNED-PAYLOAD")
        return f"{path}?{query}&X-Amz-Signature={signature}"

    def chunks(self, seed, pieces, trailer=None):
        """The body of a signed stream: each piece a chunk, then the last one, then a trailer line if there is one."""
        body, previous = b"", seed
        for piece in [*pieces, b""]:
            previous = self.signature("\n".join(["AWS4-HMAC-SHA256-PAYLOAD", self.time, self.scope, previous, EMPTY,
                                                 hashlib.sha256(piece).hexdigest()]))
            body += b"%x;chunk-signature=%s\r\n" % (len(piece), previous.encode()) + piece
            body += b"\r\n" if piece or trailer is None else b""
        if trailer is not None:
            signature = self.signature("\n".join(["AWS4-HMAC-SHA256-TRAILER", self.time, self.scope, previous,
                                                  hashlib.sha256((trailer + "\n").encode()).hexdigest()]))
            body += f"{trailer}\r\nx-amz-trailer-signature:{signature}\r\n\r\n".encode()
        return body


def unsigned_chunks(pieces, trailer):
    """The body of STREAMING-UNSIGNED-PAYLOAD-TRAILER."""
    return b"".join(b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in pieces) + f"0\r\n{trailer}\r\n\r\n".encode()


def http_chunks(body, size=70_000):
    """The body again, inside HTTP chunks."""
    pieces = [body[i:i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in [*pieces, b""])


def crc32(data):
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def crc32_trailer(data):
    return "x-amz-checksum-crc32:" + crc32(data)
