/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressing: an upload's payload on its way through the filter, between upload_append and the store.
 *
 *   OFF       nothing is compressed: slices go to the store as they came
 *   UNDECIDED the first frame is being compressed --is it worth it?--> ZSTD | PLAIN
 *   ZSTD      frames go to the store as they are compressed, then the seek table
 *   PLAIN     what was copied goes to the store as it was, then slices as in OFF
 *
 * Payload is copied into a frame and its slice released at once; when both frames are in use, slices wait here and the
 * peer is paused. It owns those slices and the stream; whether the upload succeeds is upload.c's.
 */
#ifndef SERVER_COMPRESSING_H
#define SERVER_COMPRESSING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/slice.h"
#include "server/filter.h"

struct exchange;
struct inbox_node;
struct upload;

enum compressing_mode { COMPRESSING_OFF = 0, COMPRESSING_UNDECIDED, COMPRESSING_ZSTD, COMPRESSING_PLAIN };

struct compressing {
    enum compressing_mode mode;
    struct filter_stream *stream; /* NULL in OFF, and in PLAIN once it is not needed */
    int level;
    uint32_t filled;          /* frames that were filled and submitted */
    uint32_t drained;         /* of these, frames that the store has */
    bool is_ending;           /* no more payload will come */
    bool is_done;             /* the store has everything */
    uint64_t stored;          /* bytes given to the store */
    struct inbox_node *first; /* slices that wait for a frame */
    struct inbox_node *last;
    struct list link; /* worker->filtering */
};

/* Takes a stream if this upload of `size` bytes (UINT64_MAX: unknown) is to be compressed. */
void compressing_open(struct exchange *x, uint64_t size);
/* Takes the slice over. */
void compressing_append(struct upload *upload, const struct slice *slice);
/* No more payload. */
void compressing_finish(struct upload *upload);
/* Goes as far as frames allow; false when the upload must fail. Once per turn, and after appending. */
bool compressing_run(struct upload *upload);
/* Does payload wait for a frame? Then the peer is ahead. */
static inline bool compressing_is_behind(const struct compressing *compressing)
{
    return compressing->first != NULL;
}
static inline bool compressing_is_done(const struct compressing *compressing)
{
    return compressing->mode == COMPRESSING_OFF || compressing->is_done;
}
/* The upload was given up: what waits is dropped. */
void compressing_drop(struct upload *upload);
bool compressing_is_idle(const struct compressing *compressing);
/* Idle: CHECK. */
void compressing_close(struct compressing *compressing);

#endif
