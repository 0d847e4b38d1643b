/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_get_zstd: GetObject of an object that is stored compressed: frames from s3_source.c are sent as they come.
 *
 * As with plain objects the first frame is decompressed before the status line is written. One frame is read or
 * decompressed while another is being sent; a slow reader holds one stream while nobody waits for it (share.h).
 */
#include "base/check.h"
#include "server/conn.h"
#include "server/s3_handlers.h"
#include "server/s3_source.h"

static uint64_t zstd_slot(const struct filter_frame *frame)
{
    return (uint64_t)(frame - frame->stream->frames);
}

static void zstd_send(struct exchange *x, struct filter_frame *frame)
{
    struct download *download = &x->download;
    uint32_t len;
    uint8_t *bytes = s3_source_wanted(x, frame, &len);
    if (x->response.status == 0) {
        s3_get_start(x);
        metrics_observe(&x->listener->cells->first_byte_latency, x->worker->now_ns - x->head_ns);
    }
    frame->skip = len; /* What the send stands for, when it has completed. */
    frame->state = FILTER_OUT;
    if (!http_response_payload(x, bytes, len, HTTP_COOKIE_PAYLOAD + zstd_slot(frame))) {
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

static struct filter_frame *zstd_frame(struct exchange *x, uint64_t cookie)
{
    struct filter_frame *frame = &x->download.zstd.stream->frames[cookie - HTTP_COOKIE_PAYLOAD];
    CHECK(frame->state == FILTER_OUT);
    return frame;
}

static void zstd_sent(struct exchange *x, uint64_t cookie)
{
    struct filter_frame *frame = zstd_frame(x, cookie);
    x->download.sent += frame->skip;
    frame->state = FILTER_FREE;
    if (!s3_source_is_out(x)) {
        share_release(x);
    } else if (!x->response.is_recalled && !x->is_abandoned) {
        share_hold(x, SHARE_STREAM);
    }
    x->download.zstd.is_resting |= x->response.is_recalled; /* It waits for room, and not with a stream. */
    s3_source_step(x);
}

static void zstd_cut(struct exchange *x, uint64_t cookie, uint64_t sent)
{
    struct filter_frame *frame = zstd_frame(x, cookie);
    x->download.sent += sent;
    frame->state = FILTER_FREE;
    x->download.zstd.is_resting = true;
    s3_source_step(x);
}

static void zstd_drop(struct exchange *x)
{
    s3_source_drop(x);
    metrics_sub(&x->listener->cells->downloads_in_flight, 1);
}

static const struct exchange_ops zstd_ops = {
    .sent = zstd_sent,
    .resume = s3_source_step,
    .cut = zstd_cut,
    .room = s3_source_step,
    .read = s3_source_have,
    .drop = zstd_drop,
};
static const struct s3_source_consumer zstd_consumer = {.give = zstd_send, .fail = s3_get_read_failed};

void s3_get_zstd(struct exchange *x)
{
    x->ops = &zstd_ops;
    s3_source_begin(x, x->object, &zstd_consumer);
}
