/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_crash: power cuts of the whole store at every flush and every sync (crash_world.h has the oracle), and devices whose
 * operations fail one after the other. SEED=n replays one run, ROUNDS=n makes the random test longer.
 */
#include "crash_world.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"

static uint64_t from_env(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 0) : fallback;
}

static void totals_add(struct world *total, const struct world *world)
{
    total->acks += world->acks;
    total->refusals += world->refusals;
    total->reads += world->reads;
    total->copies += world->copies;
    total->completions += world->completions;
    total->uploads_aborted += world->uploads_aborted;
}

static void totals_say(const char *what, uint64_t cuts, const struct world *total)
{
    cr_log_info(
        "%s: %llu cuts, %llu changes answered, %llu refused, %llu reads, %llu copies, %llu completions\n",
        what, (unsigned long long)cuts, (unsigned long long)total->acks, (unsigned long long)total->refusals,
        (unsigned long long)total->reads, (unsigned long long)total->copies,
        (unsigned long long)total->completions);
}

/* Arms one kind of cut: at a sync of the index, at a flush of a device, or at no particular point. */
static void arm(struct world *world, uint64_t seed, uint32_t cut)
{
    uint64_t nth = 1 + (seed * 3 + cut * 7) % 31;
    switch ((seed + cut) % 4) {
    case 0:
    case 1:
        vfs_sim_die_at_sync(world->vfs, nth);
        break;
    case 2:
        dev_mem_die_at_flush(world->memory[cut % WORLD_DEVICES], nth);
        break;
    default:
        break;
    }
}

Test(crash, what_was_answered_is_whole_after_any_cut)
{
    struct world total = {.acks = 0};
    uint64_t cuts = 0;
    log_level_set(LOG_ERROR);
    uint64_t first = from_env("SEED", 1);
    uint64_t last = getenv("SEED") != NULL ? first : from_env("ROUNDS", 12);
    for (uint64_t seed = first; seed <= last; seed++) {
        struct world world;
        world_open(&world, &(struct world_options){.seed = seed});
        for (uint32_t cut = 0; cut < 10; cut++) {
            arm(&world, seed, cut);
            world_work(&world, 100 + (uint32_t)rng_below(&world.rng, 300));
            uint32_t faults = world_cut(&world, seed * 1000 + cut);
            cr_assert_eq(faults, 0, "SEED=%llu cut %u: %u faults", (unsigned long long)seed, cut, faults);
            cuts++;
        }
        totals_add(&total, &world);
        world_close(&world);
    }
    totals_say("crash", cuts, &total);
    /* The runs did real work of every kind. */
    cr_assert_gt(total.acks, cuts);
    cr_assert_gt(total.reads, 0);
    cr_assert_gt(total.completions, 0);
    cr_assert_gt(total.copies, 0);
}

/* Without any cut: what runs and ends leaves no space behind, and readers only ever see whole versions. */
Test(crash, space_comes_back_and_readers_see_whole_versions)
{
    log_level_set(LOG_ERROR);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct world world;
        world_open(&world, &(struct world_options){.seed = seed + 500});
        world_work(&world, 4000);
        world_settle(&world);
        cr_assert_eq(world.damage, 0, "seed %llu: %u reads with other bytes", (unsigned long long)seed,
                     world.damage);
        cr_assert_eq(world_leak(&world), 0, "seed %llu: %llu bytes", (unsigned long long)seed,
                     (unsigned long long)world_leak(&world));
        cr_assert_gt(world.reads, 50);
        cr_assert_gt(world.acks, 200);
        world_close(&world);
    }
}

/* Recovery twice in a row, and a cut right after it, show the same. */
Test(crash, start_after_start_shows_the_same)
{
    log_level_set(LOG_ERROR);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct world world;
        world_open(&world, &(struct world_options){.seed = seed + 900});
        world_work(&world, 300);
        cr_assert_eq(world_cut(&world, seed), 0);
        for (uint32_t i = 0; i < 3; i++) {
            cr_assert_eq(world_cut(&world, seed * 7 + i), 0);
        }
        world_close(&world);
    }
}

static uint32_t losing_runs(bool skip_flush, bool skip_sync)
{
    uint32_t losing = 0;
    log_level_set((enum log_level)(LOG_ERROR + 1)); /* faults are what is wanted here */
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct world world;
        world_open(&world,
                   &(struct world_options){.seed = seed, .skip_flush = skip_flush, .skip_sync = skip_sync});
        world_work(&world, 300);
        losing += world_cut(&world, seed) > 0 ? 1 : 0;
        world_close(&world);
    }
    return losing;
}

/* Negative controls: the same work with one step of the order left out must show losses, or the test above proves nothing. */
Test(crash, control_without_payload_flush_loses)
{
    uint32_t losing = losing_runs(true, false);
    cr_assert_gt(losing, 5, "only %u of 10 runs lost something", losing);
}

Test(crash, control_without_index_sync_loses)
{
    uint32_t losing = losing_runs(false, true);
    cr_assert_gt(losing, 5, "only %u of 10 runs lost something", losing);
}

/* Operation n of one kind at device 0 fails, for n = 1, 2, ... until a run meets no failure: nothing answered is lost. */
static void fail_every(uint32_t ops, enum dev_fault_kind kind, int error, bool from_then_on)
{
    uint64_t nth = 1;
    bool fired = true;
    log_level_set(LOG_ERROR);
    for (; fired; nth += 1 + nth / 8) { /* all of the first ones, then ever larger steps */
        struct world world;
        world_open(&world, &(struct world_options){.seed = 5, .with_faults = true});
        struct dev_fault_plan plan = {
            .kind = kind, .ops = ops, .error = error, .nth = nth, .from_then_on = from_then_on};
        dev_fault_plan_set(world.devices[0], &plan);
        world_work(&world, 150);
        fired = dev_fault_fired(world.devices[0]) > 0;
        dev_fault_plan_set(world.devices[0], &(struct dev_fault_plan){.kind = DEV_FAULT_NONE});
        uint32_t faults = world_cut(&world, nth);
        cr_assert_eq(faults, 0, "operation kinds %u, number %llu: %u faults", ops, (unsigned long long)nth,
                     faults);
        world_close(&world);
    }
    cr_assert_gt(nth, 4);
}

Test(crash, every_failing_device_write_is_survived)
{
    fail_every(1U << DEV_WRITE, DEV_FAULT_ERROR, -EIO, false);
    fail_every(1U << DEV_WRITE, DEV_FAULT_TORN, -EIO, true);
}

Test(crash, every_failing_device_flush_is_survived)
{
    fail_every(1U << DEV_FLUSH, DEV_FAULT_ERROR, -EIO, false);
}

Test(crash, every_failing_device_read_is_survived)
{
    fail_every(1U << DEV_READ, DEV_FAULT_ERROR, -EIO, false);
}
