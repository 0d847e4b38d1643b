/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_get: GetObject and HeadObject. The first block is read and verified before the status line is written, so that a
 * damaged object is a definite error; damage found later resets the connection, so that no client takes what it has for
 * the whole. One read and two sends are in flight at most; a slow reader holds that while nobody waits for it (share.h).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "server/s3_handlers.h"

static void s3_get_read(struct exchange *x);

/* "x-penstock-read: stored" asks for the bytes as they lie, for whoever has the zstd tool. */
static uint64_t s3_get_size(const struct exchange *x)
{
    return x->download.is_stored ? store_object_size(x->object) : s3_object_size(x->object);
}

/* ---- the answer's head ---------------------------------------------------------------------------------------- */

/* Metadata is kept under lower-case names. The standard ones go out as every other header of ours is written; x-amz- names are
 * lower-case in S3. The parameter of a signed request replaces the stored value. */
static const struct {
    const char *header;
    const char *parameter;
} s3_get_standard[] = {
    {"Content-Type", "response-content-type"},
    {"Cache-Control", "response-cache-control"},
    {"Content-Disposition", "response-content-disposition"},
    {"Content-Encoding", "response-content-encoding"},
    {"Content-Language", "response-content-language"},
    {"Expires", "response-expires"},
};

/* Its place in the table; ARRAY_COUNT when it is not there. */
static size_t s3_get_standard_find(struct text name)
{
    size_t i = 0;
    while (i < ARRAY_COUNT(s3_get_standard) && !text_is_nocase(name, s3_get_standard[i].header)) {
        i++;
    }
    return i;
}

static void s3_get_stored_headers(struct exchange *x, const struct store_attributes *attributes)
{
    bool is_replaced[ARRAY_COUNT(s3_get_standard)] = {false};
    bool has_type = false;
    for (size_t i = 0; i < ARRAY_COUNT(s3_get_standard); i++) {
        struct text value = s3_target_param(&x->target, s3_get_standard[i].parameter);
        /* A decoded parameter may hold anything; what would break the head is not sent. */
        is_replaced[i] = !text_is_absent(value) && memchr(value.at, '\r', value.len) == NULL &&
                         memchr(value.at, '\n', value.len) == NULL && value.len <= 1024;
        if (is_replaced[i]) {
            http_response_header(x, s3_get_standard[i].header, value);
        }
    }
    struct s3_meta_item item;
    for (uint32_t position = 0; s3_meta_next(attributes, &position, &item);) {
        size_t standard = s3_get_standard_find(item.name);
        if (standard == ARRAY_COUNT(s3_get_standard)) {
            char name[256];
            memcpy(name, item.name.at, item.name.len);
            name[item.name.len] = '\0';
            http_response_header(x, name, item.value);
        } else if (!is_replaced[standard]) {
            has_type |= standard == 0;
            http_response_header(x, s3_get_standard[standard].header, item.value);
        }
    }
    if (!has_type && !is_replaced[0]) {
        http_response_header(x, s3_get_standard[0].header, TEXT("binary/octet-stream"));
    }
}

static void s3_get_checksum_header(struct exchange *x)
{
    struct text value;
    enum s3_checksum_kind kind = s3_checksum_attribute(store_object_attributes(x->object)->checksum, &value);
    if (kind == S3_CHECKSUM_NONE ||
        !text_is_nocase(http_request_header(x, "x-amz-checksum-mode"), "enabled")) {
        return;
    }
    bool is_composite = value.len > 0 && memchr(value.at, '-', value.len) != NULL;
    http_response_header(x, s3_checksum_header(kind), value);
    http_response_header(x, "x-amz-checksum-type", is_composite ? TEXT("COMPOSITE") : TEXT("FULL_OBJECT"));
}

/* What identifies the version: also in 304 and 412. */
static void s3_get_validators(struct exchange *x)
{
    char etag[S3_ETAG_TEXT_MAX];
    char date[HTTP_DATE_SIZE];
    http_date_format((int64_t)(store_object_modified_ns(x->object) / NS_PER_S), date);
    http_response_header(x, "Last-Modified", text_of_string(date));
    http_response_header(x, "ETag", s3_etag_text(store_object_attributes(x->object)->etag, etag));
}

/* How a compressed object is stored: for whoever pays for the space. */
static void s3_get_compressed_headers(struct exchange *x)
{
    uint64_t plain = 0;
    uint64_t stored = store_object_size(x->object);
    if (zframe_is_marked(store_object_attributes(x->object)->checksum, &plain)) {
        char ratio[32];
        (void)snprintf(ratio, sizeof(ratio), "%.2f", (double)plain / (double)stored); /* At most 13 digits. */
        http_response_header(x, "x-penstock-stored-as", TEXT("zstd"));
        http_response_header_u64(x, "x-penstock-stored-size", stored);
        http_response_header(x, "x-penstock-stored-ratio", text_of_string(ratio));
    }
}

void s3_get_start(struct exchange *x)
{
    uint64_t size = s3_get_size(x);
    const struct download *download = &x->download;
    bool is_part = download->is_partial;
    http_response_begin(x, is_part ? 206 : 200);
    s3_get_validators(x);
    http_response_header(x, "Accept-Ranges", TEXT("bytes"));
    if (is_part) {
        char range[HTTP_RANGE_SIZE];
        size_t len = http_range_format(download->range, size, range);
        http_response_header(x, "Content-Range", text_of(range, len));
    } else if (!download->is_stored) {
        s3_get_checksum_header(x);
    }
    if (x->target.part_number > 0) {
        uint32_t parts = store_object_part_count(x->object);
        if (parts > 0) {
            http_response_header_u64(x, "x-amz-mp-parts-count", parts);
        }
    }
    s3_get_compressed_headers(x);
    s3_get_stored_headers(x, store_object_attributes(x->object));
    http_response_start(x, download->range.len);
}

/* ---- the payload ---------------------------------------------------------------------------------------------- */

static uint32_t s3_get_free_slot(const struct exchange *x)
{
    uint32_t slot = 0;
    while (slot < DOWNLOAD_SLICES && x->download.slices[slot].addr != NULL) {
        slot++;
    }
    return slot;
}

static void s3_get_slot_release(struct exchange *x, uint32_t slot)
{
    slice_release(&x->download.slices[slot]);
    x->download.slices[slot].addr = NULL;
}

/* What is queued again after a recall is not counted again. */
void s3_get_queued(struct exchange *x, uint32_t len)
{
    struct download *download = &x->download;
    download->queued += len;
    if (download->queued > download->counted) {
        metrics_add(&x->listener->cells->payload_sent_bytes, download->queued - download->counted);
        download->counted = download->queued;
    }
}

static void s3_get_send(struct exchange *x, const struct slice *slice)
{
    uint32_t slot = s3_get_free_slot(x);
    CHECK(slot < DOWNLOAD_SLICES);
    x->download.slices[slot] = *slice;
    if (x->download.queued == 0) {
        metrics_observe(&x->listener->cells->first_byte_latency, x->worker->now_ns - x->head_ns);
    }
    if (!http_response_payload(x, slice->addr, slice->len, HTTP_COOKIE_PAYLOAD + slot)) {
        s3_get_slot_release(x, slot);
        conn_abort(x->conn);
        return;
    }
    share_hold(x, SHARE_READ);
    s3_get_queued(x, slice->len);
    if (x->download.queued == x->download.range.len) {
        http_response_end(x);
    }
}

void s3_get_read_failed(struct exchange *x, int error)
{
    if (x->response.status != 0) {
        conn_abort(x->conn);
        return;
    }
    http_respond_error(x, error == ERR_DEVICE_FAILED ? S3_ERR_SERVICE_UNAVAILABLE : S3_ERR_INTERNAL);
}

static void s3_get_have(struct exchange *x, struct store_read *read)
{
    struct slice slice;
    CHECK(x->download.read == read);
    x->download.read = NULL;
    int rc = store_read_take(read, &slice);
    if (rc < 0) {
        s3_get_read_failed(x, rc);
        return;
    }
    if (x->response.is_recalled || x->download.is_read_stale) {
        x->download.is_read_stale = false;
        slice_release(&slice);
        s3_get_read(x); /* Again from where TCP stopped, when there is room. */
        return;
    }
    if (x->response.status == 0) {
        s3_get_start(x);
    }
    x->download.offset += slice.len;
    s3_get_send(x, &slice);
    s3_get_read(x);
}

static void s3_get_read(struct exchange *x)
{
    struct download *download = &x->download;
    uint64_t end = download->range.first + download->range.len;
    if (x->is_abandoned || x->response.is_recalled || download->read != NULL || download->offset == end ||
        s3_get_free_slot(x) == DOWNLOAD_SLICES) {
        return;
    }
    if (share_is_wanted(x, SHARE_READ)) {
        share_wait(x, SHARE_READ);
        return;
    }
    int rc = store_read_begin(x->worker->port, x->object, download->offset, end - download->offset, x,
                              &download->read);
    if (rc == -EAGAIN) {
        download->read = NULL;
        share_wait(x, SHARE_READ);
    } else if (rc < 0) {
        download->read = NULL;
        s3_get_read_failed(x, rc);
    }
}

/* The peer has read: it keeps what it holds for another turn. One whose sends are recalled gives it up anyway. */
static void s3_get_moved(struct exchange *x)
{
    bool holds = false;
    for (uint32_t slot = 0; slot < DOWNLOAD_SLICES; slot++) {
        holds |= x->download.slices[slot].addr != NULL;
    }
    if (!holds) {
        share_release(x);
    } else if (!x->response.is_recalled && !x->is_abandoned) {
        share_hold(x, SHARE_READ);
    }
}

static void s3_get_sent(struct exchange *x, uint64_t cookie)
{
    uint32_t slot = (uint32_t)(cookie - HTTP_COOKIE_PAYLOAD);
    CHECK(slot < DOWNLOAD_SLICES);
    x->download.sent += x->download.slices[slot].len;
    s3_get_slot_release(x, slot);
    s3_get_moved(x);
    s3_get_read(x);
}

/* Sends are cut in order, so after the last of them the next byte to be read is the first that TCP does not have. */
static void s3_get_cut(struct exchange *x, uint64_t cookie, uint64_t sent)
{
    struct download *download = &x->download;
    download->sent += sent;
    s3_get_slot_release(x, (uint32_t)(cookie - HTTP_COOKIE_PAYLOAD));
    download->queued = download->sent;
    download->offset = download->range.first + download->sent;
    download->is_read_stale = download->read != NULL; /* It may take longer than the peer to make room. */
}

static void s3_get_drop(struct exchange *x)
{
    for (uint32_t slot = 0; slot < DOWNLOAD_SLICES; slot++) {
        CHECK(x->download.slices[slot].addr == NULL); /* Every send has completed. */
    }
    if (x->download.is_counted) {
        metrics_sub(&x->listener->cells->downloads_in_flight, 1);
    }
}

static const struct exchange_ops s3_get_ops = {
    .sent = s3_get_sent,
    .resume = s3_get_read,
    .cut = s3_get_cut,
    .room = s3_get_read,
    .read = s3_get_have,
    .drop = s3_get_drop,
};

/* ---- what is asked for ---------------------------------------------------------------------------------------- */

static void s3_get_unchanged(struct exchange *x)
{
    http_response_begin(x, 304);
    s3_get_validators(x);
    http_respond_empty(x, 304);
}

static void s3_get_unsatisfiable(struct exchange *x)
{
    char range[HTTP_RANGE_SIZE];
    size_t len = http_range_format_unsatisfied(s3_get_size(x), range);
    http_response_begin(x, s3_error_status(S3_ERR_INVALID_RANGE));
    http_response_header(x, "Content-Range", text_of(range, len));
    http_respond_error(x, S3_ERR_INVALID_RANGE);
}

/* partNumber=N: the part's range of the payload. Part 1 of an object that was put whole is the object. */
static bool s3_get_part(struct exchange *x)
{
    struct http_range *range = &x->download.range;
    uint32_t parts = store_object_part_count(x->object);
    uint32_t number = x->target.part_number;
    range->first = 0;
    if (parts == 0) {
        range->len = s3_get_size(x);
        x->download.is_partial = range->len > 0;
        return number == 1;
    }
    x->download.is_partial = true;
    for (uint32_t i = 0; i < parts; i++) {
        struct store_part_place part = store_object_part_at(x->object, i);
        range->len = part.payload != 0 && !x->download.is_stored ? part.payload : part.len;
        if (part.number == number) {
            return true;
        }
        range->first += range->len;
    }
    return false;
}

static bool s3_get_range(struct exchange *x, const struct http_cond *cond,
                         const struct http_cond_object *object)
{
    uint64_t size = s3_get_size(x);
    struct text header = http_request_header(x, "range");
    if (x->target.part_number > 0) {
        return s3_get_part(x);
    }
    if (!http_cond_range_allowed(cond, object, (int64_t)(x->worker->wall_ns / NS_PER_S))) {
        header = (struct text){0};
    }
    enum http_range_result result = http_range_parse(header, size, &x->download.range);
    x->download.is_partial = result == HTTP_RANGE_PART;
    return result != HTTP_RANGE_UNSATISFIABLE;
}

static void s3_get_found(struct exchange *x)
{
    if (s3_answer_failed(x)) {
        return;
    }
    struct http_cond cond;
    struct http_cond_object object = {
        .exists = true,
        .etag = text_of_string(store_object_attributes(x->object)->etag),
        .modified_s = (int64_t)(store_object_modified_ns(x->object) / NS_PER_S),
    };
    http_cond_from_head(&cond, &x->head, x->head_bytes, "");
    enum http_cond_result result =
        http_cond_evaluate(&cond, &object, true, (int64_t)(x->worker->wall_ns / NS_PER_S));
    if (result == HTTP_COND_NOT_MODIFIED) {
        s3_get_unchanged(x);
    } else if (result == HTTP_COND_FAILED) {
        http_respond_error(x, S3_ERR_PRECONDITION_FAILED);
    } else if (!s3_get_range(x, &cond, &object)) {
        s3_get_unsatisfiable(x);
    } else if (http_is_head(x) || x->download.range.len == 0) {
        s3_get_start(x);
        http_response_end(x);
    } else {
        x->download.offset = x->download.range.first;
        x->download.is_counted = true;
        metrics_add(&x->listener->cells->downloads_in_flight, 1);
        uint64_t payload = 0;
        if (!x->download.is_stored &&
            zframe_is_marked(store_object_attributes(x->object)->checksum, &payload)) {
            s3_get_zstd(x);
        } else {
            s3_get_read(x);
        }
    }
}

void s3_get_object(struct exchange *x)
{
    memset(&x->download, 0, sizeof(x->download));
    x->download.is_stored = text_is(http_request_header(x, "x-penstock-read"), "stored");
    x->ops = &s3_get_ops;
    s3_request_target(x);
    exchange_submit(x, STORE_OBJECT_LOOKUP, s3_get_found);
}
