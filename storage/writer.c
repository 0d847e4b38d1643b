/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer: the life of an upload, from begin to the committer's answer. It owns store_put; pack.c owns the write that is being
 * collected, space.c the extents' places.
 *
 *   OPEN -- store_put_append, store_put_finish --> OPEN (finishing) -- put_answered --> DONE
 *     |  put_fail                                     | put_fail
 *     v                                               v
 *   FAILED -- put_cleanup: writes ended, space given back -- store_put_abort --> ABORTED
 *
 * Invariants:
 *  1. At most one message to the committer is in flight; it carries the first extents in payload order, all of them closed and with
 *     no write in flight.
 *  2. FINISH is sent when all payload is in closed extents and every write has ended well: payload is with the device before the
 *     committer flushes it.
 *  3. Space goes back to the free map only when no write to it is in flight.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "storage/port_int.h"

static void put_event(struct store_put *put)
{
    if (!list_is_linked(&put->event_node)) {
        list_append(&put->port->put_events, &put->event_node);
    }
}

/* ---- slices that wait ------------------------------------------------------------------------------------------------ */

/* Entries beyond an upload's own share count against what all have in common. */
static void put_backlog_give(struct store_put *put, struct put_backlog *entry)
{
    CHECK(put->backlog_count > 0);
    put->port->backlog_common -= put->backlog_count > PUT_BACKLOG_OWN;
    put->backlog_count--;
    pool_give(&put->port->backlog_pool, entry);
}

static void put_backlog_add(struct store_put *put, const struct slice *slice)
{
    struct put_backlog *entry = pool_take(&put->port->backlog_pool);
    CHECK(entry != NULL); /* Its user has heeded store_put_is_full. */
    put->backlog_count++;
    put->port->backlog_common += put->backlog_count > PUT_BACKLOG_OWN;
    entry->slice = *slice;
    list_init(&entry->node);
    list_append(&put->backlog, &entry->node);
}

static void put_backlog_drop(struct store_put *put)
{
    struct list *node;
    while ((node = list_take_first(&put->backlog)) != NULL) {
        struct put_backlog *entry = CONTAINER_OF(node, struct put_backlog, node);
        slice_release(&entry->slice);
        put_backlog_give(put, entry);
    }
}

static void put_backlog_pack(struct store_put *put)
{
    struct list *node;
    while (put->state == STORE_PUT_OPEN && (node = list_take_first(&put->backlog)) != NULL) {
        struct put_backlog *entry = CONTAINER_OF(node, struct put_backlog, node);
        bool is_all = pack_slice(put, &entry->slice);
        if (!is_all && put->state == STORE_PUT_OPEN) {
            list_prepend(&put->backlog, &entry->node);
            return;
        }
        if (!is_all) {
            slice_release(&entry->slice);
        }
        put_backlog_give(put, entry);
    }
}

bool store_put_is_full(const struct store_put *put)
{
    CHECK(put->magic == PUT_MAGIC);
    return put->backlog_count >= PUT_BACKLOG_OWN &&
           put->port->backlog_common >= PORT_BACKLOG_COMMON(put->port->options.puts_max);
}

/* ---- messages to the committer ------------------------------------------------------------------------------------------ */

/* Extents at the front that are complete on the device. */
static uint32_t put_extents_ready(const struct store_put *put)
{
    uint32_t count = 0;
    LIST_FOR_EACH(node, &put->extents)
    {
        const struct put_extent *extent = CONTAINER_OF(node, struct put_extent, node);
        if (!extent->is_closed || extent->writes_in_flight > 0) {
            break;
        }
        count++;
    }
    return count;
}

static void put_message_send(struct store_put *put, enum commit_put_kind kind, uint32_t extent_count)
{
    struct commit_put *message = &put->message;
    uint32_t i = 0;
    LIST_FOR_EACH(node, &put->extents)
    {
        if (i == extent_count) {
            break;
        }
        put->batch[i++] = CONTAINER_OF(node, struct put_extent, node)->desc;
    }
    CHECK(i == extent_count);
    message->kind = kind;
    message->status = 0;
    message->extents = put->batch;
    message->extent_count = extent_count;
    message->device_mask = put->device_mask;
    message->size = put->size;
    message->crc32c = put->crc32c;
    put->message_extents = extent_count;
    put->message_in_flight = true;
    atomic_store_explicit(&message->is_given_up, false, memory_order_relaxed);
    put->port->messages_in_flight++;
    put->is_handed_over = put->is_handed_over || kind != COMMIT_PUT_PENDING;
    commit_put_submit(put->port->store->commit, message);
}

/* Memory for extents is bounded: what is complete is recorded while the upload goes on. */
static void put_record_pending(struct store_put *put)
{
    uint32_t ready = put_extents_ready(put);
    uint32_t enough =
        pool_used(&put->port->extent_pool) == put->port->extent_pool.count ? 1 : PUT_PENDING_BATCH;
    if (put->message_in_flight || ready < enough) {
        return;
    }
    if (put->message.owner == 0) {
        put->message.owner = commit_owner_new(put->port->store->commit);
    }
    put_message_send(put, COMMIT_PUT_PENDING, ready);
}

void port_extents_pressure(struct store_port *port)
{
    LIST_FOR_EACH(node, &port->puts)
    {
        struct store_put *put = CONTAINER_OF(node, struct store_put, node);
        if (put->state == STORE_PUT_OPEN && !put->is_finishing) {
            put_record_pending(put);
        }
    }
}

static void put_finish_step(struct store_put *put)
{
    if (put->extent != NULL && !pack_close(put)) {
        return; /* one of our own writes ends first */
    }
    if (put->writes_in_flight > 0 || put->message_in_flight || put->is_handed_over) {
        return;
    }
    if (port_commit_is_late(put->port)) {
        put_fail(put, ERR_DEVICE_FAILED);
        return;
    }
    CHECK(put_extents_ready(put) == put->extent_count);
    CHECK(put->packed == put->size);
    put_message_send(put, COMMIT_PUT_FINISH, put->extent_count);
}

/* ---- failing ------------------------------------------------------------------------------------------------------------- */

static void put_cleanup(struct store_put *put)
{
    if (put->writes_in_flight > 0 || put->message_in_flight) {
        return;
    }
    if (!put->is_clean && put->is_handed_over) {
        port_extents_forget(put, put->extent_count);
        put->is_clean = true;
    }
    if (!put->is_clean) {
        port_extents_give(put);
        put->is_clean = put->message.owner == 0;
        if (!put->is_clean) {
            put_message_send(put, COMMIT_PUT_ABORT, 0); /* what was recorded as pending */
            return;
        }
    }
    if (put->is_aborting && put->state == STORE_PUT_FAILED) {
        put->state = STORE_PUT_ABORTED;
        put_event(put);
    }
}

void put_fail(struct store_put *put, int error)
{
    CHECK(error < 0);
    if (put->state != STORE_PUT_OPEN) {
        return; /* the first reason counts */
    }
    put->state = STORE_PUT_FAILED;
    put->error = error;
    pack_drop(put);
    put_backlog_drop(put);
    list_remove(&put->blocked_node);
    port_space_unpromise(put);
    put_event(put);
    put_cleanup(put);
}

static void put_press(struct store_put *put)
{
    if (put->state != STORE_PUT_OPEN || put->pressure == PUT_PRESSURE_NONE) {
        return;
    }
    bool is_done = put->pressure == PUT_PRESSURE_COPY ? pack_cut(put, true) : pack_relieve(put);
    if (is_done) {
        put->pressure = PUT_PRESSURE_NONE;
    }
}

void put_advance(struct store_put *put)
{
    if (put->state == STORE_PUT_OPEN) {
        put_backlog_pack(put);
    }
    put_press(put);
    if (put->state == STORE_PUT_OPEN && put->is_finishing && list_is_empty(&put->backlog)) {
        put_finish_step(put);
    } else if (put->state == STORE_PUT_OPEN) {
        put_record_pending(put);
    }
    if (put->state == STORE_PUT_FAILED) {
        put_cleanup(put);
    }
}

void put_write_done(struct put_write *write)
{
    struct store_put *put = write->put;
    int result = write->io.result;
    CHECK(write->extent->writes_in_flight > 0);
    CHECK(put->writes_in_flight > 0);
    write->extent->writes_in_flight--;
    put->writes_in_flight--;
    port_watch_end(put->port, write->extent->desc.device, WATCH_WRITE, write->len);
    put->written += result == 0 ? write->unwritten : 0;
    pack_write_end(write);
    if (result != 0) {
        put_fail(put, result == -ENOSPC || result == ERR_DEVICE_FAILED ? result : -EIO);
    } else if (put->state == STORE_PUT_OPEN && !put->is_finishing) {
        put_event(put); /* room: a paused connection may go on */
    }
    put_advance(put);
}

void put_answered(struct store_put *put)
{
    struct commit_put *message = &put->message;
    put->message_in_flight = false;
    put->port->messages_in_flight--;
    if (message->kind == COMMIT_PUT_PENDING && message->status == 0) {
        port_extents_forget(put, put->message_extents);
    } else if (message->kind == COMMIT_PUT_PENDING) {
        put_fail(put, message->status);
    } else if (message->kind == COMMIT_PUT_FINISH && put->state == STORE_PUT_FAILED) {
        /* Given up when the index did not answer. An object all the same, or not: the space is the committer's. */
    } else if (message->kind == COMMIT_PUT_FINISH && message->status == 0) {
        port_extents_forget(put, put->message_extents);
        port_space_unpromise(put);
        put->state = STORE_PUT_DONE;
        put_event(put);
    } else if (message->kind == COMMIT_PUT_FINISH) {
        put_fail(put, message->status);
    } else {
        put->is_clean = true;
    }
    put_advance(put);
}

void port_stage_pressure(struct store_port *port)
{
    LIST_FOR_EACH(node, &port->puts)
    {
        struct store_put *put = CONTAINER_OF(node, struct store_put, node);
        if (put->unit != NULL && put->unit->chunk_count > 0) {
            pack_cut(put, true);
        }
    }
}

/* ---- the facade ------------------------------------------------------------------------------------------------------------ */

int store_put_begin(struct store_port *port, const struct store_put_options *options, struct store_put **out)
{
    CHECK(port->magic == PORT_MAGIC);
    CHECK(options->key->len <= STORE_KEY_MAX);
    if (port_commit_is_late(port)) {
        return ERR_DEVICE_FAILED;
    }
    struct store_put *put = pool_take(&port->put_pool);
    if (put == NULL) {
        return ERR_LIMIT;
    }
    memset(put, 0, offsetof(struct store_put, batch));
    put->magic = PUT_MAGIC;
    put->state = STORE_PUT_OPEN;
    put->port = port;
    put->user = options->user;
    put->size_known = options->size;
    put->is_staging = options->is_framed || options->is_filtered;
    put->staging_reason = options->is_filtered ? STORE_COPY_FILTER : STORE_COPY_CHUNKED;
    int rc = port_space_promise(put);
    if (rc < 0) {
        put->magic = 0;
        pool_give(&port->put_pool, put);
        return rc;
    }
    snprintf(put->bucket, sizeof(put->bucket), "%s", options->bucket);
    put->key.len = options->key->len;
    memcpy(put->key.bytes, options->key->bytes, options->key->len);
    memcpy(put->upload_id, options->upload_id, sizeof(put->upload_id));
    put->part_number = options->part_number;
    list_init(&put->event_node);
    list_init(&put->blocked_node);
    list_init(&put->extents);
    list_init(&put->backlog);
    list_init(&put->node);
    list_append(&port->puts, &put->node);
    port->store->puts_in_flight++;
    *out = put;
    return 0;
}

void store_put_append(struct store_put *put, const struct slice *slice)
{
    struct slice rest = *slice;
    CHECK(put->magic == PUT_MAGIC);
    CHECK(slice->len > 0);
    CHECK(!put->is_finishing);
    if (put->state == STORE_PUT_OPEN) {
        put->size += slice->len;
        CHECK(put->size <= put->size_known); /* the protocol knows the length it announced */
        if (!list_is_empty(&put->backlog)) {
            put_backlog_add(put, slice);
            return;
        }
        if (pack_slice(put, &rest)) {
            return;
        }
    }
    if (put->state == STORE_PUT_OPEN) {
        put_backlog_add(put, &rest);
    } else {
        slice_release(&rest);
    }
}

uint64_t store_put_queued_bytes(const struct store_put *put)
{
    return put->state == STORE_PUT_OPEN ? put->size - put->written : 0;
}

void store_put_pressure(struct store_put *put)
{
    CHECK(put->magic == PUT_MAGIC);
    if (put->state == STORE_PUT_OPEN) {
        put->pressure = PUT_PRESSURE_COPY;
        put_advance(put);
    }
}

void store_put_relieve(struct store_put *put)
{
    CHECK(put->magic == PUT_MAGIC);
    if (put->state == STORE_PUT_OPEN) {
        put->pressure = put->pressure == PUT_PRESSURE_NONE ? PUT_PRESSURE_WRITE : put->pressure;
        put_advance(put);
    }
}

bool store_put_holds_idle_slices(const struct store_put *put)
{
    return !list_is_empty(&put->backlog) || (put->unit != NULL && put->unit->piece_count > 0);
}

uint32_t store_put_idle_slices(const struct store_put *put)
{
    return put->unit != NULL ? put->unit->piece_count : 0;
}

void store_put_finish(struct store_put *put, const struct store_attributes *attributes,
                      const struct store_condition *condition)
{
    CHECK(put->magic == PUT_MAGIC);
    CHECK(!put->is_finishing);
    CHECK(!put->is_aborting);
    put->is_finishing = true;
    if (put->state != STORE_PUT_OPEN) {
        return; /* failed before: reported by its event */
    }
    CHECK(put->size_known == UINT64_MAX || put->size == put->size_known);
    put->attributes = *attributes;
    put->message.condition = NULL;
    if (condition != NULL) {
        put->condition = *condition;
        put->message.condition = &put->condition;
    }
    put->message.bucket = put->bucket;
    put->message.key = &put->key;
    put->message.upload_id = put->upload_id;
    put->message.part_number = put->part_number;
    put->message.attributes = &put->attributes;
    put_advance(put);
}

void store_put_abort(struct store_put *put)
{
    CHECK(put->magic == PUT_MAGIC);
    CHECK(!put->is_aborting);
    CHECK(put->state == STORE_PUT_FAILED || (put->state == STORE_PUT_OPEN && !put->is_finishing));
    put->is_aborting = true;
    put_fail(put, -ECANCELED);
    if (put->state == STORE_PUT_FAILED) {
        list_remove(&put->event_node); /* its user has given up: only the end is still of interest */
        put_cleanup(put);
    }
}

void store_put_free(struct store_put *put)
{
    CHECK(put->magic == PUT_MAGIC);
    CHECK(put->state == STORE_PUT_DONE || put->state == STORE_PUT_ABORTED);
    CHECK(put->extent_count == 0);
    CHECK(put->writes_in_flight == 0);
    list_remove(&put->event_node);
    list_remove(&put->node);
    put->magic = 0;
    put->port->store->puts_in_flight--;
    pool_give(&put->port->put_pool, put);
}

enum store_put_state store_put_state(const struct store_put *put)
{
    CHECK(put->magic == PUT_MAGIC);
    return put->state;
}

int store_put_error(const struct store_put *put)
{
    return put->error;
}

void *store_put_user(const struct store_put *put)
{
    return put->user;
}

uint64_t store_put_size(const struct store_put *put)
{
    return put->size;
}

uint32_t store_put_crc32c(const struct store_put *put)
{
    return put->crc32c;
}

uint64_t store_put_modified_ns(const struct store_put *put)
{
    return put->message.modified_ns;
}
