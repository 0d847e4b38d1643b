/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_parse: one Ethernet frame to one TCP segment (tcp_wire.h). Pure. Every byte read lies below the end that the layer
 * before it has checked; nothing here asserts on what a peer sent.
 *
 * Invariants: `cursor.at <= cursor.end <= cursor.part_len`; `end` shrinks to the IP packet's end, so that Ethernet padding is
 * never taken for payload.
 */
#include <string.h>

#include "base/bytes.h"
#include "tcp/tcp_wire.h"

#define ETHERNET_LEN 14U
#define TAG_LEN 4U
#define TYPE_IPV4 0x0800U
#define TYPE_IPV6 0x86ddU
#define TYPE_VLAN 0x8100U
#define TYPE_SERVICE_VLAN 0x88a8U
#define PROTO_HOPOPTS 0U
#define PROTO_TCP 6U
#define PROTO_ROUTING 43U
#define PROTO_FRAGMENT 44U
#define PROTO_AH 51U
#define PROTO_DSTOPTS 60U
#define EXTENSIONS_MAX 8U /* RFC 8504 section 5.3 lets a host bound them */

/* Where we are in the first part, and how far the packet goes over all parts. */
struct cursor {
    const struct tcp_part *parts;
    uint32_t part_count;
    const uint8_t *base; /* first part */
    uint32_t at;         /* next unread byte, in the first part */
    uint32_t end;        /* end of the packet, counted over all parts */
};

/* True if `len` more header bytes are in the first part and in the packet. */
static bool cursor_has(const struct cursor *cursor, uint32_t len)
{
    uint32_t limit = cursor->end < cursor->parts[0].len ? cursor->end : cursor->parts[0].len;
    return cursor->at <= limit && limit - cursor->at >= len;
}

static enum tcp_wire_result parse_ethernet(struct cursor *cursor, struct tcp_link *link, uint32_t *type)
{
    if (!cursor_has(cursor, ETHERNET_LEN)) {
        return TCP_WIRE_SHORT;
    }
    if (cursor->base[0] & 1) {
        return TCP_WIRE_IP_ADDRESS; /* RFC 9293 MUST-57: nothing for a group of stations */
    }
    memcpy(link->local_mac, cursor->base, 6);
    memcpy(link->peer_mac, cursor->base + 6, 6);
    *type = bytes_get_be16(cursor->base + 12);
    cursor->at = ETHERNET_LEN;
    while (*type == TYPE_VLAN || *type == TYPE_SERVICE_VLAN) {
        if (link->tags == 2) {
            return TCP_WIRE_NOT_IP;
        }
        if (!cursor_has(cursor, TAG_LEN)) {
            return TCP_WIRE_SHORT;
        }
        link->tag_type[link->tags] = (uint16_t)*type;
        link->tag_id[link->tags] = bytes_get_be16(cursor->base + cursor->at) & 0x0fffU;
        link->tags++;
        *type = bytes_get_be16(cursor->base + cursor->at + 2);
        cursor->at += TAG_LEN;
    }
    return *type == TYPE_IPV4 || *type == TYPE_IPV6 ? TCP_WIRE_OK : TCP_WIRE_NOT_IP;
}

static void map_ipv4(uint8_t to[16], const uint8_t *from)
{
    memset(to, 0, 10);
    to[10] = 0xff;
    to[11] = 0xff;
    memcpy(to + 12, from, 4);
}

/* RFC 1122 section 3.2.1.3 and RFC 9293 section 3.10.7.2 (MUST-57): never talk TCP with what is not one host. Loopback addresses come
 * from no wire; whoever trusts them must not be deceived. */
static bool ipv4_is_host(const uint8_t *address)
{
    return address[0] != 0 && address[0] != 127 && address[0] < 224;
}

/* IPv4 addresses in an IPv6 header (::ffff:0:0/96) would reach listeners of IPv4 past every filter for it (RFC 6890: no wire has them). */
static bool ipv6_is_host(const uint8_t *address)
{
    static const uint8_t zeros[15];
    bool is_low = memcmp(address, zeros, 15) == 0 && address[15] <= 1; /* unspecified, loopback */
    bool is_mapped = memcmp(address, zeros, 10) == 0 && address[10] == 0xff && address[11] == 0xff;
    return address[0] != 0xff && !is_low && !is_mapped;
}

/* No station has a group for its address, and nobody gets a segment from itself (LAND): an answer would go round in circles. */
static bool is_peer(const struct tcp_segment *segment)
{
    return (segment->link.peer_mac[0] & 1) == 0 &&
           memcmp(segment->tuple.peer, segment->tuple.local, sizeof(segment->tuple.peer)) != 0;
}

static enum tcp_wire_result parse_ipv4(struct cursor *cursor, struct tcp_segment *segment)
{
    const uint8_t *header = cursor->base + cursor->at;
    if (!cursor_has(cursor, 20)) {
        return TCP_WIRE_SHORT;
    }
    uint32_t header_len = (header[0] & 0x0fU) * 4;
    uint32_t total_len = bytes_get_be16(header + 2);
    if (header[0] >> 4 != 4 || header_len < 20 || total_len < header_len) {
        return TCP_WIRE_IP_MALFORMED;
    }
    if (!cursor_has(cursor, header_len) || cursor->end - cursor->at < total_len) {
        return TCP_WIRE_SHORT;
    }
    if (tcp_checksum_fold(tcp_checksum_add(0, header, header_len)) != 0xffff) {
        return TCP_WIRE_IP_CHECKSUM;
    }
    if (bytes_get_be16(header + 6) & 0x3fffU) { /* "more fragments" or an offset */
        return TCP_WIRE_FRAGMENT;
    }
    if (header[9] != PROTO_TCP) {
        return TCP_WIRE_NOT_TCP;
    }
    if (!ipv4_is_host(header + 12) || !ipv4_is_host(header + 16)) {
        return TCP_WIRE_IP_ADDRESS;
    }
    segment->ecn = header[1] & 3;
    map_ipv4(segment->tuple.peer, header + 12);
    map_ipv4(segment->tuple.local, header + 16);
    segment->tuple.version = 4;
    cursor->end = cursor->at + total_len; /* what follows is Ethernet padding */
    cursor->at += header_len;
    return TCP_WIRE_OK;
}

/* RFC 8200 section 4.2: an unknown option may be stepped over only if its two high bits say so. All are unknown to us. */
static bool options_may_be_skipped(const uint8_t *header, uint32_t len)
{
    for (uint32_t i = 2; i < len;) { /* ends: each option is a byte at least */
        if (header[i] == 0) {
            i++; /* Pad1 */
            continue;
        }
        if (header[i] >> 6 != 0 || i + 1 == len || header[i + 1] > len - i - 2) {
            return false;
        }
        i += 2U + header[i + 1];
    }
    return true;
}

/* Walks the extension headers to TCP (RFC 8200 section 4). */
static enum tcp_wire_result skip_extensions(struct cursor *cursor, uint8_t next)
{
    for (uint32_t i = 0; i <= EXTENSIONS_MAX; i++) {
        if (next == PROTO_TCP) {
            return TCP_WIRE_OK;
        }
        if (next == PROTO_FRAGMENT) {
            return TCP_WIRE_FRAGMENT;
        }
        bool is_option = next == PROTO_DSTOPTS || (next == PROTO_HOPOPTS && i == 0);
        if (!is_option && next != PROTO_ROUTING && next != PROTO_AH) {
            return next == PROTO_HOPOPTS ? TCP_WIRE_EXTENSION : TCP_WIRE_NOT_TCP;
        }
        if (!cursor_has(cursor, 8)) {
            return TCP_WIRE_SHORT;
        }
        const uint8_t *header = cursor->base + cursor->at;
        if (next == PROTO_ROUTING && header[3] != 0) { /* segments left: it is not for us yet */
            return TCP_WIRE_EXTENSION;
        }
        uint32_t len = next == PROTO_AH ? (header[1] + 2U) * 4 : (header[1] + 1U) * 8;
        if (!cursor_has(cursor, len)) {
            return TCP_WIRE_SHORT;
        }
        if (is_option && !options_may_be_skipped(header, len)) {
            return TCP_WIRE_EXTENSION;
        }
        next = header[0];
        cursor->at += len;
    }
    return TCP_WIRE_EXTENSION;
}

static enum tcp_wire_result parse_ipv6(struct cursor *cursor, struct tcp_segment *segment)
{
    const uint8_t *header = cursor->base + cursor->at;
    if (!cursor_has(cursor, 40)) {
        return TCP_WIRE_SHORT;
    }
    uint32_t payload_len = bytes_get_be16(header + 4);
    if (header[0] >> 4 != 6 || payload_len == 0) { /* zero would be a jumbogram */
        return TCP_WIRE_IP_MALFORMED;
    }
    if (cursor->end - cursor->at - 40 < payload_len) {
        return TCP_WIRE_SHORT;
    }
    if (!ipv6_is_host(header + 8) || !ipv6_is_host(header + 24)) {
        return TCP_WIRE_IP_ADDRESS;
    }
    segment->ecn = header[1] >> 4 & 3;
    memcpy(segment->tuple.peer, header + 8, 16);
    memcpy(segment->tuple.local, header + 24, 16);
    segment->tuple.version = 6;
    cursor->at += 40;
    cursor->end = cursor->at + payload_len;
    return skip_extensions(cursor, header[6]);
}

/* One option of known kind. False if its length is impossible for its kind. */
static bool parse_option(const uint8_t *option, uint32_t len, struct tcp_options *options)
{
    switch (option[0]) {
    case 2:
        options->mss = len == 4 ? bytes_get_be16(option + 2) : 0;
        return len == 4;
    case 3:
        options->has_wscale = true;
        options->wscale = len == 3 ? option[2] : 0;
        return len == 3;
    case 4:
        options->sack_permitted = true;
        return len == 2;
    case 5:
        for (uint32_t i = 2; i + 8 <= len && options->sack_count < TCP_SACK_BLOCKS_MAX; i += 8) {
            options->sack[options->sack_count].start = bytes_get_be32(option + i);
            options->sack[options->sack_count].end = bytes_get_be32(option + i + 4);
            options->sack_count++;
        }
        return len >= 10 && (len - 2) % 8 == 0;
    case 8:
        if (len == 10) {
            options->has_ts = true;
            options->ts_value = bytes_get_be32(option + 2);
            options->ts_echo = bytes_get_be32(option + 6);
        }
        return len == 10;
    default:
        return true; /* RFC 9293 section 3.2: unknown options are skipped by their length */
    }
}

static bool parse_options(const uint8_t *at, uint32_t len, struct tcp_options *options)
{
    uint32_t i = 0;
    while (i < len && at[i] != 0) {
        if (at[i] == 1) {
            i++;
            continue;
        }
        if (len - i < 2 || at[i + 1] < 2 || at[i + 1] > len - i) {
            return false;
        }
        if (!parse_option(at + i, at[i + 1], options)) {
            return false;
        }
        i += at[i + 1];
    }
    return true;
}

/* Sum over the TCP segment, which may go on in further parts, without the pseudo header. */
static uint64_t segment_sum(const struct cursor *cursor)
{
    uint64_t sum = 0;
    uint32_t done = 0;
    uint32_t skip = cursor->at;
    uint32_t left = cursor->end - cursor->at;
    for (uint32_t i = 0; i < cursor->part_count && left > 0; i++) {
        uint32_t len = cursor->parts[i].len - skip < left ? cursor->parts[i].len - skip : left;
        uint64_t piece = tcp_checksum_add(0, cursor->parts[i].addr + skip, len);
        if (done & 1) {
            piece = tcp_checksum_swap(piece);
        } else {
            piece = tcp_checksum_swap(
                tcp_checksum_swap(piece)); /* folded, so that plain additions cannot carry out */
        }
        sum += piece;
        done += len;
        left -= len;
        skip = 0;
    }
    return sum;
}

static uint64_t pseudo_sum(const struct tcp_tuple *tuple, uint32_t len)
{
    uint8_t tail[8];
    uint32_t skip = tuple->version == 4 ? 12 : 0;
    bytes_put_be32(tail, len);
    bytes_put_be32(tail + 4, PROTO_TCP);
    uint64_t sum = tcp_checksum_add(0, tuple->peer + skip, 16 - skip);
    sum = tcp_checksum_add(sum, tuple->local + skip, 16 - skip);
    return tcp_checksum_add(sum, tail, sizeof(tail));
}

static enum tcp_wire_result verify_checksum(const struct cursor *cursor, const struct tcp_tuple *tuple)
{
    uint32_t len = cursor->end - cursor->at;
    uint16_t pseudo = tcp_checksum_fold(pseudo_sum(tuple, len));
    uint32_t sum = tcp_checksum_fold(segment_sum(cursor)) + (uint32_t)pseudo;
    if ((sum & 0xffffU) + (sum >> 16) == 0xffffU) {
        return TCP_WIRE_OK;
    }
    return bytes_get_be16(cursor->base + cursor->at + 16) == pseudo ? TCP_WIRE_CHECKSUM_PARTIAL
                                                                    : TCP_WIRE_CHECKSUM;
}

/* Lists the runs of payload between cursor->at and cursor->end. */
static void list_payload(const struct cursor *cursor, struct tcp_segment *segment)
{
    uint32_t skip = cursor->at;
    uint32_t left = cursor->end - cursor->at;
    segment->len = left;
    for (uint32_t i = 0; i < cursor->part_count && left > 0; i++) {
        uint32_t len = cursor->parts[i].len - skip < left ? cursor->parts[i].len - skip : left;
        if (len > 0) {
            struct tcp_payload *payload = &segment->payload[segment->payload_count++];
            payload->addr = cursor->parts[i].addr + skip;
            payload->len = len;
            payload->part = i;
        }
        left -= len;
        skip = 0;
    }
}

static enum tcp_wire_result parse_tcp(struct cursor *cursor, struct tcp_segment *segment)
{
    const uint8_t *header = cursor->base + cursor->at;
    if (!cursor_has(cursor, 20)) {
        return TCP_WIRE_SHORT;
    }
    uint32_t header_len = (header[12] >> 4) * 4U;
    if (header_len < 20) {
        return TCP_WIRE_TCP_MALFORMED;
    }
    if (!cursor_has(cursor, header_len)) {
        return TCP_WIRE_SHORT;
    }
    segment->tuple.peer_port = bytes_get_be16(header);
    segment->tuple.local_port = bytes_get_be16(header + 2);
    enum tcp_wire_result result = verify_checksum(cursor, &segment->tuple);
    if (result != TCP_WIRE_OK) {
        return result;
    }
    segment->seq = bytes_get_be32(header + 4);
    segment->ack = bytes_get_be32(header + 8);
    segment->flags = header[13];
    segment->window = bytes_get_be16(header + 14);
    if (!parse_options(header + 20, header_len - 20, &segment->options)) {
        return TCP_WIRE_TCP_MALFORMED;
    }
    cursor->at += header_len;
    list_payload(cursor, segment);
    return TCP_WIRE_OK;
}

enum tcp_wire_result tcp_wire_parse(const struct tcp_part *parts, uint32_t part_count,
                                    struct tcp_segment *segment)
{
    struct cursor cursor = {.parts = parts, .part_count = part_count};
    struct tcp_segment parsed;
    uint32_t type = 0;
    if (part_count == 0 || part_count > TCP_PARTS_MAX) {
        return TCP_WIRE_SHORT;
    }
    cursor.base = parts[0].addr;
    memset(&parsed, 0, sizeof(parsed));
    for (uint32_t i = 0; i < part_count; i++) {
        if (parts[i].len > 0xffffU) {
            return TCP_WIRE_SHORT;
        }
        cursor.end += parts[i].len;
    }
    enum tcp_wire_result result = parse_ethernet(&cursor, &parsed.link, &type);
    if (result == TCP_WIRE_OK) {
        result = type == TYPE_IPV4 ? parse_ipv4(&cursor, &parsed) : parse_ipv6(&cursor, &parsed);
    }
    if (result == TCP_WIRE_OK && !is_peer(&parsed)) {
        result = TCP_WIRE_IP_ADDRESS;
    }
    if (result == TCP_WIRE_OK) {
        result = parse_tcp(&cursor, &parsed);
    }
    if (result == TCP_WIRE_OK) {
        *segment = parsed;
    } else if (result == TCP_WIRE_CHECKSUM_PARTIAL) {
        segment->tuple = parsed.tuple;
    }
    return result;
}
