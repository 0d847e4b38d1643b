/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock: the only doors to the system's clocks. Time is a parameter in nanoseconds everywhere else; only
 * thread loops (worker, committer, index reader, admin) and start-up code call these.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_US 1000ULL
#define NS_PER_MS 1000000ULL
#define NS_PER_S 1000000000ULL
#define TIME_NEVER UINT64_MAX /* A deadline that never comes. */

/* Monotonic nanoseconds (CLOCK_MONOTONIC): for deadlines and durations. */
uint64_t clock_monotonic_ns(void);
/* Nanoseconds since 1970 (CLOCK_REALTIME): for stored times and Date headers only. */
uint64_t clock_realtime_ns(void);
/* The clock of the calling thread's CPU time, which other threads may read while it lives: for metrics. */
clockid_t clock_thread_cpu(void);
uint64_t clock_cpu_ns(clockid_t clock);

#endif
