/* SPDX-License-Identifier: Apache-2.0 */
/* compressing: see compressing.h. */
#include "server/compressing.h"

#include <string.h>

#include "base/check.h"
#include "server/conn.h"
#include "server/exchange.h"

/* ---- begin ---------------------------------------------------------------------------------------------------- */

/* Does "bucket/key" begin with one of the configured words? */
static bool compressing_matches(const struct exchange *x)
{
    struct text words = text_of_string(x->listener->conf->compression.prefixes);
    struct text bucket = text_of_string(x->request.bucket);
    struct text key = text_of((const char *)x->request.key.bytes, x->request.key.len);
    bool is_any = words.len == 0;
    while (!is_any && !text_is_absent(words)) {
        struct text word = text_take_until(&words, ' ');
        struct text name = text_take_until(&word, '/'); /* The rest of `word` begins the key. */
        is_any = name.len > 0 && text_equal(name, bucket) &&
                 (word.len == 0 || (key.len >= word.len && memcmp(key.at, word.at, word.len) == 0));
    }
    return is_any;
}

void compressing_open(struct exchange *x, uint64_t size)
{
    struct compressing *compressing = &x->upload.compressing;
    const struct conf_compression *conf = &x->listener->conf->compression;
    memset(compressing, 0, sizeof(*compressing));
    list_init(&compressing->link);
    bool is_size_fit = size == UINT64_MAX || (size >= ZFRAME_OBJECT_MIN && size <= ZFRAME_OBJECT_MAX);
    if (conf->type != CONF_COMPRESSION_ZSTD || !is_size_fit || !compressing_matches(x)) {
        return;
    }
    compressing->stream = filter_stream_open(&x->worker->filter, x, upload_filter_event);
    if (compressing->stream == NULL) {
        metrics_add(&x->listener->cells->compression_busy, 1);
        return;
    }
    compressing->mode = COMPRESSING_UNDECIDED;
    compressing->level = (int)conf->level;
    list_append(&x->worker->filtering, &compressing->link);
}

/* ---- from frames to the store --------------------------------------------------------------------------------- */

/* A frame is not filled again before the store has let go of it, and none comes after a slice that was not compressed. So these and the
 * table are all that is handed on without asking whether the store is full. */
_Static_assert(FILTER_FRAMES + 1 <= STORE_PUT_SLICES_OWN,
               "the store always has room for the frames and the table");

static struct filter_frame *compressing_frame(struct compressing *compressing, uint32_t number)
{
    return &compressing->stream->frames[number % FILTER_FRAMES];
}

static void compressing_store(struct upload *upload, const struct slice *slice)
{
    upload->compressing.stored += slice->len;
    store_put_append(upload->put, slice);
}

static void compressing_decide(struct upload *upload, const struct filter_frame *frame)
{
    bool is_worth = zframe_is_worth(frame->stored_len, frame->plain_len);
    upload->compressing.mode = is_worth ? COMPRESSING_ZSTD : COMPRESSING_PLAIN;
    metrics_add(&upload->x->listener->cells->compression_useless, is_worth ? 0 : 1);
}

/* Hands on what has come back from the filter, in order. */
static bool compressing_drain(struct upload *upload)
{
    struct compressing *compressing = &upload->compressing;
    while (compressing->drained != compressing->filled) {
        struct filter_frame *frame = compressing_frame(compressing, compressing->drained);
        if (frame->state != FILTER_READY) {
            return true;
        }
        if (frame->status < 0) {
            return false;
        }
        if (compressing->mode == COMPRESSING_UNDECIDED) {
            compressing_decide(upload, frame);
        }
        bool is_zstd = compressing->mode == COMPRESSING_ZSTD;
        if (is_zstd) {
            zframe_table_add(&compressing->stream->table, frame->stored_len, frame->plain_len);
        }
        struct slice slice = is_zstd ? filter_lend(frame, frame->stored, frame->stored_len)
                                     : filter_lend(frame, frame->plain, frame->plain_len);
        compressing->drained++;
        compressing_store(upload, &slice);
    }
    return true;
}

/* PLAIN: the frame that was being filled when it was decided goes as it is. True when none is in the way any more. */
static bool compressing_drain_plain(struct upload *upload)
{
    struct compressing *compressing = &upload->compressing;
    if (compressing->drained != compressing->filled) {
        return false;
    }
    if (compressing->stream == NULL) {
        return true;
    }
    struct filter_frame *frame = compressing_frame(compressing, compressing->filled);
    if (frame->state == FILTER_FILLING) {
        struct slice slice = filter_lend(frame, frame->plain, frame->plain_len);
        compressing->filled++;
        compressing->drained++;
        compressing_store(upload, &slice);
    }
    if (filter_stream_is_idle(compressing->stream)) { /* Another upload may have better use for it. */
        filter_stream_close(compressing->stream);
        compressing->stream = NULL;
    }
    return true;
}

/* ---- from slices to frames ------------------------------------------------------------------------------------ */

/* Copies the beginning of a slice into a frame; false when no frame is free. */
static bool compressing_copy(struct upload *upload, struct slice *slice)
{
    struct compressing *compressing = &upload->compressing;
    struct filter_frame *frame = compressing_frame(compressing, compressing->filled);
    if (frame->state == FILTER_FREE) {
        frame->state = FILTER_FILLING;
        frame->plain_len = 0;
    }
    if (frame->state != FILTER_FILLING) {
        return false;
    }
    uint32_t room = ZFRAME_PLAIN - frame->plain_len;
    uint32_t len = slice->len < room ? slice->len : room;
    memcpy(frame->plain + frame->plain_len, slice->addr, len);
    store_port_copied_add(upload->x->worker->port, STORE_COPY_FILTER, len);
    frame->plain_len += len;
    slice->addr += len;
    slice->len -= len;
    if (frame->plain_len == ZFRAME_PLAIN) {
        compressing->filled++;
        filter_submit(frame, FILTER_JOB_COMPRESS, compressing->level);
    }
    return true;
}

/* Takes as much of the slice as it can; true when it is used up, and gone. */
static bool compressing_feed(struct upload *upload, struct slice *slice)
{
    struct compressing *compressing = &upload->compressing;
    if (compressing->mode == COMPRESSING_PLAIN) {
        if (!compressing_drain_plain(upload) || store_put_is_full(upload->put)) {
            return false;
        }
        compressing_store(upload, slice);
        return true;
    }
    while (slice->len > 0) {
        if (!compressing_copy(upload, slice)) {
            return false;
        }
    }
    slice_release(slice);
    return true;
}

static void compressing_feed_waiting(struct upload *upload)
{
    struct compressing *compressing = &upload->compressing;
    while (compressing->first != NULL && compressing_feed(upload, &compressing->first->slice)) {
        struct inbox_node *node = compressing->first;
        compressing->first = node->next;
        pool_give(&upload->x->worker->inbox_nodes, node);
    }
    if (compressing->first == NULL) {
        compressing->last = NULL;
    }
}

void compressing_append(struct upload *upload, const struct slice *slice)
{
    struct compressing *compressing = &upload->compressing;
    struct slice rest = *slice;
    CHECK(!compressing->is_ending);
    if (compressing->first == NULL && compressing_feed(upload, &rest)) {
        return;
    }
    struct inbox_node *node = pool_take(&upload->x->worker->inbox_nodes);
    if (node == NULL) {
        slice_release(&rest);
        metrics_add(&upload->x->listener->cells->limits_hit[METRICS_LIMIT_UPLOADS], 1);
        upload_fail(upload->x, S3_ERR_SLOW_DOWN, METRICS_ABORT_STORAGE);
        return;
    }
    node->next = NULL;
    node->slice = rest;
    if (compressing->last == NULL) {
        compressing->first = node;
    } else {
        compressing->last->next = node;
    }
    compressing->last = node;
}

/* ---- the end -------------------------------------------------------------------------------------------------- */

void compressing_finish(struct upload *upload)
{
    upload->compressing.is_ending = true;
}

/* The last, short frame; then the table. */
static void compressing_end(struct upload *upload)
{
    struct compressing *compressing = &upload->compressing;
    if (compressing->mode == COMPRESSING_UNDECIDED && upload->received < ZFRAME_OBJECT_MIN) {
        compressing->mode = COMPRESSING_PLAIN; /* Of unknown length, and that was all of it. */
    }
    if (compressing->mode == COMPRESSING_PLAIN) {
        compressing->is_done = compressing_drain_plain(upload);
        return;
    }
    struct filter_frame *frame = compressing_frame(compressing, compressing->filled);
    if (frame->state == FILTER_FILLING) {
        compressing->filled++;
        filter_submit(frame, FILTER_JOB_COMPRESS, compressing->level);
    }
    if (compressing->drained != compressing->filled) {
        return;
    }
    compressing->is_done = true;
    if (compressing->mode == COMPRESSING_ZSTD) {
        struct slice table =
            filter_lend_table(compressing->stream, zframe_table_finish(&compressing->stream->table));
        compressing_store(upload, &table);
    }
}

bool compressing_run(struct upload *upload)
{
    struct compressing *compressing = &upload->compressing;
    if (compressing_is_done(compressing)) {
        return true;
    }
    if (!compressing_drain(upload)) {
        return false;
    }
    compressing_feed_waiting(upload);
    if (compressing->is_ending && compressing->first == NULL) {
        compressing_end(upload);
    }
    return true;
}

void compressing_drop(struct upload *upload)
{
    struct compressing *compressing = &upload->compressing;
    list_remove(&compressing->link);
    while (compressing->first != NULL) {
        struct inbox_node *node = compressing->first;
        compressing->first = node->next;
        slice_release(&node->slice);
        pool_give(&upload->x->worker->inbox_nodes, node);
    }
    compressing->last = NULL;
}

bool compressing_is_idle(const struct compressing *compressing)
{
    return compressing->stream == NULL || filter_stream_is_idle(compressing->stream);
}

void compressing_close(struct compressing *compressing)
{
    CHECK(compressing->first == NULL);
    if (compressing->stream != NULL) {
        filter_stream_close(compressing->stream);
        compressing->stream = NULL;
    }
}
