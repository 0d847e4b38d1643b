/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upload: payload on its way into the store: PutObject, UploadPart and raw streams use it alike.
 *
 *   upload_open -> upload_append* -> upload_finish -> (digests) -> (store) -> done
 *                        \-> upload_fail, upload_abandon -> (store gives up) -> gone
 *
 * It feeds the put and the digests, pauses the peer when the device or the hash thread is behind, tells puts to let go
 * of receive buffers when these are short, and verifies before anything can become visible: length, Content-MD5,
 * checksums, SHA-256. It must never touch payload itself. `done` is called exactly once unless the upload was abandoned.
 */
#ifndef SERVER_UPLOAD_H
#define SERVER_UPLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "server/compressing.h"
#include "server/hash.h"
#include "server/metrics.h"
#include "server/s3_checksum.h"
#include "server/s3_error.h"
#include "storage/store.h"

struct exchange;
struct worker;

enum upload_state {
    UPLOAD_CLOSED = 0,
    UPLOAD_OPEN,      /* takes payload */
    UPLOAD_HASHING,   /* all payload is there; digests are outstanding */
    UPLOAD_FINISHING, /* the store was asked to finish */
    UPLOAD_DONE,      /* durable and visible */
    UPLOAD_FAILED     /* nothing is or will be visible; `error` says why */
};

struct upload {
    enum upload_state state;
    struct exchange *x;
    struct store_put *put;
    bool is_aborting;
    bool is_reported; /* done was called, or nobody wants to know */
    bool wants_md5_etag;
    bool is_copy;        /* payload comes from an object of ours (s3_copy_read.c) */
    struct list copying; /* worker->copying; linked: it may go on when a frame comes free */
    /* worker->uploads; worker->relieved: has written what it could since it was last fed; not linked: was told to let go of all, or
     * held nothing */
    struct list link;
    struct list throttled; /* worker->throttled; linked: the peer is paused */
    uint64_t fed_ns;
    uint64_t size;     /* bytes announced, or UINT64_MAX */
    uint64_t received; /* bytes */
    struct hash_stream hashes;
    struct compressing compressing;
    bool is_verified; /* digests are compared and stored; the filter may still have payload */
    struct s3_checksum_request checks;  /* what to compute and what to compare */
    struct s3_checksum_expected sha256; /* of a signed payload */
    struct store_attributes attributes;
    struct store_condition condition;
    bool has_condition;
    enum s3_error error;
    enum metrics_abort abort_cause;
    int store_error;
    void (*done)(struct exchange *x);
};

/* Prepares x->upload; then fill checks, attributes and condition. */
void upload_init(struct exchange *x, void (*done)(struct exchange *x));
/* Begins with x->request's bucket, key and upload id. S3_OK, or what to answer: SLOW_DOWN, STORAGE_FULL, ... */
enum s3_error upload_open(struct exchange *x, uint64_t size);
/* Takes the slice over, in any state. */
void upload_append(struct exchange *x, const struct slice *slice);
/* All payload was appended. */
void upload_finish(struct exchange *x);
/* Gives up for a reason of our own; `done` is called with it at once. */
void upload_fail(struct exchange *x, enum s3_error error, enum metrics_abort cause);
/* Gives up; nobody is told. Does nothing in a closed upload. */
void upload_abandon(struct exchange *x, enum metrics_abort cause);
/* Counts it as in flight for listener and peer, or ends that; x->conn must be there. Idempotent. */
void upload_count(struct exchange *x, bool is_begin);
/* Can its memory be reused? */
bool upload_is_settled(const struct upload *upload);
void upload_close(struct upload *upload);

/* For the worker: events and the periodic part. */
void upload_put_event(struct store_put *put);
void upload_hash_event(struct hash_stream *stream);
void upload_filter_event(void *user, struct filter_frame *frame);
void uploads_turn(struct worker *worker);
/* Is less than a quarter of some listener's receive buffers free? */
bool uploads_buffers_are_short(const struct worker *worker);
/* When uploads_turn must run even if nothing happens. */
uint64_t uploads_deadline(const struct worker *worker);

#endif
