/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls_conn: one connection between OpenSSL, the inner backend and the consumer.
 *
 * Ciphertext in: slices of the inner backend wait in `in`; the BIO reads from them, and the inner connection is paused
 * while any waits. Ciphertext out: the BIO writes into the ring `out`, from which inner sends go. Work is found by
 * tls_conn_step, which goes from the most urgent to the least and tells one event at a time.
 *
 * Invariants
 *  1. While a connection is lent to the helper (is_lent) nothing here touches its SSL, in_read, in_at or out_tail.
 *  2. A record is encrypted only when the ring has room for all of it, so OpenSSL never holds half a record.
 *  3. rx_conn_close of the inner connection is called once, never while lent, and when every send was reported;
 *     so the inner RX_CLOSED is ours.
 */
#include <errno.h>
#include <openssl/err.h>
#include <string.h>

#include "server/tls_int.h"
#include "storage/store.h"

/* ---- the BIO -------------------------------------------------------------------------------------------------- */

static int tls_bio_read(BIO *bio, char *to, int want)
{
    struct tls_conn *conn = BIO_get_data(bio);
    uint32_t got = 0;
    BIO_clear_retry_flags(bio);
    while (got < (uint32_t)want && conn->in_read != conn->in_limit) {
        const struct slice *slice = &conn->in[conn->in_read % TLS_IN_SLICES];
        uint32_t len = slice->len - conn->in_at;
        len = len < (uint32_t)want - got ? len : (uint32_t)want - got;
        memcpy(to + got, slice->addr + conn->in_at, len);
        got += len;
        conn->in_at += len;
        if (conn->in_at == slice->len) {
            conn->in_at = 0;
            conn->in_read++; /* The worker releases it: tls_conn_settle. */
        }
    }
    if (got == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    return (int)got;
}

static uint32_t tls_ring_put(struct tls_conn *conn, const void *bytes, uint32_t len)
{
    uint64_t room = conn->out_limit - conn->out_tail;
    uint32_t place = (uint32_t)(conn->out_tail % TLS_OUT_SIZE);
    len = len < room ? len : (uint32_t)room;
    uint32_t first = len < TLS_OUT_SIZE - place ? len : TLS_OUT_SIZE - place;
    memcpy(conn->out + place, bytes, first);
    memcpy(conn->out, (const uint8_t *)bytes + first, len - first);
    conn->out_tail += len;
    return len;
}

static int tls_bio_write(BIO *bio, const char *from, int len)
{
    uint32_t put = tls_ring_put(BIO_get_data(bio), from, (uint32_t)len);
    BIO_clear_retry_flags(bio);
    if (put == 0) {
        BIO_set_retry_write(bio);
        return -1;
    }
    return (int)put;
}

static long tls_bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0; /* What was written is on its way; nothing else applies. */
}

BIO_METHOD *tls_bio_method_new(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "slices and ring");
    if (method != NULL &&
        (BIO_meth_set_read(method, tls_bio_read) != 1 || BIO_meth_set_write(method, tls_bio_write) != 1 ||
         BIO_meth_set_ctrl(method, tls_bio_ctrl) != 1)) {
        BIO_meth_free(method);
        return NULL;
    }
    return method;
}

/* ---- lending and settling ------------------------------------------------------------------------------------- */

void tls_conn_lend(struct tls_conn *conn)
{
    conn->in_limit = conn->in_tail;
    conn->out_limit = conn->out_sent + TLS_OUT_SIZE;
    ERR_clear_error();
}

/* Reading goes on while no ciphertext waits, or when what comes is dropped anyway. */
static void tls_inner_flow(struct tls_conn *conn)
{
    if (conn->is_inner_closing) {
        return;
    }
    bool must_pause = conn->in_released != conn->in_tail;
    if (must_pause != conn->is_inner_paused) {
        conn->is_inner_paused = must_pause;
        if (must_pause) {
            rx_pause(conn->tls->inner, conn->id);
        } else {
            rx_resume(conn->tls->inner, conn->id);
        }
    }
}

void tls_conn_settle(struct tls_conn *conn)
{
    while (conn->in_released != conn->in_read) {
        slice_release(&conn->in[conn->in_released++ % TLS_IN_SLICES]);
    }
    tls_inner_flow(conn);
}

/* Input that nobody will decrypt. */
static void tls_in_drop(struct tls_conn *conn)
{
    conn->in_read = conn->in_tail;
    conn->in_at = 0;
    conn->has_input = false;
    tls_conn_settle(conn);
}

/* ---- begin and end -------------------------------------------------------------------------------------------- */

int tls_conn_begin(struct tls_rx *tls, struct tls_conn *conn)
{
    conn->ssl = tls_context_ssl(tls->options.context);
    BIO *bio = conn->ssl == NULL ? NULL : BIO_new(tls->bio_method);
    if (bio == NULL) {
        SSL_free(conn->ssl);
        conn->ssl = NULL;
        return -ENOMEM;
    }
    BIO_set_data(bio, conn);
    BIO_set_init(bio, 1);
    SSL_set_bio(conn->ssl, bio, bio); /* The SSL owns it from here on. */
    return 0;
}

void tls_conn_end(struct tls_conn *conn)
{
    CHECK(!conn->is_lent);
    conn->is_inner_closing = true; /* No flow control any more: the inner connection is gone. */
    tls_in_drop(conn);
    if (conn->buffer != -1) {
        tls_buffer_detach(conn);
    }
    list_remove(&conn->dirty_node);
    list_remove(&conn->wait_node);
    list_remove(&conn->handshake_node);
    SSL_free(conn->ssl);
    conn->ssl = NULL;
    conn->stage = TLS_FREE;
}

/* ---- what the inner backend tells ----------------------------------------------------------------------------- */

static void tls_inner_data(struct tls_conn *conn, const struct slice *slice)
{
    /* A connection that is closed before its handshake is over may still owe sends, so that goes on. */
    bool is_needed = !conn->is_closing || (conn->stage == TLS_HANDSHAKE && !conn->is_abortive);
    if (conn->stage == TLS_REFUSED || conn->is_ended || !is_needed) {
        slice_release(slice);
        return;
    }
    CHECK(conn->in_tail - conn->in_released <
          TLS_IN_SLICES); /* The inner connection was paused at the first. */
    conn->in[conn->in_tail++ % TLS_IN_SLICES] = *slice;
    conn->has_input = true;
    tls_inner_flow(conn);
}

static void tls_end_set(struct tls_conn *conn, enum tls_end end, int error)
{
    conn->is_ended = true;
    conn->end = end;
    conn->end_error = error;
    if (end == TLS_END_RESET && conn->send_error == 0) {
        conn->send_error = error;
    }
}

void tls_conn_inner(struct tls_conn *conn, const struct rx_event *event)
{
    switch (event->kind) {
    case RX_DATA:
        tls_inner_data(conn, &event->slice);
        break;
    case RX_EOF:
        conn->is_inner_eof = true;
        break;
    case RX_RESET:
        tls_end_set(conn, TLS_END_RESET, event->error);
        break;
    case RX_SENT:
        CHECK(conn->inner_sends > 0);
        conn->inner_sends--;
        conn->out_sent += event->cookie; /* The cookie is the length, and sends complete in order. */
        if (event->error != 0 && conn->send_error == 0) {
            conn->send_error = event->error;
        }
        break;
    default:
        CHECK(!"an event of an open connection");
    }
    tls_mark_dirty(conn);
}

/* ---- sending -------------------------------------------------------------------------------------------------- */

/* Hands ciphertext to the inner connection. */
static void tls_out_flush(struct tls_conn *conn)
{
    while (conn->out_queued != conn->out_tail && conn->inner_sends < TLS_INNER_SENDS &&
           !conn->is_inner_shut && !conn->is_inner_closing) {
        uint32_t len = (uint32_t)(conn->out_tail - conn->out_queued);
        uint32_t place = (uint32_t)(conn->out_queued % TLS_OUT_SIZE);
        uint32_t first = len < TLS_OUT_SIZE - place ? len : TLS_OUT_SIZE - place;
        struct iovec iov[2] = {{conn->out + place, first}, {conn->out, len - first}};
        if (rx_send(conn->tls->inner, conn->id, iov, len > first ? 2 : 1, len) < 0) {
            if (conn->send_error == 0) {
                conn->send_error = -EPIPE;
            }
            return;
        }
        conn->out_queued += len;
        conn->inner_sends++;
    }
}

static bool tls_out_has_room(const struct tls_conn *conn)
{
    return conn->out_sent + TLS_OUT_SIZE - conn->out_tail >= TLS_RECORD_ROOM;
}

/* One record of the oldest send that is not encrypted. False: it failed. */
static bool tls_encrypt_record(struct tls_conn *conn, struct tls_send *send)
{
    struct iovec *iov = &send->iov[send->iov_at];
    size_t len = iov->iov_len < TLS_RECORD_MAX ? iov->iov_len : TLS_RECORD_MAX;
    size_t written = 0;
    tls_conn_lend(conn);
    int rc = SSL_write_ex(conn->ssl, iov->iov_base, len, &written);
    ERR_clear_error();
    if (rc != 1) {
        conn->send_error = -EPROTO;
        return false;
    }
    send->sent += written;
    iov->iov_base = (uint8_t *)iov->iov_base + written;
    iov->iov_len -= written;
    if (iov->iov_len == 0) {
        send->iov_at++;
    }
    return true;
}

static void tls_encrypt(struct tls_conn *conn)
{
    while (conn->send_encrypted != conn->send_tail && conn->send_error == 0 && !conn->is_recalled &&
           tls_out_has_room(conn)) {
        struct tls_send *send = &conn->sends[conn->send_encrypted % RX_SENDS_MAX];
        if (!tls_encrypt_record(conn, send)) {
            return;
        }
        if (send->iov_at == send->iov_count) {
            send->out_end = conn->out_tail;
            conn->send_encrypted++;
        }
    }
}

/* close_notify after the last send: the peer knows then that it has everything. */
static void tls_notify(struct tls_conn *conn)
{
    bool is_last = conn->wants_fin || (conn->is_closing && !conn->is_abortive);
    if (!is_last || conn->is_notified || conn->stage != TLS_OPEN || conn->send_encrypted != conn->send_tail ||
        conn->send_error != 0 || !tls_out_has_room(conn)) {
        return;
    }
    tls_conn_lend(conn);
    (void)SSL_shutdown(conn->ssl); /* 0: written, the peer's has not come; it need not. */
    ERR_clear_error();
    conn->is_notified = true;
}

/* FIN when the ring is empty and nothing more will be put into it. */
static void tls_fin(struct tls_conn *conn)
{
    bool is_last =
        conn->stage == TLS_REFUSED || (conn->wants_fin && (conn->is_notified || conn->send_tail == 0));
    if (is_last && conn->out_queued == conn->out_tail && !conn->is_inner_shut && !conn->is_inner_closing) {
        conn->is_inner_shut = true;
        rx_shutdown(conn->tls->inner, conn->id);
    }
}

/* The oldest send, if it is over. What was encrypted is ours: a recalled send is over wherever it stopped. */
static bool tls_send_report(struct tls_conn *conn, struct rx_event *event)
{
    if (conn->send_head == conn->send_tail) {
        return false;
    }
    const struct tls_send *send = &conn->sends[conn->send_head % RX_SENDS_MAX];
    bool is_encrypted = conn->send_head != conn->send_encrypted;
    bool is_sent = is_encrypted && (conn->out_sent >= send->out_end || conn->is_recalled);
    if (!is_sent && conn->send_error == 0 && !conn->is_recalled) {
        return false;
    }
    *event = (struct rx_event){.kind = RX_SENT, .id = conn->id, .user = conn->user};
    event->cookie = send->cookie;
    event->error = conn->send_error != 0 || is_sent ? conn->send_error : -EAGAIN;
    event->sent = send->sent;
    conn->send_head++;
    if ((int32_t)(conn->send_head - conn->send_encrypted) > 0) {
        conn->send_encrypted = conn->send_head; /* It failed before it was encrypted. */
    }
    return true;
}

/* After a recall: is everything that was encrypted with TCP? */
static bool tls_room_report(struct tls_conn *conn, struct rx_event *event)
{
    if (!conn->is_recalled || conn->send_head != conn->send_tail || conn->out_sent != conn->out_tail ||
        conn->send_error != 0 || conn->is_closing || conn->is_reset) {
        return false;
    }
    conn->is_recalled = false;
    *event = (struct rx_event){.kind = RX_ROOM, .id = conn->id, .user = conn->user};
    return true;
}

/* ---- handshake ------------------------------------------------------------------------------------------------ */

static void tls_count(_Atomic uint64_t *cell)
{
    metrics_add(cell, 1);
}

/* What a browser or tool that spoke plain HTTP gets to read. */
static void tls_answer_http(struct tls_conn *conn)
{
    static const char answer[] =
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 48\r\n"
        "Connection: close\r\n\r\nThis port speaks TLS. Use https:// in the URL.\r\n";
    conn->out_tail = conn->out_queued; /* An alert that nobody on that side could read. */
    tls_conn_lend(conn);
    (void)tls_ring_put(conn, answer, sizeof(answer) - 1); /* The ring is empty but for this. */
}

static void tls_refuse(struct tls_conn *conn)
{
    conn->stage = TLS_REFUSED;
    conn->send_error = conn->send_error == 0 ? -EPROTO : conn->send_error;
    if (conn->job_is_http) {
        tls_answer_http(conn);
    }
    tls_in_drop(conn);
    if (conn->tls->options.cells != NULL) {
        tls_count(&conn->tls->options.cells->tls_failures);
    }
}

/* The helper has given the connection back. */
static void tls_handshake_result(struct tls_conn *conn)
{
    int result = conn->job_result;
    conn->job_result = -1;
    tls_conn_settle(conn);
    if (result == SSL_ERROR_NONE) {
        conn->stage = TLS_OPEN;
        conn->has_input = true; /* Records may have come with the last flight. */
        list_remove(&conn->handshake_node);
        if (conn->tls->options.cells != NULL) {
            tls_count(&conn->tls->options.cells->tls_handshakes);
        }
    } else if (result == SSL_ERROR_WANT_WRITE) {
        conn->has_input = true; /* To be called again when the ring has emptied. */
    } else if (result != SSL_ERROR_WANT_READ) {
        tls_refuse(conn);
    }
}

static void tls_handshake(struct tls_conn *conn)
{
    if (conn->job_result >= 0) {
        tls_handshake_result(conn);
    }
    if (conn->stage == TLS_HANDSHAKE && conn->has_input && !conn->is_ended && !conn->is_abortive &&
        tls_out_has_room(conn)) {
        tls_helper_submit(conn);
    }
}

/* FIN or too late before the handshake was over; and the end of a refused connection. */
static void tls_handshake_end(struct tls_conn *conn)
{
    if ((conn->stage != TLS_HANDSHAKE && conn->stage != TLS_REFUSED) || conn->is_ended) {
        return;
    }
    bool is_refused = conn->stage == TLS_REFUSED;
    if (conn->is_timed_out) {
        tls_end_set(conn, TLS_END_RESET, is_refused ? -EPROTO : -ETIMEDOUT);
    } else if (conn->is_inner_eof && !conn->is_lent && !conn->has_input) {
        tls_end_set(conn, TLS_END_RESET, is_refused ? -EPROTO : -ECONNABORTED);
    }
}

/* ---- receiving ------------------------------------------------------------------------------------------------ */

static void tls_read_stopped(struct tls_conn *conn, int rc)
{
    int error = SSL_get_error(conn->ssl, rc);
    ERR_clear_error();
    switch (error) {
    case SSL_ERROR_WANT_READ:
        conn->has_input = false;
        if (conn->is_inner_eof) {
            /* FIN without close_notify, as many clients end: maybe cut by an attacker, and told as that. What is whole by
             * itself gets its answer. */
            tls_end_set(conn, TLS_END_EOF, -ECONNABORTED);
        }
        break;
    case SSL_ERROR_WANT_WRITE: /* An answer of the protocol waits for the ring; has_input stays. */
        break;
    case SSL_ERROR_ZERO_RETURN:
        tls_end_set(conn, TLS_END_EOF, 0);
        break;
    default:
        tls_end_set(conn, TLS_END_RESET, -EPROTO);
        break;
    }
}

/* Decrypts into the connection's buffer until that is full or no whole record is left. */
static bool tls_read(struct tls_conn *conn, struct rx_event *event)
{
    struct tls_rx *tls = conn->tls;
    bool may_read = conn->stage == TLS_OPEN && !conn->is_paused && !conn->is_ended && !conn->is_closing;
    if (!may_read || (!conn->has_input && !conn->is_inner_eof) || !tls_buffer_want(conn)) {
        return false;
    }
    uint8_t *to = tls->area + (uint64_t)conn->buffer * tls->rx.info.buffer_size + conn->fill;
    uint32_t room = tls->rx.info.buffer_size - conn->fill;
    uint32_t got = 0;
    int rc = 1;
    while (got < room && rc > 0) { /* Each turn takes bytes or ends it. */
        tls_conn_lend(conn);
        rc = SSL_read(conn->ssl, to + got, (int)(room - got));
        got += rc > 0 ? (uint32_t)rc : 0;
    }
    if (rc <= 0) {
        tls_read_stopped(conn, rc);
    }
    tls_conn_settle(conn);
    tls_out_flush(conn); /* Reading writes, too: alerts, answers to key updates. */
    if (got == 0) {
        tls_buffer_idle(conn);
        return false;
    }
    *event = (struct rx_event){.kind = RX_DATA, .id = conn->id, .user = conn->user};
    tls_buffer_lend(conn, got, &event->slice);
    metrics_add(&tls->rx.stats.receives, 1);
    if (tls->options.port != NULL) {
        store_port_copied_add(tls->options.port, STORE_COPY_TLS, got);
    }
    return true;
}

static bool tls_end_report(struct tls_conn *conn, struct rx_event *event)
{
    enum tls_end end = conn->end;
    conn->end = TLS_END_NONE;
    if (end == TLS_END_NONE || conn->is_closing || conn->is_reset) {
        return false;
    }
    tls_buffer_idle(conn);
    *event =
        (struct rx_event){.kind = end == TLS_END_EOF ? RX_EOF : RX_RESET, .id = conn->id, .user = conn->user};
    event->error = conn->end_error;
    if (end == TLS_END_RESET) {
        conn->is_reset = true;
        metrics_add(&conn->tls->rx.stats.conns_reset, 1);
        if (conn->end_error == -ETIMEDOUT && conn->is_timed_out && conn->tls->options.cells != NULL) {
            tls_count(&conn->tls->options.cells->timeouts[METRICS_TIMEOUT_TLS]);
        }
    }
    return true;
}

/* ---- a step --------------------------------------------------------------------------------------------------- */

/* Closes the inner connection when nothing keeps ours. */
static void tls_close_step(struct tls_conn *conn)
{
    if (!conn->is_closing || conn->is_inner_closing || conn->send_head != conn->send_tail) {
        return;
    }
    bool owes = !conn->is_abortive && conn->send_error == 0 &&
                ((conn->stage == TLS_OPEN && !conn->is_notified) || conn->out_queued != conn->out_tail);
    if (owes && !conn->is_timed_out) {
        return;
    }
    tls_in_drop(conn);
    conn->is_inner_closing = true;
    rx_conn_close(conn->tls->inner, conn->id, conn->is_abortive);
}

bool tls_conn_step(struct tls_conn *conn, struct rx_event *event)
{
    if (conn->is_lent || conn->stage == TLS_FREE) {
        return false; /* tls_helper_collect makes it dirty again. */
    }
    if (conn->stage == TLS_HANDSHAKE) {
        tls_handshake(conn);
    }
    if (conn->is_lent) {
        return false;
    }
    tls_handshake_end(conn);
    if (conn->stage == TLS_OPEN) {
        tls_encrypt(conn);
        tls_notify(conn);
    }
    tls_out_flush(conn);
    tls_fin(conn);
    if (conn->is_ended && conn->in_released != conn->in_tail) {
        tls_in_drop(conn);
    }
    if (tls_send_report(conn, event) || tls_room_report(conn, event) || tls_read(conn, event) ||
        tls_end_report(conn, event)) {
        tls_mark_dirty(conn);
        return true;
    }
    tls_close_step(conn);
    return false;
}
