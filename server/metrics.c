/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics: cells, registry and the process's own numbers. Rendering is metrics_text.c and metrics_page.c.
 *
 * Invariants:
 * 1. A cell has one writer (its worker); readers use relaxed loads, so a sum over workers may be a moment old, never torn.
 * 2. What is registered is read only under the lock, so that it may be closed once it was taken out.
 */
#include "server/metrics.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "server/metrics_int.h"

/* ---- counting ---------------------------------------------------------------------------------------------------------- */

void metrics_observe(struct store_histogram *histogram, uint64_t duration_ns)
{
    uint64_t us = duration_ns / NS_PER_US;
    uint32_t bucket = us < 2 ? 0 : 63U - (uint32_t)__builtin_clzll(us);
    bucket = bucket > 31 ? 31 : bucket;
    metrics_add(&histogram->buckets[bucket], 1);
    metrics_add(&histogram->sum_us, us);
    metrics_add(&histogram->count, 1);
}

static enum metrics_status status_of(int http_status)
{
    if (http_status >= 500) {
        return METRICS_5XX;
    }
    if (http_status >= 400) {
        return METRICS_4XX;
    }
    if (http_status >= 300) {
        return METRICS_3XX;
    }
    return http_status >= 200 ? METRICS_2XX : METRICS_LOST;
}

void metrics_request(struct metrics_listener *cells, uint32_t operation, int http_status)
{
    CHECK(operation < METRICS_OP_COUNT);
    metrics_add(&cells->requests[operation][status_of(http_status)], 1);
}

void metrics_request_late(struct metrics_listener *cells, uint32_t operation, int error_status)
{
    CHECK(operation < METRICS_OP_COUNT);
    CHECK(error_status >= 400);
    metrics_add(&cells->requests[operation][error_status >= 500 ? METRICS_LATE_5XX : METRICS_LATE_4XX], 1);
}

void metrics_copied_claim(struct metrics_listener *cells, const _Atomic uint64_t *port_copied, uint64_t *seen)
{
    for (uint32_t i = 0; i < STORE_COPY_REASONS; i++) {
        uint64_t now = atomic_load_explicit(&port_copied[i], memory_order_relaxed);
        metrics_add(&cells->copied_bytes[i], now - seen[i]);
        seen[i] = now;
    }
}

/* ---- the registry ------------------------------------------------------------------------------------------------------ */

/* Zeroed memory with the alignment of the cells, so that two workers never share a cache line. */
static void *cells_alloc(size_t count, size_t size)
{
    size_t bytes = bytes_round_up(count * size, 128);
    void *cells = aligned_alloc(128, bytes);
    if (cells != NULL) {
        memset(cells, 0, bytes);
    }
    return cells;
}

int metrics_open(const struct conf *conf, struct metrics **out)
{
    struct metrics *metrics = cells_alloc(1, sizeof(*metrics));
    if (metrics == NULL) {
        return -ENOMEM;
    }
    metrics->conf = conf;
    metrics->workers = conf->node.workers;
    metrics->listeners = conf->listener_count;
    size_t pairs = (size_t)metrics->workers * metrics->listeners;
    pthread_mutex_init(&metrics->lock, NULL);
    metrics->worker_cells = cells_alloc(metrics->workers, sizeof(*metrics->worker_cells));
    metrics->listener_cells = cells_alloc(pairs, sizeof(*metrics->listener_cells));
    metrics->rx = calloc(pairs, sizeof(*metrics->rx));
    metrics->ports = calloc(metrics->workers, sizeof(*metrics->ports));
    metrics->threads = calloc(metrics->workers, sizeof(*metrics->threads));
    metrics->plans = calloc(metrics->listeners, sizeof(*metrics->plans));
    if (metrics->worker_cells == NULL || metrics->listener_cells == NULL || metrics->rx == NULL ||
        metrics->ports == NULL || metrics->threads == NULL || metrics->plans == NULL) {
        metrics_close(metrics);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < metrics->listeners; i++) {
        metrics_plan_set(metrics, i, "none", "not opened yet");
    }
    metrics_set(&metrics->process.workers, metrics->workers);
    metrics_set(&metrics->process.start_time_ns, clock_realtime_ns());
    *out = metrics;
    return 0;
}

void metrics_close(struct metrics *metrics)
{
    if (metrics == NULL) {
        return;
    }
    pthread_mutex_destroy(&metrics->lock);
    free(metrics->worker_cells);
    free(metrics->listener_cells);
    free(metrics->rx);
    free(metrics->ports);
    free(metrics->threads);
    free(metrics->plans);
    free(metrics);
}

struct metrics_worker *metrics_worker(struct metrics *metrics, uint32_t worker)
{
    CHECK(worker < metrics->workers);
    return &metrics->worker_cells[worker];
}

struct metrics_listener *metrics_listener(struct metrics *metrics, uint32_t worker, uint32_t listener)
{
    CHECK(worker < metrics->workers);
    CHECK(listener < metrics->listeners);
    return &metrics->listener_cells[(size_t)worker * metrics->listeners + listener];
}

struct metrics_process *metrics_process(struct metrics *metrics)
{
    return &metrics->process;
}

/* Both are arrays of counters. */
static void cells_copy(void *to, const void *from, size_t size)
{
    _Atomic uint64_t *out = to;
    const _Atomic uint64_t *in = from;
    for (size_t i = 0; i < size / sizeof(*out); i++) {
        metrics_set(&out[i], atomic_load_explicit(&in[i], memory_order_relaxed));
    }
}

void metrics_rx_set(struct metrics *metrics, uint32_t worker, uint32_t listener, struct rx *rx)
{
    CHECK(worker < metrics->workers);
    CHECK(listener < metrics->listeners);
    pthread_mutex_lock(&metrics->lock);
    struct metrics_rx *entry = &metrics->rx[(size_t)worker * metrics->listeners + listener];
    if (rx == NULL && entry->rx != NULL) {
        cells_copy(&entry->last, &entry->rx->stats, sizeof(entry->last));
        if (entry->rx->xdp != NULL) {
            cells_copy(&entry->last_xdp, entry->rx->xdp, sizeof(entry->last_xdp));
            memset(&entry->last_xdp.states, 0, sizeof(entry->last_xdp.states));
        }
        metrics_set(&entry->last.conns_open, 0);
        metrics_set(&entry->last.buffers_free, 0);
    }
    entry->rx = rx;
    if (rx != NULL) {
        entry->info = rx->info;
        entry->has_xdp = rx->xdp != NULL;
    }
    pthread_mutex_unlock(&metrics->lock);
}
_Static_assert(sizeof(struct rx_stats) % sizeof(uint64_t) == 0, "rx_stats is an array of counters");

_Static_assert(sizeof(struct rx_xdp_stats) % sizeof(uint64_t) == 0, "rx_xdp_stats is an array of counters");

const struct rx_xdp_stats *metrics_rx_xdp(const struct metrics_rx *rx)
{
    if (!rx->has_xdp) {
        return NULL;
    }
    return rx->rx != NULL ? rx->rx->xdp : &rx->last_xdp;
}

const struct rx_stats *metrics_rx_stats(const struct metrics_rx *rx)
{
    return rx->rx != NULL ? &rx->rx->stats : &rx->last;
}

void metrics_port_set(struct metrics *metrics, uint32_t worker, const _Atomic uint64_t *copied)
{
    CHECK(worker < metrics->workers);
    pthread_mutex_lock(&metrics->lock);
    metrics->ports[worker] = copied;
    pthread_mutex_unlock(&metrics->lock);
}

void metrics_thread_begin(struct metrics *metrics, uint32_t worker)
{
    CHECK(worker < metrics->workers);
    pthread_mutex_lock(&metrics->lock);
    metrics->threads[worker] = (struct metrics_thread){.is_alive = true, .cpu_clock = clock_thread_cpu()};
    pthread_mutex_unlock(&metrics->lock);
}

void metrics_thread_end(struct metrics *metrics, uint32_t worker)
{
    struct metrics_thread *thread = &metrics->threads[worker];
    pthread_mutex_lock(&metrics->lock);
    metrics_set(&metrics->worker_cells[worker].cpu_ns, clock_cpu_ns(thread->cpu_clock));
    thread->is_alive = false;
    pthread_mutex_unlock(&metrics->lock);
}

void metrics_store_set(struct metrics *metrics, struct store *store)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->store = store;
    pthread_mutex_unlock(&metrics->lock);
}

void metrics_plan_set(struct metrics *metrics, uint32_t listener, const char *path, const char *why)
{
    CHECK(listener < metrics->listeners);
    pthread_mutex_lock(&metrics->lock);
    snprintf(metrics->plans[listener].path, sizeof(metrics->plans[listener].path), "%s", path);
    snprintf(metrics->plans[listener].why, sizeof(metrics->plans[listener].why), "%s", why);
    pthread_mutex_unlock(&metrics->lock);
}

/* ---- the process ------------------------------------------------------------------------------------------------------- */

static uint64_t resident_read(void)
{
    unsigned long total = 0;
    unsigned long resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) {
        return 0;
    }
    if (fscanf(file, "%lu %lu", &total, &resident) != 2) {
        resident = 0;
    }
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t open_fds_count(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint64_t count = 0;
    if (dir == NULL) {
        return 0;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        count += entry->d_name[0] != '.';
    }
    closedir(dir);
    return count - 1; /* less the directory's own */
}

static uint64_t timeval_ns(struct timeval time)
{
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_usec * NS_PER_US;
}

static void worker_refresh(struct metrics *metrics, uint32_t worker)
{
    struct metrics_worker *cells = &metrics->worker_cells[worker];
    const struct metrics_thread *thread = &metrics->threads[worker];
    uint64_t handed = 0;
    for (uint32_t i = 0; i < metrics->listeners; i++) {
        const struct metrics_rx *rx = &metrics->rx[(size_t)worker * metrics->listeners + i];
        handed += atomic_load_explicit(&metrics_rx_stats(rx)->conns_handed, memory_order_relaxed);
    }
    metrics_set(&cells->accept_moved, handed);
    if (thread->is_alive) {
        metrics_set(&cells->cpu_ns, clock_cpu_ns(thread->cpu_clock));
    }
}

void metrics_refresh(struct metrics *metrics)
{
    struct rusage usage;
    struct rlimit limit;
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        metrics_set(&metrics->process.cpu_ns, timeval_ns(usage.ru_utime) + timeval_ns(usage.ru_stime));
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        metrics_set(&metrics->process.max_fds, limit.rlim_cur);
    }
    metrics_set(&metrics->process.resident_bytes, resident_read());
    metrics_set(&metrics->process.open_fds, open_fds_count());
    for (uint32_t i = 0; i < metrics->workers; i++) {
        worker_refresh(metrics, i);
    }
}
