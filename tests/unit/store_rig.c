/* SPDX-License-Identifier: Apache-2.0 */
#include "store_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "storage/extent.h"

#define AREA_SIZE (8 * MIB)
#define WAIT_NS (30 * NS_PER_S)
#define TURNS_MAX 2000000U /* of a stepped store: a bound for what never comes */

static void rig_retain(struct slice_owner *owner, const struct slice *slice)
{
    (void)slice;
    CONTAINER_OF(owner, struct store_rig, owner)->slices_out++;
}

static void rig_release(struct slice_owner *owner, const struct slice *slice)
{
    (void)slice;
    struct store_rig *rig = CONTAINER_OF(owner, struct store_rig, owner);
    CHECK(rig->slices_out > 0);
    rig->slices_out--;
}

static uint64_t value_or(uint64_t value, uint64_t fallback)
{
    return value != 0 ? value : fallback;
}

static void rig_store_open(struct store_rig *rig)
{
    struct err err = {""};
    struct store_build build = {
        .options = &rig->store_options, .is_stepped = rig->options.is_memory, .id_seed = 7};
    memcpy(build.devices, rig->devices, sizeof(build.devices));
    int rc = store_build_open(&build, &rig->store, &err);
    cr_assert_eq(rc, 0, "store_build_open: %s", err.text);
    struct store_port_options options = {
        .uring = rig->options.is_memory ? NULL : &rig->ring,
        .arena = &rig->arena,
        .staging_size = rig->arena.staging_size,
        .read_buffer_size = 256 * KIB,
        .puts_max = (uint32_t)value_or(rig->options.puts_max, 16),
        .write_unit = (uint32_t)value_or(rig->options.write_unit, MIB),
        .writes_per_put_max = (uint32_t)value_or(rig->options.writes_per_put, 4),
    };
    rc = store_port_open(rig->store, &options, &rig->port, &err);
    cr_assert_eq(rc, 0, "store_port_open: %s", err.text);
}

static void rig_memory_devices(struct store_rig *rig)
{
    for (uint32_t i = 0; i < rig->store_options.device_count; i++) {
        struct dev_mem_options options = {
            .size = value_or(rig->options.device_size, 64 * MIB),
            .seed = i + 1,
            .lba_size = (uint32_t)value_or(rig->options.lba_size, 512),
            .dma_alignment = (uint32_t)value_or(rig->options.dma_alignment, 4),
            .fragments_max = (uint32_t)value_or(rig->options.fragments_max, 64),
            .bytes_max = 1U << 30,
            .delay_polls_max = rig->options.delay_polls_max,
            .refuse_unaligned = true,
            .whole_pages = rig->options.whole_pages,
        };
        int rc = dev_mem_open(&options, &rig->devices[i]);
        cr_assert_eq(rc, 0);
        if (rig->options.wrap != NULL) {
            rig->devices[i] = rig->options.wrap(rig->devices[i]);
        }
    }
}

static void rig_ring_open(struct store_rig *rig)
{
    struct err err = {""};
    struct uring_options options = {.sq_entries = 256, .cq_entries = 1024, .buffers_max = 2, .files_max = 16};
    int rc = uring_open(&rig->ring, &options, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    rc = uring_buffer_register(&rig->ring, 0, rig->arena.base, rig->arena.size, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    rig->arena.buf_index = 0;
}

void store_rig_open(struct store_rig *rig, const struct store_rig_options *options)
{
    struct err err = {""};
    char command[1024];
    memset(rig, 0, sizeof(*rig));
    log_level_set(LOG_ERROR);
    rig->options = *options;
    rig->owner = (struct slice_owner){.retain = rig_retain, .release = rig_release};
    rig->now_ns = 1;
    snprintf(rig->dir, sizeof(rig->dir), "build/scratch/%s-%d", options->name, (int)getpid());
    snprintf(command, sizeof(command), "rm -rf '%s' && mkdir -p '%s'", rig->dir, rig->dir);
    cr_assert_eq(system(command), 0);
    struct store_options *store = &rig->store_options;
    store->device_count = (uint32_t)value_or(options->device_count, 1);
    store->ports_max = 1;
    store->index_readers = 1;
    store->flush_deadline_ns = 5 * NS_PER_S;
    store->read_deadline_ns = 5 * NS_PER_S;
    snprintf(store->data_dir, sizeof(store->data_dir), "%s/data", rig->dir);
    for (uint32_t i = 0; i < store->device_count; i++) {
        snprintf(store->devices[i].path, sizeof(store->devices[i].path), "%s/store%u.img", rig->dir, i);
        store->devices[i].size = value_or(options->device_size, 64 * MIB);
    }
    struct arena_options arena = {
        .staging_size = value_or(options->staging_size, 4 * MIB), .area_size = AREA_SIZE, .numa_node = -1};
    cr_assert_eq(arena_open(&rig->arena, &arena, &err), 0, "%s", err.text);
    if (options->is_memory) {
        rig_memory_devices(rig);
    } else {
        rig_ring_open(rig);
    }
    struct store_build build = {.options = store, .id_seed = 7};
    memcpy(build.devices, rig->devices, sizeof(build.devices));
    int rc = store_build_format(&build, false, &err);
    cr_assert_eq(rc, 0, "store_format: %s", err.text);
    rig_store_open(rig);
}

static void rig_store_close(struct store_rig *rig)
{
    cr_assert_eq(rig->slices_out, 0, "%lld slices were not released", (long long)rig->slices_out);
    store_port_close(rig->port);
    for (uint32_t turn = 0; rig->options.is_memory && turn < 100; turn++) {
        rig->now_ns += NS_PER_MS;
        store_step(rig->store, rig->now_ns, rig->now_ns); /* a stepped committer ends what it still holds */
    }
    store_close(rig->store);
}

void store_rig_reopen(struct store_rig *rig)
{
    rig_store_close(rig);
    rig_store_open(rig);
}

void store_rig_close(struct store_rig *rig)
{
    char command[1024];
    rig_store_close(rig);
    if (!rig->options.is_memory) {
        uring_close(&rig->ring);
    }
    for (uint32_t i = 0; i < rig->store_options.device_count && rig->options.is_memory; i++) {
        dev_close(rig->devices[i]);
    }
    arena_close(&rig->arena);
    snprintf(command, sizeof(command), "rm -rf '%s'", rig->dir);
    cr_assert_eq(system(command), 0);
}

void store_rig_turn(struct store_rig *rig)
{
    struct store_event events[16];
    if (rig->options.is_memory) {
        rig->now_ns += NS_PER_MS;
        store_step(rig->store, rig->now_ns, rig->now_ns);
    } else {
        rig->now_ns = clock_monotonic_ns();
        uring_submit_and_wait(&rig->ring, 200 * NS_PER_US);
        uring_reap(&rig->ring, UINT32_MAX);
    }
    uint32_t count = store_poll(rig->port, rig->now_ns, events, ARRAY_COUNT(events));
    for (uint32_t i = 0; i < count; i++) {
        switch (events[i].kind) {
        case STORE_EVENT_REQUEST:
            rig->request_back = events[i].request;
            break;
        case STORE_EVENT_LATE:
            rig->late_events++;
            break;
        case STORE_EVENT_READ:
            rig->read_back = events[i].read;
            break;
        case STORE_EVENT_PUT:
            rig->put_events++;
            break;
        }
    }
}

static bool rig_may_wait(const struct store_rig *rig, uint64_t *turns, uint64_t deadline_ns)
{
    (*turns)++;
    return rig->options.is_memory ? *turns < TURNS_MAX : clock_monotonic_ns() < deadline_ns;
}

int store_rig_request(struct store_rig *rig, struct store_request *request)
{
    uint64_t turns = 0;
    uint64_t deadline_ns = clock_monotonic_ns() + WAIT_NS;
    rig->request_back = NULL;
    store_submit(rig->port, request);
    while (rig->request_back != request) {
        cr_assert(rig_may_wait(rig, &turns, deadline_ns), "a request was never answered");
        store_rig_turn(rig);
    }
    return request->status;
}

int store_rig_bucket(struct store_rig *rig, const char *name)
{
    struct store_request request = {.kind = STORE_BUCKET_CREATE};
    snprintf(request.bucket, sizeof(request.bucket), "%s", name);
    return store_rig_request(rig, &request);
}

void store_rig_key(struct store_name *key, const char *text)
{
    key->len = (uint16_t)strlen(text);
    memcpy(key->bytes, text, key->len);
}

struct store_put *store_rig_begin(struct store_rig *rig, const char *key, uint64_t size)
{
    struct store_name name;
    struct store_put *put = NULL;
    store_rig_key(&name, key);
    struct store_put_options options = {.bucket = "b", .key = &name, .size = size};
    int rc = store_put_begin(rig->port, &options, &put);
    cr_assert_eq(rc, 0, "store_put_begin: %d", rc);
    return put;
}

void store_rig_append(struct store_rig *rig, struct store_put *put, const uint8_t *bytes, uint32_t len,
                      uint64_t area_offset)
{
    struct slice slice = {.addr = arena_area(&rig->arena) + area_offset,
                          .len = len,
                          .buf_index = rig->arena.buf_index,
                          .owner = &rig->owner,
                          .token = area_offset / (64 * KIB)};
    cr_assert_leq(area_offset + len, arena_area_size(&rig->arena));
    memcpy(slice.addr, bytes, len);
    rig->slices_out++;
    store_put_append(put, &slice);
}

int store_rig_finish(struct store_rig *rig, struct store_put *put)
{
    static const struct store_attributes attributes = {.etag = "etag"};
    uint64_t turns = 0;
    uint64_t deadline_ns = clock_monotonic_ns() + WAIT_NS;
    store_put_finish(put, &attributes, NULL);
    while (store_put_state(put) == STORE_PUT_OPEN) {
        cr_assert(rig_may_wait(rig, &turns, deadline_ns), "an upload never ended");
        store_rig_turn(rig);
    }
    int rc = 0;
    if (store_put_state(put) == STORE_PUT_FAILED) {
        rc = store_put_error(put);
        store_put_abort(put);
    }
    while (store_put_state(put) == STORE_PUT_FAILED) {
        cr_assert(rig_may_wait(rig, &turns, deadline_ns), "an upload never ended");
        store_rig_turn(rig);
    }
    store_put_free(put);
    return rc;
}

int store_rig_put(struct store_rig *rig, const char *key, const uint8_t *bytes, uint64_t len, uint32_t step,
                  uint64_t area_offset)
{
    struct store_put *put = store_rig_begin(rig, key, len);
    uint64_t turns = 0;
    uint64_t deadline_ns = clock_monotonic_ns() + WAIT_NS;
    uint64_t area = area_offset;
    for (uint64_t at = 0; at < len;) {
        uint32_t part = (uint32_t)(len - at < step ? len - at : step);
        if (area + part > arena_area_size(&rig->arena)) {
            area = 0; /* behind the end as a receive buffer would: its residue stays the same */
            while (rig->slices_out > 0) {
                cr_assert(rig_may_wait(rig, &turns, deadline_ns), "slices never came back");
                store_put_pressure(put);
                store_rig_turn(rig);
            }
            area = at % 4096 + area_offset % 4096;
        }
        store_rig_append(rig, put, bytes + at, part, area);
        at += part;
        area += part;
    }
    return store_rig_finish(rig, put);
}

static int rig_read(struct store_rig *rig, struct store_object *object, const uint8_t *bytes, uint64_t len)
{
    uint64_t turns = 0;
    uint64_t deadline_ns = clock_monotonic_ns() + WAIT_NS;
    for (uint64_t at = 0; at < len;) {
        struct store_read *read;
        struct slice slice;
        int rc = store_read_begin(rig->port, object, at, len - at, NULL, &read);
        if (rc != 0) {
            return rc;
        }
        rig->read_back = NULL;
        while (rig->read_back != read) {
            cr_assert(rig_may_wait(rig, &turns, deadline_ns), "a read never ended");
            store_rig_turn(rig);
        }
        rc = store_read_take(read, &slice);
        if (rc != 0) {
            return rc;
        }
        bool same = slice.len <= len - at && memcmp(slice.addr, bytes + at, slice.len) == 0;
        at += slice.len;
        slice_release(&slice);
        if (!same) {
            return 1;
        }
    }
    return 0;
}

int store_rig_compare(struct store_rig *rig, const char *key, const uint8_t *bytes, uint64_t len)
{
    struct store_request request = {.kind = STORE_OBJECT_LOOKUP, .bucket = "b"};
    store_rig_key(&request.key, key);
    int rc = store_rig_request(rig, &request);
    if (rc != 0) {
        return rc;
    }
    rc = store_object_size(request.object) == len ? rig_read(rig, request.object, bytes, len) : 1;
    if (rc == 0 && store_object_crc32c(request.object) != crc32c_update(0, bytes, len)) {
        rc = 1;
    }
    store_object_release(rig->port, request.object);
    return rc;
}

int store_rig_delete(struct store_rig *rig, const char *key)
{
    struct store_request request = {.kind = STORE_OBJECT_DELETE, .bucket = "b"};
    store_rig_key(&request.key, key);
    return store_rig_request(rig, &request);
}

uint64_t store_rig_used(struct store_rig *rig)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < rig->store_options.device_count; i++) {
        struct store_device_info info;
        store_device_info(rig->store, i, &info);
        used += info.used;
    }
    return used;
}

void store_rig_fill(uint8_t *bytes, uint64_t len, uint64_t seed)
{
    struct rng rng;
    rng_seed(&rng, seed);
    for (uint64_t i = 0; i < len; i++) {
        bytes[i] = (uint8_t)rng_u64(&rng);
    }
}
