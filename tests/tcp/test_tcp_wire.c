/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of the wire codec. Frames written out by hand (with checksums computed here, by the plain definition) are parsed, each
 * refusal is reached by one change to a good frame, and what is emitted is compared with bytes.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "tcp/tcp_wire.h"

/* RFC 1071 by its definition. */
static uint16_t plain_sum(const uint8_t *from, uint32_t len, uint32_t start)
{
    uint32_t sum = start;
    for (uint32_t i = 0; i < len; i += 2) {
        sum += (uint32_t)from[i] << 8 | (i + 1 < len ? from[i + 1] : 0);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return (uint16_t)sum;
}

/* 10.0.0.2:4660 > 10.0.0.1:80, payload "hello", with Ethernet padding. */
static const uint8_t frame_v4[60] = {
    2,    0,    0,   0,   0,   1,    2,    0, 0,  0, 0, 2, 0x08, 0x00,                          /* Ethernet */
    0x45, 0,    0,   45,  0,   1,    0x40, 0, 64, 6, 0, 0, 10,   0,    0,    2,    10, 0, 0, 1, /* IPv4 */
    0x12, 0x34, 0,   80,  1,   2,    3,    4, 5,  6, 7, 8, 0x50, 0x18, 0x10, 0x00, 0,  0, 0, 0, /* TCP */
    'h',  'e',  'l', 'l', 'o', 0xaa, /* padding is not zero */
};

static uint8_t frame[256];
static uint32_t frame_len;
static uint32_t ip_at, tcp_at, ip_end;

static void seal(void)
{
    uint32_t pseudo = 6 + (ip_end - tcp_at);
    uint32_t addresses = frame[ip_at] >> 4 == 4 ? 8 : 32;
    if (frame[ip_at] >> 4 == 4) {
        bytes_put_be16(frame + ip_at + 10, 0);
        bytes_put_be16(frame + ip_at + 10, (uint16_t)~plain_sum(frame + ip_at, (frame[ip_at] & 15U) * 4, 0));
    }
    uint32_t start = plain_sum(frame + ip_at + (addresses == 8 ? 12 : 8), addresses, pseudo);
    bytes_put_be16(frame + tcp_at + 16, 0);
    bytes_put_be16(frame + tcp_at + 16, (uint16_t)~plain_sum(frame + tcp_at, ip_end - tcp_at, start));
}

static void load_v4(void)
{
    memset(frame, 0, sizeof(frame));
    memcpy(frame, frame_v4, sizeof(frame_v4));
    frame_len = sizeof(frame_v4);
    ip_at = 14;
    tcp_at = 34;
    ip_end = 59;
    seal();
}

static void load_v6(void)
{
    load_v4();
    memmove(frame + 54, frame + 34, 25);
    memset(frame + 14, 0, 40);
    frame[12] = 0x86;
    frame[13] = 0xdd;
    frame[14] = 0x60;
    bytes_put_be16(frame + 18, 25);
    frame[20] = 6;
    frame[21] = 64;
    frame[22] = frame[38] = 0xfd;
    frame[37] = 2;
    frame[53] = 1;
    tcp_at = 54;
    ip_end = frame_len = 79;
    seal();
}

/* Puts `len` bytes in at `at`, moving the rest. */
static void insert(uint32_t at, const uint8_t *bytes, uint32_t len)
{
    memmove(frame + at + len, frame + at, frame_len - at);
    memcpy(frame + at, bytes, len);
    frame_len += len;
    ip_end += len;
}

static struct tcp_segment seg;

static enum tcp_wire_result parse(void)
{
    struct tcp_part part = {frame, frame_len, 0};
    memset(&seg, 0xee, sizeof(seg));
    return tcp_wire_parse(&part, 1, &seg);
}

Test(tcp_wire, ipv4_frame_is_read_and_padding_is_not_payload)
{
    load_v4();
    cr_assert(parse() == TCP_WIRE_OK);
    cr_assert(seg.len == 5 && memcmp(seg.payload[0].addr, "hello", 5) == 0 && seg.payload_count == 1);
    cr_assert(seg.seq == 0x01020304 && seg.ack == 0x05060708 && seg.flags == (TCP_ACK | TCP_PSH) &&
              seg.window == 4096);
    cr_assert(seg.tuple.peer_port == 0x1234 && seg.tuple.local_port == 80 && seg.tuple.version == 4);
    cr_assert(seg.tuple.peer[15] == 2 && seg.tuple.local[15] == 1 && seg.tuple.local[10] == 0xff);
    cr_assert(seg.link.peer_mac[5] == 2 && seg.link.local_mac[5] == 1 && seg.link.tags == 0);
}

Test(tcp_wire, ipv6_frame_with_extension_headers_is_read)
{
    static const uint8_t options[8] = {60, 0, 1, 4, 0, 0, 0, 0}; /* hop by hop, then destination options */
    static const uint8_t options2[8] = {6, 0, 1, 4, 0, 0, 0, 0};
    load_v6();
    cr_assert(parse() == TCP_WIRE_OK);
    cr_assert(seg.len == 5 && seg.tuple.version == 6 && seg.tuple.peer[0] == 0xfd && seg.tuple.peer[15] == 2);
    insert(54, options2, 8);
    insert(54, options, 8);
    frame[20] = 0;
    bytes_put_be16(frame + 18, 41);
    cr_assert(parse() == TCP_WIRE_OK);
    cr_assert(seg.len == 5 && memcmp(seg.payload[0].addr, "hello", 5) == 0);
    frame[54] = 0; /* a second hop-by-hop header */
    cr_assert(parse() == TCP_WIRE_EXTENSION);
    frame[54] = 44;
    cr_assert(parse() == TCP_WIRE_FRAGMENT);
    frame[54] = 43;
    frame[65] = 1; /* segments left */
    cr_assert(parse() == TCP_WIRE_EXTENSION);
    frame[54] = 17;
    cr_assert(parse() == TCP_WIRE_NOT_TCP);
}

/* RFC 8200 section 4.2: which options a host may step over that it does not know is in their two high bits. */
Test(tcp_wire, ipv6_options_that_must_not_be_skipped_are_refused)
{
    static const struct {
        uint8_t bytes[8];
        enum tcp_wire_result result;
    } cases[] = {
        {{6, 0, 0, 0, 0, 0, 0, 0}, TCP_WIRE_OK},           /* single bytes of padding */
        {{6, 0, 0x1e, 2, 9, 9, 1, 0}, TCP_WIRE_OK},        /* unknown, may be skipped */
        {{6, 0, 0x5e, 2, 9, 9, 1, 0}, TCP_WIRE_EXTENSION}, /* discard */
        {{6, 0, 0x9e, 2, 9, 9, 1, 0}, TCP_WIRE_EXTENSION}, /* discard and complain */
        {{6, 0, 0xc2, 4, 0, 1, 0, 0}, TCP_WIRE_EXTENSION}, /* a jumbogram */
        {{6, 0, 1, 1, 0, 0xc9, 1, 0}, TCP_WIRE_EXTENSION}, /* home address, behind padding */
        {{6, 0, 1, 5, 0, 0, 0, 0}, TCP_WIRE_EXTENSION},    /* longer than its header */
        {{6, 0, 1, 3, 0, 0, 0, 1}, TCP_WIRE_EXTENSION},    /* no room for its length */
    };
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint32_t kind = 0; kind <= 60; kind += 60) { /* hop by hop, destination */
            load_v6();
            insert(54, cases[i].bytes, 8);
            frame[20] = (uint8_t)kind;
            bytes_put_be16(frame + 18, 33);
            cr_assert(parse() == cases[i].result, "case %u, header %u: %d", i, kind, parse());
        }
    }
}

Test(tcp_wire, ipv6_authentication_header_is_stepped_over_by_its_own_unit)
{
    static const uint8_t auth[16] = {6, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0xee, 0xee, 0xee, 0xee};
    load_v6();
    insert(54, auth, 16); /* 4 x (2 + 2) bytes */
    frame[20] = 51;
    bytes_put_be16(frame + 18, 41);
    cr_assert(parse() == TCP_WIRE_OK && seg.len == 5);
}

Test(tcp_wire, ipv6_chain_of_headers_has_a_bound)
{
    static const uint8_t more[8] = {60, 0, 1, 4, 0, 0, 0, 0};
    static const uint8_t last[8] = {6, 0, 1, 4, 0, 0, 0, 0};
    load_v6();
    insert(54, last, 8);
    frame[20] = 60;
    for (uint32_t count = 1; count <= 9; count++) {
        bytes_put_be16(frame + 18, (uint16_t)(25 + 8 * count));
        cr_assert(parse() == (count <= 8 ? TCP_WIRE_OK : TCP_WIRE_EXTENSION), "%u", count);
        insert(54, more, 8);
    }
}

/* Nobody answers a broadcast, and an answer to such a sender would be one. */
Test(tcp_wire, addresses_of_groups_and_of_no_host_are_refused)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    for (uint32_t at = 0; at <= 6; at += 6) {
        load_v4();
        memset(frame + at, 0xff, 6);
        cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "Ethernet, %u", at);
    }
    for (uint32_t at = 26; at <= 30; at += 4) {
        static const uint8_t firsts[] = {0, 127, 224, 255};
        for (uint32_t i = 0; i < sizeof(firsts); i++) {
            load_v4();
            frame[at] = firsts[i];
            seal();
            cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "IPv4 %u at %u", firsts[i], at);
        }
    }
    for (uint32_t at = 22; at <= 38; at += 16) {
        load_v6();
        frame[at] = 0xff;
        seal();
        cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "multicast at %u", at);
        load_v6();
        memset(frame + at, 0, 16);
        seal();
        cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "unspecified at %u", at);
        frame[at + 15] = 1;
        seal();
        cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "loopback at %u", at);
        load_v6();
        memcpy(frame + at, mapped, sizeof(mapped)); /* would name a listener of IPv4 */
        seal();
        cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "v4-mapped at %u", at);
    }
}

/* A packet whose length ends before its frame does, over IPv6: short frames are padded there as well. */
Test(tcp_wire, ipv6_padding_is_not_payload)
{
    load_v6();
    frame[79] = 0xaa;
    frame_len = 80;
    cr_assert(parse() == TCP_WIRE_OK && seg.len == 5);
}

Test(tcp_wire, vlan_tags_are_kept_up_to_two)
{
    static const uint8_t tag[4] = {0x81, 0x00, 0xe0, 0x2a};
    load_v4();
    for (uint32_t tags = 1; tags <= 3; tags++) {
        insert(12, tag, 4);
        ip_at += 4;
        tcp_at += 4;
        cr_assert(parse() == (tags < 3 ? TCP_WIRE_OK : TCP_WIRE_NOT_IP));
        if (tags < 3) {
            cr_assert(seg.link.tags == tags && seg.link.tag_id[0] == 42 && seg.link.tag_type[0] == 0x8100);
        }
    }
    static const uint8_t service[4] = {0x88, 0xa8, 0x00, 0x63};
    load_v4();
    insert(12, tag, 4);
    insert(12, service, 4);
    cr_assert(parse() == TCP_WIRE_OK && seg.link.tags == 2);
    cr_assert(seg.link.tag_type[0] == 0x88a8 && seg.link.tag_id[0] == 99);
    cr_assert(seg.link.tag_type[1] == 0x8100 && seg.link.tag_id[1] == 42);
}

Test(tcp_wire, ipv4_options_are_skipped)
{
    static const uint8_t options[4] = {1, 1, 1, 0};
    load_v4();
    insert(34, options, 4);
    frame[14] = 0x46;
    bytes_put_be16(frame + 16, 49);
    tcp_at += 4;
    seal();
    cr_assert(parse() == TCP_WIRE_OK && seg.len == 5);
}

Test(tcp_wire, each_refusal_has_its_reason)
{
    load_v4();
    frame[12] = 0x09;
    cr_assert(parse() == TCP_WIRE_NOT_IP);
    load_v4();
    frame[14] = 0x55;
    cr_assert(parse() == TCP_WIRE_IP_MALFORMED);
    load_v4();
    frame[14] = 0x44;
    cr_assert(parse() == TCP_WIRE_IP_MALFORMED);
    load_v4();
    frame[22]--;
    cr_assert(parse() == TCP_WIRE_IP_CHECKSUM);
    load_v4();
    frame[20] |= 0x20; /* more fragments */
    seal();
    cr_assert(parse() == TCP_WIRE_FRAGMENT);
    load_v4();
    frame[21] = 1; /* offset */
    seal();
    cr_assert(parse() == TCP_WIRE_FRAGMENT);
    load_v4();
    frame[23] = 17;
    seal();
    cr_assert(parse() == TCP_WIRE_NOT_TCP);
    load_v4();
    frame[26] = 224;
    seal();
    cr_assert(parse() == TCP_WIRE_IP_ADDRESS);
    load_v4();
    frame[30] = 255;
    seal();
    cr_assert(parse() == TCP_WIRE_IP_ADDRESS);
    load_v4();
    frame[tcp_at + 12] = 0x40;
    seal();
    cr_assert(parse() == TCP_WIRE_TCP_MALFORMED);
    load_v4();
    frame[tcp_at + 12] = 0x80;
    seal();
    cr_assert(parse() == TCP_WIRE_SHORT);
    load_v4();
    frame[57] ^= 1;
    cr_assert(parse() == TCP_WIRE_CHECKSUM);
    load_v6();
    bytes_put_be16(frame + 18, 0);
    cr_assert(parse() == TCP_WIRE_IP_MALFORMED);
    load_v6();
    frame[22] = 0xff;
    cr_assert(parse() == TCP_WIRE_IP_ADDRESS);
}

/* What no wire carries, unless somebody forged it: an answer would go astray, or a listener be reached by a way that it does not have. */
Test(tcp_wire, addresses_that_come_from_no_wire_are_refused)
{
    load_v4();
    frame[26] = 127;
    seal();
    cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "a loopback source");
    load_v4();
    frame[30] = 127;
    seal();
    cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "a loopback destination");
    load_v4();
    memcpy(frame + 26, frame + 30, 4);
    seal();
    cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "from ourselves (LAND)");
    load_v4();
    frame[6] |= 1;
    cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "the answer would go to a group");
    load_v6();
    memset(frame + 22, 0, 15);
    frame[37] = 1;
    seal();
    cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "::1");
    for (uint32_t at = 22; at <= 38; at += 16) {
        load_v6();
        memset(frame + at, 0, 10);
        memset(frame + at + 10, 0xff, 2);
        frame[at + 12] = 10;
        seal();
        cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "an IPv4 address in an IPv6 header");
    }
    load_v6();
    memcpy(frame + 22, frame + 38, 16);
    seal();
    cr_assert(parse() == TCP_WIRE_IP_ADDRESS, "from ourselves (LAND)");
}

Test(tcp_wire, partial_checksum_is_named)
{
    load_v4();
    bytes_put_be16(frame + tcp_at + 16, plain_sum(frame + 26, 8, 6 + ip_end - tcp_at));
    cr_assert(parse() == TCP_WIRE_CHECKSUM_PARTIAL);
    cr_assert(seg.tuple.version == 4 && seg.tuple.peer_port == bytes_get_be16(frame + tcp_at));
    cr_assert(memcmp(seg.tuple.peer + 12, frame + 26, 4) == 0, "the peer is named");
}

Test(tcp_wire, every_truncation_is_refused)
{
    load_v4();
    for (frame_len = 0; frame_len < 59; frame_len++) {
        cr_assert(parse() == TCP_WIRE_SHORT, "%u", frame_len);
    }
    load_v6();
    for (frame_len = 0; frame_len < 79; frame_len++) {
        cr_assert(parse() == TCP_WIRE_SHORT, "%u", frame_len);
    }
    static const uint8_t tag[4] = {0x81, 0x00, 0x00, 0x2a};
    static const uint8_t options[16] = {6, 1, 1, 12};
    load_v6();
    insert(54, options, 16);
    frame[20] = 60;
    bytes_put_be16(frame + 18, 41);
    insert(12, tag, 4);
    insert(12, tag, 4);
    uint32_t whole = frame_len;
    for (frame_len = 0; frame_len < whole; frame_len++) {
        cr_assert(parse() == TCP_WIRE_SHORT, "tags and extension, %u", frame_len);
    }
    frame_len = whole;
    cr_assert(parse() == TCP_WIRE_OK);
    for (uint32_t cut = 0; cut < 8; cut++) { /* the packet ends inside a header although its frame does not */
        bytes_put_be16(frame + 26, (uint16_t)(1 + cut));
        cr_assert(parse() == TCP_WIRE_SHORT, "length %u", 1 + cut);
    }
}

Test(tcp_wire, options_with_impossible_lengths_are_refused)
{
    static const uint8_t bad[][4] = {{2, 3, 0, 0},  {3, 4, 0, 0},  {8, 4, 0, 0},  {5, 3, 0, 0},
                                     {99, 1, 0, 0}, {99, 0, 0, 0}, {1, 1, 1, 99}, {99, 5, 0, 0}};
    static const uint8_t good[][4] = {
        {1, 1, 1, 1}, {0, 99, 99, 99}, {99, 4, 0, 0}, {4, 2, 1, 0}, {254, 2, 0, 77}};
    for (uint32_t i = 0; i < sizeof(bad) / 4; i++) {
        load_v4();
        insert(54, bad[i], 4);
        frame[tcp_at + 12] = 0x60;
        bytes_put_be16(frame + 16, 49);
        seal();
        cr_assert(parse() == TCP_WIRE_TCP_MALFORMED, "%u", i);
    }
    for (uint32_t i = 0; i < sizeof(good) / 4; i++) {
        load_v4();
        insert(54, good[i], 4);
        frame[tcp_at + 12] = 0x60;
        bytes_put_be16(frame + 16, 49);
        seal();
        cr_assert(parse() == TCP_WIRE_OK, "%u", i);
    }
}

Test(tcp_wire, numbers_of_parts_that_no_driver_gives_are_refused)
{
    static struct tcp_part many[TCP_PARTS_MAX + 1];
    load_v4();
    many[0] = (struct tcp_part){frame, frame_len, 0};
    cr_assert(tcp_wire_parse(many, 0, &seg) == TCP_WIRE_SHORT);
    cr_assert(tcp_wire_parse(many, TCP_PARTS_MAX + 1, &seg) == TCP_WIRE_SHORT);
    many[1] = (struct tcp_part){frame, 0x10000, 0};
    cr_assert(tcp_wire_parse(many, 2, &seg) == TCP_WIRE_SHORT);
    cr_assert(tcp_wire_parse(many, 1, &seg) == TCP_WIRE_OK);
}

Test(tcp_wire, parts_may_be_cut_anywhere_behind_the_headers)
{
    load_v4();
    struct tcp_part parts[3] = {{frame, 54, 0}, {frame + 54, 1, 1}, {frame + 55, 5, 2}};
    cr_assert(tcp_wire_parse(parts, 3, &seg) == TCP_WIRE_OK);
    cr_assert(seg.payload_count == 2 && seg.payload[0].part == 1 && seg.payload[0].len == 1 &&
              seg.payload[1].len == 4);
    parts[0].len = 53;
    parts[1] = (struct tcp_part){frame + 53, 2, 1};
    cr_assert(tcp_wire_parse(parts, 3, &seg) == TCP_WIRE_SHORT);
}

Test(tcp_wire, checksum_equals_its_definition_at_every_length_and_offset)
{
    static uint8_t bytes[300];
    struct rng rng;
    rng_seed(&rng, 1);
    for (uint32_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)rng_u64(&rng);
    }
    for (uint32_t at = 0; at < 9; at++) {
        for (uint32_t len = 0; len < 280; len++) {
            uint16_t plain = plain_sum(bytes + at, len, 0);
            cr_assert(tcp_checksum_fold(tcp_checksum_add(0, bytes + at, len)) == plain);
            uint32_t cut = len / 2 & ~1U;
            cr_assert(tcp_checksum_fold(tcp_checksum_add(tcp_checksum_add(0, bytes + at, cut),
                                                         bytes + at + cut, len - cut)) == plain);
        }
    }
    memset(bytes, 0xff, sizeof(bytes));
    cr_assert(tcp_checksum_fold(tcp_checksum_add(0, bytes, 280)) == 0xffff);
}

Test(tcp_wire, emitted_bytes_are_as_written_by_hand)
{
    static const uint8_t expected_tcp[32] = {0,    80,   0x12, 0x34, 0, 0, 0, 9, 0, 0, 0,
                                             8,    0x80, 0x12, 0x20, 0, 0, 0, 0, 0, 2, 4,
                                             0x05, 0xb4, 1,    1,    4, 2, 1, 3, 3, 7};
    load_v4();
    cr_assert(parse() == TCP_WIRE_OK);
    struct tcp_out out = {.tuple = &seg.tuple,
                          .link = &seg.link,
                          .seq = 9,
                          .ack = 8,
                          .window = 0x2000,
                          .flags = TCP_SYN | TCP_ACK,
                          .ip_id = 7,
                          .options = {.mss = 1460, .has_wscale = true, .wscale = 7, .sack_permitted = true}};
    uint8_t buf[TCP_HEADERS_MAX];
    memset(buf, 0xcc, sizeof(buf));
    uint32_t len = tcp_wire_emit(&out, buf, 0, 0);
    cr_assert(len == 14 + 20 + 32);
    cr_assert(memcmp(buf, frame + 6, 6) == 0 && memcmp(buf + 6, frame, 6) == 0);
    cr_assert(memcmp(buf + 26, frame + 30, 4) == 0 && memcmp(buf + 30, frame + 26, 4) == 0);
    cr_assert(plain_sum(buf + 14, 20, 0) == 0xffff);
    cr_assert(plain_sum(buf + 34, 32, plain_sum(buf + 26, 8, 6 + 32)) == 0xffff);
    bytes_put_be16(buf + 34 + 16, 0);
    cr_assert(memcmp(buf + 34, expected_tcp, 32) == 0);
    out.options = (struct tcp_options){0};
    memset(buf, 0xcc, sizeof(buf));
    cr_assert(tcp_wire_emit(&out, buf, 0, 0) == 60);
    for (uint32_t i = 54; i < 60; i++) {
        cr_assert(buf[i] == 0, "padding is zero");
    }
}

Test(tcp_wire, what_is_emitted_is_read_the_same)
{
    for (uint32_t version = 4; version <= 6; version += 2) {
        if (version == 4) {
            load_v4();
        } else {
            load_v6();
        }
        cr_assert(parse() == TCP_WIRE_OK);
        struct tcp_segment from = seg;
        from.link.tags = 2;
        from.link.tag_type[0] = 0x88a8;
        from.link.tag_type[1] = 0x8100;
        from.link.tag_id[0] = 7;
        from.link.tag_id[1] = 9;
        struct tcp_out out = {.tuple = &from.tuple,
                              .link = &from.link,
                              .seq = 9,
                              .ack = 8,
                              .window = 77,
                              .flags = TCP_ACK | TCP_CWR,
                              .ecn = TCP_ECN_ECT0,
                              .options = {.has_ts = true, .ts_value = 5, .ts_echo = 6, .sack_count = 3}};
        uint32_t headers = tcp_wire_headers_len(&out);
        cr_assert(headers <= TCP_HEADERS_MAX);
        memcpy(frame + headers, "hello", 5);
        uint64_t sum = tcp_checksum_add(0, (const uint8_t *)"hello", 5);
        frame_len = tcp_wire_emit(&out, frame, 5, sum);
        cr_assert(frame_len == headers + 5 && parse() == TCP_WIRE_OK);
        cr_assert(seg.ecn == TCP_ECN_ECT0 && seg.flags == (TCP_ACK | TCP_CWR) && seg.window == 77);
        cr_assert(seg.seq == 9 && seg.ack == 8 && seg.len == 5 && seg.tuple.version == version);
        cr_assert(memcmp(seg.tuple.peer, from.tuple.local, 16) == 0 && seg.tuple.peer_port == 80);
        cr_assert(seg.link.tags == 2 && seg.link.tag_type[0] == 0x88a8 && seg.link.tag_id[1] == 9);
        cr_assert(seg.options.has_ts && seg.options.ts_echo == 6 && seg.options.sack_count == 3);
    }
}
