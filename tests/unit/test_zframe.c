/* SPDX-License-Identifier: Apache-2.0 */
/* Seek tables of compressed objects: written ones read back, damaged ones are refused, ranges touch the right frames. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/err.h"
#include "server/zframe.h"

static uint8_t bytes[ZFRAME_TABLE_MAX];

static uint32_t make_table(struct zframe_table *table, uint64_t plain, uint64_t *stored)
{
    *stored = 0;
    zframe_table_begin(table, bytes);
    for (uint64_t at = 0; at < plain; at += ZFRAME_PLAIN) {
        uint32_t len = plain - at < ZFRAME_PLAIN ? (uint32_t)(plain - at) : ZFRAME_PLAIN;
        uint32_t stored_len = 1000 + (uint32_t)(at / ZFRAME_PLAIN);
        zframe_table_add(table, stored_len, len);
        *stored += stored_len;
    }
    uint32_t len = zframe_table_finish(table);
    *stored += len;
    return len;
}

Test(zframe, a_table_reads_back_as_it_was_written)
{
    const uint64_t sizes[] = {
        1, ZFRAME_PLAIN - 1, ZFRAME_PLAIN, ZFRAME_PLAIN + 1, 5ULL * ZFRAME_PLAIN + 7, ZFRAME_OBJECT_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct zframe_table table;
        uint64_t stored = 0;
        uint32_t count = 0;
        uint32_t len = make_table(&table, sizes[i], &stored);
        uint32_t written = table.count;
        cr_assert_eq(zframe_footer_read(bytes + len - ZFRAME_FOOTER, stored, sizes[i], &count), 0);
        cr_assert_eq(count, written);
        cr_assert_eq(zframe_table_len(count), len);
        cr_assert_eq(zframe_table_read(&table, count, stored, sizes[i]), 0);
        cr_assert_eq(zframe_offset(&table, count) + len, stored);
    }
}

/* Every single changed byte of a table must be noticed: none of them is free. */
Test(zframe, any_changed_byte_of_a_table_is_refused)
{
    struct zframe_table table;
    uint64_t stored = 0;
    uint64_t plain = 3ULL * ZFRAME_PLAIN + 5;
    uint32_t len = make_table(&table, plain, &stored);
    for (uint32_t at = 0; at < len; at++) {
        for (int bit = 0; bit < 8; bit++) {
            bytes[at] ^= (uint8_t)(1 << bit);
            cr_expect_eq(zframe_table_read(&table, 4, stored, plain), ERR_CORRUPT, "byte %u bit %d", at, bit);
            bytes[at] ^= (uint8_t)(1 << bit);
        }
    }
    cr_expect_eq(zframe_table_read(&table, 4, stored, plain), 0);
    cr_expect_eq(zframe_table_read(&table, 4, stored + 1, plain), ERR_CORRUPT);
    cr_expect_eq(zframe_table_read(&table, 4, stored, plain - 1), ERR_CORRUPT);
    cr_expect_eq(zframe_table_read(&table, 4, len, plain), ERR_CORRUPT);
}

Test(zframe, ranges_touch_the_frames_that_hold_them)
{
    struct zframe_span span = zframe_span(0, 1);
    cr_expect(span.first == 0 && span.last == 0 && span.skip == 0);
    span = zframe_span(ZFRAME_PLAIN - 1, 1);
    cr_expect(span.first == 0 && span.last == 0 && span.skip == ZFRAME_PLAIN - 1);
    span = zframe_span(ZFRAME_PLAIN - 1, 2);
    cr_expect(span.first == 0 && span.last == 1 && span.skip == ZFRAME_PLAIN - 1);
    span = zframe_span(ZFRAME_PLAIN, ZFRAME_PLAIN);
    cr_expect(span.first == 1 && span.last == 1 && span.skip == 0);
    span = zframe_span(0, ZFRAME_OBJECT_MAX);
    cr_expect(span.first == 0 && span.last == ZFRAME_COUNT_MAX - 1);
}

Test(zframe, marks_keep_the_checksum_before_them)
{
    char text[STORE_CHECKSUMS_MAX + 1] = "";
    uint64_t plain = 0;
    cr_expect_not(zframe_is_marked(text, &plain));
    cr_expect_eq(zframe_size(text, 17), 17);
    cr_assert(zframe_mark(text, 123456));
    cr_expect_str_eq(text, "zstd=123456");
    cr_expect_eq(zframe_size(text, 17), 123456);
    strcpy(text, "sha256=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    cr_expect_eq(zframe_size(text, 17), 17);
    cr_assert(zframe_mark(text, ZFRAME_OBJECT_MAX));
    cr_expect_eq(zframe_size(text, 17), ZFRAME_OBJECT_MAX);
    cr_expect_not(zframe_is_marked("zstd=12x", &plain));
    cr_expect_not(zframe_is_marked("zstd=99999999999999999999999", &plain));
}

Test(zframe, a_saving_of_less_than_a_sixteenth_is_not_worth_it)
{
    cr_expect(zframe_is_worth(ZFRAME_PLAIN / 16 * 15 - 1, ZFRAME_PLAIN));
    cr_expect_not(zframe_is_worth(ZFRAME_PLAIN / 16 * 15, ZFRAME_PLAIN));
    cr_expect_not(zframe_is_worth(ZFRAME_STORED_MAX, ZFRAME_PLAIN));
}

/* libzstd decompresses the stored bytes as one stream: frames and, as a skippable frame, the table. */
Test(zframe, the_stored_form_is_a_plain_zstd_file)
{
    enum { PLAIN = 2 * ZFRAME_PLAIN + 1234 };
    uint8_t *plain = malloc(PLAIN);
    uint8_t *stored = malloc(4 * (size_t)ZFRAME_STORED_MAX);
    uint8_t *back = malloc(PLAIN);
    struct zframe_table table;
    size_t used = 0;
    for (size_t i = 0; i < PLAIN; i++) {
        plain[i] = (uint8_t)(i / 100 + i % 7);
    }
    zframe_table_begin(&table, bytes);
    for (size_t at = 0; at < PLAIN; at += ZFRAME_PLAIN) {
        size_t len = PLAIN - at < ZFRAME_PLAIN ? PLAIN - at : ZFRAME_PLAIN;
        size_t got = ZSTD_compress(stored + used, ZFRAME_STORED_MAX, plain + at, len, 3);
        cr_assert_not(ZSTD_isError(got));
        zframe_table_add(&table, (uint32_t)got, (uint32_t)len);
        used += got;
    }
    uint32_t len = zframe_table_finish(&table);
    memcpy(stored + used, bytes, len);
    cr_assert_eq(ZSTD_decompress(back, PLAIN, stored, used + len), PLAIN);
    cr_assert_eq(memcmp(plain, back, PLAIN), 0);
    free(plain);
    free(stored);
    free(back);
}
