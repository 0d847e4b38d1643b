/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index_crash: index and committer over the simulated file system: power cuts at every sync, killed processes, and
 * every I/O operation failing in turn. Devices flush at once here; the whole store is cut in test_crash.c.
 *
 * Oracle: a model map of what was answered with success. After a cut, each key holds the version last answered, or one that
 * was under way; the index agrees with itself; nothing pending is left. SEED=n replays one run.
 */
#include "vfs_sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "storage/commit.h"
#include "storage/recover.h"

#define KEYS 12U
#define IN_FLIGHT 8U

/* One operation that was submitted. */
struct operation {
    struct commit_put put;
    struct store_request request;
    struct store_name key;
    struct store_attributes attributes;
    struct object_extent extent;
    uint32_t key_number;
    uint64_t version; /* 0: a delete */
    bool is_busy;
};

struct run {
    struct vfs_sim *vfs;
    struct index_options options;
    struct index *index;
    struct commit *commit;
    struct rng rng;
    bool skip_sync;
    uint64_t now_ns;
    uint64_t next_offset;
    uint64_t next_version;
    uint64_t answered[KEYS]; /* version last answered; 0: absent */
    struct operation operations[IN_FLIGHT];
    uint64_t acks;
    uint64_t failures; /* answers that were not 0 */
};

static const uint32_t no_checksum[1];

static void run_flush(void *ctx, uint32_t device)
{
    struct run *run = ctx;
    commit_flush_done(run->commit, device, 0, run->now_ns);
}

static void run_state(void *ctx, uint32_t device, enum store_device_state state, const char *why)
{
    (void)ctx;
    (void)device;
    (void)state;
    cr_assert_fail("a device that always flushes changed its state: %s", why);
}

static void run_release(void *ctx, const struct object_space *spaces, uint32_t count, bool visible)
{
    (void)ctx; /* places are never used twice here; test_crash.c reuses them */
    (void)spaces;
    (void)count;
    (void)visible;
}

static uint64_t run_pin(void *ctx)
{
    (void)ctx; /* no epochs here */
    return 1;
}

static void run_unpin(void *ctx, uint64_t epoch)
{
    (void)ctx; /* no epochs here */
    (void)epoch;
}

static void operation_answered(struct run *run, struct operation *operation, int status)
{
    operation->is_busy = false;
    if (status == 0) {
        run->answered[operation->key_number] = operation->version;
        run->acks++;
    } else {
        run->failures++;
        /* It may or may not have happened (the index failed): from here on the key's next cut decides. */
        operation->is_busy = index_failed(run->index) != 0;
    }
}

static void run_answer_put(void *ctx, struct commit_put *put)
{
    operation_answered(ctx, CONTAINER_OF(put, struct operation, put), put->status);
}

static void run_answer_request(void *ctx, struct store_request *request)
{
    operation_answered(ctx, CONTAINER_OF(request, struct operation, request), request->status);
}

static const struct commit_ops run_ops = {
    .flush = run_flush,
    .device_state = run_state,
    .space_release = run_release,
    .pin = run_pin,
    .unpin = run_unpin,
    .answer_put = run_answer_put,
    .answer_request = run_answer_request,
};

static int mark_used(void *ctx, const struct object_space *space)
{
    (void)ctx; /* overlaps are found by the whole check */
    (void)space;
    return 0;
}

/* 0, or the failure to open. */
static int start(struct run *run)
{
    static const struct recover_ops ops = {.mark_used = mark_used};
    struct recover_result result;
    struct err err = {""};
    run->index = NULL;
    run->commit = NULL;
    int rc = index_open(&run->options, &run->index, &err);
    rc = rc != 0 ? rc : recover_run(run->index, &ops, NULL, &result, &err);
    if (rc != 0) {
        cr_log_info("start: %s", err.text);
        index_close(run->index);
        run->index = NULL;
        return rc;
    }
    struct commit_options options = {
        .index = run->index, .ops = &run_ops, .ops_ctx = run, .device_mask = 1, .id_seed = 3};
    cr_assert_eq(commit_open(&options, &run->commit), 0);
    return 0;
}

static void stop(struct run *run)
{
    if (run->commit != NULL) {
        for (uint32_t i = 0; i < 1000 && !commit_is_idle(run->commit); i++) {
            commit_step(run->commit, run->now_ns, run->now_ns);
        }
        commit_close(run->commit);
    }
    index_close(run->index);
    run->index = NULL;
    run->commit = NULL;
}

static void run_open(struct run *run, uint64_t seed, bool skip_sync)
{
    struct err err = {""};
    memset(run, 0, sizeof(*run));
    rng_seed(&run->rng, seed);
    run->vfs = vfs_sim_open("penstock-sim");
    run->options.dir = "/sim";
    run->options.vfs = "penstock-sim";
    run->options.log_pages = 40; /* so that cuts fall into write-backs too */
    int rc = index_create(&run->options, &err);
    cr_assert_eq(rc, 0, "%d %s", rc, err.text);
    run->options.skip_sync = skip_sync;
    rc = start(run);
    cr_assert_eq(rc, 0, "%d", rc);
    cr_assert_eq(index_begin(run->index, false), 0);
    cr_assert_eq(index_bucket_create(run->index, "b", 1), 0);
    cr_assert_eq(index_commit(run->index), 0);
    /* The bucket is part of the scene, not of the test: durable even where syncs are skipped. */
    vfs_sim_die(run->vfs);
    stop(run);
    vfs_sim_revive(run->vfs);
    run->options.skip_sync = false;
    cr_assert_eq(start(run), 0);
    stop(run);
    run->options.skip_sync = skip_sync;
    cr_assert_eq(start(run), 0);
}

static void run_close(struct run *run)
{
    stop(run);
    vfs_sim_close(run->vfs);
}

static void submit_random(struct run *run)
{
    uint32_t slot = (uint32_t)rng_below(&run->rng, IN_FLIGHT);
    struct operation *operation = &run->operations[slot];
    uint32_t number = (uint32_t)rng_below(&run->rng, KEYS);
    for (uint32_t i = 0; i < IN_FLIGHT; i++) {
        /* One operation per key at a time, so that the model knows their order. */
        if (run->operations[i].is_busy && (i == slot || run->operations[i].key_number == number)) {
            return;
        }
    }
    memset(operation, 0, sizeof(*operation));
    operation->is_busy = true;
    operation->key_number = number;
    operation->key.len = (uint16_t)snprintf((char *)operation->key.bytes, STORE_KEY_MAX, "key-%u", number);
    if (rng_chance(&run->rng, 1, 4)) {
        operation->request.kind = STORE_OBJECT_DELETE;
        operation->request.key = operation->key;
        strcpy(operation->request.bucket, "b");
        commit_request_submit(run->commit, &operation->request);
        return;
    }
    operation->version = ++run->next_version;
    operation->extent = (struct object_extent){
        .offset = run->next_offset,
        .length = 1 + rng_below(&run->rng, 9000),
        .checksums = no_checksum,
    };
    run->next_offset += object_space_length(0, operation->extent.length);
    snprintf(operation->attributes.etag, sizeof(operation->attributes.etag), "%llu",
             (unsigned long long)operation->version);
    operation->put = (struct commit_put){
        .kind = COMMIT_PUT_FINISH,
        .bucket = "b",
        .key = &operation->key,
        .extents = &operation->extent,
        .extent_count = 1,
        .device_mask = 1,
        .size = operation->extent.length,
        .attributes = &operation->attributes,
    };
    commit_put_submit(run->commit, &operation->put);
}

static void work(struct run *run, uint32_t turns)
{
    for (uint32_t i = 0; i < turns && !vfs_sim_is_dead(run->vfs) && index_failed(run->index) == 0; i++) {
        for (uint32_t k = (uint32_t)rng_below(&run->rng, 4); k > 0; k--) {
            submit_random(run);
        }
        run->now_ns += NS_PER_MS;
        commit_step(run->commit, run->now_ns, run->now_ns);
    }
}

/* Compares the index with the model. Returns the number of keys that lost what was answered. */
static uint32_t compare_with_model(struct run *run)
{
    uint32_t lost = 0;
    struct err err = {""};
    int rc = index_view_verify(index_own_view(run->index), &err);
    if (rc != 0) {
        cr_log_info("index check: %d %s", rc, err.text);
        return 1000;
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        struct store_name key;
        struct store_object *object = NULL;
        key.len = (uint16_t)snprintf((char *)key.bytes, STORE_KEY_MAX, "key-%u", i);
        rc = index_view_object(index_own_view(run->index), "b", &key, &object);
        uint64_t found = 0;
        if (rc == 0) {
            found = strtoull(object->attributes.etag, NULL, 10);
            object_free(object);
        } else if (rc != ERR_NO_SUCH_KEY) {
            return 1000;
        }
        bool good = found == run->answered[i];
        for (uint32_t k = 0; k < IN_FLIGHT; k++) {
            const struct operation *operation = &run->operations[k];
            good = good || (operation->is_busy && operation->key_number == i && operation->version == found);
        }
        lost += good ? 0 : 1;
        run->answered[i] = found;
    }
    memset(run->operations, 0, sizeof(run->operations));
    return lost;
}

/* Cuts (or kills) and starts again; returns what the comparison found. */
static uint32_t cut_and_compare(struct run *run, uint64_t seed, bool power)
{
    vfs_sim_die(run->vfs);
    uint64_t answered[KEYS];
    memcpy(answered, run->answered, sizeof(answered));
    stop(run); /* answers failures into the dead index, which the oracle treats as unknown */
    if (power) {
        vfs_sim_cut(run->vfs, seed);
    } else {
        vfs_sim_revive(run->vfs);
    }
    int rc = start(run);
    if (rc != 0) {
        cr_log_info("cannot start again: %d %s", rc, err_text(rc));
        return 1000;
    }
    return compare_with_model(run);
}

static uint64_t seed_first(void)
{
    const char *text = getenv("SEED");
    return text != NULL ? strtoull(text, NULL, 0) : 1;
}

static uint64_t seed_last(uint64_t count)
{
    return getenv("SEED") != NULL ? seed_first() : count;
}

Test(index_crash, nothing_answered_is_lost_at_any_sync)
{
    uint64_t acks = 0, cuts = 0;
    for (uint64_t seed = seed_first(); seed <= seed_last(60); seed++) {
        struct run run;
        run_open(&run, seed, false);
        for (uint32_t cut = 0; cut < 12; cut++) {
            /* Every sync gets its turn: the nth from here, n growing from cut to cut. */
            vfs_sim_die_at_sync(run.vfs, 1 + (seed + cut * 5) % 23);
            work(&run, 40);
            bool power = !rng_chance(&run.rng, 1, 5);
            uint32_t lost = cut_and_compare(&run, seed * 1000 + cut, power);
            cr_assert_eq(lost, 0, "seed %llu cut %u: %u keys lost", (unsigned long long)seed, cut, lost);
            cuts++;
        }
        acks += run.acks;
        run_close(&run);
    }
    cr_log_info("index_crash: %llu cuts, %llu acknowledged changes\n", (unsigned long long)cuts,
                (unsigned long long)acks);
    cr_assert_gt(acks, cuts); /* the runs did real work */
}

/* A killed process leaves commits in the page cache; what the next start shows must survive a power cut that follows at once. */
Test(index_crash, what_is_shown_after_a_kill_survives_a_power_cut)
{
    for (uint64_t seed = seed_first(); seed <= seed_last(60); seed++) {
        struct run run;
        run_open(&run, seed, false);
        vfs_sim_die_at_sync(run.vfs, 1 + seed % 29);
        work(&run, 60);
        cr_assert_eq(cut_and_compare(&run, seed, false), 0, "seed %llu, kill", (unsigned long long)seed);
        cr_assert_eq(cut_and_compare(&run, seed, true), 0, "seed %llu, power", (unsigned long long)seed);
        run_close(&run);
    }
}

/* Negative control: without the index's syncs the same test must find losses, or it proves nothing. */
Test(index_crash, control_without_index_sync_loses)
{
    uint32_t losing = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct run run;
        run_open(&run, seed, true);
        work(&run, 40);
        losing += cut_and_compare(&run, seed, true) > 0 ? 1 : 0;
        run_close(&run);
    }
    cr_assert_gt(losing, 5, "only %u of 20 runs lost something", losing);
}

/* Each operation of each kind fails once, and from then on, until a run sees no failure. Nothing answered is lost, and an index
 * that failed takes no more work. */
static void fail_every(uint32_t ops, int code, bool from_then_on)
{
    uint64_t nth = 1;
    for (;; nth++) {
        struct run run;
        run_open(&run, 7, false);
        vfs_sim_fail(run.vfs, ops, nth, from_then_on, code);
        work(&run, 25);
        bool fired = vfs_sim_fired(run.vfs) > 0;
        uint32_t lost = cut_and_compare(&run, nth, true);
        cr_assert_eq(lost, 0, "operation kinds %u, number %llu, code %d: %u keys lost", ops,
                     (unsigned long long)nth, code, lost);
        run_close(&run);
        if (!fired) {
            break;
        }
    }
    cr_assert_gt(nth, 10); /* there was something to fail */
}

Test(index_crash, every_failing_write_is_survived)
{
    fail_every(VFS_SIM_WRITE, SQLITE_IOERR_WRITE, false);
    fail_every(VFS_SIM_WRITE, SQLITE_IOERR_WRITE, true);
}

Test(index_crash, every_failing_sync_is_survived)
{
    fail_every(VFS_SIM_SYNC, SQLITE_IOERR_FSYNC, false);
    fail_every(VFS_SIM_SYNC, SQLITE_IOERR_FSYNC, true);
}

Test(index_crash, every_full_disk_is_survived)
{
    fail_every(VFS_SIM_WRITE, SQLITE_FULL, false);
    fail_every(VFS_SIM_WRITE, SQLITE_FULL, true);
}
