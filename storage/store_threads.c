/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_threads: the committer's thread and the index readers' threads, and what the committer asks of the data side: flushes,
 * answers, space. The committer's ring carries its flushes; it is woken by messages through polls on their eventfds.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "storage/scrub.h"
#include "storage/store_int.h"

/* ---- what the committer asks for --------------------------------------------------------------------------------------- */

static void store_flush(void *ctx, uint32_t device)
{
    struct store *store = ctx;
    struct dev_io *io = &store->flush_ios[device];
    *io = (struct dev_io){.op = DEV_FLUSH, .buf_index = -1};
    dev_submit(store->flush_queues[device], io);
}

static void store_device_state_set(void *ctx, uint32_t device, enum store_device_state state, const char *why)
{
    struct store *store = ctx;
    struct dev *dev = store->devices[device].dev;
    static const char *const names[] = {"ok", "suspect", "failed"};
    if (state == STORE_DEVICE_FAILED) {
        dev_fail(dev, why);
    } else {
        dev_suspect_set(dev, state == STORE_DEVICE_SUSPECT);
    }
    log_write(state == STORE_DEVICE_OK ? LOG_INFO : LOG_ERROR, NULL, "device_state",
              "path=%s state=%s why=%s", LOG_Q(dev->path), names[state], LOG_Q(why));
}

static void store_space_release(void *ctx, const struct object_space *spaces, uint32_t count, bool visible)
{
    struct store *store = ctx;
    if (!visible) {
        for (uint32_t i = 0; i < count; i++) {
            store_space_give(&store->devices[spaces[i].device], spaces[i].offset, spaces[i].length);
        }
        return;
    }
    if (epoch_free(store->epoch, spaces, count) != 0) {
        LOG_ERR("space_lost", "extents=%u why=%s", count,
                LOG_Q("out of memory; the space is found again at the next start"));
    }
    store_reclaim(store);
}

static void store_commit_progress(void *ctx)
{
    struct store *store = ctx;
    if (!store->is_stepped) {
        store_busy_progress(&store->commit_busy, clock_monotonic_ns());
    }
}

static void store_answer_put(void *ctx, struct commit_put *put)
{
    (void)ctx; /* the put knows its port */
    port_deliver_put(put);
}

static void store_answer_request(void *ctx, struct store_request *request)
{
    (void)ctx; /* the request knows its port */
    port_deliver_request(request);
}

static uint64_t store_epoch_pin(void *ctx)
{
    struct store *store = ctx;
    return epoch_pin(store->epoch);
}

static void store_epoch_unpin(void *ctx, uint64_t epoch)
{
    struct store *store = ctx;
    epoch_unpin(store->epoch, epoch);
    store_reclaim(store);
}

const struct commit_ops store_commit_ops = {
    .flush = store_flush,
    .device_state = store_device_state_set,
    .space_release = store_space_release,
    .pin = store_epoch_pin,
    .unpin = store_epoch_unpin,
    .progress = store_commit_progress,
    .answer_put = store_answer_put,
    .answer_request = store_answer_request,
};

const struct index_reader_ops store_reader_ops = {
    .pin = store_epoch_pin,
    .unpin = store_epoch_unpin,
    .answer = store_answer_request,
};

/* ---- the committer ------------------------------------------------------------------------------------------------------- */

int store_flush_queues_open(struct store *store, struct uring *uring, struct err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < store->device_count && rc == 0; i++) {
        rc = dev_queue_open(store->devices[i].dev, uring, 2, &store->flush_queues[i], err);
    }
    return rc;
}

void store_flush_queues_close(struct store *store)
{
    for (uint32_t i = 0; i < store->device_count; i++) {
        if (store->flush_queues[i] != NULL) {
            dev_queue_close(store->flush_queues[i]);
            store->flush_queues[i] = NULL;
        }
    }
}

uint64_t store_commit_turn(struct store *store, uint64_t now_ns, uint64_t realtime_ns)
{
    for (uint32_t i = 0; i < store->device_count; i++) {
        struct dev_io *io = NULL;
        if (dev_poll(store->flush_queues[i], now_ns, &io, 1) == 1) {
            commit_flush_done(store->commit, i, io->result, now_ns);
        }
        if (commit_is_suspect(store->commit, i)) {
            dev_suspect_set(store->devices[i].dev, true); /* A worker may have had an answer to a write. */
        }
    }
    return commit_step(store->commit, now_ns, realtime_ns);
}

static void store_woken(void *ctx, void *op, const struct io_uring_cqe *cqe)
{
    (void)ctx;
    (void)cqe; /* an error of the poll shows again when it is armed anew */
    struct store_wake *wake = op;
    wake->is_armed = false;
}

static void store_wakes_arm(struct store *store)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct store_wake *wake = &store->commit_wakes[i];
        if (!wake->is_armed) {
            struct io_uring_sqe *sqe = uring_sqe(&store->commit_ring);
            io_uring_prep_poll_add(sqe, wake->fd, POLLIN);
            uring_sqe_bind(sqe, URING_CLASS_WAKE, wake);
            wake->is_armed = true;
        }
    }
}

static bool store_flushes_pending(const struct store *store)
{
    for (uint32_t i = 0; i < store->device_count; i++) {
        if (dev_queue_pending(store->flush_queues[i]) > 0) {
            return true;
        }
    }
    return false;
}

static void store_commit_loop(struct store *store)
{
    for (;;) {
        uint64_t now_ns = clock_monotonic_ns();
        store_busy_begin(&store->commit_busy, now_ns);
        uint64_t next_ns = store_commit_turn(store, now_ns, clock_realtime_ns());
        store_busy_end(&store->commit_busy);
        if (store->is_stopping && commit_is_idle(store->commit) && !store_flushes_pending(store)) {
            return;
        }
        if (next_ns != 0 && !store->is_stopping) {
            store_wakes_arm(store); /* polls see what is readable already, so no message is slept over */
        }
        uint64_t wait_ns = next_ns > now_ns ? next_ns - now_ns : 0;
        wait_ns = next_ns == TIME_NEVER ? TIME_NEVER : wait_ns;
        wait_ns = store->is_stopping && wait_ns > 10 * NS_PER_MS ? 10 * NS_PER_MS : wait_ns;
        int rc = uring_submit_and_wait(&store->commit_ring, wait_ns);
        CHECK(rc == 0);
        uring_reap(&store->commit_ring, UINT32_MAX);
    }
}

static void *store_commit_main(void *arg)
{
    struct store *store = arg;
    struct uring_options options = {.sq_entries = 256, .cq_entries = 512, .files_max = STORE_DEVICES_MAX};
    int rc = uring_open(&store->commit_ring, &options, &store->start_err);
    if (rc == 0) {
        uring_handler_set(&store->commit_ring, URING_CLASS_WAKE, store_woken, NULL);
        rc = store_flush_queues_open(store, &store->commit_ring, &store->start_err);
    }
    bool works = rc == 0;
    pthread_mutex_lock(&store->start_lock);
    store->start_rc = rc;
    store->start_is_known = true;
    pthread_cond_signal(&store->start_known);
    pthread_mutex_unlock(&store->start_lock);
    if (works) {
        store_commit_loop(store);
    }
    store_flush_queues_close(store);
    if (store->commit_ring.setup_flags != 0 || works) {
        uring_close(&store->commit_ring);
    }
    return NULL;
}

static int store_committer_start(struct store *store, struct err *err)
{
    store->commit_wakes[0] = (struct store_wake){.fd = commit_event_fd(store->commit)};
    store->commit_wakes[1] = (struct store_wake){.fd = store->stop_fd};
    int rc = -pthread_create(&store->commit_thread, NULL, store_commit_main, store);
    if (rc < 0) {
        return err_set(err, rc, "the committer's thread: %s", err_text(rc));
    }
    store->commit_thread_runs = true;
    pthread_mutex_lock(&store->start_lock);
    while (!store->start_is_known) {
        pthread_cond_wait(&store->start_known, &store->start_lock);
    }
    rc = store->start_rc;
    pthread_mutex_unlock(&store->start_lock);
    if (rc < 0 && err != NULL) {
        *err = store->start_err;
    }
    return rc;
}

/* ---- the readers --------------------------------------------------------------------------------------------------------- */

struct store_reader_start {
    struct store *store;
    struct index_reader *reader;
    struct store_busy *busy;
};

static void *store_reader_main(void *arg)
{
    struct store_reader_start start = *(struct store_reader_start *)arg;
    struct pollfd fds[2] = {{.fd = index_reader_event_fd(start.reader), .events = POLLIN},
                            {.fd = start.store->stop_fd, .events = POLLIN}};
    free(arg);
    for (;;) {
        store_busy_begin(start.busy, clock_monotonic_ns());
        bool has_more = index_reader_step(start.reader);
        store_busy_end(start.busy);
        if (has_more) {
            continue;
        }
        if (start.store->is_stopping && index_reader_is_idle(start.reader)) {
            return NULL;
        }
        int rc = poll(fds, 2, -1);
        CHECK(rc >= 0 || errno == EINTR);
    }
}

static int store_readers_start(struct store *store, struct err *err)
{
    for (uint32_t i = 0; i < store->reader_count; i++) {
        struct store_reader_start *start = malloc(sizeof(*start));
        int rc = -ENOMEM;
        if (start != NULL) {
            *start = (struct store_reader_start){
                .store = store, .reader = store->readers[i], .busy = &store->reader_busy[i]};
            rc = -pthread_create(&store->reader_threads[i], NULL, store_reader_main, start);
        }
        if (rc < 0) {
            free(start);
            return err_set(err, rc, "an index reader's thread: %s", err_text(rc));
        }
        store->reader_threads_running++;
    }
    return 0;
}

/* ---- scrub --------------------------------------------------------------------------------------------------------------- */

static void store_scrub_loop(struct store *store, struct uring *ring, struct scrub *scrub)
{
    while (!store->is_stopping) {
        uint64_t now_ns = clock_monotonic_ns();
        uint64_t next_ns = scrub_step(scrub, now_ns);
        uint64_t wait_ns = next_ns > now_ns ? next_ns - now_ns : 0;
        /* Short waits: nothing wakes this thread when the store stops. */
        wait_ns = wait_ns > 50 * NS_PER_MS ? 50 * NS_PER_MS : wait_ns;
        int rc = uring_submit_and_wait(ring, wait_ns);
        CHECK(rc == 0);
        uring_reap(ring, UINT32_MAX);
    }
}

static void *store_scrub_main(void *arg)
{
    struct store *store = arg;
    struct uring ring;
    struct err err = {""};
    struct uring_options ring_options = {.sq_entries = 8, .cq_entries = 16, .files_max = STORE_DEVICES_MAX};
    struct index_options index = {.dir = store->options.data_dir};
    struct scrub_options options = {.index = &index, .uring = &ring, .rate = store->options.scrub_rate};
    struct scrub *scrub = NULL;
    int rc = uring_open(&ring, &ring_options, &err);
    if (rc == 0) {
        rc = scrub_open(store, &options, &scrub, &err);
        if (rc == 0) {
            store_scrub_loop(store, &ring, scrub);
            scrub_close(scrub);
        }
        uring_close(&ring);
    }
    if (rc < 0) { /* the store works without it; somebody should know */
        LOG_ERR("scrub_not_running", "why=%s", LOG_Q(err.text));
    }
    return NULL;
}

static int store_scrub_start(struct store *store, struct err *err)
{
    if (store->options.scrub_rate == 0) {
        return 0;
    }
    int rc = -pthread_create(&store->scrub_thread, NULL, store_scrub_main, store);
    store->scrub_thread_runs = rc == 0;
    return rc == 0 ? 0 : err_set(err, rc, "the scrub thread: %s", err_text(rc));
}

int store_threads_start(struct store *store, struct err *err)
{
    store->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (store->stop_fd < 0) {
        return err_set(err, -errno, "an eventfd: %s", err_text(-errno));
    }
    int rc = store_committer_start(store, err);
    rc = rc == 0 ? store_readers_start(store, err) : rc;
    return rc == 0 ? store_scrub_start(store, err) : rc;
}

void store_threads_stop(struct store *store)
{
    if (store->stop_fd < 0) {
        return;
    }
    store->is_stopping = true;
    int rc = eventfd_write(store->stop_fd, 1);
    CHECK(rc == 0);
    if (store->commit_thread_runs) {
        pthread_join(store->commit_thread, NULL);
        store->commit_thread_runs = false;
    }
    for (uint32_t i = 0; i < store->reader_threads_running; i++) {
        pthread_join(store->reader_threads[i], NULL);
    }
    store->reader_threads_running = 0;
    if (store->scrub_thread_runs) {
        pthread_join(store->scrub_thread, NULL);
        store->scrub_thread_runs = false;
    }
    close(store->stop_fd);
    store->stop_fd = -1;
}
