# SPDX-License-Identifier: Apache-2.0
"""Generic netlink for cases (`import genl`): what ethtool and ip of an older release cannot set.

A request is a list of attributes (TYPE, VALUE), where VALUE is bytes or a list of attributes; an
answer is a list of dicts from type to bytes.  Refusals raise Refused with errno and the kernel's text.
"""
import errno
import os
import socket
import struct

GENL_ID_CTRL = 16
F_REQUEST, F_ACK, F_DUMP = 1, 4, 0x300
NESTED = 0x8000


# Python calls 95 by its other name, the kernel's sources do not.
NAMES = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP"}


class Refused(Exception):
    """The kernel said no: `.name` is the errno's name, `.text` its extended acknowledgement."""

    def __init__(self, number, text):
        self.name, self.text = NAMES.get(number, str(number)), text
        super().__init__(f"{self.name} ({text or 'no reason given'})")


def u32(value):
    return struct.pack("I", value)


def u8(value):
    return struct.pack("B", value)


def text(value):
    return value.encode() + b"\0"


def pack(attributes):
    """Attributes as they go over the wire."""
    out = b""
    for kind, value in attributes:
        if isinstance(value, list):
            kind, value = kind | NESTED, pack(value)
        out += struct.pack("HH", len(value) + 4, kind) + value + b"\0" * (-len(value) % 4)
    return out


def unpack(data):
    """A dict from type to bytes; of attributes that repeat the last one stays."""
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        found[kind & 0x3fff] = data[4:length]
        data = data[(length + 3) & ~3:]
    return found


def number(data):
    """An unsigned number of whatever size it came in."""
    return int.from_bytes(data, "little")


class Family:
    """One generic netlink family, e.g. Family("netdev")."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        self.socket.bind((0, 0))
        self.socket.setsockopt(270, 11, 1)  # SOL_NETLINK, NETLINK_EXT_ACK
        self.socket.settimeout(10)
        self.sequence = 0
        self.id = GENL_ID_CTRL
        self.id = number(self.ask(3, [(2, text(name))])[0][1])

    def ask(self, command, attributes, dump=False, version=1):
        """Sends one request and returns its answers."""
        self.sequence += 1
        body = struct.pack("BBH", command, version, 0) + pack(attributes)
        flags = F_REQUEST | (F_DUMP if dump else F_ACK)
        self.socket.send(struct.pack("IHHII", len(body) + 16, self.id, flags, self.sequence, 0) + body)
        answers = []
        while True:
            for kind, sequence, payload, head_flags in self._messages():
                if sequence != self.sequence:
                    continue
                if kind == 2:
                    self._check(payload, head_flags)
                    return answers
                if kind == 3:
                    return answers
                answers.append(unpack(payload[4:]))

    def _messages(self):
        data = self.socket.recv(1 << 18)
        while data:
            length, kind, flags, sequence, _ = struct.unpack_from("IHHII", data)
            yield kind, sequence, data[16:length], flags
            data = data[(length + 3) & ~3:]

    @staticmethod
    def _check(payload, flags):
        code, = struct.unpack_from("i", payload)
        if not code:
            return
        skip = 4 + (16 if flags & 0x100 else (struct.unpack_from("I", payload, 4)[0] + 3) & ~3)
        reason = unpack(payload[skip:]).get(1, b"") if flags & 0x200 else b""
        raise Refused(-code, reason.rstrip(b"\0").decode())


def index(name):
    return socket.if_nametoindex(name)


def set_header_split(name, enabled=True):
    """tcp-data-split and hds-thresh 0 explicitly, which memory providers insist on."""
    ethtool = Family("ethtool")
    rings = [(1, [(2, text(name))]), (11, u8(2 if enabled else 1))]
    if enabled:
        rings.append((17, u32(0)))
    ethtool.ask(16, rings)


if __name__ == "__main__":
    import sys
    if sys.argv[1:2] == ["header-split"]:
        set_header_split(sys.argv[2], sys.argv[3:] != ["off"])
    else:
        sys.exit(os.path.basename(__file__) + " header-split IFNAME [off]")
