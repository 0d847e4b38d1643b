/* SPDX-License-Identifier: Apache-2.0 */
/* arena: mmap of the worker's staging pool and receive area. */
#include "base/arena.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/peek.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

static uint64_t arena_page_size(enum arena_pages pages)
{
    return pages == ARENA_PAGES_1GIB   ? GIB
           : pages == ARENA_PAGES_2MIB ? 2 * MIB
                                       : (uint64_t)sysconf(_SC_PAGESIZE);
}

static unsigned long arena_huge_free(uint64_t page_size)
{
    char path[128];
    unsigned long count = 0;
    snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%llukB/free_hugepages",
             (unsigned long long)(page_size / KIB));
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    if (fscanf(file, "%lu", &count) != 1) {
        count = 0;
    }
    fclose(file);
    return count;
}

static int arena_map_refused(int rc, uint64_t size, uint64_t page_size, struct err *err)
{
    char need[BYTES_SIZE_TEXT_MAX];
    char unit[BYTES_SIZE_TEXT_MAX];
    bytes_format_size(size, need);
    bytes_format_size(page_size, unit);
    if (page_size > MIB) {
        return err_set(err, rc,
                       "%s of receive memory needs %llu huge pages of %s, and %lu are free; reserve more "
                       "(/sys/kernel/mm/hugepages/hugepages-%llukB/nr_hugepages) or set hugepages: none",
                       need, (unsigned long long)(size / page_size), unit, arena_huge_free(page_size),
                       (unsigned long long)(page_size / KIB));
    }
    return err_set(err, rc, "mapping %s of receive memory: %s; lower rx_area_size or workers", need,
                   err_text(rc));
}

int arena_open(struct arena *arena, const struct arena_options *options, struct err *err)
{
    memset(arena, 0, sizeof(*arena));
    uint64_t page_size = arena_page_size(options->pages);
    uint64_t staging_size = bytes_round_up(options->staging_size, page_size < 2 * MIB ? page_size : 2 * MIB);
    uint64_t size = bytes_round_up(staging_size + options->area_size, page_size);
    CHECK(size > 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (page_size > MIB) {
        flags |= MAP_HUGETLB | (__builtin_ctzll(page_size) << MAP_HUGE_SHIFT);
    }
    void *base = peek_map(size, flags);
    if (base == MAP_FAILED) {
        return arena_map_refused(-errno, size, page_size, err);
    }
    if (options->numa_node >= 0 && options->numa_node < 64) {
        unsigned long mask = 1UL << options->numa_node;
        /* A preference: memory from another node is slower, not wrong, so a refusal is no error. */
        (void)syscall(SYS_mbind, base, size, MPOL_PREFERRED, &mask, 64UL, 0U);
    }
    if (page_size < MIB) {
        (void)madvise(base, size, MADV_HUGEPAGE); /* Fewer page table entries where offered; a hint only. */
    }
    memset(base, 0, size); /* Touches every page now; a worker must not meet an allocation failure later. */
    arena->base = base;
    arena->size = size;
    arena->staging_size = staging_size;
    arena->page_size = page_size;
    arena->buf_index = -1;
    return 0;
}

void arena_close(struct arena *arena)
{
    if (arena->base != NULL) {
        int rc = munmap(arena->base, arena->size);
        CHECK(rc == 0);
    }
    memset(arena, 0, sizeof(*arena));
}
