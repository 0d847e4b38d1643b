/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines over a simulated link (tcp_link.h): whatever the link does, the bytes arrive whole, and not much later than they
 * could. The ceilings on virtual time make a slow-down of recovery a failure; they are what was measured plus about a half.
 */
#include <criterion/criterion.h>

#include "tcp_link.h"

#define MS NS_PER_MS
#define GIGABIT 8U     /* ns per byte */
#define TEN_GIGABIT 1U /* about */

static void run(const char *name, struct link_options options, uint64_t ceiling_ms)
{
    struct link_result result;
    options.seed = options.seed == 0 ? 1 : options.seed;
    options.ceiling_ns = ceiling_ms * MS;
    link_run(&options, &result);
    cr_log_info("%s: %lu ms, %lu packets, %lu lost, %lu bytes again, %lu timeouts, %lu acks", name,
                (unsigned long)(result.took_ns / MS), (unsigned long)result.packets,
                (unsigned long)result.lost, (unsigned long)result.retransmitted,
                (unsigned long)result.timeouts, (unsigned long)result.acks);
    cr_assert(result.complete, "%s seed %lu: error %d, upload %u of %u, response %u of %u", name,
              (unsigned long)options.seed, result.error, result.got_upload, options.upload,
              result.got_response, options.response);
    cr_assert(result.took_ns <= options.ceiling_ns, "%s seed %lu: %lu ms, ceiling %lu", name,
              (unsigned long)options.seed, (unsigned long)(result.took_ns / MS), (unsigned long)ceiling_ms);
}

Test(tcp_link, perfect)
{
    run("perfect",
        (struct link_options){.delay_ns = MS, .ns_per_byte = GIGABIT, .upload = 4 << 20, .response = 100000},
        60);
    run("perfect v6",
        (struct link_options){
            .version = 6, .delay_ns = MS, .ns_per_byte = GIGABIT, .upload = 1 << 20, .response = 1 << 20},
        60);
}

Test(tcp_link, nothing_to_send)
{
    run("empty", (struct link_options){.delay_ns = MS, .response = 1}, 20);
}

Test(tcp_link, each_single_loss)
{
    for (uint32_t i = 0; i < 64; i++) {
        run("single loss",
            (struct link_options){.delay_ns = 5 * MS,
                                  .ns_per_byte = GIGABIT,
                                  .loss_mask = 1ULL << i,
                                  .upload = 90000,
                                  .response = 1000},
            1800);
    }
}

/* Loss x round trip for 2 MiB up and 200 kB down over a gigabit link; milliseconds of virtual time at most. At a tenth lost, the slowest of
 * the three loses one segment or its ACK seven times in a row. */
Test(tcp_link, random_loss_table)
{
    static const struct {
        uint32_t loss_ppm;
        uint64_t delay_ms;
        uint64_t ceiling_ms;
    } rows[] = {
        {0, 1, 60},       {1000, 1, 90},     {10000, 1, 500},    {50000, 1, 3000},   {0, 25, 1300},
        {1000, 25, 2000}, {10000, 25, 9000}, {50000, 25, 28000}, {100000, 5, 55000},
    };
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            run("random loss",
                (struct link_options){.delay_ns = rows[i].delay_ms * MS,
                                      .ns_per_byte = GIGABIT,
                                      .loss_ppm = rows[i].loss_ppm,
                                      .upload = 2 << 20,
                                      .response = 200000,
                                      .seed = seed},
                rows[i].ceiling_ms);
        }
    }
}

/* Every fifth packet is lost, in both directions. Timeouts follow one another; what they measure must not make them longer and longer
 * until the peer is given up. */
Test(tcp_link, every_fifth_packet_lost_is_slow_but_no_end)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        run("a fifth lost",
            (struct link_options){.delay_ns = 5 * MS,
                                  .ns_per_byte = GIGABIT,
                                  .loss_ppm = 200000,
                                  .upload = 2 << 20,
                                  .response = 200000,
                                  .seed = seed},
            600000);
    }
}

Test(tcp_link, loss_without_sack_and_without_timestamps)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        run("no sack",
            (struct link_options){.no_sack = true,
                                  .delay_ns = 5 * MS,
                                  .ns_per_byte = GIGABIT,
                                  .loss_ppm = 10000,
                                  .upload = 1 << 20,
                                  .response = 200000,
                                  .seed = seed},
            900);
        run("no timestamps",
            (struct link_options){.no_timestamps = true,
                                  .delay_ns = 5 * MS,
                                  .ns_per_byte = GIGABIT,
                                  .loss_ppm = 10000,
                                  .upload = 1 << 20,
                                  .response = 200000,
                                  .seed = seed},
            1400);
        run("neither",
            (struct link_options){.no_timestamps = true,
                                  .no_sack = true,
                                  .delay_ns = 5 * MS,
                                  .ns_per_byte = GIGABIT,
                                  .loss_ppm = 10000,
                                  .upload = 1 << 20,
                                  .response = 200000,
                                  .seed = seed},
            900);
    }
}

Test(tcp_link, reordering_duplicates_and_damage)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        run("jitter",
            (struct link_options){.delay_ns = 5 * MS,
                                  .jitter_ns = 3 * MS,
                                  .ns_per_byte = GIGABIT,
                                  .upload = 1 << 20,
                                  .response = 200000,
                                  .seed = seed},
            2800);
        run("duplicates",
            (struct link_options){.delay_ns = 5 * MS,
                                  .jitter_ns = MS / 10,
                                  .dup_ppm = 300000,
                                  .ns_per_byte = GIGABIT,
                                  .upload = 1 << 20,
                                  .response = 200000,
                                  .seed = seed},
            1600);
        run("damage",
            (struct link_options){.delay_ns = 5 * MS,
                                  .corrupt_ppm = 20000,
                                  .ns_per_byte = GIGABIT,
                                  .upload = 1 << 20,
                                  .response = 200000,
                                  .seed = seed},
            1500);
        run("all",
            (struct link_options){.delay_ns = 5 * MS,
                                  .jitter_ns = 2 * MS,
                                  .loss_ppm = 20000,
                                  .dup_ppm = 50000,
                                  .corrupt_ppm = 10000,
                                  .ns_per_byte = GIGABIT,
                                  .upload = 1 << 20,
                                  .response = 200000,
                                  .seed = seed},
            4000);
    }
}

Test(tcp_link, short_queue_at_the_bottleneck)
{
    run("short queue",
        (struct link_options){
            .delay_ns = 10 * MS, .ns_per_byte = 80, .queue_ns = 10 * MS, .upload = 4 << 20, .response = 1000},
        800);
}

Test(tcp_link, slow_consumer_closes_and_reopens_the_window)
{
    run("slow consumer",
        (struct link_options){.delay_ns = MS,
                              .ns_per_byte = GIGABIT,
                              .consumer_ns = 20 * MS,
                              .conn_frames_max = 64,
                              .upload = 2 << 20,
                              .response = 1000},
        900);
    run("stalled consumer",
        (struct link_options){.delay_ns = MS,
                              .ns_per_byte = GIGABIT,
                              .consumer_ns = 2000 * MS,
                              .conn_frames_max = 512,
                              .upload = 2 << 20,
                              .response = 1000},
        9000);
    run("slow and lossy",
        (struct link_options){.delay_ns = MS,
                              .ns_per_byte = GIGABIT,
                              .consumer_ns = 20 * MS,
                              .conn_frames_max = 32,
                              .loss_ppm = 20000,
                              .upload = 1 << 20,
                              .response = 1000},
        1200);
}

Test(tcp_link, path_that_swallows_large_packets)
{
    run("black hole",
        (struct link_options){
            .delay_ns = MS, .ns_per_byte = GIGABIT, .mtu_silent = 1400, .upload = 200000, .response = 200000},
        42000); /* Data took the handshake's ACK with it, so the server begins with three seconds as well. */
}

Test(tcp_link, congestion_marks_slow_down_without_loss)
{
    run("marks",
        (struct link_options){.delay_ns = 5 * MS,
                              .ns_per_byte = GIGABIT,
                              .mark_ppm = 20000,
                              .upload = 1 << 20,
                              .response = 1000},
        1300);
}

Test(tcp_link, long_fat_path)
{
    run("100 ms",
        (struct link_options){
            .delay_ns = 50 * MS, .ns_per_byte = GIGABIT, .upload = 8 << 20, .response = 1000},
        7000);
}
