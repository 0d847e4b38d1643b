/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filter: compresses and decompresses frames of payload (zframe.h) on a thread beside the worker, so that the worker's
 * data path only copies. All memory is taken at start: a fixed number of streams, each with two frames and one seek table,
 * and one zstd context of either kind for the thread.
 *
 * A stream belongs to one upload or one download. Its owner fills a frame and submits it; the frame comes back from
 * filter_poll, in the order of submission, and is then the owner's again. Slices of a frame that are lent to the store
 * count in `refs`. It never waits for the thread but at the end.
 *
 *   FREE --owner fills--> FILLING --filter_submit--> BUSY --filter_poll--> READY --owner lends it--> OUT --> FREE
 */
#ifndef SERVER_FILTER_H
#define SERVER_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"
#include "base/pool.h"
#include "base/slice.h"
#include "conf/conf.h"
#include "server/helper.h"
#include "server/zframe.h"

#define FILTER_FRAMES 2U

enum filter_state { FILTER_FREE = 0, FILTER_FILLING, FILTER_BUSY, FILTER_READY, FILTER_OUT };
/* PASS: nothing to be done, but in its turn. */
enum filter_job { FILTER_JOB_COMPRESS = 1, FILTER_JOB_DECOMPRESS, FILTER_JOB_PASS };

struct filter_stream;

struct filter_frame {
    struct mpsc_node node;
    struct list link; /* filter->done, without a thread */
    struct filter_stream *stream;
    enum filter_state state;
    enum filter_job job;
    int level;
    int status;          /* of the job: 0, or ERR_CORRUPT */
    uint32_t plain_len;  /* compress: in; decompress: what must come out */
    uint32_t stored_len; /* compress: out; decompress: in */
    uint32_t skip;       /* the owner's: bytes of `plain` that are not wanted */
    uint64_t at;         /* the owner's: place of `plain` in the payload */
    uint32_t refs;       /* slices lent */
    uint8_t plain[ZFRAME_PLAIN];
    uint8_t stored[ZFRAME_STORED_MAX];
};

struct filter_stream {
    struct slice_owner owner; /* of slices; their token is the frame's index, FILTER_FRAMES for the table */
    struct filter *filter;
    void *user;
    void (*event)(void *user, struct filter_frame *frame); /* a frame came back */
    uint32_t table_refs;
    struct zframe_table table;
    struct filter_frame frames[FILTER_FRAMES];
    uint8_t table_bytes[ZFRAME_TABLE_MAX];
};

struct filter_options {
    bool wants_thread; /* false: work is done in filter_poll */
    uint32_t streams;
    int level_max;
};

struct filter {
    struct helper helper; /* closed: work is done in filter_poll */
    struct pool streams;
    void *compress_memory; /* workspaces of the contexts */
    void *decompress_memory;
    struct ZSTD_CCtx_s *compress;
    struct ZSTD_DCtx_s *decompress;
    struct list done; /* submitted frames, without a thread; else frames taken from the helper */
};

_Static_assert(sizeof(struct filter_stream) + 64 <= CONF_COMPRESSION_STREAM_SIZE,
               "what check promises is enough");

int filter_open(struct filter *filter, const struct filter_options *options, struct err *err);
/* Every stream must be closed (CHECK). Joins the thread. */
void filter_close(struct filter *filter);
/* Becomes readable when frames have come back; -1 without a thread. */
int filter_event_fd(const struct filter *filter);
/* The next frame that came back (state READY), or NULL. The worker calls stream->event with it. */
struct filter_frame *filter_poll(struct filter *filter);

/* A free stream, or NULL. */
struct filter_stream *filter_stream_open(struct filter *filter, void *user,
                                         void (*event)(void *user, struct filter_frame *frame));
/* Nothing of it is with the thread or lent. */
bool filter_stream_is_idle(const struct filter_stream *stream);
/* Nothing of it is with the thread. */
bool filter_stream_is_settled(const struct filter_stream *stream);
void filter_stream_close(struct filter_stream *stream);

/* FILLING -> BUSY. */
void filter_submit(struct filter_frame *frame, enum filter_job job, int level);
/* READY or FILLING -> OUT: a slice over bytes of the frame; the frame is FREE when its last reference ends. */
struct slice filter_lend(struct filter_frame *frame, uint8_t *bytes, uint32_t len);
/* A slice over the finished table. */
struct slice filter_lend_table(struct filter_stream *stream, uint32_t len);

#endif
