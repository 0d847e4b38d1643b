/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent: arithmetic of one run of payload on one device, and its block checksums. Pure: no clock, memory, system call or log.
 *
 *   offset (4 KiB block)     payload                                      zeros
 *   | phase bytes of zeros | b0 b1 b2 ...                        b(n-1) | up to the LBA | unused up to the block |
 *
 * Payload byte k lies at offset + phase + k. The phase makes the byte's place on the device and its address in memory agree
 * modulo the device's fragment alignment, so that received fragments are written as they lie.
 *
 * Checksum i is CRC32C over the payload bytes whose device place lies in
 * [offset + i * EXTENT_CHECKSUM_BLOCK, offset + (i + 1) * EXTENT_CHECKSUM_BLOCK).
 * The description itself is struct object_extent (object.h).
 */
#ifndef STORAGE_EXTENT_H
#define STORAGE_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/object.h"

#define EXTENT_BLOCK OBJECT_BLOCK_SIZE              /* bytes: unit of allocation */
#define EXTENT_CHECKSUM_BLOCK OBJECT_CHECKSUM_BLOCK /* bytes: one checksum */
#define EXTENT_BYTES_MAX STORE_EXTENT_MAX           /* phase + length at most */
#define EXTENT_CHECKSUMS_MAX ((uint32_t)(EXTENT_BYTES_MAX / EXTENT_CHECKSUM_BLOCK))

static inline uint32_t extent_checksum_count(uint32_t phase, uint64_t length)
{
    return (uint32_t)((phase + length + EXTENT_CHECKSUM_BLOCK - 1) / EXTENT_CHECKSUM_BLOCK);
}

/* A payload range inside one checksum block, and the device range that must be read to verify it. */
struct extent_span {
    uint64_t read_offset;  /* device bytes, multiple of lba_size */
    uint64_t read_len;     /* bytes, multiple of lba_size; at most `len_max` of extent_read_span */
    uint32_t first_block;  /* checksum index of the first block read */
    uint32_t block_count;  /* whole checksum blocks covered */
    uint64_t payload_skip; /* bytes between the start of what was read and the first wanted byte */
    uint64_t payload_len;  /* wanted bytes in it, <= len */
};
/* What to read for payload [at, at + len) of the extent into a buffer of len_max bytes (a multiple of EXTENT_CHECKSUM_BLOCK):
 * whole checksum blocks, so that each is verified. at < length, len > 0. */
void extent_read_span(const struct object_extent *extent, uint64_t at, uint64_t len, uint64_t len_max,
                      uint32_t lba_size, struct extent_span *out);
/* Verifies the blocks of a span against the checksums. `data` holds read_len bytes. Returns the number of the first bad block
 * (an index into checksums), or -1 when all match. */
int64_t extent_verify(const struct object_extent *extent, const struct extent_span *span,
                      const uint8_t *data);

/* Running checksums of an extent that is being written. */
struct extent_sum {
    uint32_t *checksums; /* the owner's, EXTENT_CHECKSUMS_MAX entries or as many as the extent can need */
    uint32_t capacity;
    uint64_t position; /* phase + payload bytes so far */
};
void extent_sum_begin(struct extent_sum *sum, uint32_t *checksums, uint32_t capacity, uint32_t phase);
void extent_sum_add(struct extent_sum *sum, const uint8_t *data, uint64_t len);

/* Whether an index row describes a possible extent on a device of device_size bytes whose extents begin at data_offset. */
bool extent_is_possible(const struct object_extent *extent, uint64_t data_offset, uint64_t device_end);

/* CRC32C (Castagnoli), the usual convention: starts at 0, update(update(0, a), b) == crc of ab. */
uint32_t crc32c_update(uint32_t crc, const void *data, uint64_t len);
/* The CRC of a followed by b, from both CRCs and b's length. */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b);

#endif
