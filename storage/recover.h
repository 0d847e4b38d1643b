/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover: brings index and free map together at start. Drops the pending extents of uploads that never finished (parts of
 * multipart uploads stay), then tells the data side every extent that is in use. Running it twice gives the same state.
 *
 * Cost: one pass over the extents, without their checksums; see FORMAT.md for what was measured per million.
 */
#ifndef STORAGE_RECOVER_H
#define STORAGE_RECOVER_H

#include <stdint.h>

#include "storage/index.h"

struct recover_ops {
    /* Marks space as used in the free map: 0; -EEXIST: part of it is in use already; -ERANGE: outside the device;
     * -ENODEV: no such device. */
    int (*mark_used)(void *ctx, const struct object_space *space);
};

struct recover_result {
    uint64_t extents; /* live ones, marked */
    uint64_t bytes;   /* space they take */
    uint64_t pending_dropped;
};

/* ERR_CORRUPT with a sentence when two extents overlap or one lies outside its device; -ENODEV when a device that holds
 * extents is not there. */
int recover_run(struct index *index, const struct recover_ops *ops, void *ops_ctx, struct recover_result *out,
                struct err *err);

#endif
