// SPDX-License-Identifier: Apache-2.0
//
// HTTP/1.1 request heads: from the bytes received so far to a method, a raw target, headers and body framing.
//
// Owns the syntax and the framing decision of RFC 9112 (llhttp does the tokenising, this file decides what is accepted).
// Must not read the clock, allocate, copy header bytes, or know anything about S3.
//
// Invariants:
// 1. All positions are offsets into the caller's buffer. The buffer may be moved between calls as long as the bytes
//    [0, len) stay the same; it must not be edited.
// 2. Every received byte is tokenised once: a slow sender costs linear time.
// 3. After HTTP_HEAD_DONE the body starts at exactly buffer + head_size, and the bytes behind it have not been looked at.
// 4. The answer depends on the bytes only, never on how they were split over calls.
// 5. A request whose body length two parsers could disagree about is refused (RFC 9112 section 6.3, section 11.2).

#ifndef SERVER_HTTP_HEAD_H
#define SERVER_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <llhttp.h>

#include "server/text.h"

#define HTTP_HEAD_LIMIT_DEFAULT 16384u
#define HTTP_HEAD_LIMIT_MIN 1024u
#define HTTP_HEAD_LIMIT_MAX 65535u // offsets are 16 bits wide
#define HTTP_HEAD_HEADERS_MAX 128u

enum http_method {
    HTTP_METHOD_OTHER = 0, // known to HTTP but to nobody here (PATCH, PROPFIND, ...)
    HTTP_METHOD_GET,
    HTTP_METHOD_HEAD,
    HTTP_METHOD_PUT,
    HTTP_METHOD_POST,
    HTTP_METHOD_DELETE,
    HTTP_METHOD_OPTIONS,
};

enum http_head_status {
    HTTP_HEAD_NEED_MORE, // call again with more bytes
    HTTP_HEAD_DONE,      // all fields are valid
    HTTP_HEAD_BAD,       // `error` says why; answer it, then close
};

// Why a head was refused. s3_error_from_head() gives the answer; the number is its HTTP status.
enum http_head_error {
    HTTP_HEAD_ERROR_NONE = 0,
    HTTP_HEAD_ERROR_SYNTAX,           // 400 request line, header syntax, obs-fold, NUL, bare CR or LF
    HTTP_HEAD_ERROR_FRAMING,          // 400 Content-Length with Transfer-Encoding, two lengths, bad length
    HTTP_HEAD_ERROR_HOST,             // 400 HTTP/1.1 without exactly one Host
    HTTP_HEAD_ERROR_TOO_LARGE,        // 400 as S3 has it (RequestHeaderSectionTooLarge); 431 in plain HTTP
    HTTP_HEAD_ERROR_TOO_MANY_HEADERS, // likewise
    HTTP_HEAD_ERROR_METHOD,           // 405 a well-formed request line with a method that HTTP does not know
    HTTP_HEAD_ERROR_EXPECTATION,      // 417 an expectation other than 100-continue
    HTTP_HEAD_ERROR_ENCODING,         // 501 a transfer coding other than chunked
    HTTP_HEAD_ERROR_VERSION,          // 505 neither HTTP/1.0 nor HTTP/1.1
    HTTP_HEAD_ERROR_COUNT,
};

struct http_head_span {
    uint16_t offset;
    uint16_t len;
};

struct http_head_field {
    struct http_head_span name;
    struct http_head_span value; // without white space around it
};

struct http_head {
    // Results, valid after HTTP_HEAD_DONE (after HTTP_HEAD_BAD: error, and what was seen of the rest, for the log only).
    enum http_head_error error;
    enum http_method method;
    struct http_head_span method_text;
    struct http_head_span target; // raw request-target, exactly as received
    uint32_t head_size;           // the body begins at buffer + head_size
    uint64_t content_length;      // 0 when there is none
    bool has_content_length;
    bool is_chunked;       // Transfer-Encoding: chunked; then has_content_length is false
    bool expects_100;      // false on HTTP/1.0, where Expect must be ignored (RFC 9110 section 10.1.1)
    bool keep_alive;       // what the client asks for, defaults per version applied
    uint8_t version_minor; // 0 or 1
    uint16_t header_count;
    struct http_head_field headers[HTTP_HEAD_HEADERS_MAX];

    // Private to http_head.c.
    const char *base; // the buffer of the call in progress, NULL between calls
    uint32_t limit;
    uint32_t parsed;
    enum http_head_status status;
    bool in_value;
    bool is_complete;
    bool is_foreign; // llhttp does not know the method; foreign_judge() reads the request line
    llhttp_t parser;
};

// Prepares for the next head of a connection. limit is the largest accepted head in bytes, request line and final empty
// line included; it must lie in [HTTP_HEAD_LIMIT_MIN, HTTP_HEAD_LIMIT_MAX] (CHECKed: it comes from configuration).
void http_head_begin(struct http_head *head, uint32_t limit);

// Continues with buffer[0, len), where len only grows from call to call and bytes already shown stay the same.
// Bytes behind the head are not looked at. Of a request with an unknown method no more than the request line is read. Once DONE or BAD was returned, further calls return it again.
// Never blocks, never allocates. HTTP_HEAD_BAD is possible before the head is complete: answer at once, then close.
// A len of at least `limit` without a complete head is HTTP_HEAD_ERROR_TOO_LARGE, so a buffer of `limit` bytes suffices.
enum http_head_status http_head_parse(struct http_head *head, const char *buffer, size_t len);

// HTTP status code and one English sentence for an error. S3 codes: s3_error_from_head() in s3_error.h.

// The bytes of a span; borrowed from buffer.
static inline struct text http_head_text(const char *buffer, struct http_head_span span)
{
    return text_of(buffer + span.offset, span.len);
}

// The value of the first header with this name (any case), or an absent text. Linear in the header count.
struct text http_head_find(const struct http_head *head, const char *buffer, const char *name);

// How many headers carry this name (any case): callers refuse a second Content-MD5 or Range rather than guess.
unsigned http_head_count(const struct http_head *head, const char *buffer, const char *name);

// True when a comma-separated list header (all its lines) holds the token, in any case.
bool http_head_has_token(const struct http_head *head, const char *buffer, const char *name,
                         const char *token);

#endif
