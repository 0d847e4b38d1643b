/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather: decides when the worker sleeps a moment longer than it has to, so that more payload is there when it wakes.
 *
 * A fast peer's bytes arrive in small portions, and a worker that wakes for each of them spends more on waking, on system calls and on
 * acknowledgements than on the copy. While payload comes at GATHER_RATE_MIN or more, the worker therefore waits until GATHER_COUNT
 * completions are there or GATHER_NS have passed. Below that rate a completion ends the wait at once, as it does on an idle node.
 *
 * Pure: the time and the count of received bytes come in. One per worker.
 */
#ifndef SERVER_GATHER_H
#define SERVER_GATHER_H

#include <stdint.h>

#include "base/bytes.h"
#include "base/clock.h"

/* at 1 GB/s 100 KB: less than any socket buffer holds, so no sender stalls */
#define GATHER_NS (100U * NS_PER_US)
#define GATHER_COUNT 16U /* with so many completions a turn is worth its cost */
#define GATHER_WINDOW_NS (1U * NS_PER_MS)
#define GATHER_RATE_MIN (256U * MIB) /* bytes per second; less would gather no more than a segment */

struct gather {
    uint64_t window_begin_ns;
    uint64_t received_seen; /* bytes received when the window began */
    uint64_t rate;          /* bytes per second in the last whole window */
};

/* Once per turn: `received` counts all payload so far, of the listeners that may be made to wait. */
static inline void gather_turn(struct gather *gather, uint64_t now_ns, uint64_t received)
{
    uint64_t elapsed_ns = now_ns - gather->window_begin_ns;
    if (elapsed_ns < GATHER_WINDOW_NS) {
        return;
    }
    /* In microseconds, so that no product overflows: a worker receives less than 2^44 bytes between two turns. */
    gather->rate = (received - gather->received_seen) * (NS_PER_S / NS_PER_US) / (elapsed_ns / NS_PER_US);
    gather->window_begin_ns = now_ns;
    gather->received_seen = received;
}

/* True when a wait of `wait_ns` is to become one for GATHER_COUNT completions of GATHER_NS at most. Never when something is due sooner. */
static inline bool gather_wants(const struct gather *gather, uint64_t wait_ns)
{
    return gather->rate >= GATHER_RATE_MIN && wait_ns > GATHER_NS;
}

#endif
