/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_reader: a queue of read requests and the slices of the lists among them. See index_reader.h for the order of pin
 * and snapshot, which everything here serves.
 */
#include "storage/index_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"

#define SLICE_ROWS 128U /* rows of a list between two other requests: about 1 ms of warm pages */

/* A list in work. */
struct job {
    struct job *next;
    struct store_request *request;
    struct index_list *list;
};

struct index_reader {
    const struct index_reader_ops *ops;
    void *ctx;
    struct index_view *view;
    struct mpsc queue;
    struct mpsc_node *taken;      /* requests taken from the queue and not begun */
    struct job *jobs, *jobs_last; /* lists, served round robin */
    bool lists_turn;              /* the next step is a list's */
    _Atomic uint64_t errors;
    _Atomic bool is_damaged; /* a page of the index was not what had been written */
};

int index_reader_open(const struct index_options *options, const struct index_reader_ops *ops, void *ops_ctx,
                      struct index_reader **out, struct err *err)
{
    struct index_reader *reader = calloc(1, sizeof(*reader));
    if (reader == NULL) {
        return -ENOMEM;
    }
    reader->ops = ops;
    reader->ctx = ops_ctx;
    int rc = mpsc_open(&reader->queue);
    if (rc != 0) {
        goto free_reader;
    }
    rc = index_view_open(options, &reader->view, err);
    if (rc != 0) {
        goto close_queue;
    }
    *out = reader;
    return 0;

close_queue:
    mpsc_close(&reader->queue);
free_reader:
    free(reader);
    return rc;
}

void index_reader_close(struct index_reader *reader)
{
    if (reader == NULL) {
        return;
    }
    CHECK(reader->taken == NULL);
    CHECK(reader->jobs == NULL);
    mpsc_close(&reader->queue);
    index_view_close(reader->view);
    free(reader);
}

void index_reader_submit(struct index_reader *reader, struct store_request *request)
{
    mpsc_push(&reader->queue, &request->node);
}

int index_reader_event_fd(const struct index_reader *reader)
{
    return reader->queue.event_fd;
}

bool index_reader_is_idle(const struct index_reader *reader)
{
    return reader->taken == NULL && reader->jobs == NULL && atomic_load(&reader->queue.head) == NULL;
}

uint64_t index_reader_errors(const struct index_reader *reader)
{
    return atomic_load_explicit(&reader->errors, memory_order_relaxed);
}

bool index_reader_is_damaged(const struct index_reader *reader)
{
    return atomic_load_explicit(&reader->is_damaged, memory_order_relaxed);
}

static void answer(struct index_reader *reader, struct store_request *request, int status)
{
    bool ours = status == -EIO || status == ERR_CORRUPT || status == -EBUSY;
    if (ours) {
        atomic_fetch_add_explicit(&reader->errors, 1, memory_order_relaxed);
        if (status == ERR_CORRUPT) {
            atomic_store_explicit(&reader->is_damaged, true, memory_order_relaxed);
        }
        LOG_ERR("index_read_failed", "kind=%d why=%s", (int)request->kind, LOG_Q(err_text(status)));
    }
    request->status = status == -EBUSY ? -EIO : status;
    reader->ops->answer(reader->ctx, request);
}

static int lookup_object(struct index_reader *reader, struct store_request *request)
{
    /* The pin comes first: the snapshot taken after it can only be newer. */
    uint64_t epoch = reader->ops->pin(reader->ctx);
    int rc = index_view_object(reader->view, request->bucket, &request->key, &request->object);
    if (rc != 0) {
        reader->ops->unpin(reader->ctx, epoch);
        return rc;
    }
    CHECK(request->object != NULL);
    request->object->epoch = epoch;
    return 0;
}

static int list_begin(struct index_reader *reader, struct store_request *request)
{
    enum index_list_kind kind = request->kind == STORE_BUCKET_LIST   ? INDEX_LIST_BUCKETS
                                : request->kind == STORE_OBJECT_LIST ? INDEX_LIST_OBJECTS
                                : request->kind == STORE_UPLOAD_LIST ? INDEX_LIST_UPLOADS
                                                                     : INDEX_LIST_PARTS;
    struct index_list_request list_request = {
        .kind = kind,
        .bucket = request->bucket,
        .upload_id = request->upload_id,
        .options = request->list_options,
    };
    struct job *job = calloc(1, sizeof(*job));
    if (job == NULL) {
        return -ENOMEM;
    }
    int rc = index_list_begin(&list_request, &job->list);
    if (rc != 0) {
        free(job);
        return rc;
    }
    job->request = request;
    if (reader->jobs_last != NULL) {
        reader->jobs_last->next = job;
    } else {
        reader->jobs = job;
    }
    reader->jobs_last = job;
    return 0;
}

static int lookup_upload(struct index_reader *reader, struct store_request *request)
{
    struct store_attributes attributes = {0};
    int rc = index_view_upload(reader->view, request->bucket, &request->key, request->upload_id, &attributes,
                               &request->created_ns);
    memcpy(request->checksum, attributes.checksum, sizeof(request->checksum));
    return rc;
}

static void begin_request(struct index_reader *reader, struct store_request *request)
{
    int rc;
    request->object = NULL;
    request->list = NULL;
    switch (request->kind) {
    case STORE_BUCKET_LOOKUP:
        rc = index_view_bucket(reader->view, request->bucket, &request->created_ns);
        break;
    case STORE_OBJECT_LOOKUP:
        rc = lookup_object(reader, request);
        break;
    case STORE_UPLOAD_LOOKUP:
        rc = lookup_upload(reader, request);
        break;
    default:
        rc = list_begin(reader, request);
        if (rc == 0) {
            return; /* answered by its last slice */
        }
        break;
    }
    answer(reader, request, rc);
}

static void slice(struct index_reader *reader)
{
    struct job *job = reader->jobs;
    reader->jobs = job->next;
    if (reader->jobs == NULL) {
        reader->jobs_last = NULL;
    }
    job->next = NULL;
    int rc = index_list_step(job->list, reader->view, SLICE_ROWS);
    if (rc == 0) {
        if (reader->jobs_last != NULL) {
            reader->jobs_last->next = job;
        } else {
            reader->jobs = job;
        }
        reader->jobs_last = job;
        return;
    }
    struct store_request *request = job->request;
    if (rc == 1) {
        request->list = index_list_take(job->list);
    } else {
        index_list_abandon(job->list);
    }
    free(job);
    answer(reader, request, rc == 1 ? 0 : rc);
}

bool index_reader_step(struct index_reader *reader)
{
    if (reader->taken == NULL) {
        mpsc_clear(&reader->queue);
        reader->taken = mpsc_take_all(&reader->queue);
    }
    reader->lists_turn = !reader->lists_turn;
    if (reader->jobs != NULL && (reader->lists_turn || reader->taken == NULL)) {
        slice(reader);
    } else if (reader->taken != NULL) {
        struct mpsc_node *node = reader->taken;
        reader->taken = node->next;
        begin_request(reader, CONTAINER_OF(node, struct store_request, node));
    }
    return !index_reader_is_idle(reader);
}
