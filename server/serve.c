/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve: the process from start to exit.
 *
 *   plan (receive paths, credentials) -> store -> workers -> admin -> RUNNING
 *   RUNNING --SIGTERM, SIGINT, POST /drain--> DRAINING --all workers done--> closed, exit 0
 *   DRAINING --drain_timeout--> STOPPING (connections are reset) --all workers done--> closed, exit 0
 *   any --second SIGTERM or SIGINT--> exit at once
 *
 * It must not touch the data path: it waits for signals and for workers to end.
 */
#include "server/serve.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "nic/nic_watch.h"
#include "server/hearing.h"
#include "server/admin.h"
#include "server/auth_keys.h"
#include "server/metrics.h"
#include "server/notify.h"
#include "server/preflight.h"
#include "server/receive.h"
#include "server/store_conf.h"
#include "server/thread.h"
#include "server/tls.h"

/* After STOP every connection is reset at once; what then still waits is a device that does not answer. */
#define SERVE_STOP_TIMEOUT_NS (10 * NS_PER_S)
#define SERVE_STUCK_TIMEOUT_NS (1 * NS_PER_S) /* when one is known not to: for the resets to go out */
/* timeout(1) signals a process and then its group: one wish, and it arrives as two signals. */
#define SERVE_SAME_SIGNAL_NS (500 * NS_PER_MS)
#define SERVE_WATCH_NS (2 * NS_PER_S) /* between two questions to the listeners' drivers */

enum serve_state { SERVE_STARTING, SERVE_RUNNING, SERVE_DRAINING, SERVE_STOPPING };

struct serve {
    const struct conf *conf;
    struct metrics *metrics;
    struct store *store;
    struct thread *threads;
    struct admin *admin;
    struct worker_shared shared;
    _Atomic int state;
    int signal_fd;
    int drain_fd;  /* eventfd: POST /drain */
    int ended_fd;  /* eventfd: a worker has ended */
    int closed_fd; /* eventfd: everything is closed */
    uint32_t threads_started;
    uint64_t deadline_ns;
    uint64_t keys_generation;
    struct receive_plan plans[CONF_LISTENERS_MAX];
    struct rx_group *groups[CONF_LISTENERS_MAX]; /* zcrx on several queues */
    bool is_nic_changed[CONF_LISTENERS_MAX];
    struct nic_watch watch;
    uint64_t watch_ask_ns; /* when the drivers are asked next */
    uint64_t watch_renewals;
    bool is_told_to_end;                    /* while it was starting */
    bool is_told_to_reload;                 /* likewise: credentials may have been read before */
    uint64_t drain_ns;                      /* when draining began */
    uint32_t nic_index[CONF_LISTENERS_MAX]; /* of the listener's interface, when it was opened */
};

/* ---- hooks of the admin thread -------------------------------------------------------------------------------- */

/* On the admin's thread, which alone has these cells. A worker's plan says what a listener got in the end. */
static int serve_hears(struct serve *serve, struct err *why)
{
    struct hearing all[CONF_LISTENERS_MAX];
    for (uint32_t i = 0; i < serve->conf->listener_count; i++) {
        hearing_look(serve->conf->listeners[i].name, &serve->threads[0].plans[i], serve->nic_index[i],
                     &all[i]);
        metrics_set(&metrics_listener(serve->metrics, 0, i)->deaf, all[i].state == HEARING_OK ? 0 : 1);
    }
    return hearing_judge(all, serve->conf->listener_count, why);
}

static bool serve_any_ended(const struct serve *serve)
{
    for (uint32_t i = 0; i < serve->threads_started; i++) {
        if (atomic_load(&serve->threads[i].is_ended)) {
            return true;
        }
    }
    return false;
}

static int serve_ready(void *ctx, struct err *why)
{
    struct serve *serve = ctx;
    struct err deaf = {{0}};
    /* Also while draining, for the metric; but who has ended is deaf by intent. */
    int heard = serve_any_ended(serve) ? 0 : serve_hears(serve, &deaf);
    int state = atomic_load(&serve->state);
    if (state != SERVE_RUNNING) {
        return err_set(why, -EAGAIN, state == SERVE_STARTING ? "starting" : "draining");
    }
    int rc = store_health(serve->store, why);
    if (rc == 0) {
        *why = deaf; /* Also when some hear: who does not is said. */
    }
    return rc == 0 ? heard : rc;
}

static int serve_healthy(void *ctx, struct err *why)
{
    struct serve *serve = ctx;
    for (uint32_t i = 0; i < serve->threads_started; i++) {
        bool is_ended = atomic_load(&serve->threads[i].is_ended);
        if (is_ended && atomic_load(&serve->state) == SERVE_RUNNING) {
            return err_set(why, -EIO, "worker %u has ended", i);
        }
    }
    return 0;
}

static void serve_drain_hook(void *ctx)
{
    struct serve *serve = ctx;
    uint64_t one = 1;
    ssize_t rc = write(serve->drain_fd, &one, sizeof(one));
    CHECK(rc == sizeof(one) || errno == EAGAIN);
}

/* ---- signals -------------------------------------------------------------------------------------------------- */

static int serve_open_signals(struct serve *serve, struct err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    /* Blocked before any thread exists, so that every thread inherits it and only signalfd sees them. */
    int rc = pthread_sigmask(SIG_BLOCK, &set, NULL);
    CHECK(rc == 0);
    CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    serve->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    serve->drain_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    serve->ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    serve->closed_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (serve->signal_fd < 0 || serve->drain_fd < 0 || serve->ended_fd < 0 || serve->closed_fd < 0) {
        return err_set(err, -errno, "signalfd or eventfd: %s; raise RLIMIT_NOFILE", strerror(errno));
    }
    return 0;
}

static void serve_close_signals(struct serve *serve)
{
    int fds[] = {serve->signal_fd, serve->drain_fd, serve->ended_fd, serve->closed_fd};
    for (size_t i = 0; i < ARRAY_COUNT(fds); i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
}

/* ---- credentials ---------------------------------------------------------------------------------------------- */

/* Waits until every worker has begun a turn after this call: what was replaced before is not used any more. */
static void serve_sync(struct serve *serve)
{
    if (atomic_load(&serve->state) != SERVE_RUNNING) {
        return; /* At the start nobody reads yet. */
    }
    struct worker_message messages[CONF_WORKERS_MAX];
    sem_t done;
    int rc = sem_init(&done, 0, 0);
    CHECK(rc == 0);
    for (uint32_t i = 0; i < serve->threads_started; i++) {
        messages[i] = (struct worker_message){.kind = WORKER_MESSAGE_SYNC, .done = &done};
        worker_post(&serve->threads[i].worker, &messages[i]);
    }
    for (uint32_t i = 0; i < serve->threads_started; i++) {
        while (sem_wait(&done) != 0) {
            CHECK(errno == EINTR);
        }
    }
    (void)sem_destroy(&done); /* Every post has returned: it was the worker's last use of it. */
}

static int serve_keys_load(struct serve *serve, uint32_t index, struct err *err)
{
    const struct conf_listener *conf = &serve->conf->listeners[index];
    struct auth_keys *keys = NULL;
    if (conf->access == CONF_ACCESS_ANONYMOUS || conf->credentials[0] == '\0') {
        return 0;
    }
    int rc = auth_keys_load(&keys, conf->credentials, ++serve->keys_generation, err);
    if (rc < 0) {
        return err_prefix(err, rc, "listener %s: credentials", conf->name);
    }
    struct auth_keys *old = atomic_exchange(&serve->shared.keys[index], keys);
    serve_sync(serve);
    auth_keys_free(old);
    LOG_INF("credentials_loaded", "listener=%s file=%s keys=%zu", conf->name, LOG_Q(conf->credentials),
            auth_keys_count(keys));
    return 0;
}

/* ---- certificates --------------------------------------------------------------------------------------------- */

/* Opens a listener's context, or reads its files again. On failure the old certificate stays in use. */
static int serve_tls_load(struct serve *serve, uint32_t index, struct err *err)
{
    const struct conf_listener *conf = &serve->conf->listeners[index];
    struct tls_context **context = &serve->shared.tls[index];
    struct tls_certificate about;
    if (conf->tls.certificate[0] == '\0') {
        return 0;
    }
    int rc = *context == NULL ? tls_context_open(conf, context, &about, err)
                              : tls_context_reload(*context, &about, err);
    if (rc < 0) {
        return err_prefix(err, rc, "listener %s: tls", conf->name);
    }
    LOG_INF("certificate_loaded", "listener=%s file=%s subject=%s not_after=%s days_left=%d", conf->name,
            LOG_Q(conf->tls.certificate), LOG_Q(about.subject), about.not_after, about.days_left);
    if (about.days_left < TLS_EXPIRY_WARN_DAYS) {
        LOG_WRN("certificate_expires", "listener=%s days_left=%d remedy=%s", conf->name, about.days_left,
                LOG_Q("renew it and send SIGHUP"));
    }
    return 0;
}

static void serve_reload(struct serve *serve)
{
    for (uint32_t i = 0; i < serve->conf->listener_count; i++) {
        struct err err = {{0}};
        if (serve_keys_load(serve, i, &err) < 0) {
            LOG_ERR("reload_failed", "kept=previous error=%s", LOG_Q(err.text));
        }
        if (serve_tls_load(serve, i, &err) < 0) {
            LOG_ERR("reload_failed", "kept=previous error=%s", LOG_Q(err.text));
        }
    }
}

/* ---- start ---------------------------------------------------------------------------------------------------- */

static int serve_open_store(struct serve *serve, struct err *err)
{
    int rc = store_conf_missing(serve->conf, false, err);
    if (rc != 0) {
        return rc;
    }
    struct store_options *options = calloc(1, sizeof(*options));
    if (options == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    store_conf_options(serve->conf, options);
    rc = store_open(options, &serve->store, err);
    free(options);
    if (rc == 0) {
        metrics_store_set(serve->metrics, serve->store);
    }
    return rc;
}

/* Who chose a path that brings payload where the NIC put it should know that a device wants it elsewhere. */
static void serve_log_device_copies(const struct serve *serve, const struct store_device_info *info)
{
    for (uint32_t i = 0; i < serve->conf->listener_count && !info->packets_ok; i++) {
        if (serve->plans[i].ops == &rx_xdp_ops || serve->plans[i].ops == &rx_zcrx_ops) {
            LOG_WRN("device_copies", "path=%s dma_alignment=%u listener=%s note=%s", LOG_Q(info->path),
                    info->dma_alignment, serve->conf->listeners[i].name,
                    LOG_Q("the device takes no payload as packets bring it (memory aligned to 4): it is "
                          "copied once on the way to it"));
            return;
        }
    }
}

static void serve_log_devices(struct serve *serve)
{
    static struct store_device_info info; /* 5 KiB; only this thread logs devices. */
    for (uint32_t i = 0; i < store_device_count(serve->store); i++) {
        char size[BYTES_SIZE_TEXT_MAX];
        store_device_info(serve->store, i, &info);
        LOG_INF("device",
                "path=%s size=%s used=%llu lba=%u dma_alignment=%u direct=%d fragments=%d packets=%d note=%s",
                LOG_Q(info.path), bytes_format_size(info.size, size), (unsigned long long)info.used,
                info.lba_size, info.dma_alignment, info.direct, info.fragments_ok, info.packets_ok,
                LOG_Q(info.note));
        serve_log_device_copies(serve, &info);
    }
}

/* The plan as it takes effect, defaults filled in: what to look at first when a node does not do what its file seems to say. */
static void serve_log_node(const struct conf *conf)
{
    char staging[BYTES_SIZE_TEXT_MAX];
    char registered[BYTES_SIZE_TEXT_MAX];
    LOG_INF("node_plan",
            "config=%s version=%s data_dir=%s workers=%u staging_size=%s registered_per_worker=%s devices=%u "
            "drain_timeout_s=%llu",
            LOG_Q(conf->path), PENSTOCK_VERSION, LOG_Q(conf->node.data_dir), conf->node.workers,
            bytes_format_size(conf->node.staging_size, staging),
            bytes_format_size(conf_memory_registered(conf), registered), conf->store.device_count,
            (unsigned long long)(conf->node.drain_timeout_ns / NS_PER_S));
}

static void serve_log_listener(const struct conf_listener *conf, const struct receive_plan *plan)
{
    char buffer[BYTES_SIZE_TEXT_MAX];
    char area[BYTES_SIZE_TEXT_MAX];
    LOG_INF("listener_plan",
            "name=%s protocol=%s address=%s path=%s rx_buffer_size=%s rx_area_size=%s hugepages=%s "
            "connections_max=%u uploads_max=%u tls=%s access=%s etag=%s manage_nic=%s why=%s",
            conf->name, conf_protocol_text(conf->protocol), conf->address.text, plan->ops->path,
            conf->rx_buffer_size == 0 ? "default" : bytes_format_size(conf->rx_buffer_size, buffer),
            bytes_format_size(conf->rx_area_size, area), conf_hugepages_text(conf->hugepages),
            conf->limits.connections_max, conf->limits.uploads_max,
            conf->tls.certificate[0] == '\0' ? "no" : "1.2-1.3", conf_access_text(conf->access),
            conf_etag_text(conf->etag), conf->manage_nic ? "true" : "false", LOG_Q(plan->why));
}

static int serve_plan(struct serve *serve, struct err *err)
{
    serve_log_node(serve->conf);
    for (uint32_t i = 0; i < serve->conf->listener_count; i++) {
        const struct conf_listener *conf = &serve->conf->listeners[i];
        struct receive_plan *plan = &serve->plans[i];
        int rc = receive_choose(serve->conf, i, plan, err);
        if (rc == 0) {
            rc = serve_keys_load(serve, i, err);
        }
        if (rc == 0) {
            rc = serve_tls_load(serve, i, err);
        }
        if (rc < 0) {
            return rc;
        }
        for (uint32_t worker = 0; worker < serve->conf->node.workers; worker++) {
            serve->threads[worker].plans[i] = *plan;
        }
        metrics_plan_set(serve->metrics, i, plan->ops->path, plan->why);
        serve_log_listener(conf, plan);
    }
    return 0;
}

/* Prepares the NICs that are ours to prepare. What a crashed run left behind is put back first, whoever wants what now. */
static int serve_prepare_nics(struct serve *serve, struct err *err)
{
    int rc = 0;
    if (nic_undo_all(serve->conf->node.data_dir, NIC_UNDO_NODE, err) < 0) {
        /* It stays in the journal, to be tried again. What the listeners need of the NIC is looked at as it is. */
        LOG_ERR("nic_undo_failed", "error=%s", LOG_Q(err->text));
    }
    for (uint32_t i = 0; rc == 0 && i < serve->conf->listener_count; i++) {
        struct receive_plan *plan = &serve->plans[i];
        if (!plan->needs_nic) {
            continue;
        }
        rc = receive_prepare(serve->conf, i, plan, err);
        serve->is_nic_changed[i] = rc == 0;
        if (rc < 0 && plan->ops != &rx_zcrx_ops && plan->ops != &rx_xdp_ops) {
            LOG_WRN("rx_buf_len_refused", "name=%s action=%s error=%s", serve->conf->listeners[i].name,
                    LOG_Q("receives into the driver's own buffers"), LOG_Q(err->text));
            metrics_plan_set(serve->metrics, i, plan->ops->path, err->text);
            rc = 0;
        } else if (rc < 0 && plan->may_fall_back) {
            LOG_WRN("receive_fallback", "name=%s path=%s why=%s", serve->conf->listeners[i].name,
                    rx_socket_ops.path, LOG_Q(err->text));
            metrics_plan_set(serve->metrics, i, rx_socket_ops.path, err->text);
            memset(plan, 0, sizeof(*plan));
            plan->ops = &rx_socket_ops;
            rc = 0;
        }
        for (uint32_t worker = 0; worker < serve->conf->node.workers; worker++) {
            serve->threads[worker].plans[i] = *plan;
        }
    }
    return rc;
}

static void serve_restore_nics(const struct serve *serve)
{
    for (uint32_t i = 0; i < CONF_LISTENERS_MAX; i++) {
        if (serve->is_nic_changed[i]) {
            receive_restore(serve->conf, &serve->plans[i]);
        }
    }
}

static int serve_open_groups(struct serve *serve, struct err *err)
{
    for (uint32_t i = 0; i < serve->conf->listener_count; i++) {
        int rc = receive_group_open(serve->conf, i, &serve->plans[i], &serve->groups[i], err);
        if (rc < 0) {
            return rc;
        }
        for (uint32_t worker = 0; worker < serve->conf->node.workers; worker++) {
            serve->threads[worker].groups[i] = serve->groups[i];
        }
    }
    return 0;
}

static void serve_start_groups(struct serve *serve)
{
    for (uint32_t i = 0; i < serve->conf->listener_count; i++) {
        if (serve->groups[i] != NULL) {
            receive_group_start(serve->conf, i, &serve->plans[i], serve->groups[i]);
        }
    }
}

/* From when the queues are registered: what the node itself does to a NIC is no news. */
static int serve_watch_nics(struct serve *serve, struct err *err)
{
    for (uint32_t i = 0; i < serve->conf->listener_count; i++) {
        const struct receive_plan *plan = &serve->plans[i];
        serve->nic_index[i] = plan->has_device ? if_nametoindex(plan->interface) : 0;
        if (plan->has_device && !nic_watch_add(&serve->watch, plan->interface)) {
            LOG_WRN("nic_not_watched", "interface=%s", plan->interface);
        }
    }
    return nic_watch_open(&serve->watch, err);
}

/* Accepted connections are dispatched by NAPI instance, and a NIC that was reset may have given its queues others. */
static void serve_look_at_queues(struct serve *serve, uint64_t now_ns)
{
    bool is_suspect = serve->watch.renewals != serve->watch_renewals;
    serve->watch_renewals = serve->watch.renewals;
    for (uint32_t i = 0; i < serve->conf->listener_count; i++) {
        struct rx_group *group = serve->groups[i];
        if (group != NULL && rx_group_napis_are_due(group, now_ns, is_suspect) &&
            receive_group_look(serve->conf, i, &serve->plans[i], group)) {
            metrics_add(&metrics_process(serve->metrics)->nic_napi_changes, 1);
            LOG_INF("zcrx_napi_changed", "name=%s interface=%s", serve->conf->listeners[i].name,
                    serve->plans[i].interface);
        }
    }
}

static void serve_watched(struct serve *serve)
{
    struct metrics_process *cells = metrics_process(serve->metrics);
    nic_watch_read(&serve->watch);
    uint64_t now_ns = clock_monotonic_ns();
    serve_look_at_queues(serve, now_ns);
    if (now_ns >= serve->watch_ask_ns) {
        serve->watch_ask_ns = now_ns + SERVE_WATCH_NS;
        nic_watch_ask(&serve->watch);
    }
    metrics_set(&cells->nic_no_buffers, serve->watch.no_buffers);
    metrics_set(&cells->nic_downs, serve->watch.downs);
    metrics_set(&cells->nic_removals, serve->watch.removals);
    metrics_set(&cells->nic_queue_restarts, serve->watch.queue_restarts);
}

/* Between two steps of the start: -EINTR when a signal has told us to end. What a step blocks for, it blocks for. */
static int serve_go_on(struct serve *serve, struct err *err)
{
    struct signalfd_siginfo info;
    while (read(serve->signal_fd, &info, sizeof(info)) == sizeof(info)) { /* Bounded by pending signals. */
        serve->is_told_to_end |= info.ssi_signo != SIGHUP;
        serve->is_told_to_reload |= info.ssi_signo == SIGHUP;
    }
    return serve->is_told_to_end ? err_set(err, -EINTR, "told to end while starting") : 0;
}

static int serve_start_threads(struct serve *serve, struct err *err)
{
    for (uint32_t i = 0; i < serve->conf->node.workers; i++) {
        struct thread *thread = &serve->threads[i];
        thread->index = i;
        thread->conf = serve->conf;
        thread->shared = &serve->shared;
        thread->store = serve->store;
        thread->metrics = serve->metrics;
        thread->ended_fd = serve->ended_fd;
        int rc = serve_go_on(serve, err);
        rc = rc == 0 ? thread_start(thread, err) : rc;
        if (rc < 0) {
            return rc;
        }
        serve->threads_started++;
        /* One after the other: worker 0 creates the buckets of raw listeners before anybody accepts. */
        rc = thread_wait_ready(thread);
        if (rc < 0) {
            return err_set(err, rc, "%s", thread->err.text);
        }
    }
    serve_start_groups(serve);
    return 0;
}

static int serve_open(struct serve *serve, struct err *err)
{
    int rc = serve_open_signals(serve, err);
    if (rc < 0) {
        return rc;
    }
    serve->threads = calloc(serve->conf->node.workers, sizeof(*serve->threads));
    rc = metrics_open(serve->conf, &serve->metrics);
    if (rc < 0 || serve->threads == NULL) {
        return err_set(err, -ENOMEM, "out of memory for %u workers", serve->conf->node.workers);
    }
    rc = serve_plan(serve, err);
    rc = rc == 0 ? serve_go_on(serve, err) : rc;
    if (rc == 0) {
        rc = serve_open_store(serve, err);
    }
    if (rc < 0) {
        return rc;
    }
    serve_log_devices(serve);
    rc = serve_go_on(serve, err);
    if (rc == 0) {
        rc = serve_prepare_nics(serve, err);
    }
    if (rc == 0) {
        rc = serve_open_groups(serve, err);
    }
    if (rc == 0) {
        rc = serve_start_threads(serve, err);
    }
    if (rc == 0) {
        rc = serve_watch_nics(serve, err);
    }
    if (rc < 0) {
        return rc;
    }
    const struct admin_hooks hooks = {
        .ctx = serve, .ready = serve_ready, .healthy = serve_healthy, .drain = serve_drain_hook};
    return admin_open(serve->conf, serve->metrics, &hooks, &serve->admin, err);
}

/* ---- the end -------------------------------------------------------------------------------------------------- */

static bool serve_all_ended(const struct serve *serve)
{
    for (uint32_t i = 0; i < serve->threads_started; i++) {
        if (!atomic_load(&serve->threads[i].is_ended)) {
            return false;
        }
    }
    return true;
}

static void serve_drain(struct serve *serve)
{
    if (atomic_load(&serve->state) != SERVE_RUNNING) {
        return;
    }
    atomic_store(&serve->state, SERVE_DRAINING);
    serve->drain_ns = clock_monotonic_ns();
    serve->deadline_ns = serve->drain_ns + serve->conf->node.drain_timeout_ns;
    LOG_INF("draining", "timeout_s=%llu",
            (unsigned long long)(serve->conf->node.drain_timeout_ns / NS_PER_S));
    notify_send("STOPPING=1");
    metrics_set(&metrics_process(serve->metrics)->draining, 1);
    for (uint32_t i = 0; i < serve->threads_started; i++) {
        thread_drain(&serve->threads[i]);
    }
}

/* A device or the index is past a deadline: what waits for it will hardly come within the next seconds. */
static uint64_t serve_stop_timeout_ns(const struct serve *serve)
{
    static struct store_device_info info; /* 5 KiB; only this thread ends the node. */
    if (store_index_is_late(serve->store)) {
        return SERVE_STUCK_TIMEOUT_NS;
    }
    for (uint32_t i = 0; i < store_device_count(serve->store); i++) {
        store_device_info(serve->store, i, &info);
        if (info.state == STORE_DEVICE_SUSPECT) {
            return SERVE_STUCK_TIMEOUT_NS;
        }
    }
    return SERVE_STOP_TIMEOUT_NS;
}

/* Nothing that was acknowledged needs an orderly end, so a device that hangs must not keep the process. (What it has in the kernel's
 * hands may keep the process's entry until the device answers; nobody can change that.) */
static void serve_leave(void)
{
    LOG_ERR("stop_timeout", "why=%s", LOG_Q("a device or the index does not answer; exiting without it"));
    _exit(1);
}

static void serve_stop(struct serve *serve)
{
    if (atomic_load(&serve->state) == SERVE_STOPPING) {
        serve_leave();
    }
    LOG_WRN("drain_timeout", "action=%s", LOG_Q("resetting what is left"));
    atomic_store(&serve->state, SERVE_STOPPING);
    serve->deadline_ns = clock_monotonic_ns() + serve_stop_timeout_ns(serve);
    for (uint32_t i = 0; i < serve->threads_started; i++) {
        thread_stop(&serve->threads[i]);
    }
}

static void serve_signal(struct serve *serve)
{
    struct signalfd_siginfo info;
    while (read(serve->signal_fd, &info, sizeof(info)) == sizeof(info)) { /* Bounded by pending signals. */
        if (info.ssi_signo == SIGHUP && atomic_load(&serve->state) == SERVE_RUNNING) {
            serve_reload(serve);
        } else if (info.ssi_signo == SIGHUP) {
            LOG_WRN("reload_ignored", "why=%s", LOG_Q("the node is ending"));
        } else if (serve->drain_ns != 0 && clock_monotonic_ns() - serve->drain_ns < SERVE_SAME_SIGNAL_NS) {
            LOG_INF("signal_again", "action=%s", LOG_Q("none: so soon it is taken for the same one"));
        } else if (atomic_load(&serve->state) != SERVE_RUNNING) {
            LOG_WRN("second_signal", "action=%s", LOG_Q("exiting at once"));
            _exit(1);
        } else {
            serve_drain(serve);
        }
    }
}

static int serve_wait_ms(const struct serve *serve)
{
    int state = atomic_load(&serve->state);
    if (state != SERVE_DRAINING && state != SERVE_STOPPING) {
        return serve->watch.fd >= 0 ? (int)(SERVE_WATCH_NS / NS_PER_MS) : -1;
    }
    uint64_t now_ns = clock_monotonic_ns();
    return now_ns >= serve->deadline_ns ? 0 : (int)((serve->deadline_ns - now_ns) / NS_PER_MS) + 1;
}

static void serve_wait(struct serve *serve)
{
    struct pollfd fds[] = {{.fd = serve->signal_fd, .events = POLLIN},
                           {.fd = serve->drain_fd, .events = POLLIN},
                           {.fd = serve->ended_fd, .events = POLLIN},
                           {.fd = serve->watch.fd, .events = POLLIN}, /* -1: poll skips it */
                           {.fd = serve->watch.page_pool_fd, .events = POLLIN}};
    while (!serve_all_ended(serve)) {
        int wait_ms = serve_wait_ms(serve);
        if (wait_ms == 0) {
            serve_stop(serve);
            continue;
        }
        int rc = poll(fds, ARRAY_COUNT(fds), wait_ms);
        CHECK(rc >= 0 || errno == EINTR);
        uint64_t count;
        if (rc > 0 && fds[1].revents != 0 && read(serve->drain_fd, &count, sizeof(count)) > 0) {
            serve_drain(serve);
        }
        if (rc > 0 && fds[2].revents != 0) {
            ssize_t got = read(serve->ended_fd, &count, sizeof(count));
            CHECK(got > 0 || errno == EAGAIN);
        }
        if (rc > 0 && fds[0].revents != 0) {
            serve_signal(serve);
        }
        if (serve->watch.fd >= 0) {
            serve_watched(serve);
        }
    }
}

/* Ends the process when closing takes too long (the committer waits for a flush), or when told to by a second signal. */
static void *serve_closing_main(void *argument)
{
    struct serve *serve = argument;
    struct pollfd fds[] = {{.fd = serve->closed_fd, .events = POLLIN},
                           {.fd = serve->signal_fd, .events = POLLIN}};
    for (;;) {
        int wait_ms = serve_wait_ms(serve);
        if (wait_ms == 0) {
            serve_leave();
        }
        int rc = poll(fds, ARRAY_COUNT(fds), wait_ms);
        CHECK(rc >= 0 || errno == EINTR);
        if (rc > 0 && fds[0].revents != 0) {
            return NULL;
        }
        if (rc > 0) {
            serve_signal(serve);
        }
    }
}

static void serve_close(struct serve *serve)
{
    admin_close(serve->admin);
    /* After a failed start some workers run: they have nothing to finish. */
    for (uint32_t i = 0; i < serve->threads_started; i++) {
        thread_drain(&serve->threads[i]);
        thread_stop(&serve->threads[i]);
    }
    for (uint32_t i = 0; i < serve->threads_started; i++) {
        thread_join(&serve->threads[i]);
    }
    for (uint32_t i = 0; i < CONF_LISTENERS_MAX; i++) {
        rx_group_close(serve->groups[i]);
    }
    nic_watch_close(&serve->watch);
    serve_restore_nics(serve); /* The rings are closed, so no queue of ours is in use any more. */
    if (serve->store != NULL) {
        metrics_store_set(serve->metrics, NULL);
        store_close(serve->store);
    }
    if (serve->metrics != NULL) {
        metrics_close(serve->metrics);
    }
    for (uint32_t i = 0; i < CONF_LISTENERS_MAX; i++) {
        auth_keys_free(atomic_load(&serve->shared.keys[i]));
        tls_context_close(serve->shared.tls[i]);
    }
    free(serve->threads);
}

/* The workers have ended: what is left is due when the drain is, and not at once either. */
static void serve_close_watched(struct serve *serve)
{
    pthread_t closing;
    uint64_t first_ns = clock_monotonic_ns() + serve_stop_timeout_ns(serve);
    serve->deadline_ns = serve->deadline_ns > first_ns ? serve->deadline_ns : first_ns;
    int rc = pthread_create(&closing, NULL, serve_closing_main, serve);
    if (rc != 0) {
        LOG_WRN("closing_not_watched", "error=%s", LOG_Q(err_text(-rc)));
        serve_close(serve);
        return;
    }
    serve_close(serve);
    uint64_t one = 1;
    ssize_t written = write(serve->closed_fd, &one, sizeof(one));
    CHECK(written == sizeof(one));
    rc = pthread_join(closing, NULL);
    CHECK(rc == 0);
}

static int serve_run_failed(struct serve *serve, int rc, const struct err *err)
{
    if (!serve->is_told_to_end) {
        LOG_ERR("start_failed", "error=%s", LOG_Q(err->text));
    }
    serve_close(serve);
    serve_close_signals(serve);
    if (serve->is_told_to_end) {
        LOG_INF("stopped", "name=%s while=starting", serve->conf->node.name);
        return 0;
    }
    return rc;
}

int serve_run(const struct conf *conf)
{
    static struct serve serve; /* One node per process; the admin thread points at it. */
    struct err err = {{0}};
    memset(&serve, 0, sizeof(serve));
    serve.conf = conf;
    serve.signal_fd = -1;
    serve.drain_fd = -1;
    serve.ended_fd = -1;
    serve.closed_fd = -1;
    nic_watch_init(&serve.watch);
    log_level_set(conf->node.log_level);
    preflight_raise_files();
    int rc = serve_open(&serve, &err);
    if (rc < 0) {
        return serve_run_failed(&serve, rc, &err);
    }
    atomic_store(&serve.state, SERVE_RUNNING);
    if (serve.is_told_to_reload) {
        serve_reload(&serve);
    }
    LOG_INF("ready", "name=%s workers=%u listeners=%u", conf->node.name, conf->node.workers,
            conf->listener_count);
    notify_send("READY=1");
    serve_wait(&serve);
    serve_close_watched(&serve);
    serve_close_signals(&serve);
    LOG_INF("stopped", "name=%s", conf->node.name);
    return 0;
}
