/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_get_zstd: GetObject of an object that is stored compressed: footer, seek table, then only the frames that the range
 * touches, each read whole (and verified by the store), decompressed beside the worker, and sent out of the frame.
 *
 * As with plain objects the first frame is decompressed before the status line is written. One frame is read or
 * decompressed while another is being sent; a slow reader holds one stream while nobody waits for it (share.h). When it was
 * recalled, footer and table are read again: the stream held them.
 */
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "server/conn.h"
#include "server/s3_handlers.h"

static void zstd_step(struct exchange *x);

/* Another frame may still be on its way when one has failed: the answer is decided once. */
static void zstd_fail(struct exchange *x, int error)
{
    if (!x->download.zstd.is_failed) {
        x->download.zstd.is_failed = true;
        s3_get_read_failed(x, error);
    }
}

/* ---- what is read next ---------------------------------------------------------------------------------------- */

/* A run of stored bytes and where it goes. */
struct zstd_piece {
    uint8_t *to;
    uint64_t offset;
    uint32_t len;
};

static struct filter_frame *zstd_frame(struct exchange *x, uint32_t number)
{
    return &x->download.zstd.stream->frames[number % FILTER_FRAMES];
}

/* False when nothing is to be read now. */
static bool zstd_piece(struct exchange *x, struct zstd_piece *piece)
{
    struct decompressing *zstd = &x->download.zstd;
    uint64_t stored = store_object_size(x->object);
    if (!zstd->has_count) {
        *piece = (struct zstd_piece){zstd->stream->table_bytes, stored - ZFRAME_FOOTER, ZFRAME_FOOTER};
        return true;
    }
    if (!zstd->has_table) {
        uint32_t len = zframe_table_len(zstd->count);
        *piece = (struct zstd_piece){zstd->stream->table_bytes, stored - len, len};
        return true;
    }
    if (zstd->next > zstd->last) {
        return false;
    }
    struct filter_frame *frame = zstd_frame(x, zstd->next);
    if (frame->state == FILTER_FREE) {
        frame->state = FILTER_FILLING;
        zstd->read = 0;
    }
    *piece =
        (struct zstd_piece){frame->stored, zstd->offset, zframe_stored_len(&zstd->stream->table, zstd->next)};
    return frame->state == FILTER_FILLING;
}

/* ---- what has been read --------------------------------------------------------------------------------------- */

static int zstd_have_footer(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    zstd->has_count = true;
    return zframe_footer_read(zstd->stream->table_bytes, store_object_size(x->object), zstd->plain,
                              &zstd->count);
}

static int zstd_have_table(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    const struct http_range *range = &x->download.range;
    struct zframe_table *table = &zstd->stream->table;
    int rc = zframe_table_read(table, zstd->count, store_object_size(x->object), zstd->plain);
    if (rc == 0) {
        uint64_t sent = x->download.sent;
        struct zframe_span span = zframe_span(range->first + sent, range->len - sent);
        zstd->has_table = true;
        zstd->next = span.first;
        zstd->shown = span.first;
        zstd->last = span.last;
        zstd->offset = zframe_offset(table, span.first);
    }
    return rc;
}

static void zstd_have_frame(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    struct filter_frame *frame = zstd_frame(x, zstd->next);
    frame->stored_len = zframe_stored_len(&zstd->stream->table, zstd->next);
    frame->plain_len = zframe_plain_len(&zstd->stream->table, zstd->next);
    zstd->offset += frame->stored_len;
    zstd->next++;
    filter_submit(frame, FILTER_JOB_DECOMPRESS, 0);
}

static int zstd_have_piece(struct exchange *x)
{
    x->download.zstd.read = 0;
    if (!x->download.zstd.has_count) {
        return zstd_have_footer(x);
    }
    if (!x->download.zstd.has_table) {
        return zstd_have_table(x);
    }
    zstd_have_frame(x);
    return 0;
}

static void zstd_have(struct exchange *x, struct store_read *read)
{
    struct slice slice;
    struct zstd_piece piece;
    CHECK(x->download.read == read);
    x->download.read = NULL;
    int rc = store_read_take(read, &slice);
    if (rc < 0) {
        zstd_fail(x, rc);
        return;
    }
    if (x->download.zstd.is_failed || x->response.is_recalled || x->download.zstd.is_resting) {
        slice_release(&slice);
        x->download.zstd.is_resting = true;
        zstd_step(x);
        return;
    }
    bool is_wanted = zstd_piece(x, &piece);
    CHECK(is_wanted);
    CHECK(slice.len <= piece.len - x->download.zstd.read);
    memcpy(piece.to + x->download.zstd.read, slice.addr, slice.len);
    x->download.zstd.read += slice.len;
    slice_release(&slice);
    if (x->download.zstd.read == piece.len) {
        rc = zstd_have_piece(x);
        if (rc < 0) {
            zstd_fail(x, rc);
            return;
        }
    }
    zstd_step(x);
}

/* ---- sending -------------------------------------------------------------------------------------------------- */

static void zstd_send(struct exchange *x, struct filter_frame *frame)
{
    struct download *download = &x->download;
    uint32_t number = download->zstd.shown++;
    uint64_t first = (uint64_t)number * ZFRAME_PLAIN;
    uint64_t end = download->range.first + download->range.len;
    uint64_t at = download->range.first + download->queued;
    uint32_t skip = at > first ? (uint32_t)(at - first) : 0;
    uint32_t len = (end - first < frame->plain_len ? (uint32_t)(end - first) : frame->plain_len) - skip;
    if (x->response.status == 0) {
        s3_get_start(x);
        metrics_observe(&x->listener->cells->first_byte_latency, x->worker->now_ns - x->head_ns);
    }
    frame->skip = len; /* What the send stands for, when it has completed. */
    frame->state = FILTER_OUT;
    if (!http_response_payload(x, frame->plain + skip, len, HTTP_COOKIE_PAYLOAD + number % FILTER_FRAMES)) {
        frame->state = FILTER_FREE;
        download->zstd.is_failed = true;
        conn_abort(x->conn);
        return;
    }
    share_hold(x, SHARE_STREAM);
    s3_get_queued(x, len);
    if (download->queued == download->range.len) {
        http_response_end(x);
    }
}

static void zstd_frame_done(void *user, struct filter_frame *frame)
{
    struct exchange *x = user;
    if (x->is_abandoned) {
        exchange_settle(x);
    } else if (frame->status < 0) {
        zstd_fail(x, frame->status);
    } else if (x->response.is_recalled || x->download.zstd.is_resting) {
        frame->state = FILTER_FREE;
        x->download.zstd.is_resting = true;
        zstd_step(x);
    } else if (!x->download.zstd.is_failed) {
        zstd_send(x, frame); /* Frames come back in the order of the payload. */
        zstd_step(x);
    }
}

static bool zstd_is_sending(const struct exchange *x)
{
    const struct filter_stream *stream = x->download.zstd.stream;
    bool is_sending = false;
    for (uint32_t i = 0; stream != NULL && i < FILTER_FRAMES; i++) {
        is_sending |= stream->frames[i].state == FILTER_OUT;
    }
    return is_sending;
}

static void zstd_sent(struct exchange *x, uint64_t cookie)
{
    struct filter_frame *frame = zstd_frame(x, (uint32_t)(cookie - HTTP_COOKIE_PAYLOAD));
    CHECK(frame->state == FILTER_OUT);
    x->download.sent += frame->skip;
    frame->state = FILTER_FREE;
    if (!zstd_is_sending(x)) {
        share_release(x);
    } else if (!x->response.is_recalled && !x->is_abandoned) {
        share_hold(x, SHARE_STREAM);
    }
    x->download.zstd.is_resting |= x->response.is_recalled; /* It waits for room, and not with a stream. */
    zstd_step(x);
}

static void zstd_cut(struct exchange *x, uint64_t cookie, uint64_t sent)
{
    struct filter_frame *frame = zstd_frame(x, (uint32_t)(cookie - HTTP_COOKIE_PAYLOAD));
    CHECK(frame->state == FILTER_OUT);
    x->download.sent += sent;
    frame->state = FILTER_FREE;
    x->download.zstd.is_resting = true;
    zstd_step(x);
}

/* A recalled download: true when nothing is on its way any more, and the stream was given back. */
static bool zstd_has_rested(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    if (zstd->stream != NULL) {
        if (zstd_is_sending(x) || !filter_stream_is_idle(zstd->stream)) {
            return false;
        }
        for (uint32_t i = 0; i < FILTER_FRAMES; i++) {
            zstd->stream->frames[i].state = FILTER_FREE;
        }
        filter_stream_close(zstd->stream);
        zstd->stream = NULL;
    }
    zstd->has_count = false;
    zstd->has_table = false;
    zstd->read = 0;
    zstd->is_resting = false;
    x->download.queued = x->download.sent;
    return true;
}

/* ---- the way ------------------------------------------------------------------------------------------------ */

static bool zstd_stream_take(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    if (zstd->stream == NULL && !share_is_wanted(x, SHARE_STREAM)) {
        zstd->stream = filter_stream_open(&x->worker->filter, x, zstd_frame_done);
    }
    return zstd->stream != NULL;
}

static void zstd_step(struct exchange *x)
{
    struct download *download = &x->download;
    struct zstd_piece piece;
    if (x->is_abandoned || download->read != NULL || download->zstd.is_failed ||
        (download->zstd.is_resting && !zstd_has_rested(x)) || x->response.is_recalled ||
        download->sent == download->range.len) {
        return;
    }
    if (!zstd_stream_take(x)) {
        share_wait(x, SHARE_STREAM);
        return;
    }
    if (!zstd_piece(x, &piece)) {
        return;
    }
    int rc = store_read_begin(x->worker->port, x->object, piece.offset + download->zstd.read,
                              piece.len - download->zstd.read, x, &download->read);
    if (rc < 0) {
        download->read = NULL;
    }
    if (rc == -EAGAIN) {
        share_wait(x, SHARE_READ);
    } else if (rc < 0) {
        zstd_fail(x, rc);
    }
}

static void zstd_drop(struct exchange *x)
{
    if (x->download.zstd.stream != NULL) {
        filter_stream_close(x->download.zstd.stream);
        x->download.zstd.stream = NULL;
    }
    metrics_sub(&x->listener->cells->downloads_in_flight, 1);
}

static const struct exchange_ops zstd_ops = {
    .sent = zstd_sent,
    .resume = zstd_step,
    .cut = zstd_cut,
    .room = zstd_step,
    .read = zstd_have,
    .drop = zstd_drop,
};

void s3_get_zstd(struct exchange *x)
{
    x->ops = &zstd_ops;
    if (x->download.zstd.plain == 0 || store_object_size(x->object) <= ZFRAME_FOOTER) {
        zstd_fail(x, ERR_CORRUPT); /* No object of ours. */
        return;
    }
    zstd_step(x);
    if (x->download.zstd.stream == NULL) {
        metrics_add(&x->listener->cells->compression_busy, 1);
    }
}
