/* SPDX-License-Identifier: Apache-2.0 */
/*
 * superblock: what makes a device ours. Two copies (first block, and the block at SUPERBLOCK_COPY_OFFSET); each is written and
 * flushed on its own, so one is always whole. The one with the higher sequence among the good ones is used. FORMAT.md has the
 * layout. Pure except superblock_read and superblock_write, which do I/O through a device queue.
 */
#ifndef STORAGE_SUPERBLOCK_H
#define STORAGE_SUPERBLOCK_H

#include <stdint.h>

#include "base/err.h"
#include "storage/dev.h"

#define SUPERBLOCK_SIZE 4096U
#define SUPERBLOCK_COPY_OFFSET (1ULL << 20)
#define SUPERBLOCK_VERSION 1U
#define SUPERBLOCK_LOG_OFFSET (2ULL << 20) /* reserved region; nothing is written there by this version */
#define SUPERBLOCK_LOG_SIZE (13ULL << 20)
/* written and read back by the start-up self-test; holds nothing */
#define SUPERBLOCK_SCRATCH_OFFSET (15ULL << 20)
#define SUPERBLOCK_DATA_OFFSET (16ULL << 20) /* extents begin */
#define SUPERBLOCK_STORE_ID_BYTES 16U

struct superblock {
    uint8_t store_id[SUPERBLOCK_STORE_ID_BYTES]; /* same on all devices of a store and in its index */
    uint64_t sequence;
    uint64_t created_ns;  /* since 1970 */
    uint64_t device_size; /* bytes in use, multiple of EXTENT_BLOCK */
    uint64_t log_offset;
    uint64_t log_size;
    uint64_t data_offset;
    uint32_t device_index;
    uint32_t device_count;
    uint32_t block_size; /* EXTENT_BLOCK */
    uint32_t checksum_block;
    uint32_t version;
};

void superblock_encode(const struct superblock *in, uint8_t out[SUPERBLOCK_SIZE]);
/* 0; ERR_NOT_FORMATTED (no magic), ERR_CORRUPT (checksum or impossible geometry), ERR_VERSION (newer than this program). The
 * codes of err.h are negative already: the value returned is the code itself. */
int superblock_decode(const uint8_t in[SUPERBLOCK_SIZE], struct superblock *out);
/* The table rule: which of two copies counts. `rc` and `sb` are the two decodings. Returns the index 0 or 1, or the more telling
 * error. */
int superblock_choose(const int rc[2], const struct superblock sb[2]);

/* Reads both copies; repairs nothing. */
int superblock_read(struct dev_queue *queue, struct superblock *out, struct err *err);
/* Copy, flush, first block, flush. */
int superblock_write(struct dev_queue *queue, const struct superblock *sb, struct err *err);
/* Names a foreign file system or partition table in the first 128 KiB of a device, or NULL. */
const char *superblock_foreign(const uint8_t *head, uint64_t len);
#define SUPERBLOCK_FOREIGN_BYTES (128U << 10)

#endif
