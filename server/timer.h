/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timer: a hashed timer wheel for one worker: thousands of coarse deadlines (timeouts of peers), set and cancelled in
 * constant time. It owns no memory: a timer is embedded in what it times. It must not read a clock or call anyone: the
 * worker asks for what is due and acts on it.
 *
 * Invariants:
 *  1. A linked timer sits in the slot of its deadline's tick; a deadline beyond one turn of the wheel waits there for
 *     the turn in which it is due.
 *  2. A timer fires at its deadline or up to one tick later, never before.
 */
#ifndef SERVER_TIMER_H
#define SERVER_TIMER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/list.h"

#define TIMER_TICK_NS (20U * NS_PER_MS)
#define TIMER_SLOTS 512U

struct timer {
    struct list link; /* in a slot, or alone */
    uint64_t deadline_ns;
};

struct timers {
    struct list slots[TIMER_SLOTS];
    uint64_t tick;       /* the next tick to be looked at */
    uint64_t first_tick; /* no timer lies in a slot before this tick's, counted from `tick` on */
    uint32_t armed;
};

void timers_init(struct timers *timers, uint64_t now_ns);

static inline void timer_init(struct timer *timer)
{
    list_init(&timer->link);
    timer->deadline_ns = TIME_NEVER;
}

static inline bool timer_is_armed(const struct timer *timer)
{
    return list_is_linked(&timer->link);
}

/* Arms or moves a timer; TIME_NEVER disarms it. A deadline in the past fires with the next timers_take_due. */
void timer_set(struct timers *timers, struct timer *timer, uint64_t deadline_ns);
void timer_cancel(struct timers *timers, struct timer *timer);

/* Takes one due timer out and returns it (disarmed), or NULL when none is due. The worker bounds its calls per turn. */
struct timer *timers_take_due(struct timers *timers, uint64_t now_ns);

/* When to look again: the end of the first occupied tick, or TIME_NEVER. */
uint64_t timers_deadline(struct timers *timers);

#endif
