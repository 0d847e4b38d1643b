// SPDX-License-Identifier: Apache-2.0
//
// Seek tables: whatever the stored bytes say, a table that is accepted describes exactly the object it was read for.

#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "server/zframe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const struct zframe_table *table, uint32_t count, uint64_t stored, uint64_t plain)
{
    uint64_t stored_sum = 0;
    uint64_t plain_sum = 0;
    CHECK(table->count == count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(zframe_offset(table, i) == stored_sum);
        CHECK(zframe_stored_len(table, i) <= ZFRAME_STORED_MAX);
        CHECK(zframe_plain_len(table, i) <= ZFRAME_PLAIN);
        stored_sum += zframe_stored_len(table, i);
        plain_sum += zframe_plain_len(table, i);
    }
    CHECK(stored_sum + zframe_table_len(count) == stored);
    CHECK(plain_sum == plain);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t bytes[ZFRAME_TABLE_MAX];
    struct zframe_table table;
    uint32_t count = 0;
    char text[STORE_CHECKSUMS_MAX + 1];
    uint64_t mark = 0;
    size_t text_len = size < STORE_CHECKSUMS_MAX ? size : STORE_CHECKSUMS_MAX;
    memcpy(text, data, text_len);
    text[text_len] = '\0';
    (void)zframe_is_marked(text, &mark);
    // First the sizes of the object, then the table's bytes as they would lie at its end.
    if (size < 16 + ZFRAME_FOOTER) {
        return 0;
    }
    uint64_t stored = bytes_get_le64(data);
    uint64_t plain = bytes_get_le64(data + 8);
    size_t len = size - 16;
    if (zframe_footer_read(data + size - ZFRAME_FOOTER, stored, plain, &count) < 0 ||
        len < zframe_table_len(count)) {
        return 0;
    }
    zframe_table_begin(&table, bytes);
    memcpy(bytes, data + size - zframe_table_len(count), zframe_table_len(count));
    if (zframe_table_read(&table, count, stored, plain) == 0) {
        walk(&table, count, stored, plain);
    }
    return 0;
}
