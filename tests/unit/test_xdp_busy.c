/* SPDX-License-Identifier: Apache-2.0 */
/* Units of rx_xdp_busy. Goal: the NIC is asked only around traffic, and a driver that makes no progress gets its interrupts back, for
 * a while. Method: times and counts as a hub would give them; no socket. */
#include <criterion/criterion.h>

#include "rx/rx_xdp_busy.h"

#define LINGER (1 * NS_PER_MS)
static uint64_t now;
static struct xdp_busy busy;

static void template(void)
{
    now = 5 * NS_PER_S;
    xdp_busy_init(&busy, LINGER);
    cr_assert_eq(xdp_busy_look(&busy, now, 100, false), XDP_BUSY_START);
    xdp_busy_started(&busy, now, 100);
}

Test(xdp_busy, without_the_option_nothing_is_ever_asked)
{
    xdp_busy_init(&busy, 0);
    for (now = 0; now < NS_PER_S; now += 100 * NS_PER_MS) {
        cr_expect_eq(xdp_busy_look(&busy, now, now, true), XDP_BUSY_KEEP);
        cr_expect(!xdp_busy_is_asking(&busy, now));
    }
}

Test(xdp_busy, it_asks_around_traffic_and_sleeps_without)
{
    template();
    cr_expect(xdp_busy_is_asking(&busy, now + LINGER - 1));
    cr_expect(!xdp_busy_is_asking(&busy, now + LINGER), "idle: interrupts wake the worker");
    now += NS_PER_S;
    cr_expect_eq(xdp_busy_look(&busy, now, 101, false), XDP_BUSY_KEEP);
    cr_expect(xdp_busy_is_asking(&busy, now + LINGER - 1), "one frame makes it ask again");
    cr_expect(!xdp_busy_is_asking(&busy, now + LINGER));
    now += 3600 * NS_PER_S;
    cr_expect_eq(xdp_busy_look(&busy, now, 101, false), XDP_BUSY_KEEP, "an idle hour is no stall");
}

Test(xdp_busy, a_driver_that_makes_no_progress_gets_its_interrupts_back_for_a_while)
{
    template();
    cr_expect_eq(xdp_busy_look(&busy, now, 100, true), XDP_BUSY_KEEP);
    now += XDP_BUSY_STALL_NS;
    cr_expect_eq(xdp_busy_look(&busy, now, 100, true), XDP_BUSY_KEEP);
    now++;
    cr_expect_eq(xdp_busy_look(&busy, now, 100, true), XDP_BUSY_STOP);
    cr_expect(!xdp_busy_is_asking(&busy, now));
    cr_expect_eq(xdp_busy_look(&busy, now + XDP_BUSY_AGAIN_NS - 1, 100, true), XDP_BUSY_KEEP, "told once");
    cr_expect_eq(xdp_busy_look(&busy, now + XDP_BUSY_AGAIN_NS, 100, true), XDP_BUSY_START);
}

Test(xdp_busy, progress_of_any_kind_and_owing_nothing_put_the_watchdog_off)
{
    template();
    for (uint64_t moved = 101; moved < 120; moved++) { /* slow, but it moves */
        now += XDP_BUSY_STALL_NS;
        cr_expect_eq(xdp_busy_look(&busy, now, moved, true), XDP_BUSY_KEEP);
    }
    now += XDP_BUSY_STALL_NS;
    cr_expect_eq(xdp_busy_look(&busy, now, 119, false), XDP_BUSY_KEEP, "all came back");
    now += 10 * XDP_BUSY_STALL_NS;
    cr_expect_eq(xdp_busy_look(&busy, now, 119, true), XDP_BUSY_KEEP, "what is sent now is owed from now on");
}

Test(xdp_busy, new_sockets_are_told_at_once_and_a_kernel_that_refuses_never_again)
{
    template();
    xdp_busy_forget(&busy);
    cr_expect(!xdp_busy_is_asking(&busy, now));
    cr_expect_eq(xdp_busy_look(&busy, now, 100, true), XDP_BUSY_START);
    xdp_busy_refused(&busy);
    cr_expect_eq(xdp_busy_look(&busy, now + 3600 * NS_PER_S, 100, true), XDP_BUSY_KEEP);
}
