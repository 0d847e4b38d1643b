/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit: the committer. It takes finished uploads and index changes from all ports, makes payload durable, then the
 * index transaction, then frees what was replaced, then answers. One order, never bent:
 *   payload durable -> index transaction durable -> visible -> answer.
 *
 * It owns the index's writer connection. Payload reaches it already written (every completion seen by the worker); it
 * starts one flush per device at a time, asynchronously, and an upload joins a transaction only when a flush that began
 * after its arrival has succeeded on every device that holds its payload. A device past its flush deadline is suspect: the
 * uploads that wait for it fail, it delays nobody else's objects, and it is good again when the flush succeeds after all. A failed
 * flush fails its uploads and poisons the device for good.
 *
 *   commit_put_submit/commit_request_submit (any thread)
 *        -> arrived -> [waiting for flushes] -> ready -> in transaction -> answered (ops->answer_*)
 *
 * commit_step does a bounded amount of work and never sleeps; the committer's thread loops over it, the crash simulator
 * calls it itself. All ops are called from inside commit_step or commit_flush_done.
 */
#ifndef STORAGE_COMMIT_H
#define STORAGE_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/mpsc.h"
#include "base/rng.h"
#include "storage/index.h"
#include "storage/object.h"
#include "storage/store.h"

struct commit;

enum commit_put_kind {
    COMMIT_PUT_FINISH,  /* all payload is written: make it an object, or a part when upload_id is not "" */
    COMMIT_PUT_PENDING, /* record `extents` under `owner` so that the put need not remember them */
    COMMIT_PUT_ABORT    /* the put gave up: drop what is pending under `owner`, free `extents` */
};

/* One message of an upload to the committer; the data side embeds it. Everything it points at stays valid and unchanged
 * until it is answered; then it may be used again.
 *
 * Space. With FINISH and ABORT the space of `extents` (and of all pending ones) passes to the committer, whatever the
 * outcome: it calls ops->space_release when the space may be used again, or never (index failure: what the disk holds
 * is unknown). With a PENDING that failed it stays the caller's: hand the same extents over in the ABORT.
 *
 * Order. FINISH may be submitted only when every PENDING of the put has been answered with 0 (CHECK: sizes must add up);
 * ABORT may follow at any time, messages of one thread are taken in order. */
struct commit_put {
    struct mpsc_node node; /* must be first */
    enum commit_put_kind kind;
    _Atomic bool
        is_given_up; /* the caller waits no more: a FINISH that has not begun gets ERR_DEVICE_FAILED */
    int status;      /* out: 0, or -errno / project code */

    const char *bucket;           /* FINISH */
    const struct store_name *key; /* FINISH */
    const char *upload_id;        /* FINISH of a part; NULL or "" for an object */
    uint32_t part_number;
    uint64_t owner; /* from commit_owner_new when anything is recorded as pending, else 0 */
    /* in payload order, after those recorded before; not recorded so far */
    const struct object_extent *extents;
    uint32_t extent_count;
    uint64_t device_mask; /* FINISH: bit n: device n holds payload of this put, pending extents included */
    uint64_t size;        /* FINISH: payload bytes in all */
    uint32_t crc32c;      /* FINISH: of the whole payload */
    const struct store_attributes *attributes;
    const struct store_condition *condition; /* may be NULL */
    uint64_t modified_ns;                    /* out of FINISH: the stored time */

    /* the committer's own */
    struct list link;
    uint64_t arrival;
    uint64_t arrived_ns;
};

struct commit_ops {
    /* Begins a flush of everything completed on this device before the call. Ends by commit_flush_done, which may
     * also be called from inside (a device that answers at once). At most one per device is in flight. */
    void (*flush)(void *ctx, uint32_t device);
    /* The device became suspect, failed or ok again. */
    void (*device_state)(void *ctx, uint32_t device, enum store_device_state state, const char *why);
    /* Space is free from here on. `visible`: readers may have found it, so it goes through the epochs. */
    void (*space_release)(void *ctx, const struct object_space *spaces, uint32_t count, bool visible);
    /* COPY and COMPLETE return the new object, pinned like a lookup's (see index_reader.h). */
    uint64_t (*pin)(void *ctx);
    void (*unpin)(void *ctx, uint64_t epoch);
    /* Another transaction or a checkpoint begins: the index has answered what was before. May be NULL. */
    void (*progress)(void *ctx);
    void (*answer_put)(void *ctx, struct commit_put *put);
    void (*answer_request)(void *ctx, struct store_request *request);
};

struct commit_options {
    struct index *index; /* stays the caller's; used by the committer's thread only */
    const struct commit_ops *ops;
    void *ops_ctx;
    uint64_t device_mask; /* bit n: device n exists and takes writes */
    uint64_t flush_deadline_ns;
    /* how long a batch may gather after its first item is ready; 0: takes what is there */
    uint64_t commit_window_ns;
    uint64_t upload_expiry_ns; /* 0: never */
    uint64_t part_size_min;    /* bytes: for all parts but the last; 0: S3's 5 MiB */
    uint64_t id_seed; /* upload ids: from the system's generator in production, a seed in simulations */
    /* negative control of the crash tests: claims every flush worked. Never in production. */
    bool skip_flush;
};

int commit_open(const struct commit_options *options, struct commit **out);
/* Nothing may be queued or waiting (CHECK): drain with commit_step until commit_is_idle. */
void commit_close(struct commit *commit);

/* Any thread. */
void commit_put_submit(struct commit *commit, struct commit_put *put);
/* Any thread. Kinds that change something; reads go to the index readers. */
void commit_request_submit(struct commit *commit, struct store_request *request);
bool commit_request_is_change(enum store_request_kind kind);
uint64_t commit_owner_new(struct commit *commit);
/* Readable when something was submitted. */
int commit_event_fd(const struct commit *commit);

/* The committer's thread. Times: monotonic, and since 1970. Returns the monotonic time of the next deadline, or 0 when
 * there is more to do at once, or TIME_NEVER. */
uint64_t commit_step(struct commit *commit, uint64_t now_ns, uint64_t realtime_ns);
/* The flush of `device` ended with 0 or -errno. */
void commit_flush_done(struct commit *commit, uint32_t device, int result, uint64_t now_ns);
bool commit_is_idle(const struct commit *commit);
/* Its flush is past the deadline. */
bool commit_is_suspect(const struct commit *commit, uint32_t device);

/* Any thread. 0, or why nothing is taken any more (index failure). */
int commit_health(const struct commit *commit);
struct commit_stats {
    uint64_t transactions, items; /* durable transactions and what they carried */
    uint64_t index_errors;
    uint64_t uploads_expired;              /* multipart uploads that nobody finished */
    const struct store_histogram *latency; /* arrival to answer */
};
void commit_stats(const struct commit *commit, struct commit_stats *out);

#endif
