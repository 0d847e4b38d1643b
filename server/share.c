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
    case SHARE_READ:
        return store_read_is_free(worker->port);
    case SHARE_COUNT:
        break;
    }
    CHECK(false);
    return false;
}

/* Somebody waits for what others hold. Who waits although something is free waits for a device, and cutting others would not help. */
static bool share_is_short(const struct worker *worker, enum share_kind kind)
{
    return !list_is_empty(&worker->shares[kind].waiters) && !share_has_some(worker, kind);
}

/* Each that waits is asked once, as long as there is something: who still waits for its device is passed over and keeps its place. */
static void share_resume(struct worker *worker, enum share_kind kind)
{
    struct list *waiters = &worker->shares[kind].waiters;
    struct list passed;
    list_init(&passed);
    while (!list_is_empty(waiters) && share_has_some(worker, kind)) {
        struct exchange *x = CONTAINER_OF(list_take_first(waiters), struct exchange, waiter);
        struct conn *conn = x->conn;
        x->is_resuming = true;
        x->ops->resume(x);
        x->is_resuming = false;
        if (waiters->next == &x->waiter) {
            list_remove(&x->waiter);
            list_append(&passed, &x->waiter);
        }
        conn_run(conn);
    }
    while (!list_is_empty(&passed)) {
        struct list *last = passed.prev;
        list_remove(last);
        list_prepend(waiters, last);
    }
}

void shares_resume(struct worker *worker)
{
    for (uint32_t kind = 0; kind < SHARE_COUNT; kind++) {
        share_resume(worker, kind);
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

/* Tables stay with requests that the index does not answer: who waits for one would wait as long. */
static bool share_refuses_tables(const struct worker *worker)
{
    return share_is_short(worker, SHARE_TABLE) && store_port_index_is_late(worker->port);
}

static void share_refuse_tables(struct worker *worker)
{
    struct list *waiters = &worker->shares[SHARE_TABLE].waiters;
    uint32_t count = 0;
    if (!share_refuses_tables(worker)) {
        return;
    }
    LIST_FOR_EACH(node, waiters)
    {
        count++;
    }
    /* Not those that come meanwhile: a connection's next request may follow at once, and wait here too. */
    struct list *node;
    while (count-- > 0 && (node = list_take_first(waiters)) != NULL) {
        struct exchange *x = CONTAINER_OF(node, struct exchange, waiter);
        struct conn *conn = x->conn;
        http_respond_error(x, S3_ERR_SERVICE_UNAVAILABLE);
        conn_run(conn);
    }
}

void shares_turn(struct worker *worker)
{
    share_refuse_tables(worker);
    for (uint32_t kind = 0; kind < SHARE_COUNT; kind++) {
        struct share *share = &worker->shares[kind];
        if (share_is_short(worker, kind)) {
            share_recall(share, worker->now_ns);
            share_reset(share, worker->now_ns);
        }
    }
}

uint64_t shares_deadline(const struct worker *worker)
{
    uint64_t first_ns = share_refuses_tables(worker) ? worker->now_ns : TIME_NEVER; /* Who came since. */
    for (uint32_t kind = 0; kind < SHARE_COUNT; kind++) {
        const struct share *share = &worker->shares[kind];
        if (!share_is_short(worker, kind)) {
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
