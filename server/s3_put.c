/* SPDX-License-Identifier: Apache-2.0 */
/* s3_put: PutObject and UploadPart. The bucket (or the multipart upload) is looked up before 100 Continue is sent. */
#include <string.h>

#include "server/s3_handlers.h"

/* Header names are lower case in s3_checksum.c; HTTP does not care. */
static void s3_checksum_headers(struct exchange *x, const struct store_attributes *attributes)
{
    struct text value;
    enum s3_checksum_kind kind = s3_checksum_attribute(attributes->checksum, &value);
    if (kind != S3_CHECKSUM_NONE) {
        http_response_header(x, s3_checksum_header(kind), value);
        http_response_header(x, "x-amz-checksum-type", TEXT("FULL_OBJECT"));
    }
}

void s3_put_headers(struct exchange *x, const struct store_attributes *attributes)
{
    char etag[S3_ETAG_TEXT_MAX];
    http_response_header(x, "ETag", s3_etag_text(attributes->etag, etag));
    s3_checksum_headers(x, attributes);
}

static void s3_put_done(struct exchange *x)
{
    if (x->upload.state == UPLOAD_FAILED) {
        if (x->stage < EXCHANGE_RESPOND) {
            http_respond_error(x, x->upload.error);
        }
        return;
    }
    http_response_begin(x, 200);
    s3_put_headers(x, &x->upload.attributes);
    http_respond_empty(x, 200);
}

static void s3_put_body_failed(struct exchange *x, enum s3_error error)
{
    enum metrics_abort cause = error == S3_ERR_REQUEST_TIMEOUT ? METRICS_ABORT_TIMEOUT
                               : x->conn->is_eof               ? METRICS_ABORT_PEER
                                                               : METRICS_ABORT_PROTOCOL;
    upload_fail(x, error, cause);
}

static const struct exchange_ops s3_put_ops = {
    .body = upload_append,
    .body_end = upload_finish,
    .body_failed = s3_put_body_failed,
};

/* A part that names no checksum of its own gets the one that its upload was created with. */
static void s3_put_inherit_checksum(struct exchange *x)
{
    struct text type;
    enum s3_checksum_kind kind = s3_checksum_attribute(x->request.checksum, &type);
    if (x->request.upload_id[0] != '\0' && x->upload.checks.algorithm == S3_CHECKSUM_NONE) {
        x->upload.checks.algorithm = kind;
    }
}

static void s3_put_ready(struct exchange *x)
{
    if (s3_answer_failed(x)) {
        return;
    }
    s3_put_inherit_checksum(x);
    enum s3_error error = upload_open(x, http_body_size(x));
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    x->ops = &s3_put_ops;
    http_body_accept(x);
}

enum s3_error s3_put_condition(struct exchange *x)
{
    struct http_cond cond;
    struct text etag = {0};
    struct upload *upload = &x->upload;
    http_cond_from_head(&cond, &x->head, x->head_bytes, "");
    switch (http_cond_for_put(&cond, &etag)) {
    case HTTP_COND_PUT_ALWAYS:
        return S3_OK;
    case HTTP_COND_PUT_IF_ABSENT:
        upload->condition.if_none_match_any = true;
        break;
    case HTTP_COND_PUT_IF_ETAG:
        if (etag.len > STORE_ETAG_MAX) {
            return S3_ERR_PRECONDITION_FAILED; /* No ETag of ours is that long. */
        }
        memcpy(upload->condition.if_match, etag.at, etag.len);
        upload->condition.if_match[etag.len] = '\0';
        break;
    case HTTP_COND_PUT_IF_EXISTS:
        memcpy(upload->condition.if_match, "*", 2);
        break;
    case HTTP_COND_PUT_REFUSED:
        return S3_ERR_NOT_IMPLEMENTED;
    }
    upload->has_condition = true;
    return S3_OK;
}

/* What PutObject and UploadPart have in common: lengths and checksums. */
static enum s3_error s3_put_prepare(struct exchange *x)
{
    struct upload *upload = &x->upload;
    upload_init(x, s3_put_done);
    if (!x->head.has_content_length && !x->head.is_chunked) {
        return S3_ERR_MISSING_CONTENT_LENGTH;
    }
    uint64_t size = http_body_size(x);
    if (size != UINT64_MAX && size > x->listener->conf->limits.object_size_max) {
        metrics_add(&x->listener->cells->limits_hit[METRICS_LIMIT_OBJECT_SIZE], 1);
        return S3_ERR_ENTITY_TOO_LARGE;
    }
    if (x->payload.payload == AUTH_PAYLOAD_SHA256) {
        upload->sha256.kind = S3_CHECKSUM_SHA256;
        memcpy(upload->sha256.digest, x->payload.sha256, sizeof(x->payload.sha256));
    }
    upload->wants_md5_etag = x->listener->conf->etag == CONF_ETAG_MD5;
    s3_request_target(x);
    return s3_checksum_request_read(&upload->checks, &x->head, x->head_bytes);
}

void s3_put_object(struct exchange *x)
{
    enum s3_error error = s3_put_prepare(x);
    if (error == S3_OK) {
        error = s3_put_condition(x);
    }
    if (error == S3_OK) {
        error = s3_meta_pack(&x->upload.attributes, &x->head, x->head_bytes);
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    exchange_submit(x, STORE_BUCKET_LOOKUP, s3_put_ready);
}

void s3_upload_part(struct exchange *x)
{
    enum s3_error error = s3_put_prepare(x);
    if (error == S3_OK && x->target.part_number == 0) {
        error = S3_ERR_INVALID_PART_NUMBER;
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    s3_request_upload_id(x);
    exchange_submit(x, STORE_UPLOAD_LOOKUP, s3_put_ready);
}
