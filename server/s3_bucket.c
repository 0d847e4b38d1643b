/* SPDX-License-Identifier: Apache-2.0 */
/* s3_bucket: creating, deleting and asking about buckets; the sub-resources that clients probe for and nobody set. */
#include <string.h>

#include "server/s3_handlers.h"

/* ---- CreateBucket --------------------------------------------------------------------------------------------- */

static void create_done(struct exchange *x)
{
    /* Every bucket of this node belongs to its one owner; clients that create it on each run (rclone) go on. */
    if (x->request.status != ERR_BUCKET_EXISTS && s3_answer_failed(x)) {
        return;
    }
    char location[STORE_BUCKET_MAX + 2];
    location[0] = '/';
    memcpy(location + 1, x->request.bucket, sizeof(x->request.bucket));
    http_response_begin(x, 200);
    http_response_header(x, "Location", text_of_string(location));
    http_respond_empty(x, 200);
}

static void create_body(struct exchange *x, const struct slice *slice)
{
    if (x->xml_error == S3_OK) {
        x->xml_error = s3_xml_read_feed(&x->xml, slice->addr, slice->len);
    }
    slice_release(slice);
}

static void create_body_end(struct exchange *x)
{
    enum s3_error error = x->xml_error != S3_OK ? x->xml_error : s3_xml_read_finish(&x->xml);
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    exchange_submit(x, STORE_BUCKET_CREATE, create_done);
}

static const struct exchange_ops create_ops = {.body = create_body, .body_end = create_body_end};

void s3_create_bucket(struct exchange *x)
{
    s3_request_target(x);
    static const struct s3_xml_read_handler nobody = {0};
    if (s3_xml_read_open(&x->xml, S3_XML_DOCUMENT_CREATE, &nobody) < 0) {
        http_respond_error(x, S3_ERR_INTERNAL);
        return;
    }
    x->is_xml_open = true;
    x->ops = &create_ops;
    http_body_accept(x);
}

/* ---- HeadBucket, DeleteBucket --------------------------------------------------------------------------------- */

static void head_done(struct exchange *x)
{
    if (s3_answer_failed(x)) {
        return;
    }
    http_response_begin(x, 200);
    http_response_header(x, "x-amz-bucket-region", text_of_string(x->listener->conf->region));
    http_respond_empty(x, 200);
}

void s3_head_bucket(struct exchange *x)
{
    s3_request_target(x);
    exchange_submit(x, STORE_BUCKET_LOOKUP, head_done);
}

static void delete_done(struct exchange *x)
{
    if (!s3_answer_failed(x)) {
        http_respond_empty(x, 204);
    }
}

void s3_delete_bucket(struct exchange *x)
{
    s3_request_target(x);
    exchange_submit(x, STORE_BUCKET_DELETE, delete_done);
}

/* ---- what nobody set ------------------------------------------------------------------------------------------ */

static enum s3_error config_absent(struct text name)
{
    static const struct {
        const char *name;
        enum s3_error error;
    } rows[] = {
        {"policy", S3_ERR_NOT_FOUND_BUCKET_POLICY},    {"cors", S3_ERR_NOT_FOUND_CORS},
        {"lifecycle", S3_ERR_NOT_FOUND_LIFECYCLE},     {"encryption", S3_ERR_NOT_FOUND_ENCRYPTION},
        {"object-lock", S3_ERR_NOT_FOUND_OBJECT_LOCK}, {"tagging", S3_ERR_NOT_FOUND_TAGS},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (text_is(name, rows[i].name)) {
            return rows[i].error;
        }
    }
    return S3_ERR_NOT_IMPLEMENTED;
}

static void bucket_query_done(struct exchange *x)
{
    if (s3_answer_failed(x)) {
        return;
    }
    http_xml_begin(x);
    switch (x->target.op) {
    case S3_OP_GET_BUCKET_LOCATION:
        /* It fits: a region's name. */
        (void)s3_xml_location(&x->xml_out, text_of_string(x->listener->conf->region));
        break;
    case S3_OP_GET_BUCKET_VERSIONING:
        (void)s3_xml_versioning_off(&x->xml_out); /* Constant text. */
        break;
    case S3_OP_GET_BUCKET_ACL:
        (void)s3_xml_acl_private(&x->xml_out, &s3_owner); /* Constant text. */
        break;
    default:
        http_respond_error(x, config_absent(x->target.subresource));
        return;
    }
    http_respond_xml(x, 200);
}

void s3_bucket_query(struct exchange *x)
{
    s3_request_target(x);
    exchange_submit(x, STORE_BUCKET_LOOKUP, bucket_query_done);
}

static void object_query_done(struct exchange *x)
{
    if (s3_answer_failed(x)) {
        return;
    }
    http_xml_begin(x);
    if (x->target.op == S3_OP_GET_OBJECT_ACL) {
        (void)s3_xml_acl_private(&x->xml_out, &s3_owner); /* Constant text. */
    } else {
        (void)s3_xml_tagging_empty(&x->xml_out); /* Constant text. */
    }
    http_respond_xml(x, 200);
}

void s3_object_query(struct exchange *x)
{
    s3_request_target(x);
    exchange_submit(x, STORE_OBJECT_LOOKUP, object_query_done);
}
