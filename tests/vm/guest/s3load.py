# SPDX-License-Identifier: Apache-2.0
"""A seeded S3 load whose outcome can be checked after any crash, cut or restart.

Each client owns its keys and walks a plan of puts and deletes that its seed fixes, one operation at a time;
it records an operation as acknowledged (`on_ack`) before it starts the next one.  So for a client that was
last seen to acknowledge operation P, every key must be in the state after P, or, for the key of operation
P + 1, in the state after that one: old or new, whole, never a mixture.  verify() demands exactly that.

Owns no server and no disk.
"""
import contextlib
import dataclasses
import functools
import http.client
import random
import re
import threading

BUCKET = "vm-load"


@dataclasses.dataclass(frozen=True)
class Operation:
    """One step of a plan; `version` counts the operations on this key."""
    client: int
    number: int
    kind: str           # put, chunked (a put of unknown length) or delete
    key: str
    version: int
    size: int

    @functools.lru_cache(maxsize=1000)
    def body(self):
        return random.Random(f"{self.key}/{self.version}").randbytes(self.size)


def make_plan(seed, client, length, keys=8, size_max=200_000):
    """The operations of one client: mostly puts of mixed sizes, some over an older version, some deletes."""
    chance = random.Random(f"plan/{seed}/{client}")
    versions, present, plan = {}, set(), []
    for number in range(length):
        key = f"c{client}/{chance.randrange(keys)}"
        kind = chance.choices(["put", "chunked", "delete"], [7, 2, 2 if key in present else 0])[0]
        size = chance.choice([chance.randrange(0, 600), chance.randrange(0, 20_000), chance.randrange(0, size_max)])
        versions[key] = versions.get(key, 0) + 1
        if kind == "delete":
            present.discard(key)
        else:
            present.add(key)
        plan.append(Operation(client, number, kind, key, versions[key], size))
    return plan


class Endpoint:
    """A connection to the server, opened again when it was closed; `inside` gives a context to open it in (a namespace)."""

    def __init__(self, address, port, timeout=120, inside=contextlib.nullcontext):
        self.address, self.port, self.timeout, self.inside = address, port, timeout, inside
        self.connection = None

    def request(self, method, path, body=None, chunked=False):
        """Returns (status, body); OSError or HTTPException when the server went away."""
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection(self.address, self.port, timeout=self.timeout)
                with self.inside():
                    self.connection.connect()
            if chunked:
                pieces = [body[at:at + 30_000] for at in range(0, len(body), 30_000)]
                self.connection.request(method, path, iter(pieces), {"Transfer-Encoding": "chunked"},
                                        encode_chunked=True)
            else:
                self.connection.request(method, path, body)
            answer = self.connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Refused(Exception):
    """The server answered an operation with an error, which no crash explains."""


def perform(endpoint, operation):
    """Carries out one operation; returns when the server has acknowledged it."""
    path = f"/{BUCKET}/{operation.key}"
    if operation.kind == "delete":
        status, answer = endpoint.request("DELETE", path)
    else:
        status, answer = endpoint.request("PUT", path, operation.body(), operation.kind == "chunked")
    if status not in (200, 204):
        raise Refused(f"{operation.kind} {operation.key} version {operation.version}: {status} {answer[:200]!r}")


class Client(threading.Thread):
    """Walks its plan from `position` until its end, stop() or the loss of the server.

    position: number of operations acknowledged so far.  refused: an answer that no crash explains.
    """

    def __init__(self, endpoint, plan, position=0, on_ack=None):
        super().__init__(daemon=True)
        self.endpoint = endpoint
        self.plan, self.position, self.on_ack = plan, position, on_ack
        self.refused = None
        self.lost = None
        self.stopping = threading.Event()

    def run(self):
        try:
            while self.position < len(self.plan) and not self.stopping.is_set():
                perform(self.endpoint, self.plan[self.position])
                if self.on_ack:
                    self.on_ack(self.plan[self.position])
                self.position += 1
        except Refused as error:
            self.refused = str(error)
        except (OSError, http.client.HTTPException) as error:
            self.lost = repr(error)
        self.endpoint.close()

    def stop(self):
        self.stopping.set()


def states(plan, position):
    """Key -> allowed last operations (None: never written) after `position` acknowledged operations."""
    allowed = {operation.key: [None] for operation in plan}
    for operation in plan[:position]:
        allowed[operation.key] = [operation]
    for operation in plan[position:position + 1]:
        allowed[operation.key] = allowed[operation.key] + [operation]
    return allowed


def matches(operation, status, body):
    """Whether a GET's answer shows the key as `operation` left it."""
    if operation is None or operation.kind == "delete":
        return status == 404
    return status == 200 and body == operation.body()


def describe(operation):
    if operation is None:
        return "absent"
    return "deleted" if operation.kind == "delete" else f"version {operation.version} of {operation.size} bytes"


def verify(endpoint, plan, position):
    """Reads every key of a plan back; returns a list of what is wrong, empty when all is well."""
    faults, found = [], {}
    for key, allowed in states(plan, position).items():
        status, body = endpoint.request("GET", f"/{BUCKET}/{key}")
        if not any(matches(operation, status, body) for operation in allowed):
            faults.append(f"{key}: expected {' or '.join(map(describe, allowed))}, got {status} with {len(body)} bytes")
        if status == 200:
            found[key] = len(body)
    return faults + verify_listing(endpoint, f"c{plan[0].client}/", found)


def verify_listing(endpoint, prefix, found):
    """The listing must show exactly the objects that GET gave, with their sizes."""
    status, body = endpoint.request("GET", f"/{BUCKET}?list-type=2&prefix={prefix}")
    text = body.decode(errors="replace")
    keys = re.findall(r"<Key>([^<]*)</Key>", text)
    sizes = map(int, re.findall(r"<Size>(\d+)</Size>", text))
    listed = dict(zip(keys, sizes))
    if status != 200 or listed != found:
        return [f"listing of {prefix}: {status}, {sorted(listed.items())} but GET gave {sorted(found.items())}"]
    return []
