/* SPDX-License-Identifier: Apache-2.0 */
/* http_conn: the request cycle. See http_conn.h for the states. */
#include "server/http_conn.h"

#include <errno.h>
#include <string.h>

#include "base/peek.h"
#include "base/check.h"
#include "server/worker.h"

static uint64_t http_now(const struct exchange *x)
{
    return x->worker->now_ns;
}

static const struct conf_limits *http_limits(const struct exchange *x)
{
    return &x->listener->conf->limits;
}

struct text http_request_header(const struct exchange *x, const char *name)
{
    return http_head_find(&x->head, x->head_bytes, name);
}

/* ---- between requests ----------------------------------------------------------------------------------------- */

void http_refuse(struct conn *conn)
{
    static char answer[] =
        "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    struct iovec iov = {.iov_base = answer, .iov_len = sizeof(answer) - 1};
    CHECK(conn->exchange == NULL);
    if (!conn_send(conn, &iov, 1, 0)) {
        conn_abort(conn);
        return;
    }
    conn_timer_set(conn, conn->worker->now_ns + conn->listener->conf->limits.head_timeout_ns);
}

static bool http_step_idle(struct conn *conn)
{
    struct worker *worker = conn->worker;
    const struct conf_limits *limits = &conn->listener->conf->limits;
    if (conn->sends > 0) {
        return false; /* It is being refused. */
    }
    if (conn_inbox_is_empty(conn)) {
        if (conn->is_eof || worker->is_draining) {
            conn_close(conn);
        } else if (!timer_is_armed(&conn->timer)) {
            conn_timer_set(conn, worker->now_ns + limits->idle_timeout_ns);
        }
        return false;
    }
    struct exchange *x = exchange_take(conn);
    if (x == NULL) {
        if (!timer_is_armed(&conn->timer)) {
            conn_timer_set(conn, worker->now_ns + limits->idle_timeout_ns);
        }
        return false;
    }
    http_head_begin(&x->head, (uint32_t)limits->head_size_max);
    conn_timer_set(conn, worker->now_ns + limits->head_timeout_ns);
    return true;
}

/* ---- the head ------------------------------------------------------------------------------------------------- */

static bool http_ends_with(const struct exchange *x, const char *end)
{
    size_t len = strlen(end);
    return x->head_len >= len && memcmp(x->head_bytes + x->head_len - len, end, len) == 0;
}

/* Copies up to the end of the first empty line, so that not one byte of the body is copied with the head. */
static uint32_t http_head_copy(struct exchange *x, const struct slice *slice)
{
    uint32_t limit = (uint32_t)http_limits(x)->head_size_max;
    uint32_t used = 0;
    while (used < slice->len && x->head_len < limit) {
        uint32_t room = slice->len - used;
        room = room < limit - x->head_len ? room : limit - x->head_len;
        room = room < PEEK_MAX ? room : PEEK_MAX;
        const uint8_t *from = peek_at(slice->addr + used, room);
        const uint8_t *newline = memchr(from, '\n', room);
        uint32_t len = newline != NULL ? (uint32_t)(newline - from) + 1 : room;
        memcpy(x->head_bytes + x->head_len, from, len);
        x->head_len += len;
        used += len;
        if (newline != NULL && (http_ends_with(x, "\n\r\n") || http_ends_with(x, "\n\n"))) {
            break;
        }
    }
    return used;
}

static void http_head_refused(struct exchange *x, enum s3_error error)
{
    metrics_add(&x->listener->cells->heads_refused, 1);
    x->stage = EXCHANGE_HANDLE;
    x->response.must_close = true;
    http_respond_error(x, error);
}

static void http_head_done(struct exchange *x)
{
    if (x->head.head_size != x->head_len) {
        /* The parser saw an end where no empty line is: two readers could disagree, so nobody gets the request. */
        http_head_refused(x, S3_ERR_BAD_REQUEST);
        return;
    }
    conn_timer_set(x->conn, TIME_NEVER);
    x->stage = EXCHANGE_HANDLE;
    x->head_ns = http_now(x);
    x->body_end_ns = x->head_ns;
    x->body.is_chunked = x->head.is_chunked;
    x->body.remaining = x->head.content_length;
    x->body.is_complete = !x->head.is_chunked && x->head.content_length == 0;
    if (x->conn->is_over_limit) {
        x->response.must_close = true;
        http_respond_error(x, S3_ERR_SLOW_DOWN);
        return;
    }
    s3_dispatch(x);
}

static bool http_step_head(struct exchange *x)
{
    struct conn *conn = x->conn;
    const struct slice *slice = conn_inbox_peek(conn);
    if (slice == NULL) {
        if (conn->is_eof) {
            conn_close(conn);
        }
        return false;
    }
    uint32_t used = http_head_copy(x, slice);
    if (used > 0) {
        conn_inbox_skip(conn, used);
    }
    switch (http_head_parse(&x->head, x->head_bytes, x->head_len)) {
    case HTTP_HEAD_NEED_MORE:
        break;
    case HTTP_HEAD_DONE:
        http_head_done(x);
        break;
    case HTTP_HEAD_BAD:
        if (x->head.error == HTTP_HEAD_ERROR_TOO_LARGE) {
            metrics_add(&x->listener->cells->limits_hit[METRICS_LIMIT_HEAD_SIZE], 1);
        }
        http_head_refused(x, s3_error_from_head(x->head.error));
        break;
    }
    return true;
}

/* ---- the body ------------------------------------------------------------------------------------------------- */

uint64_t http_body_size(const struct exchange *x)
{
    if (auth_payload_is_streaming(x->payload.payload)) {
        return x->payload.decoded_length;
    }
    return x->head.is_chunked ? UINT64_MAX : x->head.content_length;
}

static void http_body_failed(struct exchange *x, enum s3_error error)
{
    x->response.must_close = true;
    if (x->ops->body_failed != NULL) {
        x->ops->body_failed(x, error);
    } else {
        http_respond_error(x, error);
    }
}

static void http_body_complete(struct exchange *x)
{
    x->body.is_complete = true;
    conn_timer_set(x->conn, TIME_NEVER);
    enum s3_error error = x->body.is_aws ? auth_chunked_finish(&x->body.aws) : S3_OK;
    if (error != S3_OK) {
        http_body_failed(x, error);
        return;
    }
    x->stage = EXCHANGE_WORK;
    x->ops->body_end(x);
}

static void http_body_timer(struct exchange *x)
{
    const struct conf_limits *limits = http_limits(x);
    uint64_t pause_end = x->conn->received_ns + limits->body_timeout_ns;
    uint64_t window_end = x->body.rate_start_ns + limits->body_rate_window_ns;
    bool has_rate = limits->body_rate_min > 0;
    conn_timer_set(x->conn, has_rate && window_end < pause_end ? window_end : pause_end);
}

static void http_body_begin(struct exchange *x)
{
    x->body.is_begun = true;
    x->body.rate_start_ns = http_now(x);
    x->body.rate_start_bytes = x->conn->received_bytes;
    x->conn->received_ns = http_now(x); /* What the client waited for us does not count against it. */
    http_chunked_begin(&x->body.chunked);
    http_body_timer(x);
}

/* RFC 9110 section 10.1.1: the 100 may be left out when body bytes are there already. Not for an empty body: botocore keeps the
 * final status that comes in place of the 100, and takes it for the answer of its next request on the connection. */
static void http_continue(struct exchange *x)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    bool has_begun = !x->body.is_complete && !conn_inbox_is_empty(x->conn);
    if (!x->head.expects_100 || has_begun) {
        return;
    }
    struct iovec iov = {.iov_base = (void *)(uintptr_t)interim, .iov_len = sizeof(interim) - 1};
    if (conn_send(x->conn, &iov, 1, HTTP_COOKIE_CONTINUE)) {
        x->response.sends++;
        x->response.is_continue_sent = true;
        metrics_add(&x->listener->cells->continues_sent, 1);
    }
}

void http_body_accept(struct exchange *x)
{
    CHECK(x->stage == EXCHANGE_HANDLE);
    x->stage = EXCHANGE_BODY;
    if (auth_payload_is_streaming(x->payload.payload)) {
        x->body.is_aws = true;
        int rc = auth_chunked_begin(&x->body.aws, &x->payload, x->is_authenticated ? &x->signing : NULL);
        if (rc < 0) {
            http_body_failed(x, S3_ERR_INTERNAL);
            return;
        }
        x->body.is_aws_begun = true;
    }
    http_continue(x);
    if (x->body.is_complete) {
        http_body_complete(x);
    } else {
        http_body_begin(x);
    }
}

/* Hands a run of payload on; takes the slice over. */
static void http_body_deliver(struct exchange *x, const struct slice *slice)
{
    x->body.payload += slice->len;
    x->ops->body(x, slice);
}

/* What comes next in the inbox is `len` bytes of the body without HTTP's framing. */
static void http_body_data(struct exchange *x, uint32_t len)
{
    if (x->body.is_aws) {
        x->body.aws_run = len;
        return;
    }
    struct slice slice;
    conn_inbox_take(x->conn, len, &slice);
    http_body_deliver(x, &slice);
}

/* Takes the next piece of aws-chunked apart, one run of payload at most: however short the runs are, an upload that is behind gets no
 * more. A step consumes a byte at least, or ends the body. */
static void http_step_aws(struct exchange *x, const struct slice *slice)
{
    struct http_chunked_span span;
    CHECK(x->body.aws_run <= slice->len);
    enum auth_chunked_status status = auth_chunked_step(&x->body.aws, slice->addr, x->body.aws_run, &span);
    x->body.aws_run -= (uint32_t)(span.skip + span.run);
    if (span.skip > 0) {
        conn_inbox_skip(x->conn, (uint32_t)span.skip);
    }
    if (status == AUTH_CHUNKED_BAD) {
        http_body_failed(x, x->body.aws.error);
    } else if (status == AUTH_CHUNKED_DONE && x->body.aws_run > 0) {
        http_body_failed(x, S3_ERR_INCOMPLETE_BODY);
    } else if (span.run > 0) {
        struct slice run;
        conn_inbox_take(x->conn, (uint32_t)span.run, &run);
        http_body_deliver(x, &run);
    }
}

static void http_step_chunked(struct exchange *x, const struct slice *slice)
{
    struct http_chunked_span span;
    enum http_chunked_status status = http_chunked_step(&x->body.chunked, slice->addr, slice->len, &span);
    if (span.skip > 0) {
        conn_inbox_skip(x->conn, (uint32_t)span.skip);
    }
    if (status == HTTP_CHUNKED_RUN && span.run > 0) {
        http_body_data(x, (uint32_t)span.run);
    } else if (status == HTTP_CHUNKED_DONE) {
        http_body_complete(x);
    } else if (status == HTTP_CHUNKED_BAD) {
        http_body_failed(x, S3_ERR_INCOMPLETE_BODY);
    }
}

static void http_step_identity(struct exchange *x, const struct slice *slice)
{
    uint32_t len = x->body.remaining < slice->len ? (uint32_t)x->body.remaining : slice->len;
    x->body.remaining -= len;
    http_body_data(x, len);
}

static bool http_step_body(struct exchange *x)
{
    const struct slice *slice = conn_inbox_peek(x->conn);
    if (exchange_is_throttled(x)) {
        return false;
    }
    if (slice == NULL) {
        if (x->conn->is_eof) {
            http_body_failed(x, S3_ERR_INCOMPLETE_BODY);
        }
        return x->conn->is_eof;
    }
    if (x->body.aws_run > 0) {
        http_step_aws(x, slice);
    } else if (x->body.is_chunked) {
        http_step_chunked(x, slice);
    } else {
        http_step_identity(x, slice);
    }
    bool is_all = !x->body.is_chunked && x->body.remaining == 0 && x->body.aws_run == 0;
    if (is_all && x->stage == EXCHANGE_BODY) {
        http_body_complete(x);
    }
    return true;
}

/* ---- the end of an answer ------------------------------------------------------------------------------------- */

static bool http_step_respond(struct exchange *x)
{
    struct conn *conn = x->conn;
    if (!x->response.is_ended || x->response.sends > 0 || x->response.is_recalled) {
        return false;
    }
    bool must_close = x->response.must_close;
    exchange_count(x);
    exchange_end(x);
    conn_timer_set(conn, TIME_NEVER);
    if (must_close) {
        conn_finish(conn);
        return false;
    }
    return true;
}

static bool http_step(struct conn *conn)
{
    struct exchange *x = conn->exchange;
    if (conn->stage != CONN_OPEN) {
        return false;
    }
    if (x == NULL) {
        return http_step_idle(conn);
    }
    switch (x->stage) {
    case EXCHANGE_HEAD:
        return http_step_head(x);
    case EXCHANGE_BODY:
        return http_step_body(x);
    case EXCHANGE_RESPOND:
        return http_step_respond(x);
    case EXCHANGE_HANDLE:
    case EXCHANGE_WORK:
    case EXCHANGE_ENDED:
        break;
    }
    return false;
}

static void http_run(struct conn *conn)
{
    while (http_step(conn)) {
        /* Bounded: a step that returns true has consumed input, and nothing is received meanwhile. */
    }
}

static bool http_wants_data(const struct conn *conn)
{
    const struct exchange *x = conn->exchange;
    return x == NULL || x->stage == EXCHANGE_HEAD || (x->stage == EXCHANGE_BODY && !exchange_is_throttled(x));
}

static void http_sent(struct conn *conn, const struct rx_event *event)
{
    struct exchange *x = conn->exchange;
    if (x == NULL) { /* The answer of http_refuse. */
        if (conn->stage == CONN_OPEN && event->error == 0) {
            conn_finish(conn);
        } else {
            conn_abort(conn);
        }
        return;
    }
    CHECK(x->response.sends > 0);
    x->response.sends--;
    if (event->error == -EAGAIN) {
        http_response_cut(x, event->cookie, event->sent);
        return;
    }
    x->response.progress_ns = conn->worker->now_ns;
    if (event->cookie >= HTTP_COOKIE_PAYLOAD && x->ops != NULL && x->ops->sent != NULL) {
        x->ops->sent(x, event->cookie);
    }
    if (event->error < 0) {
        conn_abort(conn);
    }
}

static void http_room(struct conn *conn)
{
    CHECK(conn->exchange != NULL); /* It does not end before there is room. */
    http_response_room(conn->exchange);
}

/* ---- timeouts ------------------------------------------------------------------------------------------------- */

/* Too slow over the whole window? Windows in which we made the peer wait prove nothing. */
static bool http_body_is_slow(struct exchange *x)
{
    const struct conf_limits *limits = http_limits(x);
    uint64_t now_ns = http_now(x);
    if (limits->body_rate_min == 0 || now_ns < x->body.rate_start_ns + limits->body_rate_window_ns) {
        return false;
    }
    uint64_t bytes = x->conn->received_bytes - x->body.rate_start_bytes;
    double seconds = (double)(now_ns - x->body.rate_start_ns) / (double)NS_PER_S;
    bool is_slow = !x->body.rate_excused && (double)bytes < (double)limits->body_rate_min * seconds;
    x->body.rate_start_ns = now_ns;
    x->body.rate_start_bytes = x->conn->received_bytes;
    x->body.rate_excused = exchange_is_throttled(x);
    return is_slow;
}

static void http_timeout_body(struct exchange *x)
{
    bool is_stalled = x->conn->received_ns + http_limits(x)->body_timeout_ns <= http_now(x);
    if (exchange_is_throttled(x)) {
        x->conn->received_ns = http_now(x);
        is_stalled = false;
    }
    bool is_slow = http_body_is_slow(x);
    if (is_stalled || is_slow) {
        metrics_add(&x->listener->cells->timeouts[is_stalled ? METRICS_TIMEOUT_BODY : METRICS_TIMEOUT_RATE],
                    1);
        http_body_failed(x, S3_ERR_REQUEST_TIMEOUT);
        return;
    }
    http_body_timer(x);
}

/* Looks several times within send_timeout, because a send, or the wait for room after a recall, ends only when much of the socket
 * buffer is free: a slow reader would be taken for one that stands. */
static void http_timeout_respond(struct exchange *x)
{
    uint64_t now_ns = http_now(x);
    uint64_t timeout_ns = http_limits(x)->send_timeout_ns;
    bool waits_for_us = x->response.sends == 0 && !x->response.is_recalled; /* for the store, or its turn */
    if (conn_has_taken(x->conn) || waits_for_us) {
        x->response.progress_ns = now_ns;
    }
    if (waits_for_us && x->response.is_early) {
        http_response_early(x);
    }
    uint64_t deadline_ns = x->response.progress_ns + timeout_ns;
    if (deadline_ns > now_ns) {
        uint64_t look_ns = now_ns + timeout_ns / HTTP_SEND_LOOKS;
        conn_timer_set(x->conn, look_ns < deadline_ns ? look_ns : deadline_ns);
        return;
    }
    metrics_add(&x->listener->cells->timeouts[METRICS_TIMEOUT_SEND], 1);
    conn_abort(x->conn);
}

static void http_timeout(struct conn *conn)
{
    struct exchange *x = conn->exchange;
    if (x == NULL) {
        metrics_add(&conn->listener->cells->timeouts[METRICS_TIMEOUT_IDLE], 1);
        conn_close(conn);
        return;
    }
    switch (x->stage) {
    case EXCHANGE_HEAD:
        metrics_add(&conn->listener->cells->timeouts[METRICS_TIMEOUT_HEAD], 1);
        http_head_refused(x, S3_ERR_REQUEST_TIMEOUT);
        break;
    case EXCHANGE_BODY:
        http_timeout_body(x);
        break;
    case EXCHANGE_RESPOND:
        http_timeout_respond(x);
        break;
    case EXCHANGE_HANDLE:
    case EXCHANGE_WORK:
        if (x->response.may_be_early) {
            http_response_early(x);
        }
        break; /* The store has deadlines of its own. */
    case EXCHANGE_ENDED:
        break;
    }
}

static void http_gone(struct conn *conn)
{
    if (conn->exchange != NULL) {
        exchange_abandon(conn->exchange);
    }
}

static void http_drain(struct conn *conn)
{
    if (conn->exchange == NULL && conn->stage == CONN_OPEN) {
        conn_run(conn);
    }
}

const struct conn_protocol http_protocol = {
    .run = http_run,
    .wants_data = http_wants_data,
    .sent = http_sent,
    .room = http_room,
    .timeout = http_timeout,
    .gone = http_gone,
    .drain = http_drain,
};
