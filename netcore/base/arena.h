/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena: one mapping per worker that holds the staging pool and the receive area next to each other, so that both are
 * one registered buffer (a fixed vectored write cannot mix buffers: -EFAULT, facts of the kernel's io_uring/rsrc.c).
 *
 *   base                 base + staging_size                     base + size
 *   | staging             | receive area                          |
 *
 * Only the receive-area part is given to zcrx or AF_XDP. The whole is a multiple of the page size in force, and the area begins
 * at a multiple of it or of 2 MiB, whichever is smaller: with 1 GiB pages staging and area share them.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdint.h>

#include "base/err.h"

enum arena_pages {
    ARENA_PAGES_NORMAL, /* 4 KiB pages; transparent huge pages are asked for */
    ARENA_PAGES_2MIB,   /* MAP_HUGETLB | MAP_HUGE_2MB */
    ARENA_PAGES_1GIB    /* MAP_HUGETLB | MAP_HUGE_1GB */
};

struct arena_options {
    uint64_t staging_size; /* bytes, rounded up to the page size in force, to 2 MiB at most */
    uint64_t area_size;    /* bytes; may be 0. What fills the last page is the area's too. */
    enum arena_pages pages;
    int numa_node; /* preferred node, or -1 */
};

struct arena {
    uint8_t *base;
    uint64_t size;         /* whole mapping */
    uint64_t staging_size; /* first part */
    uint64_t page_size;
    int32_t buf_index; /* registered-buffer index, set by whoever registers it; -1 before */
};

/* Maps and touches the memory (so that a later fault cannot fail). Huge pages are never silently replaced by small
 * ones: the error says how many are free and how to reserve more. 0 or -errno. */
int arena_open(struct arena *arena, const struct arena_options *options, struct err *err);
void arena_close(struct arena *arena);

static inline uint8_t *arena_area(const struct arena *arena)
{
    return arena->base + arena->staging_size;
}

static inline uint64_t arena_area_size(const struct arena *arena)
{
    return arena->size - arena->staging_size;
}

#endif
