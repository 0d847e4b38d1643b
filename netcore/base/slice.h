/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice: a run of payload bytes in registered memory, lent by a receive backend (or a reader) to its consumer.
 *
 * Ownership. Whoever holds a slice owns exactly one reference and must end it with slice_release, exactly once and in
 * any order with other slices. To cut a slice in two, the holder calls slice_retain first: after that the memory needs
 * one release more. A release tells the owner only that *this* reference is done; the memory is reused when the last
 * one is. All calls for one owner happen on that owner's thread.
 */
#ifndef BASE_SLICE_H
#define BASE_SLICE_H

#include <stdint.h>

#include <stddef.h>

#include "base/check.h"

struct slice;

/* Embedded in the backend that lends the memory. */
struct slice_owner {
    /* Adds a reference to the memory behind `slice`. */
    void (*retain)(struct slice_owner *owner, const struct slice *slice);
    /* Ends one reference. Only book-keeping happens here; nothing calls back into the consumer. */
    void (*release)(struct slice_owner *owner, const struct slice *slice);
};

struct slice {
    uint8_t *addr;     /* First byte. */
    uint32_t len;      /* bytes */
    int32_t buf_index; /* Registered-buffer index in the worker's ring that covers the bytes, or -1. */
    struct slice_owner *owner; /* NULL: static memory, retain and release do nothing. */
    uint64_t token;            /* The owner's own; unchanged by cutting. */
};

static inline void slice_retain(const struct slice *slice)
{
    if (slice->owner != NULL) {
        slice->owner->retain(slice->owner, slice);
    }
}

static inline void slice_release(const struct slice *slice)
{
    if (slice->owner != NULL) {
        slice->owner->release(slice->owner, slice);
    }
}

/* Splits off the first `len` bytes (0 < len < slice->len): `head` gets them with a reference of its own. */
static inline void slice_cut_head(struct slice *slice, uint32_t len, struct slice *head)
{
    CHECK(len > 0);
    CHECK(len < slice->len);
    slice_retain(slice);
    *head = *slice;
    head->len = len;
    slice->addr += len;
    slice->len -= len;
}

#endif
