// SPDX-License-Identifier: Apache-2.0
//
// HTTP request heads over llhttp; the contract is in http_head.h.
//
// llhttp splits the bytes into method, target and header pieces. It is stopped at the end of the head (it never sees the
// body), and what the pieces mean together (length, coding, expectation, persistence) is decided here in
// http_head_judge(), because llhttp is more lenient than a server behind proxies may be.

#include "server/http_head.h"

#include "base/check.h"

_Static_assert(HTTP_HEAD_LIMIT_MAX <= UINT16_MAX, "spans hold 16-bit offsets");
_Static_assert(HTTP_HEAD_LIMIT_DEFAULT >= HTTP_HEAD_LIMIT_MIN, "the default must be allowed");

// Any non-zero callback result stops llhttp; `error` already says why.
#define STOP (-1)

#define METHOD_MAX 64u  // longer than any registered one
#define VERSION_LEN 10u // "HTTP/1.1" CR LF

// --- pieces from llhttp

static struct http_head *head_of(llhttp_t *parser)
{
    return parser->data;
}

static int head_stop(struct http_head *head, enum http_head_error error)
{
    head->error = error;
    return STOP;
}

// Appends a piece to a span. llhttp cuts spans where the input was cut; a piece that does not continue the span comes from
// a folded header line (obs-fold), which RFC 9112 section 5.2 tells a server to refuse or rewrite.
static int span_append(struct http_head *head, struct http_head_span *span, const char *at, size_t len)
{
    size_t offset = (size_t)(at - head->base);

    CHECK(offset + len <= HTTP_HEAD_LIMIT_MAX);
    if (span->len == 0) {
        span->offset = (uint16_t)offset;
    } else if ((size_t)span->offset + span->len != offset) {
        return head_stop(head, HTTP_HEAD_ERROR_SYNTAX);
    }
    span->len = (uint16_t)(span->len + len);
    return 0;
}

static int on_method(llhttp_t *parser, const char *at, size_t len)
{
    return span_append(head_of(parser), &head_of(parser)->method_text, at, len);
}

static int on_target(llhttp_t *parser, const char *at, size_t len)
{
    return span_append(head_of(parser), &head_of(parser)->target, at, len);
}

static int on_name(llhttp_t *parser, const char *at, size_t len)
{
    struct http_head *head = head_of(parser);

    if (head->header_count == 0 || head->in_value) {
        if (head->header_count == HTTP_HEAD_HEADERS_MAX) {
            return head_stop(head, HTTP_HEAD_ERROR_TOO_MANY_HEADERS);
        }
        head->headers[head->header_count] = (struct http_head_field){0};
        head->header_count++;
        head->in_value = false;
    }
    return span_append(head, &head->headers[head->header_count - 1].name, at, len);
}

static int on_name_complete(llhttp_t *parser)
{
    head_of(parser)->in_value = true;
    return 0;
}

static int on_value(llhttp_t *parser, const char *at, size_t len)
{
    struct http_head *head = head_of(parser);

    CHECK(head->header_count > 0);
    return span_append(head, &head->headers[head->header_count - 1].value, at, len);
}

static int on_headers_complete(llhttp_t *parser)
{
    head_of(parser)->is_complete = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_method = on_method,
    .on_url = on_target,
    .on_header_field = on_name,
    .on_header_field_complete = on_name_complete,
    .on_header_value = on_value,
    .on_headers_complete = on_headers_complete,
};

// --- public

void http_head_begin(struct http_head *head, uint32_t limit)
{
    CHECK(limit >= HTTP_HEAD_LIMIT_MIN);
    CHECK(limit <= HTTP_HEAD_LIMIT_MAX);
    // The header array is left as it is: header_count says how much of it is valid.
    memset(head, 0, offsetof(struct http_head, headers));
    head->base = NULL;
    head->limit = limit;
    head->parsed = 0;
    head->status = HTTP_HEAD_NEED_MORE;
    head->in_value = false;
    head->is_complete = false;
    head->is_foreign = false;
    llhttp_init(&head->parser, HTTP_REQUEST, &settings);
    head->parser.data = head;
}

static bool version_is_ours(const llhttp_t *parser)
{
    return parser->http_major == 1 && parser->http_minor <= 1;
}

static enum http_head_error error_of_llhttp(const llhttp_t *parser, llhttp_errno_t result)
{
    switch (result) {
    case HPE_INVALID_VERSION:
        // llhttp reports a bad line end behind a good version this way, too.
        return version_is_ours(parser) ? HTTP_HEAD_ERROR_SYNTAX : HTTP_HEAD_ERROR_VERSION;
    case HPE_UNEXPECTED_CONTENT_LENGTH:
    case HPE_INVALID_CONTENT_LENGTH:
    case HPE_INVALID_TRANSFER_ENCODING:
        return HTTP_HEAD_ERROR_FRAMING;
    default:
        return HTTP_HEAD_ERROR_SYNTAX;
    }
}

// --- request lines with a method that llhttp does not know

static bool is_token_byte(char byte) // RFC 9110 section 5.6.2
{
    bool is_alnum =
        (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');

    return is_alnum || (byte != '\0' && strchr("!#$%&'*+-.^_`|~", byte) != NULL);
}

// What stands behind the target: the version and the line's end. False: more bytes are needed.
static bool foreign_version(struct text rest, enum http_head_error *error)
{
    static const char form[] = "HTTP/d.d\r\n";

    *error = HTTP_HEAD_ERROR_SYNTAX;
    for (size_t i = 0; i < rest.len && i < VERSION_LEN; i++) {
        bool is_digit = rest.at[i] >= '0' && rest.at[i] <= '9';
        if (form[i] == 'd' ? !is_digit : rest.at[i] != form[i]) {
            return true;
        }
    }
    if (rest.len < VERSION_LEN) {
        return false;
    }
    bool is_ours = rest.at[5] == '1' && rest.at[7] <= '1';
    *error = is_ours ? HTTP_HEAD_ERROR_METHOD : HTTP_HEAD_ERROR_VERSION;
    return true;
}

// S3 answers any method that it does not serve with 405, so a line that llhttp stopped at is held against the grammar of RFC 9112
// section 3: one token, one target of visible bytes, one version, single spaces between. Whatever is not exactly that, or has a
// method that llhttp does know, was stopped at for another reason and stays a syntax error. False: more bytes are needed.
static bool foreign_judge(struct text line, enum http_head_error *error)
{
    size_t at = 0;

    *error = HTTP_HEAD_ERROR_SYNTAX;
    while (line.len > 0 && (line.at[0] == '\r' || line.at[0] == '\n')) { // llhttp skips empty lines as well
        line = text_of(line.at + 1, line.len - 1);
    }
    while (at < line.len && is_token_byte(line.at[at])) {
        at++;
    }
    if (at > METHOD_MAX) {
        return true;
    }
    if (at == line.len) {
        return false;
    }
    struct text method = text_of(line.at, at);
    bool is_known = text_is(method, "GET") || text_is(method, "HEAD") || text_is(method, "PUT") ||
                    text_is(method, "POST") || text_is(method, "DELETE") || text_is(method, "OPTIONS");
    if (at == 0 || is_known || line.at[at] != ' ') {
        return true;
    }
    size_t target = ++at;
    while (at < line.len && line.at[at] > ' ' && line.at[at] < 0x7f) {
        at++;
    }
    if (at == line.len) {
        return false;
    }
    if (at == target || line.at[at] != ' ') {
        return true;
    }
    return foreign_version(text_of(line.at + at + 1, line.len - at - 1), error);
}

static void trim_values(struct http_head *head, const char *buffer)
{
    for (unsigned i = 0; i < head->header_count; i++) {
        struct http_head_span *value = &head->headers[i].value;
        struct text text = text_trim(http_head_text(buffer, *value));

        value->offset = (uint16_t)(text.at - buffer);
        value->len = (uint16_t)text.len;
    }
}

static enum http_method method_of(uint8_t method)
{
    switch (method) {
    case HTTP_GET:
        return HTTP_METHOD_GET;
    case HTTP_HEAD:
        return HTTP_METHOD_HEAD;
    case HTTP_PUT:
        return HTTP_METHOD_PUT;
    case HTTP_POST:
        return HTTP_METHOD_POST;
    case HTTP_DELETE:
        return HTTP_METHOD_DELETE;
    case HTTP_OPTIONS:
        return HTTP_METHOD_OPTIONS;
    default:
        return HTTP_METHOD_OTHER;
    }
}

// Body framing, RFC 9112 section 6.3. Where the RFC allows repair (equal duplicate lengths, Content-Length beside
// Transfer-Encoding) the request is refused: repairing is what makes two servers disagree. The llhttp of today refuses most
// of this on its own; that it goes on doing so is not taken for granted.
static enum http_head_error judge_framing(struct http_head *head, const char *buffer)
{
    struct text length = http_head_find(head, buffer, "content-length");
    struct text coding = http_head_find(head, buffer, "transfer-encoding");
    unsigned lengths = http_head_count(head, buffer, "content-length");
    unsigned codings = http_head_count(head, buffer, "transfer-encoding");

    if (lengths > 1 || codings > 1 || (lengths > 0 && codings > 0)) {
        return HTTP_HEAD_ERROR_FRAMING;
    }
    if (lengths == 1) {
        if (!text_parse_u64(length, &head->content_length)) {
            return HTTP_HEAD_ERROR_FRAMING;
        }
        head->has_content_length = true;
    }
    if (codings == 1) {
        // HTTP/1.0 has no transfer codings (RFC 9112 section 6.1): an intermediary of that age would not see the framing.
        if (head->version_minor == 0 || coding.len == 0) {
            return HTTP_HEAD_ERROR_FRAMING;
        }
        if (!text_is_nocase(coding, "chunked")) {
            return HTTP_HEAD_ERROR_ENCODING;
        }
        head->is_chunked = true;
    }
    return HTTP_HEAD_ERROR_NONE;
}

static enum http_head_error judge_expectation(struct http_head *head, const char *buffer)
{
    // A 1.0 client cannot wait for an interim answer; RFC 9110 section 10.1.1 says to ignore its Expect.
    if (head->version_minor == 0) {
        return HTTP_HEAD_ERROR_NONE;
    }
    for (unsigned i = 0; i < head->header_count; i++) {
        struct text value = http_head_text(buffer, head->headers[i].value);

        if (!text_is_nocase(http_head_text(buffer, head->headers[i].name), "expect") || value.len == 0) {
            continue;
        }
        if (!text_is_nocase(value, "100-continue")) {
            return HTTP_HEAD_ERROR_EXPECTATION;
        }
        head->expects_100 = true;
    }
    return HTTP_HEAD_ERROR_NONE;
}

// Everything that depends on the whole head. The order matters: framing first, because after a framing error nothing
// behind the head can be trusted, while 417 and 501 leave an intact connection to be closed politely.
static enum http_head_error http_head_judge(struct http_head *head, const char *buffer)
{
    enum http_head_error error;

    head->method = method_of(llhttp_get_method(&head->parser));
    head->version_minor = llhttp_get_http_minor(&head->parser);
    if (!version_is_ours(&head->parser)) {
        return HTTP_HEAD_ERROR_VERSION;
    }
    error = judge_framing(head, buffer);
    if (error != HTTP_HEAD_ERROR_NONE) {
        return error;
    }
    unsigned hosts = http_head_count(head, buffer, "host");
    if (hosts > 1 || (hosts == 0 && head->version_minor == 1)) {
        return HTTP_HEAD_ERROR_HOST;
    }
    if (head->version_minor == 1) {
        head->keep_alive = !http_head_has_token(head, buffer, "connection", "close");
    } else {
        head->keep_alive = http_head_has_token(head, buffer, "connection", "keep-alive");
    }
    return judge_expectation(head, buffer);
}

static enum http_head_status head_finish(struct http_head *head, enum http_head_error error)
{
    head->error = error;
    head->status = error == HTTP_HEAD_ERROR_NONE ? HTTP_HEAD_DONE : HTTP_HEAD_BAD;
    return head->status;
}

static enum http_head_status head_wait(struct http_head *head, size_t usable)
{
    head->parsed = (uint32_t)usable;
    return usable == head->limit ? head_finish(head, HTTP_HEAD_ERROR_TOO_LARGE) : HTTP_HEAD_NEED_MORE;
}

static enum http_head_status head_foreign(struct http_head *head, const char *buffer, size_t usable)
{
    enum http_head_error error;

    return foreign_judge(text_of(buffer, usable), &error) ? head_finish(head, error)
                                                          : head_wait(head, usable);
}

enum http_head_status http_head_parse(struct http_head *head, const char *buffer, size_t len)
{
    llhttp_errno_t result;
    size_t usable = len < head->limit ? len : head->limit;

    if (head->status != HTTP_HEAD_NEED_MORE) {
        return head->status;
    }
    CHECK(usable >= head->parsed); // the caller never takes bytes back
    if (usable == head->parsed) {
        return HTTP_HEAD_NEED_MORE;
    }
    if (head->is_foreign) {
        return head_foreign(head, buffer, usable);
    }
    head->base = buffer;
    result = llhttp_execute(&head->parser, buffer + head->parsed, usable - head->parsed);
    head->base = NULL;

    if (head->is_complete) {
        head->head_size = (uint32_t)(llhttp_get_error_pos(&head->parser) - buffer);
        head->parsed = head->head_size;
        trim_values(head, buffer);
        return head_finish(head, http_head_judge(head, buffer));
    }
    // The second: methods of other protocols, which llhttp knows and refuses behind the target.
    if (result == HPE_INVALID_METHOD || (result == HPE_INVALID_CONSTANT && head->header_count == 0)) {
        head->is_foreign = true;
        return head_foreign(head, buffer, usable);
    }
    if (result != HPE_OK) {
        return head_finish(
            head, head->error != HTTP_HEAD_ERROR_NONE ? head->error : error_of_llhttp(&head->parser, result));
    }
    return head_wait(head, usable);
}

struct text http_head_find(const struct http_head *head, const char *buffer, const char *name)
{
    struct text wanted = text_of_string(name);

    for (unsigned i = 0; i < head->header_count; i++) {
        if (text_equal_nocase(http_head_text(buffer, head->headers[i].name), wanted)) {
            return http_head_text(buffer, head->headers[i].value);
        }
    }
    return (struct text){0};
}

unsigned http_head_count(const struct http_head *head, const char *buffer, const char *name)
{
    struct text wanted = text_of_string(name);
    unsigned count = 0;

    for (unsigned i = 0; i < head->header_count; i++) {
        count += text_equal_nocase(http_head_text(buffer, head->headers[i].name), wanted);
    }
    return count;
}

bool http_head_has_token(const struct http_head *head, const char *buffer, const char *name,
                         const char *token)
{
    struct text wanted = text_of_string(name);

    for (unsigned i = 0; i < head->header_count; i++) {
        if (!text_equal_nocase(http_head_text(buffer, head->headers[i].name), wanted)) {
            continue;
        }
        struct text rest = http_head_text(buffer, head->headers[i].value);

        while (!text_is_absent(rest)) {
            if (text_is_nocase(text_trim(text_take_until(&rest, ',')), token)) {
                return true;
            }
        }
    }
    return false;
}
