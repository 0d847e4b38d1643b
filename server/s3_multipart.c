/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_multipart: creating, completing and aborting uploads (parts: s3_put.c, s3_copy.c; listings: s3_listing.c).
 *
 * Completion: the document names parts; a listing of the upload then gives each part's ETag and checksum as stored, from
 * which the object's are made; the store decides in one transaction whether the parts named are the parts there are.
 */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "server/s3_handlers.h"

/* ---- CreateMultipartUpload ------------------------------------------------------------------------------------ */

static void create_done(struct exchange *x)
{
    if (s3_answer_failed(x)) {
        return;
    }
    struct text type;
    enum s3_checksum_kind kind = s3_checksum_attribute(x->upload.attributes.checksum, &type);
    if (!exchange_block_take(x)) {
        return;
    }
    xml_out_begin(&x->xml_out, x->block, WORKER_BLOCK_SIZE);
    bool fits = s3_xml_initiate_upload(&x->xml_out, x->target.bucket, x->target.key,
                                       text_of_string(x->request.upload_id));
    CHECK(fits);
    http_response_begin(x, 200);
    if (kind != S3_CHECKSUM_NONE) {
        http_response_header(x, "x-amz-checksum-algorithm", text_of_string(s3_checksum_name(kind)));
        http_response_header(x, "x-amz-checksum-type", type);
    }
    http_respond_xml(x, 200);
}

static const struct exchange_ops create_ops = {.resume = create_done};

/* What the object's checksum is to be is kept as the upload's: "CRC32=FULL_OBJECT". Of the whole only CRCs can be made
 * from the parts', and S3 knows CRC64NVME of the whole only. */
static enum s3_error create_checksum(struct exchange *x)
{
    struct text algorithm = http_request_header(x, "x-amz-checksum-algorithm");
    struct text type = http_request_header(x, "x-amz-checksum-type");
    bool wants_full = text_is_nocase(type, "FULL_OBJECT");
    if (!text_is_absent(type) && !wants_full && !text_is_nocase(type, "COMPOSITE")) {
        return S3_ERR_CHECKSUM_TYPE;
    }
    if (text_is_absent(algorithm)) {
        return text_is_absent(type) ? S3_OK : S3_ERR_CHECKSUM_TYPE;
    }
    enum s3_checksum_kind kind = s3_checksum_from_name(algorithm);
    if (kind == S3_CHECKSUM_NONE) {
        return S3_ERR_INVALID_CHECKSUM;
    }
    bool is_composite = !text_is_absent(type) && !wants_full;
    if ((wants_full && !s3_checksum_is_crc(kind)) || (is_composite && kind == S3_CHECKSUM_CRC64NVME)) {
        return S3_ERR_CHECKSUM_TYPE;
    }
    wants_full |= kind == S3_CHECKSUM_CRC64NVME;
    (void)snprintf(x->upload.attributes.checksum, sizeof(x->upload.attributes.checksum), "%s=%s",
                   s3_checksum_name(kind), wants_full ? "FULL_OBJECT" : "COMPOSITE"); /* 21 bytes at most */
    return S3_OK;
}

void s3_create_upload(struct exchange *x)
{
    upload_init(x, NULL); /* Only its attributes are used: the store reads them until the request is back. */
    enum s3_error error = s3_meta_pack(&x->upload.attributes, &x->head, x->head_bytes);
    if (error == S3_OK) {
        error = create_checksum(x);
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    s3_request_target(x);
    x->ops = &create_ops;
    x->request.attributes = &x->upload.attributes;
    exchange_submit(x, STORE_UPLOAD_CREATE, create_done);
}

/* ---- AbortMultipartUpload ------------------------------------------------------------------------------------- */

static void abort_done(struct exchange *x)
{
    if (!s3_answer_failed(x)) {
        http_respond_empty(x, 204);
    }
}

void s3_abort_upload(struct exchange *x)
{
    s3_request_target(x);
    s3_request_upload_id(x);
    exchange_submit(x, STORE_UPLOAD_ABORT, abort_done);
}

/* ---- CompleteMultipartUpload: the document -------------------------------------------------------------------- */

static enum s3_error complete_part(void *context, const struct s3_xml_read_part *part)
{
    struct exchange *x = context;
    struct store_part_ref *parts = x->table;
    if (x->completing.count == STORE_PART_MAX) {
        return S3_ERR_MALFORMED_XML;
    }
    if (part->etag.len > STORE_ETAG_MAX) {
        return S3_ERR_INVALID_PART;
    }
    struct store_part_ref *ref = &parts[x->completing.count++];
    memset(ref, 0, sizeof(*ref));
    ref->number = part->number;
    memcpy(ref->etag, part->etag.at, part->etag.len);
    if (part->checksum_kind != S3_CHECKSUM_NONE) {
        int len = snprintf(ref->checksum, sizeof(ref->checksum), "%s=%.*s",
                           s3_checksum_name(part->checksum_kind), (int)part->checksum.len, part->checksum.at);
        if (len >= (int)sizeof(ref->checksum)) {
            return S3_ERR_INVALID_PART;
        }
    }
    return S3_OK;
}

static void complete_body(struct exchange *x, const struct slice *slice)
{
    if (x->xml_error == S3_OK) {
        x->xml_error = s3_xml_read_feed(&x->xml, slice->addr, slice->len);
    }
    slice_release(slice);
    share_hold(x, SHARE_TABLE);
}

/* ---- CompleteMultipartUpload: gathering what the parts hold --------------------------------------------------- */

/* Every ETag of ours begins with 16 bytes in hex: an MD5 or, for opaque ones, random. */
static void complete_fold_etag(struct completing *completing, const char *etag)
{
    uint8_t digest[16] = {0};
    struct text text = text_of_string(etag);
    text.len = text.len > 32 ? 32 : text.len;
    /* Anything else counts as zeros; it is our own text. */
    (void)s3_hex_decode(text, digest, sizeof(digest));
    s3_checksum_update(&completing->etag, digest, sizeof(digest));
}

/* Without a word at creation it is what the completion says; it may also repeat what was said, but not change it. */
static enum s3_error complete_checksum_type(struct exchange *x)
{
    struct text kept;
    struct text type = http_request_header(x, "x-amz-checksum-type");
    bool is_kept = s3_checksum_attribute(x->request.checksum, &kept) != S3_CHECKSUM_NONE;
    if (is_kept && !text_is_absent(type) && !text_equal_nocase(type, kept)) {
        return S3_ERR_CHECKSUM_TYPE;
    }
    x->completing.wants_full_object = text_is_nocase(is_kept ? kept : type, "FULL_OBJECT");
    return S3_OK;
}

/* What the client names is compared here, because the stored text says more. The transaction then demands exactly the part
 * that was seen here: with it comes the length of its payload. */
static void complete_fold_part(struct exchange *x, const struct store_list_entry *entry)
{
    struct completing *completing = &x->completing;
    struct store_part_ref *ref = (struct store_part_ref *)x->table + completing->next;
    struct text stored = text_of_string(entry->checksum);
    struct text stated = text_of_string(ref->checksum);
    if (stated.len > 0 && !text_equal(text_take_until(&stored, ' '), stated)) {
        completing->is_mismatch = true;
        return;
    }
    /* As long as a part's can be. */
    (void)snprintf(ref->checksum, sizeof(ref->checksum), "%s", entry->checksum);
    ref->is_checksum_exact = true;
    completing->payload += zframe_size(entry->checksum, entry->size);
    if (zframe_is_marked(entry->checksum, &ref->payload)) {
        completing->is_compressed = true;
    }
}

static void complete_fold_checksum(struct exchange *x, const struct store_list_entry *entry)
{
    struct completing *completing = &x->completing;
    struct text value;
    uint8_t digest[S3_CHECKSUM_SIZE_MAX];
    enum s3_checksum_kind kind = s3_checksum_attribute(entry->checksum, &value);
    if (completing->next == 0 && kind != S3_CHECKSUM_NONE &&
        s3_checksum_open(&completing->composite, kind) == 0) {
        completing->kind = kind;
        completing->is_full_object =
            s3_checksum_is_crc(kind) && (completing->wants_full_object || kind == S3_CHECKSUM_CRC64NVME);
    }
    bool is_good = kind == completing->kind && kind != S3_CHECKSUM_NONE &&
                   s3_base64_decode(value, digest, sizeof(digest)) == (long)s3_checksum_size(kind);
    if (!is_good) {
        completing->kind = S3_CHECKSUM_NONE;
        return;
    }
    s3_checksum_update(&completing->composite, digest, s3_checksum_size(kind));
    if (completing->is_full_object) {
        uint64_t crc = s3_checksum_crc_from_digest(kind, digest);
        uint64_t size = zframe_size(entry->checksum, entry->size);
        completing->crc =
            completing->next == 0 ? crc : s3_checksum_crc_combine(kind, completing->crc, crc, size);
    }
}

static void complete_fold(struct exchange *x)
{
    struct completing *completing = &x->completing;
    const struct store_part_ref *parts = x->table;
    for (uint32_t i = 0; i < x->list->count; i++) {
        const struct store_list_entry *entry = &x->list->entries[i];
        completing->options.after_part = entry->part_number;
        if (completing->next == completing->count || entry->part_number != parts[completing->next].number) {
            continue; /* Not named: the store frees it. One that is named and absent is found by the store, too. */
        }
        complete_fold_etag(completing, entry->etag);
        complete_fold_checksum(x, entry);
        complete_fold_part(x, entry);
        completing->next++;
    }
}

static enum s3_error complete_checksum(struct exchange *x)
{
    struct completing *completing = &x->completing;
    struct store_attributes *attributes = &x->upload.attributes;
    uint8_t digest[S3_CHECKSUM_SIZE_MAX];
    char text[S3_CHECKSUM_TEXT_MAX];
    enum s3_checksum_kind kind = completing->kind;
    if (kind == S3_CHECKSUM_NONE) {
        return S3_OK;
    }
    (void)s3_checksum_final(&completing->composite, digest); /* The size follows from the kind. */
    if (completing->is_full_object) {
        s3_checksum_crc_to_digest(kind, completing->crc, digest);
    }
    /* Terminated. */
    (void)s3_checksum_text(kind, digest, completing->is_full_object ? 0 : completing->count, text);
    (void)snprintf(attributes->checksum, sizeof(attributes->checksum), "%s=%s", s3_checksum_name(kind), text);
    struct text expected = http_request_header(x, s3_checksum_header(kind));
    if (text_is_absent(expected) || text_is(expected, text)) {
        return S3_OK;
    }
    /* minio-go leaves the number of parts out. */
    (void)s3_checksum_text(kind, digest, 0, text);
    return text_is(expected, text) ? S3_OK : S3_ERR_BAD_DIGEST;
}

static enum s3_error complete_attributes(struct exchange *x)
{
    struct completing *completing = &x->completing;
    struct store_attributes *attributes = &x->upload.attributes;
    uint8_t digest[S3_CHECKSUM_SIZE_MAX];
    if (completing->is_mismatch) {
        return S3_ERR_INVALID_PART;
    }
    (void)s3_checksum_final(&completing->etag, digest); /* MD5: 16 bytes. */
    s3_hex_encode(digest, 16, attributes->etag);
    /* 6 bytes */
    (void)snprintf(attributes->etag + 32, sizeof(attributes->etag) - 32, "-%u", completing->count);
    enum s3_error error = complete_checksum(x);
    if (error == S3_OK && completing->is_compressed) {
        bool fits = zframe_mark(attributes->checksum, completing->payload);
        CHECK(fits); /* As in upload_commit. */
    }
    return error;
}

/* ---- CompleteMultipartUpload: the answer ---------------------------------------------------------------------- */

static void complete_respond(struct exchange *x)
{
    char etag[S3_ETAG_TEXT_MAX];
    struct s3_xml_checksum checksum = {0};
    const struct store_attributes *attributes = &x->upload.attributes;
    checksum.kind = s3_checksum_attribute(attributes->checksum, &checksum.value);
    checksum.is_full_object = x->completing.is_full_object;
    struct text path = x->target.path;
    xml_out_begin(&x->xml_out, x->block, WORKER_BLOCK_SIZE);
    (void)s3_etag_text(attributes->etag, etag);
    bool fits = s3_xml_complete_upload(&x->xml_out, path, x->target.bucket, x->target.key,
                                       text_of_string(attributes->etag),
                                       checksum.kind == S3_CHECKSUM_NONE ? NULL : &checksum);
    CHECK(fits); /* A path is at most EXCHANGE_TARGET_MAX bytes and grows sixfold at most. */
    http_response_begin(x, 200);
    http_respond_xml(x, 200);
}

static void complete_done(struct exchange *x)
{
    if (!s3_answer_failed(x)) {
        complete_respond(x);
    }
}

static void complete_commit(struct exchange *x)
{
    enum s3_error error = complete_attributes(x);
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    x->request.attributes = &x->upload.attributes;
    x->request.condition = x->upload.has_condition ? &x->upload.condition : NULL;
    x->request.parts = x->table;
    x->request.part_count = x->completing.count;
    exchange_submit(x, STORE_UPLOAD_COMPLETE, complete_done);
}

static void complete_listed(struct exchange *x)
{
    if (s3_answer_failed(x)) {
        return;
    }
    complete_fold(x);
    if (x->list->is_truncated && x->list->count > 0 && x->completing.next < x->completing.count) {
        exchange_submit(x, STORE_PART_LIST, complete_listed);
    } else {
        complete_commit(x);
    }
}

static void complete_found(struct exchange *x)
{
    if (s3_answer_failed(x)) {
        return;
    }
    enum s3_error error = complete_checksum_type(x);
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    x->completing.options.count_max = 1000;
    x->request.list_options = &x->completing.options;
    exchange_submit(x, STORE_PART_LIST, complete_listed);
}

static void complete_body_end(struct exchange *x)
{
    enum s3_error error = x->xml_error != S3_OK ? x->xml_error : s3_xml_read_finish(&x->xml);
    if (error == S3_OK && s3_checksum_open(&x->completing.etag, S3_CHECKSUM_MD5) < 0) {
        error = S3_ERR_INTERNAL;
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    share_release(x); /* Now it is the store that is waited for. */
    exchange_submit(x, STORE_UPLOAD_LOOKUP, complete_found);
}

static void complete_drop(struct exchange *x)
{
    s3_checksum_close(&x->completing.etag);
    s3_checksum_close(&x->completing.composite);
}

static void complete_begin(struct exchange *x)
{
    if (exchange_table_take(x) && exchange_block_take(x)) {
        share_hold(x, SHARE_TABLE);
        http_body_accept(x);
    }
}

static const struct exchange_ops complete_ops = {
    .body = complete_body, .body_end = complete_body_end, .resume = complete_begin, .drop = complete_drop};

void s3_complete_upload(struct exchange *x)
{
    const struct s3_xml_read_handler handler = {.part = complete_part, .context = x};
    memset(&x->completing, 0, sizeof(x->completing));
    upload_init(x, NULL); /* Only its attributes and condition are used. */
    enum s3_error error = s3_put_condition(x);
    if (error == S3_OK && s3_xml_read_open(&x->xml, S3_XML_DOCUMENT_COMPLETE, &handler) < 0) {
        error = S3_ERR_INTERNAL;
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    x->is_xml_open = true;
    x->ops = &complete_ops;
    s3_request_target(x);
    s3_request_upload_id(x);
    complete_begin(x);
}
