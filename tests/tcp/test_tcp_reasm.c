/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reassembly against something obviously right: a bitmap of 64 KiB of stream. Random segments (any place, any length, with and
 * without FIN) go into an engine; after each, the bytes delivered, the ACK, the SACK blocks and the buffers held must agree with
 * the bitmap, and invariants of the engine hold. A failure prints its seed.
 */
#include <criterion/criterion.h>

#include "base/rng.h"
#include "tcp_invariants.h"
#include "tcp_rig.h"

#define STREAM 65536U

static struct rig rig;
static bool have[STREAM + 2]; /* by relative sequence number; 1 is the first byte */

static uint32_t first_missing(void)
{
    uint32_t at = 1;
    while (at <= STREAM && have[at]) {
        at++;
    }
    return at;
}

static void mark(uint32_t seq, uint32_t len, uint32_t edge)
{
    for (uint32_t i = seq; i < seq + len && i < edge && i <= STREAM; i++) {
        have[i] = true;
    }
}

/* Every block except a D-SACK speaks of bytes that came, and none before the ACK. */
static void check_sack(uint64_t seed, uint32_t ack)
{
    for (uint32_t i = 0; i < rig.seg.options.sack_count; i++) {
        uint32_t start = rig.seg.options.sack[i].start - rig.peer->irs;
        uint32_t end = rig.seg.options.sack[i].end - rig.peer->irs;
        cr_assert(start < end && end <= STREAM + 1, "seed %lu", (unsigned long)seed);
        cr_assert(i == 0 || start > ack, "seed %lu", (unsigned long)seed);
        for (uint32_t k = start; k < end; k++) {
            cr_assert(have[k], "seed %lu: SACK of byte %u, which never came", (unsigned long)seed, k);
        }
    }
}

static void random_segments(uint64_t seed, uint32_t len_max, uint32_t spread)
{
    struct rng rng;
    rng_seed(&rng, seed);
    memset(have, 0, sizeof(have));
    rig_open(&rig, &(struct tcp_config){.conn_frames_max = 128, .frames_hold_max = 200});
    rig_handshake(&rig);
    uint32_t edge = 1;
    for (uint32_t step = 0; step < 20000 && rig.eofs == 0; step++) {
        uint32_t base = first_missing();
        uint32_t low = base > spread / 4 ? base - spread / 4 : 1;
        /* Now and then what is missing, or the first hole might never be hit. */
        uint32_t seq = rng_chance(&rng, 1, 16) ? base : low + (uint32_t)rng_below(&rng, spread);
        uint32_t len = 1 + (uint32_t)rng_below(&rng, len_max);
        seq = seq > STREAM ? STREAM : seq;
        len = seq + len > STREAM + 1 ? STREAM + 1 - seq : len;
        bool fin = seq + len == STREAM + 1;
        uint64_t refused = COUNT(refused_hole_limit) + COUNT(refused_conn_limit) + COUNT(refused_pool);
        uint32_t window_edge = rig.engine->conns[rig.id.index].rcv_edge - rig.peer->irs;
        IN(.seq = seq, .len = len, .flags = (uint8_t)(TCP_ACK | (fin ? TCP_FIN : 0)));
        if (refused == COUNT(refused_hole_limit) + COUNT(refused_conn_limit) + COUNT(refused_pool)) {
            mark(seq, len, window_edge);
        }
        cr_assert(COUNT(evicted_out_of_order) == 0, "seed %lu: the consumer holds nothing",
                  (unsigned long)seed);
        invariants_check(rig.engine);
        uint32_t next = first_missing();
        cr_assert(rig.received == next - 1, "seed %lu step %u: %u delivered, bitmap says %u",
                  (unsigned long)seed, step, rig.received, next - 1);
        rig_advance(&rig, 50 * RIG_MS);
        while (rig_out(&rig) != NULL) {
            cr_assert(rig_ack(&rig) == next + (next == STREAM + 1 && rig.eofs == 1), "seed %lu",
                      (unsigned long)seed);
            check_sack(seed, next);
            edge = rig_ack(&rig);
        }
        cr_assert(tcp_stats(rig.engine)->frames_held == tcp_stats(rig.engine)->frames_out_of_order);
    }
    cr_assert(rig.eofs == 1 && edge == STREAM + 2, "seed %lu: stopped at %u", (unsigned long)seed, edge);
    rig_close(&rig);
}

Test(tcp_reasm, small_segments_agree_with_a_bitmap)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        random_segments(seed, 200, 2000);
    }
}

Test(tcp_reasm, large_segments_agree_with_a_bitmap)
{
    for (uint64_t seed = 100; seed < 106; seed++) {
        random_segments(seed, 1448, 20000);
    }
}

Test(tcp_reasm, far_segments_agree_with_a_bitmap)
{
    for (uint64_t seed = 200; seed < 206; seed++) {
        random_segments(seed, 1448, 70000);
    }
}
