/* SPDX-License-Identifier: Apache-2.0 */
/* thread: opening and closing what a worker stands on, and its loop. The only place of a worker that reads clocks. */
#include "server/store_conf.h"
#include "server/thread.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/peek.h"
#include "nic/nic.h"
#include "server/tls_rx.h"

#define THREAD_SQ_ENTRIES 1024U
#define THREAD_CQ_ENTRIES 8192U
#define THREAD_BUFFERS 16U
#define THREAD_REAP 4096U /* completions per turn */

enum thread_wake_index { THREAD_WAKE_STORE, THREAD_WAKE_HASH, THREAD_WAKE_FILTER, THREAD_WAKE_MESSAGE };

/* ---- waking --------------------------------------------------------------------------------------------------- */

static void thread_wake_handler(void *ctx, void *op, const struct io_uring_cqe *cqe)
{
    (void)ctx; /* The wake itself is all there is to know: each turn looks at every queue. */
    struct thread_wake *wake = op;
    if ((cqe->flags & IORING_CQE_F_MORE) == 0) {
        wake->is_armed = false;
    }
}

static void thread_wakes_arm(struct thread *thread)
{
    for (size_t i = 0; i < ARRAY_COUNT(thread->wakes); i++) {
        struct thread_wake *wake = &thread->wakes[i];
        if (wake->fd >= 0 && !wake->is_armed) {
            struct io_uring_sqe *sqe = uring_sqe(&thread->uring);
            io_uring_prep_poll_multishot(sqe, wake->fd, POLLIN);
            uring_sqe_bind(sqe, URING_CLASS_WAKE, wake);
            wake->is_armed = true;
        }
    }
}

/* ---- opening -------------------------------------------------------------------------------------------------- */

static enum arena_pages thread_pages(const struct conf *conf)
{
    enum arena_pages pages = ARENA_PAGES_NORMAL;
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        pages = conf->listeners[i].hugepages > pages ? conf->listeners[i].hugepages : pages;
    }
    return pages;
}

static int thread_open_memory(struct thread *thread, struct err *err)
{
    struct uring_options ring = {
        .sq_entries = THREAD_SQ_ENTRIES,
        .cq_entries = THREAD_CQ_ENTRIES,
        .want_cqe32 = true,
        .buffers_max = THREAD_BUFFERS,
        .files_max = THREAD_FILES,
    };
    int rc = uring_open(&thread->uring, &ring, err);
    if (rc < 0) {
        return rc;
    }
    uring_handler_set(&thread->uring, URING_CLASS_WAKE, thread_wake_handler, thread);
    struct arena_options arena = {
        .staging_size = thread->conf->node.staging_size,
        .area_size = conf_memory_registered(thread->conf) - thread->conf->node.staging_size,
        .pages = thread_pages(thread->conf),
        .numa_node = -1,
    };
    rc = arena_open(&thread->arena, &arena, err);
    if (rc < 0 && arena.pages == ARENA_PAGES_1GIB) {
        LOG_WRN("hugepages_fallback", "worker=%u pages=%s why=%s", thread->index,
                conf_hugepages_text(ARENA_PAGES_2MIB), LOG_Q(err->text));
        arena.pages = ARENA_PAGES_2MIB;
        rc = arena_open(&thread->arena, &arena, err);
    }
    if (rc < 0) {
        uring_close(&thread->uring);
        return rc;
    }
    rc = uring_buffer_register(&thread->uring, 0, thread->arena.base, thread->arena.size, err);
    if (rc < 0) {
        uring_close(&thread->uring);
        arena_close(&thread->arena);
        return rc;
    }
    thread->arena.buf_index = 0;
    return 0;
}

static void thread_close_memory(struct thread *thread)
{
    uring_close(&thread->uring);
    arena_close(&thread->arena);
}

static int thread_open_port(struct thread *thread, struct err *err)
{
    const struct conf *conf = thread->conf;
    struct store_port_options options = {
        .uring = &thread->uring,
        .arena = &thread->arena,
        .staging_offset = 0,
        .staging_size = conf->node.staging_size, /* The arena's is rounded to its pages: 2 MiB and more. */
        .read_buffer_size = (uint32_t)conf->store.read_buffer_size,
        .write_unit = (uint32_t)conf->store.write_unit,
        .writes_per_put_max = conf->store.writes_per_upload_max,
    };
    options.puts_max = store_conf_puts_max(conf);
    int rc = store_port_open(thread->store, &options, &thread->port, err);
    if (rc == 0) {
        metrics_port_set(thread->metrics, thread->index, store_port_copied_bytes(thread->port));
    }
    return rc;
}

static void thread_close_port(struct thread *thread)
{
    metrics_port_set(thread->metrics, thread->index, NULL);
    store_port_close(thread->port);
}

/* What was asked for is not always what was granted; the kernel's own answer is said too. */
static void thread_rx_opened(const struct thread *thread, uint32_t index, const struct rx_options *options)
{
    const struct rx *rx = thread->rx[index];
    struct nic_queue reported = {.napi_id = 0};
    char pages[BYTES_SIZE_TEXT_MAX];
    struct err err = {""};
    if (rx->ops != &rx_zcrx_ops) {
        return;
    }
    peek_protect(thread->arena.base + options->area_offset, options->area_size);
    if (options->interface != NULL) {
        /* Kernels before 6.16 do not report sizes: 0. */
        (void)nic_queue_read(options->interface, options->queue, &reported, &err);
    }
    LOG_INF("zcrx_queue",
            "name=%s interface=%s queue=%u rx_buffer_size=%u reported=%u pool=%u buffers=%u "
            "pages=%s",
            thread->conf->listeners[index].name, options->interface != NULL ? options->interface : "none",
            options->queue, rx->info.buffer_size, reported.zcrx_buf_len, reported.pool_buf_len,
            rx->info.buffers_total, bytes_format_size(thread->arena.page_size, pages));
}

/* ---- sharing an interface --- */

static bool is_shared(const struct thread *thread, uint32_t a, uint32_t b)
{
    const struct receive_plan *one = &thread->plans[a];
    const struct receive_plan *other = &thread->plans[b];
    return one->ops == &rx_xdp_ops && other->ops == &rx_xdp_ops &&
           strcmp(one->interface, other->interface) == 0;
}

static void share_queue(struct rx_share *share, uint16_t queue)
{
    for (uint32_t i = 0; i < share->queue_count; i++) {
        if (share->queues[i] == queue) {
            return;
        }
    }
    if (share->queue_count < RX_QUEUES_MAX) {
        share->queues[share->queue_count++] = queue;
    }
}

/* The queues of all listeners, of which each worker takes every n-th. */
static void share_queues(const struct thread *thread, uint32_t index, struct rx_share *share)
{
    uint32_t workers = thread->conf->node.workers;
    struct rx_share all = {.queue_count = 0};
    bool is_every = true; /* of the interface, also those that it gets later */
    for (uint32_t i = 0; i < thread->conf->listener_count; i++) {
        is_every &= !is_shared(thread, index, i) || thread->conf->listeners[i].queues.count == 0;
        for (uint32_t k = 0; is_shared(thread, index, i) && k < thread->plans[i].queue_count; k++) {
            share_queue(&all, thread->plans[i].queues[k]);
        }
    }
    for (uint32_t i = thread->index; i < all.queue_count; i += workers) {
        share->queues[share->queue_count++] = all.queues[i];
    }
    share->queue_first = thread->index;
    share->queue_step = is_every ? workers : 0;
}

/* The listeners of an interface lie next to each other in the area (thread_open_listeners) and are opened one after the other. Those
 * that were given to another path have left the group. */
static void thread_share(const struct thread *thread, uint32_t index, const uint64_t *offsets,
                         struct rx_share *share)
{
    memset(share, 0, sizeof(*share));
    share->area_offset = UINT64_MAX;
    for (uint32_t i = 0; i < thread->conf->listener_count; i++) {
        const struct conf_listener *conf = &thread->conf->listeners[i];
        if (!is_shared(thread, index, i)) {
            continue;
        }
        share->listeners++;
        share->area_size += conf->rx_area_size;
        share->area_offset = offsets[i] < share->area_offset ? offsets[i] : share->area_offset;
        share->conns_max += conf->limits.connections_max;
        if (conf->limits.buffers_per_connection_max > share->conn_buffers_max) {
            share->conn_buffers_max = conf->limits.buffers_per_connection_max;
        }
        if (conf->busy_poll_ns > share->busy_poll_ns) {
            share->busy_poll_ns = conf->busy_poll_ns;
        }
    }
    share_queues(thread, index, share);
}

/* A listener may take the socket path instead as long as its part of the area is in no other's hands. */
static bool may_fall_back(const struct thread *thread, uint32_t index)
{
    bool is_first = true;
    for (uint32_t i = 0; i < index; i++) {
        is_first &= !is_shared(thread, index, i);
    }
    return thread->plans[index].may_fall_back && is_first;
}

static int thread_open_rx(struct thread *thread, uint32_t index, const uint64_t *offsets, struct err *err)
{
    const struct conf_listener *conf = &thread->conf->listeners[index];
    struct receive_plan *plan = &thread->plans[index];
    struct rx_share share;
    thread_share(thread, index, offsets, &share);
    struct rx_options options = {
        .name = conf->name,
        .address = conf->address.addr,
        .address_len = conf->address.len,
        .uring = &thread->uring,
        .arena = &thread->arena,
        .area_offset = offsets[index],
        .area_size = conf->rx_area_size,
        .buffer_size = (uint32_t)conf->rx_buffer_size,
        .conns_max = conf->limits.connections_max,
        .conn_buffers_max = conf->limits.buffers_per_connection_max,
        .worker_index = thread->index,
        .workers = thread->conf->node.workers,
        .keepalive_s = (uint32_t)(conf->limits.tcp_keepalive_ns / NS_PER_S),
        .user_timeout_ms = (uint32_t)(conf->limits.tcp_user_timeout_ns / NS_PER_MS),
        .interface = plan->has_device ? plan->interface : NULL,
        .queue = receive_queue(conf, plan, thread->index),
        .group = thread->groups[index],
        .share = plan->ops == &rx_xdp_ops ? &share : NULL,
    };
    struct tls_rx_options tls = {
        .context = thread->shared->tls[index],
        .handshake_timeout_ns = conf->limits.tls_handshake_timeout_ns,
        .port = thread->port,
        .cells = metrics_listener(thread->metrics, thread->index, index),
    };
    options.filter = tls.context == NULL ? NULL : &tls;
    int rc = rx_open(plan->ops, &options, &thread->rx[index], err);
    if (rc < 0 && may_fall_back(thread, index)) {
        LOG_WRN("receive_fallback", "name=%s worker=%u path=%s why=%s", conf->name, thread->index,
                rx_socket_ops.path, LOG_Q(err->text));
        metrics_plan_set(thread->metrics, index, rx_socket_ops.path, err->text);
        plan->ops = &rx_socket_ops;
        rc = rx_open(&rx_socket_ops, &options, &thread->rx[index], err);
    }
    if (rc == 0) {
        metrics_rx_set(thread->metrics, thread->index, index, thread->rx[index]);
        thread_rx_opened(thread, index, &options);
    }
    return rc;
}

static void thread_close_rx(struct thread *thread)
{
    for (uint32_t i = 0; i < thread->conf->listener_count; i++) {
        if (thread->rx[i] != NULL) {
            metrics_rx_set(thread->metrics, thread->index, i, NULL);
            rx_close(thread->rx[i]);
            thread->rx[i] = NULL;
        }
    }
}

static int thread_open_listeners(struct thread *thread, struct err *err)
{
    uint64_t offsets[CONF_LISTENERS_MAX] = {0};
    bool is_placed[CONF_LISTENERS_MAX] = {false};
    uint64_t offset = thread->arena.staging_size;
    for (uint32_t i = 0; i < thread->conf->listener_count; i++) {
        for (uint32_t k = i; k < thread->conf->listener_count; k++) {
            if (!is_placed[k] && (k == i || is_shared(thread, i, k))) {
                is_placed[k] = true;
                offsets[k] = offset;
                offset += thread->conf->listeners[k].rx_area_size;
            }
        }
    }
    for (uint32_t i = 0; i < thread->conf->listener_count; i++) {
        int rc = thread_open_rx(thread, i, offsets, err);
        if (rc < 0) {
            thread_close_rx(thread);
            return rc;
        }
    }
    return 0;
}

static int thread_open_worker(struct thread *thread, struct err *err)
{
    struct worker_options options = {
        .index = thread->index,
        .conf = thread->conf,
        .shared = thread->shared,
        .port = thread->port,
        .cells = metrics_worker(thread->metrics, thread->index),
        .wants_hash_thread = true,
        .now_ns = clock_monotonic_ns(),
    };
    for (uint32_t i = 0; i < thread->conf->listener_count; i++) {
        options.rx[i] = thread->rx[i];
        options.listener_cells[i] = metrics_listener(thread->metrics, thread->index, i);
    }
    if (getrandom(&options.random_seed, sizeof(options.random_seed), 0) != sizeof(options.random_seed)) {
        return err_set(err, -EIO, "getrandom gave no random bytes");
    }
    metrics_set(&options.cells->memory_bytes, thread->arena.size);
    for (uint32_t i = 0; i < thread->conf->listener_count; i++) {
        const struct conf_listener *conf = &thread->conf->listeners[i];
        if (conf->tls.certificate[0] != '\0') { /* Rings of ciphertext; OpenSSL takes the rest as it goes. */
            metrics_add(&options.cells->memory_bytes,
                        (uint64_t)conf->limits.connections_max * CONF_TLS_OUT_SIZE);
        }
    }
    int rc = worker_open(&thread->worker, &options, err);
    if (rc == 0) {
        thread->wakes[THREAD_WAKE_STORE].fd = store_port_event_fd(thread->port);
        thread->wakes[THREAD_WAKE_HASH].fd = hasher_event_fd(&thread->worker.hasher);
        thread->wakes[THREAD_WAKE_FILTER].fd = filter_event_fd(&thread->worker.filter);
        thread->wakes[THREAD_WAKE_MESSAGE].fd = thread->worker.messages.event_fd;
    }
    return rc;
}

/* ---- buckets of raw listeners --------------------------------------------------------------------------------- */

static int thread_request(struct thread *thread, struct store_request *request)
{
    struct store_event event;
    store_submit(thread->port, request);
    for (;;) { /* The store answers every request; nothing else is under way yet. */
        if (store_poll(thread->port, clock_monotonic_ns(), &event, 1) == 1) {
            if (event.kind == STORE_EVENT_REQUEST) {
                return event.request->status;
            }
            CHECK(event.kind == STORE_EVENT_LATE); /* Logged; the node is not ready before it is answered. */
        }
        thread_wakes_arm(thread);
        int rc = uring_submit_and_wait(&thread->uring, 100 * NS_PER_MS);
        if (rc < 0) {
            return rc;
        }
        (void)uring_reap(&thread->uring, THREAD_REAP); /* How many does not matter here. */
    }
}

/* The bucket of a raw listener exists from the start: its clients cannot create it. */
static int thread_open_buckets(struct thread *thread, struct err *err)
{
    static struct store_request request; /* Worker 0 only. */
    for (uint32_t i = 0; i < thread->conf->listener_count && thread->index == 0; i++) {
        const struct conf_listener *conf = &thread->conf->listeners[i];
        if (conf->protocol != CONF_PROTOCOL_RAW) {
            continue;
        }
        memset(&request, 0, sizeof(request));
        request.kind = STORE_BUCKET_CREATE;
        memcpy(request.bucket, conf->bucket, sizeof(request.bucket));
        int rc = thread_request(thread, &request);
        if (rc < 0 && rc != ERR_BUCKET_EXISTS) {
            return err_set(err, rc, "listener %s: creating bucket %s: %s", conf->name, conf->bucket,
                           err_text(rc));
        }
    }
    return 0;
}

static int thread_open(struct thread *thread, struct err *err)
{
    int rc = thread_open_memory(thread, err);
    if (rc < 0) {
        return rc;
    }
    rc = thread_open_port(thread, err);
    if (rc < 0) {
        goto close_memory;
    }
    thread->wakes[THREAD_WAKE_STORE].fd = store_port_event_fd(thread->port);
    rc = thread_open_buckets(thread, err);
    if (rc < 0) {
        goto close_port;
    }
    rc = thread_open_listeners(thread, err);
    if (rc < 0) {
        goto close_port;
    }
    rc = thread_open_worker(thread, err);
    if (rc < 0) {
        goto close_rx;
    }
    return 0;

close_rx:
    thread_close_rx(thread);
close_port:
    thread_close_port(thread);
close_memory:
    thread_close_memory(thread);
    return err_prefix(err, rc, "worker %u", thread->index);
}

static void thread_close(struct thread *thread)
{
    thread_close_rx(thread);
    worker_close(&thread->worker);
    thread_close_port(thread);
    thread_close_memory(thread);
}

/* ---- the loop ------------------------------------------------------------------------------------------------- */

/* In every turn, right before the wait, because what is not told now is not told until the worker wakes. What is queued counts as handed
 * to the ring: the wait submits it. */
static void thread_gauges(struct thread *thread)
{
    struct metrics_worker *cells = thread->worker.cells;
    metrics_set(&cells->ring_submitted, thread->uring.submitted + io_uring_sq_ready(&thread->uring.ring));
    metrics_set(&cells->ring_completed, thread->uring.completed);
    metrics_set(&cells->ring_overflows, thread->uring.cq_overflows);
}

static bool thread_is_done(const struct thread *thread)
{
    return thread->worker.is_draining && worker_is_idle(&thread->worker);
}

static void thread_loop(struct thread *thread)
{
    for (;;) {
        uint64_t now_ns = clock_monotonic_ns();
        worker_turn(&thread->worker, now_ns, clock_realtime_ns());
        if (thread_is_done(thread)) {
            return;
        }
        thread_wakes_arm(thread);
        uint64_t deadline_ns = worker_deadline(&thread->worker);
        uint64_t wait_ns = deadline_ns == TIME_NEVER ? TIME_NEVER
                           : deadline_ns > now_ns    ? deadline_ns - now_ns
                                                     : 0;
        gather_turn(&thread->gather, now_ns, thread->worker.gatherable);
        thread_gauges(thread);
        int rc = gather_wants(&thread->gather, wait_ns)
                     ? uring_submit_and_gather(&thread->uring, GATHER_COUNT, GATHER_NS)
                     : uring_submit_and_wait(&thread->uring, wait_ns);
        CHECK(rc == 0); /* The ring itself is broken: nothing can be promised any more. */
        if (uring_reap(&thread->uring, THREAD_REAP) == THREAD_REAP) {
            metrics_add(&thread->worker.cells->stage_full[METRICS_STAGE_REAP], 1);
        }
    }
}

static void thread_pin(const struct thread *thread)
{
    for (uint32_t i = 0; i < thread->conf->listener_count; i++) {
        const struct conf_numbers *cpus = &thread->conf->listeners[i].cpus;
        if (cpus->count == 0) {
            continue;
        }
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus->values[thread->index % cpus->count], &set);
        int rc = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
        if (rc != 0) {
            LOG_WRN("worker_not_pinned", "worker=%u cpu=%u error=%s", thread->index,
                    cpus->values[thread->index % cpus->count], LOG_Q(err_text(-rc)));
        }
        return;
    }
}

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    char name[16];
    (void)snprintf(name, sizeof(name), "worker-%u", thread->index); /* Cut at 15 bytes is fine. */
    (void)pthread_setname_np(pthread_self(), name);                 /* Only for people who look at top. */
    thread_pin(thread);
    thread->status = thread_open(thread, &thread->err);
    int rc = sem_post(&thread->ready);
    CHECK(rc == 0);
    if (thread->status == 0) {
        metrics_thread_begin(thread->metrics, thread->index);
        thread_loop(thread);
        thread_close(thread);
        metrics_thread_end(thread->metrics, thread->index);
    }
    atomic_store(&thread->is_ended, true);
    uint64_t one = 1;
    ssize_t written = write(thread->ended_fd, &one, sizeof(one));
    CHECK(written == sizeof(one));
    return NULL;
}

int thread_start(struct thread *thread, struct err *err)
{
    thread->drain.kind = WORKER_MESSAGE_DRAIN;
    thread->stop.kind = WORKER_MESSAGE_STOP;
    for (size_t i = 0; i < ARRAY_COUNT(thread->wakes); i++) {
        thread->wakes[i].fd = -1;
    }
    int rc = sem_init(&thread->ready, 0, 0);
    CHECK(rc == 0);
    rc = pthread_create(&thread->pthread, NULL, thread_main, thread);
    if (rc != 0) {
        return err_set(err, -rc, "worker %u: cannot start a thread: %s", thread->index, err_text(-rc));
    }
    return 0;
}

int thread_wait_ready(struct thread *thread)
{
    while (sem_wait(&thread->ready) != 0) {
        CHECK(errno == EINTR);
    }
    return thread->status;
}

void thread_drain(struct thread *thread)
{
    if (!thread->is_drain_posted && thread->status == 0) {
        thread->is_drain_posted = true;
        worker_post(&thread->worker, &thread->drain);
    }
}

void thread_stop(struct thread *thread)
{
    if (!thread->is_stop_posted && thread->status == 0) {
        thread->is_stop_posted = true;
        worker_post(&thread->worker, &thread->stop);
    }
}

void thread_join(struct thread *thread)
{
    int rc = pthread_join(thread->pthread, NULL);
    CHECK(rc == 0);
    if (thread->status == 0) {
        worker_messages_close(&thread->worker);
    }
    (void)sem_destroy(&thread->ready); /* Nobody waits on it any more. */
}
