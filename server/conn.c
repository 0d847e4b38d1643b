/* SPDX-License-Identifier: Apache-2.0 */
/* conn: life, inbox, flow control and end of a connection. */
#include "server/conn.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "server/exchange.h"
#include "server/http_conn.h"
#include "server/raw.h"
#include "server/tls.h"
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

static void conn_cipher_pop(struct conn *conn)
{
    struct inbox_node *node = conn->cipher_first;
    conn->cipher_first = node->next;
    if (conn->cipher_first == NULL) {
        conn->cipher_last = NULL;
    }
    slice_release(&node->slice);
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
        return;
    }
    *out = *first;
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
    while (conn->cipher_first != NULL) {
        conn_cipher_pop(conn);
    }
}

static bool conn_queue_put(struct conn *conn, struct inbox_node **first, struct inbox_node **last,
                           const struct slice *slice)
{
    struct inbox_node *node = pool_take(&conn->worker->inbox_nodes);
    if (node == NULL) {
        return false;
    }
    node->next = NULL;
    node->slice = *slice;
    if (*last == NULL) {
        *first = node;
    } else {
        (*last)->next = node;
    }
    *last = node;
    return true;
}

/* False when no node is left: the peer sent far more fragments than its share while it was paused. */
static bool conn_inbox_put(struct conn *conn, const struct slice *slice)
{
    return conn_queue_put(conn, &conn->inbox_first, &conn->inbox_last, slice);
}

static bool conn_cipher_put(struct conn *conn, const struct slice *slice)
{
    return conn_queue_put(conn, &conn->cipher_first, &conn->cipher_last, slice);
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
    list_init(&conn->tls_waiter);
    timer_init(&conn->timer);
}

/* False when there is no memory for a handshake. */
static bool conn_tls_begin(struct conn *conn)
{
    struct worker *worker = conn->worker;
    SSL_CTX *context =
        atomic_load_explicit(&worker->shared->tls[conn->listener->index], memory_order_acquire);
    if (context == NULL) {
        /* Never serve in the clear what was configured to be encrypted. */
        CHECK(conn->listener->conf->tls.certificate[0] == '\0');
        return true;
    }
    conn->tls = pool_take(&worker->tls_conns); /* As many as connections. */
    CHECK(conn->tls != NULL);
    if (tls_open(conn->tls, context) < 0) {
        return false;
    }
    conn_timer_set(conn, worker->now_ns + conn->listener->conf->limits.head_timeout_ns);
    return true;
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
    if (conn_tls_begin(conn)) {
        conn_run(conn);
    } else {
        conn_abort(conn);
    }
}

/* ---- running -------------------------------------------------------------------------------------------------- */

static bool conn_has_input(const struct conn *conn)
{
    return !conn_inbox_is_empty(conn) || conn->cipher_first != NULL;
}

static void conn_flow_update(struct conn *conn)
{
    bool wants = conn->stage == CONN_LINGER || (conn->protocol->wants_data(conn) && !conn_has_input(conn));
    /* A peer that has sent nothing ahead is left unpaused, whatever the stage: pausing it would save nothing. */
    bool must_pause =
        conn->stage == CONN_OPEN && !wants && (conn_has_input(conn) || exchange_is_throttled(conn->exchange));
    if (must_pause && !conn->is_paused) {
        conn->is_paused = true;
        rx_pause(conn->listener->rx, conn->id);
    } else if (wants && conn->is_paused) {
        conn->is_paused = false;
        rx_resume(conn->listener->rx, conn->id);
    }
}

/* ---- TLS ------------------------------------------------------------------------------------------------------- */

/* Hands ciphertext to the backend as far as it takes sends. */
static void conn_tls_flush(struct conn *conn)
{
    struct iovec iov;
    while (conn->sends < RX_SENDS_MAX && tls_next(conn->tls, &iov)) {
        if (rx_send(conn->listener->rx, conn->id, &iov, 1, 0) < 0) {
            conn->tls->sending--; /* The connection is going: the block is reported when it is gone. */
            return;
        }
        conn->sends++;
    }
}

/* The peer's stream ended without close_notify: whatever is under way is not complete. */
static void conn_tls_truncated(struct conn *conn)
{
    const struct exchange *x = conn->exchange;
    if (x == NULL) {
        conn_close(conn);
    } else if (x->stage == EXCHANGE_HEAD || x->stage == EXCHANGE_BODY) {
        conn_abort(conn);
    } /* Otherwise the request was complete by its own framing and may still be answered. */
}

static bool conn_tls_no_more(struct conn *conn)
{
    if (conn->cipher_first != NULL) {
        tls_feed(conn->tls, &conn->cipher_first->slice);
        conn_cipher_pop(conn);
        return true;
    }
    if (conn->is_fin) {
        conn_tls_truncated(conn);
    }
    return false;
}

static bool conn_tls_take(struct conn *conn, const struct slice *slice)
{
    store_port_copied_add(conn->worker->port, STORE_COPY_TLS, slice->len);
    if (!conn_inbox_put(conn, slice)) {
        slice_release(slice);
        conn_abort(conn);
        return false;
    }
    return true;
}

/* Decrypts until there is something for the protocol: true when there is. */
static bool conn_tls_pump(struct conn *conn)
{
    struct worker *worker = conn->worker;
    while (conn_inbox_is_empty(conn) && conn->stage == CONN_OPEN && !conn->is_eof) {
        struct slice slice;
        enum tls_status status = tls_read(conn->tls, &worker->tls_buffers, &slice);
        conn_tls_flush(conn);
        if (status == TLS_DATA) {
            return conn_tls_take(conn, &slice);
        }
        if (status == TLS_BUSY && !list_is_linked(&conn->tls_waiter)) {
            list_append(&worker->tls_waiters, &conn->tls_waiter);
        } else if (status == TLS_CLOSED) {
            conn->is_eof = true;
            return true;
        } else if (status == TLS_FAILED) {
            conn_close(conn);
        }
        if (status != TLS_MORE || !conn_tls_no_more(conn)) {
            return false;
        }
    }
    return false;
}

static void conn_tls_run(struct conn *conn)
{
    bool has_more = true;
    while (has_more && conn->stage == CONN_OPEN) { /* Each round uses ciphertext that is there. */
        bool was_established = conn->tls->is_established;
        has_more = conn_tls_pump(conn);
        if (conn->stage != CONN_OPEN || !conn->tls->is_established) {
            return;
        }
        if (!was_established) {
            conn_timer_set(conn, TIME_NEVER); /* The handshake's; the protocol sets its own. */
        }
        conn->protocol->run(conn);
        has_more = has_more && conn_inbox_is_empty(conn);
    }
}

void conn_run(struct conn *conn)
{
    CHECK(conn->magic == CONN_MAGIC);
    if (conn->stage == CONN_OPEN && conn->tls != NULL) {
        conn_tls_run(conn);
    } else if (conn->stage == CONN_OPEN) {
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
    if (conn->tls != NULL) {
        bool is_queued = tls_write(conn->tls, iov, iov_count, cookie);
        conn_tls_flush(conn);
        return is_queued;
    }
    int rc = rx_send(conn->listener->rx, conn->id, iov, iov_count, cookie);
    CHECK(rc != -EAGAIN); /* The protocols keep fewer than RX_SENDS_MAX in flight. */
    if (rc < 0) {
        return false;
    }
    conn->sends++;
    return true;
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
    list_remove(&conn->tls_waiter);
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
    if (conn->tls != NULL) {
        tls_end(conn->tls);
        conn_tls_flush(conn);
    }
    if (conn->is_fin) {
        conn_closing(conn, false);
        return;
    }
    conn_stage_set(conn, CONN_LINGER);
    conn->received_ns = conn->worker->now_ns;
    list_remove(&conn->waiter);
    list_remove(&conn->tls_waiter);
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
    } else if (conn->stage == CONN_OPEN && conn->tls != NULL && !conn->tls->is_established) {
        metrics_add(&conn->listener->cells->timeouts[METRICS_TIMEOUT_TLS], 1);
        conn_abort(conn);
    } else if (conn->stage == CONN_OPEN) {
        conn->protocol->timeout(conn);
        conn_run(conn);
    }
}

/* Blocks that never reached the backend are reported to those who wait for them. */
static void conn_tls_free(struct conn *conn)
{
    while (conn->tls->queued > 0) {
        conn->tls->sending = 1;
        uint64_t cookie = tls_sent(conn->tls);
        conn->tls->sending = 0;
        if (cookie != TLS_COOKIE) {
            conn->protocol->sent(conn, cookie, -ECANCELED);
        }
    }
    tls_close(conn->tls);
    pool_give(&conn->worker->tls_conns, conn->tls);
    conn->tls = NULL;
}

static void conn_free(struct conn *conn)
{
    struct worker *worker = conn->worker;
    if (conn->stage != CONN_CLOSING) { /* The backend ended it by itself. */
        conn_let_go(conn);
    }
    CHECK(conn->sends == 0);
    if (conn->tls != NULL) {
        conn_tls_free(conn);
    }
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
    bool is_kept = conn->tls != NULL ? conn_cipher_put(conn, slice) : conn_inbox_put(conn, slice);
    if (!is_kept) {
        slice_release(slice);
        metrics_add(&conn->listener->cells->limits_hit[METRICS_LIMIT_CONNECTIONS], 1);
        conn_abort(conn);
        return;
    }
    conn_run(conn);
}

static void conn_eof(struct conn *conn)
{
    conn->is_fin = true;
    conn->is_eof |= conn->tls == NULL; /* With TLS only close_notify ends the stream. */
    if (conn->stage == CONN_LINGER) {
        conn_closing(conn, false);
    } else {
        conn_run(conn);
    }
}

static void conn_sent(struct conn *conn, uint64_t cookie, int error)
{
    CHECK(conn->sends > 0);
    conn->sends--;
    if (conn->tls != NULL) {
        cookie = tls_sent(conn->tls);
        conn_tls_flush(conn);
    }
    if (conn->tls == NULL || cookie != TLS_COOKIE) {
        conn->protocol->sent(conn, cookie, error);
    }
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
        conn_eof(conn);
        break;
    case RX_RESET:
        conn_closing(conn, true);
        break;
    case RX_SENT:
        conn_sent(conn, event->cookie, event->error);
        break;
    case RX_CLOSED:
        conn_free(conn);
        break;
    case RX_OPEN:
        CHECK(event->kind != RX_OPEN); /* The worker handles it. */
        break;
    }
}
