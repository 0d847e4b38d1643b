/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of rx_xdp_gather. Goal: the bytes of a jumbo frame stay the same and in order, and lie behind the first buffer as a device takes
 * them. Method: frames of random shape, with buffers in random places of the area, against a copy made before.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "ring/xsk.h"
#include "rx/rx_xdp_gather.h"

#define CHUNKS 16U

static uint8_t area[CHUNKS * XSK_CHUNK_DEFAULT] __attribute__((aligned(4096)));
static uint8_t before[TCP_PARTS_MAX * XSK_CHUNK_DEFAULT];

static uint32_t flatten(const struct tcp_part *parts, uint32_t count, uint8_t *to)
{
    uint32_t len = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (to != NULL) {
            memcpy(to + len, parts[i].addr, parts[i].len);
        }
        len += parts[i].len;
    }
    return len;
}

/* A frame as drivers write it: 258 bytes of headroom or more in every buffer, the last part of any length. */
static uint32_t make(struct rng *rng, struct tcp_part *parts)
{
    uint32_t count = 2 + (uint32_t)(rng_u64(rng) % (TCP_PARTS_MAX - 1));
    uint32_t first = (uint32_t)(rng_u64(rng) % CHUNKS);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t skip = 258 + (uint32_t)(rng_u64(rng) % 64);
        uint32_t room = XSK_CHUNK_DEFAULT - skip;
        parts[i].token = (first + 7 * i) % CHUNKS;
        parts[i].addr = area + parts[i].token * XSK_CHUNK_DEFAULT + skip;
        parts[i].len =
            i + 1 == count ? 1 + (uint32_t)(rng_u64(rng) % room) : room - (uint32_t)(rng_u64(rng) % 8);
        for (uint32_t k = 0; k < parts[i].len; k++) {
            parts[i].addr[k] = (uint8_t)rng_u64(rng);
        }
    }
    return count;
}

Test(xdp_gather, bytes_stay_and_every_buffer_behind_the_first_is_full_from_its_beginning)
{
    struct rng rng;
    rng_seed(&rng, 4711);
    for (int round = 0; round < 2000; round++) {
        struct tcp_part parts[TCP_PARTS_MAX];
        uint64_t moved = 0;
        uint32_t count = make(&rng, parts);
        uint32_t len = flatten(parts, count, before);
        uint32_t first = parts[0].len;
        uint32_t left = xdp_gather(parts, count, area, &moved);
        cr_assert(left >= 2 && left <= count);
        cr_assert_eq(moved, len - first);
        cr_assert_eq(flatten(parts, left, NULL), len);
        uint32_t at = 0;
        for (uint32_t i = 0; i < left; i++) {
            cr_assert(memcmp(before + at, parts[i].addr, parts[i].len) == 0, "round %d part %u", round, i);
            cr_assert(i == 0 || parts[i].addr == area + parts[i].token * XSK_CHUNK_DEFAULT);
            cr_assert(i == 0 || i + 1 == left || parts[i].len == XSK_CHUNK_DEFAULT);
            at += parts[i].len;
        }
    }
}
