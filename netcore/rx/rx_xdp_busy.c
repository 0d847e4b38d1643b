/* SPDX-License-Identifier: Apache-2.0 */
/* rx_xdp_busy: when to ask the NIC instead of sleeping. See the header. */
#include "rx/rx_xdp_busy.h"

void xdp_busy_init(struct xdp_busy *busy, uint64_t linger_ns)
{
    *busy = (struct xdp_busy){.linger_ns = linger_ns, .owed_ns = TIME_NEVER};
}

void xdp_busy_started(struct xdp_busy *busy, uint64_t now_ns, uint64_t moved)
{
    busy->is_on = true;
    busy->moved = moved;
    busy->moved_ns = now_ns;
    busy->owed_ns = TIME_NEVER;
}

void xdp_busy_refused(struct xdp_busy *busy)
{
    busy->is_on = false;
    busy->linger_ns = 0;
}

void xdp_busy_forget(struct xdp_busy *busy)
{
    busy->is_on = false;
    busy->again_ns = 0;
}

enum xdp_busy_order xdp_busy_look(struct xdp_busy *busy, uint64_t now_ns, uint64_t moved, bool is_owed)
{
    if (busy->linger_ns == 0) {
        return XDP_BUSY_KEEP;
    }
    if (!busy->is_on) {
        return now_ns >= busy->again_ns ? XDP_BUSY_START : XDP_BUSY_KEEP;
    }
    if (moved != busy->moved) {
        busy->moved = moved;
        busy->moved_ns = now_ns;
        busy->owed_ns = is_owed ? now_ns : TIME_NEVER;
        return XDP_BUSY_KEEP;
    }
    if (!is_owed) {
        busy->owed_ns = TIME_NEVER;
        return XDP_BUSY_KEEP;
    }
    if (busy->owed_ns == TIME_NEVER) {
        busy->owed_ns = now_ns;
    }
    if (now_ns - busy->owed_ns <= XDP_BUSY_STALL_NS) {
        return XDP_BUSY_KEEP;
    }
    busy->is_on = false;
    busy->again_ns = now_ns + XDP_BUSY_AGAIN_NS;
    return XDP_BUSY_STOP;
}

bool xdp_busy_is_asking(const struct xdp_busy *busy, uint64_t now_ns)
{
    return busy->is_on && now_ns - busy->moved_ns < busy->linger_ns;
}
