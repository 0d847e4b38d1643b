/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash: streams and the thread behind them.
 *
 * The thread sees a job (slice and stream) after the worker pushed it and gives it back by another queue, so a stream's
 * digest states have one owner at a time: the thread while jobs are out, the worker otherwise. Slice references are
 * taken and released on the worker only, as slice.h demands.
 */
#include "server/hash.h"

#include <string.h>

#include "base/check.h"
#include "base/clock.h"

enum hash_job_kind { HASH_JOB_UPDATE, HASH_JOB_FINISH };

struct hash_job {
    struct mpsc_node node;
    enum hash_job_kind kind;
    struct hash_stream *stream;
    struct slice slice;
};

_Static_assert(sizeof(struct hash_job) <= 64, "CONF_BUFFER_STATE_SIZE has room for four of these");

static bool hash_kind_is_heavy(enum s3_checksum_kind kind)
{
    return !s3_checksum_is_crc(kind);
}

static void hash_compute(struct hash_stream *stream, const struct slice *slice, bool heavy)
{
    for (uint32_t i = 0; i < stream->count; i++) {
        if (hash_kind_is_heavy(stream->sums[i].state.kind) == heavy) {
            s3_checksum_update(&stream->sums[i].state, slice->addr, slice->len);
        }
    }
}

static void hash_compute_final(struct hash_stream *stream)
{
    for (uint32_t i = 0; i < stream->count; i++) {
        /* The size follows from the kind. */
        (void)s3_checksum_final(&stream->sums[i].state, stream->sums[i].digest);
    }
}

/* ---- the thread ----------------------------------------------------------------------------------------------- */

static void hasher_work(void *user, struct mpsc_node *node)
{
    (void)user; /* a job names its stream */
    struct hash_job *job = CONTAINER_OF(node, struct hash_job, node);
    if (job->kind == HASH_JOB_UPDATE) {
        hash_compute(job->stream, &job->slice, true);
    } else {
        hash_compute_final(job->stream);
    }
}

/* ---- the worker's side ---------------------------------------------------------------------------------------- */

int hasher_open(struct hasher *hasher, const struct hasher_options *options, struct err *err)
{
    memset(hasher, 0, sizeof(*hasher));
    list_init(&hasher->finished);
    if (!options->wants_thread) {
        return 0;
    }
    int rc = pool_open(&hasher->jobs, sizeof(struct hash_job), options->jobs_max);
    if (rc < 0) {
        return err_set(err, rc, "no memory for %u hash jobs; lower the receive areas", options->jobs_max);
    }
    rc = helper_open(&hasher->helper, "digests", hasher_work, NULL);
    if (rc < 0) {
        pool_close(&hasher->jobs);
        return err_set(err, rc, "cannot start the digest thread: %s", err_text(rc));
    }
    return 0;
}

static void hasher_take_back(struct hasher *hasher, struct hash_job *job)
{
    struct hash_stream *stream = job->stream;
    if (job->kind == HASH_JOB_UPDATE) {
        CHECK(stream->jobs > 0);
        stream->jobs--;
        stream->queued_bytes -= job->slice.len;
        slice_release(&job->slice);
        if (stream->is_cancelled && stream->jobs == 0) {
            list_append(&hasher->finished, &stream->link);
        }
    } else {
        CHECK(stream->jobs > 0);
        stream->jobs--;
        stream->is_finished = true;
        list_append(&hasher->finished, &stream->link);
    }
    pool_give(&hasher->jobs, job);
}

static void hasher_take_back_all(struct hasher *hasher, struct mpsc_node *node)
{
    while (node != NULL) {
        struct hash_job *job = CONTAINER_OF(node, struct hash_job, node);
        node = node->next;
        hasher_take_back(hasher, job);
    }
}

static struct hash_job *hasher_job(struct hasher *hasher)
{
    struct hash_job *job = pool_take(&hasher->jobs);
    while (job == NULL) { /* Bounded: the thread only computes, so it always gives a job back. */
        hasher->starved++;
        helper_wait(&hasher->helper);
        hasher_take_back_all(hasher, helper_collect(&hasher->helper));
        job = pool_take(&hasher->jobs);
    }
    return job;
}

static void hasher_push(struct hasher *hasher, enum hash_job_kind kind, struct hash_stream *stream,
                        const struct slice *slice)
{
    struct hash_job *job = hasher_job(hasher);
    job->kind = kind;
    job->stream = stream;
    if (slice != NULL) {
        job->slice = *slice;
    }
    helper_submit(&hasher->helper, &job->node);
}

void hasher_close(struct hasher *hasher)
{
    if (hasher->helper.is_open) {
        hasher_take_back_all(hasher, helper_close(&hasher->helper));
        pool_close(&hasher->jobs);
    }
}

int hasher_event_fd(const struct hasher *hasher)
{
    return helper_event_fd(&hasher->helper);
}

struct hash_stream *hasher_poll(struct hasher *hasher)
{
    if (hasher->helper.is_open) {
        hasher_take_back_all(hasher, helper_collect(&hasher->helper));
    }
    struct list *node = list_take_first(&hasher->finished);
    return node == NULL ? NULL : CONTAINER_OF(node, struct hash_stream, link);
}

uint64_t hasher_deadline(const struct hasher *hasher)
{
    return list_is_empty(&hasher->finished) ? TIME_NEVER : 0;
}

/* ---- streams -------------------------------------------------------------------------------------------------- */

void hash_open(struct hash_stream *stream, struct hasher *hasher, void *user)
{
    stream->hasher = hasher;
    stream->user = user;
    stream->count = 0;
    stream->is_threaded = false;
    stream->is_finished = false;
    stream->is_finishing = false;
    stream->is_cancelled = false;
    stream->queued_bytes = 0;
    stream->jobs = 0;
    list_init(&stream->link);
}

int hash_add(struct hash_stream *stream, enum s3_checksum_kind kind)
{
    for (uint32_t i = 0; i < stream->count; i++) {
        if (stream->sums[i].state.kind == kind) {
            return 0;
        }
    }
    CHECK(stream->count < HASH_KINDS_MAX);
    int rc = s3_checksum_open(&stream->sums[stream->count].state, kind);
    if (rc == 0) {
        stream->count++;
        stream->is_threaded |= stream->hasher->helper.is_open && hash_kind_is_heavy(kind);
    }
    return rc;
}

void hash_update(struct hash_stream *stream, const struct slice *slice)
{
    CHECK(!stream->is_finishing);
    hash_compute(stream, slice, false);
    if (!stream->is_threaded) {
        hash_compute(stream, slice, true);
        return;
    }
    slice_retain(slice);
    stream->jobs++;
    stream->queued_bytes += slice->len;
    hasher_push(stream->hasher, HASH_JOB_UPDATE, stream, slice);
}

void hash_finish(struct hash_stream *stream)
{
    CHECK(!stream->is_finishing);
    stream->is_finishing = true;
    if (stream->is_threaded) {
        stream->jobs++;
        hasher_push(stream->hasher, HASH_JOB_FINISH, stream, NULL);
        return;
    }
    hash_compute_final(stream);
    stream->is_finished = true;
    list_append(&stream->hasher->finished, &stream->link);
}

void hash_cancel(struct hash_stream *stream)
{
    /* After hash_finish it comes back anyhow, and no job is given back behind that one. */
    stream->is_cancelled = !stream->is_finishing;
}

const uint8_t *hash_digest(const struct hash_stream *stream, enum s3_checksum_kind kind)
{
    CHECK(stream->is_finished);
    for (uint32_t i = 0; i < stream->count; i++) {
        if (stream->sums[i].state.kind == kind) {
            return stream->sums[i].digest;
        }
    }
    return NULL;
}

bool hash_is_idle(const struct hash_stream *stream)
{
    return stream->jobs == 0;
}

void hash_close(struct hash_stream *stream)
{
    if (!hash_is_open(stream)) {
        return;
    }
    CHECK(hash_is_idle(stream));
    list_remove(&stream->link);
    for (uint32_t i = 0; i < stream->count; i++) {
        s3_checksum_close(&stream->sums[i].state);
    }
    stream->count = 0;
    stream->hasher = NULL;
}
