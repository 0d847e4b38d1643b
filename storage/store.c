/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store: puts the parts together and takes them apart: devices with their free maps, the index, recovery, the self-test, committer
 * and readers. What it tells about itself (health, counters) is read from any thread.
 */
#include "storage/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "storage/extent.h"
#include "storage/recover.h"
#include "storage/store_int.h"

#define INDEX_RESERVE (4 * MIB) /* on the index's file system, so that deletes work when it is full */

/* ---- devices ------------------------------------------------------------------------------------------------------- */

static int store_device_map_open(struct store_device *device, uint32_t reserve_percent, struct err *err)
{
    uint64_t blocks = (device->data_end - device->data_offset) / EXTENT_BLOCK;
    device->alloc_memory_size = alloc_memory_size(blocks);
    device->alloc_memory =
        mmap(NULL, device->alloc_memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (device->alloc_memory == MAP_FAILED) {
        device->alloc_memory = NULL;
        return err_set(err, -ENOMEM, "%s: out of memory for the free map (%llu bytes)", device->dev->path,
                       (unsigned long long)device->alloc_memory_size);
    }
    alloc_init(&device->alloc, device->alloc_memory, blocks, blocks * reserve_percent / 100);
    return 0;
}

/* Reads the superblock of an opened device and puts the device in its place. */
static int store_device_place(struct store *store, struct dev *dev, uint64_t size_configured,
                              struct uring *uring, struct err *err)
{
    struct superblock sb;
    struct dev_queue *queue = NULL;
    int rc = dev_queue_open(dev, uring, 1, &queue, err);
    if (rc < 0) {
        return rc;
    }
    rc = superblock_read(queue, &sb, err);
    dev_queue_close(queue);
    if (rc < 0) {
        return rc;
    }
    if (sb.device_count != store->options.device_count) {
        return err_set(err, -EINVAL, "%s belongs to a store of %u devices, but %u are configured", dev->path,
                       sb.device_count, store->options.device_count);
    }
    struct store_device *device = &store->devices[sb.device_index];
    if (device->dev != NULL) {
        return err_set(err, -EINVAL, "%s and %s are the same device of the store", dev->path,
                       device->dev->path);
    }
    if (store->device_count > 0 && memcmp(sb.store_id, store->store_id, sizeof(sb.store_id)) != 0) {
        return err_set(err, ERR_FOREIGN_STORE, "%s belongs to another store than the devices before it",
                       dev->path);
    }
    if (sb.device_size > dev->info.size ||
        (size_configured != 0 && bytes_round_down(size_configured, EXTENT_BLOCK) < sb.device_size)) {
        return err_set(err, -EINVAL, "%s was formatted with %llu bytes and has become smaller (%llu)",
                       dev->path, (unsigned long long)sb.device_size, (unsigned long long)dev->info.size);
    }
    memcpy(store->store_id, sb.store_id, sizeof(sb.store_id));
    device->index = sb.device_index;
    device->data_offset = sb.data_offset;
    device->data_end = sb.device_size;
    device->dev = dev;
    store->device_count++;
    return 0;
}

static int store_devices_open(struct store *store, const struct store_build *build, struct uring *uring,
                              struct err *err)
{
    for (uint32_t i = 0; i < build->options->device_count; i++) {
        const struct store_device_options *options = &build->options->devices[i];
        struct dev *dev = build->devices[i];
        struct dev_uring_options open = {.path = options->path, .is_exclusive = true, .want_direct = true};
        int rc = dev != NULL ? 0 : dev_open(&open, &dev, err);
        rc = rc == 0 ? store_device_place(store, dev, options->size, uring, err) : rc;
        if (rc < 0) {
            if (dev != NULL && build->devices[i] == NULL) {
                dev_close(dev);
            }
            return rc;
        }
    }
    for (uint32_t i = 0; i < store->device_count; i++) {
        struct store_device *device = &store->devices[i];
        int rc = store_device_map_open(device, build->options->reserve_percent, err);
        rc = rc == 0 ? store_selftest(device, uring, err) : rc;
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

static void store_devices_close(struct store *store)
{
    /* By place: a failed start leaves gaps. */
    for (uint32_t i = 0; i < STORE_DEVICES_MAX; i++) {
        struct store_device *device = &store->devices[i];
        if (device->alloc_memory != NULL) {
            munmap(device->alloc_memory, device->alloc_memory_size);
        }
        if (device->dev != NULL && store->owns_devices) {
            dev_close(device->dev);
        }
        pthread_mutex_destroy(&device->lock);
    }
}

/* ---- index --------------------------------------------------------------------------------------------------------- */

static int store_mark_used(void *ctx, const struct object_space *space)
{
    return store_space_mark(ctx, space);
}

static void store_index_options(const struct store *store, const struct store_build *build,
                                struct index_options *out)
{
    memset(out, 0, sizeof(*out));
    out->dir = store->options.data_dir;
    out->vfs = build->vfs;
    memcpy(out->store_id, store->store_id, sizeof(out->store_id));
    out->size_max = store->options.index_size_max;
    out->reserve = build->vfs == NULL ? INDEX_RESERVE : 0;
    out->log_pages = build->index_log_pages;
    out->skip_sync = build->skip_sync;
}

static int store_recover(struct store *store, struct err *err)
{
    static const struct recover_ops ops = {.mark_used = store_mark_used};
    struct recover_result result;
    memset(&result, 0, sizeof(result));
    int rc = recover_run(store->index, &ops, store, &result, err);
    if (rc == 0) {
        LOG_INF("store_recovered", "extents=%llu bytes=%llu pending_dropped=%llu",
                (unsigned long long)result.extents, (unsigned long long)result.bytes,
                (unsigned long long)result.pending_dropped);
    }
    return rc;
}

static int store_commit_open(struct store *store, const struct store_build *build, struct err *err)
{
    struct commit_options options = {
        .index = store->index,
        .ops = &store_commit_ops,
        .ops_ctx = store,
        .device_mask = store->device_count == 64 ? UINT64_MAX : (1ULL << store->device_count) - 1,
        .flush_deadline_ns = store->options.flush_deadline_ns,
        .commit_window_ns = store->options.commit_window_ns,
        .upload_expiry_ns = store->options.upload_expiry_ns,
        .id_seed = build->id_seed,
        .skip_flush = build->skip_flush,
    };
    if (options.id_seed == 0 &&
        getrandom(&options.id_seed, sizeof(options.id_seed), 0) != (ssize_t)sizeof(options.id_seed)) {
        return err_set(err, -EIO, "the system's random generator does not answer");
    }
    int rc = commit_open(&options, &store->commit);
    return rc == 0 ? 0 : err_set(err, rc, "the committer: %s", err_text(rc));
}

static int store_index_open(struct store *store, const struct store_build *build, struct err *err)
{
    struct index_options options;
    store_index_options(store, build, &options);
    int rc = index_open(&options, &store->index, err);
    rc = rc == 0 ? store_recover(store, err) : rc;
    rc = rc == 0 ? store_commit_open(store, build, err) : rc;
    uint32_t readers = store->options.index_readers < 1 ? 1 : store->options.index_readers;
    readers = readers < STORE_READERS_MAX ? readers : STORE_READERS_MAX;
    for (uint32_t i = 0; i < readers && rc == 0; i++) {
        rc = index_reader_open(&options, &store_reader_ops, store, &store->readers[i], err);
        store->reader_count += rc == 0;
    }
    return rc;
}

/* ---- opening and closing --------------------------------------------------------------------------------------------- */

static void store_close_parts(struct store *store)
{
    store_threads_stop(store);
    store_flush_queues_close(store);
    for (uint32_t i = 0; i < store->reader_count; i++) {
        index_reader_close(store->readers[i]);
    }
    if (store->commit != NULL) {
        commit_close(store->commit);
    }
    if (store->index != NULL) {
        index_close(store->index);
    }
    if (store->epoch != NULL) {
        epoch_close(store->epoch);
    }
    store_devices_close(store);
    pthread_cond_destroy(&store->start_known);
    pthread_mutex_destroy(&store->start_lock);
    store->magic = 0;
    free(store);
}

static int store_open_devices_with_ring(struct store *store, const struct store_build *build, struct err *err)
{
    struct uring ring;
    struct uring_options options = {.sq_entries = 64, .cq_entries = 128, .buffers_max = 1};
    if (build->devices[0] != NULL && build->is_stepped) {
        return store_devices_open(store, build, NULL, err);
    }
    int rc = uring_open(&ring, &options, err);
    if (rc == 0) {
        rc = store_devices_open(store, build, &ring, err);
        uring_close(&ring);
    }
    return rc;
}

int store_build_open(const struct store_build *build, struct store **out, struct err *err)
{
    CHECK(build->options->device_count >= 1);
    CHECK(build->options->device_count <= STORE_DEVICES_MAX);
    struct store *store = aligned_alloc(64, bytes_round_up(sizeof(*store), 64));
    if (store == NULL) {
        return err_set(err, -ENOMEM, "out of memory for the store");
    }
    memset(store, 0, sizeof(*store));
    store->options = *build->options;
    store->is_stepped = build->is_stepped;
    store->owns_devices = build->devices[0] == NULL;
    store->stop_fd = -1;
    pthread_mutex_init(&store->start_lock, NULL);
    pthread_cond_init(&store->start_known, NULL);
    for (uint32_t i = 0; i < STORE_DEVICES_MAX; i++) {
        pthread_mutex_init(&store->devices[i].lock, NULL);
    }
    snprintf(store->commit_busy.name, sizeof(store->commit_busy.name), "committer");
    for (uint32_t i = 0; i < STORE_READERS_MAX; i++) {
        snprintf(store->reader_busy[i].name, sizeof(store->reader_busy[i].name), "reader-%u", i);
    }
    int rc = epoch_open(&store->epoch);
    rc = rc == 0 ? store_open_devices_with_ring(store, build, err) : rc;
    rc = rc == 0 ? store_index_open(store, build, err) : rc;
    if (rc == 0 && build->is_stepped) {
        rc = store_flush_queues_open(store, NULL, err);
    } else if (rc == 0) {
        rc = store_threads_start(store, err);
    }
    if (rc < 0) {
        store_close_parts(store);
        return rc;
    }
    store->magic = STORE_MAGIC;
    *out = store;
    return 0;
}

int store_open(const struct store_options *options, struct store **out, struct err *err)
{
    struct store_build build = {.options = options};
#ifdef PENSTOCK_FAULT_NO_FLUSH
    /* Builds with a fault planted: the crash tests must find them (tests/README.md). */
    build.skip_flush = true;
#endif
#ifdef PENSTOCK_FAULT_NO_INDEX_SYNC
    build.skip_sync = true;
#endif
    return store_build_open(&build, out, err);
}

void store_close(struct store *store)
{
    CHECK(store->magic == STORE_MAGIC);
    CHECK(store->port_count == 0);
    store_close_parts(store);
}

bool store_step(struct store *store, uint64_t now_ns, uint64_t realtime_ns)
{
    CHECK(store->is_stepped);
    bool more = store_commit_turn(store, now_ns, realtime_ns) == 0;
    for (uint32_t i = 0; i < store->reader_count; i++) {
        more = index_reader_step(store->readers[i]) || more;
    }
    return more;
}

/* ---- what it tells --------------------------------------------------------------------------------------------------- */

int store_device_probe(const char *path, bool is_exclusive, struct store_device_probe *out, struct err *err)
{
    struct dev *dev = NULL;
    struct dev_uring_options open = {.path = path, .is_exclusive = is_exclusive, .want_direct = true};
    int rc = dev_open(&open, &dev, err);
    if (rc < 0) {
        return rc;
    }
    memset(out, 0, sizeof(*out));
    snprintf(out->type, sizeof(out->type), "%s", dev->info.type);
    snprintf(out->note, sizeof(out->note), "%s", dev->info.note);
    out->size = dev->info.size;
    out->lba_size = dev->info.lba_size;
    out->dma_alignment = dev->info.dma_alignment;
    dev_close(dev);
    return 0;
}

uint32_t store_device_count(const struct store *store)
{
    return store->device_count;
}

void store_device_info(struct store *store, uint32_t index, struct store_device_info *out)
{
    CHECK(index < store->device_count);
    struct store_device *device = &store->devices[index];
    struct dev *dev = device->dev;
    memset(out, 0, sizeof(*out));
    snprintf(out->path, sizeof(out->path), "%s", dev->path);
    out->state = (enum store_device_state)dev->state;
    if (out->state == STORE_DEVICE_FAILED) {
        snprintf(out->state_reason, sizeof(out->state_reason), "%s", dev->state_reason);
    } else if (out->state == STORE_DEVICE_SUSPECT) {
        snprintf(out->state_reason, sizeof(out->state_reason),
                 "a flush has not answered within its deadline");
    }
    out->size = device->data_end - device->data_offset;
    out->used = device->used;
    out->is_full = device->is_full;
    out->lba_size = dev->info.lba_size;
    out->dma_alignment = device->fragment_alignment;
    out->fragments_max = dev->info.fragments_max;
    out->fragments_ok = device->fragments_ok;
    out->packets_ok = device->fragments_ok && !store_device_is_coarse(device);
    out->direct = dev->info.direct;
    snprintf(out->note, sizeof(out->note), "%s", device->note);
    out->read_bytes = dev->stats.bytes[DEV_READ];
    out->written_bytes = dev->stats.bytes[DEV_WRITE];
    out->reads = dev->stats.ops[DEV_READ];
    out->writes = dev->stats.ops[DEV_WRITE];
    out->flushes = dev->stats.ops[DEV_FLUSH];
    out->read_errors = dev->stats.errors[DEV_READ];
    out->write_errors = dev->stats.errors[DEV_WRITE];
    out->flush_errors = dev->stats.errors[DEV_FLUSH];
    out->writes_in_flight = dev->stats.writes_in_flight;
    out->write_fragments = dev->stats.write_fragments;
}

const struct store_histogram *store_device_latency(struct store *store, uint32_t index,
                                                   enum store_latency kind)
{
    CHECK(index < store->device_count);
    CHECK((uint32_t)kind < STORE_LATENCY_KINDS);
    return &store->devices[index].dev->stats.latency[kind];
}

void store_stats(struct store *store, struct store_stats *out)
{
    struct index_counters counters;
    struct commit_stats commit;
    memset(out, 0, sizeof(*out));
    index_counters(store->index, &counters);
    commit_stats(store->commit, &commit);
    out->objects = counters.objects;
    out->object_bytes = counters.object_bytes;
    out->uploads_pending = counters.uploads;
    out->uploads_pending_bytes = counters.upload_bytes;
    out->puts_in_flight = store->puts_in_flight;
    out->commits = commit.transactions;
    out->commit_items = commit.items;
    out->commit_latency = commit.latency;
    out->index_bytes = index_size_bytes(store->index);
    out->index_errors = commit.index_errors;
    out->index_late = store_index_is_late(store);
    out->uploads_expired = commit.uploads_expired;
    for (uint32_t i = 0; i < store->reader_count; i++) {
        out->index_errors += index_reader_errors(store->readers[i]);
    }
    out->corrupt_blocks = store->corrupt_blocks;
    out->space_waits = epoch_held_bytes(store->epoch);
    out->scrubbed_bytes = store->scrubbed_bytes;
}

static bool store_index_is_damaged(const struct store *store)
{
    bool is_damaged = false;
    for (uint32_t i = 0; i < store->reader_count; i++) {
        is_damaged = is_damaged || index_reader_is_damaged(store->readers[i]);
    }
    return is_damaged;
}

int store_health(struct store *store, struct err *err)
{
    int rc = commit_health(store->commit);
    if (rc != 0) {
        return err_set(
            err, rc, "the index failed (%s): nothing is stored any more; restart after its disk is repaired",
            err_text(rc));
    }
    if (store_index_is_late(store)) {
        return err_set(err, ERR_DEVICE_FAILED,
                       "the index's disk (data_dir) does not answer: requests that need it get 503");
    }
    if (store_index_is_damaged(store)) {
        return err_set(err, ERR_CORRUPT,
                       "the index is damaged: what it still finds can be read; move the objects away, or put "
                       "back a copy of "
                       "data_dir");
    }
    uint64_t available = 0;
    uint32_t usable = 0;
    for (uint32_t i = 0; i < store->device_count; i++) {
        struct store_device *device = &store->devices[i];
        uint64_t size = device->data_end - device->data_offset;
        uint64_t taken = device->used + device->alloc.reserve * EXTENT_BLOCK;
        if (dev_takes_writes(device->dev)) {
            usable++;
            available += size > taken ? size - taken : 0;
        }
    }
    if (usable == 0) {
        return err_set(err, ERR_DEVICE_FAILED, "no device takes writes: all %u failed or do not answer",
                       store->device_count);
    }
    if (available == 0) {
        return err_set(err, -ENOSPC, "all devices are full; delete objects or add a device");
    }
    return 0;
}
