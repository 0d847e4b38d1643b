/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_xdp_busy: when a worker asks the NIC for frames by itself instead of sleeping until an interrupt, and when it must not any more.
 * Pure: it makes no system call and reads no clock; the hub does what it says.
 *
 *   OFF --look: START--> ON, asking --nothing moved for linger_ns--> ON, idle --something moved--> ON, asking
 *    ^                    |                                            |
 *    `---- again_ns ------+---- frames of ours stay with the driver ---'    look: STOP
 *
 * Asking is for moments of traffic only: an idle worker sleeps, and interrupts wake it. A kernel whose interrupts are held back while
 * somebody asks (napi_defer_hard_irqs) depends on being asked, so a driver that makes no progress gets its interrupts back.
 */
#ifndef RX_RX_XDP_BUSY_H
#define RX_RX_XDP_BUSY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define XDP_BUSY_STALL_NS (250 * NS_PER_MS) /* the driver has frames of ours and nothing has moved */
#define XDP_BUSY_AGAIN_NS (10 * NS_PER_S)   /* after that it is tried again */

struct xdp_busy {
    uint64_t linger_ns; /* how long it goes on asking after something moved; 0: never asks */
    uint64_t moved;     /* frames received and completed, at the last look */
    uint64_t moved_ns;  /* when that grew */
    uint64_t
        owed_ns; /* since when the driver has frames of ours and nothing moved; TIME_NEVER: it has none */
    uint64_t again_ns; /* not before */
    bool is_on;
};

enum xdp_busy_order { XDP_BUSY_KEEP, XDP_BUSY_START, XDP_BUSY_STOP };

void xdp_busy_init(struct xdp_busy *busy, uint64_t linger_ns);
/* After each turn. `moved`: frames received and completed so far. `is_owed`: the driver has frames that it has not completed. After
 * XDP_BUSY_START the caller tells the sockets and calls xdp_busy_started or xdp_busy_refused; after XDP_BUSY_STOP it tells them. */
enum xdp_busy_order xdp_busy_look(struct xdp_busy *busy, uint64_t now_ns, uint64_t moved, bool is_owed);
void xdp_busy_started(struct xdp_busy *busy, uint64_t now_ns, uint64_t moved);
/* The kernel does not let us: not tried again. */
void xdp_busy_refused(struct xdp_busy *busy);
/* The sockets are new, and know nothing of it. */
void xdp_busy_forget(struct xdp_busy *busy);
/* The worker asks now, and does not sleep. */
bool xdp_busy_is_asking(const struct xdp_busy *busy, uint64_t now_ns);

#endif
