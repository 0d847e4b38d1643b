/* SPDX-License-Identifier: Apache-2.0 */
/* The choice between two copies as a table, the codec, and what is recognised as somebody else's. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "storage/extent.h"
#include "storage/superblock.h"

static struct superblock sample(uint64_t sequence)
{
    struct superblock sb = {.sequence = sequence,
                            .created_ns = 1234567890123456789ULL,
                            .device_size = 4 * GIB,
                            .log_offset = SUPERBLOCK_LOG_OFFSET,
                            .log_size = SUPERBLOCK_LOG_SIZE,
                            .data_offset = SUPERBLOCK_DATA_OFFSET,
                            .device_index = 1,
                            .device_count = 3,
                            .block_size = EXTENT_BLOCK,
                            .checksum_block = EXTENT_CHECKSUM_BLOCK,
                            .version = SUPERBLOCK_VERSION};
    memset(sb.store_id, 0xa5, sizeof(sb.store_id));
    return sb;
}

struct row {
    int first, second; /* what decoding the copies gave */
    uint64_t first_sequence, second_sequence;
    int expected;
};

/* Columns of zeros in sequences are ignored cells. */
static const struct row rows[] = {
    {0, 0, 7, 7, 0},
    {0, 0, 8, 7, 0},
    {0, 0, 7, 8, 1},
    {0, ERR_CORRUPT, 7, 0, 0},
    {0, ERR_NOT_FORMATTED, 7, 0, 0},
    {0, -EIO, 7, 0, 0},
    {ERR_CORRUPT, 0, 0, 7, 1},
    {ERR_NOT_FORMATTED, 0, 0, 7, 1},
    {-EIO, 0, 0, 7, 1},
    {ERR_NOT_FORMATTED, ERR_NOT_FORMATTED, 0, 0, ERR_NOT_FORMATTED},
    {ERR_CORRUPT, ERR_NOT_FORMATTED, 0, 0, ERR_CORRUPT},
    {ERR_NOT_FORMATTED, ERR_CORRUPT, 0, 0, ERR_CORRUPT},
    {ERR_CORRUPT, ERR_CORRUPT, 0, 0, ERR_CORRUPT},
    {-EIO, ERR_NOT_FORMATTED, 0, 0, -EIO},
    {ERR_VERSION, ERR_NOT_FORMATTED, 0, 0, ERR_VERSION},
    {ERR_CORRUPT, ERR_VERSION, 0, 0, ERR_VERSION},
};

Test(superblock, choice_follows_the_table)
{
    for (uint32_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct superblock sb[2] = {sample(rows[i].first_sequence), sample(rows[i].second_sequence)};
        int rc[2] = {rows[i].first, rows[i].second};
        cr_assert_eq(superblock_choose(rc, sb), rows[i].expected, "row %u", i);
    }
}

Test(superblock, what_is_encoded_is_decoded)
{
    uint8_t block[SUPERBLOCK_SIZE];
    struct superblock in = sample(9);
    struct superblock out;
    superblock_encode(&in, block);
    cr_assert_eq(superblock_decode(block, &out), 0);
    cr_assert_eq(memcmp(&in, &out, sizeof(in)), 0);
}

Test(superblock, any_flipped_bit_is_found)
{
    uint8_t block[SUPERBLOCK_SIZE];
    struct superblock in = sample(9);
    struct superblock out;
    superblock_encode(&in, block);
    for (uint32_t bit = 0; bit < SUPERBLOCK_SIZE * 8; bit += 13) {
        block[bit / 8] ^= (uint8_t)(1U << (bit % 8));
        cr_assert_neq(superblock_decode(block, &out), 0, "bit %u", bit);
        block[bit / 8] ^= (uint8_t)(1U << (bit % 8));
    }
}

Test(superblock, newer_formats_and_impossible_geometry_are_refused)
{
    uint8_t block[SUPERBLOCK_SIZE];
    struct superblock out;
    struct superblock sb = sample(1);
    sb.version = SUPERBLOCK_VERSION + 1;
    superblock_encode(&sb, block);
    cr_assert_eq(superblock_decode(block, &out), ERR_VERSION);
    sb = sample(1);
    sb.device_index = 3;
    superblock_encode(&sb, block);
    cr_assert_eq(superblock_decode(block, &out), ERR_CORRUPT);
    sb = sample(1);
    sb.data_offset = sb.device_size;
    superblock_encode(&sb, block);
    cr_assert_eq(superblock_decode(block, &out), ERR_CORRUPT);
}

/* A power cut during superblock_write leaves one whole copy, whatever happens to the unflushed one. */
Test(superblock, one_copy_survives_a_power_cut_at_every_flush)
{
    for (uint64_t nth = 1; nth <= 4; nth++) {
        for (uint64_t seed = 0; seed < 16; seed++) {
            struct dev *dev;
            struct dev_queue *queue;
            struct dev_mem_options options = {.size = 32 * MIB,
                                              .lba_size = 512,
                                              .dma_alignment = 4,
                                              .fragments_max = 16,
                                              .bytes_max = 1U << 30};
            struct superblock old = sample(1);
            struct superblock new = sample(2);
            struct superblock got;
            cr_assert_eq(dev_mem_open(&options, &dev), 0);
            cr_assert_eq(dev_queue_open(dev, NULL, 4, &queue, NULL), 0);
            cr_assert_eq(superblock_write(queue, &old, NULL), 0);
            dev_mem_die_at_flush(dev, nth);
            int rc = superblock_write(queue, &new, NULL);
            cr_assert_eq(rc == 0, nth > 2);
            dev_mem_die(dev);
            dev_queue_close(queue);
            dev_mem_crash(dev, seed);
            cr_assert_eq(dev_queue_open(dev, NULL, 4, &queue, NULL), 0);
            cr_assert_eq(superblock_read(queue, &got, NULL), 0, "nth %llu seed %llu", (unsigned long long)nth,
                         (unsigned long long)seed);
            cr_assert(got.sequence == 1 || got.sequence == 2);
            dev_queue_close(queue);
            dev_close(dev);
        }
    }
}

Test(superblock, foreign_file_systems_are_named)
{
    static uint8_t head[SUPERBLOCK_FOREIGN_BYTES];
    cr_assert_null(superblock_foreign(head, sizeof(head)));
    memcpy(head, "XFSB", 4);
    cr_assert_str_eq(superblock_foreign(head, sizeof(head)), "an xfs file system");
    memset(head, 0, 4);
    head[1080] = 0x53;
    head[1081] = 0xef;
    cr_assert_str_eq(superblock_foreign(head, sizeof(head)), "an ext2/3/4 file system");
    cr_assert_null(superblock_foreign(head, 100), "what was not read is not looked at");
}
