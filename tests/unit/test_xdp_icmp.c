/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of rx_xdp_icmp. Goal: "too big" messages are read as RFC 1191 and RFC 4443 write them, and nothing else is. Method: messages
 * written by hand, then cut at every length and damaged.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "rx/rx_xdp_icmp.h"

static const uint8_t message4[] = {
    0x45, 0,    0,    56,   0,    0,    0,    0,    64, 1,
    0,    0,    10,   0,    0,    254,  10,   0,    0,  1, /* a router's IP header */
    3,    4,    0,    0,    0,    0,    0x05, 0x14,        /* too big, MTU 1300 */
    0x45, 0,    0x05, 0xdc, 0,    0,    0x40, 0,    64, 6,
    0,    0,    10,   0,    0,    1,    192,  0,    2,  7, /* our packet */
    0x23, 0x28, 0xc0, 0x01, 0x11, 0x22, 0x33, 0x44};

static const uint8_t message6[8 + 40 + 8] = {
    [0] = 2,     [6] = 0x05,  [7] = 0x00, /* too big, MTU 1280 */
    [8] = 0x60,  [14] = 6,    [16] = 0xfd, [31] = 1,    [32] = 0xfd, [47] = 2,    [48] = 0x23,
    [49] = 0x28, [50] = 0xc0, [51] = 1,    [52] = 0x11, [53] = 0x22, [54] = 0x33, [55] = 0x44};

Test(xdp_icmp, ipv4_message_is_read)
{
    struct xdp_too_big said;
    cr_assert(xdp_too_big_read4(message4, sizeof(message4), &said));
    cr_expect_eq(said.mtu, 1300);
    cr_expect_eq(said.seq, 0x11223344);
    cr_expect_eq(said.tuple.version, 4);
    cr_expect_eq(said.tuple.local_port, 9000);
    cr_expect_eq(said.tuple.peer_port, 0xc001);
    static const uint8_t local[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1};
    static const uint8_t peer[16] = {[10] = 0xff, [11] = 0xff, [12] = 192, [14] = 2, [15] = 7};
    cr_expect_arr_eq(said.tuple.local, local, 16);
    cr_expect_arr_eq(said.tuple.peer, peer, 16);
}

Test(xdp_icmp, ipv6_message_is_read)
{
    struct xdp_too_big said;
    cr_assert(xdp_too_big_read6(message6, sizeof(message6), &said));
    cr_expect_eq(said.mtu, 1280);
    cr_expect_eq(said.seq, 0x11223344);
    cr_expect_eq(said.tuple.version, 6);
    cr_expect_eq(said.tuple.local_port, 9000);
    cr_expect(said.tuple.local[0] == 0xfd && said.tuple.local[15] == 1 && said.tuple.peer[15] == 2);
}

/* Each copy has exactly the bytes that were said, so that a sanitizer sees a read behind them. */
static bool read_cut(bool (*read)(const uint8_t *, uint32_t, struct xdp_too_big *), const uint8_t *from,
                     uint32_t len)
{
    struct xdp_too_big said;
    uint8_t *copy = malloc(len > 0 ? len : 1);
    memcpy(copy, from, len);
    bool is_one = read(copy, len, &said);
    free(copy);
    return is_one;
}

Test(xdp_icmp, whatever_is_cut_is_refused)
{
    for (uint32_t len = 0; len < sizeof(message4); len++) {
        cr_expect(!read_cut(xdp_too_big_read4, message4, len), "%u", len);
    }
    for (uint32_t len = 0; len < sizeof(message6); len++) {
        cr_expect(!read_cut(xdp_too_big_read6, message6, len), "%u", len);
    }
}

Test(xdp_icmp, other_messages_and_packets_are_refused)
{
    static const struct {
        uint32_t at;
        uint8_t byte;
        const char *what;
    } damages[] = {{20, 11, "time exceeded"},
                   {21, 3, "port unreachable"},
                   {28, 0x65, "not IPv4"},
                   {28, 0x44, "header too short"},
                   {28, 0x4f, "header longer than the quote"},
                   {37, 17, "UDP"}};
    for (uint32_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        uint8_t bytes[sizeof(message4)];
        memcpy(bytes, message4, sizeof(bytes));
        bytes[damages[i].at] = damages[i].byte;
        cr_expect(!read_cut(xdp_too_big_read4, bytes, sizeof(bytes)), "%s", damages[i].what);
    }
    uint8_t bytes[sizeof(message6)];
    memcpy(bytes, message6, sizeof(bytes));
    bytes[0] = 1;
    cr_expect(!read_cut(xdp_too_big_read6, bytes, sizeof(bytes)), "destination unreachable");
    bytes[0] = 2;
    bytes[14] = 44;
    cr_expect(!read_cut(xdp_too_big_read6, bytes, sizeof(bytes)), "a fragment: packets of ours are none");
}
