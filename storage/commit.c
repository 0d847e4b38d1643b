/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit: batches of finished work become transactions. The contract is in commit.h; this file owns the order
 * payload flushed -> transaction durable -> space handed on -> answer.
 *
 * Invariants.
 * 1. A put leaves `waiting` only when, for each device of its mask, a flush that began after the put's arrival has
 *    succeeded (device->covered >= put->arrival), or with an error: the device failed, or is past its deadline.
 * 2. Nothing is answered with 0 before index_commit has returned 0 for the transaction that holds it.
 * 3. Space is released only after the transaction that freed it (or refused it) is durable; after an index failure never.
 * 4. A COPY or COMPLETE is the last of its transaction, so that what is looked up for its answer is what it made.
 */
#include "storage/commit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "storage/lateness.h"

#define BATCH_MAX 256U
#define PART_SIZE_MIN_DEFAULT (5 * MIB)
/* how often abandoned uploads are looked for when none was found */
#define EXPIRY_INTERVAL_NS (10 * NS_PER_S)

struct device {
    bool exists;
    bool has_failed;
    bool is_suspect;
    bool is_flushing;
    uint64_t flush_began_ns;
    uint64_t flush_noticed_ns; /* lateness.h */
    uint64_t flush_covers;     /* puts that had arrived when the running flush began */
    uint64_t covered;          /* puts covered by the latest flush that succeeded */
    uint64_t wanted;           /* latest put that waits for this device */
};

/* One item of a batch. */
struct work {
    struct commit_put *put; /* or */
    struct store_request *request;
    int status;
};

struct commit {
    struct commit_options options;
    const struct commit_ops *ops;
    void *ctx;
    struct index *index;
    struct mpsc puts; /* its eventfd wakes for both queues */
    struct mpsc requests;
    struct list waiting;                             /* commit_put.link, by arrival */
    struct list ready;                               /* commit_put.link */
    struct mpsc_node *requests_head, *requests_tail; /* taken from the queue, in order */
    uint32_t ready_count;                            /* puts and requests */
    uint64_t ready_since_ns;
    uint64_t arrivals;
    uint64_t expiry_due_ns;
    _Atomic uint64_t owners;
    struct rng rng;
    struct device devices[STORE_DEVICES_MAX];
    struct work batch[BATCH_MAX];
    uint32_t batch_count;
    struct index_freed visible; /* freed by the open transaction, readers may have found it */
    struct index_freed unseen;  /* freed by it, never visible */
    _Atomic uint64_t transactions, items, index_errors, uploads_expired;
    struct store_histogram latency;
};

/* ---- open, close, submit ------------------------------------------------------------------------------------------ */

int commit_open(const struct commit_options *options, struct commit **out)
{
    struct commit *commit = calloc(1, sizeof(*commit));
    if (commit == NULL) {
        return -ENOMEM;
    }
    int rc = mpsc_open(&commit->puts);
    if (rc != 0) {
        goto free_commit;
    }
    rc = mpsc_open(&commit->requests);
    if (rc != 0) {
        goto close_puts;
    }
    commit->options = *options;
    commit->options.part_size_min =
        options->part_size_min != 0 ? options->part_size_min : PART_SIZE_MIN_DEFAULT;
    commit->ops = options->ops;
    commit->ctx = options->ops_ctx;
    commit->index = options->index;
    list_init(&commit->waiting);
    list_init(&commit->ready);
    rng_seed(&commit->rng, options->id_seed);
    for (uint32_t i = 0; i < STORE_DEVICES_MAX; i++) {
        commit->devices[i].exists = (options->device_mask >> i & 1U) != 0;
    }
    *out = commit;
    return 0;

close_puts:
    mpsc_close(&commit->puts);
free_commit:
    free(commit);
    return rc;
}

void commit_close(struct commit *commit)
{
    if (commit == NULL) {
        return;
    }
    CHECK(list_is_empty(&commit->waiting));
    CHECK(list_is_empty(&commit->ready));
    CHECK(commit->requests_head == NULL);
    mpsc_close(&commit->puts);
    mpsc_close(&commit->requests);
    index_freed_close(&commit->visible);
    index_freed_close(&commit->unseen);
    free(commit);
}

void commit_put_submit(struct commit *commit, struct commit_put *put)
{
    mpsc_push(&commit->puts, &put->node);
}

void commit_request_submit(struct commit *commit, struct store_request *request)
{
    CHECK(commit_request_is_change(request->kind));
    mpsc_push(&commit->requests, &request->node);
    mpsc_wake(&commit->puts);
}

bool commit_request_is_change(enum store_request_kind kind)
{
    switch (kind) {
    case STORE_BUCKET_CREATE:
    case STORE_BUCKET_DELETE:
    case STORE_OBJECT_DELETE:
    case STORE_OBJECT_COPY:
    case STORE_UPLOAD_CREATE:
    case STORE_UPLOAD_COMPLETE:
    case STORE_UPLOAD_ABORT:
    case STORE_PART_COPY:
        return true;
    case STORE_BUCKET_LOOKUP:
    case STORE_BUCKET_LIST:
    case STORE_OBJECT_LOOKUP:
    case STORE_OBJECT_LIST:
    case STORE_UPLOAD_LOOKUP:
    case STORE_UPLOAD_LIST:
    case STORE_PART_LIST:
        return false;
    }
    check_fail(__FILE__, __LINE__, "a known request kind");
}

uint64_t commit_owner_new(struct commit *commit)
{
    return atomic_fetch_add_explicit(&commit->owners, 1, memory_order_relaxed) + 1;
}

int commit_event_fd(const struct commit *commit)
{
    return commit->puts.event_fd;
}

bool commit_is_suspect(const struct commit *commit, uint32_t device)
{
    return commit->devices[device].is_suspect;
}

bool commit_is_idle(const struct commit *commit)
{
    for (uint32_t i = 0; i < STORE_DEVICES_MAX; i++) {
        if (commit->devices[i].is_flushing) {
            return false;
        }
    }
    return list_is_empty(&commit->waiting) && list_is_empty(&commit->ready) &&
           commit->requests_head == NULL && atomic_load(&commit->puts.head) == NULL &&
           atomic_load(&commit->requests.head) == NULL;
}

int commit_health(const struct commit *commit)
{
    return index_failed(commit->index);
}

void commit_stats(const struct commit *commit, struct commit_stats *out)
{
    out->transactions = atomic_load_explicit(&commit->transactions, memory_order_relaxed);
    out->items = atomic_load_explicit(&commit->items, memory_order_relaxed);
    out->index_errors = atomic_load_explicit(&commit->index_errors, memory_order_relaxed);
    out->uploads_expired = atomic_load_explicit(&commit->uploads_expired, memory_order_relaxed);
    out->latency = &commit->latency;
}

static void count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static void histogram_add(struct store_histogram *histogram, uint64_t ns)
{
    uint64_t us = ns / NS_PER_US;
    uint32_t bucket = us > 1 ? 63U - (uint32_t)__builtin_clzll(us) : 0;
    count(&histogram->buckets[bucket < 31 ? bucket : 31], 1);
    count(&histogram->count, 1);
    count(&histogram->sum_us, us);
}

/* ---- arrival ---------------------------------------------------------------------------------------------------------- */

static void make_ready(struct commit *commit, struct commit_put *put, uint64_t now_ns)
{
    if (commit->ready_count++ == 0) {
        commit->ready_since_ns = now_ns;
    }
    list_append(&commit->ready, &put->link);
}

/* The devices of the put that have not flushed since it arrived. */
static uint64_t uncovered(const struct commit *commit, const struct commit_put *put)
{
    uint64_t left = 0;
    for (uint64_t mask = put->device_mask; mask != 0; mask &= mask - 1) {
        uint32_t device = (uint32_t)__builtin_ctzll(mask);
        left |= commit->devices[device].covered < put->arrival ? 1ULL << device : 0;
    }
    return left;
}

/* A device that failed, or whose flush is past its deadline: nobody waits for it any longer. */
static bool has_failed_device(const struct commit *commit, uint64_t mask)
{
    for (; mask != 0; mask &= mask - 1) {
        const struct device *device = &commit->devices[__builtin_ctzll(mask)];
        CHECK(device->exists);
        if (device->has_failed || device->is_suspect) {
            return true;
        }
    }
    return false;
}

static void arrive(struct commit *commit, struct commit_put *put, uint64_t now_ns)
{
    put->arrival = ++commit->arrivals;
    put->arrived_ns = now_ns;
    put->status = 0;
    list_init(&put->link);
    if (put->kind != COMMIT_PUT_FINISH || put->device_mask == 0) {
        /* payload without a device would never be flushed */
        CHECK(put->kind != COMMIT_PUT_FINISH || put->size == 0);
        make_ready(commit, put, now_ns);
        return;
    }
    if (has_failed_device(commit, put->device_mask)) {
        put->status = ERR_DEVICE_FAILED;
        make_ready(commit, put, now_ns);
        return;
    }
    for (uint64_t mask = put->device_mask; mask != 0; mask &= mask - 1) {
        commit->devices[__builtin_ctzll(mask)].wanted = put->arrival;
    }
    list_append(&commit->waiting, &put->link);
}

static void take_arrivals(struct commit *commit, uint64_t now_ns)
{
    mpsc_clear(&commit->puts);
    struct mpsc_node *node = mpsc_take_all(&commit->puts);
    while (node != NULL) {
        struct mpsc_node *next = node->next;
        arrive(commit, CONTAINER_OF(node, struct commit_put, node), now_ns);
        node = next;
    }
    node = mpsc_take_all(&commit->requests);
    while (node != NULL) {
        struct mpsc_node *next = node->next;
        node->next = NULL;
        if (commit->requests_tail != NULL) {
            commit->requests_tail->next = node;
        } else {
            commit->requests_head = node;
        }
        commit->requests_tail = node;
        if (commit->ready_count++ == 0) {
            commit->ready_since_ns = now_ns;
        }
        node = next;
    }
}

/* ---- flushes ----------------------------------------------------------------------------------------------------------- */

/* Moves what needs no more flushes, and what can get none, from waiting to ready. */
static void promote(struct commit *commit, uint64_t now_ns)
{
    LIST_FOR_EACH_SAFE(node, &commit->waiting)
    {
        struct commit_put *put = CONTAINER_OF(node, struct commit_put, link);
        bool failed = has_failed_device(commit, put->device_mask);
        if (failed || uncovered(commit, put) == 0) {
            put->status = failed ? ERR_DEVICE_FAILED : 0;
            list_remove(&put->link);
            make_ready(commit, put, now_ns);
        }
    }
}

static void start_flush(struct commit *commit, uint32_t number, uint64_t now_ns)
{
    struct device *device = &commit->devices[number];
    device->is_flushing = true;
    device->flush_began_ns = now_ns;
    device->flush_noticed_ns = 0;
    device->flush_covers = commit->arrivals;
    if (commit->options.skip_flush) {
        commit_flush_done(commit, number, 0, now_ns);
        return;
    }
    commit->ops->flush(commit->ctx, number);
}

static void start_flushes(struct commit *commit, uint64_t now_ns)
{
    for (uint32_t i = 0; i < STORE_DEVICES_MAX; i++) {
        struct device *device = &commit->devices[i];
        if (device->exists && !device->is_flushing && !device->has_failed &&
            device->wanted > device->covered) {
            start_flush(commit, i, now_ns);
        }
    }
}

void commit_flush_done(struct commit *commit, uint32_t number, int result, uint64_t now_ns)
{
    CHECK(number < STORE_DEVICES_MAX);
    struct device *device = &commit->devices[number];
    CHECK(device->is_flushing);
    device->is_flushing = false;
    if (result != 0) {
        /* The kernel forgets what it could not write: a second flush that succeeds would prove nothing. */
        char why[128];
        snprintf(why, sizeof(why), "flush failed: %s", err_text(result));
        device->has_failed = true;
        commit->ops->device_state(commit->ctx, number, STORE_DEVICE_FAILED, why);
    } else {
        device->covered = device->flush_covers;
        if (device->is_suspect) {
            commit->ops->device_state(commit->ctx, number, STORE_DEVICE_OK, "flush answered");
        }
    }
    device->is_suspect = false;
    promote(commit, now_ns);
}

/* Marks devices whose flush is late, and has those who wait for one refused: their payload is written, so that its space may be
 * given away although the flush is under way, and what comes later is flushed by a later one. Returns when the next one would be late. */
static uint64_t watch_flushes(struct commit *commit, uint64_t now_ns)
{
    uint64_t next = TIME_NEVER;
    bool is_one_late = false;
    if (commit->options.flush_deadline_ns == 0) {
        return next;
    }
    for (uint32_t i = 0; i < STORE_DEVICES_MAX; i++) {
        struct device *device = &commit->devices[i];
        if (!device->is_flushing || device->is_suspect) {
            continue;
        }
        uint64_t deadline = commit->options.flush_deadline_ns;
        if (lateness_look(&device->flush_noticed_ns, device->flush_began_ns, deadline, now_ns)) {
            device->is_suspect = true;
            is_one_late = true;
            commit->ops->device_state(commit->ctx, i, STORE_DEVICE_SUSPECT,
                                      "flush has not answered within its deadline");
        } else {
            uint64_t due = lateness_due_ns(device->flush_noticed_ns, device->flush_began_ns, deadline);
            next = due < next ? due : next;
        }
    }
    if (is_one_late) {
        promote(commit, now_ns);
    }
    return next;
}

/* ---- one item inside a transaction ---------------------------------------------------------------------------------- */

/* An error that leaves the transaction usable: the item is refused, its neighbours are not. */
static bool is_refusal(int rc)
{
    return rc == -ESTALE || rc == -ENOENT || rc == ERR_NO_SUCH_BUCKET || rc == ERR_BUCKET_EXISTS ||
           rc == ERR_BUCKET_NOT_EMPTY || rc == ERR_NO_SUCH_KEY || rc == ERR_NO_SUCH_UPLOAD ||
           rc == ERR_INVALID_PART || rc == ERR_INVALID_PART_ORDER || rc == ERR_PART_TOO_SMALL ||
           rc == ERR_PRECONDITION;
}

static int free_extents(struct commit *commit, const struct commit_put *put)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < put->extent_count; i++) {
        rc = index_freed_add(&commit->unseen, &put->extents[i]);
    }
    return rc;
}

/* Nothing of the put remains: what was pending goes from the index, and its space is free with this transaction. */
static int undo_put(struct commit *commit, const struct commit_put *put)
{
    int rc = put->owner != 0 ? index_pending_drop(commit->index, put->owner, &commit->unseen) : 0;
    return rc != 0 ? rc : free_extents(commit, put);
}

static int apply_finish(struct commit *commit, struct commit_put *put, uint64_t realtime_ns)
{
    struct index_put made = {
        .bucket = put->bucket,
        .key = put->key,
        .size = put->size,
        .modified_ns = realtime_ns,
        .crc32c = put->crc32c,
        .crc32c_known = true,
        .attributes = put->attributes,
        .condition = put->condition,
        .owner = put->owner,
        .extents = put->extents,
        .extent_count = put->extent_count,
    };
    put->modified_ns = realtime_ns;
    if (put->upload_id != NULL && put->upload_id[0] != '\0') {
        return index_part_put(commit->index, put->upload_id, put->part_number, &made, &commit->visible);
    }
    return index_object_put(commit->index, &made, &commit->visible);
}

static int apply_put(struct commit *commit, struct work *work, uint64_t realtime_ns)
{
    struct commit_put *put = work->put;
    int rc = 0;
    switch (put->kind) {
    case COMMIT_PUT_PENDING:
        return index_pending_add(commit->index, put->owner, put->extents, put->extent_count);
    case COMMIT_PUT_ABORT:
        return undo_put(commit, put);
    case COMMIT_PUT_FINISH:
        rc = put->status != 0 ? put->status : apply_finish(commit, put, realtime_ns);
        if (put->status != 0 || is_refusal(rc)) {
            work->status = rc;
            rc = undo_put(commit, put);
        }
        return rc;
    }
    check_fail(__FILE__, __LINE__, "a known put kind");
}

static struct index_put request_put(const struct store_request *request, uint64_t realtime_ns)
{
    return (struct index_put){
        .bucket = request->bucket,
        .key = &request->key,
        .modified_ns = realtime_ns,
        .attributes = request->attributes,
        .condition = request->condition,
    };
}

static int apply_copy(struct commit *commit, struct store_request *request, uint64_t realtime_ns)
{
    struct index_put put = request_put(request, realtime_ns);
    CHECK(request->source != NULL);
    if (put.attributes == NULL) {
        put.attributes = &request->source->attributes;
    }
    if (request->kind == STORE_OBJECT_COPY) {
        return index_object_copy(commit->index, &put, request->source, 0, request->source->size,
                                 &commit->visible);
    }
    return index_part_copy(commit->index, request->upload_id, request->part_number, &put, request->source,
                           request->source_offset, request->source_len, &commit->visible);
}

static int apply_upload_create(struct commit *commit, struct store_request *request, uint64_t realtime_ns)
{
    /* Time first: uploads of one key are listed in the order of their creation. */
    snprintf(request->upload_id, sizeof(request->upload_id), "%016llx%016llx",
             (unsigned long long)realtime_ns, (unsigned long long)rng_u64(&commit->rng));
    request->created_ns = realtime_ns;
    return index_upload_create(commit->index, request->bucket, &request->key, request->attributes,
                               request->upload_id, realtime_ns);
}

static int apply_request(struct commit *commit, struct store_request *request, uint64_t realtime_ns)
{
    struct index *index = commit->index;
    switch (request->kind) {
    case STORE_BUCKET_CREATE:
        return index_bucket_create(index, request->bucket, realtime_ns);
    case STORE_BUCKET_DELETE:
        return index_bucket_delete(index, request->bucket);
    case STORE_OBJECT_DELETE:
        return index_object_delete(index, request->bucket, &request->key, &request->existed,
                                   &commit->visible);
    case STORE_OBJECT_COPY:
    case STORE_PART_COPY:
        return apply_copy(commit, request, realtime_ns);
    case STORE_UPLOAD_CREATE:
        return apply_upload_create(commit, request, realtime_ns);
    case STORE_UPLOAD_COMPLETE: {
        struct index_put put = request_put(request, realtime_ns);
        CHECK(put.attributes != NULL);
        return index_upload_complete(index, request->upload_id, &put, request->parts, request->part_count,
                                     commit->options.part_size_min, &commit->visible);
    }
    case STORE_UPLOAD_ABORT:
        return index_upload_abort(index, request->bucket, &request->key, request->upload_id,
                                  &commit->visible);
    default:
        break;
    }
    check_fail(__FILE__, __LINE__, "a request that changes something");
}

/* ---- transactions ------------------------------------------------------------------------------------------------------- */

/* Work that only frees may use the index's reserve. */
static bool is_freeing(const struct work *work)
{
    if (work->put != NULL) {
        return work->put->kind == COMMIT_PUT_ABORT ||
               (work->put->kind == COMMIT_PUT_FINISH && work->put->status != 0);
    }
    CHECK(work->request != NULL);
    return work->request->kind == STORE_OBJECT_DELETE || work->request->kind == STORE_UPLOAD_ABORT ||
           work->request->kind == STORE_BUCKET_DELETE;
}

static bool makes_object(const struct store_request *request)
{
    return request->kind == STORE_OBJECT_COPY || request->kind == STORE_UPLOAD_COMPLETE;
}

static void collect(struct commit *commit)
{
    commit->batch_count = 0;
    /* Puts first, but half of the batch is the requests' if they want it. */
    uint32_t puts_max = commit->requests_head != NULL ? BATCH_MAX / 2 : BATCH_MAX;
    while (commit->batch_count < puts_max && !list_is_empty(&commit->ready)) {
        struct commit_put *put = CONTAINER_OF(list_take_first(&commit->ready), struct commit_put, link);
        if (put->kind == COMMIT_PUT_FINISH && atomic_load(&put->is_given_up)) {
            put->status = ERR_DEVICE_FAILED; /* Its client was told so: it is undone. */
        }
        commit->batch[commit->batch_count++] = (struct work){.put = put};
    }
    bool is_closed = false;
    while (commit->batch_count < BATCH_MAX && commit->requests_head != NULL && !is_closed) {
        struct mpsc_node *node = commit->requests_head;
        commit->requests_head = node->next;
        commit->requests_tail = node->next != NULL ? commit->requests_tail : NULL;
        struct store_request *request = CONTAINER_OF(node, struct store_request, node);
        if (atomic_load(&request->is_given_up)) {
            commit->ready_count--;
            request->status = ERR_DEVICE_FAILED; /* As its client was told. */
            commit->ops->answer_request(commit->ctx, request);
            continue;
        }
        commit->batch[commit->batch_count++] = (struct work){.request = request};
        is_closed = makes_object(request);
    }
    commit->ready_count -= commit->batch_count;
}

/* What was begun before in this step has come back; what comes now blocks by itself. */
static void say_progress(struct commit *commit)
{
    if (commit->ops->progress != NULL) {
        commit->ops->progress(commit->ctx);
    }
}

/* One transaction over works[0..n). 0: durable, each work's status is set. Otherwise nothing happened (or, after an index
 * failure, nobody knows). */
static int transact(struct commit *commit, struct work *works, uint32_t n, bool freeing, uint64_t realtime_ns)
{
    index_freed_clear(&commit->visible);
    index_freed_clear(&commit->unseen);
    say_progress(commit);
    int rc = index_begin(commit->index, freeing);
    if (rc != 0) {
        return rc;
    }
    for (uint32_t i = 0; i < n; i++) {
        works[i].status = 0;
        rc = works[i].put != NULL ? apply_put(commit, &works[i], realtime_ns)
                                  : apply_request(commit, works[i].request, realtime_ns);
        if (works[i].request != NULL && is_refusal(rc)) {
            works[i].status = rc;
            rc = 0;
        }
        if (rc != 0) {
            index_rollback(commit->index);
            return rc;
        }
    }
    return index_commit(commit->index);
}

/* Space of the transaction that has just become durable. */
static void release_space(struct commit *commit)
{
    if (commit->visible.count > 0) {
        commit->ops->space_release(commit->ctx, commit->visible.spaces, commit->visible.count, true);
    }
    if (commit->unseen.count > 0) {
        commit->ops->space_release(commit->ctx, commit->unseen.spaces, commit->unseen.count, false);
    }
    index_freed_clear(&commit->visible);
    index_freed_clear(&commit->unseen);
}

/* The object that a COPY or COMPLETE made. Failing to read it is no failure of the change: the answer then has no object. */
static void load_object(struct commit *commit, struct store_request *request)
{
    uint64_t epoch = commit->ops->pin(commit->ctx);
    request->object = NULL;
    int rc =
        index_view_object(index_own_view(commit->index), request->bucket, &request->key, &request->object);
    if (rc != 0) {
        commit->ops->unpin(commit->ctx, epoch);
        request->object = NULL;
        return;
    }
    CHECK(request->object != NULL);
    request->object->epoch = epoch;
}

static void answer(struct commit *commit, struct work *work, uint64_t now_ns)
{
    if (work->put != NULL) {
        work->put->status = work->status;
        if (work->put->kind == COMMIT_PUT_FINISH) {
            histogram_add(&commit->latency, now_ns - work->put->arrived_ns);
        }
        commit->ops->answer_put(commit->ctx, work->put);
        return;
    }
    CHECK(work->request != NULL);
    work->request->status = work->status;
    if (work->status == 0 && makes_object(work->request)) {
        load_object(commit, work->request);
    }
    commit->ops->answer_request(commit->ctx, work->request);
}

static void answer_all(struct commit *commit, struct work *works, uint32_t n, uint64_t now_ns)
{
    for (uint32_t i = 0; i < n; i++) {
        answer(commit, &works[i], now_ns);
    }
}

/* A finished put found no room in the index: its pending rows go with the reserve's help. When even that fails they stay until the
 * next start; only their space is then missing. The put's own extents were never durable, so they are free in any case. */
static void undo_alone(struct commit *commit, struct work *work)
{
    struct commit_put *put = work->put;
    index_freed_clear(&commit->visible);
    index_freed_clear(&commit->unseen);
    int rc = put->owner != 0 ? index_begin(commit->index, true) : 0;
    if (rc == 0 && put->owner != 0) {
        rc = index_pending_drop(commit->index, put->owner, &commit->unseen);
        if (rc == 0) {
            rc = index_commit(commit->index);
        } else {
            index_rollback(commit->index);
        }
    }
    if (index_failed(commit->index) != 0) {
        index_freed_clear(&commit->unseen);
        return;
    }
    if (rc != 0) {
        index_freed_clear(&commit->unseen);
        LOG_WRN("pending_extents_kept", "owner=%llu why=%s", (unsigned long long)put->owner,
                LOG_Q(err_text(rc)));
    }
    if (free_extents(commit, put) == 0) {
        release_space(commit);
    }
}

/* One item in a transaction of its own, because its batch did not fit. */
static void run_alone(struct commit *commit, struct work *work, uint64_t now_ns, uint64_t realtime_ns)
{
    bool freeing = is_freeing(work);
    int rc = transact(commit, work, 1, freeing, realtime_ns);
    if (rc == -ENOSPC && index_make_room(commit->index, freeing)) {
        rc = transact(commit, work, 1, freeing, realtime_ns);
    }
    if (rc == 0) {
        count(&commit->transactions, 1);
        count(&commit->items, 1);
        release_space(commit);
    } else {
        work->status = index_failed(commit->index) != 0 ? -EIO : rc;
        if (work->put != NULL && work->put->kind == COMMIT_PUT_FINISH && index_failed(commit->index) == 0) {
            undo_alone(commit, work);
        }
    }
    answer(commit, work, now_ns);
}

static void run_batch(struct commit *commit, uint64_t now_ns, uint64_t realtime_ns)
{
    collect(commit);
    struct work *works = commit->batch;
    uint32_t n = commit->batch_count;
    if (index_failed(commit->index) != 0) {
        for (uint32_t i = 0; i < n; i++) {
            works[i].status = -EIO;
        }
        answer_all(commit, works, n, now_ns);
        return;
    }
    int rc = n > 1 ? transact(commit, works, n, false, realtime_ns) : -ENOSPC;
    if (rc == 0) {
        count(&commit->transactions, 1);
        count(&commit->items, n);
        release_space(commit);
        answer_all(commit, works, n, now_ns);
        return;
    }
    if (index_failed(commit->index) != 0) {
        count(&commit->index_errors, 1);
    }
    /* Too big together, or one alone: each for itself. After an index failure each gets its error here. */
    for (uint32_t i = 0; i < n; i++) {
        run_alone(commit, &works[i], now_ns, realtime_ns);
    }
}

/* ---- abandoned uploads -------------------------------------------------------------------------------------------------- */

/* Aborts one upload that nobody touched for the configured time. True: there may be more. */
static bool expire_one(struct commit *commit, uint64_t realtime_ns)
{
    char bucket[STORE_BUCKET_MAX + 1];
    char upload_id[STORE_UPLOAD_ID_MAX + 1];
    struct store_name key;
    if (realtime_ns <= commit->options.upload_expiry_ns || index_failed(commit->index) != 0) {
        return false;
    }
    say_progress(commit);
    int rc = index_upload_oldest(commit->index, realtime_ns - commit->options.upload_expiry_ns, bucket, &key,
                                 upload_id);
    rc = rc != 0 ? rc : index_begin(commit->index, true);
    if (rc != 0) {
        return false;
    }
    index_freed_clear(&commit->visible);
    index_freed_clear(&commit->unseen);
    rc = index_upload_abort(commit->index, bucket, &key, upload_id, &commit->visible);
    if (rc != 0) {
        index_rollback(commit->index);
    } else {
        rc = index_commit(commit->index);
    }
    if (rc != 0) {
        return false;
    }
    count(&commit->transactions, 1);
    count(&commit->uploads_expired, 1);
    release_space(commit);
    LOG_INF("upload_expired", "bucket=%s upload=%s", bucket, upload_id);
    return true;
}

/* ---- the step ----------------------------------------------------------------------------------------------------------- */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t commit_step(struct commit *commit, uint64_t now_ns, uint64_t realtime_ns)
{
    take_arrivals(commit, now_ns);
    start_flushes(commit, now_ns);
    uint64_t next = watch_flushes(commit, now_ns);
    if (commit->ready_count > 0) {
        uint64_t window_end = commit->ready_since_ns + commit->options.commit_window_ns;
        if (commit->ready_count >= BATCH_MAX || now_ns >= window_end) {
            run_batch(commit, now_ns, realtime_ns);
            commit->ready_since_ns = now_ns;
            if (index_failed(commit->index) == 0) {
                say_progress(commit);
                /* a failure is remembered by the index and met at the next begin */
                index_checkpoint_if_due(commit->index);
            }
        } else {
            next = earlier(next, window_end);
        }
        if (commit->ready_count > 0) {
            return now_ns >= window_end ? 0 : next;
        }
    }
    if (commit->options.upload_expiry_ns != 0) {
        if (now_ns >= commit->expiry_due_ns) {
            bool more = expire_one(commit, realtime_ns);
            commit->expiry_due_ns = now_ns + (more ? 0 : EXPIRY_INTERVAL_NS);
        }
        next = earlier(next, commit->expiry_due_ns > now_ns ? commit->expiry_due_ns : 0);
    }
    return next;
}
