/* SPDX-License-Identifier: Apache-2.0 */
/* timer: the wheel. A slot may hold timers of later turns; they are skipped, which keeps insertion constant. */
#include "server/timer.h"

#include "base/check.h"

/* The tick in which a deadline is due: rounded up, so that nothing fires early. */
static uint64_t timer_tick_of(uint64_t deadline_ns)
{
    return deadline_ns / TIMER_TICK_NS + (deadline_ns % TIMER_TICK_NS != 0);
}

void timers_init(struct timers *timers, uint64_t now_ns)
{
    for (uint32_t i = 0; i < TIMER_SLOTS; i++) {
        list_init(&timers->slots[i]);
    }
    timers->tick = now_ns / TIMER_TICK_NS;
    timers->first_tick = timers->tick;
    timers->armed = 0;
}

void timer_cancel(struct timers *timers, struct timer *timer)
{
    if (timer_is_armed(timer)) {
        CHECK(timers->armed > 0);
        timers->armed--;
        list_remove(&timer->link);
    }
    timer->deadline_ns = TIME_NEVER;
}

void timer_set(struct timers *timers, struct timer *timer, uint64_t deadline_ns)
{
    timer_cancel(timers, timer);
    if (deadline_ns == TIME_NEVER) {
        return;
    }
    uint64_t tick = timer_tick_of(deadline_ns);
    tick = tick < timers->tick ? timers->tick : tick;
    /* The slot's first visit, which may be turns of the wheel before the timer is due. */
    uint64_t visit = timers->tick + (tick - timers->tick) % TIMER_SLOTS;
    timers->first_tick = visit < timers->first_tick ? visit : timers->first_tick;
    timer->deadline_ns = deadline_ns;
    list_append(&timers->slots[tick % TIMER_SLOTS], &timer->link);
    timers->armed++;
}

/* The first timer of a slot that is due at `tick`, or NULL. */
static struct timer *timers_slot_due(struct timers *timers, uint64_t tick)
{
    LIST_FOR_EACH(node, &timers->slots[tick % TIMER_SLOTS])
    {
        struct timer *timer = CONTAINER_OF(node, struct timer, link);
        if (timer_tick_of(timer->deadline_ns) <= tick) {
            return timer;
        }
    }
    return NULL;
}

struct timer *timers_take_due(struct timers *timers, uint64_t now_ns)
{
    uint64_t now_tick = now_ns / TIMER_TICK_NS;
    if (timers->armed == 0) {
        timers->tick = now_tick > timers->tick ? now_tick : timers->tick;
        return NULL;
    }
    /* After a long sleep one turn of the wheel meets every slot, so older ticks need no visit of their own. */
    if (now_tick > timers->tick + TIMER_SLOTS) {
        timers->tick = now_tick - TIMER_SLOTS;
    }
    for (; timers->tick <= now_tick; timers->tick++) {
        struct timer *timer = timers_slot_due(timers, timers->tick);
        if (timer != NULL) {
            timer_cancel(timers, timer);
            return timer;
        }
        if (timers->tick == now_tick) {
            break;
        }
    }
    return NULL;
}

uint64_t timers_deadline(struct timers *timers)
{
    if (timers->armed == 0) {
        return TIME_NEVER;
    }
    /* What was found empty before stays so until a timer is set, and each turn of the worker asks: the search goes on where it ended. */
    uint64_t first = timers->first_tick > timers->tick ? timers->first_tick : timers->tick;
    for (uint64_t i = 0; i < TIMER_SLOTS; i++) {
        if (!list_is_empty(&timers->slots[(first + i) % TIMER_SLOTS])) {
            timers->first_tick = first + i;
            return timers->first_tick * TIMER_TICK_NS;
        }
    }
    CHECK(timers->armed == 0); /* Armed timers are in slots. */
    return TIME_NEVER;
}
