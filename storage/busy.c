/* SPDX-License-Identifier: Apache-2.0 */
/*
 * busy: notices that the index's disk has stopped answering, and lets nobody wait for it longer than flush_deadline. The committer and
 * the index readers block in it, so each says when it goes in (store_busy_begin) and comes out again; ports look at that once a turn.
 *
 * While a thread is late, what is meant for it is refused at once (changes: by the port; lookups: when no other reader is left), and
 * what waits for it is told: uploads fail, requests become STORE_EVENT_LATE. What the committer had not begun by then it leaves out
 * when it comes back; the transaction that it is in may become durable after all.
 *
 * It must not touch what the threads work on: their messages stay theirs until they answer.
 */
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "storage/lateness.h"
#include "storage/port_int.h"

void store_busy_begin(struct store_busy *busy, uint64_t now_ns)
{
    CHECK(now_ns != 0);
    atomic_store_explicit(&busy->noticed_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&busy->since_ns, now_ns, memory_order_relaxed);
}

/* In total order with busy_is_late, so that one of both takes the word back. */
void store_busy_end(struct store_busy *busy)
{
    atomic_store(&busy->since_ns, 0);
    if (atomic_load(&busy->is_known_late) && atomic_exchange(&busy->is_known_late, false)) {
        LOG_INF("index_state", "thread=%s state=ok why=%s", busy->name, LOG_Q("the index answered"));
    }
}

void store_busy_progress(struct store_busy *busy, uint64_t now_ns)
{
    store_busy_end(busy);
    store_busy_begin(busy, now_ns);
}

/* The first look at this stay; 0: there was none. One of an earlier stay, written while this one began, is none. */
static uint64_t busy_noticed_ns(const struct store_busy *busy, uint64_t since_ns)
{
    uint64_t noticed_ns = atomic_load_explicit(&busy->noticed_ns, memory_order_relaxed);
    return noticed_ns > since_ns ? noticed_ns : 0;
}

/* When to look at it if it stays in there; TIME_NEVER when it is late already. */
static uint64_t busy_due_ns(const struct store_port *port, const struct store_busy *busy)
{
    uint64_t deadline_ns = port->store->options.flush_deadline_ns;
    uint64_t since_ns = atomic_load_explicit(&busy->since_ns, memory_order_relaxed);
    since_ns = since_ns != 0 ? since_ns : port->now_ns;
    uint64_t due_ns = lateness_due_ns(busy_noticed_ns(busy, since_ns), since_ns, deadline_ns);
    return deadline_ns != 0 && due_ns > port->now_ns ? due_ns : TIME_NEVER;
}

static bool busy_is_late(const struct store_port *port, struct store_busy *busy)
{
    uint64_t deadline_ns = port->store->options.flush_deadline_ns;
    uint64_t since_ns = atomic_load_explicit(&busy->since_ns, memory_order_relaxed);
    if (deadline_ns == 0 || since_ns == 0 || since_ns > port->now_ns) {
        return false;
    }
    if (atomic_load_explicit(&busy->is_known_late, memory_order_relaxed)) {
        return since_ns + deadline_ns <= port->now_ns;
    }
    uint64_t noticed_ns = busy_noticed_ns(busy, since_ns);
    if (noticed_ns > port->now_ns) { /* Another port looked just now. */
        return false;
    }
    bool is_late = lateness_look(&noticed_ns, since_ns, deadline_ns, port->now_ns);
    if (!is_late) {
        atomic_store_explicit(&busy->noticed_ns, noticed_ns, memory_order_relaxed);
        return false;
    }
    bool is_first = !atomic_exchange(&busy->is_known_late, true);
    if (atomic_load(&busy->since_ns) != since_ns) { /* It has just come out. */
        atomic_store(&busy->is_known_late, false);
        return false;
    }
    if (is_first) {
        LOG_ERR("index_state", "thread=%s state=suspect why=%s", busy->name,
                LOG_Q("the index has not answered within flush_deadline"));
    }
    return true;
}

bool port_commit_is_late(struct store_port *port)
{
    return busy_is_late(port, &port->store->commit_busy);
}

struct store_busy *port_busy_choose(struct store_port *port, enum store_request_kind kind, uint32_t *reader)
{
    struct store *store = port->store;
    if (commit_request_is_change(kind)) {
        return port_commit_is_late(port) ? NULL : &store->commit_busy;
    }
    uint32_t turn = atomic_fetch_add_explicit(&store->reader_next, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < store->reader_count; i++) {
        *reader = (turn + i) % store->reader_count;
        if (!busy_is_late(port, &store->reader_busy[*reader])) {
            return &store->reader_busy[*reader];
        }
    }
    return NULL;
}

static void busy_fail_puts(struct store_port *port)
{
    LIST_FOR_EACH_SAFE(node, &port->puts)
    {
        struct store_put *put = CONTAINER_OF(node, struct store_put, node);
        if (put->state == STORE_PUT_OPEN && put->message_in_flight) {
            atomic_store(&put->message.is_given_up, true);
            put_fail(put, ERR_DEVICE_FAILED);
        }
    }
}

static void busy_tell_requests(struct store_port *port)
{
    LIST_FOR_EACH_SAFE(node, &port->requests)
    {
        struct store_request *request = CONTAINER_OF(node, struct store_request, port_node);
        if (busy_is_late(port, request->busy)) {
            atomic_store(&request->is_given_up, true);
            list_remove(&request->port_node);
            list_append(&port->late_requests, &request->port_node);
        }
    }
}

void port_busy_watch(struct store_port *port)
{
    if (port->messages_in_flight > 0 && port_commit_is_late(port)) {
        busy_fail_puts(port);
    }
    if (!list_is_empty(&port->requests)) {
        busy_tell_requests(port);
    }
}

uint64_t port_busy_deadline(const struct store_port *port)
{
    const struct store *store = port->store;
    uint64_t first_ns = TIME_NEVER;
    if (port->messages_in_flight > 0 || !list_is_empty(&port->requests)) {
        first_ns = busy_due_ns(port, &store->commit_busy);
    }
    for (uint32_t i = 0; i < store->reader_count && !list_is_empty(&port->requests); i++) {
        uint64_t due_ns = busy_due_ns(port, &store->reader_busy[i]);
        first_ns = due_ns < first_ns ? due_ns : first_ns;
    }
    return first_ns;
}

bool store_port_index_is_late(const struct store_port *port)
{
    return store_index_is_late(port->store);
}

bool store_index_is_late(const struct store *store)
{
    bool is_late = atomic_load_explicit(&store->commit_busy.is_known_late, memory_order_relaxed);
    for (uint32_t i = 0; i < store->reader_count; i++) {
        is_late |= atomic_load_explicit(&store->reader_busy[i].is_known_late, memory_order_relaxed);
    }
    return is_late;
}
