/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool: a fixed number of equal items, allocated once at start, with used and peak counters.
 * One thread owns a pool. pool_take never allocates: when the pool is empty it returns NULL, which is a limit
 * reached, not an error of ours.
 */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stddef.h>
#include <stdint.h>

struct pool {
    uint8_t *memory;
    uint32_t *free_stack; /* Indices of free items; the top is free_stack[free_count - 1]. */
    size_t item_size;     /* bytes, rounded up to 64 */
    uint32_t count;
    uint32_t free_count;
    uint32_t used_peak;
};

/* Allocates count items of item_size bytes, zeroed. 0 or -ENOMEM. Not on the data path. */
int pool_open(struct pool *pool, size_t item_size, uint32_t count);
/* Frees the memory; every item must have been given back (CHECK). A zeroed pool may be closed. */
void pool_close(struct pool *pool);
/* An item with whatever content its last user left, or NULL when all are in use. */
void *pool_take(struct pool *pool);
/* Gives an item back; it must come from this pool (CHECK). */
void pool_give(struct pool *pool, void *item);
/* Index of an item, 0 .. count-1, and back. */
uint32_t pool_index(const struct pool *pool, const void *item);
void *pool_item(const struct pool *pool, uint32_t index);

static inline uint32_t pool_used(const struct pool *pool)
{
    return pool->count - pool->free_count;
}

#endif
