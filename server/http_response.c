/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_response: building and sending answers. The head and small bodies lie in the exchange; long bodies are sent
 * from wherever the operation has them. Nothing is reused before its RX_SENT.
 */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "server/http_conn.h"
#include "server/s3_error.h"
#include "server/worker.h"

static const struct {
    int status;
    const char *reason;
} http_reasons[] = {
    {200, "OK"},
    {204, "No Content"},
    {206, "Partial Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {409, "Conflict"},
    {411, "Length Required"},
    {412, "Precondition Failed"},
    {416, "Range Not Satisfiable"},
    {417, "Expectation Failed"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {505, "HTTP Version Not Supported"},
    {507, "Insufficient Storage"},
};

static const char *http_reason(int status)
{
    for (size_t i = 0; i < sizeof(http_reasons) / sizeof(http_reasons[0]); i++) {
        if (http_reasons[i].status == status) {
            return http_reasons[i].reason;
        }
    }
    return "Status";
}

/* ---- the head ------------------------------------------------------------------------------------------------- */

static void head_put(struct exchange *x, struct text text)
{
    struct http_response *response = &x->response;
    if (response->head_is_full || text.len > EXCHANGE_OUT_HEAD - response->head_len) {
        response->head_is_full = true;
        return;
    }
    memcpy(x->out + response->head_len, text.at, text.len);
    response->head_len += (uint32_t)text.len;
}

void http_response_header(struct exchange *x, const char *name, struct text value)
{
    head_put(x, text_of_string(name));
    head_put(x, TEXT(": "));
    head_put(x, value);
    head_put(x, TEXT("\r\n"));
}

void http_response_header_u64(struct exchange *x, const char *name, uint64_t value)
{
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
    http_response_header(x, name, text_of(digits, (size_t)len));
}

void http_response_begin(struct exchange *x, int status)
{
    CHECK(x->response.status == 0);
    x->response.status = status;
    char line[64];
    int len = snprintf(line, sizeof(line), "HTTP/1.1 %d %s\r\n", status, http_reason(status));
    head_put(x, text_of(line, (size_t)len));
    http_response_header(x, "Server", TEXT("penstock"));
    http_response_header(x, "Date", text_of_string(worker_date(x->worker)));
    http_response_header(x, "x-amz-request-id", text_of(x->request_id, 16));
    http_response_header(x, "x-amz-id-2", text_of(x->request_id, 16));
}

/* Unread input makes the next request's beginning unknown; a client of HTTP/1.0 or a draining node ends as well. So does one
 * that gets its final status where it expected a 100, even for an empty body: see http_continue(). */
static bool http_must_close(const struct exchange *x)
{
    bool body_is_open = x->stage < EXCHANGE_WORK && !x->body.is_complete;
    bool lacks_100 =
        x->head.expects_100 && x->body.is_complete && x->body.payload == 0 && !x->response.is_continue_sent;
    return body_is_open || lacks_100 || !x->head.keep_alive || x->response.must_close ||
           x->worker->is_draining || (x->response.is_chunked && x->head.version_minor == 0);
}

static void http_framing_headers(struct exchange *x, uint64_t length)
{
    struct http_response *response = &x->response;
    response->is_chunked = length == HTTP_LENGTH_UNKNOWN;
    if (response->is_chunked && x->head.version_minor > 0) {
        http_response_header(x, "Transfer-Encoding", TEXT("chunked"));
    } else if (length != HTTP_LENGTH_NONE && length != HTTP_LENGTH_UNKNOWN) {
        http_response_header_u64(x, "Content-Length", length);
    }
    response->must_close = http_must_close(x);
    if (response->must_close) {
        http_response_header(x, "Connection", TEXT("close"));
    } else if (x->head.version_minor == 0) {
        http_response_header(x, "Connection", TEXT("keep-alive"));
    }
    head_put(x, TEXT("\r\n"));
}

static bool http_send(struct exchange *x, const struct iovec *iov, uint32_t iov_count, uint64_t cookie)
{
    if (x->is_abandoned || !conn_send(x->conn, iov, iov_count, cookie)) {
        return false;
    }
    if (x->response.sends++ == 0) {
        x->response.progress_ns = x->worker->now_ns; /* Until now the peer had nothing to take. */
    }
    return true;
}

/* Ends the head; the small body, if any, goes out with it in one send. */
static void http_start_with(struct exchange *x, uint64_t length, const char *body, uint32_t body_len)
{
    http_framing_headers(x, length);
    CHECK(!x->response.head_is_full); /* Stored headers are bounded by STORE_META_MAX. */
    x->stage = EXCHANGE_RESPOND;
    x->response.progress_ns = x->worker->now_ns;
    if (x->table != NULL || x->block != NULL) {
        share_hold(x, x->table != NULL ? SHARE_TABLE : SHARE_BLOCK); /* until the peer has read the answer */
    }
    struct iovec iov[2] = {
        {.iov_base = x->out, .iov_len = x->response.head_len},
        {.iov_base = (void *)(uintptr_t)body, .iov_len = body_len},
    };
    /* A dead peer is reported by RX_RESET. */
    (void)http_send(x, iov, body_len > 0 ? 2 : 1, HTTP_COOKIE_HEAD);
    conn_timer_set(x->conn, x->worker->now_ns + x->listener->conf->limits.send_timeout_ns / HTTP_SEND_LOOKS);
}

void http_response_start(struct exchange *x, uint64_t length)
{
    http_start_with(x, length, NULL, 0);
}

/* ---- the body ------------------------------------------------------------------------------------------------- */

/* One chunk: its size line lies in the unused part of x->out's body area, one place per cookie so that a line that is
 * still being sent is not overwritten. */
#define CHUNK_LINE_SIZE 16U
#define CHUNK_LINE_PLACES 8U

/* Without the first `sent` bytes. */
static bool http_send_rest(struct exchange *x, struct iovec *iov, uint32_t iov_count, uint64_t cookie,
                           uint64_t sent)
{
    while (iov_count > 0 && sent >= iov->iov_len) {
        sent -= iov->iov_len;
        iov++;
        iov_count--;
    }
    CHECK(iov_count > 0); /* Else it would not have been cut. */
    iov->iov_base = (char *)iov->iov_base + sent;
    iov->iov_len -= sent;
    return http_send(x, iov, iov_count, cookie);
}

static bool http_send_chunk(struct exchange *x, const void *bytes, uint32_t len, uint64_t cookie,
                            uint64_t sent)
{
    CHECK(cookie >= HTTP_COOKIE_PAYLOAD);
    CHECK(cookie < HTTP_COOKIE_PAYLOAD + CHUNK_LINE_PLACES);
    char *line = x->out + EXCHANGE_OUT_HEAD + (cookie - HTTP_COOKIE_PAYLOAD) * CHUNK_LINE_SIZE;
    int line_len = snprintf(line, CHUNK_LINE_SIZE, "%x\r\n", len);
    static const char end[] = "\r\n";
    struct iovec iov[3] = {
        {.iov_base = line, .iov_len = (size_t)line_len},
        {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len},
        {.iov_base = (void *)(uintptr_t)end, .iov_len = 2},
    };
    return http_send_rest(x, iov, 3, cookie, sent);
}

bool http_response_payload_rest(struct exchange *x, const void *bytes, uint32_t len, uint64_t cookie,
                                uint64_t sent)
{
    CHECK(x->stage == EXCHANGE_RESPOND);
    CHECK(len > 0);
    if (x->response.is_chunked && x->head.version_minor > 0) {
        return http_send_chunk(x, bytes, len, cookie, sent);
    }
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
    return http_send_rest(x, &iov, 1, cookie, sent);
}

bool http_response_payload(struct exchange *x, const void *bytes, uint32_t len, uint64_t cookie)
{
    return http_response_payload_rest(x, bytes, len, cookie, 0);
}

void http_response_end(struct exchange *x)
{
    static const char last_chunk[] = "0\r\n\r\n";
    if (x->response.is_chunked && x->head.version_minor > 0 && !http_is_head(x)) {
        struct iovec iov = {.iov_base = (void *)(uintptr_t)last_chunk, .iov_len = sizeof(last_chunk) - 1};
        /* A dead peer is reported by RX_RESET. */
        (void)http_send_rest(x, &iov, 1, HTTP_COOKIE_END, x->response.end_sent);
    }
    x->response.is_ended = true;
}

/* ---- early answers -------------------------------------------------------------------------------------------- */

void http_response_may_be_early(struct exchange *x)
{
    x->response.may_be_early = true;
    conn_timer_set(x->conn, x->worker->now_ns + x->listener->conf->limits.send_timeout_ns / HTTP_SEND_LOOKS);
}

/* A dead peer is reported by RX_RESET. */
void http_response_early(struct exchange *x)
{
    static const char first_line[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    if (x->response.is_early) {
        (void)http_response_payload(x, " ", 1, HTTP_COOKIE_PAYLOAD);
        return;
    }
    http_response_begin(x, 200);
    http_response_header(x, "Content-Type", TEXT("application/xml"));
    http_response_start(x, HTTP_LENGTH_UNKNOWN);
    x->response.is_early = true;
    (void)http_response_payload(x, first_line, sizeof(first_line) - 1, HTTP_COOKIE_PAYLOAD);
}

/* ---- recalled answers ----------------------------------------------------------------------------------------- */

bool http_response_recall(struct exchange *x)
{
    CHECK(x->stage == EXCHANGE_RESPOND);
    CHECK(x->ops->cut != NULL);
    x->response.is_recalled = conn_recall(x->conn);
    return x->response.is_recalled;
}

void http_response_cut(struct exchange *x, uint64_t cookie, uint64_t sent)
{
    struct http_response *response = &x->response;
    CHECK(response->is_recalled);
    if (sent > 0) {
        response->progress_ns = x->worker->now_ns;
    }
    if (cookie == HTTP_COOKIE_HEAD) {
        response->is_head_cut = true;
        response->head_sent += (uint32_t)sent;
    } else if (cookie == HTTP_COOKIE_END) {
        response->end_sent += (uint32_t)sent;
        response->is_ended = false;
    } else {
        CHECK(cookie >= HTTP_COOKIE_PAYLOAD); /* A 100 belongs to an upload, which is never recalled. */
        response->is_ended = false;
        x->ops->cut(x, cookie, sent);
    }
}

void http_response_room(struct exchange *x)
{
    struct http_response *response = &x->response;
    response->is_recalled = false;
    response->progress_ns = x->worker->now_ns;
    if (response->is_head_cut) {
        struct iovec iov = {.iov_base = x->out + response->head_sent,
                            .iov_len = response->head_len - response->head_sent};
        response->is_head_cut = false;
        (void)http_send(x, &iov, 1, HTTP_COOKIE_HEAD); /* A dead peer is reported by RX_RESET. */
    }
    x->ops->room(x);
}

/* ---- whole answers -------------------------------------------------------------------------------------------- */

void http_respond_empty(struct exchange *x, int status)
{
    if (x->response.status == 0) {
        http_response_begin(x, status);
    }
    http_start_with(x, status == 204 || status == 304 ? HTTP_LENGTH_NONE : 0, NULL, 0);
    http_response_end(x);
}

void http_xml_begin(struct exchange *x)
{
    uint32_t at = EXCHANGE_OUT_HEAD; /* Behind the lines of chunks, if there will be chunks. */
    at += x->response.is_early ? CHUNK_LINE_SIZE * CHUNK_LINE_PLACES : 0;
    xml_out_begin(&x->xml_out, x->out + at, EXCHANGE_OUT_SIZE - at);
}

/* The document without its first line, which is out. */
static void http_early_end(struct exchange *x)
{
    const char *at = x->xml_out.at;
    const char *line = memchr(at, '\n', x->xml_out.len);
    CHECK(line != NULL); /* Every document of ours has the declaration on a line of its own. */
    uint32_t len = (uint32_t)(x->xml_out.len - (size_t)(line + 1 - at));
    (void)http_response_payload(x, line + 1, len, HTTP_COOKIE_PAYLOAD + 1); /* RX_RESET tells. */
    http_response_end(x);
}

void http_respond_xml(struct exchange *x, int status)
{
    CHECK(!x->xml_out.is_full);
    if (x->response.is_early) {
        x->response.late_status = status >= 400 ? status : 0;
        http_early_end(x);
        return;
    }
    if (x->response.status == 0) {
        http_response_begin(x, status);
    }
    http_response_header(x, "Content-Type", TEXT("application/xml"));
    uint32_t len = (uint32_t)x->xml_out.len;
    http_start_with(x, len, x->xml_out.at, http_is_head(x) ? 0 : len);
    http_response_end(x);
}

void http_respond_error_with(struct exchange *x, enum s3_error error, const char *tag, struct text value)
{
    struct s3_error_body body = {
        .error = error,
        .resource = x->target.path,
        .request_id = text_of(x->request_id, 16),
        .host_id = text_of(x->request_id, 16),
    };
    if (tag != NULL) {
        body.extra[0] = (struct s3_error_extra){.tag = tag, .value = value};
    }
    http_xml_begin(x);
    x->xml_out.len = s3_error_write(&body, x->xml_out.at, x->xml_out.size);
    http_respond_xml(x, s3_error_status(error));
}

void http_respond_error(struct exchange *x, enum s3_error error)
{
    http_respond_error_with(x, error, NULL, (struct text){0});
}
