// SPDX-License-Identifier: Apache-2.0
//
// The S3 error table and the XML body of an error answer.
//
// One row per code in s3_error.def. Knows nothing of connections; it gives a status, a code and a body.

#ifndef SERVER_S3_ERROR_H
#define SERVER_S3_ERROR_H

#include <stddef.h>
#include <stdint.h>

#include "server/http_head.h"
#include "server/text.h"

enum s3_error {
    S3_OK = 0,
#define S3_ERROR(symbol, code, status, message) S3_ERR_##symbol,
#include "server/s3_error.def"
#undef S3_ERROR
    S3_ERROR_COUNT,
};

// CHECKs that error is in (S3_OK, S3_ERROR_COUNT).
const char *s3_error_code(enum s3_error error);
int s3_error_status(enum s3_error error);
const char *s3_error_message(enum s3_error error);

// The S3 form of a refused head.
enum s3_error s3_error_from_head(enum http_head_error error);

// Additional elements, e.g. {"BucketName", bucket} or {"HeadersNotSigned", names}; absent texts are left out.
struct s3_error_extra {
    const char *tag;
    struct text value;
};

#define S3_ERROR_EXTRA_MAX 4

struct s3_error_body {
    enum s3_error error;
    const char *message;  // NULL for the table's message
    struct text resource; // what was asked for, e.g. "/bucket/key", decoded or raw; cut when it is very long
    struct text request_id;
    struct text host_id;
    struct s3_error_extra extra[S3_ERROR_EXTRA_MAX];
};

// Always enough for the body of any error, so that an answer never has to be dropped for space: texts are cut at
// S3_ERROR_TEXT_MAX bytes (at a character boundary).
#define S3_ERROR_TEXT_MAX 1100u
#define S3_ERROR_BODY_MAX 48000u

// Writes the XML document into out and returns its length. With size >= S3_ERROR_BODY_MAX it always fits; into a smaller
// buffer optional parts (extras, then resource) are left out until it fits; 2 KiB are always enough for the rest
// (CHECKed). Answers to HEAD carry no body, but the same length may be announced.
size_t s3_error_write(const struct s3_error_body *body, char *out, size_t size);

#endif
