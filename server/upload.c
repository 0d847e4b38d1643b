/* SPDX-License-Identifier: Apache-2.0 */
/* upload: from slices to a put that is done. */
#include "server/upload.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "server/conn.h"
#include "server/exchange.h"
#include "server/s3_handlers.h"
#include "server/zframe.h"

void upload_init(struct exchange *x, void (*done)(struct exchange *x))
{
    struct upload *upload = &x->upload;
    memset(upload, 0, offsetof(struct upload, attributes));
    upload->x = x;
    upload->done = done;
    upload->size = UINT64_MAX;
    upload->has_condition = false;
    upload->error = S3_OK;
    upload->store_error = 0;
    upload->attributes.etag[0] = '\0';
    upload->attributes.checksum[0] = '\0';
    upload->attributes.meta_len = 0;
    memset(&upload->condition, 0, sizeof(upload->condition));
    list_init(&upload->link);
    list_init(&upload->throttled);
    list_init(&upload->copying);
    list_init(&upload->compressing.link);
}

/* ---- begin ---------------------------------------------------------------------------------------------------- */

static enum metrics_abort upload_cause_of(int store_error)
{
    switch (store_error) {
    case -ENOSPC:
        return METRICS_ABORT_SPACE;
    case ERR_PRECONDITION:
    case ERR_NO_SUCH_KEY:
        return METRICS_ABORT_CONDITION;
    case ERR_SHUTDOWN:
        return METRICS_ABORT_SHUTDOWN;
    default:
        return METRICS_ABORT_STORAGE;
    }
}

/* The digests that this upload needs: those to compare, the one to store, and MD5 where it is the ETag. */
static int upload_hashes_open(struct exchange *x)
{
    struct upload *upload = &x->upload;
    hash_open(&upload->hashes, &x->worker->hasher, upload);
    int rc = 0;
    if (upload->wants_md5_etag || upload->checks.md5.kind != S3_CHECKSUM_NONE) {
        rc = hash_add(&upload->hashes, S3_CHECKSUM_MD5);
    }
    if (rc == 0 && upload->sha256.kind != S3_CHECKSUM_NONE) {
        rc = hash_add(&upload->hashes, S3_CHECKSUM_SHA256);
    }
    if (rc == 0 && upload->checks.algorithm != S3_CHECKSUM_NONE) {
        rc = hash_add(&upload->hashes, upload->checks.algorithm);
    }
    return rc;
}

static bool upload_limit_reached(struct exchange *x)
{
    const struct conf_limits *limits = &x->listener->conf->limits;
    if (x->listener->upload_count >= limits->uploads_max) {
        metrics_add(&x->listener->cells->limits_hit[METRICS_LIMIT_UPLOADS], 1);
        return true;
    }
    const struct peer *peer = peers_find(&x->worker->peers, &x->conn->peer);
    if (limits->uploads_per_peer_max != 0 && peer->uploads >= limits->uploads_per_peer_max) {
        metrics_add(&x->listener->cells->limits_hit[METRICS_LIMIT_UPLOADS_PER_PEER], 1);
        return true;
    }
    return false;
}

/* Counted only while the connection is there, because the peer's entry goes with its last connection. */
void upload_count(struct exchange *x, bool is_begin)
{
    struct listener *listener = x->listener;
    if (is_begin == x->is_upload_counted) {
        return;
    }
    x->is_upload_counted = is_begin;
    struct peer *peer = peers_find(&x->worker->peers, &x->conn->peer);
    if (is_begin) {
        listener->upload_count++;
        peer->uploads++;
        metrics_add(&listener->cells->uploads_in_flight, 1);
    } else {
        listener->upload_count--;
        peer->uploads--;
        metrics_sub(&listener->cells->uploads_in_flight, 1);
    }
}

enum s3_error upload_open(struct exchange *x, uint64_t size)
{
    struct upload *upload = &x->upload;
    CHECK(upload->state == UPLOAD_CLOSED);
    if (upload_limit_reached(x)) {
        return S3_ERR_SLOW_DOWN;
    }
    compressing_open(x, size);
    bool is_compressed = upload->compressing.mode != COMPRESSING_OFF;
    struct store_put_options options = {
        .bucket = x->request.bucket,
        .key = &x->request.key,
        .size = is_compressed ? UINT64_MAX : size,       /* What will be stored is not known yet. */
        .is_filtered = is_compressed || upload->is_copy, /* It lies in no receive buffer. */
        .part_number = x->request.part_number,
        .is_framed = x->body.is_chunked || auth_payload_is_streaming(x->payload.payload),
        .user = upload,
    };
    memcpy(options.upload_id, x->request.upload_id, sizeof(options.upload_id));
    int rc = upload_hashes_open(x);
    if (rc == 0) {
        rc = store_put_begin(x->worker->port, &options, &upload->put);
    }
    if (rc < 0) {
        compressing_drop(upload);
        compressing_close(&upload->compressing);
        hash_close(&upload->hashes);
        upload->put = NULL;
        enum metrics_limit limit = rc == -ENOSPC ? METRICS_LIMIT_SPACE : METRICS_LIMIT_UPLOADS;
        metrics_add(&x->listener->cells->limits_hit[limit], rc == -ENOSPC || rc == ERR_LIMIT ? 1 : 0);
        return s3_error_of(rc);
    }
    upload->state = UPLOAD_OPEN;
    upload->size = size;
    upload->fed_ns = x->worker->now_ns;
    list_append(&x->worker->uploads, &upload->link);
    upload_count(x, true);
    return S3_OK;
}

/* ---- payload -------------------------------------------------------------------------------------------------- */

static bool upload_is_behind(const struct upload *upload)
{
    if (compressing_is_behind(&upload->compressing)) {
        return true;
    }
    if (store_put_is_full(upload->put)) {
        return true;
    }
    const struct exchange *x = upload->x;
    uint64_t waiting = store_put_queued_bytes(upload->put);
    waiting = waiting > upload->hashes.queued_bytes ? waiting : upload->hashes.queued_bytes;
    return waiting > x->listener->conf->limits.upload_queue_max;
}

/* A seek table has room for so many frames; that an upload of unknown length is longer is not known when it begins. */
static uint64_t upload_size_max(const struct exchange *x)
{
    enum compressing_mode mode = x->upload.compressing.mode;
    uint64_t size_max = x->listener->conf->limits.object_size_max;
    bool is_bounded =
        (mode == COMPRESSING_UNDECIDED || mode == COMPRESSING_ZSTD) && size_max > ZFRAME_OBJECT_MAX;
    return is_bounded ? ZFRAME_OBJECT_MAX : size_max;
}

void upload_append(struct exchange *x, const struct slice *slice)
{
    struct upload *upload = &x->upload;
    upload->received += slice->len;
    metrics_add(&x->listener->cells->payload_received_bytes, upload->is_copy ? 0 : slice->len);
    if (upload->state != UPLOAD_OPEN) {
        slice_release(slice);
        return;
    }
    if (upload->received > upload_size_max(x)) { /* Of unknown length, or refused before. */
        slice_release(slice);
        metrics_add(&x->listener->cells->limits_hit[METRICS_LIMIT_OBJECT_SIZE], 1);
        upload_fail(x, S3_ERR_ENTITY_TOO_LARGE, METRICS_ABORT_PROTOCOL);
        return;
    }
    hash_update(&upload->hashes, slice);
    if (upload->compressing.mode == COMPRESSING_OFF) {
        store_put_append(upload->put, slice);
        if (store_put_idle_slices(upload->put) >= x->listener->idle_slices_max) {
            /* Or the connection may receive nothing until a write is full. */
            store_put_pressure(upload->put);
        }
    } else {
        compressing_append(upload, slice);
        if (upload->state != UPLOAD_OPEN) {
            return;
        }
    }
    upload->fed_ns = x->worker->now_ns;
    list_remove(&upload->link);
    list_append(&x->worker->uploads, &upload->link);
    if (!list_is_linked(&upload->throttled) && upload_is_behind(upload)) {
        metrics_add(&x->listener->cells->upload_pauses, 1);
        x->body.rate_excused = true; /* What the peer does not send in this window is our doing. */
        list_append(&x->worker->throttled, &upload->throttled);
    }
}

/* ---- verification --------------------------------------------------------------------------------------------- */

static bool upload_digest_differs(const struct upload *upload, const struct s3_checksum_expected *expected)
{
    return expected->kind != S3_CHECKSUM_NONE &&
           !s3_checksum_matches(expected, hash_digest(&upload->hashes, expected->kind));
}

static enum s3_error upload_verify(const struct upload *upload)
{
    const struct exchange *x = upload->x;
    if (upload->size != UINT64_MAX && upload->received != upload->size) {
        return S3_ERR_INCOMPLETE_BODY;
    }
    if (upload_digest_differs(upload, &upload->sha256)) {
        return S3_ERR_CONTENT_SHA256_MISMATCH;
    }
    if (upload_digest_differs(upload, &upload->checks.md5) ||
        upload_digest_differs(upload, &upload->checks.header)) {
        return S3_ERR_BAD_DIGEST;
    }
    /* What the trailer carried was not known when the digests were chosen: only the announced kind can be compared. */
    if (x->body.is_aws && upload->checks.trailer != S3_CHECKSUM_NONE) {
        const struct s3_checksum_expected *trailer = &x->body.aws.trailer;
        if (trailer->kind != upload->checks.trailer) {
            return S3_ERR_MALFORMED_TRAILER;
        }
        return upload_digest_differs(upload, trailer) ? S3_ERR_BAD_DIGEST : S3_OK;
    }
    return S3_OK;
}

/* An opaque ETag has the form of a multipart one, so that no client takes it for an MD5. */
static void upload_etag(struct upload *upload)
{
    struct store_attributes *attributes = &upload->attributes;
    const uint8_t *md5 = hash_digest(&upload->hashes, S3_CHECKSUM_MD5);
    if (md5 != NULL) {
        s3_hex_encode(md5, 16, attributes->etag);
        return;
    }
    struct rng *rng = &upload->x->worker->rng;
    (void)snprintf(attributes->etag, sizeof(attributes->etag), "%016llx%016llx-1",
                   (unsigned long long)rng_u64(rng),
                   (unsigned long long)rng_u64(rng)); /* 34 bytes: it always fits. */
}

static void upload_checksum(struct upload *upload)
{
    enum s3_checksum_kind kind = upload->checks.algorithm;
    char text[S3_CHECKSUM_TEXT_MAX];
    if (kind == S3_CHECKSUM_NONE || kind == S3_CHECKSUM_MD5) {
        return;
    }
    (void)s3_checksum_text(kind, hash_digest(&upload->hashes, kind), 0, text); /* NUL-terminated. */
    (void)snprintf(upload->attributes.checksum, sizeof(upload->attributes.checksum), "%s=%s",
                   s3_checksum_name(kind), text); /* 10 + 1 + 51 bytes at most. */
}

/* Digests are right and the store has all payload. */
static void upload_commit(struct upload *upload)
{
    if (upload->compressing.mode == COMPRESSING_ZSTD) {
        bool fits = zframe_mark(upload->attributes.checksum, upload->received);
        CHECK(fits); /* 62 bytes of checksum, 6 of the word, 20 digits. */
    }
    upload->state = UPLOAD_FINISHING;
    list_remove(&upload->compressing.link);
    store_put_finish(upload->put, &upload->attributes, upload->has_condition ? &upload->condition : NULL);
    exchange_copied_claim(upload->x);
}

void upload_filter_event(void *user, struct filter_frame *frame)
{
    struct exchange *x = user;
    (void)frame; /* uploads_turn takes it from here, unless nobody wants it any more. */
    if (x->upload.state != UPLOAD_OPEN && x->upload.state != UPLOAD_HASHING) {
        exchange_settle(x);
    }
}

void upload_hash_event(struct hash_stream *stream)
{
    struct upload *upload = stream->user;
    if (upload->state != UPLOAD_HASHING) {
        exchange_settle(upload->x); /* Given up meanwhile. */
        return;
    }
    enum s3_error error = upload_verify(upload);
    if (error != S3_OK) {
        upload_fail(upload->x, error, METRICS_ABORT_CHECKSUM);
        return;
    }
    upload_etag(upload);
    upload_checksum(upload);
    upload->is_verified = true;
    if (compressing_is_done(&upload->compressing)) {
        upload_commit(upload);
    }
}

void upload_finish(struct exchange *x)
{
    struct upload *upload = &x->upload;
    if (upload->state != UPLOAD_OPEN) {
        return; /* It failed before and was reported. */
    }
    x->body_end_ns = x->worker->now_ns;
    upload->state = UPLOAD_HASHING;
    list_remove(&upload->link);
    list_remove(&upload->throttled);
    compressing_finish(upload);
    hash_finish(&upload->hashes);
}

/* ---- end ------------------------------------------------------------------------------------------------------ */

static void upload_report(struct upload *upload)
{
    if (!upload->is_reported) {
        upload->is_reported = true;
        upload->done(upload->x);
    }
}

/* The put gives back everything; until then the upload is not settled. Not in a put that is finishing: it will answer. */
static void upload_put_abort(struct upload *upload)
{
    if (upload->put != NULL && !upload->is_aborting) {
        upload->is_aborting = true;
        store_put_abort(upload->put);
    }
}

static void upload_end(struct upload *upload, enum upload_state state)
{
    struct exchange *x = upload->x;
    upload->state = state;
    list_remove(&upload->link);
    list_remove(&upload->throttled);
    list_remove(&upload->copying);
    compressing_drop(upload);
    if (state == UPLOAD_FAILED) {
        hash_cancel(&upload->hashes); /* Or nobody would hear when the thread lets go of the last slice. */
        metrics_add(&x->listener->cells->uploads_aborted[upload->abort_cause], 1);
    }
}

void upload_fail(struct exchange *x, enum s3_error error, enum metrics_abort cause)
{
    struct upload *upload = &x->upload;
    if (upload->state != UPLOAD_OPEN && upload->state != UPLOAD_HASHING) {
        return;
    }
    upload->error = error;
    upload->abort_cause = cause;
    upload_end(upload, UPLOAD_FAILED);
    upload_put_abort(upload);
    upload_report(upload);
}

void upload_abandon(struct exchange *x, enum metrics_abort cause)
{
    struct upload *upload = &x->upload;
    if (upload->state == UPLOAD_CLOSED) {
        return;
    }
    upload->is_reported = true;
    if (upload->state == UPLOAD_OPEN || upload->state == UPLOAD_HASHING) {
        upload->abort_cause = cause;
        upload_end(upload, UPLOAD_FAILED);
        upload_put_abort(upload);
    }
    upload_count(x, false);
}

static void upload_put_done(struct upload *upload)
{
    struct exchange *x = upload->x;
    uint64_t now_ns = x->worker->now_ns;
    upload_end(upload, UPLOAD_DONE);
    metrics_add(&x->listener->cells->payload_stored_bytes, upload->received);
    if (upload->compressing.mode == COMPRESSING_ZSTD) {
        metrics_add(&x->listener->cells->compressed_plain_bytes, upload->received);
        metrics_add(&x->listener->cells->compressed_stored_bytes, upload->compressing.stored);
    }
    metrics_observe(&x->listener->cells->durable_latency, now_ns - x->head_ns);
    metrics_observe(&x->listener->cells->commit_latency, now_ns - x->body_end_ns);
    exchange_copied_claim(x);
    upload_report(upload);
}

static void upload_put_failed(struct upload *upload)
{
    if (upload->is_aborting) {
        return; /* Both gave up at the same time. */
    }
    upload->store_error = store_put_error(upload->put);
    upload->error = s3_error_of(upload->store_error);
    upload->abort_cause = upload_cause_of(upload->store_error);
    upload_end(upload, UPLOAD_FAILED);
    upload_put_abort(upload);
    upload_report(upload);
}

void upload_put_event(struct store_put *put)
{
    struct upload *upload = store_put_user(put);
    struct exchange *x = upload->x;
    CHECK(upload->put == put);
    switch (store_put_state(put)) {
    case STORE_PUT_OPEN:
        return;
    case STORE_PUT_DONE:
        upload_put_done(upload);
        break;
    case STORE_PUT_FAILED:
        upload_put_failed(upload);
        return;
    case STORE_PUT_ABORTED:
        store_put_free(put);
        upload->put = NULL;
        break;
    }
    exchange_settle(x);
}

bool upload_is_settled(const struct upload *upload)
{
    if (upload->state == UPLOAD_CLOSED) {
        return true;
    }
    bool is_ended = upload->state == UPLOAD_DONE || upload->state == UPLOAD_FAILED;
    bool put_is_ended = upload->put == NULL || upload->state == UPLOAD_DONE;
    return is_ended && put_is_ended && hash_is_idle(&upload->hashes) &&
           compressing_is_idle(&upload->compressing);
}

void upload_close(struct upload *upload)
{
    CHECK(upload_is_settled(upload));
    if (upload->state == UPLOAD_CLOSED) {
        return;
    }
    if (upload->put != NULL) {
        store_put_free(upload->put);
        upload->put = NULL;
    }
    hash_close(&upload->hashes);
    compressing_close(&upload->compressing);
    upload->state = UPLOAD_CLOSED;
}

/* ---- the periodic part ---------------------------------------------------------------------------------------- */

/* Some listener has less than one part in `parts` of its buffers left. */
static bool uploads_buffers_are_below(const struct worker *worker, uint64_t parts)
{
    for (uint32_t i = 0; i < worker->listener_count; i++) {
        const struct listener *listener = &worker->listeners[i];
        uint64_t total = listener->info.buffers_total;
        uint64_t free_now = atomic_load_explicit(&listener->rx->stats.buffers_free, memory_order_relaxed);
        if (!listener->is_broken && total > 0 && free_now * parts < total) {
            return true;
        }
    }
    return false;
}

bool uploads_buffers_are_short(const struct worker *worker)
{
    return uploads_buffers_are_below(worker, WORKER_SHORT_PARTS);
}

static bool upload_is_idle(const struct upload *upload, const struct worker *worker)
{
    return upload->fed_ns + WORKER_PARTIAL_NS <= worker->now_ns;
}

/* Its slices lie in frames of which it has few, and it may wait for one: those of the filter, or of what a copy reads. */
static bool upload_fills_frames(const struct upload *upload)
{
    return upload->compressing.mode != COMPRESSING_OFF || upload->is_copy;
}

static void upload_press(struct upload *upload)
{
    store_put_pressure(upload->put);
    exchange_copied_claim(upload->x);
}

/* Both lists are in the order in which their uploads were fed, oldest first, and an upload is told once by each: a thousand stalled
 * uploads cost nothing per turn.
 *
 * First an upload writes what it can write without a copy; a slice or two with less than an LBA stay. Those are copied when the upload
 * is idle and half of the buffers are taken, or when nearly all are: else many uploads at once would copy for every bit of theirs. */
static void uploads_relieve(struct worker *worker, bool is_short)
{
    for (uint32_t told = 0; told < WORKER_PRESSURE && !list_is_empty(&worker->uploads);) {
        struct upload *upload = CONTAINER_OF(worker->uploads.next, struct upload, link);
        if (!is_short && !upload_is_idle(upload, worker)) {
            break;
        }
        list_remove(&upload->link);
        if (!store_put_holds_idle_slices(upload->put)) {
            continue;
        }
        told++;
        if (upload_fills_frames(upload)) {
            upload_press(upload);
        } else {
            list_append(&worker->relieved, &upload->link);
            store_put_relieve(upload->put);
        }
    }
}

static void uploads_press(struct worker *worker)
{
    if (!list_is_empty(&worker->uploads)) {
        uploads_relieve(worker, uploads_buffers_are_short(worker));
    }
    if (list_is_empty(&worker->relieved) || !uploads_buffers_are_below(worker, WORKER_IDLE_PARTS)) {
        return;
    }
    bool is_critical = uploads_buffers_are_below(worker, WORKER_CRITICAL_PARTS);
    for (uint32_t told = 0; told < WORKER_PRESSURE && !list_is_empty(&worker->relieved);) {
        struct upload *upload = CONTAINER_OF(worker->relieved.next, struct upload, link);
        if (!is_critical && !upload_is_idle(upload, worker)) {
            break;
        }
        list_remove(&upload->link);
        if (store_put_holds_idle_slices(upload->put)) {
            told++;
            upload_press(upload);
        }
    }
}

static void uploads_unthrottle(struct worker *worker)
{
    LIST_FOR_EACH_SAFE(node, &worker->throttled)
    {
        struct upload *upload = CONTAINER_OF(node, struct upload, throttled);
        if (!upload_is_behind(upload)) {
            list_remove(&upload->throttled);
            upload->x->body.rate_excused = true;
            upload->x->conn->received_ns = worker->now_ns; /* Its pause was ours. */
            conn_run(upload->x->conn);
        }
    }
}

static void uploads_filter(struct worker *worker)
{
    LIST_FOR_EACH_SAFE(node, &worker->filtering)
    {
        struct compressing *compressing = CONTAINER_OF(node, struct compressing, link);
        struct upload *upload = CONTAINER_OF(compressing, struct upload, compressing);
        struct conn *conn = upload->x->conn;
        if (!compressing_run(upload)) {
            upload_fail(upload->x, S3_ERR_INTERNAL, METRICS_ABORT_STORAGE);
            if (conn != NULL) {
                conn_run(conn);
            }
        } else if (upload->is_verified && compressing_is_done(compressing)) {
            upload_commit(upload);
        }
    }
}

/* The store may have let go of a frame: the next can be read. */
static void uploads_copy(struct worker *worker)
{
    LIST_FOR_EACH_SAFE(node, &worker->copying)
    {
        struct upload *upload = CONTAINER_OF(node, struct upload, copying);
        struct conn *conn = upload->x->conn;
        upload->x->ops->resume(upload->x);
        if (conn != NULL) {
            conn_run(conn);
        }
    }
}

void uploads_turn(struct worker *worker)
{
    uploads_copy(worker);
    uploads_filter(worker);
    uploads_unthrottle(worker);
    uploads_press(worker);
}

static uint64_t uploads_idle_ns(const struct list *list)
{
    if (list_is_empty(list)) {
        return TIME_NEVER;
    }
    return CONTAINER_OF(list->next, struct upload, link)->fed_ns + WORKER_PARTIAL_NS;
}

uint64_t uploads_deadline(const struct worker *worker)
{
    uint64_t fed_ns = uploads_idle_ns(&worker->uploads);
    uint64_t relieved_ns = uploads_idle_ns(&worker->relieved);
    if (relieved_ns < fed_ns && !uploads_buffers_are_below(worker, WORKER_IDLE_PARTS)) {
        relieved_ns = TIME_NEVER; /* Nobody needs what they hold. */
    }
    return fed_ns < relieved_ns ? fed_ns : relieved_ns;
}
