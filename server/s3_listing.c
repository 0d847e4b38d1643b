/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_listing: ListBuckets, ListObjects (V1, V2), ListObjectVersions, ListMultipartUploads and ListParts. The store gives
 * one page as a list; it is written as XML into a block, which is sent as a chunk whenever it is full, so that a page of
 * a thousand long keys needs no more memory than a short one.
 */
#include <string.h>

#include "base/check.h"
#include "server/s3_handlers.h"

_Static_assert(WORKER_BLOCK_SIZE > S3_XML_HEAD_MAX, "a block holds the beginning and the end of any listing");
_Static_assert(WORKER_BLOCK_SIZE > S3_XML_ENTRY_MAX, "a block holds any entry");

/* How one listing is written. Each function leaves x->xml_out as it was and returns false when the block is full. */
struct listing_kind {
    bool (*begin)(struct exchange *x);
    bool (*entry)(struct exchange *x, const struct store_list_entry *entry);
    bool (*end)(struct exchange *x);
};

enum listing_phase { LISTING_BEGIN, LISTING_ENTRIES, LISTING_END, LISTING_DONE };

static struct text entry_key(const struct store_list_entry *entry)
{
    return text_of((const char *)entry->key, entry->key_len);
}

static const struct store_list_entry *last_entry(const struct exchange *x)
{
    return x->list->count == 0 ? NULL : &x->list->entries[x->list->count - 1];
}

/* ---- the writer ----------------------------------------------------------------------------------------------- */

/* Writes as much as fits; true when the listing is complete. */
static bool listing_fill(struct exchange *x)
{
    struct listing *listing = &x->listing;
    xml_out_begin(&x->xml_out, x->block, WORKER_BLOCK_SIZE);
    if (listing->phase == LISTING_BEGIN) {
        bool fits = listing->kind->begin(x);
        CHECK(fits);
        listing->phase = LISTING_ENTRIES;
    }
    while (listing->phase == LISTING_ENTRIES) {
        if (listing->next == x->list->count) {
            listing->phase = LISTING_END;
        } else if (!listing->kind->entry(x, &x->list->entries[listing->next])) {
            return false;
        } else {
            listing->next++;
        }
    }
    if (listing->phase == LISTING_END && listing->kind->end(x)) {
        listing->phase = LISTING_DONE;
    }
    return listing->phase == LISTING_DONE;
}

/* The block goes out from its byte `sent` on, counted with the framing; 0 but after a cut. */
static void listing_send(struct exchange *x, uint64_t sent)
{
    x->listing.block_phase = x->listing.phase;
    x->listing.block_next = x->listing.next;
    x->listing.block_sent = (uint32_t)sent;
    bool is_complete = listing_fill(x);
    bool is_first = x->response.status == 0;
    if (is_first) {
        http_response_begin(x, 200);
        http_response_header(x, "Content-Type", TEXT("application/xml"));
        /* Most pages fit into one block; then their length is known and old clients are happier. */
        http_response_start(x, is_complete ? x->xml_out.len : HTTP_LENGTH_UNKNOWN);
    }
    x->listing.is_sending = true;
    if (!http_response_payload_rest(x, x->block, (uint32_t)x->xml_out.len, HTTP_COOKIE_PAYLOAD, sent)) {
        x->listing.is_sending = false;
        conn_abort(x->conn);
        return;
    }
    share_hold(x, SHARE_BLOCK);
    if (is_complete) {
        http_response_end(x);
    }
}

static void listing_sent(struct exchange *x, uint64_t cookie)
{
    CHECK(cookie == HTTP_COOKIE_PAYLOAD);
    x->listing.is_sending = false;
    share_release(x);
    if (x->response.is_recalled) {
        /* Recalled too late to cut it; what follows waits for room, and not with a block. */
        exchange_block_give(x);
    } else if (!x->is_abandoned && x->listing.phase != LISTING_DONE) {
        listing_send(x, 0);
    }
}

/* The block goes to others; what was in it is written again from the list, which stays. */
static void listing_cut(struct exchange *x, uint64_t cookie, uint64_t sent)
{
    CHECK(cookie == HTTP_COOKIE_PAYLOAD);
    struct listing *listing = &x->listing;
    listing->is_sending = false;
    listing->is_cut = true;
    listing->block_sent += (uint32_t)sent;
    listing->phase = listing->block_phase;
    listing->next = listing->block_next;
    exchange_block_give(x);
}

static void listing_resume(struct exchange *x)
{
    if (!exchange_block_take(x)) {
        return;
    }
    uint32_t sent = x->listing.is_cut ? x->listing.block_sent : 0;
    x->listing.is_cut = false;
    listing_send(x, sent);
}

static void listing_room(struct exchange *x)
{
    if (x->listing.is_cut || x->listing.phase != LISTING_DONE) {
        listing_resume(x);
    } else if (!x->response.is_ended) {
        http_response_end(x); /* Only the last chunk was cut. */
    }
}

static const struct exchange_ops listing_ops = {
    .sent = listing_sent,
    .cut = listing_cut,
    .room = listing_room,
    .resume = listing_resume,
};

static void listing_ready(struct exchange *x)
{
    if (!s3_answer_failed(x)) {
        listing_resume(x);
    }
}

static void listing_init(struct exchange *x, const struct listing_kind *kind)
{
    memset(&x->listing, 0, sizeof(x->listing));
    x->listing.kind = kind;
    x->ops = &listing_ops;
    x->request.list_options = &x->listing.options;
}

/* ---- buckets -------------------------------------------------------------------------------------------------- */

static bool buckets_begin(struct exchange *x)
{
    return s3_xml_buckets_begin(&x->xml_out, &s3_owner);
}

static bool buckets_entry(struct exchange *x, const struct store_list_entry *entry)
{
    struct s3_xml_bucket bucket = {.name = entry_key(entry), .created_ns = (int64_t)entry->modified_ns};
    return !s3_may_see_bucket(x, bucket.name) || s3_xml_buckets_entry(&x->xml_out, &bucket);
}

static bool buckets_end(struct exchange *x)
{
    return s3_xml_buckets_end(&x->xml_out);
}

static const struct listing_kind buckets_kind = {buckets_begin, buckets_entry, buckets_end};

void s3_list_buckets(struct exchange *x)
{
    listing_init(x, &buckets_kind);
    x->listing.options.count_max = UINT32_MAX;
    exchange_submit(x, STORE_BUCKET_LIST, listing_ready);
}

/* ---- objects -------------------------------------------------------------------------------------------------- */

static bool objects_begin(struct exchange *x)
{
    if (x->target.op == S3_OP_LIST_OBJECT_VERSIONS) {
        return s3_xml_versions_begin(&x->xml_out, x->target.bucket, &x->listing.params);
    }
    return s3_xml_list_begin(&x->xml_out, x->target.bucket, &x->listing.params);
}

static bool objects_entry(struct exchange *x, const struct store_list_entry *entry)
{
    const struct s3_list_params *params = &x->listing.params;
    if (entry->is_prefix) {
        return s3_xml_list_prefix(&x->xml_out, params, entry_key(entry));
    }
    struct text value;
    struct s3_xml_object object = {
        .key = entry_key(entry),
        .etag = text_of_string(entry->etag),
        .size = zframe_size(entry->checksum, entry->size),
        .modified_ns = (int64_t)entry->modified_ns,
        .checksum = s3_checksum_attribute(entry->checksum, &value),
    };
    bool wants_owner = !params->is_v2 || params->fetch_owner;
    if (x->target.op == S3_OP_LIST_OBJECT_VERSIONS) {
        return s3_xml_versions_entry(&x->xml_out, params, &object, &s3_owner);
    }
    return s3_xml_list_entry(&x->xml_out, params, &object, wants_owner ? &s3_owner : NULL);
}

static bool objects_end(struct exchange *x)
{
    const struct store_list_entry *last = last_entry(x);
    struct s3_xml_list_result result = {
        .is_truncated = x->list->is_truncated && last != NULL,
        .key_count = x->list->count,
    };
    if (last != NULL) {
        result.next_after = entry_key(last);
        result.next_is_prefix = last->is_prefix;
    }
    if (x->target.op == S3_OP_LIST_OBJECT_VERSIONS) {
        return s3_xml_versions_end(&x->xml_out, &x->listing.params, &result);
    }
    return s3_xml_list_end(&x->xml_out, &x->listing.params, &result);
}

static const struct listing_kind objects_kind = {objects_begin, objects_entry, objects_end};

/* False when a text is longer than the store can take; nothing that is stored can match it then. */
static bool listing_text(struct store_name *name, struct text text)
{
    if (text.len > STORE_KEY_MAX) {
        return false;
    }
    s3_name_set(name, text);
    return true;
}

static enum s3_error objects_options(struct exchange *x)
{
    struct listing *listing = &x->listing;
    struct store_list_options *options = &listing->options;
    enum s3_error error = s3_list_params_read(&listing->params, &x->target);
    if (error != S3_OK) {
        return error;
    }
    const struct s3_list_params *params = &listing->params;
    bool fits =
        listing_text(&options->prefix, params->prefix) && listing_text(&options->after, params->after);
    if (!fits || params->delimiter.len > sizeof(options->delimiter)) {
        return S3_ERR_INVALID_ARGUMENT;
    }
    options->delimiter_len = (uint8_t)params->delimiter.len;
    if (params->delimiter.len > 0) {
        memcpy(options->delimiter, params->delimiter.at, params->delimiter.len);
    }
    options->after_is_prefix = params->after_is_prefix;
    options->count_max = params->max_keys;
    return S3_OK;
}

void s3_list_objects(struct exchange *x)
{
    listing_init(x, &objects_kind);
    enum s3_error error = objects_options(x);
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    s3_request_target(x);
    exchange_submit(x, STORE_OBJECT_LIST, listing_ready);
}

/* What an open upload was created with: "CRC32=FULL_OBJECT". */
static struct s3_xml_checksum upload_checksum(const char *attribute)
{
    struct s3_xml_checksum checksum = {0};
    checksum.kind = s3_checksum_attribute(attribute, &checksum.value);
    checksum.is_full_object = text_is(checksum.value, "FULL_OBJECT");
    return checksum;
}

/* ---- multipart uploads ---------------------------------------------------------------------------------------- */

static struct s3_xml_uploads_head uploads_head(const struct exchange *x)
{
    const struct listing *listing = &x->listing;
    return (struct s3_xml_uploads_head){
        .bucket = x->target.bucket,
        .prefix = listing->params.prefix,
        .delimiter = listing->params.delimiter,
        .key_marker = listing->key_marker,
        .upload_id_marker = listing->upload_id_marker,
        .max_uploads = listing->options.count_max,
        .encode_url = listing->params.encode_url,
    };
}

static bool uploads_begin(struct exchange *x)
{
    struct s3_xml_uploads_head head = uploads_head(x);
    return s3_xml_uploads_begin(&x->xml_out, &head);
}

static bool uploads_entry(struct exchange *x, const struct store_list_entry *entry)
{
    struct s3_xml_uploads_head head = uploads_head(x);
    if (entry->is_prefix) {
        return s3_xml_uploads_prefix(&x->xml_out, &head, entry_key(entry));
    }
    struct s3_xml_upload upload = {
        .key = entry_key(entry),
        .upload_id = text_of_string(entry->upload_id),
        .created_ns = (int64_t)entry->modified_ns,
        .checksum = upload_checksum(entry->checksum),
    };
    return s3_xml_uploads_entry(&x->xml_out, &head, &upload, &s3_owner);
}

static bool uploads_end(struct exchange *x)
{
    struct s3_xml_uploads_head head = uploads_head(x);
    const struct store_list_entry *last = last_entry(x);
    struct text key = last == NULL ? (struct text){0} : entry_key(last);
    struct text id = last == NULL || last->is_prefix ? (struct text){0} : text_of_string(last->upload_id);
    return s3_xml_uploads_end(&x->xml_out, &head, x->list->is_truncated && last != NULL, key, id);
}

static const struct listing_kind uploads_kind = {uploads_begin, uploads_entry, uploads_end};

/* A count parameter with S3's default of 1,000, cut there. */
static bool listing_count(const struct exchange *x, const char *name, uint32_t *count)
{
    struct text text = s3_target_param(&x->target, name);
    uint64_t value = 1000;
    if (!text_is_absent(text) && text.len > 0 && (!text_parse_u64(text, &value) || value > INT32_MAX)) {
        return false;
    }
    *count = value > 1000 ? 1000 : (uint32_t)value;
    return true;
}

static bool listing_encodes_url(const struct exchange *x)
{
    return text_is(s3_target_param(&x->target, "encoding-type"), "url");
}

static enum s3_error uploads_options(struct exchange *x)
{
    struct listing *listing = &x->listing;
    struct store_list_options *options = &listing->options;
    struct text id = s3_target_param(&x->target, "upload-id-marker");
    listing->params.prefix = s3_target_param(&x->target, "prefix");
    listing->params.delimiter = s3_target_param(&x->target, "delimiter");
    listing->params.encode_url = listing_encodes_url(x);
    listing->key_marker = s3_target_param(&x->target, "key-marker");
    if (!listing_count(x, "max-uploads", &options->count_max)) {
        return S3_ERR_INVALID_MAX_KEYS;
    }
    bool fits = listing_text(&options->prefix, listing->params.prefix) &&
                listing_text(&options->after, listing->key_marker) && id.len <= STORE_UPLOAD_ID_MAX &&
                listing->params.delimiter.len <= sizeof(options->delimiter);
    if (!fits) {
        return S3_ERR_INVALID_ARGUMENT;
    }
    options->delimiter_len = (uint8_t)listing->params.delimiter.len;
    if (options->delimiter_len > 0) {
        memcpy(options->delimiter, listing->params.delimiter.at, options->delimiter_len);
    }
    /* S3: the upload id marker counts only together with a key marker. */
    if (listing->key_marker.len > 0 && id.len > 0) {
        memcpy(options->after_upload_id, id.at, id.len);
        listing->upload_id_marker = id;
    }
    return S3_OK;
}

void s3_list_uploads(struct exchange *x)
{
    listing_init(x, &uploads_kind);
    enum s3_error error = uploads_options(x);
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    s3_request_target(x);
    exchange_submit(x, STORE_UPLOAD_LIST, listing_ready);
}

/* ---- parts ---------------------------------------------------------------------------------------------------- */

static bool parts_begin(struct exchange *x)
{
    struct s3_xml_parts_head head = {
        .bucket = x->target.bucket,
        .key = x->target.key,
        .upload_id = s3_target_param(&x->target, "uploadId"),
        .part_number_marker = x->listing.options.after_part,
        .max_parts = x->listing.options.count_max,
        .checksum = upload_checksum(x->request.checksum),
        .encode_url = listing_encodes_url(x),
    };
    return s3_xml_parts_begin(&x->xml_out, &head, &s3_owner);
}

static bool parts_entry(struct exchange *x, const struct store_list_entry *entry)
{
    struct s3_xml_part part = {
        .number = entry->part_number,
        .etag = text_of_string(entry->etag),
        .size = zframe_size(entry->checksum, entry->size),
        .modified_ns = (int64_t)entry->modified_ns,
    };
    part.checksum.kind = s3_checksum_attribute(entry->checksum, &part.checksum.value);
    return s3_xml_parts_entry(&x->xml_out, &part);
}

static bool parts_end(struct exchange *x)
{
    const struct store_list_entry *last = last_entry(x);
    return s3_xml_parts_end(&x->xml_out, x->list->is_truncated && last != NULL,
                            last == NULL ? 0 : last->part_number);
}

static const struct listing_kind parts_kind = {parts_begin, parts_entry, parts_end};

static void parts_found(struct exchange *x)
{
    if (!s3_answer_failed(x)) {
        exchange_submit(x, STORE_PART_LIST, listing_ready);
    }
}

void s3_list_parts(struct exchange *x)
{
    listing_init(x, &parts_kind);
    struct text marker = s3_target_param(&x->target, "part-number-marker");
    uint64_t after = 0;
    bool is_good = text_is_absent(marker) || marker.len == 0 || text_parse_u64(marker, &after);
    if (!is_good || after > INT32_MAX || !listing_count(x, "max-parts", &x->listing.options.count_max)) {
        http_respond_error(x, S3_ERR_INVALID_MAX_KEYS);
        return;
    }
    x->listing.options.after_part = (uint32_t)after;
    s3_request_target(x);
    s3_request_upload_id(x);
    exchange_submit(x, STORE_UPLOAD_LOOKUP, parts_found); /* Its checksum is the upload's, not a part's. */
}
