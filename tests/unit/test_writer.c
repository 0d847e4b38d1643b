/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer over memory devices that refuse what real ones refuse, stepped: fragments of every shape arrive on the device
 * bit-exact, what is copied is counted, buffers come back, space is given back.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "storage/port_int.h"
#include "store_rig.h"

#define OBJECT_MAX (3 * MIB)

/* How the slices of one object lie in memory. */
struct shape {
    const char *name;
    uint32_t len_min, len_max; /* of a slice */
    uint32_t gap_unit;         /* gaps are multiples of it; 0: none, slices follow each other */
    bool
        keeps_residue; /* address minus place stays the same modulo 4096, as payload in aligned buffers does */
};

static const struct shape shapes[] = {
    {"contiguous", 1, 70000, 0, false},
    {"mss 1448 with gaps", 1448, 1448, 8, false},
    {"odd lengths, same residue", 1, 9000, 64, true},
    {"odd lengths, any place", 1, 9000, 1, false},
    {"single bytes", 1, 3, 2, false},
    {"4 KiB pages", 4096, 4096, 4096, false},
    {"mss 8948 with gaps", 8948, 8948, 4, false},
};

static uint64_t copied_total(struct store_rig *rig)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < STORE_COPY_REASONS; i++) {
        total += store_port_copied_bytes(rig->port)[i];
    }
    return total;
}

static void wait_for_slices(struct store_rig *rig, struct store_put *put, int64_t max)
{
    for (uint32_t turn = 0; rig->slices_out > max; turn++) {
        cr_assert_lt(turn, 100000U, "slices never came back");
        store_put_pressure(put);
        store_rig_turn(rig);
    }
}

/* Puts one object in the given shape; the size may be unknown. */
static int put_shaped(struct store_rig *rig, const struct shape *shape, const uint8_t *bytes, uint64_t len,
                      bool is_known, struct rng *rng)
{
    struct store_put *put = store_rig_begin(rig, "k", is_known ? len : UINT64_MAX);
    uint64_t area = rng_below(rng, 5000);
    for (uint64_t at = 0; at < len;) {
        uint64_t part = shape->len_min + rng_below(rng, shape->len_max - shape->len_min + 1ULL);
        part = part < len - at ? part : len - at;
        if (area + part + 2 * EXTENT_BLOCK > arena_area_size(&rig->arena)) {
            wait_for_slices(rig, put, 0);
            area = area % EXTENT_BLOCK;
        }
        store_rig_append(rig, put, bytes + at, (uint32_t)part, area);
        at += part;
        area += part;
        if (shape->gap_unit > 0) {
            uint64_t gap = shape->gap_unit * (1 + rng_below(rng, 5));
            area += shape->keeps_residue ? EXTENT_BLOCK : gap;
        }
        if (rng_chance(rng, 1, 20)) {
            store_rig_turn(rig);
        }
        if (rng_chance(rng, 1, 200)) {
            store_put_pressure(put);
        } else if (rng_chance(rng, 1, 50)) {
            store_put_relieve(put);
        }
    }
    return store_rig_finish(rig, put);
}

static void run_shapes(const struct store_rig_options *options, uint64_t seed)
{
    struct store_rig rig;
    struct rng rng;
    uint8_t *bytes = malloc(OBJECT_MAX);
    cr_assert_not_null(bytes);
    store_rig_fill(bytes, OBJECT_MAX, seed);
    rng_seed(&rng, seed);
    store_rig_open(&rig, options);
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    for (uint32_t i = 0; i < 3 * ARRAY_COUNT(shapes); i++) {
        const struct shape *shape = &shapes[i % ARRAY_COUNT(shapes)];
        uint64_t len = shape->len_max <= 3 ? 1 + rng_below(&rng, 20000) : 1 + rng_below(&rng, OBJECT_MAX);
        cr_assert_eq(put_shaped(&rig, shape, bytes, len, rng_chance(&rng, 1, 2), &rng), 0, "%s", shape->name);
        cr_assert_eq(rig.slices_out, 0);
        cr_assert_eq(store_rig_compare(&rig, "k", bytes, len), 0, "%s, %llu bytes, seed %llu", shape->name,
                     (unsigned long long)len, (unsigned long long)seed);
    }
    cr_assert_eq(store_rig_delete(&rig, "k"), 0);
    cr_assert_eq(store_rig_used(&rig), 0, "space leaked");
    store_rig_close(&rig);
    free(bytes);
}

Test(writer, fragments_of_every_shape_on_an_nvme_like_device)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        run_shapes(
            &(struct store_rig_options){.name = "writer-nvme", .is_memory = true, .delay_polls_max = 5},
            seed);
    }
}

Test(writer, fragments_of_every_shape_on_a_coarse_device)
{
    for (uint64_t seed = 10; seed <= 13; seed++) {
        run_shapes(
            &(struct store_rig_options){
                .name = "writer-512", .is_memory = true, .dma_alignment = 512, .delay_polls_max = 3},
            seed);
    }
}

Test(writer, fragments_of_every_shape_on_4k_blocks)
{
    for (uint64_t seed = 20; seed <= 23; seed++) {
        run_shapes(&(struct store_rig_options){.name = "writer-4k",
                                               .is_memory = true,
                                               .lba_size = 4096,
                                               .dma_alignment = 4,
                                               .fragments_max = 16},
                   seed);
    }
}

Test(writer, fragments_of_every_shape_with_little_staging)
{
    for (uint64_t seed = 30; seed <= 33; seed++) {
        run_shapes(&(struct store_rig_options){.name = "writer-64k",
                                               .is_memory = true,
                                               .staging_size = 64 * KIB,
                                               .writes_per_put = 1,
                                               .write_unit = 64 * KIB,
                                               .delay_polls_max = 2},
                   seed);
    }
}

Test(writer, segments_at_multiples_of_four_are_not_copied)
{
    struct store_rig rig;
    uint8_t *bytes = malloc(OBJECT_MAX);
    cr_assert_not_null(bytes);
    store_rig_fill(bytes, OBJECT_MAX, 5);
    store_rig_open(&rig, &(struct store_rig_options){.name = "writer-copies", .is_memory = true});
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    /* Segments begin at aligned places; the body begins 201 bytes into the first one. */
    struct store_put *put = store_rig_begin(&rig, "k", 300ULL * 1448 - 201);
    store_rig_append(&rig, put, bytes, 1448 - 201, 201);
    for (uint64_t i = 1; i < 300; i++) {
        store_rig_append(&rig, put, bytes + i * 1448 - 201, 1448, i * 2048);
    }
    cr_assert_eq(store_rig_finish(&rig, put), 0);
    cr_assert_leq(copied_total(&rig), 6, "only the ends are copied: under four bytes each");
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, 300ULL * 1448 - 201), 0);
    store_rig_close(&rig);
    free(bytes);
}

Test(writer, changing_residues_are_staged_after_a_bound_and_counted)
{
    struct store_rig rig;
    struct rng rng;
    uint8_t *bytes = malloc(OBJECT_MAX);
    cr_assert_not_null(bytes);
    rng_seed(&rng, 9);
    store_rig_fill(bytes, OBJECT_MAX, 6);
    store_rig_open(&rig, &(struct store_rig_options){.name = "writer-ragged", .is_memory = true});
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    cr_assert_eq(put_shaped(&rig, &shapes[3], bytes, MIB, true, &rng), 0);
    cr_assert_gt(store_port_copied_bytes(rig.port)[STORE_COPY_RAGGED], MIB / 2);
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, MIB), 0);
    store_rig_close(&rig);
    free(bytes);
}

/* Method: every shape, on a device that wants 512-byte pieces and on one whose fragments must meet at pages; a device of the usual
 * alignment would take most of "mss 1448" as it lies. */
Test(writer, devices_without_fine_fragments_are_fed_by_copies_counted_as_theirs)
{
    const struct store_rig_options devices[] = {
        {.name = "writer-coarse", .is_memory = true, .dma_alignment = 512},
        {.name = "writer-pages", .is_memory = true, .whole_pages = true},
        {.name = "writer-pages-4k", .is_memory = true, .whole_pages = true, .lba_size = 4096}};
    uint8_t *bytes = malloc(OBJECT_MAX);
    cr_assert_not_null(bytes);
    store_rig_fill(bytes, OBJECT_MAX, 6);
    for (uint32_t i = 0; i < ARRAY_COUNT(devices); i++) {
        struct store_rig rig;
        struct rng rng;
        rng_seed(&rng, i);
        store_rig_open(&rig, &devices[i]);
        cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
        for (uint32_t shape = 0; shape < ARRAY_COUNT(shapes); shape++) {
            cr_assert_eq(put_shaped(&rig, &shapes[shape], bytes, MIB + 77, true, &rng), 0, "%s, %s",
                         devices[i].name, shapes[shape].name);
            cr_assert_eq(store_rig_compare(&rig, "k", bytes, MIB + 77), 0, "%s, %s", devices[i].name,
                         shapes[shape].name);
        }
        const _Atomic uint64_t *copied = store_port_copied_bytes(rig.port);
        struct store_device_info *info = calloc(1, sizeof(*info));
        cr_assert_not_null(info);
        store_device_info(rig.store, 0, info);
        cr_expect_eq(info->fragments_ok, !devices[i].whole_pages, "%s", devices[i].name);
        cr_expect_not(info->packets_ok, "%s", devices[i].name);
        free(info);
        cr_expect_gt(copied[STORE_COPY_DEVICE], 2 * MIB);
        cr_expect_eq(copied[STORE_COPY_KERNEL], 0);
        cr_expect_lt(copied[STORE_COPY_RAGGED], MIB, "%s: %llu", devices[i].name,
                     (unsigned long long)copied[STORE_COPY_RAGGED]);
        store_rig_close(&rig);
    }
    free(bytes);
}

Test(writer, pressure_lets_go_of_every_slice)
{
    struct store_rig rig;
    uint8_t bytes[3000];
    store_rig_fill(bytes, sizeof(bytes), 7);
    store_rig_open(&rig, &(struct store_rig_options){.name = "writer-pressure", .is_memory = true});
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    struct store_put *put = store_rig_begin(&rig, "k", UINT64_MAX);
    store_rig_append(&rig, put, bytes, 100, 3);
    store_rig_append(&rig, put, bytes + 100, 2000, 10103);
    cr_assert(store_put_holds_idle_slices(put));
    store_put_pressure(put);
    cr_assert_not(store_put_holds_idle_slices(put));
    wait_for_slices(&rig, put, 0);
    cr_assert_gt(store_port_copied_bytes(rig.port)[STORE_COPY_PRESSURE], 0);
    store_rig_append(&rig, put, bytes + 2100, 900, 20000);
    cr_assert_eq(store_rig_finish(&rig, put), 0);
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, 3000), 0);
    store_rig_close(&rig);
}

Test(writer, relief_writes_whole_lbas_and_copies_nothing)
{
    struct store_rig rig;
    uint8_t bytes[40000];
    store_rig_fill(bytes, sizeof(bytes), 9);
    store_rig_open(&rig, &(struct store_rig_options){.name = "writer-relief", .is_memory = true});
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    struct store_put *put = store_rig_begin(&rig, "k", UINT64_MAX);
    store_rig_append(&rig, put, bytes, 20000, 0);
    store_rig_append(&rig, put, bytes + 20000, 10000, 20000);
    uint64_t copied = copied_total(&rig);
    store_put_relieve(put);
    cr_assert(store_put_holds_idle_slices(put), "the last slice holds less than an LBA");
    for (uint32_t turn = 0; rig.slices_out > 1; turn++) {
        cr_assert_lt(turn, 100000U, "the slices that were written never came back");
        store_rig_turn(&rig);
    }
    store_put_relieve(put); /* Nothing more to write: nothing happens, now or when more arrives. */
    cr_assert_eq(rig.slices_out, 1);
    cr_assert_eq(copied_total(&rig), copied);
    store_rig_append(&rig, put, bytes + 30000, 10000, 30000);
    cr_assert(store_put_holds_idle_slices(put));
    cr_assert_eq(store_rig_finish(&rig, put), 0);
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, sizeof(bytes)), 0);
    cr_assert_eq(store_port_copied_bytes(rig.port)[STORE_COPY_PRESSURE], 0);
    store_rig_close(&rig);
}

Test(writer, aborted_and_full_uploads_give_everything_back)
{
    struct store_rig rig;
    uint8_t *bytes = malloc(OBJECT_MAX);
    cr_assert_not_null(bytes);
    store_rig_fill(bytes, OBJECT_MAX, 8);
    store_rig_open(
        &rig, &(struct store_rig_options){.name = "writer-full", .is_memory = true, .device_size = 32 * MIB});
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    struct store_name key;
    store_rig_key(&key, "k");
    struct store_put *put;
    struct store_put_options options = {.bucket = "b", .key = &key, .size = 17 * MIB};
    cr_assert_eq(store_put_begin(rig.port, &options, &put), -ENOSPC,
                 "more than the device has is refused at once");

    put = store_rig_begin(&rig, "k", UINT64_MAX);
    for (uint32_t i = 0; i < 40 && store_put_state(put) == STORE_PUT_OPEN; i++) {
        store_rig_append(&rig, put, bytes, MIB, 0);
        wait_for_slices(&rig, put, 0);
    }
    cr_assert_eq(store_put_state(put), STORE_PUT_FAILED);
    cr_assert_eq(store_put_error(put), -ENOSPC);
    store_put_abort(put);
    for (uint32_t turn = 0; store_put_state(put) != STORE_PUT_ABORTED; turn++) {
        cr_assert_lt(turn, 10000U);
        store_rig_turn(&rig);
    }
    store_put_free(put);
    cr_assert_eq(store_rig_used(&rig), 0);
    cr_assert_eq(store_rig_put(&rig, "k", bytes, OBJECT_MAX, 64 * KIB, 0), 0, "there is room again");
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, OBJECT_MAX), 0);
    store_rig_close(&rig);
    free(bytes);
}

/* What is announced takes no space: uploads that stand still hold the first MiB each, however large they say they are. */
Test(writer, announced_bytes_that_do_not_come_take_no_space_from_others)
{
    enum { STALLED = 20, SIZE = 12 * MIB };
    struct store_rig rig;
    struct store_put *stalled[STALLED];
    uint8_t *bytes = malloc(SIZE);
    cr_assert_not_null(bytes);
    store_rig_fill(bytes, SIZE, 13);
    store_rig_open(
        &rig, &(struct store_rig_options){
                  .name = "writer-announced", .is_memory = true, .device_size = 64 * MIB, .puts_max = 32});
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    for (uint32_t i = 0; i < STALLED; i++) {
        char key[16];
        snprintf(key, sizeof(key), "stalled-%u", i);
        stalled[i] = store_rig_begin(&rig, key, 18 * MIB);
        if (i % 2 == 0) { /* Half of them send something. */
            store_rig_append(&rig, stalled[i], bytes, 5000, (uint64_t)i * 8192);
            wait_for_slices(&rig, stalled[i], 0);
        }
    }
    cr_assert_leq(store_rig_used(&rig), STALLED / 2 * MIB);
    cr_assert_leq(rig.store->promised, STALLED * (MIB + EXTENT_BLOCK));
    cr_assert_eq(store_rig_put(&rig, "k", bytes, SIZE, 64 * KIB, 0), 0, "an upload of a fifth of the device");
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, SIZE), 0);
    for (uint32_t i = 0; i < STALLED; i++) {
        store_put_abort(stalled[i]);
        for (uint32_t turn = 0; store_put_state(stalled[i]) != STORE_PUT_ABORTED; turn++) {
            cr_assert_lt(turn, 10000U);
            store_rig_turn(&rig);
        }
        store_put_free(stalled[i]);
    }
    cr_assert_eq(store_rig_used(&rig), SIZE, "what they held is free at once");
    cr_assert_eq(rig.store->promised, 0);
    store_rig_close(&rig);
    free(bytes);
}

/* More extents than an upload keeps in memory: they are recorded as pending meanwhile. */
Test(writer, many_extents_are_recorded_while_the_upload_runs)
{
    struct store_rig rig;
    uint8_t *bytes = malloc(OBJECT_MAX);
    cr_assert_not_null(bytes);
    store_rig_fill(bytes, OBJECT_MAX, 11);
    store_rig_open(&rig, &(struct store_rig_options){.name = "writer-pending", .is_memory = true});
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    struct store_put *put = store_rig_begin(&rig, "k", UINT64_MAX);
    for (uint64_t i = 0; i < 16; i++) { /* each slice has another residue modulo 4 */
        store_rig_append(&rig, put, bytes + i * 100 * KIB, 100 * KIB, i * 110 * KIB + i % 4);
        store_rig_turn(&rig);
    }
    for (uint32_t turn = 0; turn < 200; turn++) {
        store_rig_turn(&rig);
    }
    cr_assert_neq(put->message.owner, 0, "some extents were recorded as pending");
    cr_assert_leq(put->extent_count, PUT_EXTENTS_MAX);
    cr_assert_eq(store_rig_finish(&rig, put), 0);
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, 1600 * KIB), 0);
    cr_assert_eq(store_rig_delete(&rig, "k"), 0);
    cr_assert_eq(store_rig_used(&rig), 0);
    store_rig_close(&rig);
    free(bytes);
}

Test(writer, a_flipped_bit_is_never_handed_out)
{
    struct store_rig rig;
    uint8_t *bytes = malloc(MIB);
    cr_assert_not_null(bytes);
    store_rig_fill(bytes, MIB, 12);
    store_rig_open(&rig, &(struct store_rig_options){.name = "writer-flip", .is_memory = true});
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    cr_assert_eq(store_rig_put(&rig, "k", bytes, MIB, 64 * KIB, 0), 0);
    uint8_t *device = dev_mem_bytes(rig.store->devices[0].dev);
    device[SUPERBLOCK_DATA_OFFSET + 700 * KIB] ^= 1;
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, MIB), ERR_CORRUPT);
    struct store_stats stats;
    store_stats(rig.store, &stats);
    cr_assert_eq(stats.corrupt_blocks, 1);
    device[SUPERBLOCK_DATA_OFFSET + 700 * KIB] ^= 1;
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, MIB), 0);
    store_rig_close(&rig);
    free(bytes);
}
