/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epoch: when may freed space be used again? A reader pins the current epoch *before* it looks into the index and holds the
 * pin as long as it may read the extents it found. The committer, once a transaction that frees extents is durable and
 * visible, hands them over with epoch_free: they are tagged with the current epoch, and the epoch advances. An extent comes
 * out of epoch_reclaim only when every pin of its epoch and of older ones is gone.
 *
 * Why this is enough: a reader that could have seen the extents began before they were freed, so it pinned their epoch or an older
 * one. Whoever pins later reads a snapshot without them.
 *
 * Thread-safe by one lock of its own, which is a leaf: nothing is called while it is held.
 */
#ifndef STORAGE_EPOCH_H
#define STORAGE_EPOCH_H

#include <stdint.h>

#include "storage/object.h"

struct epoch;

int epoch_open(struct epoch **out);
/* All pins must be gone (CHECK). Runs not yet reclaimed are forgotten: recovery finds their space free. */
void epoch_close(struct epoch *epoch);

uint64_t epoch_pin(struct epoch *epoch);
void epoch_unpin(struct epoch *epoch, uint64_t pinned);

/* Committer only, after the commit. 0 or -ENOMEM: then nothing was taken over and the space stays unusable until restart. */
int epoch_free(struct epoch *epoch, const struct object_space *runs, uint64_t count);
/* Runs that nobody can read any more, at most max, oldest first. */
uint32_t epoch_reclaim(struct epoch *epoch, struct object_space *runs, uint32_t max);
/* Bytes freed and not yet reclaimed. */
uint64_t epoch_held_bytes(struct epoch *epoch);

#endif
