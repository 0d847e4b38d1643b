/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc: the free map of one device in 4 KiB blocks. Pure: memory comes from the caller, nothing is allocated later, so a badly
 * fragmented device costs no more memory than a fresh one (one bit per block: 32 MiB a TiB, untouched pages stay unbacked).
 *
 * Bits (1 = in use) lie under two levels of summaries (free run at the start, longest, at the end), so that a run of any
 * length is found or ruled out without walking the bits. Search is next-fit: the cursor moves on, so successive extents lie
 * behind each other, and space freed behind it is used at the next pass.
 *
 * Not thread-safe; the store keeps a lock per device.
 */
#ifndef STORAGE_ALLOC_H
#define STORAGE_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

struct alloc_summary {
    uint32_t start; /* free blocks at the beginning */
    uint32_t max;   /* longest free run inside */
    uint32_t end;   /* free blocks at the end */
};

struct alloc {
    uint64_t *bits;
    struct alloc_summary *chunks; /* of ALLOC_CHUNK_BLOCKS */
    struct alloc_summary *groups; /* of ALLOC_GROUP_CHUNKS chunks */
    uint64_t blocks;              /* managed */
    uint64_t chunk_count;
    uint64_t group_count;
    uint64_t free;    /* blocks */
    uint64_t reserve; /* blocks that alloc_take leaves alone */
    uint64_t cursor;  /* block where the next search begins */
};

#define ALLOC_CHUNK_BLOCKS 4096U
#define ALLOC_GROUP_CHUNKS 512U

/* Bytes of memory for a map of `blocks` (zeroed memory, 8-byte aligned). */
uint64_t alloc_memory_size(uint64_t blocks);
/* Everything is free afterwards. `memory` must be zeroed. */
void alloc_init(struct alloc *alloc, void *memory, uint64_t blocks, uint64_t reserve);

/* Takes `want` contiguous blocks, or, when no run is that long, the longest run of at least `min` blocks (1 <= min <= want).
 * False when there is none or the reserve would be touched; nothing changes then. */
bool alloc_take(struct alloc *alloc, uint64_t want, uint64_t min, uint64_t *start, uint64_t *count);
/* Takes exactly [start, start + count). False (and nothing changes) when a block of it is in use or outside. Recovery marks the
 * extents of the index with it (use_reserve true); a growing extent asks for the blocks behind it. */
bool alloc_take_at(struct alloc *alloc, uint64_t start, uint64_t count, bool use_reserve);
/* Gives blocks back; each must be in use (CHECK: our bug). */
void alloc_give(struct alloc *alloc, uint64_t start, uint64_t count);
bool alloc_is_used(const struct alloc *alloc, uint64_t block);
/* Longest free run, blocks. */
uint64_t alloc_run_max(const struct alloc *alloc);
/* Blocks that alloc_take may still hand out. */
static inline uint64_t alloc_available(const struct alloc *alloc)
{
    return alloc->free > alloc->reserve ? alloc->free - alloc->reserve : 0;
}

#endif
