/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_commit: the committer with devices that flush when the test says so: who waits for which flush, what is answered when,
 * and where space goes. The index is a real one.
 */
#include "index_rig.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "storage/commit.h"

#define DEVICES 3U

struct fake {
    struct index_rig rig;
    struct commit *commit;
    uint32_t flushes[DEVICES]; /* begun */
    enum store_device_state state[DEVICES];
    struct object_space visible[64], unseen[64];
    uint32_t visible_count, unseen_count;
    uint32_t pins;
    uint32_t answered; /* puts and requests */
    uint32_t progress; /* said so many times */
    uint64_t now_ns;
    uint64_t realtime_ns;
};

static void fake_flush(void *ctx, uint32_t device)
{
    struct fake *fake = ctx;
    fake->flushes[device]++;
}

static void fake_state(void *ctx, uint32_t device, enum store_device_state state, const char *why)
{
    struct fake *fake = ctx;
    cr_assert(why[0] != '\0');
    fake->state[device] = state;
}

static void fake_release(void *ctx, const struct object_space *spaces, uint32_t count, bool visible)
{
    struct fake *fake = ctx;
    for (uint32_t i = 0; i < count; i++) {
        if (visible) {
            fake->visible[fake->visible_count++] = spaces[i];
        } else {
            fake->unseen[fake->unseen_count++] = spaces[i];
        }
    }
}

static uint64_t fake_pin(void *ctx)
{
    struct fake *fake = ctx;
    fake->pins++;
    return 5;
}

static void fake_unpin(void *ctx, uint64_t epoch)
{
    struct fake *fake = ctx;
    cr_assert_eq(epoch, 5);
    fake->pins--;
}

#define PENDING_STATUS 12345 /* not answered so far */

static void fake_answer_put(void *ctx, struct commit_put *put)
{
    struct fake *fake = ctx;
    (void)put; /* its status tells */
    fake->answered++;
}

static void fake_answer_request(void *ctx, struct store_request *request)
{
    struct fake *fake = ctx;
    request->user = fake; /* marks it as answered */
    fake->answered++;
}

static void fake_progress(void *ctx)
{
    struct fake *fake = ctx;
    fake->progress++;
}

static const struct commit_ops fake_ops = {
    .flush = fake_flush,
    .device_state = fake_state,
    .space_release = fake_release,
    .pin = fake_pin,
    .unpin = fake_unpin,
    .progress = fake_progress,
    .answer_put = fake_answer_put,
    .answer_request = fake_answer_request,
};

static void fake_open(struct fake *fake, uint64_t size_max, uint64_t expiry_ns)
{
    memset(fake, 0, sizeof(*fake));
    rig_open(&fake->rig, size_max);
    rig_bucket(&fake->rig, "b");
    fake->now_ns = NS_PER_S;
    fake->realtime_ns = 1000 * NS_PER_S;
    struct commit_options options = {
        .index = fake->rig.index,
        .ops = &fake_ops,
        .ops_ctx = fake,
        .device_mask = (1U << DEVICES) - 1,
        .flush_deadline_ns = 2 * NS_PER_S,
        .upload_expiry_ns = expiry_ns,
        .part_size_min = 100,
        .id_seed = 1,
    };
    cr_assert_eq(commit_open(&options, &fake->commit), 0);
}

static void fake_close(struct fake *fake)
{
    commit_close(fake->commit);
    rig_verify(&fake->rig);
    rig_close(&fake->rig);
}

/* Steps until there is nothing to do at once; flushes stay in flight. */
static void turn(struct fake *fake)
{
    for (uint32_t i = 0; i < 1000; i++) {
        fake->now_ns++;
        if (commit_step(fake->commit, fake->now_ns, fake->realtime_ns) != 0) {
            return;
        }
    }
    cr_assert_fail("the committer never comes to rest");
}

static void flush_done(struct fake *fake, uint32_t device, int result)
{
    commit_flush_done(fake->commit, device, result, fake->now_ns);
    turn(fake);
}

/* A finished put of one extent per device named in `mask`. */
struct item {
    struct commit_put put;
    struct store_name key;
    struct store_attributes attributes;
    struct object_extent extents[DEVICES];
};

static void item_make(struct fake *fake, struct item *item, const char *key, uint64_t mask)
{
    memset(item, 0, sizeof(*item));
    rig_key(&item->key, key, strlen(key));
    strcpy(item->attributes.etag, "etag");
    item->put = (struct commit_put){
        .kind = COMMIT_PUT_FINISH,
        .status = PENDING_STATUS,
        .bucket = "b",
        .key = &item->key,
        .extents = item->extents,
        .device_mask = mask,
        .attributes = &item->attributes,
    };
    for (uint32_t device = 0; device < DEVICES; device++) {
        if ((mask >> device & 1) != 0) {
            item->extents[item->put.extent_count] = rig_extent(&fake->rig, 1000);
            item->extents[item->put.extent_count].device = device;
            item->put.extent_count++;
            item->put.size += 1000;
        }
    }
}

static void submit(struct fake *fake, struct item *item)
{
    commit_put_submit(fake->commit, &item->put);
    turn(fake);
}

static int request_run(struct fake *fake, struct store_request *request, enum store_request_kind kind,
                       const char *key)
{
    request->kind = kind;
    request->user = NULL;
    strcpy(request->bucket, "b");
    rig_key(&request->key, key, strlen(key));
    commit_request_submit(fake->commit, request);
    turn(fake);
    cr_assert_eq(request->user, fake, "request kind %d was not answered", (int)kind);
    return request->status;
}

static bool is_there(struct fake *fake, const char *key)
{
    struct store_name name;
    struct store_object *object = NULL;
    rig_key(&name, key, strlen(key));
    bool found = index_view_object(fake->rig.view, "b", &name, &object) == 0;
    object_free(object);
    return found;
}

Test(commit, put_is_visible_and_answered_only_after_its_flush)
{
    struct fake fake;
    struct item item;
    fake_open(&fake, 0, 0);
    item_make(&fake, &item, "k", 1);
    submit(&fake, &item);
    cr_assert_eq(fake.flushes[0], 1);
    cr_assert_eq(fake.answered, 0);
    cr_assert_not(is_there(&fake, "k"));
    flush_done(&fake, 0, 0);
    cr_assert_eq(fake.answered, 1);
    cr_assert_eq(item.put.status, 0);
    cr_assert_eq(item.put.modified_ns, fake.realtime_ns);
    cr_assert(is_there(&fake, "k"));
    fake_close(&fake);
}

Test(commit, whatever_blocks_in_the_index_has_a_deadline_of_its_own)
{
    struct fake fake;
    struct item item;
    struct store_request create = {0};
    fake_open(&fake, 0, 100 * NS_PER_S);
    item_make(&fake, &item, "k", 1);
    submit(&fake, &item);
    fake.progress = 0;
    flush_done(&fake, 0, 0);
    cr_assert_eq(item.put.status, 0);
    cr_assert_eq(fake.progress, 2, "the transaction, and whether the log is due");
    cr_assert_eq(request_run(&fake, &create, STORE_UPLOAD_CREATE, "old"), 0);
    fake.realtime_ns += 110 * NS_PER_S;
    fake.now_ns += 110 * NS_PER_S;
    fake.progress = 0;
    turn(&fake);
    cr_assert_eq(fake.progress, 2, "one expires, and then there is none");
    fake_close(&fake);
}

Test(commit, put_that_arrives_during_a_flush_waits_for_the_next_one)
{
    struct fake fake;
    struct item first, second;
    fake_open(&fake, 0, 0);
    item_make(&fake, &first, "first", 1);
    item_make(&fake, &second, "second", 1);
    submit(&fake, &first);
    submit(&fake, &second);
    cr_assert_eq(fake.flushes[0], 1);
    flush_done(&fake, 0, 0);
    cr_assert_eq(fake.answered, 1);
    cr_assert_not(is_there(&fake, "second"));
    cr_assert_eq(fake.flushes[0], 2);
    flush_done(&fake, 0, 0);
    cr_assert_eq(fake.answered, 2);
    cr_assert_eq(fake.flushes[0], 2);
    fake_close(&fake);
}

Test(commit, put_on_two_devices_needs_both)
{
    struct fake fake;
    struct item item;
    fake_open(&fake, 0, 0);
    item_make(&fake, &item, "k", 3);
    submit(&fake, &item);
    flush_done(&fake, 1, 0);
    cr_assert_eq(fake.answered, 0);
    flush_done(&fake, 0, 0);
    cr_assert_eq(item.put.status, 0);
    cr_assert_eq(fake.answered, 1);
    fake_close(&fake);
}

Test(commit, many_puts_become_one_transaction)
{
    struct fake fake;
    static struct item items[100];
    char key[16];
    struct commit_stats stats;
    fake_open(&fake, 0, 0);
    for (uint32_t i = 0; i < 100; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        item_make(&fake, &items[i], key, 1);
        commit_put_submit(fake.commit, &items[i].put);
    }
    turn(&fake);
    flush_done(&fake, 0, 0);
    commit_stats(fake.commit, &stats);
    cr_assert_eq(fake.answered, 100);
    cr_assert_eq(stats.transactions, 1);
    cr_assert_eq(stats.items, 100);
    cr_assert_eq(stats.latency->count, 100);
    fake_close(&fake);
}

Test(commit, failed_flush_fails_its_puts_and_poisons_the_device)
{
    struct fake fake;
    struct item lost, late, other;
    fake_open(&fake, 0, 0);
    item_make(&fake, &lost, "lost", 1);
    submit(&fake, &lost);
    flush_done(&fake, 0, -EIO);
    cr_assert_eq(lost.put.status, ERR_DEVICE_FAILED);
    cr_assert_eq(fake.state[0], STORE_DEVICE_FAILED);
    cr_assert_not(is_there(&fake, "lost"));
    cr_assert_eq(fake.unseen_count, 1);
    /* Never flushed again as if it had worked. */
    item_make(&fake, &late, "late", 1);
    submit(&fake, &late);
    cr_assert_eq(late.put.status, ERR_DEVICE_FAILED);
    cr_assert_eq(fake.flushes[0], 1);
    item_make(&fake, &other, "other", 2);
    submit(&fake, &other);
    flush_done(&fake, 1, 0);
    cr_assert_eq(other.put.status, 0);
    fake_close(&fake);
}

Test(commit, hanging_device_is_suspect_and_delays_nobody_else)
{
    struct fake fake;
    struct item stuck, late, healthy, after;
    fake_open(&fake, 0, 0);
    item_make(&fake, &stuck, "stuck", 1);
    submit(&fake, &stuck);
    fake.now_ns += 60 * NS_PER_S;
    item_make(&fake, &healthy, "healthy", 2);
    submit(&fake, &healthy);
    cr_assert_eq(fake.state[0], STORE_DEVICE_OK,
                 "nobody has looked for a minute: it may have been us who stood still");
    fake.now_ns += 600 * NS_PER_MS;
    turn(&fake);
    cr_assert_eq(fake.state[0], STORE_DEVICE_SUSPECT);
    cr_assert_eq(fake.answered, 1, "who waits for the device is told");
    cr_assert_eq(stuck.put.status, ERR_DEVICE_FAILED);
    cr_assert_eq(fake.unseen_count, 1, "and its space is free");
    item_make(&fake, &late, "late", 1);
    submit(&fake, &late);
    cr_assert_eq(late.put.status, ERR_DEVICE_FAILED);
    cr_assert_eq(fake.answered, 2);
    flush_done(&fake, 1, 0);
    cr_assert_eq(healthy.put.status, 0);
    cr_assert_eq(fake.answered, 3);
    flush_done(&fake, 0, 0);
    cr_assert_eq(fake.answered, 3);
    cr_assert_eq(fake.state[0], STORE_DEVICE_OK);
    cr_assert(!is_there(&fake, "stuck"), "what was refused does not appear");
    item_make(&fake, &after, "after", 1);
    submit(&fake, &after);
    cr_assert(!is_there(&fake, "after"), "only a flush that began after its arrival counts");
    flush_done(&fake, 0, 0);
    cr_assert_eq(after.put.status, 0);
    cr_assert(is_there(&fake, "after"));
    fake_close(&fake);
}

Test(commit, refused_put_gives_its_space_back_at_once)
{
    struct fake fake;
    struct item first, second;
    struct store_condition condition = {.if_none_match_any = true};
    fake_open(&fake, 0, 0);
    item_make(&fake, &first, "k", 1);
    item_make(&fake, &second, "k", 1);
    second.put.condition = &condition;
    commit_put_submit(fake.commit, &first.put);
    commit_put_submit(fake.commit, &second.put);
    turn(&fake);
    flush_done(&fake, 0, 0);
    cr_assert_eq(first.put.status, 0);
    cr_assert_eq(second.put.status, ERR_PRECONDITION);
    cr_assert_eq(fake.unseen_count, 1);
    cr_assert_eq(fake.unseen[0].offset, second.extents[0].offset);
    cr_assert_eq(fake.visible_count, 0);
    fake_close(&fake);
}

Test(commit, space_of_an_overwritten_object_goes_through_the_epochs)
{
    struct fake fake;
    struct item first, second;
    fake_open(&fake, 0, 0);
    item_make(&fake, &first, "k", 1);
    submit(&fake, &first);
    flush_done(&fake, 0, 0);
    item_make(&fake, &second, "k", 1);
    submit(&fake, &second);
    cr_assert_eq(fake.visible_count, 0);
    flush_done(&fake, 0, 0);
    cr_assert_eq(fake.visible_count, 1);
    cr_assert_eq(fake.visible[0].offset, first.extents[0].offset);
    cr_assert_eq(fake.unseen_count, 0);
    fake_close(&fake);
}

Test(commit, pending_extents_join_the_object_or_go_with_the_abort)
{
    struct fake fake;
    struct item kept, dropped;
    fake_open(&fake, 0, 0);
    item_make(&fake, &kept, "kept", 1);
    item_make(&fake, &dropped, "dropped", 1);
    kept.put.owner = commit_owner_new(fake.commit);
    dropped.put.owner = commit_owner_new(fake.commit);
    cr_assert_neq(kept.put.owner, dropped.put.owner);
    kept.put.kind = dropped.put.kind = COMMIT_PUT_PENDING;
    commit_put_submit(fake.commit, &kept.put);
    commit_put_submit(fake.commit, &dropped.put);
    turn(&fake);
    cr_assert_eq(fake.answered, 2); /* recording needs no flush */
    struct object_extent last = rig_extent(&fake.rig, 500);
    kept.put.kind = COMMIT_PUT_FINISH;
    kept.put.extents = &last;
    kept.put.size = 1500;
    dropped.put.kind = COMMIT_PUT_ABORT;
    dropped.put.extent_count = 0;
    commit_put_submit(fake.commit, &kept.put);
    commit_put_submit(fake.commit, &dropped.put);
    turn(&fake);
    flush_done(&fake, 0, 0);
    cr_assert_eq(kept.put.status, 0);
    cr_assert_eq(dropped.put.status, 0);
    cr_assert(is_there(&fake, "kept"));
    cr_assert_eq(fake.unseen_count, 1);
    cr_assert_eq(fake.unseen[0].offset, dropped.extents[0].offset);
    fake_close(&fake);
}

Test(commit, refused_long_upload_leaves_no_pending_rows)
{
    struct fake fake;
    struct item item;
    fake_open(&fake, 0, 0);
    item_make(&fake, &item, "k", 1);
    item.put.owner = commit_owner_new(fake.commit);
    item.put.kind = COMMIT_PUT_PENDING;
    submit(&fake, &item);
    item.put.kind = COMMIT_PUT_FINISH;
    item.put.bucket = "missing";
    item.put.extent_count = 0;
    submit(&fake, &item);
    flush_done(&fake, 0, 0);
    cr_assert_eq(item.put.status, ERR_NO_SUCH_BUCKET);
    cr_assert_eq(fake.unseen_count, 1);
    struct index_extent_row row;
    cr_assert_eq(index_view_extent(fake.rig.view, 0, &row), -ENOENT);
    fake_close(&fake);
}

Test(commit, copy_and_complete_answer_with_the_new_object_pinned)
{
    struct fake fake;
    struct item item, part;
    struct store_request request = {0};
    fake_open(&fake, 0, 0);
    item_make(&fake, &item, "k", 1);
    submit(&fake, &item);
    flush_done(&fake, 0, 0);
    struct store_object *source = NULL;
    cr_assert_eq(index_view_object(fake.rig.view, "b", &item.key, &source), 0);
    request.source = source;
    cr_assert_eq(request_run(&fake, &request, STORE_OBJECT_COPY, "copy"), 0);
    cr_assert_not_null(request.object);
    cr_assert_eq(request.object->epoch, 5);
    cr_assert_eq(fake.pins, 1);
    cr_assert_eq(request.object->size, 1000);
    object_free(request.object);
    object_free(source);

    struct store_request create = {0};
    cr_assert_eq(request_run(&fake, &create, STORE_UPLOAD_CREATE, "multi"), 0);
    cr_assert_eq(strlen(create.upload_id), 32);
    item_make(&fake, &part, "multi", 2);
    part.put.upload_id = create.upload_id;
    part.put.part_number = 3;
    submit(&fake, &part);
    flush_done(&fake, 1, 0);
    cr_assert_eq(part.put.status, 0);
    cr_assert_not(is_there(&fake, "multi"));
    struct store_part_ref ref = {.number = 3, .etag = "etag"};
    struct store_attributes attributes = {.etag = "whole-1"};
    struct store_request complete = {.parts = &ref, .part_count = 1, .attributes = &attributes};
    strcpy(complete.upload_id, create.upload_id);
    cr_assert_eq(request_run(&fake, &complete, STORE_UPLOAD_COMPLETE, "multi"), 0);
    cr_assert_not_null(complete.object);
    cr_assert_str_eq(complete.object->attributes.etag, "whole-1");
    cr_assert_eq(complete.object->part_count, 1);
    object_free(complete.object);
    cr_assert_eq(request_run(&fake, &complete, STORE_UPLOAD_COMPLETE, "multi"), ERR_NO_SUCH_UPLOAD);
    fake_close(&fake);
}

Test(commit, abandoned_upload_expires_and_frees_its_parts)
{
    struct fake fake;
    struct item part;
    fake_open(&fake, 0, 100 * NS_PER_S);
    struct store_request create = {0}, fresh = {0};
    cr_assert_eq(request_run(&fake, &create, STORE_UPLOAD_CREATE, "old"), 0);
    item_make(&fake, &part, "old", 1);
    part.put.upload_id = create.upload_id;
    part.put.part_number = 1;
    submit(&fake, &part);
    flush_done(&fake, 0, 0);
    /* Touched by its part at 1000 s: still there at 1050 s. */
    fake.realtime_ns += 50 * NS_PER_S;
    fake.now_ns += 50 * NS_PER_S;
    cr_assert_eq(request_run(&fake, &fresh, STORE_UPLOAD_CREATE, "fresh"), 0);
    struct index_counters counters;
    index_counters(fake.rig.index, &counters);
    cr_assert_eq(counters.uploads, 2);
    fake.realtime_ns += 60 * NS_PER_S;
    fake.now_ns += 60 * NS_PER_S;
    turn(&fake);
    index_counters(fake.rig.index, &counters);
    cr_assert_eq(counters.uploads, 1);
    cr_assert_eq(counters.upload_bytes, 0);
    cr_assert_eq(fake.visible_count, 1);
    struct commit_stats stats;
    commit_stats(fake.commit, &stats);
    cr_assert_eq(stats.uploads_expired, 1);
    fake_close(&fake);
}

Test(commit, full_index_refuses_puts_frees_their_space_and_takes_deletes)
{
    struct fake fake;
    struct item item;
    char key[16];
    uint32_t n = 0;
    fake_open(&fake, 256 * 1024, 0);
    do {
        cr_assert_lt(n, 10000U);
        fake.visible_count = fake.unseen_count = 0;
        snprintf(key, sizeof(key), "k%u", n++);
        item_make(&fake, &item, key, 1);
        submit(&fake, &item);
        flush_done(&fake, 0, 0);
    } while (item.put.status == 0);
    cr_assert_eq(item.put.status, -ENOSPC);
    cr_assert_eq(fake.unseen_count, 1);
    cr_assert_eq(fake.unseen[0].offset, item.extents[0].offset);
    cr_assert_eq(commit_health(fake.commit), 0);
    /* In one batch with a put that does not fit, the deletes still go through. */
    struct store_request deletes[30];
    memset(deletes, 0, sizeof(deletes));
    item_make(&fake, &item, "one more", 0);
    commit_put_submit(fake.commit, &item.put);
    for (uint32_t i = 0; i < 30; i++) {
        fake.visible_count = 0;
        snprintf(key, sizeof(key), "k%u", i);
        cr_assert_eq(request_run(&fake, &deletes[i], STORE_OBJECT_DELETE, key), 0);
        cr_assert(deletes[i].existed);
    }
    item_make(&fake, &item, "resumed", 1);
    submit(&fake, &item);
    flush_done(&fake, 0, 0);
    cr_assert_eq(item.put.status, 0);
    fake_close(&fake);
}

Test(commit, requests_report_their_refusals)
{
    struct fake fake;
    struct store_request request = {0};
    fake_open(&fake, 0, 0);
    cr_assert_eq(request_run(&fake, &request, STORE_BUCKET_CREATE, ""), ERR_BUCKET_EXISTS);
    cr_assert_eq(request_run(&fake, &request, STORE_OBJECT_DELETE, "nothing"), 0);
    cr_assert_not(request.existed);
    cr_assert_eq(request_run(&fake, &request, STORE_UPLOAD_ABORT, "nothing"), ERR_NO_SUCH_UPLOAD);
    cr_assert_eq(request_run(&fake, &request, STORE_BUCKET_DELETE, ""), 0);
    cr_assert_eq(request_run(&fake, &request, STORE_BUCKET_DELETE, ""), ERR_NO_SUCH_BUCKET);
    fake_close(&fake);
}
