/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port: one worker's door to the store: its memory, its device queues, its inbox, and one bounded turn of everything (store_poll).
 *
 * The staging part of the arena is divided once:
 *   | page of zeros | one slot per device write (small pieces) | chunks (whole copied uploads) | read buffers |
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "storage/port_int.h"

#define ADVANCE_MAX 64U /* blocked uploads tried per turn */

const char *store_copy_reason_name(enum store_copy_reason reason)
{
    static const char *const names[STORE_COPY_REASONS] = {"head",     "tail",   "ragged", "chunked", "tls",
                                                          "pressure", "kernel", "device", "filter"};
    CHECK((uint32_t)reason < STORE_COPY_REASONS);
    return names[reason];
}

const char *store_copy_reason_help(enum store_copy_reason reason)
{
    static const char *const helps[STORE_COPY_REASONS] = {
        [STORE_COPY_HEAD] =
            "the first bytes of an upload, up to where the device takes what follows as it lies",
        [STORE_COPY_TAIL] = "the end of an upload, less than a block of the device",
        [STORE_COPY_RAGGED] = "the peer's segments end at odd bytes, so that rows of them fit no write",
        [STORE_COPY_CHUNKED] =
            "bodies with framing between their bytes (aws-chunked, chunked) are put together",
        [STORE_COPY_TLS] = "decryption",
        [STORE_COPY_PRESSURE] = "receive buffers ran short, and slow uploads gave theirs back",
        [STORE_COPY_KERNEL] = "the kernel refuses memory as finely aligned as the device takes (before 6.18)",
        [STORE_COPY_DEVICE] =
            "the device wants memory aligned more coarsely than packets lie, or whole pages",
        [STORE_COPY_FILTER] = "the payload was compressed, or went through another filter"};
    CHECK((uint32_t)reason < STORE_COPY_REASONS);
    return helps[reason];
}

/* ---- opening ------------------------------------------------------------------------------------------------------- */

static void port_options_check(const struct store_port_options *options)
{
    CHECK(options->arena != NULL);
    CHECK(options->puts_max > 0);
    CHECK(options->writes_per_put_max > 0);
    CHECK(bytes_is_power_of_two(options->write_unit));
    CHECK(options->write_unit >= EXTENT_BLOCK);
    CHECK(bytes_is_power_of_two(options->read_buffer_size));
    CHECK(options->read_buffer_size >= EXTENT_CHECKSUM_BLOCK);
    CHECK(options->staging_offset % EXTENT_BLOCK == 0);
    CHECK(options->staging_offset + options->staging_size <= options->arena->size);
}

/* A slot holds the odd bytes at both ends of a write, or a carried rest of less than an LBA. */
static uint32_t port_slot_size(const struct store *store)
{
    uint32_t size = 0;
    uint32_t unit = EXTENT_BLOCK / 8;
    for (uint32_t i = 0; i < store->device_count; i++) {
        uint32_t need = 2 * store->devices[i].dev->info.lba_size + 2 * store->devices[i].fragment_alignment;
        size = size > need ? size : need;
        unit = unit > store->devices[i].fragment_alignment ? unit : store->devices[i].fragment_alignment;
    }
    return (uint32_t)bytes_round_up(size, unit); /* fragments begin at slots */
}

/* A small pool is cut finer, so that several uploads get some. */
static uint32_t port_chunk_size(uint64_t staging_size)
{
    return staging_size >= 64 * (uint64_t)STAGE_CHUNK_SIZE ? STAGE_CHUNK_SIZE : EXTENT_BLOCK;
}

static size_t port_write_size(uint64_t staging_size, uint32_t write_unit)
{
    uint32_t chunks = write_unit / port_chunk_size(staging_size) + 2;
    return offsetof(struct put_write, chunks) + chunks * sizeof(uint32_t);
}

uint64_t store_upload_memory(uint64_t staging_size, uint32_t write_unit)
{
    return sizeof(struct store_put) + sizeof(struct put_extent) + port_write_size(staging_size, write_unit) +
           (PORT_BACKLOG_MAX(2) - PORT_BACKLOG_MAX(1)) * sizeof(struct put_backlog);
}

static int port_pools_open(struct store_port *port, struct err *err)
{
    uint32_t puts = port->options.puts_max;
    size_t write_size = port_write_size(port->options.staging_size, port->options.write_unit);
    int rc = pool_open(&port->put_pool, sizeof(struct store_put), puts);
    rc = rc == 0 ? pool_open(&port->extent_pool, sizeof(struct put_extent), puts + WRITES_SPARE) : rc;
    rc = rc == 0 ? pool_open(&port->write_pool, write_size, puts + WRITES_SPARE) : rc;
    rc = rc == 0 ? pool_open(&port->backlog_pool, sizeof(struct put_backlog), PORT_BACKLOG_MAX(puts)) : rc;
    return rc == 0 ? 0 : err_set(err, rc, "out of memory for %u uploads", puts);
}

/* Slots in registered memory as far as a quarter of it goes; a write with another slot is an unregistered one. */
static uint64_t port_slots_open(struct store_port *port, uint8_t *memory, uint64_t room)
{
    uint32_t count = port->write_pool.count;
    uint64_t fit = room / port->slot_size;
    fit = fit < count ? fit : count;
    for (uint32_t i = 0; i < count; i++) {
        struct put_write *write = pool_item(&port->write_pool, i);
        bool is_registered = i < fit;
        write->slot = is_registered ? memory + (uint64_t)i * port->slot_size
                                    : port->slot_memory + (i - fit) * (uint64_t)port->slot_size;
        write->slot_buf_index = is_registered ? port->options.arena->buf_index : -1;
    }
    return bytes_round_up(fit * port->slot_size, EXTENT_BLOCK);
}

static int port_chunks_open(struct store_port *port, uint8_t *memory, uint64_t room, struct err *err)
{
    port->chunk_base = memory;
    port->chunk_total = (uint32_t)(room / port->chunk_size);
    port->chunk_free = calloc(port->chunk_total == 0 ? 1 : port->chunk_total, sizeof(uint32_t));
    if (port->chunk_free == NULL) {
        return err_set(err, -ENOMEM, "out of memory for staging");
    }
    for (uint32_t i = 0; i < port->chunk_total; i++) {
        port->chunk_free[port->chunk_free_count++] = port->chunk_total - 1 - i;
    }
    return 0;
}

static int port_staging_open(struct store_port *port, struct err *err)
{
    const struct store_port_options *options = &port->options;
    uint8_t *at = options->arena->base + options->staging_offset;
    uint8_t *end = at + bytes_round_down(options->staging_size, EXTENT_BLOCK);
    uint64_t size = (uint64_t)(end - at);
    if (size < 8 * (uint64_t)EXTENT_BLOCK) {
        return err_set(err, -EINVAL, "staging of %llu bytes is too small: at least 32 KiB are needed",
                       (unsigned long long)size);
    }
    port->zeros = at;
    memset(port->zeros, 0, EXTENT_BLOCK);
    at += EXTENT_BLOCK;
    port->slot_memory = aligned_alloc(
        EXTENT_BLOCK, bytes_round_up((uint64_t)port->write_pool.count * port->slot_size, EXTENT_BLOCK));
    if (port->slot_memory == NULL) {
        return err_set(err, -ENOMEM, "out of memory for staging");
    }
    at += port_slots_open(port, at, size / 4);
    uint64_t reads = bytes_round_down(size / 2, options->read_buffer_size);
    int rc = port_chunks_open(port, at, (uint64_t)(end - at) - reads, err);
    return rc == 0 ? port_reads_open(port, end - reads, reads, err) : rc;
}

static int port_queues_open(struct store_port *port, struct err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < port->store->device_count && rc == 0; i++) {
        struct dev *dev = port_dev(port, i);
        rc = dev_queue_open(dev, port->options.uring, STORE_QUEUE_DEPTH, &port->write_queues[i], err);
        rc = rc == 0 ? dev_queue_open(dev, port->options.uring, PORT_READ_DEPTH, &port->read_queues[i], err)
                     : rc;
    }
    return rc;
}

static int port_inboxes_open(struct store_port *port, struct err *err)
{
    int rc = mpsc_open(&port->request_inbox);
    if (rc == 0) {
        rc = mpsc_open(&port->put_inbox);
        if (rc < 0) {
            mpsc_close(&port->request_inbox);
        }
    }
    if (rc < 0) {
        port->request_inbox.event_fd = -1;
        return err_set(err, rc, "a worker's inbox: %s", err_text(rc));
    }
    /* One event for both queues: a copy of the descriptor names the same eventfd. */
    if (dup3(port->request_inbox.event_fd, port->put_inbox.event_fd, O_CLOEXEC) < 0) {
        return err_set(err, -errno, "a worker's inbox: %s", err_text(-errno));
    }
    return 0;
}

static void port_free(struct store_port *port)
{
    for (uint32_t i = 0; i < port->store->device_count; i++) {
        if (port->write_queues[i] != NULL) {
            dev_queue_close(port->write_queues[i]);
        }
        if (port->read_queues[i] != NULL) {
            dev_queue_close(port->read_queues[i]);
        }
    }
    port_reads_close(port);
    free(port->chunk_free);
    free(port->slot_memory);
    pool_close(&port->backlog_pool);
    pool_close(&port->write_pool);
    pool_close(&port->extent_pool);
    pool_close(&port->put_pool);
    if (port->request_inbox.event_fd >= 0) {
        mpsc_close(&port->put_inbox);
        mpsc_close(&port->request_inbox);
    }
    free(port);
}

int store_port_open(struct store *store, const struct store_port_options *options, struct store_port **out,
                    struct err *err)
{
    CHECK(store->magic == STORE_MAGIC);
    port_options_check(options);
    struct store_port *port = calloc(1, sizeof(*port));
    if (port == NULL) {
        return err_set(err, -ENOMEM, "out of memory for a worker's port");
    }
    port->store = store;
    port->options = *options;
    port->request_inbox.event_fd = -1;
    list_init(&port->puts);
    list_init(&port->put_events);
    list_init(&port->blocked);
    list_init(&port->read_events);
    list_init(&port->requests);
    list_init(&port->late_requests);
    port->slot_size = port_slot_size(store);
    port->chunk_size = port_chunk_size(options->staging_size);
    port->chunks_per_write_max = options->write_unit / port->chunk_size + 2;
    int rc = port_inboxes_open(port, err);
    rc = rc == 0 ? port_pools_open(port, err) : rc;
    rc = rc == 0 ? port_staging_open(port, err) : rc;
    rc = rc == 0 ? port_queues_open(port, err) : rc;
    if (rc < 0) {
        port_free(port);
        return rc;
    }
    port->magic = PORT_MAGIC;
    store->port_count++;
    *out = port;
    return 0;
}

void store_port_close(struct store_port *port)
{
    CHECK(port->magic == PORT_MAGIC);
    CHECK(list_is_empty(&port->puts));
    CHECK(port->requests_in_flight == 0);
    /* A message can be taken before its sender has also rung the bell: it may still hold the inbox for a moment. */
    while (port->delivering != 0) {
        sched_yield();
    }
    port->magic = 0;
    port->store->port_count--;
    port_leases_give(port);
    port_free(port);
}

int store_port_event_fd(const struct store_port *port)
{
    return port->request_inbox.event_fd;
}

const _Atomic uint64_t *store_port_copied_bytes(const struct store_port *port)
{
    return port->copied;
}

void store_port_copied_add(struct store_port *port, enum store_copy_reason reason, uint64_t bytes)
{
    port_count_copy(port, reason, bytes);
}

/* ---- messages -------------------------------------------------------------------------------------------------------- */

void store_submit(struct store_port *port, struct store_request *request)
{
    CHECK(port->magic == PORT_MAGIC);
    struct store *store = port->store;
    uint32_t reader = 0;
    request->port = port;
    request->status = 0;
    atomic_store_explicit(&request->is_given_up, false, memory_order_relaxed);
    list_init(&request->port_node);
    port->requests_in_flight++;
    request->busy = port_busy_choose(port, request->kind, &reader);
    if (request->busy == NULL) {
        request->status = ERR_DEVICE_FAILED;
        port_deliver_request(request);
        return;
    }
    list_append(&port->requests, &request->port_node);
    if (request->busy == &store->commit_busy) {
        commit_request_submit(store->commit, request);
    } else {
        index_reader_submit(store->readers[reader], request);
    }
}

void port_deliver_request(struct store_request *request)
{
    struct store_port *port = request->port;
    port->delivering++;
    mpsc_push(&port->request_inbox, &request->node);
    port->delivering--;
}

void port_deliver_put(struct commit_put *message)
{
    struct store_put *put = CONTAINER_OF(message, struct store_put, message);
    struct store_port *port = put->port;
    port->delivering++;
    mpsc_push(&port->put_inbox, &message->node);
    port->delivering--;
}

static void port_take_messages(struct store_port *port)
{
    struct mpsc_node *node = mpsc_take_all(&port->put_inbox);
    while (node != NULL) {
        struct mpsc_node *next = node->next; /* the node may be sent again from inside */
        put_answered(CONTAINER_OF(CONTAINER_OF(node, struct commit_put, node), struct store_put, message));
        node = next;
    }
    if (port->request_head == NULL) {
        port->request_head = mpsc_take_all(&port->request_inbox);
    }
}

/* ---- one turn -------------------------------------------------------------------------------------------------------- */

static void port_poll_queue(struct store_port *port, struct dev_queue *queue, bool is_read)
{
    struct dev_io *finished[32];
    uint32_t count = 0;
    for (uint32_t total = 0; total < PORT_POLL_MAX; total += count) {
        count = dev_poll(queue, port->now_ns, finished, ARRAY_COUNT(finished));
        for (uint32_t i = 0; i < count; i++) {
            if (is_read) {
                port_read_done(finished[i]->user);
            } else {
                put_write_done(finished[i]->user);
            }
        }
        if (count < ARRAY_COUNT(finished)) {
            return;
        }
    }
}

static void port_unblock(struct store_port *port)
{
    /* Those that still find no room queue up again behind the others: each gets its turn. */
    for (uint32_t i = 0; i < ADVANCE_MAX && port->has_freed && !list_is_empty(&port->blocked); i++) {
        struct store_put *put = CONTAINER_OF(list_take_first(&port->blocked), struct store_put, blocked_node);
        put_advance(put);
    }
    port->has_freed = false;
}

static uint32_t port_take_events(struct store_port *port, struct store_event *events, uint32_t max)
{
    uint32_t count = 0;
    while (count < max && port->request_head != NULL) {
        struct mpsc_node *node = port->request_head;
        port->request_head = node->next;
        port->requests_in_flight--;
        events[count].kind = STORE_EVENT_REQUEST;
        events[count].request = CONTAINER_OF(node, struct store_request, node);
        list_remove(&events[count++].request->port_node);
    }
    while (count < max && !list_is_empty(&port->late_requests)) {
        events[count].kind = STORE_EVENT_LATE;
        events[count++].request =
            CONTAINER_OF(list_take_first(&port->late_requests), struct store_request, port_node);
    }
    while (count < max && !list_is_empty(&port->read_events)) {
        events[count].kind = STORE_EVENT_READ;
        events[count++].read = CONTAINER_OF(list_take_first(&port->read_events), struct store_read, node);
    }
    while (count < max && !list_is_empty(&port->put_events)) {
        events[count].kind = STORE_EVENT_PUT;
        events[count++].put = CONTAINER_OF(list_take_first(&port->put_events), struct store_put, event_node);
    }
    return count;
}

void store_now_set(struct store_port *port, uint64_t now_ns)
{
    CHECK(port->magic == PORT_MAGIC);
    port->now_ns = now_ns;
}

uint32_t store_poll(struct store_port *port, uint64_t now_ns, struct store_event *events, uint32_t max)
{
    CHECK(port->magic == PORT_MAGIC);
    port->now_ns = now_ns;
    for (uint32_t i = 0; i < port->store->device_count; i++) {
        port_poll_queue(port, port->write_queues[i], false);
        port_poll_queue(port, port->read_queues[i], true);
    }
    port_watch(port);
    port_take_messages(port);
    port_busy_watch(port);
    port_unblock(port);
    return port_take_events(port, events, max);
}

uint64_t store_deadline(struct store_port *port)
{
    bool has_events = port->request_head != NULL || !list_is_empty(&port->late_requests) ||
                      !list_is_empty(&port->read_events) || !list_is_empty(&port->put_events);
    uint64_t device_ns = port_watch_deadline(port);
    uint64_t index_ns = port_busy_deadline(port);
    return has_events ? 0 : device_ns < index_ns ? device_ns : index_ns;
}
