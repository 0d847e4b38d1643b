/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_source: reads a range of an object's payload, however it is stored, in frames: seek tables of compressed segments first,
 * then only the frames that the range touches, each read whole (and verified by the store) and decompressed beside the worker.
 * An object that was uploaded in parts has a segment for each; plain ones are cut into frames as well, so that all come in order.
 *
 * It owns x->download from begin to drop. At most FILTER_FRAMES frames are under way; a consumer that keeps its frame holds one
 * stream and no more. What becomes of the frames is the consumer's: a download (s3_get_zstd.c) or a copy (s3_copy_read.c).
 */
#ifndef SERVER_S3_SOURCE_H
#define SERVER_S3_SOURCE_H

#include "server/exchange.h"
#include "server/filter.h"

struct s3_source_consumer {
    /* Takes the next frame of the range, READY: `plain_len` bytes of `plain` from place `at` on. */
    void (*give)(struct exchange *x, struct filter_frame *frame);
    /* Nothing more will come; called once. */
    void (*fail)(struct exchange *x, int error);
};

/* x->download.range is set and not empty, the rest of x->download zero; x->ops->resume is s3_source_step, ->read s3_source_have. */
void s3_source_begin(struct exchange *x, struct store_object *object,
                     const struct s3_source_consumer *consumer);
/* Goes as far as frames, buffers and streams allow. Call it when a frame became free. */
void s3_source_step(struct exchange *x);
void s3_source_have(struct exchange *x, struct store_read *read);
/* Is a frame still with the consumer? */
bool s3_source_is_out(const struct exchange *x);
/* The part of a frame that lies in the range: its first byte, and how many. */
uint8_t *s3_source_wanted(const struct exchange *x, struct filter_frame *frame, uint32_t *len);
/* Frees the stream; nothing may be under way. */
void s3_source_drop(struct exchange *x);

#endif
