/* SPDX-License-Identifier: Apache-2.0 */
/* pool: fixed items with a stack of free indices (last given, first taken: it is the warm one). */
#include "base/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define POOL_ALIGN 64U

int pool_open(struct pool *pool, size_t item_size, uint32_t count)
{
    CHECK(item_size > 0);
    CHECK(count > 0);
    memset(pool, 0, sizeof(*pool));
    size_t rounded = (item_size + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
    if (count > SIZE_MAX / rounded) {
        return -ENOMEM;
    }
    pool->memory = aligned_alloc(POOL_ALIGN, rounded * count);
    pool->free_stack = calloc(count, sizeof(*pool->free_stack));
    if (pool->memory == NULL || pool->free_stack == NULL) {
        free(pool->memory);
        free(pool->free_stack);
        memset(pool, 0, sizeof(*pool));
        return -ENOMEM;
    }
    memset(pool->memory, 0, rounded * count);
    pool->item_size = rounded;
    pool->count = count;
    pool->free_count = count;
    for (uint32_t i = 0; i < count; i++) {
        pool->free_stack[i] = count - 1 - i;
    }
    return 0;
}

void pool_close(struct pool *pool)
{
    CHECK(pool->free_count == pool->count);
    free(pool->memory);
    free(pool->free_stack);
    memset(pool, 0, sizeof(*pool));
}

void *pool_take(struct pool *pool)
{
    if (pool->free_count == 0) {
        return NULL;
    }
    pool->free_count--;
    if (pool_used(pool) > pool->used_peak) {
        pool->used_peak = pool_used(pool);
    }
    return pool_item(pool, pool->free_stack[pool->free_count]);
}

void pool_give(struct pool *pool, void *item)
{
    CHECK(pool->free_count < pool->count);
    pool->free_stack[pool->free_count++] = pool_index(pool, item);
}

uint32_t pool_index(const struct pool *pool, const void *item)
{
    CHECK((const uint8_t *)item >= pool->memory);
    size_t offset = (size_t)((const uint8_t *)item - pool->memory);
    CHECK(offset % pool->item_size == 0);
    CHECK(offset / pool->item_size < pool->count);
    return (uint32_t)(offset / pool->item_size);
}

void *pool_item(const struct pool *pool, uint32_t index)
{
    CHECK(index < pool->count);
    return pool->memory + (size_t)index * pool->item_size;
}
