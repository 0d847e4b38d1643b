/* SPDX-License-Identifier: Apache-2.0 */
/* clock: thin readers of the system's clocks. */
#include "base/clock.h"

#include <pthread.h>
#include <time.h>

#include "base/check.h"

static uint64_t clock_read_ns(clockid_t id)
{
    struct timespec ts;
    CHECK(clock_gettime(id, &ts) == 0); /* Fails only for a wrong clock id or pointer: our bug. */
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t clock_monotonic_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC);
}

uint64_t clock_realtime_ns(void)
{
    return clock_read_ns(CLOCK_REALTIME);
}

clockid_t clock_thread_cpu(void)
{
    clockid_t clock;
    int rc = pthread_getcpuclockid(pthread_self(), &clock);
    CHECK(rc == 0);
    return clock;
}

uint64_t clock_cpu_ns(clockid_t clock)
{
    return clock_read_ns(clock);
}
