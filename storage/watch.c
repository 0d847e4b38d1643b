/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch: notices that a device has stopped answering reads or writes, and lets nobody wait for it longer than its deadline. (Late
 * flushes are the committer's: commit.c.) A device is late when something is in flight and nothing has come back for that long.
 *
 * It is suspect then: new extents go to the others, and reads of it are refused. What was waiting is answered as a device failure at
 * once; its memory stays with the kernel until the device answers after all, which also makes it good again unless another of its
 * operations is late.
 *
 * Invariants, per port:
 *  1. in_flight counts the operations handed to the device and not answered, of either direction.
 *  2. One device of several has at most half of what reads and writes have for buffers, so that its silence cannot stop the rest.
 */
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "storage/lateness.h"
#include "storage/port_int.h"

static uint64_t watch_deadline_ns(const struct store_port *port, enum watch_kind kind)
{
    const struct store_options *options = &port->store->options;
    return kind == WATCH_READ ? options->read_deadline_ns : options->flush_deadline_ns;
}

void port_watch_begin(struct store_port *port, uint32_t device, enum watch_kind kind, uint64_t bytes)
{
    struct port_watch *watch = &port->watches[device][kind];
    if (watch->in_flight++ == 0) {
        watch->moved_ns = port->now_ns;
        watch->noticed_ns = 0;
    }
    watch->bytes += bytes;
}

void port_watch_end(struct store_port *port, uint32_t device, enum watch_kind kind, uint64_t bytes)
{
    struct port_watch *watch = &port->watches[device][kind];
    CHECK(watch->in_flight > 0);
    CHECK(watch->bytes >= bytes);
    watch->in_flight--;
    watch->bytes -= bytes;
    watch->moved_ns = port->now_ns;
    watch->noticed_ns = 0;
    if (watch->is_late) {
        watch->is_late = false;
        dev_suspect_set(port_dev(port, device), false);
        LOG_INF("device_state", "path=%s state=ok why=%s", LOG_Q(port_dev(port, device)->path),
                LOG_Q(kind == WATCH_READ ? "a read was answered" : "a write was answered"));
    }
}

bool port_watch_is_late(const struct store_port *port, uint32_t device, enum watch_kind kind)
{
    return port->watches[device][kind].is_late;
}

bool port_watch_may_read(const struct store_port *port, uint32_t device)
{
    return port->store->device_count == 1 ||
           port->watches[device][WATCH_READ].in_flight < (port->read_count + 1) / 2;
}

bool port_watch_may_write(const struct store_port *port, uint32_t device)
{
    uint64_t memory = port->options.arena->size;
    return port->store->device_count == 1 || port->watches[device][WATCH_WRITE].in_flight == 0 ||
           (port->watches[device][WATCH_WRITE].bytes < memory / 4 &&
            port->watches[device][WATCH_WRITE].in_flight < port->write_pool.count / 2);
}

static void watch_fail_writes(struct store_port *port, uint32_t device)
{
    LIST_FOR_EACH_SAFE(put_node, &port->puts)
    {
        struct store_put *put = CONTAINER_OF(put_node, struct store_put, node);
        bool waits = put->extent != NULL && put->extent->desc.device == device;
        LIST_FOR_EACH(node, &put->extents)
        {
            const struct put_extent *extent = CONTAINER_OF(node, struct put_extent, node);
            waits |= extent->desc.device == device && extent->writes_in_flight > 0;
        }
        if (waits && put->state == STORE_PUT_OPEN) {
            put_fail(put, ERR_DEVICE_FAILED);
        }
    }
}

static void watch_late(struct store_port *port, uint32_t device, enum watch_kind kind)
{
    port->watches[device][kind].is_late = true;
    dev_suspect_set(port_dev(port, device), true);
    LOG_ERR("device_state", "path=%s state=suspect why=%s", LOG_Q(port_dev(port, device)->path),
            LOG_Q(kind == WATCH_READ ? "no read was answered within read_deadline"
                                     : "no write was answered within flush_deadline"));
    if (kind == WATCH_READ) {
        port_reads_give_up(port, device);
    } else {
        watch_fail_writes(port, device);
    }
}

static bool watch_is_on(const struct store_port *port, uint32_t device, enum watch_kind kind)
{
    const struct port_watch *watch = &port->watches[device][kind];
    return watch->in_flight > 0 && !watch->is_late && watch_deadline_ns(port, kind) > 0;
}

/* When to look at this device if it stays silent. */
static uint64_t watch_due_ns(const struct store_port *port, uint32_t device, enum watch_kind kind)
{
    const struct port_watch *watch = &port->watches[device][kind];
    return watch_is_on(port, device, kind)
               ? lateness_due_ns(watch->noticed_ns, watch->moved_ns, watch_deadline_ns(port, kind))
               : TIME_NEVER;
}

void port_watch(struct store_port *port)
{
    for (uint32_t device = 0; device < port->store->device_count; device++) {
        for (uint32_t kind = 0; kind < WATCH_KINDS; kind++) {
            struct port_watch *watch = &port->watches[device][kind];
            if (watch_is_on(port, device, kind) &&
                lateness_look(&watch->noticed_ns, watch->moved_ns, watch_deadline_ns(port, kind),
                              port->now_ns)) {
                watch_late(port, device, kind);
            } else if (watch->is_late) {
                dev_suspect_set(port_dev(port, device), true); /* Others may have had an answer. */
            }
        }
    }
}

uint64_t port_watch_deadline(const struct store_port *port)
{
    uint64_t first_ns = TIME_NEVER;
    for (uint32_t device = 0; device < port->store->device_count; device++) {
        for (uint32_t kind = 0; kind < WATCH_KINDS; kind++) {
            uint64_t due_ns = watch_due_ns(port, device, kind);
            first_ns = due_ns < first_ns ? due_ns : first_ns;
        }
    }
    return first_ns;
}
