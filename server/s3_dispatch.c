/* SPDX-License-Identifier: Apache-2.0 */
/* s3_dispatch: from a complete head to the operation's handler, in S3's order: target, credentials, then the rest. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "server/s3_handlers.h"

const struct s3_xml_owner s3_owner = {.id = {.at = "penstock", .len = 8},
                                      .display_name = {.at = "penstock", .len = 8}};

/* ---- what handlers share -------------------------------------------------------------------------------------- */

void s3_name_set(struct store_name *name, struct text text)
{
    CHECK(text.len <= STORE_KEY_MAX);
    name->len = (uint16_t)text.len;
    if (text.len > 0) {
        memcpy(name->bytes, text.at, text.len);
    }
}

void s3_request_target(struct exchange *x)
{
    struct text bucket = x->target.bucket;
    CHECK(bucket.len <= STORE_BUCKET_MAX);
    memcpy(x->request.bucket, bucket.at, bucket.len);
    x->request.bucket[bucket.len] = '\0';
    if (!text_is_absent(x->target.key)) {
        s3_name_set(&x->request.key, x->target.key);
    }
}

/* An id that is too long for any of ours is cut: it then names no upload, which is the right answer. */
void s3_request_upload_id(struct exchange *x)
{
    struct text id = s3_target_param(&x->target, "uploadId");
    size_t len = id.len < STORE_UPLOAD_ID_MAX ? id.len : STORE_UPLOAD_ID_MAX;
    if (len > 0) {
        memcpy(x->request.upload_id, id.at, len);
    }
    x->request.upload_id[len] = '\0';
    x->request.part_number = x->target.part_number;
}

static const struct {
    int code;
    enum s3_error error;
} s3_store_errors[] = {
    {-ENOSPC, S3_ERR_STORAGE_FULL},
    {ERR_LIMIT, S3_ERR_SLOW_DOWN},
    {ERR_NO_SUCH_BUCKET, S3_ERR_NOT_FOUND_BUCKET},
    {ERR_BUCKET_EXISTS, S3_ERR_BUCKET_ALREADY_OWNED},
    {ERR_BUCKET_NOT_EMPTY, S3_ERR_BUCKET_NOT_EMPTY},
    {ERR_NO_SUCH_KEY, S3_ERR_NOT_FOUND_KEY},
    {ERR_NO_SUCH_UPLOAD, S3_ERR_NOT_FOUND_UPLOAD},
    {ERR_INVALID_PART, S3_ERR_INVALID_PART},
    {ERR_INVALID_PART_ORDER, S3_ERR_INVALID_PART_ORDER},
    {ERR_PART_TOO_SMALL, S3_ERR_ENTITY_TOO_SMALL},
    {ERR_PRECONDITION, S3_ERR_PRECONDITION_FAILED},
    {ERR_DEVICE_FAILED, S3_ERR_SERVICE_UNAVAILABLE},
    {ERR_SHUTDOWN, S3_ERR_SERVICE_UNAVAILABLE},
    {-ESTALE, S3_ERR_SERVICE_UNAVAILABLE}, /* a copy whose source changed each time it was looked up */
};

enum s3_error s3_error_of(int status)
{
    CHECK(status < 0);
    for (size_t i = 0; i < sizeof(s3_store_errors) / sizeof(s3_store_errors[0]); i++) {
        if (status == s3_store_errors[i].code) {
            return s3_store_errors[i].error;
        }
    }
    return S3_ERR_INTERNAL;
}

bool s3_answer_failed(struct exchange *x)
{
    if (x->request.status >= 0) {
        return false;
    }
    http_respond_error(x, s3_error_of(x->request.status));
    return true;
}

struct text s3_etag_text(const char *etag, char to[S3_ETAG_TEXT_MAX])
{
    int len = snprintf(to, S3_ETAG_TEXT_MAX, "\"%s\"", etag);
    return text_of(to, (size_t)len);
}

uint64_t s3_object_size(const struct store_object *object)
{
    return zframe_size(store_object_attributes(object)->checksum, store_object_size(object));
}

enum s3_checksum_kind s3_checksum_attribute(const char *checksum, struct text *value)
{
    struct text whole = text_of_string(checksum);
    struct text rest = text_take_until(&whole, ' '); /* Behind it: how the object is stored (zframe.h). */
    struct text name = text_take_until(&rest, '=');
    *value = rest;
    return text_is_absent(rest) ? S3_CHECKSUM_NONE : s3_checksum_from_name(name);
}

/* ---- the table ------------------------------------------------------------------------------------------------ */

static void s3_not_implemented(struct exchange *x)
{
    http_respond_error(x, S3_ERR_NOT_IMPLEMENTED);
}

static void (*const s3_handlers[S3_OP_COUNT])(struct exchange *x) = {
    [S3_OP_LIST_BUCKETS] = s3_list_buckets,
    [S3_OP_CREATE_BUCKET] = s3_create_bucket,
    [S3_OP_HEAD_BUCKET] = s3_head_bucket,
    [S3_OP_DELETE_BUCKET] = s3_delete_bucket,
    [S3_OP_LIST_OBJECTS] = s3_list_objects,
    [S3_OP_LIST_OBJECTS_V2] = s3_list_objects,
    [S3_OP_LIST_OBJECT_VERSIONS] = s3_list_objects,
    [S3_OP_LIST_MULTIPART_UPLOADS] = s3_list_uploads,
    [S3_OP_DELETE_OBJECTS] = s3_delete_objects,
    [S3_OP_GET_BUCKET_LOCATION] = s3_bucket_query,
    [S3_OP_GET_BUCKET_VERSIONING] = s3_bucket_query,
    [S3_OP_GET_BUCKET_ACL] = s3_bucket_query,
    [S3_OP_GET_OBJECT_LOCK] = s3_bucket_query,
    [S3_OP_GET_BUCKET_CONFIG] = s3_bucket_query,
    [S3_OP_PUT_OBJECT] = s3_put_object,
    [S3_OP_COPY_OBJECT] = s3_copy_object,
    [S3_OP_GET_OBJECT] = s3_get_object,
    [S3_OP_HEAD_OBJECT] = s3_get_object,
    [S3_OP_DELETE_OBJECT] = s3_delete_object,
    [S3_OP_GET_OBJECT_ACL] = s3_object_query,
    [S3_OP_GET_OBJECT_TAGGING] = s3_object_query,
    [S3_OP_CREATE_MULTIPART_UPLOAD] = s3_create_upload,
    [S3_OP_UPLOAD_PART] = s3_upload_part,
    [S3_OP_UPLOAD_PART_COPY] = s3_upload_part_copy,
    [S3_OP_LIST_PARTS] = s3_list_parts,
    [S3_OP_COMPLETE_MULTIPART_UPLOAD] = s3_complete_upload,
    [S3_OP_ABORT_MULTIPART_UPLOAD] = s3_abort_upload,
};

static enum s3_error s3_read_target(struct exchange *x)
{
    struct s3_target_input input = {
        .method = x->head.method,
        .target = http_head_text(x->head_bytes, x->head.target),
        .host = http_request_header(x, "host"),
        .domains = &x->listener->domain,
        .domain_count = text_is_absent(x->listener->domain) ? 0 : 1,
        .has_copy_source = !text_is_absent(http_request_header(x, "x-amz-copy-source")),
    };
    if (input.target.len > sizeof(x->scratch)) {
        return S3_ERR_INVALID_URI;
    }
    return s3_target_parse(&x->target, &input, x->scratch, sizeof(x->scratch));
}

void s3_dispatch(struct exchange *x)
{
    enum s3_error error = s3_read_target(x);
    if (error == S3_OK) {
        x->operation = x->target.op;
        error = auth_payload_read(&x->payload, &x->head, x->head_bytes, &x->target);
    }
    if (error == S3_OK) {
        error = s3_authorize(x);
    }
    if (error == S3_ERR_AUTH_HEADER_REGION || error == S3_ERR_AUTH_QUERY_REGION) {
        /* SDKs read the element and sign again with its region. */
        http_respond_error_with(x, error, "Region", text_of_string(x->listener->conf->region));
        return;
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    void (*handler)(struct exchange * x) = s3_handlers[x->target.op];
    (handler != NULL ? handler : s3_not_implemented)(x);
}
