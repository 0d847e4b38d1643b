/* SPDX-License-Identifier: Apache-2.0 */
/* s3_copy: CopyObject and UploadPartCopy. Only metadata moves: the copy refers to the source's extents. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "server/s3_handlers.h"

#define COPY_LOOKUPS_MAX 16U /* of a source that is overwritten each time before the copy gets there */

/* ---- the answer ----------------------------------------------------------------------------------------------- */

void s3_copy_respond(struct exchange *x, const struct store_attributes *attributes, uint64_t modified_ns)
{
    struct s3_xml_checksum checksum = {0};
    checksum.kind = s3_checksum_attribute(attributes->checksum, &checksum.value);
    http_xml_begin(x);
    bool fits = s3_xml_copy_result(&x->xml_out, x->target.op == S3_OP_UPLOAD_PART_COPY,
                                   text_of_string(attributes->etag), (int64_t)modified_ns,
                                   checksum.kind == S3_CHECKSUM_NONE ? NULL : &checksum);
    CHECK(fits); /* An ETag and a checksum. */
    http_respond_xml(x, 200);
}

/* Asks the store for the source. */
static void copy_look_up(struct exchange *x)
{
    x->copying.lookups++;
    memcpy(x->request.bucket, x->copying.bucket, sizeof(x->request.bucket));
    x->request.key = x->copying.key;
    exchange_submit(x, STORE_OBJECT_LOOKUP, x->copying.found);
}

/* Was the source overwritten or deleted between its lookup and the transaction? Then the copy is of what is there now. */
static bool copy_looks_again(struct exchange *x)
{
    if (x->request.status != -ESTALE || x->copying.lookups >= COPY_LOOKUPS_MAX) {
        return false;
    }
    store_object_release(x->worker->port, x->source);
    x->source = NULL;
    x->request.source = NULL;
    copy_look_up(x);
    return true;
}

static void copy_done(struct exchange *x)
{
    if (copy_looks_again(x)) {
        return;
    }
    if (s3_answer_failed(x)) {
        return;
    }
    /* The store gives the new object back; a part has none. */
    const struct store_attributes *attributes = &x->upload.attributes;
    uint64_t modified_ns = x->worker->wall_ns;
    if (x->object != NULL) {
        attributes = store_object_attributes(x->object);
        modified_ns = store_object_modified_ns(x->object);
    }
    s3_copy_respond(x, attributes, modified_ns);
}

/* ---- the source ----------------------------------------------------------------------------------------------- */

static enum s3_error copy_check_source(struct exchange *x)
{
    struct http_cond cond;
    int64_t now_s = (int64_t)(x->worker->wall_ns / NS_PER_S);
    struct http_cond_object object = {
        .exists = true,
        .etag = text_of_string(store_object_attributes(x->source)->etag),
        .modified_s = (int64_t)(store_object_modified_ns(x->source) / NS_PER_S),
    };
    http_cond_from_head(&cond, &x->head, x->head_bytes, "x-amz-copy-source-");
    return http_cond_evaluate_copy(&cond, &object, now_s) == HTTP_COND_PROCEED ? S3_OK
                                                                               : S3_ERR_PRECONDITION_FAILED;
}

/* The looked-up object becomes the source, and the request is turned to the target. */
static enum s3_error copy_source_found(struct exchange *x)
{
    x->source = x->object;
    x->object = NULL;
    s3_request_target(x);
    x->request.source = x->source;
    return copy_check_source(x);
}

/* Parses x-amz-copy-source into x->copying and asks the store for it. */
static void copy_begin(struct exchange *x, void (*found)(struct exchange *x))
{
    struct s3_copy_source source;
    struct text header = http_request_header(x, "x-amz-copy-source");
    enum s3_error error = S3_ERR_COPY_SOURCE_INVALID;
    if (header.len <= EXCHANGE_OUT_SIZE) {
        error = s3_target_parse_copy_source(&source, header, x->out, EXCHANGE_OUT_SIZE); /* Unused so far. */
    }
    if (error == S3_OK && !s3_may(x, S3_PERMISSION_READ, source.bucket, source.key)) {
        error = S3_ERR_ACCESS_DENIED;
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    memcpy(x->copying.bucket, source.bucket.at, source.bucket.len);
    x->copying.bucket[source.bucket.len] = '\0';
    s3_name_set(&x->copying.key, source.key);
    x->copying.found = found;
    copy_look_up(x);
}

/* ---- CopyObject ----------------------------------------------------------------------------------------------- */

static bool copy_is_to_itself(const struct exchange *x)
{
    return text_is(x->target.bucket, x->copying.bucket) &&
           text_equal(x->target.key, text_of((const char *)x->copying.key.bytes, x->copying.key.len));
}

static void copy_object_found(struct exchange *x)
{
    if (s3_answer_failed(x)) {
        return;
    }
    enum s3_error error = copy_source_found(x);
    if (error == S3_OK && copy_is_to_itself(x) && !x->copying.is_replacing) {
        error = S3_ERR_COPY_TO_ITSELF;
    }
    if (error == S3_OK && x->copying.is_replacing) {
        const struct store_attributes *source = store_object_attributes(x->source);
        memcpy(x->upload.attributes.etag, source->etag, sizeof(source->etag));
        memcpy(x->upload.attributes.checksum, source->checksum, sizeof(source->checksum));
        error = s3_meta_pack(&x->upload.attributes, &x->head, x->head_bytes);
        x->request.attributes = &x->upload.attributes;
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    x->request.condition = x->upload.has_condition ? &x->upload.condition : NULL;
    exchange_submit(x, STORE_OBJECT_COPY, copy_done);
}

static void copy_prepare(struct exchange *x)
{
    memset(&x->copying, 0, sizeof(x->copying));
    upload_init(x, NULL); /* Only its attributes and condition are used. */
}

void s3_copy_object(struct exchange *x)
{
    copy_prepare(x);
    x->copying.is_replacing = text_is_nocase(http_request_header(x, "x-amz-metadata-directive"), "REPLACE");
    enum s3_error error = s3_put_condition(x);
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    copy_begin(x, copy_object_found);
}

/* ---- UploadPartCopy ------------------------------------------------------------------------------------------- */

static bool part_copy_has_md5(const char *etag)
{
    return strlen(etag) == 32; /* An opaque one is longer and ends with a number of parts. */
}

/* Can the part refer to the source's bytes as they lie, with every digest that is asked for? Then its attributes are set. A piece
 * of a compressed object is none, and neither is one that has parts of its own. */
static bool part_copy_by_reference(struct exchange *x)
{
    struct text value, type;
    struct store_attributes *made = &x->upload.attributes;
    const struct store_attributes *source = store_object_attributes(x->source);
    uint64_t payload = store_object_size(x->source);
    bool is_compressed = zframe_is_marked(source->checksum, &payload);
    bool is_whole = x->copying.range.len == payload;
    bool is_md5 = x->listener->conf->etag == CONF_ETAG_MD5;
    enum s3_checksum_kind has = s3_checksum_attribute(source->checksum, &value);
    enum s3_checksum_kind wants = s3_checksum_attribute(x->request.checksum, &type);
    bool is_composite = has != S3_CHECKSUM_NONE && memchr(value.at, '-', value.len) != NULL;
    if ((is_compressed && (!is_whole || store_object_part_count(x->source) > 0)) ||
        (is_md5 && (!is_whole || !part_copy_has_md5(source->etag))) ||
        (wants != S3_CHECKSUM_NONE && (!is_whole || has != wants || is_composite))) {
        return false;
    }
    made->checksum[0] = '\0';
    if (is_whole && !is_composite) {
        memcpy(made->checksum, source->checksum, sizeof(made->checksum));
    }
    if (is_md5) {
        memcpy(made->etag, source->etag, sizeof(made->etag));
    } else {
        struct rng *rng = &x->worker->rng;
        (void)snprintf(made->etag, sizeof(made->etag), "%016llx%016llx-1", (unsigned long long)rng_u64(rng),
                       (unsigned long long)rng_u64(rng)); /* 34 bytes */
    }
    return true;
}

static void part_copy_ready(struct exchange *x)
{
    struct text type;
    if (s3_answer_failed(x)) {
        return;
    }
    struct http_range range = x->copying.range;
    if (!part_copy_by_reference(x)) {
        s3_copy_read(x, range, s3_checksum_attribute(x->request.checksum, &type));
        return;
    }
    bool is_whole = range.len == s3_object_size(x->source); /* Then all of it as it is stored. */
    x->request.attributes = &x->upload.attributes;
    x->request.source_offset = range.first;
    x->request.source_len = is_whole ? store_object_size(x->source) : range.len;
    exchange_submit(x, STORE_PART_COPY, copy_done);
}

static void part_copy_found(struct exchange *x)
{
    if (s3_answer_failed(x)) {
        return;
    }
    enum s3_error error = copy_source_found(x);
    uint64_t size = s3_object_size(x->source);
    struct text header = http_request_header(x, "x-amz-copy-source-range");
    x->copying.range = (struct http_range){.first = 0, .len = size};
    if (error == S3_OK && !text_is_absent(header) &&
        !http_range_parse_copy(header, size, &x->copying.range)) {
        error = S3_ERR_INVALID_COPY_RANGE;
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    s3_request_upload_id(x);
    exchange_submit(x, STORE_UPLOAD_LOOKUP, part_copy_ready);
}

void s3_upload_part_copy(struct exchange *x)
{
    copy_prepare(x);
    if (x->target.part_number == 0) {
        http_respond_error(x, S3_ERR_INVALID_PART_NUMBER);
        return;
    }
    copy_begin(x, part_copy_found);
}
