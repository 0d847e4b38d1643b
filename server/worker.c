/* SPDX-License-Identifier: Apache-2.0 */
/* worker: memory, one turn of the loop, and what the turn calls. */
#include "server/worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "server/conn.h"
#include "server/exchange.h"
#include "server/http_conn.h"

_Static_assert(CONF_CONNECTION_STATE_SIZE >=
                   sizeof(struct conn) + sizeof(struct exchange) + 4 * sizeof(struct inbox_node),
               "what the configuration promises per connection is enough");
_Static_assert(CONF_BUFFER_STATE_SIZE >= 8 * sizeof(struct inbox_node) + 4 * 64 + 64,
               "and per buffer: its places in inboxes, jobs of the hasher (hash.c), and the backend's table");

/* ---- open and close ------------------------------------------------------------------------------------------- */

struct worker_sizes {
    uint32_t conns;
    uint64_t head_size_max;
    uint64_t buffers;
};

static void worker_sizes(const struct worker *worker, struct worker_sizes *sizes)
{
    memset(sizes, 0, sizeof(*sizes));
    for (uint32_t i = 0; i < worker->listener_count; i++) {
        const struct conf_limits *limits = &worker->listeners[i].conf->limits;
        sizes->conns += limits->connections_max;
        if (!worker->listeners[i].info.shares_buffers || worker->listeners[i].rx->xdp != NULL) {
            sizes->buffers += worker->listeners[i].info.buffers_total;
        }
        if (limits->head_size_max > sizes->head_size_max) {
            sizes->head_size_max = limits->head_size_max;
        }
    }
}

static void worker_pools_close(struct worker *worker)
{
    struct pool *pools[] = {&worker->conns, &worker->exchanges, &worker->inbox_nodes, &worker->blocks,
                            &worker->tables};
    for (size_t i = 0; i < ARRAY_COUNT(pools); i++) {
        pool_close(pools[i]);
    }
    if (worker->peers.places != NULL) {
        peers_close(&worker->peers);
    }
}

static int worker_pools_open(struct worker *worker, struct err *err)
{
    struct worker_sizes sizes;
    worker_sizes(worker, &sizes);
    /* An inbox is used only while its connection is paused: a few fragments each, and at worst many small ones of every
     * buffer of the receive areas. */
    uint64_t nodes = 4ULL * sizes.conns + 8 * sizes.buffers;
    const struct {
        struct pool *pool;
        size_t size;
        uint32_t count;
    } rows[] = {
        {&worker->conns, sizeof(struct conn), sizes.conns},
        {&worker->exchanges, sizeof(struct exchange) + sizes.head_size_max, sizes.conns},
        {&worker->inbox_nodes, sizeof(struct inbox_node),
         (uint32_t)(nodes > UINT32_MAX ? UINT32_MAX : nodes)},
        {&worker->blocks, WORKER_BLOCK_SIZE, WORKER_BLOCKS},
        {&worker->tables, STORE_PART_MAX * sizeof(struct store_part_ref), WORKER_TABLES},
    };
    uint64_t bytes = 0;
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        int rc = pool_open(rows[i].pool, rows[i].size, rows[i].count);
        if (rc < 0) {
            worker_pools_close(worker);
            return err_set(err, rc, "worker %u: no memory for %u items of %zu bytes; lower connections_max",
                           worker->index, rows[i].count, rows[i].size);
        }
        bytes += (uint64_t)rows[i].size * rows[i].count;
    }
    metrics_add(&worker->cells->memory_bytes, bytes);
    int rc = peers_open(&worker->peers, sizes.conns);
    if (rc < 0) {
        worker_pools_close(worker);
        return err_set(err, rc, "worker %u: no memory for the table of peers", worker->index);
    }
    return 0;
}

static void worker_listener_init(struct worker *worker, uint32_t index, const struct worker_options *options)
{
    struct listener *listener = &worker->listeners[index];
    listener->worker = worker;
    listener->index = index;
    listener->conf = &options->conf->listeners[index];
    listener->rx = options->rx[index];
    listener->info = listener->rx->info;
    listener->cells = options->listener_cells[index];
    list_init(&listener->conns);
    /* A slice keeps one buffer at most, so half of a connection's are there to receive into while the others are written. */
    uint32_t buffers_max = listener->conf->limits.buffers_per_connection_max;
    listener->idle_slices_max = buffers_max == 0 ? UINT32_MAX : buffers_max / 2;
    if (listener->conf->virtual_host_domain[0] != '\0') {
        listener->domain = text_of_string(listener->conf->virtual_host_domain);
    }
}

static void worker_lists_init(struct worker *worker, uint64_t now_ns)
{
    list_init(&worker->exchange_waiters);
    list_init(&worker->hoarders);
    shares_init(worker);
    list_init(&worker->uploads);
    list_init(&worker->relieved);
    list_init(&worker->copying);
    list_init(&worker->filtering);
    list_init(&worker->throttled);
    timers_init(&worker->timers, now_ns);
}

static int worker_filter_open(struct worker *worker, bool wants_thread, struct err *err)
{
    struct filter_options options = {
        .wants_thread = wants_thread, .streams = worker->conf->node.compression_streams, .level_max = 1};
    for (uint32_t i = 0; i < worker->listener_count; i++) {
        int level = (int)worker->listeners[i].conf->compression.level;
        options.level_max = level > options.level_max ? level : options.level_max;
    }
    metrics_add(&worker->cells->memory_bytes, conf_memory_compression(worker->conf));
    return filter_open(&worker->filter, &options, err);
}

int worker_open(struct worker *worker, const struct worker_options *options, struct err *err)
{
    memset(worker, 0, sizeof(*worker));
    worker->index = options->index;
    worker->conf = options->conf;
    worker->shared = options->shared;
    worker->port = options->port;
    worker->cells = options->cells;
    worker->now_ns = options->now_ns;
    worker->date_s = INT64_MIN;
    worker->listener_count = options->conf->listener_count;
    for (uint32_t i = 0; i < worker->listener_count; i++) {
        worker_listener_init(worker, i, options);
    }
    worker_lists_init(worker, options->now_ns);
    rng_seed(&worker->rng, options->random_seed);
    worker->request_prefix = rng_u64(&worker->rng);
    auth_sigv4_cache_begin(&worker->key_cache);
    int rc = worker_pools_open(worker, err);
    if (rc < 0) {
        return rc;
    }
    struct worker_sizes sizes;
    worker_sizes(worker, &sizes);
    struct hasher_options hasher = {.wants_thread = options->wants_hash_thread,
                                    .jobs_max = (uint32_t)(4 * sizes.buffers + sizes.conns)};
    rc = hasher_open(&worker->hasher, &hasher, err);
    if (rc < 0) {
        worker_pools_close(worker);
        return rc;
    }
    rc = worker_filter_open(worker, options->wants_hash_thread, err);
    if (rc < 0) {
        hasher_close(&worker->hasher);
        worker_pools_close(worker);
        return rc;
    }
    rc = mpsc_open(&worker->messages);
    if (rc < 0) {
        filter_close(&worker->filter);
        hasher_close(&worker->hasher);
        worker_pools_close(worker);
        return err_set(err, rc, "worker %u: eventfd: %s; raise RLIMIT_NOFILE", worker->index, err_text(rc));
    }
    return 0;
}

void worker_close(struct worker *worker)
{
    CHECK(worker_is_idle(worker));
    filter_close(&worker->filter);
    hasher_close(&worker->hasher);
    auth_sigv4_cache_end(&worker->key_cache);
    worker_pools_close(worker);
}

void worker_messages_close(struct worker *worker)
{
    /* Messages are the sender's memory: what came too late is dropped. */
    (void)mpsc_take_all(&worker->messages);
    mpsc_close(&worker->messages);
}

bool worker_is_idle(const struct worker *worker)
{
    return pool_used(&worker->conns) == 0 && worker->exchange_count == 0;
}

/* ---- small services ------------------------------------------------------------------------------------------- */

void worker_request_id(struct worker *worker, char out[17])
{
    /* The counter makes ids of one worker differ, the random prefix those of workers and runs. */
    uint64_t id = worker->request_prefix ^ (++worker->request_count * 0x9e3779b97f4a7c15ULL);
    (void)snprintf(out, 17, "%016llX", (unsigned long long)id); /* Always 16 digits. */
}

const char *worker_date(struct worker *worker)
{
    int64_t now_s = (int64_t)(worker->wall_ns / NS_PER_S);
    if (now_s != worker->date_s) {
        worker->date_s = now_s;
        http_date_format(now_s, worker->date);
    }
    return worker->date;
}

void worker_post(struct worker *worker, struct worker_message *message)
{
    mpsc_push(&worker->messages, &message->node);
}

/* ---- messages ------------------------------------------------------------------------------------------------- */

static void worker_accept_stop(struct worker *worker)
{
    for (uint32_t i = 0; i < worker->listener_count; i++) {
        struct listener *listener = &worker->listeners[i];
        if (!listener->is_stopped && !listener->is_broken) {
            listener->is_stopped = true;
            rx_accept_stop(listener->rx);
        }
    }
}

static void worker_each_conn(struct worker *worker, void (*call)(struct conn *conn))
{
    for (uint32_t i = 0; i < worker->listener_count; i++) {
        LIST_FOR_EACH_SAFE(node, &worker->listeners[i].conns)
        {
            call(CONTAINER_OF(node, struct conn, link));
        }
    }
}

static void worker_drain_conn(struct conn *conn)
{
    conn->protocol->drain(conn);
}

static void worker_stop_conn(struct conn *conn)
{
    if (conn->stage != CONN_CLOSING) {
        metrics_add(&conn->listener->cells->timeouts[METRICS_TIMEOUT_DRAIN], 1);
        conn_abort(conn);
    }
}

static void worker_messages(struct worker *worker)
{
    struct mpsc_node *node = mpsc_collect(&worker->messages);
    while (node != NULL) {
        struct worker_message *message = CONTAINER_OF(node, struct worker_message, node);
        node = node->next;
        if (message->kind == WORKER_MESSAGE_SYNC) {
            int rc = sem_post(message->done);
            CHECK(rc == 0);
            continue;
        }
        worker->is_stopping |= message->kind == WORKER_MESSAGE_STOP;
        worker->is_draining = true;
    }
    if (worker->is_draining) {
        worker_accept_stop(worker);
        worker_each_conn(worker, worker_drain_conn);
    }
    if (worker->is_stopping) {
        worker_each_conn(worker, worker_stop_conn);
    }
}

/* ---- receive -------------------------------------------------------------------------------------------------- */

static void worker_rx_event(struct listener *listener, const struct rx_event *event)
{
    if (event->kind == RX_OPEN) {
        conn_open(listener, event);
    } else if (event->user != NULL) {
        conn_event(event->user, event);
    } else if (event->kind == RX_DATA) {
        slice_release(&event->slice); /* Of a connection that was refused. */
    }
}

static void worker_rx(struct worker *worker, struct listener *listener)
{
    if (listener->is_broken) {
        return;
    }
    int count = rx_poll(listener->rx, worker->now_ns, worker->rx_events, WORKER_RX_EVENTS);
    if (count < 0) {
        listener->is_broken = true;
        LOG_ERR("listener_broken", "name=%s worker=%u error=%s", listener->conf->name, worker->index,
                LOG_Q(err_text(count)));
        return;
    }
    if (count == (int)WORKER_RX_EVENTS) {
        metrics_add(&worker->cells->stage_full[METRICS_STAGE_RX], 1);
    }
    for (int i = 0; i < count; i++) {
        const struct rx_event *event = &worker->rx_events[i];
        if (event->kind == RX_DATA && listener->info.flow == RX_FLOW_READ) {
            worker->gatherable += event->slice.len;
        }
        worker_rx_event(listener, event);
    }
}

/* ---- store ---------------------------------------------------------------------------------------------------- */

static void worker_put_event(struct store_put *put)
{
    struct upload *upload = store_put_user(put);
    struct conn *conn = upload->x->conn; /* The exchange may end with this event; its conn does not. */
    upload_put_event(put);
    if (conn != NULL) {
        conn_run(conn);
    }
}

static void worker_store(struct worker *worker)
{
    uint32_t count = store_poll(worker->port, worker->now_ns, worker->store_events, WORKER_STORE_EVENTS);
    if (count == WORKER_STORE_EVENTS) {
        metrics_add(&worker->cells->stage_full[METRICS_STAGE_STORE], 1);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct store_event *event = &worker->store_events[i];
        switch (event->kind) {
        case STORE_EVENT_REQUEST:
            exchange_request_done(event->request);
            break;
        case STORE_EVENT_LATE:
            exchange_request_late(event->request);
            break;
        case STORE_EVENT_PUT:
            worker_put_event(event->put);
            break;
        case STORE_EVENT_READ:
            exchange_read_done(store_read_user(event->read), event->read);
            break;
        }
    }
}

static void worker_hashes(struct worker *worker)
{
    struct hash_stream *stream;
    while ((stream = hasher_poll(&worker->hasher)) != NULL) { /* Bounded: each stream finishes once. */
        struct upload *upload = stream->user;
        struct conn *conn = upload->x->conn;
        upload_hash_event(stream);
        if (conn != NULL) {
            conn_run(conn);
        }
    }
}

static void worker_filter(struct worker *worker)
{
    struct filter_frame *frame;
    while ((frame = filter_poll(&worker->filter)) != NULL) { /* Bounded by the frames there are. */
        struct exchange *x = frame->stream->user;
        struct conn *conn = x->conn;
        frame->stream->event(x, frame);
        if (conn != NULL) {
            conn_run(conn);
        }
    }
}

/* ---- waiters and timers --------------------------------------------------------------------------------------- */

/* What the index does not answer keeps its exchange although its client was told: who waits for one would wait as long. */
static void worker_refuse_waiters(struct worker *worker)
{
    struct list *node;
    if (!store_port_index_is_late(worker->port)) {
        return;
    }
    while ((node = list_take_first(&worker->exchange_waiters)) != NULL) { /* Refusing adds none. */
        struct conn *conn = CONTAINER_OF(node, struct conn, waiter);
        metrics_add(&conn->listener->cells->limits_hit[METRICS_LIMIT_CONNECTIONS], 1);
        if (conn->protocol == &http_protocol) {
            http_refuse(conn);
        } else {
            conn_abort(conn);
        }
    }
}

static void worker_waiters(struct worker *worker)
{
    shares_resume(worker);
    while (!list_is_empty(&worker->exchange_waiters) && worker->exchanges.free_count > 0) {
        conn_run(CONTAINER_OF(list_take_first(&worker->exchange_waiters), struct conn, waiter));
    }
    worker_refuse_waiters(worker);
}

static void worker_timers(struct worker *worker)
{
    uint32_t count = 0;
    struct timer *timer;
    while (count < WORKER_TIMERS && (timer = timers_take_due(&worker->timers, worker->now_ns)) != NULL) {
        conn_timeout(timer);
        count++;
    }
    if (count == WORKER_TIMERS) {
        metrics_add(&worker->cells->stage_full[METRICS_STAGE_TIMER], 1);
    }
}

void worker_turn(struct worker *worker, uint64_t now_ns, uint64_t wall_ns)
{
    worker->now_ns = now_ns;
    worker->wall_ns = wall_ns;
    metrics_add(&worker->cells->turns, 1);
    store_now_set(worker->port, now_ns); /* Uploads are fed and reads begun before store_poll. */
    for (uint32_t i = 0; i < worker->listener_count; i++) {
        worker_rx(worker, &worker->listeners[i]);
    }
    worker_store(worker);
    worker_hashes(worker);
    worker_filter(worker);
    worker_messages(worker);
    uploads_turn(worker);
    conns_turn(worker);
    shares_turn(worker);
    worker_timers(worker);
    worker_waiters(worker); /* Last: what any of the above gave back is handed on in the same turn. */
}

uint64_t worker_deadline(struct worker *worker)
{
    uint64_t deadlines[] = {store_deadline(worker->port), timers_deadline(&worker->timers),
                            uploads_deadline(worker),     conns_deadline(worker),
                            shares_deadline(worker),      hasher_deadline(&worker->hasher)};
    uint64_t first = TIME_NEVER;
    for (size_t i = 0; i < ARRAY_COUNT(deadlines); i++) {
        first = deadlines[i] < first ? deadlines[i] : first;
    }
    for (uint32_t i = 0; i < worker->listener_count; i++) {
        if (!worker->listeners[i].is_broken) {
            uint64_t deadline = rx_deadline(worker->listeners[i].rx);
            first = deadline < first ? deadline : first;
        }
    }
    return first;
}
