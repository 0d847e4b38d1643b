/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space: where payload goes. The free maps of the devices are shared and locked; a port takes runs (leases) out of them for small
 * objects, so that most objects need no lock and lie behind each other.
 *
 * What a peer announces takes no space: an upload holds in advance 1 MiB at first, and later a few times what has arrived, so that
 * stalled uploads of any announced size leave the store to others. An announced size that is more than what is free is refused at
 * once; one that fits is not sure to fit later.
 *
 * A device is called full when an upload was refused while it had less than a hundredth of its space, and no longer so when it has
 * twice that: both are logged, and a node at the edge says it once.
 *
 * `used` of a device counts what extents take, not what a lease holds in advance.
 */
#include <errno.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "storage/port_int.h"

#define LEASE_OBJECT_MAX (256 * KIB) /* larger objects get a run of their own */
#define LEASE_MAX (64 * MIB)
#define LEASE_MIN (1 * MIB)
#define FULL_PARTS 100U
#define FULL_MIN (8 * MIB)     /* of small devices */
#define GROWTH_FIRST (1 * MIB) /* what an upload takes in advance: 1, 4, 16, 64, 256 MiB, 1 GiB */
#define GROWTH_FACTOR 4U

/* ---- devices ------------------------------------------------------------------------------------------------------- */

static uint64_t store_block_of(const struct store_device *device, uint64_t offset)
{
    CHECK(offset >= device->data_offset);
    CHECK(offset % EXTENT_BLOCK == 0);
    return (offset - device->data_offset) / EXTENT_BLOCK;
}

int store_space_take(struct store_device *device, uint64_t near, uint64_t want, uint64_t min,
                     uint64_t *offset, uint64_t *len)
{
    uint64_t start = 0;
    uint64_t count = 0;
    bool found = false;
    want = bytes_round_up(want, EXTENT_BLOCK) / EXTENT_BLOCK;
    min = bytes_round_up(min, EXTENT_BLOCK) / EXTENT_BLOCK;
    pthread_mutex_lock(&device->lock);
    if (near != 0 && near < device->data_end) {
        start = store_block_of(device, near);
        count = want;
        found = alloc_take_at(&device->alloc, start, want, false);
    } else if (near == 0) {
        found = alloc_take(&device->alloc, want, min, &start, &count);
    }
    pthread_mutex_unlock(&device->lock);
    if (!found) {
        return -ENOSPC;
    }
    *offset = device->data_offset + start * EXTENT_BLOCK;
    *len = count * EXTENT_BLOCK;
    device->used += *len;
    return 0;
}

/* Bytes that uploads may still take on a device. */
static uint64_t store_device_free(const struct store_device *device)
{
    uint64_t taken = device->used + device->alloc.reserve * EXTENT_BLOCK;
    uint64_t size = device->data_end - device->data_offset;
    return size > taken ? size - taken : 0;
}

static uint64_t store_full_below(const struct store_device *device)
{
    uint64_t part = (device->data_end - device->data_offset) / FULL_PARTS;
    return part > FULL_MIN ? part : FULL_MIN;
}

/* An upload found no room. A device that has some is not to blame: too much was asked for at once. */
static void store_space_refused(struct store *store)
{
    for (uint32_t i = 0; i < store->device_count; i++) {
        struct store_device *device = &store->devices[i];
        uint64_t left = store_device_free(device);
        if (dev_takes_writes(device->dev) && left < store_full_below(device) &&
            !atomic_exchange(&device->is_full, true)) {
            LOG_WRN("device_full", "path=%s free_bytes=%llu size_bytes=%llu remedy=%s",
                    LOG_Q(device->dev->path), (unsigned long long)left,
                    (unsigned long long)(device->data_end - device->data_offset),
                    LOG_Q("uploads are answered 507; delete objects or add a device"));
        }
    }
}

static void store_space_found(struct store_device *device)
{
    uint64_t left = store_device_free(device);
    if (left >= 2 * store_full_below(device) && atomic_exchange(&device->is_full, false)) {
        LOG_INF("device_has_space", "path=%s free_bytes=%llu size_bytes=%llu", LOG_Q(device->dev->path),
                (unsigned long long)left, (unsigned long long)(device->data_end - device->data_offset));
    }
}

void store_space_give(struct store_device *device, uint64_t offset, uint64_t len)
{
    pthread_mutex_lock(&device->lock);
    alloc_give(&device->alloc, store_block_of(device, offset), len / EXTENT_BLOCK);
    pthread_mutex_unlock(&device->lock);
    device->used -= len;
    if (atomic_load_explicit(&device->is_full, memory_order_relaxed)) {
        store_space_found(device);
    }
}

int store_space_mark(struct store *store, const struct object_space *space)
{
    if (space->device >= store->device_count) {
        return -ENODEV;
    }
    struct store_device *device = &store->devices[space->device];
    if (space->offset < device->data_offset || space->offset % EXTENT_BLOCK != 0 ||
        space->length % EXTENT_BLOCK != 0 || space->length == 0 || space->offset > device->data_end ||
        space->length > device->data_end - space->offset) {
        return -ERANGE;
    }
    pthread_mutex_lock(&device->lock);
    bool fresh = alloc_take_at(&device->alloc, store_block_of(device, space->offset),
                               space->length / EXTENT_BLOCK, true);
    pthread_mutex_unlock(&device->lock);
    if (!fresh) {
        return -EEXIST;
    }
    device->used += space->length;
    return 0;
}

void store_reclaim(struct store *store)
{
    struct object_space spaces[64];
    uint32_t count;
    do {
        count = epoch_reclaim(store->epoch, spaces, ARRAY_COUNT(spaces));
        for (uint32_t i = 0; i < count; i++) {
            store_space_give(&store->devices[spaces[i].device], spaces[i].offset, spaces[i].length);
        }
    } while (count == ARRAY_COUNT(spaces));
}

/* ---- promises -------------------------------------------------------------------------------------------------------- */

int port_space_promise(struct store_put *put)
{
    struct store *store = put->port->store;
    bool is_known = put->size_known != UINT64_MAX;
    uint64_t total = 0;
    uint32_t usable = 0;
    for (uint32_t i = 0; i < store->device_count; i++) {
        if (dev_takes_writes(store->devices[i].dev)) {
            total += store_device_free(&store->devices[i]);
            usable++;
        }
    }
    if (usable == 0) {
        return ERR_DEVICE_FAILED;
    }
    if (is_known && put->size_known > total) {
        store_space_refused(store);
        return -ENOSPC;
    }
    uint64_t extents = is_known ? put->size_known / EXTENT_BYTES_MAX + 1 : 1;
    uint64_t need =
        is_known ? bytes_round_up(put->size_known, EXTENT_BLOCK) + extents * EXTENT_BLOCK : EXTENT_BLOCK;
    need = put->size_known == 0 ? 0 : need;
    put->promised = need < GROWTH_FIRST + EXTENT_BLOCK ? need : GROWTH_FIRST + EXTENT_BLOCK;
    if (atomic_fetch_add(&store->promised, put->promised) + need > total) {
        port_space_unpromise(put);
        store_space_refused(store);
        return -ENOSPC;
    }
    return 0;
}

static void port_promise_use(struct store_put *put, uint64_t bytes)
{
    bytes = bytes < put->promised ? bytes : put->promised;
    put->promised -= bytes;
    put->port->store->promised -= bytes;
}

void port_space_unpromise(struct store_put *put)
{
    port_promise_use(put, put->promised);
}

/* ---- leases ---------------------------------------------------------------------------------------------------------- */

static void port_lease_give(struct store_port *port, uint32_t index)
{
    struct port_lease *lease = &port->leases[index];
    if (lease->left > 0) {
        port->store->devices[index].used += lease->left; /* give takes it off again */
        store_space_give(&port->store->devices[index], lease->offset, lease->left);
        lease->left = 0;
    }
}

void port_leases_give(struct store_port *port)
{
    for (uint32_t i = 0; i < port->store->device_count; i++) {
        port_lease_give(port, i);
    }
}

static int port_lease_take(struct store_port *port, uint32_t index, uint64_t want)
{
    struct store_device *device = &port->store->devices[index];
    struct port_lease *lease = &port->leases[index];
    uint64_t share = store_device_free(device) / (16U * (port->store->options.ports_max + 1U));
    uint64_t size = share < LEASE_MAX ? share : LEASE_MAX;
    size = size > LEASE_MIN ? size : LEASE_MIN;
    port_lease_give(port, index);
    int rc = store_space_take(device, 0, size > want ? size : want, want, &lease->offset, &lease->left);
    if (rc == 0) {
        device->used -= lease->left;
    }
    return rc;
}

static int port_lease_carve(struct store_port *port, uint32_t index, uint64_t want, uint64_t *offset,
                            uint64_t *len)
{
    struct port_lease *lease = &port->leases[index];
    want = bytes_round_up(want, EXTENT_BLOCK);
    if (lease->left < want) {
        int rc = port_lease_take(port, index, want);
        if (rc < 0) {
            return rc;
        }
    }
    *offset = lease->offset;
    *len = want;
    lease->offset += want;
    lease->left -= want;
    port->store->devices[index].used += want;
    return 0;
}

/* Gives the end of an extent back, to the lease when it was cut from just before it. */
static void port_space_trim(struct store_port *port, uint32_t index, uint64_t offset, uint64_t len)
{
    struct port_lease *lease = &port->leases[index];
    if (lease->left > 0 && offset + len == lease->offset) {
        lease->offset = offset;
        lease->left += len;
        port->store->devices[index].used -= len;
        return;
    }
    store_space_give(&port->store->devices[index], offset, len);
}

/* ---- extents --------------------------------------------------------------------------------------------------------- */

/* Devices take turns, the emptier half of them only, so that they fill evenly; one that is not healthy is left out. */
static bool port_device_suits(const struct store_port *port, uint32_t index, uint64_t free_max)
{
    const struct store_device *device = &port->store->devices[index];
    return dev_takes_writes(device->dev) && store_device_free(device) >= free_max / 2;
}

static uint64_t port_free_max(const struct store_port *port)
{
    uint64_t max = 0;
    for (uint32_t i = 0; i < port->store->device_count; i++) {
        uint64_t available =
            dev_takes_writes(port_dev(port, i)) ? store_device_free(&port->store->devices[i]) : 0;
        max = max > available ? max : available;
    }
    return max;
}

static int port_extent_space(struct store_put *put, uint32_t device, uint64_t want, struct put_extent *extent)
{
    struct store_port *port = put->port;
    if (want <= LEASE_OBJECT_MAX && put->size_known != UINT64_MAX) {
        return port_lease_carve(port, device, want, &extent->desc.offset, &extent->reserved);
    }
    int rc = store_space_take(&port->store->devices[device], 0, want, EXTENT_BLOCK, &extent->desc.offset,
                              &extent->reserved);
    if (rc == -ENOSPC && port->leases[device].left > 0) {
        port_lease_give(port, device); /* our own advance may be all that is left */
        rc = store_space_take(&port->store->devices[device], 0, want, EXTENT_BLOCK, &extent->desc.offset,
                              &extent->reserved);
    }
    return rc;
}

/* Bytes to ask for: a growing share of what is to come. */
static uint64_t port_extent_want(struct store_put *put, uint32_t phase)
{
    uint64_t want = put->growth;
    if (put->size_known != UINT64_MAX) {
        CHECK(put->size_known > put->packed);
        uint64_t left = put->size_known - put->packed;
        want = left < want && left < EXTENT_BYTES_MAX - phase ? left + phase : want;
    }
    put->growth =
        put->growth < EXTENT_BYTES_MAX / GROWTH_FACTOR ? put->growth * GROWTH_FACTOR : EXTENT_BYTES_MAX;
    return want < EXTENT_BYTES_MAX ? want : EXTENT_BYTES_MAX;
}

static int port_extent_place(struct store_put *put, uint64_t address, struct put_extent *extent)
{
    struct store_port *port = put->port;
    uint32_t count = port->store->device_count;
    uint64_t free_max = port_free_max(port);
    uint64_t want_base = 0;
    for (uint32_t pass = 0; pass < 2; pass++) { /* first those that suit, then any that works */
        for (uint32_t i = 0; i < count; i++) {
            uint32_t device = (port->device_next + i) % count;
            if (!port_device_suits(port, device, pass == 0 ? free_max : 0)) {
                continue;
            }
            uint32_t alignment = port->store->devices[device].fragment_alignment;
            uint32_t phase = put->is_staging ? 0 : (uint32_t)(address % alignment);
            want_base = want_base == 0 ? port_extent_want(put, phase) : want_base;
            if (port_extent_space(put, device, want_base, extent) == 0) {
                extent->desc.device = device;
                extent->desc.phase = phase;
                port->device_next = device + 1;
                return 0;
            }
        }
    }
    if (free_max == 0 && want_base == 0) {
        return ERR_DEVICE_FAILED;
    }
    store_space_refused(port->store);
    return -ENOSPC;
}

int port_extent_open(struct store_put *put, uint64_t address)
{
    struct store_port *port = put->port;
    if (put->extent_count == PUT_EXTENTS_MAX) {
        return -EAGAIN; /* until the committer has recorded some */
    }
    if (put->growth == 0) {
        put->growth = GROWTH_FIRST;
    }
    struct put_extent *extent = pool_take(&port->extent_pool);
    if (extent == NULL) {
        port_extents_pressure(port);
        return -EAGAIN;
    }
    int rc = port_extent_place(put, address, extent);
    if (rc < 0) {
        pool_give(&port->extent_pool, extent);
        return rc;
    }
    port_promise_use(put, extent->reserved);
    extent->next_at = 0;
    extent->writes_in_flight = 0;
    extent->is_closed = false;
    extent_sum_begin(&extent->sum, extent->checksums, EXTENT_CHECKSUMS_MAX, extent->desc.phase);
    list_init(&extent->node);
    list_append(&put->extents, &extent->node);
    put->extent_count++;
    put->extent = extent;
    put->device_mask |= 1ULL << extent->desc.device;
    return 0;
}

bool port_extent_extend(struct store_put *put)
{
    struct put_extent *extent = put->extent;
    if (extent->reserved >= EXTENT_BYTES_MAX) {
        return false;
    }
    uint64_t growth = put->growth;
    uint64_t want = port_extent_want(put, 0);
    uint64_t room = EXTENT_BYTES_MAX - extent->reserved;
    uint64_t offset;
    uint64_t len;
    want = want < room ? want : room;
    int rc = store_space_take(&put->port->store->devices[extent->desc.device],
                              extent->desc.offset + extent->reserved, want, want, &offset, &len);
    if (rc < 0) {
        put->growth = growth; /* The next extent takes what this one could not. */
        return false;
    }
    extent->reserved += len;
    port_promise_use(put, len);
    return true;
}

/* CRC of the whole extent from those of its blocks. */
static uint32_t port_extent_crc(const struct put_extent *extent)
{
    uint64_t end = extent->desc.phase + extent->desc.length;
    uint32_t crc = extent->checksums[0];
    for (uint32_t i = 1; i < extent->desc.checksum_count; i++) {
        uint64_t from = (uint64_t)i * EXTENT_CHECKSUM_BLOCK;
        uint64_t len = end - from < EXTENT_CHECKSUM_BLOCK ? end - from : EXTENT_CHECKSUM_BLOCK;
        crc = crc32c_combine(crc, extent->checksums[i], len);
    }
    return crc;
}

void port_extent_close(struct store_put *put)
{
    struct store_port *port = put->port;
    struct put_extent *extent = put->extent;
    struct object_extent *desc = &extent->desc;
    CHECK(put->unit == NULL);
    put->extent = NULL;
    desc->length = extent->sum.position - desc->phase;
    if (desc->length == 0) { /* opened, and then nothing came */
        port_space_trim(port, desc->device, desc->offset, extent->reserved);
        list_remove(&extent->node);
        put->extent_count--;
        pool_give(&port->extent_pool, extent);
        return;
    }
    desc->checksum_count = extent_checksum_count(desc->phase, desc->length);
    desc->checksums = extent->checksums;
    put->crc32c = crc32c_combine(put->crc32c, port_extent_crc(extent), desc->length);
    uint64_t space = object_space_length(desc->phase, desc->length);
    if (space < extent->reserved) {
        port_space_trim(port, desc->device, desc->offset + space, extent->reserved - space);
        extent->reserved = space;
    }
    extent->is_closed = true;
}

void port_extents_forget(struct store_put *put, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct put_extent *extent = CONTAINER_OF(list_take_first(&put->extents), struct put_extent, node);
        CHECK(extent->writes_in_flight == 0);
        pool_give(&put->port->extent_pool, extent);
        put->extent_count--;
    }
    put->port->has_freed = put->port->has_freed || count > 0;
}

void port_extents_give(struct store_put *put)
{
    LIST_FOR_EACH(node, &put->extents)
    {
        const struct put_extent *extent = CONTAINER_OF(node, struct put_extent, node);
        CHECK(extent->writes_in_flight == 0);
        store_space_give(&put->port->store->devices[extent->desc.device], extent->desc.offset,
                         extent->reserved);
    }
    put->extent = NULL;
    port_extents_forget(put, put->extent_count);
}
