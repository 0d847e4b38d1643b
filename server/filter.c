/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filter: frames, streams and the thread behind them. A BUSY frame is the thread's alone; everything else, references to
 * slices included, is touched by the worker only.
 */
#define ZSTD_STATIC_LINKING_ONLY /* contexts in memory of ours */
#include "server/filter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/check.h"

/* ---- the work ------------------------------------------------------------------------------------------------- */

static int filter_compress(struct filter *filter, struct filter_frame *frame)
{
    ZSTD_CCtx *context = filter->compress;
    size_t rc = ZSTD_CCtx_reset(context, ZSTD_reset_session_and_parameters);
    CHECK(!ZSTD_isError(rc));
    rc = ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, frame->level);
    CHECK(!ZSTD_isError(rc));
    rc = ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    CHECK(!ZSTD_isError(rc));
    rc = ZSTD_compress2(context, frame->stored, sizeof(frame->stored), frame->plain, frame->plain_len);
    if (ZSTD_isError(rc)) {
        return ERR_CORRUPT; /* Cannot be with room for the worst case; the upload fails rather than the node. */
    }
    frame->stored_len = (uint32_t)rc;
    return 0;
}

/* The bytes come from a disk: whatever is wrong with them is an answer, never other bytes. */
static int filter_decompress(struct filter *filter, struct filter_frame *frame)
{
    size_t first = ZSTD_findFrameCompressedSize(frame->stored, frame->stored_len);
    if (ZSTD_isError(first) || first != frame->stored_len) {
        return ERR_CORRUPT;
    }
    size_t rc = ZSTD_decompressDCtx(filter->decompress, frame->plain, sizeof(frame->plain), frame->stored,
                                    frame->stored_len);
    return ZSTD_isError(rc) || rc != frame->plain_len ? ERR_CORRUPT : 0;
}

static void filter_work(struct filter *filter, struct filter_frame *frame)
{
    if (frame->job == FILTER_JOB_PASS) {
        frame->status = 0;
        return;
    }
    frame->status =
        frame->job == FILTER_JOB_COMPRESS ? filter_compress(filter, frame) : filter_decompress(filter, frame);
}

static void filter_helper_work(void *user, struct mpsc_node *node)
{
    filter_work(user, CONTAINER_OF(node, struct filter_frame, node));
}

/* ---- open and close ------------------------------------------------------------------------------------------- */

static void filter_memory_close(struct filter *filter)
{
    free(filter->compress_memory); /* The contexts lie in it. */
    free(filter->decompress_memory);
    pool_close(&filter->streams);
    filter->compress_memory = NULL;
    filter->decompress_memory = NULL;
}

static int filter_memory_open(struct filter *filter, const struct filter_options *options)
{
    size_t compress = ZSTD_estimateCCtxSize(options->level_max);
    size_t decompress = ZSTD_estimateDCtxSize();
    if (compress + decompress > CONF_COMPRESSION_CONTEXT_SIZE) {
        return -E2BIG;
    }
    filter->compress_memory = malloc(compress);
    filter->decompress_memory = malloc(decompress);
    int rc = pool_open(&filter->streams, sizeof(struct filter_stream), options->streams);
    if (rc < 0 || filter->compress_memory == NULL || filter->decompress_memory == NULL) {
        return -ENOMEM;
    }
    filter->compress = ZSTD_initStaticCCtx(filter->compress_memory, compress);
    filter->decompress = ZSTD_initStaticDCtx(filter->decompress_memory, decompress);
    return filter->compress == NULL || filter->decompress == NULL ? -ENOMEM : 0;
}

int filter_open(struct filter *filter, const struct filter_options *options, struct err *err)
{
    memset(filter, 0, sizeof(*filter));
    list_init(&filter->done);
    int rc = filter_memory_open(filter, options);
    if (rc == 0 && options->wants_thread) {
        rc = helper_open(&filter->helper, "compression", filter_helper_work, filter);
    }
    if (rc < 0) {
        filter_memory_close(filter);
        return err_set(err, rc,
                       "cannot set up compression with %u streams: %s; lower node.compression_streams",
                       options->streams, err_text(rc));
    }
    return 0;
}

void filter_close(struct filter *filter)
{
    (void)helper_close(&filter->helper); /* No frame is out: their streams are closed. */
    filter_memory_close(filter);
}

int filter_event_fd(const struct filter *filter)
{
    return helper_event_fd(&filter->helper);
}

/* ---- frames --------------------------------------------------------------------------------------------------- */

void filter_submit(struct filter_frame *frame, enum filter_job job, int level)
{
    struct filter *filter = frame->stream->filter;
    CHECK(frame->state == FILTER_FILLING);
    frame->state = FILTER_BUSY;
    frame->job = job;
    frame->level = level;
    if (filter->helper.is_open) {
        helper_submit(&filter->helper, &frame->node);
    } else {
        list_append(&filter->done, &frame->link);
    }
}

static void filter_collect(struct filter *filter)
{
    struct mpsc_node *node = helper_collect(&filter->helper);
    while (node != NULL) {
        struct filter_frame *frame = CONTAINER_OF(node, struct filter_frame, node);
        node = node->next;
        list_append(&filter->done, &frame->link);
    }
}

struct filter_frame *filter_poll(struct filter *filter)
{
    if (filter->helper.is_open) {
        filter_collect(filter);
    }
    struct list *node = list_take_first(&filter->done);
    if (node == NULL) {
        return NULL;
    }
    struct filter_frame *frame = CONTAINER_OF(node, struct filter_frame, link);
    CHECK(frame->state == FILTER_BUSY);
    if (!filter->helper.is_open) {
        filter_work(filter, frame);
    }
    frame->state = FILTER_READY;
    return frame;
}

/* ---- slices --------------------------------------------------------------------------------------------------- */

static uint32_t *filter_refs(struct slice_owner *owner, const struct slice *slice)
{
    struct filter_stream *stream = CONTAINER_OF(owner, struct filter_stream, owner);
    CHECK(slice->token <= FILTER_FRAMES);
    return slice->token == FILTER_FRAMES ? &stream->table_refs : &stream->frames[slice->token].refs;
}

static void filter_retain(struct slice_owner *owner, const struct slice *slice)
{
    uint32_t *refs = filter_refs(owner, slice);
    CHECK(*refs > 0);
    (*refs)++;
}

static void filter_release(struct slice_owner *owner, const struct slice *slice)
{
    struct filter_stream *stream = CONTAINER_OF(owner, struct filter_stream, owner);
    uint32_t *refs = filter_refs(owner, slice);
    CHECK(*refs > 0);
    if (--(*refs) == 0 && slice->token < FILTER_FRAMES) {
        CHECK(stream->frames[slice->token].state == FILTER_OUT);
        stream->frames[slice->token].state = FILTER_FREE;
    }
}

static struct slice filter_slice(struct filter_stream *stream, uint64_t token, uint8_t *bytes, uint32_t len)
{
    return (struct slice){
        .addr = bytes, .len = len, .buf_index = -1, .owner = &stream->owner, .token = token};
}

struct slice filter_lend(struct filter_frame *frame, uint8_t *bytes, uint32_t len)
{
    CHECK(frame->state == FILTER_READY || frame->state == FILTER_FILLING);
    CHECK(frame->refs == 0);
    frame->state = FILTER_OUT;
    frame->refs = 1;
    return filter_slice(frame->stream, (uint64_t)(frame - frame->stream->frames), bytes, len);
}

struct slice filter_lend_table(struct filter_stream *stream, uint32_t len)
{
    CHECK(stream->table_refs == 0);
    stream->table_refs = 1;
    return filter_slice(stream, FILTER_FRAMES, stream->table_bytes, len);
}

/* ---- streams -------------------------------------------------------------------------------------------------- */

struct filter_stream *filter_stream_open(struct filter *filter, void *user,
                                         void (*event)(void *user, struct filter_frame *frame))
{
    struct filter_stream *stream = pool_take(&filter->streams);
    if (stream == NULL) {
        return NULL;
    }
    stream->owner = (struct slice_owner){.retain = filter_retain, .release = filter_release};
    stream->filter = filter;
    stream->user = user;
    stream->event = event;
    stream->table_refs = 0;
    zframe_table_begin(&stream->table, stream->table_bytes);
    for (uint32_t i = 0; i < FILTER_FRAMES; i++) {
        struct filter_frame *frame = &stream->frames[i];
        frame->stream = stream;
        frame->state = FILTER_FREE;
        frame->refs = 0;
        frame->plain_len = 0;
        frame->stored_len = 0;
        list_init(&frame->link);
    }
    return stream;
}

bool filter_stream_is_idle(const struct filter_stream *stream)
{
    uint32_t lent = stream->table_refs;
    for (uint32_t i = 0; i < FILTER_FRAMES; i++) {
        lent += stream->frames[i].refs + (stream->frames[i].state == FILTER_BUSY);
    }
    return lent == 0;
}

bool filter_stream_is_settled(const struct filter_stream *stream)
{
    for (uint32_t i = 0; i < FILTER_FRAMES; i++) {
        if (stream->frames[i].state == FILTER_BUSY) {
            return false;
        }
    }
    return true;
}

void filter_stream_close(struct filter_stream *stream)
{
    CHECK(filter_stream_is_idle(stream));
    pool_give(&stream->filter->streams, stream);
}
