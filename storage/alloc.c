/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc: see alloc.h.
 *
 * Invariants:
 *  1. A chunk's summary describes its bits exactly, a group's summary its chunks, after every public call.
 *  2. Bits beyond `blocks` in the last chunk are set: they can never be taken. Chunks beyond chunk_count do not exist.
 *  3. free = number of clear bits.
 */
#include "storage/alloc.h"

#include <string.h>

#include "base/check.h"

#define WORD_BITS 64U
#define CHUNK_WORDS (ALLOC_CHUNK_BLOCKS / WORD_BITS)

static uint64_t alloc_chunk_count(uint64_t blocks)
{
    return (blocks + ALLOC_CHUNK_BLOCKS - 1) / ALLOC_CHUNK_BLOCKS;
}

static uint64_t alloc_group_count(uint64_t chunks)
{
    return (chunks + ALLOC_GROUP_CHUNKS - 1) / ALLOC_GROUP_CHUNKS;
}

uint64_t alloc_memory_size(uint64_t blocks)
{
    uint64_t chunks = alloc_chunk_count(blocks);
    return chunks * CHUNK_WORDS * sizeof(uint64_t) +
           (chunks + alloc_group_count(chunks)) * sizeof(struct alloc_summary) + sizeof(uint64_t);
}

/* ---- summaries --------------------------------------------------------------------------------------------------- */

/* Appends `part` (of `size` blocks) to the summary of what lies before it (of `before` blocks). */
static void alloc_summary_join(struct alloc_summary *whole, uint64_t before, const struct alloc_summary *part,
                               uint64_t size)
{
    uint32_t bridge = whole->end + part->start;
    if (whole->start == before) {
        whole->start += part->start;
    }
    whole->max = whole->max > part->max ? whole->max : part->max;
    whole->max = whole->max > bridge ? whole->max : bridge;
    whole->end = part->end == size ? whole->end + part->end : part->end;
}

/* Longest run of clear bits in a word. Each step shortens all runs by one. */
static uint32_t alloc_word_run(uint64_t used)
{
    uint32_t run = 0;
    for (uint64_t clear = ~used; clear != 0; clear &= clear << 1) {
        run++;
    }
    return run;
}

static void alloc_word_summary(uint64_t used, struct alloc_summary *out)
{
    if (used == 0) {
        *out = (struct alloc_summary){WORD_BITS, WORD_BITS, WORD_BITS};
        return;
    }
    out->start = (uint32_t)__builtin_ctzll(used);
    out->end = (uint32_t)__builtin_clzll(used);
    out->max = used == UINT64_MAX ? 0 : alloc_word_run(used);
}

static void alloc_chunk_refresh(struct alloc *alloc, uint64_t chunk)
{
    const uint64_t *words = alloc->bits + chunk * CHUNK_WORDS;
    struct alloc_summary whole = {0, 0, 0};
    for (uint32_t i = 0; i < CHUNK_WORDS; i++) {
        struct alloc_summary part;
        alloc_word_summary(words[i], &part);
        alloc_summary_join(&whole, (uint64_t)i * WORD_BITS, &part, WORD_BITS);
    }
    alloc->chunks[chunk] = whole;
}

static void alloc_group_refresh(struct alloc *alloc, uint64_t group)
{
    uint64_t first = group * ALLOC_GROUP_CHUNKS;
    uint64_t last =
        first + ALLOC_GROUP_CHUNKS < alloc->chunk_count ? first + ALLOC_GROUP_CHUNKS : alloc->chunk_count;
    struct alloc_summary whole = {0, 0, 0};
    for (uint64_t i = first; i < last; i++) {
        alloc_summary_join(&whole, (i - first) * ALLOC_CHUNK_BLOCKS, &alloc->chunks[i], ALLOC_CHUNK_BLOCKS);
    }
    alloc->groups[group] = whole;
}

static void alloc_refresh(struct alloc *alloc, uint64_t start, uint64_t count)
{
    uint64_t first = start / ALLOC_CHUNK_BLOCKS;
    uint64_t last = (start + count - 1) / ALLOC_CHUNK_BLOCKS;
    for (uint64_t i = first; i <= last; i++) {
        alloc_chunk_refresh(alloc, i);
    }
    for (uint64_t i = first / ALLOC_GROUP_CHUNKS; i <= last / ALLOC_GROUP_CHUNKS; i++) {
        alloc_group_refresh(alloc, i);
    }
}

/* ---- bits ---------------------------------------------------------------------------------------------------------- */

/* The bits of one word that lie in [start, end), and the word's number in *word. Advances *start to the next word. */
static uint64_t alloc_word_mask(uint64_t *start, uint64_t end, uint64_t *word)
{
    uint64_t shift = *start % WORD_BITS;
    uint64_t room = WORD_BITS - shift;
    uint64_t take = end - *start < room ? end - *start : room;
    *word = *start / WORD_BITS;
    *start += take;
    return (take == WORD_BITS ? UINT64_MAX : (1ULL << take) - 1) << shift;
}

static bool alloc_is_clear(const struct alloc *alloc, uint64_t start, uint64_t count)
{
    uint64_t end = start + count;
    uint64_t word;
    while (start < end) {
        uint64_t mask = alloc_word_mask(&start, end, &word);
        if ((alloc->bits[word] & mask) != 0) {
            return false;
        }
    }
    return true;
}

static void alloc_mark(struct alloc *alloc, uint64_t start, uint64_t count)
{
    uint64_t end = start + count;
    uint64_t at = start;
    uint64_t word;
    while (at < end) {
        uint64_t mask = alloc_word_mask(&at, end, &word);
        CHECK((alloc->bits[word] & mask) == 0);
        alloc->bits[word] |= mask;
    }
    alloc->free -= count;
    alloc_refresh(alloc, start, count);
}

void alloc_init(struct alloc *alloc, void *memory, uint64_t blocks, uint64_t reserve)
{
    CHECK(blocks > 0);
    memset(alloc, 0, sizeof(*alloc));
    alloc->blocks = blocks;
    alloc->chunk_count = alloc_chunk_count(blocks);
    alloc->group_count = alloc_group_count(alloc->chunk_count);
    alloc->bits = memory;
    alloc->chunks = (struct alloc_summary *)(alloc->bits + alloc->chunk_count * CHUNK_WORDS);
    alloc->groups = alloc->chunks + alloc->chunk_count;
    alloc->free = blocks;
    alloc->reserve = reserve;
    for (uint64_t i = 0; i < alloc->chunk_count; i++) {
        alloc->chunks[i] = (struct alloc_summary){ALLOC_CHUNK_BLOCKS, ALLOC_CHUNK_BLOCKS, ALLOC_CHUNK_BLOCKS};
    }
    uint64_t at = blocks;
    uint64_t end = alloc->chunk_count * ALLOC_CHUNK_BLOCKS;
    uint64_t word;
    while (at < end) {
        uint64_t mask = alloc_word_mask(&at, end, &word);
        alloc->bits[word] |= mask;
    }
    alloc_chunk_refresh(alloc, alloc->chunk_count - 1);
    for (uint64_t i = 0; i < alloc->group_count; i++) {
        alloc_group_refresh(alloc, i);
    }
}

/* ---- search --------------------------------------------------------------------------------------------------------- */

/* First place in [from, to) of one chunk's bits where the free run that is `carried` blocks long at `from` reaches `want`.
 * Returns true with the run's start; otherwise *carried is the free run that ends at `to`. */
static bool alloc_scan_bits(const struct alloc *alloc, uint64_t from, uint64_t to, uint64_t want,
                            uint64_t *carried, uint64_t *start)
{
    uint64_t run = *carried;
    for (uint64_t at = from; at < to;) {
        uint64_t used = alloc->bits[at / WORD_BITS] >> (at % WORD_BITS);
        uint64_t room = WORD_BITS - at % WORD_BITS;
        /* free blocks from here in this word */
        uint64_t step = used == 0 ? room : (uint64_t)__builtin_ctzll(used);
        step = step < to - at ? step : to - at;
        run += step;
        at += step;
        if (run >= want) {
            *start = at - run;
            return true;
        }
        if (step < room && at < to) {
            used = ~(used >> step);
            uint64_t skip = used == 0 ? room - step : (uint64_t)__builtin_ctzll(used);
            at += skip < room - step ? skip : room - step;
            run = 0;
        }
    }
    *carried = run;
    return false;
}

/* Walks chunks [from, to) with the run carried in. */
static bool alloc_scan_chunks(const struct alloc *alloc, uint64_t from, uint64_t to, uint64_t want,
                              uint64_t *carried, uint64_t *start)
{
    for (uint64_t i = from; i < to; i++) {
        const struct alloc_summary *sum = &alloc->chunks[i];
        if (*carried + sum->start >= want || sum->max >= want) {
            return alloc_scan_bits(alloc, i * ALLOC_CHUNK_BLOCKS, (i + 1) * ALLOC_CHUNK_BLOCKS, want, carried,
                                   start);
        }
        *carried = sum->end == ALLOC_CHUNK_BLOCKS ? *carried + sum->end : sum->end;
    }
    return false;
}

/* First run of `want` free blocks that begins at `from` or later. */
static bool alloc_find(const struct alloc *alloc, uint64_t from, uint64_t want, uint64_t *start)
{
    uint64_t carried = 0;
    uint64_t chunk = from / ALLOC_CHUNK_BLOCKS;
    if (alloc_scan_bits(alloc, from, (chunk + 1) * ALLOC_CHUNK_BLOCKS, want, &carried, start)) {
        return true;
    }
    chunk++;
    uint64_t group_end = (chunk + ALLOC_GROUP_CHUNKS - 1) / ALLOC_GROUP_CHUNKS * ALLOC_GROUP_CHUNKS;
    group_end = group_end < alloc->chunk_count ? group_end : alloc->chunk_count;
    if (alloc_scan_chunks(alloc, chunk, group_end, want, &carried, start)) {
        return true;
    }
    for (uint64_t i = (chunk + ALLOC_GROUP_CHUNKS - 1) / ALLOC_GROUP_CHUNKS; i < alloc->group_count; i++) {
        const struct alloc_summary *sum = &alloc->groups[i];
        uint64_t first = i * ALLOC_GROUP_CHUNKS;
        uint64_t last =
            first + ALLOC_GROUP_CHUNKS < alloc->chunk_count ? first + ALLOC_GROUP_CHUNKS : alloc->chunk_count;
        if (carried + sum->start >= want || sum->max >= want) {
            return alloc_scan_chunks(alloc, first, last, want, &carried, start);
        }
        carried = sum->end == (last - first) * ALLOC_CHUNK_BLOCKS ? carried + sum->end : sum->end;
    }
    return false;
}

uint64_t alloc_run_max(const struct alloc *alloc)
{
    uint64_t best = 0;
    uint64_t carried = 0;
    for (uint64_t i = 0; i < alloc->group_count; i++) {
        const struct alloc_summary *sum = &alloc->groups[i];
        uint64_t first = i * ALLOC_GROUP_CHUNKS;
        uint64_t last =
            first + ALLOC_GROUP_CHUNKS < alloc->chunk_count ? first + ALLOC_GROUP_CHUNKS : alloc->chunk_count;
        uint64_t bridge = carried + sum->start;
        best = best > bridge ? best : bridge;
        best = best > sum->max ? best : sum->max;
        carried = sum->end == (last - first) * ALLOC_CHUNK_BLOCKS ? carried + sum->end : sum->end;
    }
    return best;
}

bool alloc_take(struct alloc *alloc, uint64_t want, uint64_t min, uint64_t *start, uint64_t *count)
{
    CHECK(min >= 1);
    CHECK(min <= want);
    uint64_t available = alloc_available(alloc);
    if (available < min) {
        return false;
    }
    want = want < available ? want : available;
    uint64_t place;
    if (!alloc_find(alloc, alloc->cursor, want, &place) && !alloc_find(alloc, 0, want, &place)) {
        want = alloc_run_max(alloc);
        if (want < min) {
            return false;
        }
        bool found = alloc_find(alloc, 0, want, &place);
        CHECK(found);
    }
    alloc_mark(alloc, place, want);
    alloc->cursor = place + want < alloc->blocks ? place + want : 0;
    *start = place;
    *count = want;
    return true;
}

bool alloc_take_at(struct alloc *alloc, uint64_t start, uint64_t count, bool use_reserve)
{
    CHECK(count > 0);
    if (start >= alloc->blocks || count > alloc->blocks - start) {
        return false;
    }
    if (!use_reserve && count > alloc_available(alloc)) {
        return false;
    }
    if (!alloc_is_clear(alloc, start, count)) {
        return false;
    }
    alloc_mark(alloc, start, count);
    if (!use_reserve) {
        alloc->cursor = start + count < alloc->blocks ? start + count : 0;
    }
    return true;
}

void alloc_give(struct alloc *alloc, uint64_t start, uint64_t count)
{
    CHECK(count > 0);
    CHECK(start < alloc->blocks);
    CHECK(count <= alloc->blocks - start);
    uint64_t end = start + count;
    uint64_t at = start;
    uint64_t word;
    while (at < end) {
        uint64_t mask = alloc_word_mask(&at, end, &word);
        CHECK((alloc->bits[word] & mask) == mask);
        alloc->bits[word] &= ~mask;
    }
    alloc->free += count;
    alloc_refresh(alloc, start, count);
}

bool alloc_is_used(const struct alloc *alloc, uint64_t block)
{
    CHECK(block < alloc->blocks);
    return (alloc->bits[block / WORD_BITS] >> (block % WORD_BITS) & 1U) != 0;
}
