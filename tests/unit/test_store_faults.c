/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that fail under the whole store, stepped: every operation failing in turn, failed and hanging flushes, misdirected
 * and lost writes. After any one fault a reader gets exactly the bytes that were acknowledged, or an error.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "storage/port_int.h"
#include "store_rig.h"

#define LEN (700 * KIB + 13)

static struct dev *wrap(struct dev *inner)
{
    struct dev *outer = NULL;
    cr_assert_eq(dev_fault_open(inner, 5, &outer), 0);
    return outer;
}

static uint8_t *make(uint64_t len, uint64_t seed)
{
    uint8_t *bytes = malloc(len);
    cr_assert_not_null(bytes);
    store_rig_fill(bytes, len, seed);
    return bytes;
}

static void rig_open(struct store_rig *rig, const char *name, uint32_t devices)
{
    store_rig_open(rig, &(struct store_rig_options){.name = name,
                                                    .is_memory = true,
                                                    .device_size = 32 * MIB,
                                                    .device_count = devices,
                                                    .write_unit = 128 * KIB,
                                                    .wrap = wrap});
    cr_assert_eq(store_rig_bucket(rig, "b"), 0);
}

/* One scene: an object there, one written over it, one new; with one device operation failing. What is acknowledged is there and
 * whole, what is not is absent or the old one. Returns whether the fault fired. */
static bool scene(uint32_t ops, enum dev_fault_kind kind, uint64_t nth, bool from_then_on)
{
    struct store_rig rig;
    uint8_t *old = make(LEN, 1);
    uint8_t *new = make(LEN, 2);
    rig_open(&rig, "faults-nth", 1);
    cr_assert_eq(store_rig_put(&rig, "k", old, LEN, 9000, 3), 0);
    dev_fault_plan_set(
        rig.devices[0],
        &(struct dev_fault_plan){
            .kind = kind, .ops = ops, .error = -EIO, .nth = nth, .from_then_on = from_then_on});
    int over = store_rig_put(&rig, "k", new, LEN, 9000, 1);
    int fresh = rig.devices[0]->state == STORE_DEVICE_OK ? store_rig_put(&rig, "n", new, LEN, 9000, 2)
                                                         : ERR_DEVICE_FAILED;
    int read_over = store_rig_compare(&rig, "k", over == 0 ? new : old, LEN);
    int read_fresh = store_rig_compare(&rig, "n", new, LEN);
    uint64_t fired = dev_fault_fired(rig.devices[0]);
    bool reads_may_fail = (ops & (1U << DEV_READ)) != 0;
    dev_fault_plan_set(rig.devices[0], &(struct dev_fault_plan){.kind = DEV_FAULT_NONE});
    cr_assert(read_over == 0 || (reads_may_fail && read_over == -EIO), "nth %llu: k: put %d read %d",
              (unsigned long long)nth, over, read_over);
    cr_assert(fresh == 0 ? read_fresh == 0 || (reads_may_fail && read_fresh == -EIO)
                         : read_fresh == ERR_NO_SUCH_KEY,
              "nth %llu: n: put %d read %d", (unsigned long long)nth, fresh, read_fresh);
    cr_assert_eq(store_rig_compare(&rig, "k", over == 0 ? new : old, LEN), 0, "it is still there afterwards");
    uint64_t objects = 1 + (fresh == 0);
    cr_assert_eq(store_rig_used(&rig), objects * bytes_round_up(LEN + 3, 4096), "nth %llu: space leaked",
                 (unsigned long long)nth);
    store_rig_close(&rig);
    free(old);
    free(new);
    return fired > 0;
}

static void every_operation(uint32_t ops, enum dev_fault_kind kind, bool from_then_on)
{
    uint64_t nth = 1;
    while (scene(ops, kind, nth, from_then_on)) {
        nth++;
        cr_assert_lt(nth, 1000, "the loop has no end");
    }
    cr_assert_gt(nth, 2, "nothing ever fired: the test tests nothing");
}

Test(store_faults, every_write_failing_in_turn)
{
    every_operation(1U << DEV_WRITE, DEV_FAULT_ERROR, false);
    every_operation(1U << DEV_WRITE, DEV_FAULT_ERROR, true);
}

Test(store_faults, every_write_torn_in_turn)
{
    every_operation(1U << DEV_WRITE, DEV_FAULT_TORN, false);
}

Test(store_faults, every_flush_failing_in_turn)
{
    every_operation(1U << DEV_FLUSH, DEV_FAULT_ERROR, false);
    every_operation(1U << DEV_FLUSH, DEV_FAULT_ERROR, true);
}

Test(store_faults, every_read_failing_in_turn)
{
    every_operation(1U << DEV_READ, DEV_FAULT_ERROR, false);
}

/* A device that lies about a write is found by the block checksums: an error, never other bytes. */
static void lying_write(enum dev_fault_kind kind)
{
    for (uint64_t nth = 1; nth <= 6; nth++) {
        struct store_rig rig;
        uint8_t *old = make(LEN, 3);
        uint8_t *new = make(LEN, 4);
        rig_open(&rig, "faults-lying", 1);
        cr_assert_eq(store_rig_put(&rig, "old", old, LEN, 9000, 0), 0);
        dev_fault_plan_set(rig.devices[0],
                           &(struct dev_fault_plan){.kind = kind, .ops = 1U << DEV_WRITE, .nth = nth});
        cr_assert_eq(store_rig_put(&rig, "new", new, LEN, 9000, 0), 0);
        cr_assert_eq(dev_fault_fired(rig.devices[0]), 1);
        cr_assert_eq(store_rig_compare(&rig, "new", new, LEN), ERR_CORRUPT);
        int rc = store_rig_compare(&rig, "old", old, LEN);
        cr_assert(rc == 0 || rc == ERR_CORRUPT, "a misdirected write may have hit it: then it says so (%d)",
                  rc);
        store_rig_close(&rig);
        free(old);
        free(new);
    }
}

Test(store_faults, a_lost_write_is_never_served)
{
    lying_write(DEV_FAULT_LOST);
}

Test(store_faults, a_misdirected_write_is_never_served)
{
    lying_write(DEV_FAULT_MISDIRECT);
}

Test(store_faults, a_corrupted_read_is_never_served_and_the_next_is_right)
{
    struct store_rig rig;
    uint8_t *bytes = make(LEN, 5);
    rig_open(&rig, "faults-read", 1);
    cr_assert_eq(store_rig_put(&rig, "k", bytes, LEN, 9000, 0), 0);
    dev_fault_plan_set(rig.devices[0],
                       &(struct dev_fault_plan){.kind = DEV_FAULT_CORRUPT, .ops = 1U << DEV_READ, .nth = 2});
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, LEN), ERR_CORRUPT);
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, LEN), 0);
    store_rig_close(&rig);
    free(bytes);
}

static void hang(struct store_rig *rig, uint32_t device, enum dev_op op)
{
    dev_fault_plan_set(
        rig->devices[device],
        &(struct dev_fault_plan){.kind = DEV_FAULT_HANG, .ops = 1U << op, .nth = 1, .from_then_on = true});
}

static void unhang(struct store_rig *rig, uint32_t device)
{
    dev_fault_plan_set(rig->devices[device], &(struct dev_fault_plan){.kind = DEV_FAULT_NONE});
    dev_fault_release(rig->devices[device]);
}

static enum store_device_state state_of(struct store_rig *rig, uint32_t device)
{
    struct store_device_info info;
    store_device_info(rig->store, device, &info);
    return info.state;
}

/* Gives a failed put up and waits until nothing remains of it. */
static void give_up(struct store_rig *rig, struct store_put *put)
{
    store_put_abort(put);
    for (uint32_t turn = 0; store_put_state(put) != STORE_PUT_ABORTED; turn++) {
        cr_assert_lt(turn, 1000U, "a put never ended");
        store_rig_turn(rig);
    }
    store_put_free(put);
}

/* Devices take turns, so of many puts some lie on the hanging one: they wait until its deadline, the others do not. */
Test(store_faults, a_hanging_flush_delays_nobody_elses_objects)
{
    struct store_rig rig;
    uint8_t *bytes = make(64 * KIB, 6);
    static const struct store_attributes attributes = {.etag = "e"};
    struct store_put *puts[8];
    uint32_t done = 0;
    rig_open(&rig, "faults-hang", 2);
    dev_fault_plan_set(rig.devices[0],
                       &(struct dev_fault_plan){
                           .kind = DEV_FAULT_HANG, .ops = 1U << DEV_FLUSH, .nth = 1, .from_then_on = true});
    for (uint32_t i = 0; i < ARRAY_COUNT(puts); i++) {
        char key[16] = {(char)('a' + i)};
        puts[i] = store_rig_begin(&rig, key, 64 * KIB);
        store_rig_append(&rig, puts[i], bytes, 64 * KIB, i * 64 * KIB);
        store_put_finish(puts[i], &attributes, NULL);
    }
    for (uint32_t turn = 0; turn < 200; turn++) {
        store_rig_turn(&rig); /* 200 ms of the store's time: far below the flush deadline */
    }
    for (uint32_t i = 0; i < ARRAY_COUNT(puts); i++) {
        done += store_put_state(puts[i]) == STORE_PUT_DONE;
    }
    cr_assert_eq(done, 4, "half of the puts lie on the healthy device");
    for (uint32_t turn = 0; turn < 6000; turn++) {
        store_rig_turn(&rig);
    }
    struct store_device_info info;
    store_device_info(rig.store, 0, &info);
    cr_assert_eq(info.state, STORE_DEVICE_SUSPECT, "past its deadline");
    cr_assert_eq(store_rig_put(&rig, "later", bytes, 64 * KIB, 64 * KIB, 0), 0,
                 "new uploads go to the other");
    dev_fault_plan_set(rig.devices[0], &(struct dev_fault_plan){.kind = DEV_FAULT_NONE});
    dev_fault_release(rig.devices[0]);
    uint32_t failed = 0;
    for (uint32_t i = 0; i < ARRAY_COUNT(puts); i++) {
        if (store_put_state(puts[i]) == STORE_PUT_FAILED) {
            failed++;
            cr_assert_eq(store_put_error(puts[i]), ERR_DEVICE_FAILED);
            give_up(&rig, puts[i]);
        } else {
            cr_assert_eq(store_put_state(puts[i]), STORE_PUT_DONE);
            store_put_free(puts[i]);
        }
    }
    cr_assert_eq(failed, 4);
    store_rig_turn(&rig); /* The committer hears of the flush. */
    store_device_info(rig.store, 0, &info);
    cr_assert_eq(info.state, STORE_DEVICE_OK);
    store_rig_close(&rig);
    free(bytes);
}

/* The only device takes writes and answers no flush. Whoever waits is told after the deadline, also who comes later; nothing of them
 * appears, neither when the flush returns after all nor after a restart; and all of the space is there again. */
Test(store_faults, uploads_that_a_hanging_flush_holds_are_refused_and_leave_nothing)
{
    struct store_rig rig;
    uint64_t len = 3 * MIB;
    uint8_t *bytes = make(len, 8);
    static const struct store_attributes attributes = {.etag = "e"};
    struct store_name name;
    struct store_put *puts[3];
    rig_open(&rig, "faults-flush", 1);
    cr_assert_eq(store_rig_put(&rig, "a", bytes, 64 * KIB, 64 * KIB, 0), 0);
    uint64_t used = store_rig_used(&rig);
    hang(&rig, 0, DEV_FLUSH);
    for (uint32_t i = 0; i < ARRAY_COUNT(puts); i++) {
        char key[16] = {(char)('a' + i)};
        puts[i] = store_rig_begin(&rig, key, MIB);
        store_rig_append(&rig, puts[i], bytes, MIB, i * MIB);
    }
    store_put_finish(puts[0], &attributes, NULL); /* "a" shall be overwritten */
    store_put_finish(puts[1], &attributes, NULL);
    for (uint32_t turn = 0; turn < 4900; turn++) {
        store_rig_turn(&rig);
        cr_assert_eq(store_put_state(puts[0]), STORE_PUT_OPEN, "before its deadline, at turn %u", turn);
    }
    for (uint32_t turn = 0; turn < 200; turn++) {
        store_rig_turn(&rig);
    }
    cr_assert_eq(state_of(&rig, 0), STORE_DEVICE_SUSPECT);
    store_put_finish(puts[2], &attributes, NULL);
    for (uint32_t turn = 0; turn < 20; turn++) {
        store_rig_turn(&rig);
    }
    for (uint32_t i = 0; i < ARRAY_COUNT(puts); i++) {
        cr_assert_eq(store_put_state(puts[i]), STORE_PUT_FAILED);
        cr_assert_eq(store_put_error(puts[i]), ERR_DEVICE_FAILED);
        give_up(&rig, puts[i]);
    }
    cr_assert_eq(store_rig_used(&rig), used, "their space is free");
    store_rig_key(&name, "new");
    struct store_put_options options = {.bucket = "b", .key = &name, .size = MIB};
    cr_assert_eq(store_put_begin(rig.port, &options, &puts[0]), ERR_DEVICE_FAILED);
    unhang(&rig, 0);
    for (uint32_t turn = 0; state_of(&rig, 0) != STORE_DEVICE_OK; turn++) {
        cr_assert_lt(turn, 1000U, "the device did not come back");
        store_rig_turn(&rig);
    }
    for (uint32_t round = 0; round < 2; round++) {
        cr_assert_eq(store_rig_compare(&rig, "a", bytes, 64 * KIB), 0, "what was there before");
        cr_assert_eq(store_rig_compare(&rig, "b", bytes, MIB), ERR_NO_SUCH_KEY);
        cr_assert_eq(store_rig_compare(&rig, "c", bytes, MIB), ERR_NO_SUCH_KEY);
        cr_assert_eq(store_rig_used(&rig), used);
        store_rig_reopen(&rig);
    }
    cr_assert_eq(store_rig_put(&rig, "b", bytes, len, 64 * KIB, 0), 0);
    cr_assert_eq(store_rig_compare(&rig, "b", bytes, len), 0);
    store_rig_close(&rig);
    free(bytes);
}

Test(store_faults, one_failed_device_leaves_the_other_working)
{
    struct store_rig rig;
    uint8_t *bytes = make(64 * KIB, 7);
    struct err err = {""};
    rig_open(&rig, "faults-one", 2);
    dev_fault_plan_set(
        rig.devices[1],
        &(struct dev_fault_plan){.kind = DEV_FAULT_ERROR, .ops = 1U << DEV_FLUSH, .error = -EIO, .nth = 1});
    uint32_t failed = 0;
    for (uint32_t i = 0; i < 6; i++) {
        char key[16] = {(char)('a' + i)};
        int rc = store_rig_put(&rig, key, bytes, 64 * KIB, 64 * KIB, 0);
        failed += rc != 0;
        cr_assert_eq(store_rig_compare(&rig, key, bytes, 64 * KIB), rc == 0 ? 0 : ERR_NO_SUCH_KEY);
    }
    cr_assert_eq(failed, 1, "the one whose flush failed");
    struct store_device_info info;
    store_device_info(rig.store, 1, &info);
    cr_assert_eq(info.state, STORE_DEVICE_FAILED);
    cr_assert_eq(store_health(rig.store, &err), 0, "%s", err.text);
    store_rig_close(&rig);
    free(bytes);
}

/* Slices without end, the device silent: one upload takes all that uploads have in common, another still has its own share, and each
 * may append one more. Memory for more does not exist (CHECK). */
Test(store_faults, slices_that_wait_have_a_bound_and_each_upload_a_share)
{
    struct store_rig rig;
    uint8_t *bytes = make(2 * MIB, 8);
    struct store_put *puts[2];
    uint32_t lens[2];
    rig_open(&rig, "faults-slices", 1);
    hang(&rig, 0, DEV_WRITE);
    for (uint32_t i = 0; i < 2; i++) {
        puts[i] = store_rig_begin(&rig, i == 0 ? "a" : "b", UINT64_MAX);
        for (lens[i] = 0; lens[i] < MIB; lens[i] += 128 * KIB) {
            store_rig_append(&rig, puts[i], bytes + lens[i], 128 * KIB, lens[i]);
        }
        cr_assert_not(store_put_is_full(puts[i]), "three slices wait");
        while (!store_put_is_full(puts[i])) {
            store_rig_append(&rig, puts[i], bytes + lens[i], 1, lens[i]);
            lens[i]++;
        }
        store_rig_append(&rig, puts[i], bytes + lens[i], 1, lens[i]);
        lens[i]++;
    }
    cr_assert_gt(lens[0], MIB + 4096, "the first has what is in common");
    cr_assert_eq(lens[1], MIB + 6, "5 more make 8; and one");
    unhang(&rig, 0);
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_eq(store_rig_finish(&rig, puts[i]), 0);
        cr_assert_eq(store_rig_compare(&rig, i == 0 ? "a" : "b", bytes, lens[i]), 0);
    }
    cr_assert_eq(pool_used(&rig.port->backlog_pool), 0);
    store_rig_close(&rig);
    free(bytes);
}

static void delete_begin(struct store_rig *rig, struct store_request *request, const char *key)
{
    memset(request, 0, sizeof(*request));
    request->kind = STORE_OBJECT_DELETE;
    snprintf(request->bucket, sizeof(request->bucket), "b");
    store_rig_key(&request->key, key);
    rig->request_back = NULL;
    store_submit(rig->port, request);
}

/* One turn of the port, the committer being in the index. */
static void port_turn(struct store_rig *rig, uint64_t step_ns)
{
    struct store_event events[16];
    rig->now_ns += step_ns;
    uint32_t count = store_poll(rig->port, rig->now_ns, events, ARRAY_COUNT(events));
    for (uint32_t i = 0; i < count; i++) {
        rig->late_events += events[i].kind == STORE_EVENT_LATE;
        rig->request_back = events[i].kind == STORE_EVENT_REQUEST ? events[i].request : rig->request_back;
    }
}

/* The committer does not come back from the index: who waits for it is told after the deadline, who comes later at once, and what it
 * had not begun it does not do. */
Test(store_faults, an_index_that_does_not_answer_is_waited_for_until_the_deadline)
{
    static const struct store_attributes attributes = {.etag = "e"};
    static struct store_request waiting, later;
    struct store_rig rig;
    struct store_put *later_put = NULL;
    struct store_name key;
    struct err err = {""};
    uint8_t *bytes = make(64 * KIB, 9);
    rig_open(&rig, "faults-index", 1);
    cr_assert_eq(store_rig_put(&rig, "k", bytes, 64 * KIB, 64 * KIB, 0), 0);
    rig.store->commit_busy.since_ns = rig.now_ns;
    struct store_put *put = store_rig_begin(&rig, "p", 64 * KIB);
    struct store_put *open = store_rig_begin(&rig, "o", UINT64_MAX);
    store_rig_append(&rig, put, bytes, 64 * KIB, 64 * KIB);
    store_put_finish(put, &attributes, NULL);
    delete_begin(&rig, &waiting, "k");
    for (uint32_t turn = 0; turn < 490; turn++) {
        port_turn(&rig, 10 * NS_PER_MS);
    }
    cr_assert_eq(store_put_state(put), STORE_PUT_OPEN, "the deadline is 5 s");
    cr_assert_eq(store_deadline(rig.port), rig.store->commit_busy.since_ns + 5 * NS_PER_S);
    port_turn(&rig, 200 * NS_PER_MS);
    cr_assert_eq(store_put_state(put), STORE_PUT_FAILED);
    cr_assert_eq(store_put_error(put), ERR_DEVICE_FAILED);
    cr_assert_eq(rig.late_events, 1);
    cr_assert_eq(store_health(rig.store, &err), ERR_DEVICE_FAILED, "%s", err.text);
    cr_assert_eq(store_put_state(open), STORE_PUT_OPEN, "it does not wait for the index yet");
    store_rig_key(&key, "q");
    struct store_put_options options = {.bucket = "b", .key = &key, .size = 1};
    cr_assert_eq(store_put_begin(rig.port, &options, &later_put), ERR_DEVICE_FAILED);
    delete_begin(&rig, &later, "k");
    port_turn(&rig, 1);
    cr_assert_eq(rig.request_back, &later);
    cr_assert_eq(later.status, ERR_DEVICE_FAILED);
    cr_assert_eq(rig.late_events, 1, "told once");
    rig.store->commit_busy.since_ns = 0; /* It answers. */
    rig.store->commit_busy.is_known_late = false;
    store_put_abort(open);
    for (uint32_t turn = 0; store_put_state(open) != STORE_PUT_ABORTED; turn++) {
        cr_assert_lt(turn, 1000U);
        store_rig_turn(&rig);
    }
    store_put_free(open);
    give_up(&rig, put);
    cr_assert_eq(waiting.status, ERR_DEVICE_FAILED, "nobody wants it any more");
    cr_assert_eq(store_health(rig.store, &err), 0);
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, 64 * KIB), 0, "not deleted");
    cr_assert_eq(store_rig_compare(&rig, "p", bytes, 64 * KIB), ERR_NO_SUCH_KEY);
    cr_assert_eq(store_rig_used(&rig), 64 * KIB);
    store_rig_close(&rig);
    free(bytes);
}

/* The index was late with one of several transactions: with the next it is looked at anew, twice. */
Test(store_faults, an_index_that_answered_late_is_not_late_with_what_comes_next)
{
    static struct store_request first, second;
    struct store_rig rig;
    struct err err = {""};
    uint8_t *bytes = make(64 * KIB, 9);
    rig_open(&rig, "faults-index-next", 1);
    cr_assert_eq(store_rig_put(&rig, "k", bytes, 64 * KIB, 64 * KIB, 0), 0);
    store_busy_begin(&rig.store->commit_busy, rig.now_ns);
    delete_begin(&rig, &first, "k");
    for (uint32_t turn = 0; turn < 510; turn++) {
        port_turn(&rig, 10 * NS_PER_MS);
    }
    cr_assert_eq(rig.late_events, 1);
    cr_assert(store_index_is_late(rig.store));
    store_busy_progress(&rig.store->commit_busy, rig.now_ns);
    cr_expect_not(store_index_is_late(rig.store));
    cr_expect_eq(store_health(rig.store, &err), 0, "%s", err.text);
    delete_begin(&rig, &second, "k");
    port_turn(&rig, 60 * NS_PER_S);
    cr_expect_eq(rig.late_events, 1, "one look is none");
    store_busy_end(&rig.store->commit_busy);
    for (uint32_t turn = 0; rig.request_back != &second; turn++) {
        cr_assert_lt(turn, 1000U);
        store_step(rig.store, rig.now_ns, rig.now_ns);
        port_turn(&rig, 1);
    }
    cr_assert_eq(first.status, ERR_DEVICE_FAILED, "its client was told");
    cr_assert_eq(second.status, 0);
    store_rig_close(&rig);
    free(bytes);
}

/* The process stands still while the committer is in the index: it may have had its answer long ago. */
Test(store_faults, a_process_that_stood_still_does_not_blame_the_index)
{
    static const struct store_attributes attributes = {.etag = "e"};
    static struct store_request waiting;
    struct store_rig rig;
    uint8_t *bytes = make(64 * KIB, 9);
    rig_open(&rig, "faults-index-still", 1);
    cr_assert_eq(store_rig_put(&rig, "k", bytes, 64 * KIB, 64 * KIB, 0), 0);
    rig.store->commit_busy.since_ns = rig.now_ns;
    struct store_put *put = store_rig_begin(&rig, "p", 64 * KIB);
    store_rig_append(&rig, put, bytes, 64 * KIB, 64 * KIB);
    store_put_finish(put, &attributes, NULL);
    delete_begin(&rig, &waiting, "k");
    port_turn(&rig, NS_PER_S);
    for (uint32_t times = 0; times < 3; times++) {
        port_turn(&rig, 60 * NS_PER_S);
        cr_expect_eq(rig.late_events, 0, "time %u", times);
        cr_expect_eq(store_put_state(put), STORE_PUT_OPEN, "time %u", times);
    }
    rig.store->commit_busy.since_ns = 0; /* It answers. */
    for (uint32_t turn = 0; store_put_state(put) != STORE_PUT_DONE; turn++) {
        cr_assert_lt(turn, 1000U);
        store_rig_turn(&rig);
    }
    store_put_free(put);
    cr_assert_eq(waiting.status, 0);
    store_rig_close(&rig);
    free(bytes);
}

/* A device that answers no write: who waits for it is told after the deadline, nobody else notices, and it comes back. */
Test(store_faults, a_hanging_write_fails_its_uploads_and_no_others)
{
    struct store_rig rig;
    uint8_t *bytes = make(64 * KIB, 6);
    static const struct store_attributes attributes = {.etag = "e"};
    struct store_put *puts[8];
    uint32_t done = 0;
    rig_open(&rig, "faults-hang-write", 2);
    hang(&rig, 0, DEV_WRITE);
    for (uint32_t i = 0; i < ARRAY_COUNT(puts); i++) {
        char key[16] = {(char)('a' + i)};
        puts[i] = store_rig_begin(&rig, key, 64 * KIB);
        store_rig_append(&rig, puts[i], bytes, 64 * KIB, i * 64 * KIB);
        store_put_finish(puts[i], &attributes, NULL);
    }
    for (uint32_t turn = 0; turn < 6000; turn++) {
        store_rig_turn(&rig); /* 6 s of the store's time; the deadline is 5 */
    }
    cr_assert_eq(state_of(&rig, 0), STORE_DEVICE_SUSPECT);
    dev_suspect_set(rig.devices[0],
                    false); /* As by another worker, or the other direction, that got an answer. */
    store_rig_turn(&rig);
    cr_assert_eq(state_of(&rig, 0), STORE_DEVICE_SUSPECT, "our writes are still not answered");
    for (uint32_t i = 0; i < ARRAY_COUNT(puts); i++) {
        bool is_done = store_put_state(puts[i]) == STORE_PUT_DONE;
        done += is_done;
        cr_assert(is_done || store_put_error(puts[i]) == ERR_DEVICE_FAILED, "put %u", i);
        if (!is_done) {
            store_put_abort(puts[i]);
        }
    }
    cr_assert_eq(done, 4, "half of the puts lie on the healthy device");
    for (uint32_t i = 0; i < 6; i++) {
        cr_assert_eq(store_rig_put(&rig, "later", bytes, 64 * KIB, 64 * KIB, 0), 0, "the other takes all");
    }
    unhang(&rig, 0);
    for (uint32_t i = 0; i < ARRAY_COUNT(puts); i++) {
        for (uint32_t turn = 0;
             store_put_state(puts[i]) != STORE_PUT_DONE && store_put_state(puts[i]) != STORE_PUT_ABORTED;
             turn++) {
            cr_assert_lt(turn, 10000U, "a put never ended");
            store_rig_turn(&rig);
        }
        store_put_free(puts[i]);
    }
    cr_assert_eq(state_of(&rig, 0), STORE_DEVICE_OK, "it answered");
    cr_assert_eq(store_rig_used(&rig), 5 * 64 * KIB, "four and the later one; nothing else is held");
    cr_assert_eq(store_rig_put(&rig, "last", bytes, 64 * KIB, 64 * KIB, 0), 0);
    store_rig_close(&rig);
    free(bytes);
}

/* A caller that has slept longer than the deadline begins a write before its next poll: the device has not had its time yet. */
Test(store_faults, a_write_begun_after_a_long_sleep_has_its_whole_deadline)
{
    struct store_rig rig;
    uint8_t *bytes = make(64 * KIB, 6);
    static const struct store_attributes attributes = {.etag = "e"};
    rig_open(&rig, "faults-sleep", 1);
    hang(&rig, 0, DEV_WRITE);
    rig.now_ns += 3600 * NS_PER_S;
    store_now_set(rig.port, rig.now_ns);
    struct store_put *put = store_rig_begin(&rig, "a", 64 * KIB);
    store_rig_append(&rig, put, bytes, 64 * KIB, 0);
    store_put_finish(put, &attributes, NULL);
    for (uint32_t turn = 0; turn < 100; turn++) {
        store_rig_turn(&rig);
    }
    cr_expect_eq(state_of(&rig, 0), STORE_DEVICE_OK, "100 ms of its 5 s have passed");
    unhang(&rig, 0);
    for (uint32_t turn = 0; store_put_state(put) != STORE_PUT_DONE; turn++) {
        cr_assert_lt(turn, 10000U, "the put never ended");
        store_rig_turn(&rig);
    }
    store_put_free(put);
    store_rig_close(&rig);
    free(bytes);
}

/* The process stands still for longer than the deadline with a write under way (SIGSTOP, a paused virtual machine): the device had its
 * time, but nobody asked it. */
Test(store_faults, a_process_that_stood_still_does_not_blame_its_device)
{
    struct store_rig rig;
    uint8_t *bytes = make(64 * KIB, 6);
    static const struct store_attributes attributes = {.etag = "e"};
    rig_open(&rig, "faults-still", 1);
    hang(&rig, 0, DEV_WRITE);
    struct store_put *put = store_rig_begin(&rig, "a", 64 * KIB);
    store_rig_append(&rig, put, bytes, 64 * KIB, 0);
    store_put_finish(put, &attributes, NULL);
    for (uint32_t turn = 0; turn < 100; turn++) {
        store_rig_turn(&rig);
    }
    for (uint32_t times = 0; times < 3; times++) {
        rig.now_ns += 60 * NS_PER_S;
        store_rig_turn(&rig);
        cr_expect_eq(state_of(&rig, 0), STORE_DEVICE_OK, "time %u", times);
    }
    unhang(&rig, 0);
    for (uint32_t turn = 0; store_put_state(put) != STORE_PUT_DONE; turn++) {
        cr_assert_lt(turn, 1000U, "the put is answered");
        cr_assert_eq(store_put_state(put), STORE_PUT_OPEN);
        store_rig_turn(&rig);
    }
    store_put_free(put);
    store_rig_close(&rig);
    free(bytes);
}

/* The same for reads: a download of a silent device ends with an error, one of another goes on. */
Test(store_faults, a_hanging_read_fails_its_downloads_and_no_others)
{
    struct store_rig rig;
    uint8_t *bytes = make(64 * KIB, 6);
    uint32_t on[2] = {2, 2}; /* key number that lies on device 0, 1 */
    rig_open(&rig, "faults-hang-read", 2);
    for (uint32_t i = 0; i < 2; i++) {
        char key[16] = {(char)('a' + i)};
        uint64_t before = rig.store->devices[0].used;
        cr_assert_eq(store_rig_put(&rig, key, bytes, 64 * KIB, 64 * KIB, 0), 0);
        on[rig.store->devices[0].used == before ? 1 : 0] = i;
    }
    cr_assert(on[0] < 2 && on[1] < 2, "the devices take turns");
    hang(&rig, 0, DEV_READ);
    char silent[16] = {(char)('a' + on[0])};
    char healthy[16] = {(char)('a' + on[1])};
    cr_assert_eq(store_rig_compare(&rig, silent, bytes, 64 * KIB), ERR_DEVICE_FAILED, "after its deadline");
    cr_assert_eq(state_of(&rig, 0), STORE_DEVICE_SUSPECT);
    uint64_t before_ns = rig.now_ns;
    cr_assert_eq(store_rig_compare(&rig, silent, bytes, 64 * KIB), ERR_DEVICE_FAILED, "and then at once");
    cr_assert_lt(rig.now_ns - before_ns, NS_PER_S);
    cr_assert_eq(store_rig_compare(&rig, healthy, bytes, 64 * KIB), 0);
    unhang(&rig, 0);
    for (uint32_t turn = 0; state_of(&rig, 0) != STORE_DEVICE_OK; turn++) {
        cr_assert_lt(turn, 10000U);
        store_rig_turn(&rig);
    }
    cr_assert_eq(store_rig_compare(&rig, silent, bytes, 64 * KIB), 0, "it answers again");
    store_rig_close(&rig); /* CHECKs that every buffer came back */
    free(bytes);
}

/* A reader of an overwritten object keeps its bytes, also when their space is wanted; it comes back after the last pin. */
Test(store_faults, a_slow_reader_holds_space_and_sees_one_version)
{
    struct store_rig rig;
    uint8_t *bytes = make(6 * MIB, 8);
    rig_open(&rig, "faults-slow", 1);
    cr_assert_eq(store_rig_put(&rig, "k", bytes, 6 * MIB, 64 * KIB, 0), 0);
    struct store_request request = {.kind = STORE_OBJECT_LOOKUP, .bucket = "b"};
    store_rig_key(&request.key, "k");
    cr_assert_eq(store_rig_request(&rig, &request), 0);
    cr_assert_eq(store_rig_delete(&rig, "k"), 0);
    struct store_stats stats;
    store_stats(rig.store, &stats);
    cr_assert_eq(stats.space_waits, 6 * MIB);
    struct store_put *put = NULL;
    struct store_put_options options = {.bucket = "b", .key = &request.key, .size = 12 * MIB};
    cr_assert_eq(store_put_begin(rig.port, &options, &put), -ENOSPC, "its space is not to be had");
    for (uint64_t at = 0; at < 6 * MIB;) {
        struct store_read *read;
        struct slice slice;
        cr_assert_eq(store_read_begin(rig.port, request.object, at, 6 * MIB - at, NULL, &read), 0);
        for (rig.read_back = NULL; rig.read_back != read;) {
            store_rig_turn(&rig);
        }
        cr_assert_eq(store_read_take(read, &slice), 0);
        cr_assert_eq(memcmp(slice.addr, bytes + at, slice.len), 0);
        at += slice.len;
        slice_release(&slice);
    }
    store_object_release(rig.port, request.object);
    cr_assert_eq(store_rig_used(&rig), 0);
    cr_assert_eq(store_put_begin(rig.port, &options, &put), 0);
    store_put_abort(put);
    store_put_free(put);
    store_rig_close(&rig);
    free(bytes);
}
