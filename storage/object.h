/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object: what the index knows about payload, in memory: extents as the writer records them, pieces of extents as an
 * object refers to them, and a looked-up version of an object. Internal to storage/; the facade only names store_object.
 *
 * Space of an extent. An extent's row takes [offset, offset + object_space(phase, length)) of its device: payload starts
 * at offset + phase and the end is rounded up to a block. What the writer leased beyond that it gives back itself, before
 * it hands the extent over.
 */
#ifndef STORAGE_OBJECT_H
#define STORAGE_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "storage/store.h"

#define OBJECT_BLOCK_SIZE 4096U              /* bytes: extents start and end on multiples of it */
#define OBJECT_CHECKSUM_BLOCK (256U * 1024U) /* bytes covered by one checksum, cut at device offsets */

/* An extent to be recorded. `checksums` is borrowed until the request that carries it is answered. */
struct object_extent {
    uint32_t device; /* the device's number in the store (superblock), not its place in the configuration */
    uint32_t phase;  /* bytes of the first block that are skipped, below OBJECT_BLOCK_SIZE */
    uint64_t offset; /* bytes on the device, multiple of OBJECT_BLOCK_SIZE */
    uint64_t length; /* payload bytes, 1 .. STORE_EXTENT_MAX */
    uint32_t checksum_count;
    const uint32_t *checksums; /* CRC32C per OBJECT_CHECKSUM_BLOCK, in device order */
};

/* Space on a device. */
struct object_space {
    uint32_t device;
    uint64_t offset; /* bytes */
    uint64_t length; /* bytes, multiple of OBJECT_BLOCK_SIZE */
};

static inline uint64_t object_space_length(uint32_t phase, uint64_t length)
{
    return bytes_round_up(phase + length, OBJECT_BLOCK_SIZE);
}

/* A run of an object's payload: [start, start + length) of the payload of one extent. */
struct object_piece {
    uint64_t at;     /* place of the first byte in the object */
    uint64_t start;  /* bytes into the extent's payload (not 0 after a copy of a range) */
    uint64_t length; /* bytes */
    uint64_t extent_id;
    struct object_extent extent; /* its checksums live in the same allocation as the object */
};

struct object_part {
    uint32_t number;
    uint64_t at;      /* place of the first byte in the object */
    uint64_t length;  /* bytes */
    uint64_t payload; /* bytes that were uploaded, where they are not stored as they came; else 0 */
};

#define OBJECT_MAGIC 0x4f424a31U

/* One version of an object as found by a lookup, with a pinned epoch: its space is not reused until the pin ends.
 * Made with malloc; object_free ends it. The pin is the owner's to end. */
struct store_object {
    uint32_t magic;
    uint32_t crc32c;      /* of the whole payload; 0 when crc32c_known is false */
    bool crc32c_known;    /* false after a copy of a range: nobody has read those bytes alone */
    uint64_t epoch;       /* what the pin function returned */
    uint64_t size;        /* bytes */
    uint64_t modified_ns; /* since 1970 */
    uint32_t piece_count;
    uint32_t part_count;         /* 0: not a multipart object */
    struct object_piece *pieces; /* in payload order, without gaps */
    struct object_part *parts;
    struct store_attributes attributes;
};

void object_free(struct store_object *object);

#endif
