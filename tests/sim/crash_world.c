/* SPDX-License-Identifier: Apache-2.0 */
/* crash_world: see crash_world.h. */
#include "crash_world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "storage/extent.h"

#define DEVICE_SIZE (SUPERBLOCK_DATA_OFFSET + 16 * MIB)
#define PAYLOAD_MAX (300 * KIB)
#define TURNS_MAX 200000U
#define FAULT 1000U /* weight of what can be no chance: it does not open, the index is torn */

enum job_kind { JOB_PUT, JOB_DELETE, JOB_COPY, JOB_PARTS, JOB_READ };
enum job_stage {
    STAGE_WRITING, /* put: appending and finishing */
    STAGE_WAITING, /* the last request or finish decides */
    STAGE_CREATING,
    STAGE_PART,
    STAGE_LOOKUP,
    STAGE_READING,
    STAGE_GIVING_UP
};

struct job {
    struct world *world;
    uint32_t slot;
    enum job_kind kind;
    enum job_stage stage;
    uint32_t key;
    uint32_t source_key;
    uint64_t version;
    uint64_t size;
    uint64_t appended;
    uint8_t *memory; /* slices lie here, each at an odd place of its own */
    uint64_t memory_at;
    bool is_finished; /* store_put_finish was called */
    uint32_t parts_left;
    uint32_t part_number;
    bool is_pinned;
    uint32_t pause; /* turns until a reader goes on */
    uint64_t read_at;
    struct store_put *put;
    struct store_read *read;
    struct store_object *object;
    struct store_request request;
    struct store_attributes attributes;
    struct store_part_ref part;
    char upload_id[STORE_UPLOAD_ID_MAX + 1];
};

/* ---- payload --------------------------------------------------------------------------------------------------------- */

static uint64_t version_size(uint64_t version)
{
    struct rng rng;
    rng_seed(&rng, version * 77 + 1);
    uint64_t shape = rng_below(&rng, 10);
    return shape == 0 ? 0 : shape < 5 ? 1 + rng_below(&rng, 6000) : 1 + rng_below(&rng, PAYLOAD_MAX);
}

/* Byte `at` of a version; cheap, and no two versions look alike for long. */
static uint8_t version_byte(uint64_t version, uint64_t at)
{
    uint64_t word = (version * 0x9e3779b97f4a7c15ULL) ^ ((at >> 3) * 0xd6e8feb86659fd93ULL);
    word ^= word >> 29;
    word *= 0xbf58476d1ce4e5b9ULL;
    return (uint8_t)(word >> 8 * (at & 7U));
}

static bool payload_matches(uint64_t version, uint64_t at, const uint8_t *bytes, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++) {
        if (bytes[i] != version_byte(version, at + i)) {
            return false;
        }
    }
    return true;
}

static void key_name(uint32_t key, struct store_name *out)
{
    out->len = (uint16_t)snprintf((char *)out->bytes, STORE_KEY_MAX, "dir/key-%u", key);
}

/* ---- jobs: ends -------------------------------------------------------------------------------------------------------- */

static bool something_died(struct world *world)
{
    bool dead = vfs_sim_is_dead(world->vfs);
    for (uint32_t i = 0; i < WORLD_DEVICES; i++) {
        dead = dead || dev_mem_is_dead(world->memory[i]);
    }
    return dead;
}

static bool outcome_unknown(struct world *world)
{
    return something_died(world) || commit_health(world->store->commit) != 0;
}

static void job_end(struct job *job)
{
    struct world *world = job->world;
    if (job->object != NULL) {
        store_object_release(world->port, job->object);
    }
    if (job->kind != JOB_READ) {
        world->key_busy[job->key] = false;
    }
    world->jobs[job->slot] = NULL;
    free(job->memory);
    free(job);
}

/* The change of `key` to job->version was decided with `status`. */
static void job_decided(struct job *job, int status)
{
    struct world *world = job->world;
    if (status == 0) {
        world->answered[job->key] = job->version;
        world->maybe[job->key] = MAYBE_NONE;
        world->acks++;
    } else {
        world->refusals++;
        if (!outcome_unknown(world)) {
            world->maybe[job->key] = MAYBE_NONE; /* refused for certain */
        }
    }
}

static void submit(struct job *job, enum store_request_kind kind)
{
    job->request.kind = kind;
    job->request.user = job;
    snprintf(job->request.bucket, sizeof(job->request.bucket), "b");
    store_submit(job->world->port, &job->request);
}

/* ---- uploads ------------------------------------------------------------------------------------------------------------- */

static void put_begin(struct job *job, bool known_size)
{
    struct world *world = job->world;
    struct store_name name;
    key_name(job->key, &name);
    struct store_put_options options = {
        .bucket = "b", .key = &name, .size = known_size ? job->size : UINT64_MAX, .user = job};
    if (job->kind == JOB_PARTS) {
        memcpy(options.upload_id, job->upload_id, sizeof(options.upload_id));
        options.part_number = job->part_number;
    }
    job->appended = 0;
    job->memory_at = 0;
    job->is_finished = false;
    job->put = NULL;
    int rc = store_put_begin(world->port, &options, &job->put);
    if (rc != 0) {
        world->refusals++;
        job_end(job);
        return;
    }
    job->stage = job->kind == JOB_PARTS ? STAGE_PART : STAGE_WRITING;
}

/* Appends one slice of random length; now and then at a place that breaks the alignment. */
static void put_append(struct job *job)
{
    struct rng *rng = &job->world->rng;
    uint64_t left = job->size - job->appended;
    uint64_t len = 1 + rng_below(rng, rng_chance(rng, 1, 3) ? 1448 : 60000);
    len = len < left ? len : left;
    len = len > 4 && len < left ? len & ~3ULL : len;
    if (rng_chance(rng, 1, 12)) {
        job->memory_at += 1 + rng_below(rng, 3);
    }
    struct slice slice = {.addr = job->memory + job->memory_at, .len = (uint32_t)len, .buf_index = -1};
    for (uint64_t i = 0; i < len; i++) {
        slice.addr[i] = version_byte(job->version, job->appended + i);
    }
    job->memory_at += len;
    job->appended += len;
    store_put_append(job->put, &slice);
}

static void put_finish(struct job *job)
{
    job->is_finished = true;
    snprintf(job->attributes.etag, sizeof(job->attributes.etag), "%llu", (unsigned long long)job->version);
    if (job->kind == JOB_PUT) {
        job->world->maybe[job->key] = job->version;
        job->stage = STAGE_WAITING;
    }
    store_put_finish(job->put, &job->attributes, NULL);
}

static void job_next_part(struct job *job)
{
    if (job->parts_left > 0) {
        job->parts_left--;
        put_begin(job, true);
        return;
    }
    struct world *world = job->world;
    memcpy(job->request.upload_id, job->upload_id, sizeof(job->upload_id));
    key_name(job->key, &job->request.key);
    job->stage = STAGE_WAITING;
    if (rng_chance(&world->rng, 1, 4)) {
        job->stage = STAGE_GIVING_UP;
        submit(job, STORE_UPLOAD_ABORT);
        return;
    }
    job->part = (struct store_part_ref){.number = 1};
    snprintf(job->part.etag, sizeof(job->part.etag), "%llu", (unsigned long long)job->version);
    job->request.parts = &job->part;
    job->request.part_count = 1;
    job->request.attributes = &job->attributes;
    world->maybe[job->key] = job->version;
    submit(job, STORE_UPLOAD_COMPLETE);
}

/* A put ended: done, or all of it gone. */
static void put_ended(struct job *job, int status)
{
    store_put_free(job->put);
    job->put = NULL;
    if (job->kind == JOB_PUT) {
        if (job->is_finished) {
            job_decided(job, status);
        }
        job_end(job);
    } else if (status == 0) {
        job_next_part(job);
    } else {
        job_end(job); /* its upload stays open: found and aborted after the next start, or at settling */
    }
}

static void put_event(struct job *job)
{
    switch (store_put_state(job->put)) {
    case STORE_PUT_OPEN:
        break; /* room for more; job_step appends */
    case STORE_PUT_FAILED:
        if (job->stage != STAGE_GIVING_UP) {
            job->request.status = store_put_error(job->put);
            job->stage = STAGE_GIVING_UP;
            store_put_abort(job->put);
        }
        break;
    case STORE_PUT_DONE:
        put_ended(job, 0);
        break;
    case STORE_PUT_ABORTED:
        put_ended(job, job->request.status != 0 ? job->request.status : -ECANCELED);
        break;
    }
}

/* ---- requests and reads ---------------------------------------------------------------------------------------------------- */

static void lookup_answered(struct job *job)
{
    struct world *world = job->world;
    if (job->request.status != 0) {
        job_end(job);
        return;
    }
    job->object = job->request.object;
    job->version = strtoull(store_object_attributes(job->object)->etag, NULL, 10);
    job->size = store_object_size(job->object);
    if (job->size != version_size(job->version)) {
        world->damage++;
        job_end(job);
        return;
    }
    if (job->kind == JOB_COPY) {
        job->stage = STAGE_WAITING;
        job->request.source = job->object;
        job->request.attributes = NULL;
        key_name(job->key, &job->request.key);
        world->maybe[job->key] = job->version;
        submit(job, STORE_OBJECT_COPY);
        return;
    }
    job->stage = STAGE_READING;
    job->read_at = 0;
    job->pause = (uint32_t)rng_below(&world->rng, 40);
}

static void request_answered(struct job *job)
{
    struct world *world = job->world;
    int status = job->request.status;
    switch (job->stage) {
    case STAGE_LOOKUP:
        lookup_answered(job);
        return;
    case STAGE_CREATING:
        if (status != 0) {
            job_end(job);
            return;
        }
        memcpy(job->upload_id, job->request.upload_id, sizeof(job->upload_id));
        job->part_number = 1;
        job_next_part(job);
        return;
    case STAGE_GIVING_UP:
        world->uploads_aborted += status == 0 ? 1 : 0;
        job_end(job);
        return;
    default:
        break;
    }
    if (job->request.object != NULL && status == 0 && job->kind != JOB_DELETE) {
        store_object_release(world->port, job->request.object);
    }
    world->copies += job->kind == JOB_COPY && status == 0 ? 1 : 0;
    world->completions += job->kind == JOB_PARTS && status == 0 ? 1 : 0;
    job_decided(job, status);
    job_end(job);
}

static void read_answered(struct job *job)
{
    struct world *world = job->world;
    struct slice slice;
    int rc = store_read_take(job->read, &slice);
    job->read = NULL;
    if (rc != 0) {
        world->damage += rc == ERR_CORRUPT && !something_died(world) ? 1 : 0;
        job_end(job);
        return;
    }
    if (!payload_matches(job->version, job->read_at, slice.addr, slice.len)) {
        world->damage++;
    }
    job->read_at += slice.len;
    job->pause = (uint32_t)rng_below(&world->rng, 10);
    slice_release(&slice);
    world->reads++;
}

/* ---- jobs: steps ------------------------------------------------------------------------------------------------------------- */

static void job_step(struct job *job)
{
    struct world *world = job->world;
    if (job->put != NULL && !job->is_finished && store_put_state(job->put) == STORE_PUT_OPEN) {
        if (world->is_ending || rng_chance(&world->rng, 1, 400)) {
            job->stage = STAGE_GIVING_UP;
            store_put_abort(job->put);
        } else if (job->appended == job->size) {
            put_finish(job);
        } else if (store_put_queued_bytes(job->put) < 128 * KIB) {
            put_append(job);
        }
        return;
    }
    if (job->stage != STAGE_READING || job->read != NULL) {
        return;
    }
    if (job->pause > 0) {
        job->pause--;
        return;
    }
    if (job->read_at == job->size) {
        job_end(job);
        return;
    }
    int rc =
        store_read_begin(world->port, job->object, job->read_at, job->size - job->read_at, job, &job->read);
    if (rc != 0 && rc != -EAGAIN) {
        job_end(job);
    }
}

static void job_start(struct world *world, uint32_t slot)
{
    struct job *job = calloc(1, sizeof(*job));
    CHECK(job != NULL);
    uint64_t what = rng_below(&world->rng, 20);
    job->world = world;
    job->slot = slot;
    job->kind = what < 9    ? JOB_PUT
                : what < 12 ? JOB_DELETE
                : what < 14 ? JOB_COPY
                : what < 16 ? JOB_PARTS
                            : JOB_READ;
    job->key = (uint32_t)rng_below(&world->rng, WORLD_KEYS);
    job->source_key = (uint32_t)rng_below(&world->rng, WORLD_KEYS);
    if (job->kind != JOB_READ && (world->key_busy[job->key] || world->maybe[job->key] != MAYBE_NONE)) {
        free(job); /* one change of a key at a time, so that the model knows their order */
        return;
    }
    world->jobs[slot] = job;
    key_name(job->kind == JOB_COPY ? job->source_key : job->key, &job->request.key);
    if (job->kind == JOB_READ || job->kind == JOB_COPY) {
        world->key_busy[job->key] = world->key_busy[job->key] || job->kind == JOB_COPY;
        job->stage = STAGE_LOOKUP;
        submit(job, STORE_OBJECT_LOOKUP);
        return;
    }
    world->key_busy[job->key] = true;
    if (job->kind == JOB_DELETE) {
        job->stage = STAGE_WAITING;
        world->maybe[job->key] = 0;
        submit(job, STORE_OBJECT_DELETE);
        return;
    }
    job->version = ++world->next_version;
    job->size = version_size(job->version);
    job->memory = malloc(2 * job->size + 64 * KIB);
    CHECK(job->memory != NULL);
    if (job->kind == JOB_PUT) {
        put_begin(job, rng_chance(&world->rng, 1, 2));
        return;
    }
    job->parts_left = 1 + (uint32_t)rng_below(&world->rng, 2); /* the part is sent once or twice */
    snprintf(job->attributes.etag, sizeof(job->attributes.etag), "%llu", (unsigned long long)job->version);
    job->request.attributes = &job->attributes;
    job->stage = STAGE_CREATING;
    submit(job, STORE_UPLOAD_CREATE);
}

static void world_turn(struct world *world)
{
    struct store_event events[16];
    world->now_ns += NS_PER_MS;
    store_step(world->store, world->now_ns, world->now_ns);
    uint32_t count = store_poll(world->port, world->now_ns, events, ARRAY_COUNT(events));
    for (uint32_t i = 0; i < count; i++) {
        switch (events[i].kind) {
        case STORE_EVENT_REQUEST:
            request_answered(events[i].request->user);
            break;
        case STORE_EVENT_LATE:
            check_fail(__FILE__, __LINE__, "a stepped store is never late");
        case STORE_EVENT_PUT:
            put_event(store_put_user(events[i].put));
            break;
        case STORE_EVENT_READ:
            read_answered(store_read_user(events[i].read));
            break;
        }
    }
    for (uint32_t i = 0; i < WORLD_JOBS; i++) {
        if (world->jobs[i] != NULL) {
            job_step(world->jobs[i]);
        }
    }
}

void world_work(struct world *world, uint32_t turns)
{
    for (uint32_t i = 0; i < turns && !outcome_unknown(world); i++) {
        uint32_t slot = (uint32_t)rng_below(&world->rng, WORLD_JOBS);
        if (world->jobs[slot] == NULL) {
            job_start(world, slot);
        }
        world_turn(world);
    }
}

static bool world_is_quiet(const struct world *world)
{
    for (uint32_t i = 0; i < WORLD_JOBS; i++) {
        if (world->jobs[i] != NULL) {
            return false;
        }
    }
    return commit_is_idle(world->store->commit);
}

void world_settle(struct world *world)
{
    for (uint32_t i = 0; i < TURNS_MAX && !world_is_quiet(world); i++) {
        world_turn(world);
    }
    CHECK(world_is_quiet(world));
}

/* ---- opening and closing ------------------------------------------------------------------------------------------------------ */

static void world_build(const struct world *world, struct store_build *build)
{
    *build = (struct store_build){
        .options = &world->store_options,
        .vfs = "penstock-crash",
        .id_seed = 1 + world->options.seed,
        .is_stepped = true,
        .skip_flush = world->options.skip_flush,
        .skip_sync = world->options.skip_sync,
        .index_log_pages = 60,
    };
    memcpy(build->devices, world->devices, sizeof(world->devices));
}

static int world_start(struct world *world)
{
    struct store_build build;
    struct err err = {""};
    world_build(world, &build);
    int rc = store_build_open(&build, &world->store, &err);
    if (rc != 0) {
        LOG_ERR("sim_cannot_start", "rc=%d why=%s", rc, LOG_Q(err.text));
        return rc;
    }
    struct store_port_options options = {
        .arena = &world->arena,
        .staging_size = world->arena.staging_size,
        .read_buffer_size = 256 * KIB,
        .puts_max = WORLD_JOBS,
        .write_unit = 128 * KIB,
        .writes_per_put_max = 3,
    };
    rc = store_port_open(world->store, &options, &world->port, &err);
    CHECK(rc == 0);
    return 0;
}

static void world_stop(struct world *world)
{
    world->is_ending = true;
    world_settle(world);
    world->is_ending = false;
    store_port_close(world->port);
    store_close(world->store);
    world->port = NULL;
    world->store = NULL;
}

static void request_run(struct world *world, struct store_request *request)
{
    struct store_event event;
    snprintf(request->bucket, sizeof(request->bucket), "b");
    store_submit(world->port, request);
    for (uint32_t i = 0; i < TURNS_MAX; i++) {
        world->now_ns += NS_PER_MS;
        store_step(world->store, world->now_ns, world->now_ns);
        if (store_poll(world->port, world->now_ns, &event, 1) == 1) {
            CHECK(event.kind == STORE_EVENT_REQUEST);
            CHECK(event.request == request);
            return;
        }
    }
    check_fail(__FILE__, __LINE__, "a request is answered");
}

static void devices_open(struct world *world)
{
    for (uint32_t i = 0; i < WORLD_DEVICES; i++) {
        struct dev_mem_options options = {
            .size = DEVICE_SIZE,
            .seed = world->options.seed * 2 + i,
            .lba_size = 512,
            .dma_alignment = 4,
            .fragments_max = 64,
            .bytes_max = 1U << 30,
            .delay_polls_max = 3,
            .refuse_unaligned = true,
        };
        int rc = dev_mem_open(&options, &world->memory[i]);
        CHECK(rc == 0);
        world->devices[i] = world->memory[i];
        if (world->options.with_faults && i == 0) {
            rc = dev_fault_open(world->memory[i], world->options.seed, &world->devices[i]);
            CHECK(rc == 0);
        }
    }
}

void world_open(struct world *world, const struct world_options *options)
{
    struct err err = {""};
    memset(world, 0, sizeof(*world));
    world->options = *options;
    world->now_ns = NS_PER_S;
    rng_seed(&world->rng, options->seed);
    for (uint32_t i = 0; i < WORLD_KEYS; i++) {
        world->maybe[i] = MAYBE_NONE;
    }
    world->vfs = vfs_sim_open("penstock-crash");
    devices_open(world);
    world->store_options.device_count = WORLD_DEVICES;
    world->store_options.ports_max = 1;
    world->store_options.index_readers = 1;
    world->store_options.flush_deadline_ns = 60 * NS_PER_S;
    snprintf(world->store_options.data_dir, sizeof(world->store_options.data_dir), "/sim");
    for (uint32_t i = 0; i < WORLD_DEVICES; i++) {
        snprintf(world->store_options.devices[i].path, sizeof(world->store_options.devices[i].path), "mem%u",
                 i);
    }
    struct arena_options arena = {.staging_size = 4 * MIB, .area_size = 0, .numa_node = -1};
    int rc = arena_open(&world->arena, &arena, &err);
    CHECK(rc == 0);
    struct store_build build;
    world_build(world, &build);
    build.skip_flush = build.skip_sync = false; /* the scene is durable, whatever the play leaves out */
    rc = store_build_format(&build, false, &err);
    CHECK(rc == 0);
    rc = world_start(world);
    CHECK(rc == 0);
    struct store_request create = {.kind = STORE_BUCKET_CREATE};
    request_run(world, &create);
    CHECK(create.status == 0);
    world_stop(
        world); /* a clean end writes the log back, with syncs or not; the bucket must not be what gets lost */
    vfs_sim_settle(world->vfs);
    rc = world_start(world);
    CHECK(rc == 0);
}

void world_close(struct world *world)
{
    if (world->store != NULL) {
        world_stop(world);
    }
    for (uint32_t i = 0; i < WORLD_DEVICES; i++) {
        dev_close(world->devices[i]);
    }
    vfs_sim_close(world->vfs);
    arena_close(&world->arena);
}

/* ---- the oracle --------------------------------------------------------------------------------------------------------------- */

static bool object_is_whole(struct world *world, struct store_object *object, uint64_t version)
{
    struct store_event event;
    uint64_t size = store_object_size(object);
    if (size != version_size(version)) {
        return false;
    }
    for (uint64_t at = 0; at < size;) {
        struct store_read *read = NULL;
        struct slice slice;
        int rc = store_read_begin(world->port, object, at, size - at, NULL, &read);
        if (rc != 0) {
            return false;
        }
        while (store_poll(world->port, world->now_ns, &event, 1) == 0) {
            world->now_ns += NS_PER_MS;
            store_step(world->store, world->now_ns, world->now_ns);
        }
        rc = store_read_take(read, &slice);
        if (rc != 0) {
            return false;
        }
        bool same = payload_matches(version, at, slice.addr, slice.len);
        at += slice.len;
        slice_release(&slice);
        if (!same) {
            return false;
        }
    }
    return true;
}

/* Uploads that were open at the cut stay open; they are ended here, so that what remains is only objects. */
static void abort_uploads(struct world *world)
{
    struct store_list_options options = {.count_max = 1000};
    struct store_request list = {.kind = STORE_UPLOAD_LIST, .list_options = &options};
    request_run(world, &list);
    CHECK(list.status == 0);
    for (uint32_t i = 0; i < list.list->count; i++) {
        const struct store_list_entry *entry = &list.list->entries[i];
        struct store_request abort = {.kind = STORE_UPLOAD_ABORT, .key.len = entry->key_len};
        memcpy(abort.key.bytes, entry->key, entry->key_len);
        snprintf(abort.upload_id, sizeof(abort.upload_id), "%s", entry->upload_id);
        request_run(world, &abort);
        CHECK(abort.status == 0);
    }
    store_list_free(list.list);
}

static uint32_t check_key(struct world *world, uint32_t key)
{
    struct store_request lookup = {.kind = STORE_OBJECT_LOOKUP};
    uint64_t found = 0;
    bool whole = true;
    key_name(key, &lookup.key);
    request_run(world, &lookup);
    if (lookup.status == 0) {
        found = strtoull(store_object_attributes(lookup.object)->etag, NULL, 10);
        whole = object_is_whole(world, lookup.object, found);
        store_object_release(world->port, lookup.object);
    } else if (lookup.status != ERR_NO_SUCH_KEY) {
        return FAULT;
    }
    bool expected = found == world->answered[key] || found == world->maybe[key];
    if (!expected || !whole) {
        LOG_ERR("sim_fault", "key=%u found=%llu answered=%llu maybe=%lld whole=%d", key,
                (unsigned long long)found, (unsigned long long)world->answered[key],
                (long long)world->maybe[key], (int)whole);
    }
    world->answered[key] = found;
    world->maybe[key] = MAYBE_NONE;
    return expected && whole ? 0 : 1;
}

static uint32_t world_check(struct world *world)
{
    struct err err = {""};
    int rc = index_view_verify(index_own_view(world->store->index), &err);
    if (rc != 0) {
        LOG_ERR("sim_index_fault", "why=%s", LOG_Q(err.text));
        return FAULT;
    }
    uint32_t faults = 0;
    for (uint32_t i = 0; i < WORLD_KEYS; i++) {
        faults += check_key(world, i);
    }
    abort_uploads(world);
    return faults + (world_leak(world) != 0 ? FAULT : 0);
}

struct sum {
    uint64_t bytes;
};

static int sum_extent(void *ctx, const struct index_extent_row *row)
{
    struct sum *sum = ctx;
    sum->bytes += object_space_length(row->extent.phase, row->extent.length);
    return 0;
}

uint64_t world_leak(struct world *world)
{
    struct sum sum = {0};
    uint64_t used = 0;
    int rc = index_view_extents(index_own_view(world->store->index), false, sum_extent, &sum);
    CHECK(rc == 0);
    for (uint32_t i = 0; i < WORLD_DEVICES; i++) {
        used += world->store->devices[i].used;
    }
    uint64_t held = epoch_held_bytes(world->store->epoch);
    return used > sum.bytes + held ? used - sum.bytes - held : sum.bytes + held - used;
}

uint32_t world_cut(struct world *world, uint64_t seed)
{
    uint32_t damage = world->damage;
    vfs_sim_die(world->vfs);
    for (uint32_t i = 0; i < WORLD_DEVICES; i++) {
        dev_mem_die(world->memory[i]);
    }
    world_stop(world);
    vfs_sim_cut(world->vfs, seed);
    for (uint32_t i = 0; i < WORLD_DEVICES; i++) {
        dev_mem_crash(world->memory[i], seed * 31 + i);
        world->devices[i]->state = STORE_DEVICE_OK; /* of a filter: another process sees the device now */
    }
    memset(world->key_busy, 0, sizeof(world->key_busy));
    world->damage = 0;
    if (world_start(world) != 0) {
        return FAULT;
    }
    return damage + world_check(world);
}
