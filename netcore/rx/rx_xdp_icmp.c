/* SPDX-License-Identifier: Apache-2.0 */
/* rx_xdp_icmp: see the header. Every read is below a length that was checked before it. */
#include "rx/rx_xdp_icmp.h"

#include <string.h>

#include "base/bytes.h"

#define ICMP_UNREACHABLE 3U
#define ICMP_FRAG_NEEDED 4U
#define ICMP6_TOO_BIG 2U
#define PROTO_TCP 6U
#define QUOTE_TCP 8U /* ports and sequence number */

static void quote_ports(const uint8_t *tcp, struct xdp_too_big *out)
{
    out->tuple.local_port = bytes_get_be16(tcp);
    out->tuple.peer_port = bytes_get_be16(tcp + 2);
    out->seq = bytes_get_be32(tcp + 4);
}

static void map_ipv4(uint8_t to[16], const uint8_t *from)
{
    memset(to, 0, 10);
    to[10] = 0xff;
    to[11] = 0xff;
    memcpy(to + 12, from, 4);
}

/* The IPv4 packet of ours that a router quotes. */
static bool quote4(const uint8_t *from, uint32_t len, struct xdp_too_big *out)
{
    uint32_t header = len >= 20 ? (from[0] & 0x0fU) * 4 : 0;
    if (header < 20 || from[0] >> 4 != 4 || len < header + QUOTE_TCP || from[9] != PROTO_TCP) {
        return false;
    }
    out->tuple.version = 4;
    map_ipv4(out->tuple.local, from + 12);
    map_ipv4(out->tuple.peer, from + 16);
    quote_ports(from + header, out);
    return true;
}

bool xdp_too_big_read4(const uint8_t *from, uint32_t len, struct xdp_too_big *out)
{
    uint32_t header = len >= 20 ? (from[0] & 0x0fU) * 4 : 0;
    memset(out, 0, sizeof(*out));
    if (header < 20 || len < header + 8) {
        return false;
    }
    const uint8_t *icmp = from + header;
    if (icmp[0] != ICMP_UNREACHABLE || icmp[1] != ICMP_FRAG_NEEDED) {
        return false;
    }
    out->mtu = bytes_get_be16(icmp + 6); /* RFC 1191 section 4 */
    return quote4(icmp + 8, len - header - 8, out);
}

bool xdp_too_big_read6(const uint8_t *from, uint32_t len, struct xdp_too_big *out)
{
    memset(out, 0, sizeof(*out));
    /* Packets of ours have no extension headers. */
    if (len < 8 + 40 + QUOTE_TCP || from[0] != ICMP6_TOO_BIG || from[8] >> 4 != 6 || from[14] != PROTO_TCP) {
        return false;
    }
    out->mtu = bytes_get_be32(from + 4);
    out->tuple.version = 6;
    memcpy(out->tuple.local, from + 16, 16);
    memcpy(out->tuple.peer, from + 32, 16);
    quote_ports(from + 48, out);
    return true;
}
