/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub: reads every live extent again and compares it with its checksums, slowly and for ever: data that nobody asks for rots
 * unseen otherwise. It finds latent read errors, flipped bits, and writes that went elsewhere or nowhere, because checksums lie in
 * the index and not beside the payload. It repairs nothing: there is no second copy here; it counts, logs, and names the extent.
 *
 * One checksum block at a time. Each is looked up again under a pinned epoch just before it is read, so an extent that was freed
 * meanwhile is left alone and no pin lives longer than one read.
 */
#ifndef STORAGE_SCRUB_H
#define STORAGE_SCRUB_H

#include <stdint.h>

#include "base/uring.h"
#include "storage/index.h"

struct scrub;
struct store;

struct scrub_options {
    const struct index_options *index; /* for a view of its own */
    struct uring *uring;               /* of the stepping thread; NULL for memory devices */
    uint64_t rate;                     /* bytes per second, > 0 */
    uint64_t pause_ns;                 /* between two passes; 0: one minute */
};

/* On the thread that will step it. */
int scrub_open(struct store *store, const struct scrub_options *options, struct scrub **out, struct err *err);
/* Waits for the read in flight, if any (turning the ring). */
void scrub_close(struct scrub *scrub);
/* Never blocks on a device. Returns the monotonic time of its next work, or TIME_NEVER while a read is in flight. */
uint64_t scrub_step(struct scrub *scrub, uint64_t now_ns);

struct scrub_stats {
    uint64_t bytes;       /* read and compared */
    uint64_t bad_blocks;  /* that did not match */
    uint64_t read_errors; /* blocks that could not be read */
    uint64_t passes;      /* over the whole index */
};
void scrub_stats(const struct scrub *scrub, struct scrub_stats *out); /* the stepping thread */

#endif
