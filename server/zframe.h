/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zframe: the stored form of a compressed object: independent zstd frames of ZFRAME_PLAIN bytes of payload each (the last
 * may be shorter), then a seek table in the zstd seekable format, a skippable frame. So the stored bytes as they lie are a
 * file that the plain zstd tool decompresses, and a range needs only the frames it touches. Pure: arithmetic on bytes.
 *
 * How it is marked: the text that the store keeps as an object's checksum ends with the word "zstd=<bytes of payload>".
 * It comes back with listings too, so that a listing shows the payload's size without reading the object.
 */
#ifndef SERVER_ZFRAME_H
#define SERVER_ZFRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/store.h"

#define ZFRAME_PLAIN 262144U /* bytes of payload in a frame */
/* bytes; asserted against zstd's own bound */
#define ZFRAME_STORED_MAX (ZFRAME_PLAIN + (ZFRAME_PLAIN >> 8) + 64U)
#define ZFRAME_COUNT_MAX 32768U /* frames of an object: 8 GiB; what is larger is stored plain */
#define ZFRAME_TABLE_HEAD 8U    /* skippable magic, length */
#define ZFRAME_TABLE_ENTRY 8U   /* stored and plain bytes of a frame */
#define ZFRAME_FOOTER 9U        /* count, descriptor, magic */
#define ZFRAME_TABLE_MAX (ZFRAME_TABLE_HEAD + ZFRAME_COUNT_MAX * ZFRAME_TABLE_ENTRY + ZFRAME_FOOTER)
#define ZFRAME_OBJECT_MAX ((uint64_t)ZFRAME_PLAIN * ZFRAME_COUNT_MAX)
#define ZFRAME_SUM_MAX (UINT64_C(1) << 43) /* bytes of payload of all parts of an object */
#define ZFRAME_OBJECT_MIN 4096U            /* smaller ones fill one block of the store in any form */

/* A seek table as it is stored; `bytes` holds ZFRAME_TABLE_MAX and is the caller's. */
struct zframe_table {
    uint8_t *bytes;
    uint32_t count; /* frames */
};

static inline uint32_t zframe_table_len(uint32_t count)
{
    return ZFRAME_TABLE_HEAD + count * ZFRAME_TABLE_ENTRY + ZFRAME_FOOTER;
}

/* Writing. A table takes ZFRAME_COUNT_MAX frames (CHECK). */
void zframe_table_begin(struct zframe_table *table, uint8_t *bytes);
void zframe_table_add(struct zframe_table *table, uint32_t stored_len, uint32_t plain_len);
/* Completes it; the bytes it has. */
uint32_t zframe_table_finish(struct zframe_table *table);

/* Reading. `stored` and `plain` are the sizes of the whole object; the footer is its last ZFRAME_FOOTER bytes. 0 and the
 * count of frames, or ERR_CORRUPT. */
int zframe_footer_read(const uint8_t *footer, uint64_t stored, uint64_t plain, uint32_t *count);
/* table->bytes holds zframe_table_len(count) bytes. 0, or ERR_CORRUPT unless every entry fits the object exactly. */
int zframe_table_read(struct zframe_table *table, uint32_t count, uint64_t stored, uint64_t plain);

/* Frame `index` of a table that was read or written. */
uint32_t zframe_stored_len(const struct zframe_table *table, uint32_t index);
uint32_t zframe_plain_len(const struct zframe_table *table, uint32_t index);
/* Where it begins within the stored bytes. Walks the table: once per request, then add lengths. */
uint64_t zframe_offset(const struct zframe_table *table, uint32_t index);

/* The frames that hold [first, first + len), len > 0, and the bytes of the first of them that lie before. */
struct zframe_span {
    uint32_t first;
    uint32_t last;
    uint32_t skip; /* bytes */
};
struct zframe_span zframe_span(uint64_t first, uint64_t len);

/* Is a first frame worth storing as it was compressed? Under one sixteenth saved, the object is stored plain. */
static inline bool zframe_is_worth(uint32_t stored_len, uint32_t plain_len)
{
    return stored_len < plain_len - plain_len / 16;
}

/* ---- the mark ------------------------------------------------------------------------------------------------- */

/* Appends the mark to a checksum text; false if it does not fit (STORE_CHECKSUMS_MAX holds every text of ours). */
bool zframe_mark(char *checksum, uint64_t plain);
/* Is this the text of a compressed object? Then *plain is its payload's size. */
bool zframe_is_marked(const char *checksum, uint64_t *plain);
/* The size that clients see. */
uint64_t zframe_size(const char *checksum, uint64_t stored);

#endif
