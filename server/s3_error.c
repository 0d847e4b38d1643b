// SPDX-License-Identifier: Apache-2.0
//
// The S3 error table and error bodies; see s3_error.h.

#include "server/s3_error.h"

#include "base/check.h"
#include "server/utf8.h"
#include "server/xml_out.h"

static const struct {
    const char *code;
    int status;
    const char *message;
} error_table[S3_ERROR_COUNT] = {
    [S3_OK] = {"OK", 200, ""},
#define S3_ERROR(symbol, code, status, message) [S3_ERR_##symbol] = {code, status, message},
#include "server/s3_error.def"
#undef S3_ERROR
};

static void check_error(enum s3_error error)
{
    CHECK(error > S3_OK);
    CHECK(error < S3_ERROR_COUNT);
}

const char *s3_error_code(enum s3_error error)
{
    check_error(error);
    return error_table[error].code;
}

int s3_error_status(enum s3_error error)
{
    check_error(error);
    return error_table[error].status;
}

const char *s3_error_message(enum s3_error error)
{
    check_error(error);
    return error_table[error].message;
}

enum s3_error s3_error_from_head(enum http_head_error error)
{
    switch (error) {
    case HTTP_HEAD_ERROR_TOO_LARGE:
    case HTTP_HEAD_ERROR_TOO_MANY_HEADERS:
        return S3_ERR_REQUEST_HEAD_TOO_LARGE;
    case HTTP_HEAD_ERROR_METHOD:
        return S3_ERR_METHOD_NOT_ALLOWED;
    case HTTP_HEAD_ERROR_EXPECTATION:
        return S3_ERR_EXPECTATION_FAILED;
    case HTTP_HEAD_ERROR_ENCODING:
        return S3_ERR_NOT_IMPLEMENTED;
    case HTTP_HEAD_ERROR_VERSION:
        return S3_ERR_VERSION_NOT_SUPPORTED;
    case HTTP_HEAD_ERROR_NONE:
    case HTTP_HEAD_ERROR_COUNT:
        CHECK(!"a head that was refused");
    case HTTP_HEAD_ERROR_SYNTAX:
    case HTTP_HEAD_ERROR_FRAMING:
    case HTTP_HEAD_ERROR_HOST:
        break;
    }
    return S3_ERR_BAD_REQUEST;
}

// How much of the optional parts is written.
enum detail {
    DETAIL_ALL,
    DETAIL_NO_EXTRA,
    DETAIL_MINIMAL,
};

static void write_body(const struct s3_error_body *body, enum detail detail, struct xml_out *out)
{
    struct text message =
        text_of_string(body->message != NULL ? body->message : s3_error_message(body->error));

    xml_out_raw(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
    xml_out_element(out, "Code", text_of_string(s3_error_code(body->error)));
    xml_out_element(out, "Message", utf8_cut(message, detail == DETAIL_MINIMAL ? 100 : S3_ERROR_TEXT_MAX));
    if (detail == DETAIL_ALL) {
        for (unsigned i = 0; i < S3_ERROR_EXTRA_MAX; i++) {
            if (body->extra[i].tag != NULL && !text_is_absent(body->extra[i].value)) {
                xml_out_element(out, body->extra[i].tag, utf8_cut(body->extra[i].value, S3_ERROR_TEXT_MAX));
            }
        }
    }
    if (detail != DETAIL_MINIMAL && !text_is_absent(body->resource)) {
        xml_out_element(out, "Resource", utf8_cut(body->resource, S3_ERROR_TEXT_MAX));
    }
    xml_out_element(out, "RequestId", utf8_cut(body->request_id, 64));
    xml_out_element(out, "HostId", utf8_cut(body->host_id, 64));
    xml_out_raw(out, "</Error>");
}

// The worst case: everything that is cut at S3_ERROR_TEXT_MAX, growing as much as escaping can make it grow.
_Static_assert((S3_ERROR_EXTRA_MAX + 2) * (S3_ERROR_TEXT_MAX * XML_OUT_GROWTH_MAX + 128) +
                       2 * (64 * XML_OUT_GROWTH_MAX) + 512 <=
                   S3_ERROR_BODY_MAX,
               "an error body always fits");

// The smallest form: a message of 100 bytes and two ids of 64.
#define BODY_MINIMAL_MAX 2048u
_Static_assert(100 * XML_OUT_GROWTH_MAX + 2 * (64 * XML_OUT_GROWTH_MAX) + 512 <= BODY_MINIMAL_MAX,
               "2 KiB always hold an error body");

size_t s3_error_write(const struct s3_error_body *body, char *buffer, size_t size)
{
    struct xml_out out;

    CHECK(size >= BODY_MINIMAL_MAX);
    for (enum detail detail = DETAIL_ALL; detail <= DETAIL_MINIMAL; detail++) {
        xml_out_begin(&out, buffer, size);
        write_body(body, detail, &out);
        if (!out.is_full) {
            return out.len;
        }
    }
    CHECK(!"size is too small even for the smallest error body");
    return 0;
}
