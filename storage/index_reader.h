/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_reader: answers lookups and lists on threads of its own, so that a worker never waits for an index page.
 *
 * A lookup pins an epoch *before* its statement begins: the snapshot is then never older than the pin, so no extent it
 * finds can be reused while the pin stands (commit frees after its transaction is visible, epochs reuse after older pins
 * are gone). Lists are made in slices; between two slices the other requests get their turn.
 *
 * The data side provides pins and answers as ops; both are called from the reader's thread.
 */
#ifndef STORAGE_INDEX_READER_H
#define STORAGE_INDEX_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/index.h"
#include "storage/store.h"

struct index_reader;

struct index_reader_ops {
    uint64_t (*pin)(void *ctx);               /* thread-safe; pins the current epoch and returns it */
    void (*unpin)(void *ctx, uint64_t epoch); /* thread-safe */
    void (*answer)(void *ctx, struct store_request *request);
};

/* One reader: one view, one queue, one thread (started by the caller or not at all: the simulator steps it itself). */
int index_reader_open(const struct index_options *options, const struct index_reader_ops *ops, void *ops_ctx,
                      struct index_reader **out, struct err *err);
/* The queue must be empty (CHECK). */
void index_reader_close(struct index_reader *reader);
/* Any thread; kinds for which commit_request_is_change is false. */
void index_reader_submit(struct index_reader *reader, struct store_request *request);
/* Readable when something was submitted. */
int index_reader_event_fd(const struct index_reader *reader);
/* Does one request or one slice; true: there is more to do at once. */
bool index_reader_step(struct index_reader *reader);
bool index_reader_is_idle(const struct index_reader *reader);
uint64_t index_reader_errors(const struct index_reader *reader); /* any thread */
/* Any thread. It has met a page of the index that was not what had been written; true for good. */
bool index_reader_is_damaged(const struct index_reader *reader);

#endif
