/* SPDX-License-Identifier: Apache-2.0 */
/* conn: life, inbox, flow control and end of a connection. */
#include "server/conn.h"

#include <string.h>

#include "base/check.h"
#include "server/exchange.h"
#include "server/http_conn.h"
#include "server/raw.h"
#include "server/upload.h"
#include "server/worker.h"

/* ---- inbox ---------------------------------------------------------------------------------------------------- */

struct slice *conn_inbox_peek(struct conn *conn)
{
    return conn->inbox_first == NULL ? NULL : &conn->inbox_first->slice;
}

static void conn_inbox_pop(struct conn *conn)
{
    struct inbox_node *node = conn->inbox_first;
    conn->inbox_first = node->next;
    if (conn->inbox_first == NULL) {
        conn->inbox_last = NULL;
    }
    pool_give(&conn->worker->inbox_nodes, node);
}

void conn_inbox_take(struct conn *conn, uint32_t len, struct slice *out)
{
    struct slice *first = conn_inbox_peek(conn);
    CHECK(first != NULL);
    CHECK(len > 0);
    CHECK(len <= first->len);
    if (len < first->len) {
        slice_cut_head(first, len, out);
        list_remove(&conn->hoarder);
        return;
    }
    *out = *first;
    list_remove(&conn->hoarder); /* Progress: what still waits counts anew. */
    conn_inbox_pop(conn);
}

void conn_inbox_skip(struct conn *conn, uint32_t len)
{
    struct slice dropped;
    conn_inbox_take(conn, len, &dropped);
    slice_release(&dropped);
}

static void conn_inbox_clear(struct conn *conn)
{
    while (!conn_inbox_is_empty(conn)) {
        slice_release(&conn->inbox_first->slice);
        conn_inbox_pop(conn);
    }
}

/* False when no node is left: the peer sent far more fragments than its share while it was paused. */
static bool conn_inbox_put(struct conn *conn, const struct slice *slice)
{
    struct inbox_node *node = pool_take(&conn->worker->inbox_nodes);
    if (node == NULL) {
        return false;
    }
    node->next = NULL;
    node->slice = *slice;
    if (conn->inbox_last == NULL) {
        conn->inbox_first = node;
    } else {
        conn->inbox_last->next = node;
    }
    conn->inbox_last = node;
    return true;
}

/* ---- begin ---------------------------------------------------------------------------------------------------- */

static void conn_init(struct conn *conn, struct listener *listener, const struct rx_event *event)
{
    struct worker *worker = listener->worker;
    memset(conn, 0, sizeof(*conn));
    conn->magic = CONN_MAGIC;
    conn->stage = CONN_OPEN;
    conn->worker = worker;
    conn->listener = listener;
    conn->protocol = listener->conf->protocol == CONF_PROTOCOL_RAW ? &raw_protocol : &http_protocol;
    conn->id = event->id;
    conn->opened_ns = worker->now_ns;
    conn->received_ns = worker->now_ns;
    conn->stage_ns = worker->now_ns;
    conn->peer = *event->peer;
    list_init(&conn->link);
    list_init(&conn->waiter);
    list_init(&conn->hoarder);
    timer_init(&conn->timer);
}

void conn_open(struct listener *listener, const struct rx_event *event)
{
    struct worker *worker = listener->worker;
    const struct conf_limits *limits = &listener->conf->limits;
    struct conn *conn = pool_take(&worker->conns);
    if (conn == NULL) {
        metrics_add(&listener->cells->limits_hit[METRICS_LIMIT_CONNECTIONS], 1);
        rx_conn_close(listener->rx, event->id, true);
        return;
    }
    conn_init(conn, listener, event);
    struct peer *peer = peers_take(&worker->peers, &conn->peer);
    list_append(&listener->conns, &conn->link);
    listener->conn_count++;
    metrics_add(&worker->cells->connections_used, 1);
    metrics_set(&worker->cells->connections_peak, worker->conns.used_peak);
    rx_user_set(listener->rx, conn->id, conn);
    if (limits->connections_per_peer_max != 0 && peer->connections > limits->connections_per_peer_max) {
        metrics_add(&listener->cells->limits_hit[METRICS_LIMIT_CONNECTIONS_PER_PEER], 1);
        conn->is_over_limit = true;
    }
    conn_run(conn);
}

/* ---- running -------------------------------------------------------------------------------------------------- */

static void conn_hoarding_update(struct conn *conn, bool is_hoarding)
{
    if (!is_hoarding) {
        list_remove(&conn->hoarder);
    } else if (!list_is_linked(&conn->hoarder)) {
        conn->hoarding_ns = conn->worker->now_ns;
        list_append(&conn->worker->hoarders, &conn->hoarder);
    }
}

static void conn_flow_update(struct conn *conn)
{
    bool wants =
        conn->stage == CONN_LINGER || (conn->protocol->wants_data(conn) && conn_inbox_is_empty(conn));
    /* A peer that has sent nothing ahead is left unpaused, whatever the stage: pausing it would save nothing. */
    bool is_throttled = exchange_is_throttled(conn->exchange);
    bool must_pause = conn->stage == CONN_OPEN && !wants && (!conn_inbox_is_empty(conn) || is_throttled);
    conn_hoarding_update(conn, must_pause && !is_throttled);
    if (must_pause && !conn->is_paused) {
        conn->is_paused = true;
        rx_pause(conn->listener->rx, conn->id);
    } else if (wants && conn->is_paused) {
        conn->is_paused = false;
        rx_resume(conn->listener->rx, conn->id);
    }
}

void conn_run(struct conn *conn)
{
    CHECK(conn->magic == CONN_MAGIC);
    if (conn->stage == CONN_OPEN) {
        conn->protocol->run(conn);
    }
    if (conn->stage != CONN_CLOSING) {
        conn_flow_update(conn);
    }
}

void conn_timer_set(struct conn *conn, uint64_t deadline_ns)
{
    timer_set(&conn->worker->timers, &conn->timer, deadline_ns);
}

bool conn_send(struct conn *conn, const struct iovec *iov, uint32_t iov_count, uint64_t cookie)
{
    if (conn->stage != CONN_OPEN) {
        return false;
    }
    int rc = rx_send(conn->listener->rx, conn->id, iov, iov_count, cookie);
    CHECK(rc != -EAGAIN); /* The protocols keep fewer than RX_SENDS_MAX in flight. */
    if (rc < 0) {
        return false;
    }
    conn->sends++;
    return true;
}

bool conn_recall(struct conn *conn)
{
    CHECK(conn->stage == CONN_OPEN);
    return rx_send_recall(conn->listener->rx, conn->id) == 0;
}

bool conn_has_taken(struct conn *conn)
{
    uint64_t before = conn->acked;
    conn->acked = rx_acked(conn->listener->rx, conn->id);
    return conn->acked != before;
}

/* ---- end ------------------------------------------------------------------------------------------------------ */

static void conn_stage_set(struct conn *conn, enum conn_stage stage)
{
    conn->stage = stage;
    conn->stage_ns = conn->worker->now_ns;
}

/* From here on only RX_SENT and RX_CLOSED matter. */
static void conn_let_go(struct conn *conn)
{
    conn_stage_set(conn, CONN_CLOSING);
    conn_inbox_clear(conn);
    list_remove(&conn->waiter);
    list_remove(&conn->hoarder);
    conn_timer_set(conn, TIME_NEVER);
    conn->protocol->gone(conn);
}

static void conn_closing(struct conn *conn, bool is_abortive)
{
    if (conn->stage != CONN_CLOSING) {
        conn_let_go(conn);
        rx_conn_close(conn->listener->rx, conn->id, is_abortive);
    }
}

void conn_finish(struct conn *conn)
{
    CHECK(conn->stage == CONN_OPEN);
    conn_inbox_clear(conn);
    if (conn->is_eof) {
        conn_closing(conn, false);
        return;
    }
    conn_stage_set(conn, CONN_LINGER);
    conn->received_ns = conn->worker->now_ns;
    list_remove(&conn->waiter);
    conn->protocol->gone(conn);
    rx_shutdown(conn->listener->rx, conn->id);
    conn_timer_set(conn, conn->worker->now_ns + CONN_LINGER_IDLE_NS);
}

void conn_close(struct conn *conn)
{
    conn_closing(conn, false);
}

void conn_abort(struct conn *conn)
{
    conn_closing(conn, true);
}

static void conn_linger_timeout(struct conn *conn)
{
    uint64_t idle = conn->received_ns + CONN_LINGER_IDLE_NS;
    uint64_t last = conn->stage_ns + CONN_LINGER_NS;
    uint64_t deadline = idle < last ? idle : last;
    if (deadline <= conn->worker->now_ns) {
        conn_closing(conn, false);
    } else {
        conn_timer_set(conn, deadline);
    }
}

void conn_timeout(struct timer *timer)
{
    struct conn *conn = CONTAINER_OF(timer, struct conn, timer);
    CHECK(conn->magic == CONN_MAGIC);
    if (conn->stage == CONN_LINGER) {
        conn_linger_timeout(conn);
    } else if (conn->stage == CONN_OPEN) {
        conn->protocol->timeout(conn);
        conn_run(conn);
    }
}

static void conn_free(struct conn *conn)
{
    struct worker *worker = conn->worker;
    if (conn->stage != CONN_CLOSING) { /* The backend ended it by itself. */
        conn_let_go(conn);
    }
    CHECK(conn->sends == 0);
    if (conn->exchange != NULL) {
        exchange_detach(conn->exchange);
    }
    peers_release(&worker->peers, &conn->peer);
    list_remove(&conn->link);
    conn->listener->conn_count--;
    metrics_sub(&worker->cells->connections_used, 1);
    timer_cancel(&worker->timers, &conn->timer);
    conn->magic = 0;
    pool_give(&worker->conns, conn);
}

/* ---- events --------------------------------------------------------------------------------------------------- */

static void conn_data(struct conn *conn, const struct slice *slice)
{
    conn->received_ns = conn->worker->now_ns;
    conn->received_bytes += slice->len;
    if (conn->stage != CONN_OPEN) {
        slice_release(slice);
        return;
    }
    if (!conn_inbox_put(conn, slice)) {
        slice_release(slice);
        metrics_add(&conn->listener->cells->limits_hit[METRICS_LIMIT_CONNECTIONS], 1);
        conn_abort(conn);
        return;
    }
    conn_run(conn);
}

static void conn_eof(struct conn *conn, int error)
{
    if (error < 0 && conn->protocol->ends_by_fin) {
        conn_closing(conn, true);
        return;
    }
    conn->is_eof = true;
    if (conn->stage == CONN_LINGER) {
        conn_closing(conn, false);
    } else {
        conn_run(conn);
    }
}

static void conn_sent(struct conn *conn, const struct rx_event *event)
{
    CHECK(conn->sends > 0);
    conn->sends--;
    conn->protocol->sent(conn, event);
    conn_run(conn);
}

static void conn_room(struct conn *conn)
{
    if (conn->stage != CONN_OPEN) {
        return; /* What came before it in the same rx_poll has ended the connection. */
    }
    conn->protocol->room(conn);
    conn_run(conn);
}

void conn_event(struct conn *conn, const struct rx_event *event)
{
    CHECK(conn->magic == CONN_MAGIC);
    switch (event->kind) {
    case RX_DATA:
        conn_data(conn, &event->slice);
        break;
    case RX_EOF:
        conn_eof(conn, event->error);
        break;
    case RX_RESET:
        conn_closing(conn, true);
        break;
    case RX_SENT:
        conn_sent(conn, event);
        break;
    case RX_ROOM:
        conn_room(conn);
        break;
    case RX_CLOSED:
        conn_free(conn);
        break;
    case RX_OPEN:
        CHECK(event->kind != RX_OPEN); /* The worker handles it. */
        break;
    }
}

/* ---- peers that send ahead -------------------------------------------------------------------------------------- */

void conns_turn(struct worker *worker)
{
    for (uint32_t count = 0; count < CONN_HOARDERS && !list_is_empty(&worker->hoarders); count++) {
        struct conn *conn = CONTAINER_OF(worker->hoarders.next, struct conn, hoarder);
        if (conn->hoarding_ns + CONN_HOARDING_NS > worker->now_ns || !uploads_buffers_are_short(worker)) {
            return;
        }
        metrics_add(&conn->listener->cells->limits_hit[METRICS_LIMIT_SENT_AHEAD], 1);
        conn_abort(conn);
    }
}

uint64_t conns_deadline(const struct worker *worker)
{
    if (list_is_empty(&worker->hoarders) || !uploads_buffers_are_short(worker)) {
        return TIME_NEVER;
    }
    const struct conn *oldest = CONTAINER_OF(worker->hoarders.next, struct conn, hoarder);
    return oldest->hoarding_ns + CONN_HOARDING_NS;
}
