// SPDX-License-Identifier: Apache-2.0
//
// Conditional requests (RFC 9110 section 13): evaluates the five precondition headers against what exists.
//
// Pure decision; answers nothing itself. Where clients deviate from the RFC we follow the clients: an ETag without quotes
// is accepted and compared as if it had them, because SDK users pass it that way.

#ifndef SERVER_HTTP_COND_H
#define SERVER_HTTP_COND_H

#include <stdbool.h>
#include <stdint.h>

#include "server/http_head.h"
#include "server/text.h"

struct http_cond {
    struct text if_match; // absent when the header was not sent
    struct text if_none_match;
    struct text if_modified_since;
    struct text if_unmodified_since;
    struct text if_range;
};

// The current state of the object.
struct http_cond_object {
    bool exists;
    struct text etag;   // without the quotes; ours are always strong
    int64_t modified_s; // seconds since 1970
};

enum http_cond_result {
    HTTP_COND_PROCEED,
    HTTP_COND_NOT_MODIFIED, // 304; only for GET and HEAD
    HTTP_COND_FAILED,       // 412 PreconditionFailed
};

// Collects the headers; the texts are borrowed from buffer. prefix is "" for the request's own preconditions or
// "x-amz-copy-source-" for those of a copy source.
void http_cond_from_head(struct http_cond *cond, const struct http_head *head, const char *buffer,
                         const char *prefix);

// Evaluates in the order of RFC 9110 section 13.2.2. is_read is true for GET and HEAD: only then a matching If-None-Match
// is 304 and If-Modified-Since counts at all. For a copy source call with is_read = false and use
// http_cond_evaluate_copy(), where S3 answers 412 instead of 304. A date that does not parse is ignored.
// S3 answers 404, not 412, to a read of a missing object: look the object up first.
enum http_cond_result http_cond_evaluate(const struct http_cond *cond, const struct http_cond_object *object,
                                         bool is_read, int64_t now_s);
enum http_cond_result http_cond_evaluate_copy(const struct http_cond *cond,
                                              const struct http_cond_object *object, int64_t now_s);

// True when a Range header may be honoured under If-Range (strong comparison; a date must equal Last-Modified).
// True without If-Range.
bool http_cond_range_allowed(const struct http_cond *cond, const struct http_cond_object *object,
                             int64_t now_s);

// Conditional writes, which must be decided inside the index transaction: what the committer has to demand.
enum http_cond_put {
    HTTP_COND_PUT_ALWAYS,
    HTTP_COND_PUT_IF_ABSENT, // If-None-Match: *      -> 412 when the key exists
    HTTP_COND_PUT_IF_ETAG, // If-Match: "etag"      -> 412 on another ETag, 404 NoSuchKey when the key is absent
    HTTP_COND_PUT_IF_EXISTS, // If-Match: *           -> 404 when the key is absent (as the row above)
    HTTP_COND_PUT_REFUSED,   // anything else: 501 NotImplemented, as S3 does
};

// *etag is set (without quotes, borrowed) for HTTP_COND_PUT_IF_ETAG only.
enum http_cond_put http_cond_for_put(const struct http_cond *cond, struct text *etag);

#endif
