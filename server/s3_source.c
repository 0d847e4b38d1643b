/* SPDX-License-Identifier: Apache-2.0 */
/* s3_source: see s3_source.h. */
#include "server/s3_source.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "server/conn.h"
#include "server/s3_handlers.h"

/* Another frame may still be on its way when one has failed: it is said once. */
static void source_fail(struct exchange *x, int error)
{
    if (!x->download.zstd.is_failed) {
        x->download.zstd.is_failed = true;
        x->download.zstd.consumer->fail(x, error);
    }
}

static uint64_t source_end(const struct exchange *x)
{
    return x->download.range.first + x->download.range.len;
}

/* ---- segments ------------------------------------------------------------------------------------------------- */

static void segment_of_object(const struct store_object *object, struct segment *out)
{
    uint64_t payload = 0;
    bool is_marked = zframe_is_marked(store_object_attributes(object)->checksum, &payload);
    out->is_plain = !is_marked;
    out->len = is_marked ? payload : store_object_size(object);
    out->stored_len = store_object_size(object);
}

static void segment_of_part(const struct store_object *object, struct segment *out)
{
    struct store_part_place part = store_object_part_at(object, out->index);
    out->is_plain = part.payload == 0;
    out->len = out->is_plain ? part.len : part.payload;
    out->stored = part.offset;
    out->stored_len = part.len;
}

/* The first segment, or the one behind the one at hand; false behind the last. */
static bool segment_next(const struct store_object *object, struct segment *segment, bool is_first)
{
    struct segment next = {0};
    uint32_t parts = store_object_part_count(object);
    if (!is_first) {
        next.index = segment->index + 1;
        next.at = segment->at + segment->len;
    }
    if (next.index >= (parts == 0 ? 1 : parts)) {
        return false;
    }
    if (parts == 0) {
        segment_of_object(object, &next);
    } else {
        segment_of_part(object, &next);
    }
    *segment = next;
    return true;
}

/* Which frames of the segment the range touches. A plain one is cut where a compressed one would be. */
static void segment_span(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    const struct segment *segment = &zstd->segment;
    uint64_t from = x->download.range.first + x->download.sent; /* Behind what was sent before a recall. */
    uint64_t first = from > segment->at ? from - segment->at : 0;
    uint64_t end = source_end(x) - segment->at;
    end = end < segment->len ? end : segment->len;
    zstd->next = (uint32_t)(first / ZFRAME_PLAIN);
    zstd->last = (uint32_t)((end - 1) / ZFRAME_PLAIN);
    zstd->offset = segment->stored + (segment->is_plain ? (uint64_t)zstd->next * ZFRAME_PLAIN
                                                        : zframe_offset(&zstd->stream->table, zstd->next));
}

/* Makes the next segment that the range touches the one at hand. */
static int segment_open(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    bool is_there;
    do { /* over the parts before the range: no I/O */
        is_there = segment_next(zstd->object, &zstd->segment, !zstd->has_segment);
        zstd->has_segment = true;
    } while (is_there && (zstd->segment.len == 0 || zstd->segment.at + zstd->segment.len <=
                                                        x->download.range.first + x->download.sent));
    if (!is_there || (!zstd->segment.is_plain && zstd->segment.stored_len <= ZFRAME_FOOTER)) {
        return ERR_CORRUPT; /* No object of ours. */
    }
    zstd->has_count = zstd->has_table = zstd->segment.is_plain;
    if (zstd->segment.is_plain) {
        segment_span(x);
    }
    return 0;
}

static bool segment_is_used_up(const struct exchange *x)
{
    const struct decompressing *zstd = &x->download.zstd;
    return !zstd->has_segment || (zstd->has_table && zstd->next > zstd->last);
}

/* ---- what is read next ---------------------------------------------------------------------------------------- */

/* A run of stored bytes and where it goes. */
struct source_piece {
    uint8_t *to;
    uint64_t offset;
    uint32_t len;
};

static uint32_t source_frame_plain_len(const struct decompressing *zstd)
{
    if (!zstd->segment.is_plain) {
        return zframe_plain_len(&zstd->stream->table, zstd->next);
    }
    uint64_t left = zstd->segment.len - (uint64_t)zstd->next * ZFRAME_PLAIN;
    return left < ZFRAME_PLAIN ? (uint32_t)left : ZFRAME_PLAIN;
}

static struct filter_frame *source_frame(struct decompressing *zstd)
{
    return &zstd->stream->frames[zstd->taken % FILTER_FRAMES];
}

/* False when nothing can be read now: the frame whose turn it is is still in use. */
static bool source_piece(struct exchange *x, struct source_piece *piece)
{
    struct decompressing *zstd = &x->download.zstd;
    uint64_t stored_end = zstd->segment.stored + zstd->segment.stored_len;
    if (!zstd->has_count) {
        *piece = (struct source_piece){zstd->stream->table_bytes, stored_end - ZFRAME_FOOTER, ZFRAME_FOOTER};
        return true;
    }
    if (!zstd->has_table) {
        uint32_t len = zframe_table_len(zstd->count);
        *piece = (struct source_piece){zstd->stream->table_bytes, stored_end - len, len};
        return true;
    }
    struct filter_frame *frame = source_frame(zstd);
    if (frame->state == FILTER_FREE) {
        frame->state = FILTER_FILLING;
        zstd->read = 0;
    }
    piece->to = zstd->segment.is_plain ? frame->plain : frame->stored;
    piece->offset = zstd->offset;
    piece->len = zstd->segment.is_plain ? source_frame_plain_len(zstd)
                                        : zframe_stored_len(&zstd->stream->table, zstd->next);
    return frame->state == FILTER_FILLING;
}

/* ---- what has been read --------------------------------------------------------------------------------------- */

static int source_have_footer(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    zstd->has_count = true;
    return zframe_footer_read(zstd->stream->table_bytes, zstd->segment.stored_len, zstd->segment.len,
                              &zstd->count);
}

static int source_have_table(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    int rc =
        zframe_table_read(&zstd->stream->table, zstd->count, zstd->segment.stored_len, zstd->segment.len);
    if (rc == 0) {
        zstd->has_table = true;
        segment_span(x);
    }
    return rc;
}

static void source_have_frame(struct exchange *x, uint32_t stored_len)
{
    struct decompressing *zstd = &x->download.zstd;
    struct filter_frame *frame = source_frame(zstd);
    frame->stored_len = stored_len;
    frame->plain_len = source_frame_plain_len(zstd);
    frame->at = zstd->segment.at + (uint64_t)zstd->next * ZFRAME_PLAIN;
    zstd->offset += stored_len;
    zstd->next++;
    zstd->taken++;
    filter_submit(frame, zstd->segment.is_plain ? FILTER_JOB_PASS : FILTER_JOB_DECOMPRESS, 0);
}

static int source_have_piece(struct exchange *x, uint32_t len)
{
    x->download.zstd.read = 0;
    if (!x->download.zstd.has_count) {
        return source_have_footer(x);
    }
    if (!x->download.zstd.has_table) {
        return source_have_table(x);
    }
    source_have_frame(x, len);
    return 0;
}

void s3_source_have(struct exchange *x, struct store_read *read)
{
    struct slice slice;
    struct source_piece piece;
    CHECK(x->download.read == read);
    x->download.read = NULL;
    int rc = store_read_take(read, &slice);
    if (rc < 0) {
        source_fail(x, rc);
        return;
    }
    if (x->download.zstd.is_failed || x->response.is_recalled || x->download.zstd.is_resting) {
        slice_release(&slice);
        x->download.zstd.is_resting = true;
        s3_source_step(x);
        return;
    }
    bool is_wanted = source_piece(x, &piece);
    CHECK(is_wanted);
    CHECK(slice.len <= piece.len - x->download.zstd.read);
    memcpy(piece.to + x->download.zstd.read, slice.addr, slice.len);
    x->download.zstd.read += slice.len;
    slice_release(&slice);
    if (x->download.zstd.read == piece.len) {
        rc = source_have_piece(x, piece.len);
        if (rc < 0) {
            source_fail(x, rc);
            return;
        }
    }
    s3_source_step(x);
}

static void source_frame_done(void *user, struct filter_frame *frame)
{
    struct exchange *x = user;
    if (x->is_abandoned) {
        exchange_settle(x);
    } else if (frame->status < 0) {
        source_fail(x, frame->status);
    } else if (x->response.is_recalled || x->download.zstd.is_resting) {
        frame->state = FILTER_FREE;
        x->download.zstd.is_resting = true;
        s3_source_step(x);
    } else if (!x->download.zstd.is_failed) {
        x->download.zstd.consumer->give(x, frame); /* Frames come back in the order of the payload. */
        s3_source_step(x);
    }
}

/* ---- the way -------------------------------------------------------------------------------------------------- */

bool s3_source_is_out(const struct exchange *x)
{
    const struct filter_stream *stream = x->download.zstd.stream;
    bool is_out = false;
    for (uint32_t i = 0; stream != NULL && i < FILTER_FRAMES; i++) {
        is_out |= stream->frames[i].state == FILTER_OUT;
    }
    return is_out;
}

/* A recalled download: true when nothing is on its way any more, and the stream was given back. It begins again with the
 * segment that holds the first byte not sent; footer and table are read again, the stream held them. */
static bool source_has_rested(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    if (zstd->stream != NULL) {
        if (s3_source_is_out(x) || !filter_stream_is_idle(zstd->stream)) {
            return false;
        }
        for (uint32_t i = 0; i < FILTER_FRAMES; i++) {
            zstd->stream->frames[i].state = FILTER_FREE;
        }
        s3_source_drop(x);
    }
    zstd->has_segment = false;
    zstd->has_count = false;
    zstd->has_table = false;
    zstd->read = 0;
    zstd->taken = 0;
    zstd->is_resting = false;
    x->download.queued = x->download.sent;
    return true;
}

static bool source_stream_take(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    if (zstd->stream == NULL && !share_is_wanted(x, SHARE_STREAM)) {
        zstd->stream = filter_stream_open(&x->worker->filter, x, source_frame_done);
    }
    return zstd->stream != NULL;
}

/* Is there something to read? Opens the segment in which it lies. */
static bool source_has_more(struct exchange *x)
{
    struct decompressing *zstd = &x->download.zstd;
    if (!segment_is_used_up(x)) {
        return true;
    }
    if (zstd->has_segment && source_end(x) <= zstd->segment.at + zstd->segment.len) {
        return false;
    }
    int rc = segment_open(x);
    if (rc < 0) {
        source_fail(x, rc);
    }
    return rc == 0;
}

void s3_source_step(struct exchange *x)
{
    struct download *download = &x->download;
    struct source_piece piece;
    if (x->is_abandoned || download->read != NULL || download->zstd.is_failed ||
        (download->zstd.is_resting && !source_has_rested(x)) || x->response.is_recalled ||
        download->sent == download->range.len) {
        return;
    }
    if (!source_stream_take(x)) {
        share_wait(x, SHARE_STREAM);
        return;
    }
    if (!source_has_more(x) || !source_piece(x, &piece)) {
        return;
    }
    int rc = store_read_begin(x->worker->port, download->zstd.object, piece.offset + download->zstd.read,
                              piece.len - download->zstd.read, x, &download->read);
    if (rc < 0) {
        download->read = NULL;
    }
    if (rc == -EAGAIN) {
        share_wait(x, SHARE_READ);
    } else if (rc < 0) {
        source_fail(x, rc);
    }
}

uint8_t *s3_source_wanted(const struct exchange *x, struct filter_frame *frame, uint32_t *len)
{
    uint64_t at = x->download.range.first + x->download.queued;
    uint64_t end = source_end(x) - frame->at;
    uint32_t skip = at > frame->at ? (uint32_t)(at - frame->at) : 0;
    *len = (end < frame->plain_len ? (uint32_t)end : frame->plain_len) - skip;
    return frame->plain + skip;
}

void s3_source_begin(struct exchange *x, struct store_object *object,
                     const struct s3_source_consumer *consumer)
{
    CHECK(x->download.range.len > 0);
    x->download.zstd.object = object;
    x->download.zstd.consumer = consumer;
    s3_source_step(x);
    if (x->download.zstd.stream == NULL) {
        metrics_add(&x->listener->cells->compression_busy, 1);
    }
}

void s3_source_drop(struct exchange *x)
{
    if (x->download.zstd.stream != NULL) {
        filter_stream_close(x->download.zstd.stream);
        x->download.zstd.stream = NULL;
    }
}
