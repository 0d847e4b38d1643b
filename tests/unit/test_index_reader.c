/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index_reader: requests through one reader, stepped: what each kind answers, that pins and objects come in pairs, and that a
 * lookup does not wait for the end of a long list.
 */
#include "index_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "storage/index_reader.h"

struct fake {
    struct index_rig rig;
    struct index_reader *reader;
    int pins;
    uint32_t answers;
    struct store_request *order[8]; /* as answered */
};

static uint64_t fake_pin(void *ctx)
{
    ((struct fake *)ctx)->pins++;
    return 9;
}

static void fake_unpin(void *ctx, uint64_t epoch)
{
    cr_assert_eq(epoch, 9);
    ((struct fake *)ctx)->pins--;
}

static void fake_answer(void *ctx, struct store_request *request)
{
    struct fake *fake = ctx;
    fake->order[fake->answers++] = request;
}

static const struct index_reader_ops fake_ops = {.pin = fake_pin, .unpin = fake_unpin, .answer = fake_answer};

static void fake_open(struct fake *fake)
{
    struct err err = {""};
    memset(fake, 0, sizeof(*fake));
    rig_open(&fake->rig, 0);
    rig_bucket(&fake->rig, "b");
    cr_assert_eq(rig_put(&fake->rig, "b", "k", 5000), 0);
    cr_assert_eq(index_reader_open(&fake->rig.options, &fake_ops, fake, &fake->reader, &err), 0, "%s",
                 err.text);
}

static void fake_close(struct fake *fake)
{
    index_reader_close(fake->reader);
    rig_close(&fake->rig);
}

static void make(struct store_request *request, enum store_request_kind kind, const char *bucket,
                 const char *key)
{
    memset(request, 0, sizeof(*request));
    request->kind = kind;
    snprintf(request->bucket, sizeof(request->bucket), "%s", bucket);
    rig_key(&request->key, key, strlen(key));
}

static int run(struct fake *fake, struct store_request *request)
{
    uint32_t before = fake->answers = 0;
    index_reader_submit(fake->reader, request);
    for (uint32_t i = 0; i < 100 && index_reader_step(fake->reader); i++) {
    }
    cr_assert_eq(fake->answers, before + 1);
    cr_assert(index_reader_is_idle(fake->reader));
    return request->status;
}

Test(index_reader, lookup_pins_and_hands_the_pin_over_with_the_object)
{
    struct fake fake;
    struct store_request request;
    fake_open(&fake);
    make(&request, STORE_OBJECT_LOOKUP, "b", "k");
    cr_assert_eq(run(&fake, &request), 0);
    cr_assert_eq(request.object->size, 5000);
    cr_assert_eq(request.object->epoch, 9);
    cr_assert_eq(fake.pins, 1);
    object_free(request.object);
    fake.pins = 0;
    make(&request, STORE_OBJECT_LOOKUP, "b", "absent");
    cr_assert_eq(run(&fake, &request), ERR_NO_SUCH_KEY);
    make(&request, STORE_OBJECT_LOOKUP, "nowhere", "k");
    cr_assert_eq(run(&fake, &request), ERR_NO_SUCH_BUCKET);
    cr_assert_eq(fake.pins, 0); /* what found nothing holds nothing */
    cr_assert_eq(index_reader_errors(fake.reader), 0);
    fake_close(&fake);
}

Test(index_reader, each_kind_answers_what_it_should)
{
    struct fake fake;
    struct store_request request;
    struct store_name key;
    fake_open(&fake);
    rig_key(&key, "u", 1);
    rig_begin(&fake.rig);
    cr_assert_eq(index_upload_create(fake.rig.index, "b", &key, NULL, "upload1", 77), 0);
    rig_commit(&fake.rig);
    make(&request, STORE_BUCKET_LOOKUP, "b", "");
    cr_assert_eq(run(&fake, &request), 0);
    cr_assert_eq(request.created_ns, 42);
    make(&request, STORE_BUCKET_LOOKUP, "c", "");
    cr_assert_eq(run(&fake, &request), ERR_NO_SUCH_BUCKET);
    make(&request, STORE_UPLOAD_LOOKUP, "b", "u");
    snprintf(request.upload_id, sizeof(request.upload_id), "upload1");
    cr_assert_eq(run(&fake, &request), 0);
    cr_assert_eq(request.created_ns, 77);
    make(&request, STORE_UPLOAD_LOOKUP, "b", "other");
    snprintf(request.upload_id, sizeof(request.upload_id), "upload1");
    cr_assert_eq(run(&fake, &request), ERR_NO_SUCH_UPLOAD);
    static const enum store_request_kind lists[] = {STORE_BUCKET_LIST, STORE_OBJECT_LIST, STORE_UPLOAD_LIST};
    for (uint32_t i = 0; i < 3; i++) {
        make(&request, lists[i], "b", "");
        cr_assert_eq(run(&fake, &request), 0);
        cr_assert_eq(request.list->count, 1);
        store_list_free(request.list);
    }
    make(&request, STORE_PART_LIST, "b", "u");
    snprintf(request.upload_id, sizeof(request.upload_id), "upload1");
    cr_assert_eq(run(&fake, &request), 0);
    cr_assert_eq(request.list->count, 0);
    store_list_free(request.list);
    make(&request, STORE_OBJECT_LIST, "nowhere", "");
    cr_assert_eq(run(&fake, &request), ERR_NO_SUCH_BUCKET);
    fake_close(&fake);
}

Test(index_reader, lookup_is_answered_between_two_slices_of_a_list)
{
    struct fake fake;
    struct store_request list, lookup;
    char key[16];
    fake_open(&fake);
    for (uint32_t i = 0; i < 600; i++) {
        snprintf(key, sizeof(key), "many-%04u", i);
        cr_assert_eq(rig_put(&fake.rig, "b", key, 0), 0);
    }
    make(&list, STORE_OBJECT_LIST, "b", "");
    make(&lookup, STORE_BUCKET_LOOKUP, "b", "");
    index_reader_submit(fake.reader, &list);
    index_reader_step(fake.reader);
    index_reader_step(fake.reader); /* the list has begun */
    index_reader_submit(fake.reader, &lookup);
    while (index_reader_step(fake.reader)) {
    }
    cr_assert_eq(fake.answers, 2);
    cr_assert_eq(fake.order[0], &lookup);
    cr_assert_eq(list.list->count, 601);
    store_list_free(list.list);
    fake_close(&fake);
}
