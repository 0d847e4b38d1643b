/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls_rx: the receive backend's face: opening, the poll, and the calls of the consumer. See tls_rx.h.
 *
 * Ids are those of the inner instance: a connection here lives exactly as long as the one below it.
 */
#include "server/tls_rx.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/tls_int.h"

#define TLS_BUFFER_DEFAULT (128 * KIB)
#define TLS_BUFFER_MIN (4 * KIB)
#define TLS_BUFFER_MAX (1 * MIB)
/* two records: a connection that waits with ciphertext pins one of these */
#define TLS_INNER_BUFFER (32 * KIB)
#define TLS_CLOSE_WAITS_MAX 1000
#define TLS_CLOSE_WAIT_NS (10 * NS_PER_MS)

static struct tls_conn *tls_conn_live(struct rx *rx, struct rx_id id)
{
    struct tls_conn *conn = &tls_of(rx)->conns[id.index];
    CHECK(conn->stage != TLS_FREE);
    CHECK(conn->id.generation == id.generation);
    return conn;
}

/* ---- waking --------------------------------------------------------------------------------------------------- */

static void tls_wake_handler(void *ctx, void *op, const struct io_uring_cqe *cqe)
{
    (void)ctx; /* Several instances of one ring share the class; the operation knows its own. */
    struct tls_wake *wake = op;
    if ((cqe->flags & IORING_CQE_F_MORE) == 0) {
        wake->is_armed = false;
    }
}

static void tls_wake_arm(struct tls_rx *tls)
{
    if (tls->wake.is_armed) {
        return;
    }
    struct io_uring_sqe *sqe = uring_sqe(tls->uring);
    io_uring_prep_poll_multishot(sqe, helper_event_fd(&tls->helper), POLLIN);
    uring_sqe_bind(sqe, URING_CLASS_FILTER, &tls->wake);
    tls->wake.is_armed = true;
}

/* The ring must not name our memory any more. */
static void tls_wake_close(struct tls_rx *tls)
{
    if (!tls->wake.is_armed) {
        return;
    }
    struct io_uring_sqe *sqe = uring_sqe(tls->uring);
    io_uring_prep_poll_remove(sqe, (uint64_t)(uintptr_t)&tls->wake | URING_CLASS_FILTER);
    uring_sqe_bind(sqe, URING_CLASS_NONE, NULL);
    for (int i = 0; tls->wake.is_armed && i < TLS_CLOSE_WAITS_MAX; i++) {
        CHECK(uring_submit_and_wait(tls->uring, TLS_CLOSE_WAIT_NS) == 0);
        uring_reap(tls->uring, UINT32_MAX);
    }
    CHECK(!tls->wake.is_armed);
}

/* ---- open ----------------------------------------------------------------------------------------------------- */

/* A quarter of the area is for ciphertext, which stays only until it is decrypted. */
static int tls_geometry(const struct rx_options *options, struct rx_options *inner, struct rx_info *info,
                        struct err *err)
{
    uint64_t size = options->buffer_size == 0 ? TLS_BUFFER_DEFAULT : options->buffer_size;
    char text[BYTES_SIZE_TEXT_MAX];
    if (!bytes_is_power_of_two(size) || size < TLS_BUFFER_MIN || size > TLS_BUFFER_MAX) {
        return err_set(err, -EINVAL, "rx_buffer_size %s: a power of two from 4KiB to 1MiB is allowed",
                       bytes_format_size(size, text));
    }
    inner->buffer_size = (uint32_t)(size < TLS_INNER_BUFFER ? size : TLS_INNER_BUFFER);
    inner->area_size = bytes_round_up(options->area_size / 4, inner->buffer_size);
    if (inner->area_size < 2ULL * inner->buffer_size) {
        inner->area_size = 2ULL * inner->buffer_size;
    }
    inner->conn_buffers_max = 0; /* We stop reading a connection whose ciphertext waits. */
    inner->filter = NULL;
    uint64_t left = options->area_size > inner->area_size ? options->area_size - inner->area_size : 0;
    if (left / size < 2) {
        return err_set(
            err, -EINVAL,
            "rx_area_size %s: with TLS a quarter holds ciphertext, and two buffers of rx_buffer_size "
            "must fit in the rest",
            bytes_format_size(options->area_size, text));
    }
    *info = (struct rx_info){.path = "socket",
                             .flow = RX_FLOW_READ,
                             .buffer_size = (uint32_t)size,
                             .buffers_total = (uint32_t)(left / size),
                             .conns_max = options->conns_max,
                             .copies = true};
    inner->area_offset = options->area_offset + info->buffers_total * size;
    return 0;
}

static int tls_memory(struct tls_rx *tls)
{
    uint32_t count = tls->rx.info.conns_max;
    tls->conns = calloc(count, sizeof(*tls->conns));
    tls->rings = calloc(count, TLS_OUT_SIZE);
    tls->bio_method = tls_bio_method_new();
    if (tls->conns == NULL || tls->rings == NULL || tls->bio_method == NULL) {
        return -ENOMEM;
    }
    return tls_buffers_open(tls);
}

static void tls_free(struct tls_rx *tls)
{
    tls_buffers_close(tls);
    BIO_meth_free(tls->bio_method);
    free(tls->rings);
    free(tls->conns);
    free(tls);
}

static void tls_init(struct tls_rx *tls, const struct rx_options *options)
{
    tls->options = *(const struct tls_rx_options *)options->filter;
    tls->uring = options->uring;
    tls->area = options->arena->base + options->area_offset;
    tls->buf_index = options->arena->buf_index;
    list_init(&tls->dirty);
    list_init(&tls->handshakes);
    list_init(&tls->starved);
    list_init(&tls->over);
}

static int tls_open(const struct rx_options *options, struct rx **out, struct err *err)
{
    CHECK(options->filter != NULL);
    struct rx_options inner = *options;
    struct tls_rx *tls = aligned_alloc(64, bytes_round_up(sizeof(*tls), 64));
    if (tls == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    memset(tls, 0, sizeof(*tls));
    tls->rx.ops = &tls_rx_ops;
    tls_init(tls, options);
    int rc = tls_geometry(options, &inner, &tls->rx.info, err);
    if (rc < 0) {
        goto release;
    }
    tls->conn_buffers_max =
        options->conn_buffers_max > 0 ? options->conn_buffers_max : tls->rx.info.buffers_total;
    rc = tls_memory(tls);
    if (rc < 0) {
        (void)err_set(err, rc, "no memory for %u TLS connections; lower connections_max", options->conns_max);
        goto release;
    }
    rc = tls_helper_open(tls);
    if (rc < 0) {
        (void)err_set(err, rc, "cannot start the handshake thread: %s", err_text(rc));
        goto release;
    }
    rc = rx_open(&rx_socket_ops, &inner, &tls->inner, err);
    if (rc < 0) {
        goto close_helper;
    }
    uring_handler_set(tls->uring, URING_CLASS_FILTER, tls_wake_handler, NULL);
    tls->rx.magic = RX_MAGIC;
    *out = &tls->rx;
    return 0;

close_helper:
    tls_helper_close(tls);
release:
    tls_free(tls);
    return rc;
}

static void tls_close(struct rx *rx)
{
    struct tls_rx *tls = tls_of(rx);
    tls_wake_close(tls);
    tls_helper_close(tls);
    for (uint32_t i = 0; i < rx->info.conns_max; i++) {
        if (tls->conns[i].stage != TLS_FREE) {
            tls_conn_end(&tls->conns[i]);
        }
    }
    rx_close(tls->inner); /* Its sends read our rings until here. */
    rx->magic = 0;
    tls_free(tls);
}

/* ---- the poll ------------------------------------------------------------------------------------------------- */

static void tls_accepted(struct tls_rx *tls, const struct rx_event *inner, struct rx_event *event)
{
    struct tls_conn *conn = &tls->conns[inner->id.index];
    CHECK(conn->stage == TLS_FREE);
    memset(conn, 0, sizeof(*conn));
    conn->tls = tls;
    conn->id = inner->id;
    conn->stage = TLS_HANDSHAKE;
    conn->job_result = -1;
    conn->buffer = -1;
    conn->out = tls->rings + (size_t)inner->id.index * TLS_OUT_SIZE;
    conn->deadline_ns = tls->now_ns + tls->options.handshake_timeout_ns;
    list_init(&conn->dirty_node);
    list_init(&conn->wait_node);
    list_init(&conn->handshake_node);
    list_append(&tls->handshakes, &conn->handshake_node);
    if (tls_conn_begin(tls, conn) < 0) {
        conn->stage = TLS_REFUSED;
        conn->is_timed_out = true; /* Reset at the next step: there is nothing to talk with. */
        tls_mark_dirty(conn);
    }
    *event = (struct rx_event){.kind = RX_OPEN, .id = conn->id};
    event->peer = inner->peer;
    event->local = inner->local;
}

/* True: `event` is ours to tell. */
static bool tls_inner_event(struct tls_rx *tls, const struct rx_event *inner, struct rx_event *event)
{
    if (inner->kind == RX_OPEN) {
        tls_accepted(tls, inner, event);
        return true;
    }
    struct tls_conn *conn = &tls->conns[inner->id.index];
    CHECK(conn->id.generation == inner->id.generation);
    if (inner->kind != RX_CLOSED) {
        tls_conn_inner(conn, inner);
        return false;
    }
    *event = (struct rx_event){.kind = RX_CLOSED, .id = conn->id, .user = conn->user};
    tls_conn_end(conn);
    return true;
}

static void tls_deadlines(struct tls_rx *tls)
{
    LIST_FOR_EACH_SAFE(node, &tls->handshakes)
    {
        struct tls_conn *conn = CONTAINER_OF(node, struct tls_conn, handshake_node);
        if (conn->deadline_ns > tls->now_ns) {
            return; /* All have the same timeout, so the first is the next. */
        }
        list_remove(node);
        conn->is_timed_out = true;
        tls_mark_dirty(conn);
    }
}

/* What is counted below is ours too: connections and bytes on the wire are the same. */
static void tls_mirror(struct tls_rx *tls)
{
    struct rx_stats *to = &tls->rx.stats;
    const struct rx_stats *from = &tls->inner->stats;
    metrics_set(&to->conns_opened, from->conns_opened);
    metrics_set(&to->conns_refused, from->conns_refused);
    metrics_set(&to->conns_open, from->conns_open);
    metrics_set(&to->received_bytes, from->received_bytes);
    metrics_set(&to->sent_bytes, from->sent_bytes);
    metrics_set(&to->kernel_copied_bytes, from->kernel_copied_bytes);
    metrics_set(&to->accept_errors, from->accept_errors);
    metrics_set(&to->starved, tls->starved_count + from->starved);
}

static int tls_poll(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max)
{
    struct tls_rx *tls = tls_of(rx);
    struct rx_event inner[TLS_INNER_EVENTS];
    uint32_t count = 0;
    uint32_t share = (max + 1) / 2; /* so that what arrives never keeps the rest from being told */
    tls->now_ns = now_ns;
    tls_wake_arm(tls);
    int got = rx_poll(tls->inner, now_ns, inner, share < TLS_INNER_EVENTS ? share : TLS_INNER_EVENTS);
    if (got < 0) {
        return got;
    }
    for (int i = 0; i < got; i++) {
        count += tls_inner_event(tls, &inner[i], &events[count]) ? 1 : 0;
    }
    tls_helper_collect(tls);
    tls_deadlines(tls);
    tls_buffers_wake(tls);
    while (count < max && !list_is_empty(&tls->dirty)) {
        struct tls_conn *conn = CONTAINER_OF(list_take_first(&tls->dirty), struct tls_conn, dirty_node);
        count += tls_conn_step(conn, &events[count]) ? 1 : 0;
    }
    tls_mirror(tls);
    return (int)count;
}

static uint64_t tls_deadline(struct rx *rx)
{
    struct tls_rx *tls = tls_of(rx);
    if (!list_is_empty(&tls->dirty) || tls->may_wake) {
        return 0;
    }
    uint64_t deadline_ns = rx_deadline(tls->inner);
    if (!list_is_empty(&tls->handshakes)) {
        const struct tls_conn *first = CONTAINER_OF(tls->handshakes.next, struct tls_conn, handshake_node);
        deadline_ns = first->deadline_ns < deadline_ns ? first->deadline_ns : deadline_ns;
    }
    return deadline_ns;
}

/* ---- the consumer's calls ------------------------------------------------------------------------------------- */

static void tls_user_set(struct rx *rx, struct rx_id id, void *user)
{
    tls_conn_live(rx, id)->user = user;
}

static void tls_pause(struct rx *rx, struct rx_id id)
{
    tls_conn_live(rx, id)->is_paused = true;
}

static void tls_resume(struct rx *rx, struct rx_id id)
{
    struct tls_conn *conn = tls_conn_live(rx, id);
    conn->is_paused = false;
    tls_mark_dirty(conn);
}

static int tls_send(struct rx *rx, struct rx_id id, const struct iovec *iov, uint32_t iov_count,
                    uint64_t cookie)
{
    struct tls_conn *conn = tls_conn_live(rx, id);
    if (conn->send_error != 0 || conn->wants_fin) {
        return -EPIPE;
    }
    if (conn->send_tail - conn->send_head == RX_SENDS_MAX) {
        return -EAGAIN;
    }
    struct tls_send *send = &conn->sends[conn->send_tail++ % RX_SENDS_MAX];
    *send = (struct tls_send){.iov_count = iov_count, .cookie = cookie};
    memcpy(send->iov, iov, sizeof(*iov) * iov_count);
    tls_mark_dirty(conn);
    return 0;
}

static int tls_send_recall(struct rx *rx, struct rx_id id)
{
    struct tls_conn *conn = tls_conn_live(rx, id);
    conn->is_recalled = true;
    tls_mark_dirty(conn);
    return 0;
}

static uint64_t tls_acked(struct rx *rx, struct rx_id id)
{
    const struct tls_conn *conn = tls_conn_live(rx, id);
    return conn->is_inner_closing ? 0 : rx_acked(tls_of(rx)->inner, id);
}

static void tls_shutdown(struct rx *rx, struct rx_id id)
{
    struct tls_conn *conn = tls_conn_live(rx, id);
    conn->wants_fin = true;
    tls_mark_dirty(conn);
}

static void tls_conn_close(struct rx *rx, struct rx_id id, bool abortive)
{
    struct tls_conn *conn = tls_conn_live(rx, id);
    conn->is_closing = true;
    if (abortive && !conn->is_inner_closing) {
        conn->is_abortive = true;
        if (conn->send_error == 0) {
            conn->send_error = -ECANCELED;
        }
    } else if (abortive) {
        rx_conn_close(tls_of(rx)->inner, id, true);
    }
    tls_mark_dirty(conn);
}

static void tls_accept_stop(struct rx *rx)
{
    rx_accept_stop(tls_of(rx)->inner);
}

const struct rx_ops tls_rx_ops = {
    .path = "socket",
    .open = tls_open,
    .close = tls_close,
    .poll = tls_poll,
    .deadline = tls_deadline,
    .user_set = tls_user_set,
    .pause = tls_pause,
    .resume = tls_resume,
    .send = tls_send,
    .send_recall = tls_send_recall,
    .acked = tls_acked,
    .shutdown = tls_shutdown,
    .conn_close = tls_conn_close,
    .accept_stop = tls_accept_stop,
};
