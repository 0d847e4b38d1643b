/* SPDX-License-Identifier: Apache-2.0 */
/* zframe: seek tables and the mark. */
#include "server/zframe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/err.h"

#define ZFRAME_SKIPPABLE_MAGIC 0x184D2A5EU
#define ZFRAME_SEEKABLE_MAGIC 0x8F92EAB1U

_Static_assert(ZFRAME_STORED_MAX >= ZSTD_COMPRESSBOUND(ZFRAME_PLAIN), "a frame fits whatever it holds");

static const char zframe_word[] = "zstd=";

/* ---- writing -------------------------------------------------------------------------------------------------- */

static uint8_t *zframe_entry(const struct zframe_table *table, uint32_t index)
{
    return table->bytes + ZFRAME_TABLE_HEAD + (size_t)index * ZFRAME_TABLE_ENTRY;
}

void zframe_table_begin(struct zframe_table *table, uint8_t *bytes)
{
    table->bytes = bytes;
    table->count = 0;
}

void zframe_table_add(struct zframe_table *table, uint32_t stored_len, uint32_t plain_len)
{
    CHECK(table->count < ZFRAME_COUNT_MAX);
    uint8_t *entry = zframe_entry(table, table->count++);
    bytes_put_le32(entry, stored_len);
    bytes_put_le32(entry + 4, plain_len);
}

uint32_t zframe_table_finish(struct zframe_table *table)
{
    uint32_t len = zframe_table_len(table->count);
    uint8_t *footer = zframe_entry(table, table->count);
    bytes_put_le32(table->bytes, ZFRAME_SKIPPABLE_MAGIC);
    bytes_put_le32(table->bytes + 4, len - ZFRAME_TABLE_HEAD);
    bytes_put_le32(footer, table->count);
    footer[4] = 0; /* No checksums here: each frame carries its own. */
    bytes_put_le32(footer + 5, ZFRAME_SEEKABLE_MAGIC);
    return len;
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

int zframe_footer_read(const uint8_t *footer, uint64_t stored, uint64_t plain, uint32_t *count)
{
    uint64_t frames = plain / ZFRAME_PLAIN + (plain % ZFRAME_PLAIN > 0);
    if (frames == 0 || frames > ZFRAME_COUNT_MAX || bytes_get_le32(footer) != frames || footer[4] != 0 ||
        bytes_get_le32(footer + 5) != ZFRAME_SEEKABLE_MAGIC || stored <= zframe_table_len((uint32_t)frames)) {
        return ERR_CORRUPT;
    }
    *count = (uint32_t)frames;
    return 0;
}

int zframe_table_read(struct zframe_table *table, uint32_t count, uint64_t stored, uint64_t plain)
{
    uint32_t len = zframe_table_len(count);
    uint64_t left_stored = stored - len;
    uint64_t left_plain = plain;
    uint32_t found = 0;
    if (stored <= len || bytes_get_le32(table->bytes) != ZFRAME_SKIPPABLE_MAGIC ||
        bytes_get_le32(table->bytes + 4) != len - ZFRAME_TABLE_HEAD ||
        zframe_footer_read(table->bytes + len - ZFRAME_FOOTER, stored, plain, &found) < 0 || found != count) {
        return ERR_CORRUPT;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t stored_len = zframe_stored_len(table, i);
        uint32_t plain_len = zframe_plain_len(table, i);
        uint64_t expected = left_plain < ZFRAME_PLAIN ? left_plain : ZFRAME_PLAIN;
        if (stored_len == 0 || stored_len > ZFRAME_STORED_MAX || stored_len > left_stored ||
            plain_len != expected) {
            return ERR_CORRUPT;
        }
        left_stored -= stored_len;
        left_plain -= plain_len;
    }
    table->count = count;
    return left_stored == 0 && left_plain == 0 ? 0 : ERR_CORRUPT;
}

uint32_t zframe_stored_len(const struct zframe_table *table, uint32_t index)
{
    return bytes_get_le32(zframe_entry(table, index));
}

uint32_t zframe_plain_len(const struct zframe_table *table, uint32_t index)
{
    return bytes_get_le32(zframe_entry(table, index) + 4);
}

uint64_t zframe_offset(const struct zframe_table *table, uint32_t index)
{
    uint64_t offset = 0;
    CHECK(index <= table->count);
    for (uint32_t i = 0; i < index; i++) {
        offset += zframe_stored_len(table, i);
    }
    return offset;
}

struct zframe_span zframe_span(uint64_t first, uint64_t len)
{
    CHECK(len > 0);
    CHECK(first < ZFRAME_OBJECT_MAX);
    CHECK(len <= ZFRAME_OBJECT_MAX - first);
    return (struct zframe_span){.first = (uint32_t)(first / ZFRAME_PLAIN),
                                .last = (uint32_t)((first + len - 1) / ZFRAME_PLAIN),
                                .skip = (uint32_t)(first % ZFRAME_PLAIN)};
}

/* ---- the mark ------------------------------------------------------------------------------------------------- */

bool zframe_mark(char *checksum, uint64_t plain)
{
    size_t used = strlen(checksum);
    int len = snprintf(checksum + used, STORE_CHECKSUMS_MAX + 1 - used, "%s%s%llu", used > 0 ? " " : "",
                       zframe_word, (unsigned long long)plain);
    return len > 0 && (size_t)len <= STORE_CHECKSUMS_MAX - used;
}

bool zframe_is_marked(const char *checksum, uint64_t *plain)
{
    const char *word = strrchr(checksum, ' ');
    word = word == NULL ? checksum : word + 1;
    if (strncmp(word, zframe_word, sizeof(zframe_word) - 1) != 0) {
        return false;
    }
    uint64_t value = 0;
    for (const char *at = word + sizeof(zframe_word) - 1; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || value > ZFRAME_SUM_MAX) {
            return false;
        }
        value = value * 10 + (uint64_t)(*at - '0');
    }
    *plain = value;
    return true;
}

uint64_t zframe_size(const char *checksum, uint64_t stored)
{
    uint64_t plain = 0;
    return zframe_is_marked(checksum, &plain) ? plain : stored;
}
