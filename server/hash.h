/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash: digests over an upload's payload (MD5 for Content-MD5 and ETags, SHA-256 for signed payloads, the checksums of
 * S3), behind an interface that allows them to run on another thread than the worker.
 *
 * A stream belongs to one upload. It is fed in order, asked to finish once, and comes back from hasher_poll with its
 * digests. Cheap digests (CRCs) are computed where they are fed. It owns references to the slices that are queued and
 * nothing else of the payload; it must not keep one longer than the digest needs it.
 */
#ifndef SERVER_HASH_H
#define SERVER_HASH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"
#include "base/pool.h"
#include "base/slice.h"
#include "server/helper.h"
#include "server/s3_checksum.h"

#define HASH_KINDS_MAX 4U

struct hasher;

struct hash_stream {
    struct hasher *hasher; /* NULL when closed */
    void *user;
    uint32_t count;
    struct {
        struct s3_checksum state;
        uint8_t digest[S3_CHECKSUM_SIZE_MAX];
    } sums[HASH_KINDS_MAX];
    bool is_threaded;      /* some digest is computed on the thread */
    bool is_finished;      /* digests are valid */
    bool is_finishing;     /* hash_finish was called */
    bool is_cancelled;     /* hash_cancel was called */
    uint64_t queued_bytes; /* waiting for the thread */
    uint32_t jobs;         /* jobs of this stream that have not come back */
    struct list link;      /* in hasher->finished */
};

struct hasher_options {
    bool wants_thread; /* false: everything runs where it is fed */
    uint32_t jobs_max; /* slices queued over all streams */
};

struct hasher {
    struct helper helper; /* closed: everything is computed where it is fed */
    struct pool jobs;
    struct list finished; /* streams to return from hasher_poll */
    uint64_t starved;     /* times no job was free, so that a digest was computed by waiting for the thread */
};

int hasher_open(struct hasher *hasher, const struct hasher_options *options, struct err *err);
/* All streams must be closed (CHECK). Joins the thread. */
void hasher_close(struct hasher *hasher);
/* Becomes readable when the thread has answered; -1 without a thread. */
int hasher_event_fd(const struct hasher *hasher);
/* Takes back what the thread has done; the worker calls it each turn. Then returns a finished stream, or one that was
 * cancelled and is idle now, or NULL. */
struct hash_stream *hasher_poll(struct hasher *hasher);
/* 0 while hasher_poll has a stream to return of which no signal told: one that was finished where it was fed. Else TIME_NEVER. */
uint64_t hasher_deadline(const struct hasher *hasher);

/* Prepares a stream without digests. */
void hash_open(struct hash_stream *stream, struct hasher *hasher, void *user);
/* Adds a digest (once per kind; a second request for the same kind is the first). 0 or -ENOMEM. Before any payload. */
int hash_add(struct hash_stream *stream, enum s3_checksum_kind kind);
/* Feeds payload; the caller keeps its own reference. */
void hash_update(struct hash_stream *stream, const struct slice *slice);
/* No more payload: the stream comes back from hasher_poll, not before the next call of it. */
void hash_finish(struct hash_stream *stream);
/* No digest is wanted any more. When the thread holds slices of the stream it comes back from hasher_poll once it does not. */
void hash_cancel(struct hash_stream *stream);
/* The digest of a finished stream, or NULL when the kind was not asked for. */
const uint8_t *hash_digest(const struct hash_stream *stream, enum s3_checksum_kind kind);
/* May the stream be closed? Not while the thread holds slices of it. */
bool hash_is_idle(const struct hash_stream *stream);
/* Ends a stream (idle: CHECK); closing a closed one does nothing. */
void hash_close(struct hash_stream *stream);

static inline bool hash_is_open(const struct hash_stream *stream)
{
    return stream->hasher != NULL;
}

#endif
