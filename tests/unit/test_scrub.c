/* SPDX-License-Identifier: Apache-2.0 */
/* test_scrub: a pass over a stepped store on memory devices: clean, with a flipped bit, with an unreadable block, and its rate. */
#include "store_rig.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "storage/scrub.h"

#define RATE (64 * MIB)

static struct scrub *open_scrub(struct store_rig *rig, uint64_t rate)
{
    struct index_options index = {.dir = rig->store_options.data_dir};
    struct scrub_options options = {.index = &index, .rate = rate, .pause_ns = 1000 * NS_PER_S};
    struct scrub *scrub = NULL;
    struct err err = {""};
    int rc = scrub_open(rig->store, &options, &scrub, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    return scrub;
}

/* Steps until one pass is over; returns the virtual time that it took. */
static uint64_t one_pass(struct scrub *scrub, struct scrub_stats *stats)
{
    uint64_t begin_ns = NS_PER_S, now_ns = begin_ns;
    for (uint32_t i = 0; i < 100000; i++) {
        uint64_t next_ns = scrub_step(scrub, now_ns);
        scrub_stats(scrub, stats);
        if (stats->passes == 1) {
            return now_ns - begin_ns;
        }
        now_ns = next_ns != TIME_NEVER && next_ns > now_ns ? next_ns : now_ns;
    }
    cr_assert_fail("the pass never ends");
    return 0;
}

static void fill_store(struct store_rig *rig, uint8_t *bytes)
{
    struct store_rig_options options = {.name = "scrub", .is_memory = true};
    store_rig_open(rig, &options);
    cr_assert_eq(store_rig_bucket(rig, "b"), 0);
    store_rig_fill(bytes, MIB, 3);
    cr_assert_eq(store_rig_put(rig, "large", bytes, 900 * KIB, 100000, 0), 0);
    cr_assert_eq(store_rig_put(rig, "small", bytes, 777, 777, 4), 0);
    cr_assert_eq(store_rig_put(rig, "empty", bytes, 0, 1, 0), 0);
}

static uint8_t payload[MIB];

/* Place on device 0 of byte `at` of an object. */
static uint64_t place_of(struct store_rig *rig, const char *key, uint64_t at)
{
    struct store_request lookup = {.kind = STORE_OBJECT_LOOKUP, .bucket = "b"};
    store_rig_key(&lookup.key, key);
    cr_assert_eq(store_rig_request(rig, &lookup), 0);
    const struct object_piece *piece = &lookup.object->pieces[0];
    uint64_t place = piece->extent.offset + piece->extent.phase + at;
    store_object_release(rig->port, lookup.object);
    return place;
}

Test(scrub, clean_store_is_read_whole_and_nothing_is_found)
{
    struct store_rig rig;
    struct scrub_stats stats;
    fill_store(&rig, payload);
    struct scrub *scrub = open_scrub(&rig, RATE);
    one_pass(scrub, &stats);
    cr_assert_eq(stats.bytes, 900 * KIB + 777);
    cr_assert_eq(stats.bad_blocks, 0);
    cr_assert_eq(stats.read_errors, 0);
    scrub_close(scrub);
    store_rig_close(&rig);
}

Test(scrub, each_flipped_bit_is_found_once_per_pass)
{
    struct store_rig rig;
    struct scrub_stats stats;
    fill_store(&rig, payload);
    dev_mem_bytes(rig.devices[0])[place_of(&rig, "large", 10)] ^= 1;
    dev_mem_bytes(rig.devices[0])[place_of(&rig, "large", 600 * KIB)] ^= 0x80;
    dev_mem_bytes(rig.devices[0])[place_of(&rig, "small", 776)] ^= 4;
    struct scrub *scrub = open_scrub(&rig, RATE);
    one_pass(scrub, &stats);
    cr_assert_eq(stats.bad_blocks, 3);
    struct store_stats store;
    store_stats(rig.store, &store);
    cr_assert_eq(store.corrupt_blocks, 3);
    cr_assert_eq(store.scrubbed_bytes, 900 * KIB + 777);
    scrub_close(scrub);
    store_rig_close(&rig);
}

Test(scrub, rate_is_kept)
{
    struct store_rig rig;
    struct scrub_stats stats;
    fill_store(&rig, payload);
    struct scrub *scrub = open_scrub(&rig, MIB);
    uint64_t took_ns = one_pass(scrub, &stats);
    cr_assert_gt(took_ns, 850 * NS_PER_MS); /* 0.88 MiB at 1 MiB/s */
    cr_assert_lt(took_ns, 1000 * NS_PER_MS);
    scrub_close(scrub);
    store_rig_close(&rig);
}

Test(scrub, object_deleted_while_it_is_scrubbed_is_left_alone)
{
    struct store_rig rig;
    struct scrub_stats stats = {0};
    fill_store(&rig, payload);
    struct scrub *scrub = open_scrub(&rig, RATE);
    cr_assert_eq(scrub_step(scrub, NS_PER_S),
                 TIME_NEVER); /* the first block of the first object is being read */
    cr_assert_eq(store_rig_delete(&rig, "large"), 0);
    uint64_t used_pinned = store_rig_used(&rig);
    one_pass(scrub, &stats);
    cr_assert_eq(stats.bad_blocks, 0);
    cr_assert_lt(store_rig_used(&rig), used_pinned); /* the read held the space, and nothing holds it now */
    scrub_close(scrub);
    store_rig_close(&rig);
}

Test(scrub, background_thread_reads_what_is_there)
{
    struct store_rig rig;
    struct store_rig_options options = {.name = "scrub-thread"};
    struct store_stats stats = {.objects = 0};
    store_rig_fill(payload, MIB, 4);
    store_rig_open(&rig, &options);
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    cr_assert_eq(store_rig_put(&rig, "k", payload, 700 * KIB, 65536, 0), 0);
    rig.store_options.scrub_rate = GIB;
    store_rig_reopen(&rig);
    uint64_t deadline_ns = clock_monotonic_ns() + 30 * NS_PER_S;
    while (stats.scrubbed_bytes < 700 * KIB) {
        cr_assert_lt(clock_monotonic_ns(), deadline_ns, "scrub read %llu bytes only",
                     (unsigned long long)stats.scrubbed_bytes);
        store_rig_turn(&rig);
        store_stats(rig.store, &stats);
    }
    cr_assert_eq(stats.corrupt_blocks, 0);
    store_rig_close(&rig);
}
