/* SPDX-License-Identifier: Apache-2.0 */
/* The free map against a plain array of booleans: same answers under random use, runs as long as there are any, nothing twice. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "storage/alloc.h"

struct model {
    struct alloc alloc;
    void *memory;
    bool *used;
    uint64_t blocks;
};

static void model_open(struct model *model, uint64_t blocks, uint64_t reserve)
{
    model->blocks = blocks;
    model->memory = calloc(1, alloc_memory_size(blocks));
    model->used = calloc(blocks, sizeof(bool));
    cr_assert(model->memory != NULL && model->used != NULL);
    alloc_init(&model->alloc, model->memory, blocks, reserve);
}

static void model_close(struct model *model)
{
    free(model->memory);
    free(model->used);
}

static void model_set(struct model *model, uint64_t start, uint64_t count, bool used)
{
    for (uint64_t i = start; i < start + count; i++) {
        cr_assert_neq(model->used[i], used, "block %llu", (unsigned long long)i);
        model->used[i] = used;
    }
}

static uint64_t model_run_max(const struct model *model, uint64_t *free)
{
    uint64_t best = 0;
    uint64_t run = 0;
    *free = 0;
    for (uint64_t i = 0; i < model->blocks; i++) {
        run = model->used[i] ? 0 : run + 1;
        best = best > run ? best : run;
        *free += !model->used[i];
    }
    return best;
}

static void model_check(const struct model *model)
{
    uint64_t free;
    cr_assert_eq(alloc_run_max(&model->alloc), model_run_max(model, &free));
    cr_assert_eq(model->alloc.free, free);
    for (uint64_t i = 0; i < model->blocks; i += 97) {
        cr_assert_eq(alloc_is_used(&model->alloc, i), model->used[i]);
    }
}

struct run_of {
    uint64_t start, count;
};

static void random_use(uint64_t blocks, uint64_t want_max, uint64_t seed, uint32_t steps)
{
    struct model model;
    struct rng rng;
    struct run_of *runs = calloc(steps, sizeof(*runs));
    uint32_t run_count = 0;
    cr_assert_not_null(runs);
    model_open(&model, blocks, 0);
    rng_seed(&rng, seed);
    for (uint32_t i = 0; i < steps; i++) {
        if (rng_chance(&rng, 3, 5)) {
            uint64_t want = 1 + rng_below(&rng, want_max);
            uint64_t min = 1 + rng_below(&rng, want);
            uint64_t free;
            uint64_t longest = model_run_max(&model, &free);
            struct run_of run;
            bool took = alloc_take(&model.alloc, want, min, &run.start, &run.count);
            cr_assert_eq(took, longest >= min && free >= min, "seed %llu step %u", (unsigned long long)seed,
                         i);
            if (took) {
                cr_assert_leq(run.count, want);
                cr_assert(run.count == want || run.count == longest,
                          "the longest run when none is long enough");
                model_set(&model, run.start, run.count, true);
                runs[run_count++] = run;
            }
        } else if (run_count > 0) {
            uint32_t victim = (uint32_t)rng_below(&rng, run_count);
            struct run_of run = runs[victim];
            uint64_t part = 1 + rng_below(&rng, run.count);
            alloc_give(&model.alloc, run.start, part);
            model_set(&model, run.start, part, false);
            runs[victim].start += part;
            runs[victim].count -= part;
            if (runs[victim].count == 0) {
                runs[victim] = runs[--run_count];
            }
        }
        if (i % 16 == 0) {
            model_check(&model);
        }
    }
    model_check(&model);
    model_close(&model);
    free(runs);
}

Test(alloc, random_use_agrees_with_an_array)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        random_use(1, 1, seed, 50);
        random_use(63, 9, seed, 300);
        random_use(4096, 300, seed, 400);
        random_use(10000, 5000, seed, 300);
        random_use(4096 * 5 + 17, 9000, seed, 300);
    }
}

/* Groups are 2 Mi blocks: runs cross chunk and group boundaries. */
Test(alloc, runs_cross_chunks_and_groups)
{
    struct model model;
    uint64_t blocks = (uint64_t)ALLOC_CHUNK_BLOCKS * ALLOC_GROUP_CHUNKS * 2 + 4096 + 5;
    uint64_t start;
    uint64_t count;
    model_open(&model, blocks, 0);
    cr_assert(alloc_take(&model.alloc, blocks, blocks, &start, &count));
    cr_assert_eq(count, blocks);
    uint64_t border = (uint64_t)ALLOC_CHUNK_BLOCKS * ALLOC_GROUP_CHUNKS;
    alloc_give(&model.alloc, border - 5000, 10001);
    alloc_give(&model.alloc, 10, 7);
    cr_assert_eq(alloc_run_max(&model.alloc), 10001);
    cr_assert(alloc_take(&model.alloc, 10001, 10001, &start, &count));
    cr_assert_eq(start, border - 5000);
    cr_assert_not(alloc_take(&model.alloc, 8, 8, &start, &count));
    cr_assert(alloc_take(&model.alloc, 8, 1, &start, &count));
    cr_assert_eq(start, 10);
    cr_assert_eq(count, 7);
    cr_assert_eq(model.alloc.free, 0);
    model_close(&model);
}

Test(alloc, successive_runs_lie_behind_each_other)
{
    struct model model;
    uint64_t at = 0;
    model_open(&model, 10000, 0);
    for (uint32_t i = 0; i < 100; i++) {
        uint64_t start;
        uint64_t count;
        cr_assert(alloc_take(&model.alloc, 16, 16, &start, &count));
        cr_assert_eq(start, at);
        at += 16;
        if (i == 50) {
            alloc_give(&model.alloc, 0, 160);
        }
    }
    model_close(&model);
}

Test(alloc, reserve_is_left_alone_except_for_marking)
{
    struct model model;
    uint64_t start;
    uint64_t count;
    model_open(&model, 100, 10);
    cr_assert(alloc_take(&model.alloc, 100, 1, &start, &count));
    cr_assert_eq(count, 90);
    cr_assert_not(alloc_take(&model.alloc, 1, 1, &start, &count));
    cr_assert_not(alloc_take_at(&model.alloc, 95, 1, false));
    cr_assert(alloc_take_at(&model.alloc, 95, 1, true));
    cr_assert_not(alloc_take_at(&model.alloc, 95, 1, true), "in use already");
    cr_assert_not(alloc_take_at(&model.alloc, 99, 2, true), "outside");
    model_close(&model);
}
