/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw: the raw protocol over one exchange.
 *
 *   HEAD (is there a preamble?) -> BODY -> WORK (FIN seen, waiting for the store) -> RESPOND -> ENDED
 */
#include "server/raw.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "server/exchange.h"
#include "server/s3_handlers.h"
#include "server/utf8.h"
#include "server/worker.h"

#define RAW_COOKIE_ANSWER 1U

/* ---- pure parts ----------------------------------------------------------------------------------------------- */

static const char *raw_preamble_key(struct text value, struct raw_preamble *preamble)
{
    char decoded[3 * STORE_KEY_MAX];
    if (value.len > sizeof(decoded)) {
        return "key is too long";
    }
    long len = value.len == 0 ? 0 : s3_percent_decode(value, decoded, false);
    if (len <= 0 || len > (long)STORE_KEY_MAX) {
        return "key must be 1 to 1024 bytes, percent-encoded";
    }
    /* The store takes any bytes; an object that no S3 client could name would be there for good. */
    if (!utf8_is_valid(text_of(decoded, (size_t)len))) {
        return "key must be UTF-8";
    }
    s3_name_set(&preamble->key, text_of(decoded, (size_t)len));
    preamble->has_key = true;
    return NULL;
}

static const char *raw_preamble_crc(struct text value, struct raw_preamble *preamble)
{
    uint8_t digest[4];
    if (value.len != 8 || s3_hex_decode(value, digest, sizeof(digest)) != (long)sizeof(digest)) {
        return "crc32c must be 8 hexadecimal digits";
    }
    preamble->crc32c = bytes_get_be32(digest);
    preamble->has_crc32c = true;
    return NULL;
}

static const char *raw_preamble_field(struct text field, struct raw_preamble *preamble)
{
    struct text value = field;
    struct text name = text_take_until(&value, '=');
    if (text_is_absent(value)) {
        return "fields have the form name=value, separated by single spaces";
    }
    if (text_is(name, "key") && !preamble->has_key) {
        return raw_preamble_key(value, preamble);
    }
    if (text_is(name, "crc32c") && !preamble->has_crc32c) {
        return raw_preamble_crc(value, preamble);
    }
    if (text_is(name, "size") && preamble->size == UINT64_MAX) {
        bool is_good = text_parse_u64(value, &preamble->size) && preamble->size != UINT64_MAX;
        return is_good ? NULL : "size must be a decimal number of bytes";
    }
    return "known fields are key, size and crc32c, each once";
}

const char *raw_preamble_parse(struct text line, struct raw_preamble *preamble)
{
    memset(preamble, 0, sizeof(*preamble));
    preamble->size = UINT64_MAX;
    if (line.len > 0 && line.at[line.len - 1] == '\r') {
        line.len--;
    }
    struct text rest = line;
    if (!text_is(text_take_until(&rest, ' '), RAW_PREAMBLE)) {
        return "the first word must be " RAW_PREAMBLE;
    }
    while (!text_is_absent(rest)) {
        const char *problem = raw_preamble_field(text_take_until(&rest, ' '), preamble);
        if (problem != NULL) {
            return problem;
        }
    }
    return NULL;
}

static void raw_peer_text(const struct sockaddr_storage *peer, char *to, size_t size)
{
    char address[INET6_ADDRSTRLEN] = "unknown";
    uint16_t port = 0;
    if (peer->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)peer;
        /* Cannot fail: the buffer is large enough. */
        (void)inet_ntop(AF_INET, &in->sin_addr, address, sizeof(address));
        port = ntohs(in->sin_port);
    } else if (peer->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)peer;
        (void)inet_ntop(AF_INET6, &in6->sin6_addr, address, sizeof(address)); /* As above. */
        port = ntohs(in6->sin6_port);
    }
    (void)snprintf(to, size, "%s_%u", address, port); /* 46 + 6 bytes at most. */
}

/* 20261130 and 101502.123456, so that keys sort by time. */
static void raw_time_text(uint64_t wall_ns, char date[16], char time[16])
{
    char basic[HTTP_DATE_BASIC_SIZE];
    http_date_format_basic((int64_t)(wall_ns / NS_PER_S), basic);
    (void)snprintf(date, 16, "%.8s", basic); /* "20261130T101502Z" */
    /* 13 bytes */
    (void)snprintf(time, 16, "%.6s.%06u", basic + 9, (unsigned)(wall_ns % NS_PER_S / NS_PER_US));
}

static bool raw_key_add(struct store_name *key, struct text text)
{
    if (text.len > STORE_KEY_MAX - key->len) {
        return false;
    }
    memcpy(key->bytes + key->len, text.at, text.len);
    key->len = (uint16_t)(key->len + text.len);
    return true;
}

bool raw_key_format(const char *template, const struct raw_name *name, struct store_name *key)
{
    char date[16];
    char time[16];
    char peer[64];
    char sequence[24];
    raw_time_text(name->wall_ns, date, time);
    raw_peer_text(name->peer, peer, sizeof(peer));
    /* 20 digits at most. */
    (void)snprintf(sequence, sizeof(sequence), "%06llu", (unsigned long long)name->sequence);
    const struct {
        const char *field;
        const char *value;
    } fields[] = {{"{listener}", name->listener},
                  {"{node}", name->node},
                  {"{date}", date},
                  {"{time}", time},
                  {"{peer}", peer},
                  {"{seq}", sequence}};
    key->len = 0;
    for (const char *at = template; *at != '\0';) {
        size_t i = 0;
        while (i < ARRAY_COUNT(fields) && strncmp(at, fields[i].field, strlen(fields[i].field)) != 0) {
            i++;
        }
        bool is_field = i < ARRAY_COUNT(fields);
        if (!raw_key_add(key, is_field ? text_of_string(fields[i].value) : text_of(at, 1))) {
            return false;
        }
        at += is_field ? strlen(fields[i].field) : 1;
    }
    return key->len > 0;
}

/* ---- answers -------------------------------------------------------------------------------------------------- */

static void raw_answer(struct exchange *x, int status, uint32_t len)
{
    struct iovec iov = {.iov_base = x->out, .iov_len = len};
    x->stage = EXCHANGE_RESPOND;
    x->response.status = status;
    x->response.is_ended = true;
    x->response.progress_ns = x->worker->now_ns;
    if (conn_send(x->conn, &iov, 1, RAW_COOKIE_ANSWER)) {
        x->response.sends++;
    }
    conn_timer_set(x->conn, x->worker->now_ns + x->listener->conf->limits.send_timeout_ns);
}

static void raw_answer_error(struct exchange *x, enum s3_error error, const char *detail)
{
    if (x->stage >= EXCHANGE_RESPOND) {
        return;
    }
    int len = snprintf(x->out, EXCHANGE_OUT_SIZE, "error=%s %s\n", s3_error_code(error),
                       detail != NULL ? detail : s3_error_message(error));
    raw_answer(x, s3_error_status(error), (uint32_t)len);
}

static void raw_answer_stored(struct exchange *x)
{
    struct xml_out out; /* Used for its percent-encoding only. */
    xml_out_begin(&out, x->out, EXCHANGE_OUT_SIZE - 64);
    xml_out_raw(&out, "key=");
    xml_out_url(&out, text_of((const char *)x->request.key.bytes, x->request.key.len));
    CHECK(!out.is_full); /* At most 3 * 1024 bytes. */
    int len = snprintf(x->out + out.len, 64, " size=%llu crc32c=%08x\n",
                       (unsigned long long)store_put_size(x->upload.put), store_put_crc32c(x->upload.put));
    raw_answer(x, 200, (uint32_t)out.len + (uint32_t)len);
}

static void raw_upload_done(struct exchange *x)
{
    if (x->upload.state == UPLOAD_DONE) {
        raw_answer_stored(x);
    } else {
        /* The table's words for this one name headers, which a raw stream has not. */
        bool is_length = x->upload.error == S3_ERR_INCOMPLETE_BODY;
        raw_answer_error(x, x->upload.error,
                         is_length ? "the stream has not the size= of its preamble" : NULL);
    }
}

/* ---- begin ---------------------------------------------------------------------------------------------------- */

static void raw_begin_upload(struct exchange *x, const struct raw_preamble *preamble)
{
    const struct conf_listener *conf = x->listener->conf;
    struct worker *worker = x->worker;
    struct raw_name name = {
        .node = worker->conf->node.name,
        .listener = conf->name,
        .wall_ns = worker->wall_ns,
        .peer = &x->conn->peer,
        .sequence = atomic_fetch_add_explicit(&worker->shared->raw_sequence, 1, memory_order_relaxed),
    };
    x->operation = METRICS_OP_RAW_PUT;
    x->head_ns = worker->now_ns;
    upload_init(x, raw_upload_done);
    memcpy(x->request.bucket, conf->bucket, strlen(conf->bucket) + 1);
    if (preamble->has_key) {
        x->request.key = preamble->key;
    } else if (!raw_key_format(conf->key_template, &name, &x->request.key)) {
        raw_answer_error(x, S3_ERR_KEY_TOO_LONG, NULL);
        return;
    }
    if (preamble->has_crc32c) {
        x->upload.checks.header.kind = S3_CHECKSUM_CRC32C;
        x->upload.checks.algorithm = S3_CHECKSUM_CRC32C;
        bytes_put_be32(x->upload.checks.header.digest, preamble->crc32c);
    }
    enum s3_error error = S3_ERR_ENTITY_TOO_LARGE;
    if (preamble->size == UINT64_MAX || preamble->size <= conf->limits.object_size_max) {
        error = upload_open(x, preamble->size);
    }
    if (error != S3_OK) {
        raw_answer_error(x, error, NULL);
        return;
    }
    x->stage = EXCHANGE_BODY;
    conn_timer_set(x->conn, worker->now_ns + conf->limits.body_timeout_ns);
}

static void raw_begin_plain(struct exchange *x)
{
    const struct raw_preamble nothing = {.size = UINT64_MAX};
    raw_begin_upload(x, &nothing);
    if (x->head_len > 0) {
        /* Bytes that looked like the beginning of a preamble: they live as long as the exchange, which outlives the put. */
        struct slice kept = {.addr = (uint8_t *)x->head_bytes, .len = x->head_len, .buf_index = -1};
        upload_append(x, &kept);
    }
}

static void raw_preamble_done(struct exchange *x)
{
    struct raw_preamble preamble;
    const char *problem = raw_preamble_parse(text_of(x->head_bytes, x->head_len - 1), &preamble);
    if (problem != NULL) {
        metrics_add(&x->listener->cells->heads_refused, 1);
        raw_answer_error(x, S3_ERR_INVALID_REQUEST, problem);
        return;
    }
    raw_begin_upload(x, &preamble);
}

static const char raw_word[] = RAW_PREAMBLE " ";
#define RAW_WORD_LEN ((uint32_t)sizeof(raw_word) - 1)

/* Do the bytes known so far agree with the beginning of a preamble? */
static bool raw_may_be_preamble(const struct exchange *x, const struct slice *slice)
{
    if (x->head_len >= RAW_WORD_LEN) {
        return true;
    }
    uint32_t len = slice->len < RAW_WORD_LEN - x->head_len ? slice->len : RAW_WORD_LEN - x->head_len;
    return memcmp(slice->addr, raw_word + x->head_len, len) == 0;
}

/* FIN with bytes held back. A sender that died within its preamble had promised more; fewer bytes only looked like one. */
static void raw_head_ended(struct exchange *x)
{
    if (x->head_len >= RAW_WORD_LEN) {
        metrics_add(&x->listener->cells->heads_refused, 1);
        raw_answer_error(x, S3_ERR_INCOMPLETE_BODY, "the preamble does not end in a line feed");
        return;
    }
    raw_begin_plain(x);
}

static bool raw_step_head(struct exchange *x)
{
    struct conn *conn = x->conn;
    const struct slice *slice = conn_inbox_peek(conn);
    if (slice == NULL) {
        if (conn->is_eof) {
            raw_head_ended(x);
        }
        return conn->is_eof;
    }
    if (!raw_may_be_preamble(x, slice)) {
        raw_begin_plain(x);
        return true;
    }
    uint32_t limit = (uint32_t)x->listener->conf->limits.head_size_max;
    uint32_t room = slice->len < limit - x->head_len ? slice->len : limit - x->head_len;
    const uint8_t *newline = memchr(slice->addr, '\n', room);
    uint32_t len = newline != NULL ? (uint32_t)(newline - slice->addr) + 1 : room;
    memcpy(x->head_bytes + x->head_len, slice->addr, len);
    x->head_len += len;
    conn_inbox_skip(conn, len);
    if (newline != NULL) {
        raw_preamble_done(x);
    } else if (x->head_len == limit) {
        metrics_add(&x->listener->cells->limits_hit[METRICS_LIMIT_HEAD_SIZE], 1);
        raw_answer_error(x, S3_ERR_REQUEST_HEAD_TOO_LARGE, NULL);
    }
    return true;
}

/* ---- the cycle ------------------------------------------------------------------------------------------------ */

static bool raw_step_body(struct exchange *x)
{
    struct slice *slice = conn_inbox_peek(x->conn);
    if (exchange_is_throttled(x)) {
        return false;
    }
    if (slice == NULL) {
        if (x->conn->is_eof) {
            conn_timer_set(x->conn, TIME_NEVER);
            x->stage = EXCHANGE_WORK;
            upload_finish(x);
        }
        return false;
    }
    struct slice taken;
    conn_inbox_take(x->conn, slice->len, &taken);
    if (x->upload.size != UINT64_MAX && taken.len > x->upload.size - x->upload.received) {
        slice_release(&taken);
        upload_fail(x, S3_ERR_INCOMPLETE_BODY, METRICS_ABORT_PROTOCOL);
        return true;
    }
    upload_append(x, &taken);
    return true;
}

static bool raw_step_idle(struct conn *conn)
{
    struct worker *worker = conn->worker;
    if (conn_inbox_is_empty(conn)) {
        if (conn->is_eof || worker->is_draining || conn->is_over_limit) {
            conn_close(conn);
        } else if (!timer_is_armed(&conn->timer)) {
            conn_timer_set(conn, worker->now_ns + conn->listener->conf->limits.idle_timeout_ns);
        }
        return false;
    }
    if (exchange_take(conn) == NULL) {
        return false;
    }
    conn_timer_set(conn, worker->now_ns + conn->listener->conf->limits.head_timeout_ns);
    return true;
}

static bool raw_step_respond(struct exchange *x)
{
    struct conn *conn = x->conn;
    if (x->response.sends > 0) {
        return false;
    }
    metrics_request(x->listener->cells, x->operation, x->response.status);
    exchange_end(x);
    conn_timer_set(conn, TIME_NEVER);
    conn_finish(conn);
    return false;
}

static bool raw_step(struct conn *conn)
{
    struct exchange *x = conn->exchange;
    if (conn->stage != CONN_OPEN) {
        return false;
    }
    if (x == NULL) {
        return raw_step_idle(conn);
    }
    switch (x->stage) {
    case EXCHANGE_HEAD:
        return raw_step_head(x);
    case EXCHANGE_BODY:
        return raw_step_body(x);
    case EXCHANGE_RESPOND:
        return raw_step_respond(x);
    default:
        return false;
    }
}

static void raw_run(struct conn *conn)
{
    while (raw_step(conn)) {
        /* Bounded: a step that returns true has consumed input, and nothing is received meanwhile. */
    }
}

static bool raw_wants_data(const struct conn *conn)
{
    const struct exchange *x = conn->exchange;
    return x == NULL || x->stage == EXCHANGE_HEAD || (x->stage == EXCHANGE_BODY && !exchange_is_throttled(x));
}

static void raw_sent(struct conn *conn, const struct rx_event *event)
{
    struct exchange *x = conn->exchange;
    CHECK(event->cookie == RAW_COOKIE_ANSWER);
    CHECK(x->response.sends > 0);
    x->response.sends--;
    if (event->error < 0) {
        conn_abort(conn);
    }
}

static void raw_timeout(struct conn *conn)
{
    struct exchange *x = conn->exchange;
    struct metrics_listener *cells = conn->listener->cells;
    const struct conf_limits *limits = &conn->listener->conf->limits;
    if (x == NULL) {
        metrics_add(&cells->timeouts[METRICS_TIMEOUT_IDLE], 1);
        conn_close(conn);
    } else if (x->stage == EXCHANGE_HEAD) {
        metrics_add(&cells->timeouts[METRICS_TIMEOUT_HEAD], 1);
        raw_answer_error(x, S3_ERR_REQUEST_TIMEOUT, NULL);
    } else if (x->stage == EXCHANGE_BODY) {
        if (exchange_is_throttled(x)) {
            conn->received_ns = conn->worker->now_ns;
        }
        uint64_t deadline_ns = conn->received_ns + limits->body_timeout_ns;
        if (deadline_ns > conn->worker->now_ns) {
            conn_timer_set(conn, deadline_ns);
            return;
        }
        metrics_add(&cells->timeouts[METRICS_TIMEOUT_BODY], 1);
        upload_fail(x, S3_ERR_REQUEST_TIMEOUT, METRICS_ABORT_TIMEOUT);
    } else if (x->stage == EXCHANGE_RESPOND) {
        metrics_add(&cells->timeouts[METRICS_TIMEOUT_SEND], 1);
        conn_abort(conn);
    }
}

static void raw_gone(struct conn *conn)
{
    if (conn->exchange != NULL) {
        exchange_abandon(conn->exchange);
    }
}

static void raw_drain(struct conn *conn)
{
    if (conn->exchange == NULL && conn->stage == CONN_OPEN) {
        conn_run(conn);
    }
}

const struct conn_protocol raw_protocol = {
    .run = raw_run,
    .wants_data = raw_wants_data,
    .sent = raw_sent,
    .timeout = raw_timeout,
    .gone = raw_gone,
    .ends_by_fin = true,
    .drain = raw_drain,
};
