/* SPDX-License-Identifier: Apache-2.0 */
/* share: taking turns. See share.h. */
#include "server/share.h"

#include "base/check.h"
#include "server/conn.h"
#include "server/exchange.h"
#include "server/http_conn.h"

void shares_init(struct worker *worker)
{
    for (uint32_t i = 0; i < SHARE_COUNT; i++) {
        list_init(&worker->shares[i].waiters);
        list_init(&worker->shares[i].holders);
        list_init(&worker->shares[i].stuck);
    }
}

/* ---- waiting and holding ------------------------------------------------------------------------------------------ */

void share_wait(struct exchange *x, enum share_kind kind)
{
    struct list *waiters = &x->worker->shares[kind].waiters;
    if (list_is_linked(&x->waiter)) {
        return;
    }
    if (x->is_resuming) {
        list_prepend(waiters, &x->waiter);
    } else {
        list_append(waiters, &x->waiter);
    }
}

bool share_is_wanted(const struct exchange *x, enum share_kind kind)
{
    return !x->is_resuming && !list_is_empty(&x->worker->shares[kind].waiters);
}

void share_hold(struct exchange *x, enum share_kind kind)
{
    struct share *share = &x->worker->shares[kind];
    list_remove(&x->holder);
    x->holding_ns = x->worker->now_ns;
    list_append(x->ops->cut != NULL ? &share->holders : &share->stuck, &x->holder);
}

void share_release(struct exchange *x)
{
    list_remove(&x->holder);
}

/* ---- those who wait ------------------------------------------------------------------------------------------------- */

static bool share_has_some(const struct worker *worker, enum share_kind kind)
{
    switch (kind) {
    case SHARE_STREAM:
        return worker->filter.streams.free_count > 0;
    case SHARE_BLOCK:
        return worker->blocks.free_count > 0;
    case SHARE_TABLE:
        return worker->tables.free_count > 0;
    case SHARE_READ: /* The port knows; who asks finds out. */
    case SHARE_COUNT:
        break;
    }
    return true;
}

void shares_resume(struct worker *worker)
{
    for (uint32_t kind = 0; kind < SHARE_COUNT; kind++) {
        struct list *waiters = &worker->shares[kind].waiters;
        bool is_served = true;
        /* The first that must wait again ends the round, because nothing is left for the others. */
        while (is_served && !list_is_empty(waiters) && share_has_some(worker, kind)) {
            struct exchange *x = CONTAINER_OF(list_take_first(waiters), struct exchange, waiter);
            struct conn *conn = x->conn;
            x->is_resuming = true;
            x->ops->resume(x);
            x->is_resuming = false;
            is_served = !list_is_linked(&x->waiter);
            conn_run(conn);
        }
    }
}

/* ---- those who hold ------------------------------------------------------------------------------------------------- */

static struct exchange *share_first(const struct list *holders)
{
    return list_is_empty(holders) ? NULL : CONTAINER_OF(holders->next, struct exchange, holder);
}

static void share_recall(struct share *share, uint64_t now_ns)
{
    struct exchange *x;
    for (uint32_t i = 0; i < SHARE_RECALLS && (x = share_first(&share->holders)) != NULL; i++) {
        if (x->holding_ns + SHARE_TURN_NS > now_ns) {
            return;
        }
        list_remove(&x->holder);
        if (http_response_recall(x)) {
            metrics_add(&x->listener->cells->sends_recalled, 1);
        } else {
            list_append(&share->stuck, &x->holder);
        }
    }
}

static void share_reset(struct share *share, uint64_t now_ns)
{
    struct exchange *x;
    for (uint32_t i = 0; i < SHARE_RECALLS && (x = share_first(&share->stuck)) != NULL; i++) {
        if (x->holding_ns + SHARE_STUCK_NS > now_ns) {
            return;
        }
        metrics_add(&x->listener->cells->limits_hit[METRICS_LIMIT_STUCK], 1);
        conn_abort(x->conn); /* It is abandoned by that and leaves the list. */
    }
}

void shares_turn(struct worker *worker)
{
    for (uint32_t kind = 0; kind < SHARE_COUNT; kind++) {
        struct share *share = &worker->shares[kind];
        if (!list_is_empty(&share->waiters)) {
            share_recall(share, worker->now_ns);
            share_reset(share, worker->now_ns);
        }
    }
}

uint64_t shares_deadline(const struct worker *worker)
{
    uint64_t first_ns = TIME_NEVER;
    for (uint32_t kind = 0; kind < SHARE_COUNT; kind++) {
        const struct share *share = &worker->shares[kind];
        if (list_is_empty(&share->waiters)) {
            continue;
        }
        const struct exchange *holder = share_first(&share->holders);
        const struct exchange *stuck = share_first(&share->stuck);
        uint64_t recall_ns = holder == NULL ? TIME_NEVER : holder->holding_ns + SHARE_TURN_NS;
        uint64_t reset_ns = stuck == NULL ? TIME_NEVER : stuck->holding_ns + SHARE_STUCK_NS;
        first_ns = recall_ns < first_ns ? recall_ns : first_ns;
        first_ns = reset_ns < first_ns ? reset_ns : first_ns;
    }
    return first_ns;
}
