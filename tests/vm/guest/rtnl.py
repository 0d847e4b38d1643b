# SPDX-License-Identifier: Apache-2.0
"""How long TCP packets of a network device may be, for cases (`import rtnl`): Debian 12's ip cannot set the limits of IPv4.

As a program it stands in for that ip: rtnl.py IFNAME LIMIT SIZE [LIMIT SIZE...], in the namespace it is started in.
"""
import socket
import struct
import sys

import genl

RTM_NEWLINK = 16
# IFLA_* of linux/if_link.h
LIMITS = {"gso_max_size": 41, "gro_max_size": 58, "gso_ipv4_max_size": 63, "gro_ipv4_max_size": 64}


def set_limits(name, **sizes):
    """set_limits("nic", gro_max_size=262144); raises genl.Refused."""
    body = struct.pack("BxHiII", socket.AF_UNSPEC, 0, genl.index(name), 0, 0)
    body += genl.pack([(LIMITS[limit], genl.u32(size)) for limit, size in sizes.items()])
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(10)
        link.send(struct.pack("IHHII", len(body) + 16, RTM_NEWLINK, genl.F_REQUEST | genl.F_ACK, 1, 0) + body)
        code, = struct.unpack_from("i", link.recv(4096), 16)
    if code:
        raise genl.Refused(-code, "")


if __name__ == "__main__":
    set_limits(sys.argv[1], **{limit: int(size) for limit, size in zip(sys.argv[2::2], sys.argv[3::2])})
