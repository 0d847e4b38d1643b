/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader: reads of objects. A read has one buffer of the port; it takes whole checksum blocks from the device, verifies them, and
 * only then lends the wanted bytes as a slice. A block that does not match is never handed out.
 *
 *   A read that its device does not answer in time fails as well, and is LATE until the answer comes.
 *
 *   FREE -- store_read_begin --> READING -- port_read_done --> DONE -- store_read_take --> LENT -- last slice_release --> FREE
 *                                                                   `-- (failed) ------------------------------------> FREE
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "storage/port_int.h"

#define READS_OWN 2U /* buffers of our own when the staging memory is too small for any */

static void port_read_free(struct store_port *port, struct store_read *read)
{
    read->state = READ_FREE;
    port->read_free[port->read_free_count++] = (uint32_t)(read - port->reads);
}

static void port_slice_retain(struct slice_owner *owner, const struct slice *slice)
{
    struct store_port *port = CONTAINER_OF(owner, struct store_port, read_owner);
    CHECK(port->reads[slice->token].state == READ_LENT);
    port->reads[slice->token].references++;
}

static void port_slice_release(struct slice_owner *owner, const struct slice *slice)
{
    struct store_port *port = CONTAINER_OF(owner, struct store_port, read_owner);
    struct store_read *read = &port->reads[slice->token];
    CHECK(read->state == READ_LENT);
    CHECK(read->references > 0);
    if (--read->references == 0) {
        port_read_free(port, read);
    }
}

int port_reads_open(struct store_port *port, uint8_t *memory, uint64_t size, struct err *err)
{
    uint64_t each = port->options.read_buffer_size;
    port->read_owner.retain = port_slice_retain;
    port->read_owner.release = port_slice_release;
    port->read_count = (uint32_t)(size / each);
    port->read_buf_index = port->options.arena->buf_index;
    if (port->read_count == 0) {
        port->read_count = READS_OWN;
        port->read_buf_index = -1;
        memory = mmap(NULL, READS_OWN * each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return err_set(err, -ENOMEM, "out of memory for read buffers");
        }
        port->read_memory = memory;
    }
    port->reads = calloc(port->read_count, sizeof(*port->reads));
    port->read_free = calloc(port->read_count, sizeof(*port->read_free));
    if (port->reads == NULL || port->read_free == NULL) {
        return err_set(err, -ENOMEM, "out of memory for %u reads", port->read_count);
    }
    for (uint32_t i = 0; i < port->read_count; i++) {
        port->reads[i].magic = READ_MAGIC;
        port->reads[i].port = port;
        port->reads[i].buffer = memory + i * each;
        list_init(&port->reads[i].node);
        port_read_free(port, &port->reads[i]);
    }
    return 0;
}

void port_reads_close(struct store_port *port)
{
    if (port->reads != NULL && port->read_free != NULL) {
        CHECK(port->read_free_count == port->read_count);
    }
    if (port->read_memory != NULL) {
        munmap(port->read_memory, (uint64_t)READS_OWN * port->options.read_buffer_size);
    }
    free(port->reads);
    free(port->read_free);
}

/* The piece of the object that holds byte `offset`. */
static const struct object_piece *port_piece_find(const struct store_object *object, uint64_t offset)
{
    uint32_t low = 0;
    uint32_t high = object->piece_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (object->pieces[middle].at <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &object->pieces[low];
}

bool store_read_is_free(const struct store_port *port)
{
    return port->read_free_count > 0;
}

int store_read_begin(struct store_port *port, struct store_object *object, uint64_t offset, uint64_t len,
                     void *user, struct store_read **out)
{
    CHECK(port->magic == PORT_MAGIC);
    CHECK(object->magic == OBJECT_MAGIC);
    CHECK(len > 0);
    CHECK(offset < object->size);
    const struct object_piece *piece = port_piece_find(object, offset);
    const struct object_extent *extent = &piece->extent;
    if (extent->device >= port->store->device_count ||
        !extent_is_possible(extent, port->store->devices[extent->device].data_offset,
                            port->store->devices[extent->device].data_end)) {
        return ERR_CORRUPT; /* from the index; never trusted */
    }
    uint64_t inside = offset - piece->at;
    if (inside >= piece->length || piece->start > extent->length ||
        piece->length > extent->length - piece->start) {
        return ERR_CORRUPT;
    }
    if (port_watch_is_late(port, extent->device, WATCH_READ)) {
        return ERR_DEVICE_FAILED;
    }
    if (port->read_free_count == 0 || !port_watch_may_read(port, extent->device)) {
        return -EAGAIN;
    }
    struct store_read *read = &port->reads[port->read_free[--port->read_free_count]];
    len = len < piece->length - inside ? len : piece->length - inside;
    extent_read_span(extent, piece->start + inside, len, port->options.read_buffer_size,
                     port_dev(port, extent->device)->info.lba_size, &read->span);
    read->state = READ_READING;
    read->user = user;
    read->extent = extent;
    read->iov = (struct iovec){.iov_base = read->buffer, .iov_len = read->span.read_len};
    memset(&read->io, 0, sizeof(read->io));
    read->io.op = DEV_READ;
    read->io.buf_index = port->read_buf_index;
    read->io.offset = read->span.read_offset;
    read->io.len = read->span.read_len;
    read->io.iov = &read->iov;
    read->io.iov_count = 1;
    read->io.user = read;
    read->device = extent->device;
    read->is_in_flight = true;
    port_watch_begin(port, extent->device, WATCH_READ, read->span.read_len);
    dev_submit(port->read_queues[extent->device], &read->io);
    *out = read;
    return 0;
}

void port_read_done(struct store_read *read)
{
    struct store_port *port = read->port;
    CHECK(read->is_in_flight);
    read->is_in_flight = false;
    port_watch_end(port, read->device, WATCH_READ, read->span.read_len);
    /* Given up meanwhile: its user knows, or was told in store_read_take. */
    if (read->state != READ_READING) {
        if (read->state == READ_LATE) {
            port_read_free(port, read);
        }
        return;
    }
    read->result = read->io.result;
    if (read->result == 0) {
        int64_t bad = extent_verify(read->extent, &read->span, read->buffer);
        if (bad >= 0) {
            port->store->corrupt_blocks++;
            read->result = ERR_CORRUPT;
            LOG_ERR("block_corrupt", "device=%s extent_offset=%llu block=%lld",
                    LOG_Q(port_dev(port, read->extent->device)->path),
                    (unsigned long long)read->extent->offset, (long long)bad);
        }
    }
    read->state = READ_DONE;
    list_append(&port->read_events, &read->node);
}

void port_reads_give_up(struct store_port *port, uint32_t device)
{
    for (uint32_t i = 0; i < port->read_count; i++) {
        struct store_read *read = &port->reads[i];
        if (read->state == READ_READING && read->device == device) {
            read->result = ERR_DEVICE_FAILED;
            read->state = READ_DONE;
            list_append(&port->read_events, &read->node);
        }
    }
}

int store_read_take(struct store_read *read, struct slice *out)
{
    struct store_port *port = read->port;
    CHECK(read->magic == READ_MAGIC);
    CHECK(read->state == READ_DONE);
    CHECK(!list_is_linked(&read->node)); /* reported by store_poll first */
    if (read->result != 0 && read->is_in_flight) {
        read->state = READ_LATE; /* The buffer is the device's until it answers. */
        return read->result;
    }
    if (read->result != 0) {
        port_read_free(port, read);
        return read->result;
    }
    read->state = READ_LENT;
    read->references = 1;
    out->addr = read->buffer + read->span.payload_skip;
    out->len = (uint32_t)read->span.payload_len;
    out->buf_index = port->read_buf_index;
    out->owner = &port->read_owner;
    out->token = (uint64_t)(read - port->reads);
    return 0;
}

void *store_read_user(const struct store_read *read)
{
    CHECK(read->magic == READ_MAGIC);
    return read->user;
}

/* ---- what a looked-up object tells ----------------------------------------------------------------------------------- */

uint64_t store_object_size(const struct store_object *object)
{
    CHECK(object->magic == OBJECT_MAGIC);
    return object->size;
}

uint64_t store_object_modified_ns(const struct store_object *object)
{
    return object->modified_ns;
}

const struct store_attributes *store_object_attributes(const struct store_object *object)
{
    return &object->attributes;
}

uint32_t store_object_crc32c(const struct store_object *object)
{
    return object->crc32c;
}

uint32_t store_object_part_count(const struct store_object *object)
{
    return object->part_count;
}

struct store_part_place store_object_part_at(const struct store_object *object, uint32_t index)
{
    CHECK(index < object->part_count);
    const struct object_part *part = &object->parts[index];
    return (struct store_part_place){
        .number = part->number, .offset = part->at, .len = part->length, .payload = part->payload};
}

void store_object_release(struct store_port *port, struct store_object *object)
{
    CHECK(port->magic == PORT_MAGIC);
    CHECK(object->magic == OBJECT_MAGIC);
    if (object->epoch != 0) {
        epoch_unpin(port->store->epoch, object->epoch);
        store_reclaim(port->store);
    }
    object_free(object);
}
