/* SPDX-License-Identifier: Apache-2.0 */
/* Freed space comes back only when nobody can read it any more, and then all of it. */
#include <criterion/criterion.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "storage/epoch.h"

static struct object_space space_of(uint64_t number)
{
    return (struct object_space){.device = 0, .offset = number * 4096, .length = 4096};
}

static uint32_t reclaim_all(struct epoch *epoch)
{
    struct object_space spaces[64];
    uint32_t total = 0;
    uint32_t count;
    while ((count = epoch_reclaim(epoch, spaces, ARRAY_COUNT(spaces))) > 0) {
        total += count;
    }
    return total;
}

Test(epoch, without_pins_space_is_free_at_once)
{
    struct epoch *epoch;
    struct object_space space = space_of(1);
    cr_assert_eq(epoch_open(&epoch), 0);
    cr_assert_eq(epoch_free(epoch, &space, 1), 0);
    cr_assert_eq(epoch_held_bytes(epoch), 4096);
    cr_assert_eq(reclaim_all(epoch), 1);
    cr_assert_eq(epoch_held_bytes(epoch), 0);
    epoch_close(epoch);
}

Test(epoch, an_older_pin_holds_space_and_a_later_one_does_not)
{
    struct epoch *epoch;
    struct object_space space = space_of(1);
    cr_assert_eq(epoch_open(&epoch), 0);
    uint64_t before = epoch_pin(epoch);
    cr_assert_eq(epoch_free(epoch, &space, 1), 0);
    uint64_t after = epoch_pin(epoch);
    cr_assert_eq(reclaim_all(epoch), 0);
    epoch_unpin(epoch, before);
    cr_assert_eq(reclaim_all(epoch), 1, "the later pin cannot see it");
    epoch_unpin(epoch, after);
    epoch_close(epoch);
}

/* Model: each freed item remembers the pins that were live when it was freed. */
Test(epoch, random_use_agrees_with_the_definition)
{
    enum { STEPS = 20000, LIVE = 32 };
    struct epoch *epoch;
    struct rng rng;
    uint64_t pins[LIVE] = {0};
    static uint32_t holders[STEPS]; /* live pins that may read item i, as a bit set */
    uint64_t freed = 0;
    uint64_t reclaimed = 0;
    cr_assert_eq(epoch_open(&epoch), 0);
    rng_seed(&rng, 4);
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t slot = (uint32_t)rng_below(&rng, LIVE);
        if (rng_chance(&rng, 1, 3)) {
            struct object_space space = space_of(freed);
            holders[freed] = 0;
            for (uint32_t i = 0; i < LIVE; i++) {
                holders[freed] |= pins[i] != 0 ? 1U << i : 0;
            }
            cr_assert_eq(epoch_free(epoch, &space, 1), 0);
            freed++;
        } else if (pins[slot] == 0) {
            pins[slot] = epoch_pin(epoch);
        } else {
            epoch_unpin(epoch, pins[slot]);
            pins[slot] = 0;
            for (uint64_t i = reclaimed; i < freed; i++) {
                holders[i] &= ~(1U << slot);
            }
        }
        struct object_space out;
        while (epoch_reclaim(epoch, &out, 1) == 1) {
            cr_assert_eq(out.offset, reclaimed * 4096, "in the order of freeing");
            cr_assert_eq(holders[reclaimed], 0, "somebody may still read it");
            reclaimed++;
        }
    }
    for (uint32_t i = 0; i < LIVE; i++) {
        if (pins[i] != 0) {
            epoch_unpin(epoch, pins[i]);
        }
    }
    reclaimed += reclaim_all(epoch);
    cr_assert_eq(reclaimed, freed, "nothing is forgotten");
    epoch_close(epoch);
}

/* A pin held through more commits than the window has epochs. */
Test(epoch, one_very_old_pin_delays_and_breaks_nothing)
{
    struct epoch *epoch;
    cr_assert_eq(epoch_open(&epoch), 0);
    uint64_t old = epoch_pin(epoch);
    for (uint64_t i = 0; i < 10000; i++) {
        struct object_space space = space_of(i);
        cr_assert_eq(epoch_free(epoch, &space, 1), 0);
        epoch_unpin(epoch, epoch_pin(epoch));
    }
    cr_assert_eq(reclaim_all(epoch), 0);
    epoch_unpin(epoch, old);
    cr_assert_eq(reclaim_all(epoch), 10000);
    epoch_close(epoch);
}
