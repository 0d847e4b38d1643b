/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_delete: DeleteObject and DeleteObjects.
 *
 * DeleteObjects keeps keys, results and requests in one table of the worker, so that up to a thousand keys need no memory
 * of their own (a peer that sends or reads it too slowly while others wait for the table is reset); DELETE_PARALLEL requests are under way at a time and share the committer's transactions. The answer is
 * written block by block like a listing.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "server/s3_handlers.h"

#define DELETE_PARALLEL 64U

struct delete_key {
    uint32_t offset; /* in table->keys */
    uint16_t len;
    uint16_t error; /* enum s3_error; S3_OK: deleted */
};

struct delete_table {
    struct store_request requests[DELETE_PARALLEL];
    struct delete_key entries[S3_XML_READ_DELETE_MAX];
    char keys[S3_XML_READ_DELETE_MAX * STORE_KEY_MAX];
};

_Static_assert(sizeof(struct delete_table) <= STORE_PART_MAX * sizeof(struct store_part_ref),
               "a worker's table holds a multi-delete");

/* ---- DeleteObject --------------------------------------------------------------------------------------------- */

/* Deleting what is not there is success in S3. */
static void delete_done(struct exchange *x)
{
    if (!s3_answer_failed(x)) {
        http_respond_empty(x, 204);
    }
}

void s3_delete_object(struct exchange *x)
{
    s3_request_target(x);
    exchange_submit(x, STORE_OBJECT_DELETE, delete_done);
}

/* ---- DeleteObjects: the answer -------------------------------------------------------------------------------- */

enum delete_phase { DELETE_BEGIN, DELETE_ENTRIES, DELETE_END, DELETE_DONE };

static bool deletes_entry(struct exchange *x, const struct delete_key *entry)
{
    const struct delete_table *table = x->table;
    struct text key = text_of(table->keys + entry->offset, entry->len);
    if (entry->error != S3_OK) {
        return s3_xml_delete_error(&x->xml_out, key, (enum s3_error)entry->error);
    }
    return x->deleting.is_quiet || s3_xml_delete_done(&x->xml_out, key);
}

static bool deletes_fill(struct exchange *x)
{
    struct deleting *deleting = &x->deleting;
    const struct delete_table *table = x->table;
    xml_out_begin(&x->xml_out, x->block, WORKER_BLOCK_SIZE);
    if (deleting->phase == DELETE_BEGIN) {
        bool fits = s3_xml_delete_begin(&x->xml_out);
        CHECK(fits);
        deleting->phase = DELETE_ENTRIES;
    }
    while (deleting->phase == DELETE_ENTRIES) {
        if (deleting->written == deleting->count) {
            deleting->phase = DELETE_END;
        } else if (!deletes_entry(x, &table->entries[deleting->written])) {
            return false;
        } else {
            deleting->written++;
        }
    }
    if (deleting->phase == DELETE_END && s3_xml_delete_end(&x->xml_out)) {
        deleting->phase = DELETE_DONE;
    }
    return deleting->phase == DELETE_DONE;
}

static void deletes_send(struct exchange *x)
{
    bool is_complete = deletes_fill(x);
    if (x->response.status == 0) {
        http_response_begin(x, 200);
        http_response_header(x, "Content-Type", TEXT("application/xml"));
        http_response_start(x, is_complete ? x->xml_out.len : HTTP_LENGTH_UNKNOWN);
    }
    if (!http_response_payload(x, x->block, (uint32_t)x->xml_out.len, HTTP_COOKIE_PAYLOAD)) {
        conn_abort(x->conn);
        return;
    }
    share_hold(x, SHARE_TABLE);
    if (is_complete) {
        http_response_end(x);
    }
}

static void deletes_sent(struct exchange *x, uint64_t cookie)
{
    CHECK(cookie == HTTP_COOKIE_PAYLOAD);
    share_release(x);
    if (!x->is_abandoned && x->deleting.phase != DELETE_DONE) {
        deletes_send(x);
    }
}

/* ---- DeleteObjects: the work ---------------------------------------------------------------------------------- */

static void deletes_submit(struct exchange *x, struct store_request *request)
{
    struct delete_table *table = x->table;
    uint32_t index = x->deleting.submitted++;
    const struct delete_key *entry = &table->entries[index];
    memset(request, 0, offsetof(struct store_request, key));
    memcpy(request->bucket, x->request.bucket, sizeof(request->bucket));
    s3_name_set(&request->key, text_of(table->keys + entry->offset, entry->len));
    request->kind = STORE_OBJECT_DELETE;
    request->user = x;
    request->part_number = index; /* Not used by a delete: says whose it is when it comes back. */
    x->more_waiting++;
    store_submit(x->worker->port, request);
}

/* Skips keys that were refused already and submits the next; false when there is none. */
static bool deletes_next(struct exchange *x, struct store_request *request)
{
    const struct delete_table *table = x->table;
    while (x->deleting.submitted < x->deleting.count) {
        if (table->entries[x->deleting.submitted].error == S3_OK) {
            deletes_submit(x, request);
            return true;
        }
        x->deleting.submitted++;
    }
    return false;
}

void s3_delete_returned(struct exchange *x, struct store_request *request)
{
    struct delete_table *table = x->table;
    CHECK(x->more_waiting > 0);
    x->more_waiting--;
    if (request->status < 0) {
        table->entries[request->part_number].error = (uint16_t)s3_error_of(request->status);
    }
    if (x->is_abandoned || x->is_given_up) {
        exchange_settle(x);
        return;
    }
    if (!deletes_next(x, request) && x->more_waiting == 0) {
        struct conn *conn = x->conn;
        deletes_send(x);
        conn_run(conn);
    }
}

static void deletes_start(struct exchange *x)
{
    /* The bucket is looked up first: without it S3 answers 404, not a list of errors. */
    if (s3_answer_failed(x)) {
        return;
    }
    struct delete_table *table = x->table;
    for (uint32_t i = 0; i < DELETE_PARALLEL; i++) {
        if (!deletes_next(x, &table->requests[i])) {
            break;
        }
    }
    if (x->more_waiting == 0) {
        deletes_send(x);
    }
}

/* ---- DeleteObjects: the document ------------------------------------------------------------------------------ */

static enum s3_error deletes_object(void *context, const struct s3_xml_read_object *object)
{
    struct exchange *x = context;
    struct delete_table *table = x->table;
    struct deleting *deleting = &x->deleting;
    if (deleting->count == S3_XML_READ_DELETE_MAX) {
        return S3_ERR_MALFORMED_XML;
    }
    struct delete_key *entry = &table->entries[deleting->count++];
    *entry = (struct delete_key){.offset = deleting->key_bytes, .len = (uint16_t)object->key.len};
    memcpy(table->keys + entry->offset, object->key.at, object->key.len);
    deleting->key_bytes += (uint32_t)object->key.len;
    if (!text_is_absent(object->version_id) && object->version_id.len > 0 &&
        !text_is(object->version_id, "null")) {
        entry->error = S3_ERR_NOT_FOUND_VERSION;
    } else if (!s3_may(x, S3_PERMISSION_DELETE, x->target.bucket, object->key)) {
        entry->error = S3_ERR_ACCESS_DENIED;
    }
    return S3_OK;
}

static void deletes_body(struct exchange *x, const struct slice *slice)
{
    for (size_t i = 0; i < ARRAY_COUNT(x->deleting.digests); i++) {
        if (x->deleting.digests[i].kind != S3_CHECKSUM_NONE) {
            s3_checksum_update(&x->deleting.digests[i], slice->addr, slice->len);
        }
    }
    if (x->xml_error == S3_OK) {
        x->xml_error = s3_xml_read_feed(&x->xml, slice->addr, slice->len);
    }
    slice_release(slice);
    share_hold(x, SHARE_TABLE);
}

static bool deletes_digest_differs(struct s3_checksum *state, const struct s3_checksum_expected *expected)
{
    uint8_t digest[S3_CHECKSUM_SIZE_MAX];
    if (expected->kind == S3_CHECKSUM_NONE) {
        return false;
    }
    (void)s3_checksum_final(state, digest); /* The size follows from the kind. */
    return !s3_checksum_matches(expected, digest);
}

/* The value of an announced trailer came behind the document. */
static enum s3_error deletes_verify(struct exchange *x)
{
    struct deleting *deleting = &x->deleting;
    struct s3_checksum_expected *stated = &deleting->checks.header;
    if (x->body.is_aws && deleting->checks.trailer != S3_CHECKSUM_NONE) {
        stated = &x->body.aws.trailer;
        if (stated->kind != deleting->checks.trailer) {
            return S3_ERR_MALFORMED_TRAILER;
        }
    }
    bool differs = deletes_digest_differs(&deleting->digests[0], &deleting->checks.md5) ||
                   deletes_digest_differs(&deleting->digests[1], stated);
    return differs ? S3_ERR_BAD_DIGEST : S3_OK;
}

static void deletes_body_end(struct exchange *x)
{
    struct deleting *deleting = &x->deleting;
    enum s3_error error = x->xml_error != S3_OK ? x->xml_error : s3_xml_read_finish(&x->xml);
    if (error == S3_OK) {
        error = deletes_verify(x);
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    deleting->is_quiet = x->xml.is_quiet;
    share_release(x); /* Now it is the store that is waited for. */
    exchange_submit(x, STORE_BUCKET_LOOKUP, deletes_start);
}

static void deletes_begin(struct exchange *x)
{
    if (exchange_table_take(x) && exchange_block_take(x)) {
        share_hold(x, SHARE_TABLE);
        http_body_accept(x);
    }
}

static void deletes_drop(struct exchange *x)
{
    for (size_t i = 0; i < ARRAY_COUNT(x->deleting.digests); i++) {
        s3_checksum_close(&x->deleting.digests[i]);
    }
}

static const struct exchange_ops deletes_ops = {.body = deletes_body,
                                                .body_end = deletes_body_end,
                                                .sent = deletes_sent,
                                                .resume = deletes_begin,
                                                .drop = deletes_drop};

static enum s3_error deletes_digests(struct exchange *x)
{
    struct deleting *deleting = &x->deleting;
    enum s3_error error = s3_checksum_request_read(&deleting->checks, &x->head, x->head_bytes);
    const struct s3_checksum_request *checks = &deleting->checks;
    enum s3_checksum_kind stated =
        checks->header.kind != S3_CHECKSUM_NONE ? checks->header.kind : checks->trailer;
    const enum s3_checksum_kind kinds[] = {checks->md5.kind, stated};
    for (size_t i = 0; error == S3_OK && i < ARRAY_COUNT(kinds); i++) {
        if (kinds[i] != S3_CHECKSUM_NONE && s3_checksum_open(&deleting->digests[i], kinds[i]) < 0) {
            error = S3_ERR_INTERNAL;
        }
    }
    return error;
}

void s3_delete_objects(struct exchange *x)
{
    const struct s3_xml_read_handler handler = {.object = deletes_object, .context = x};
    memset(&x->deleting, 0, sizeof(x->deleting));
    x->ops = &deletes_ops;
    enum s3_error error = deletes_digests(x);
    if (error == S3_OK && s3_xml_read_open(&x->xml, S3_XML_DOCUMENT_DELETE, &handler) < 0) {
        error = S3_ERR_INTERNAL;
    }
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    x->is_xml_open = true;
    s3_request_target(x);
    deletes_begin(x);
}
