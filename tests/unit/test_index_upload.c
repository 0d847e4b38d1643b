/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index_upload: multipart uploads in the index: parts of any order, sent again, copied from objects; completion with all of its
 * refusals; abort; lists of uploads and parts. After each test the whole index is checked against itself.
 */
#include "index_rig.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "storage/extent.h"

#define PART_MIN 1000U

static void upload_create(struct index_rig *rig, const char *key, const char *id)
{
    struct store_name name;
    struct store_attributes attributes = {.meta_len = 5, .meta = "hello"};
    rig_key(&name, key, strlen(key));
    rig_begin(rig);
    cr_assert_eq(index_upload_create(rig->index, "b", &name, &attributes, id, 100), 0);
    rig_commit(rig);
}

static int part_put(struct index_rig *rig, const char *key, const char *id, uint32_t number, uint64_t size,
                    const char *etag)
{
    struct store_name name;
    struct store_attributes attributes = {0};
    struct object_extent extent = rig_extent(rig, size);
    strcpy(attributes.etag, etag);
    rig_key(&name, key, strlen(key));
    struct index_put put = {.bucket = "b",
                            .key = &name,
                            .size = size,
                            .modified_ns = 200 + number,
                            .crc32c_known = true,
                            .attributes = &attributes,
                            .extents = &extent,
                            .extent_count = 1};
    rig_begin(rig);
    int rc = index_part_put(rig->index, id, number, &put, &rig->freed);
    rig_commit(rig);
    return rc;
}

static int complete(struct index_rig *rig, const char *key, const char *id,
                    const struct store_part_ref *parts, uint32_t count,
                    const struct store_condition *condition)
{
    struct store_name name;
    struct store_attributes attributes = {.etag = "whole"};
    rig_key(&name, key, strlen(key));
    struct index_put put = {
        .bucket = "b", .key = &name, .modified_ns = 900, .attributes = &attributes, .condition = condition};
    rig_begin(rig);
    int rc = index_upload_complete(rig->index, id, &put, parts, count, PART_MIN, &rig->freed);
    rig_commit(rig);
    return rc;
}

static struct store_object *find(struct index_rig *rig, const char *key)
{
    struct store_name name;
    struct store_object *object = NULL;
    rig_key(&name, key, strlen(key));
    int rc = index_view_object(rig->view, "b", &name, &object);
    cr_assert(rc == 0 || rc == ERR_NO_SUCH_KEY, "%d", rc);
    return object;
}

static void setup(struct index_rig *rig)
{
    rig_open(rig, 0);
    rig_bucket(rig, "b");
    upload_create(rig, "k", "u1");
}

Test(index_upload, parts_in_any_order_become_the_object_named_by_the_list)
{
    struct index_rig rig;
    setup(&rig);
    cr_assert_eq(part_put(&rig, "k", "u1", 7, 3000, "e7"), 0);
    cr_assert_eq(part_put(&rig, "k", "u1", 2, 2000, "e2"), 0);
    cr_assert_eq(part_put(&rig, "k", "u1", 9, 10, "e9"), 0);
    cr_assert_eq(part_put(&rig, "k", "u1", 5, 5000, "e5"), 0); /* not named below: freed */
    struct store_part_ref parts[] = {
        {.number = 2, .etag = "e2"}, {.number = 7, .etag = "e7"}, {.number = 9, .etag = "e9"}};
    cr_assert_eq(complete(&rig, "k", "u1", parts, 3, NULL), 0);
    cr_assert_eq(rig.freed.count, 1);
    cr_assert_eq(rig.freed.spaces[0].length, 8192);
    struct store_object *object = find(&rig, "k");
    cr_assert_eq(object->size, 5010);
    cr_assert_str_eq(object->attributes.etag, "whole");
    cr_assert_eq(object->attributes.meta_len, 5);
    cr_assert_eq(object->part_count, 3);
    cr_assert_eq(object->parts[1].number, 7);
    cr_assert_eq(object->parts[1].at, 2000);
    cr_assert_eq(object->parts[1].length, 3000);
    cr_assert_eq(object->piece_count, 3);
    object_free(object);
    struct index_counters counters;
    index_counters(rig.index, &counters);
    cr_assert_eq(counters.uploads, 0);
    cr_assert_eq(counters.upload_bytes, 0);
    cr_assert_eq(counters.object_bytes, 5010);
    rig_verify(&rig);
    rig_close(&rig);
}

/* A part that is stored compressed is as large as its payload where sizes are judged, and a completion that has seen another
 * state of it is refused: its length would be that of other bytes. */
Test(index_upload, the_length_of_a_parts_payload_is_kept_beside_what_is_stored)
{
    struct index_rig rig;
    setup(&rig);
    cr_assert_eq(part_put(&rig, "k", "u1", 1, PART_MIN - 1, "e1"), 0);
    cr_assert_eq(part_put(&rig, "k", "u1", 2, 3000, "e2"), 0);
    cr_assert_eq(part_put(&rig, "k", "u1", 3, 50, "e3"), 0);
    struct store_part_ref parts[] = {{.number = 1, .etag = "e1", .payload = PART_MIN},
                                     {.number = 2, .etag = "e2"},
                                     {.number = 3, .etag = "e3", .payload = 70, .is_checksum_exact = true}};
    strcpy(parts[2].checksum, "zstd=70");
    cr_assert_eq(complete(&rig, "k", "u1", parts, 3, NULL), ERR_INVALID_PART);
    parts[2].checksum[0] = '\0';
    cr_assert_eq(complete(&rig, "k", "u1", parts, 3, NULL), 0);
    struct store_object *object = find(&rig, "k");
    cr_assert_eq(store_object_part_count(object), 3);
    cr_assert_eq(object->size, PART_MIN - 1 + 3000 + 50);
    const uint64_t payload[] = {PART_MIN, 0, 70};
    uint64_t at = 0;
    for (uint32_t i = 0; i < 3; i++) {
        struct store_part_place part = store_object_part_at(object, i);
        cr_assert_eq(part.number, i + 1);
        cr_assert_eq(part.offset, at);
        cr_assert_eq(part.payload, payload[i]);
        at += part.len;
    }
    cr_assert_eq(at, object->size);
    object_free(object);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index_upload, part_sent_again_replaces_the_first_one)
{
    struct index_rig rig;
    setup(&rig);
    cr_assert_eq(part_put(&rig, "k", "u1", 1, 3000, "old"), 0);
    cr_assert_eq(part_put(&rig, "k", "u1", 1, 100, "new"), 0);
    cr_assert_eq(rig.freed.count, 1);
    struct index_counters counters;
    index_counters(rig.index, &counters);
    cr_assert_eq(counters.upload_bytes, 100);
    struct store_part_ref old = {.number = 1, .etag = "old"}, new = {.number = 1, .etag = "new"};
    cr_assert_eq(complete(&rig, "k", "u1", &old, 1, NULL), ERR_INVALID_PART);
    cr_assert_eq(complete(&rig, "k", "u1", &new, 1, NULL), 0);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index_upload, completion_is_refused_and_the_upload_stays)
{
    struct index_rig rig;
    struct store_condition none_match = {.if_none_match_any = true};
    setup(&rig);
    cr_assert_eq(rig_put(&rig, "b", "k", 1), 0);
    cr_assert_eq(part_put(&rig, "k", "u1", 1, 999, "e1"), 0);
    cr_assert_eq(part_put(&rig, "k", "u1", 2, 2000, "e2"), 0);
    struct store_part_ref unordered[] = {{.number = 2, .etag = "e2"}, {.number = 1, .etag = "e1"}};
    struct store_part_ref twice[] = {{.number = 2, .etag = "e2"}, {.number = 2, .etag = "e2"}};
    struct store_part_ref small[] = {{.number = 1, .etag = "e1"}, {.number = 2, .etag = "e2"}};
    struct store_part_ref absent[] = {{.number = 2, .etag = "e2"}, {.number = 3, .etag = "e3"}};
    struct store_part_ref good[] = {{.number = 2, .etag = "e2"}};
    struct store_part_ref sum[] = {{.number = 2, .etag = "e2", .checksum = "crc32=AAAAAA=="}};
    cr_assert_eq(complete(&rig, "k", "u1", unordered, 2, NULL), ERR_INVALID_PART_ORDER);
    cr_assert_eq(complete(&rig, "k", "u1", twice, 2, NULL), ERR_INVALID_PART_ORDER);
    cr_assert_eq(complete(&rig, "k", "u1", small, 2, NULL), ERR_PART_TOO_SMALL);
    cr_assert_eq(complete(&rig, "k", "u1", absent, 2, NULL), ERR_INVALID_PART);
    cr_assert_eq(complete(&rig, "k", "u1", sum, 1, NULL), ERR_INVALID_PART);
    cr_assert_eq(complete(&rig, "k", "u1", good, 0, NULL), ERR_INVALID_PART);
    cr_assert_eq(complete(&rig, "k", "u1", good, 1, &none_match), ERR_PRECONDITION);
    cr_assert_eq(complete(&rig, "other", "u1", good, 1, NULL), ERR_NO_SUCH_UPLOAD);
    cr_assert_eq(complete(&rig, "k", "u2", good, 1, NULL), ERR_NO_SUCH_UPLOAD);
    rig_verify(&rig);
    cr_assert_eq(complete(&rig, "k", "u1", good, 1, NULL), 0);
    cr_assert_eq(rig.freed.count, 2); /* part 1 and the object that was there */
    cr_assert_eq(complete(&rig, "k", "u1", good, 1, NULL), ERR_NO_SUCH_UPLOAD);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index_upload, abort_frees_all_parts)
{
    struct index_rig rig;
    struct store_name key;
    setup(&rig);
    rig_key(&key, "k", 1);
    cr_assert_eq(part_put(&rig, "k", "u1", 1, 1000, "e"), 0);
    cr_assert_eq(part_put(&rig, "k", "u1", 2, 1000, "e"), 0);
    rig_begin(&rig);
    cr_assert_eq(index_upload_abort(rig.index, "b", &key, "u1", &rig.freed), 0);
    cr_assert_eq(index_upload_abort(rig.index, "b", &key, "u1", &rig.freed), ERR_NO_SUCH_UPLOAD);
    rig_commit(&rig);
    cr_assert_eq(rig.freed.count, 2);
    cr_assert_eq(part_put(&rig, "k", "u1", 3, 1000, "e"), ERR_NO_SUCH_UPLOAD);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index_upload, part_copied_from_a_range_shares_the_extents)
{
    struct index_rig rig;
    struct store_name key;
    struct store_attributes attributes = {.etag = "copied"};
    bool existed;
    setup(&rig);
    cr_assert_eq(part_put(&rig, "k", "u1", 1, 3000, "e1"), 0);
    cr_assert_eq(part_put(&rig, "k", "u1", 2, 3000, "e2"), 0);
    struct store_part_ref both[] = {{.number = 1}, {.number = 2}};
    cr_assert_eq(complete(&rig, "k", "u1", both, 2, NULL), 0);
    struct store_object *source = find(&rig, "k");
    upload_create(&rig, "l", "u2");
    rig_key(&key, "l", 1);
    struct index_put put = {.bucket = "b", .key = &key, .modified_ns = 1, .attributes = &attributes};
    rig_begin(&rig);
    cr_assert_eq(index_part_copy(rig.index, "u2", 1, &put, source, 2500, 1000, &rig.freed), 0);
    rig_commit(&rig);
    cr_assert_eq(rig_delete(&rig, "b", "k", &existed), 0);
    cr_assert_eq(rig.freed.count, 0); /* the part still needs both extents */
    cr_assert_eq(complete(&rig, "l", "u2", both, 1, NULL), 0);
    struct store_object *object = find(&rig, "l");
    cr_assert_eq(object->size, 1000);
    cr_assert_not(object->crc32c_known);
    cr_assert_eq(object->piece_count, 2);
    cr_assert_eq(object->pieces[0].start, 2500);
    cr_assert_eq(object->pieces[0].length, 500);
    cr_assert_eq(object->pieces[1].start, 0);
    cr_assert_eq(object->pieces[1].at, 500);
    object_free(object);
    object_free(source);
    rig_verify(&rig);
    cr_assert_eq(rig_delete(&rig, "b", "l", &existed), 0);
    cr_assert_eq(rig.freed.count, 2);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index_upload, ten_thousand_parts_complete_in_one_transaction)
{
    struct index_rig rig;
    struct store_name key;
    struct store_attributes attributes = {.etag = "e"};
    static struct store_part_ref parts[STORE_PART_MAX];
    setup(&rig);
    rig_key(&key, "k", 1);
    rig_begin(&rig);
    for (uint32_t i = 1; i <= STORE_PART_MAX; i++) {
        struct object_extent extent = rig_extent(&rig, PART_MIN);
        struct index_put put = {.bucket = "b",
                                .key = &key,
                                .size = PART_MIN,
                                .attributes = &attributes,
                                .crc32c_known = true,
                                .extents = &extent,
                                .extent_count = 1};
        cr_assert_eq(index_part_put(rig.index, "u1", i, &put, &rig.freed), 0);
        parts[i - 1].number = i;
    }
    rig_commit(&rig);
    cr_assert_eq(complete(&rig, "k", "u1", parts, STORE_PART_MAX, NULL), 0);
    struct store_object *object = find(&rig, "k");
    cr_assert_eq(object->part_count, STORE_PART_MAX);
    cr_assert_eq(object->piece_count, STORE_PART_MAX);
    cr_assert_eq(object->size, (uint64_t)STORE_PART_MAX * PART_MIN);
    object_free(object);
    rig_verify(&rig);
    rig_close(&rig);
}

/* The checksum of a whole is computed from its parts' ones: compared with a bit-by-bit CRC over the bytes. */
static uint32_t crc_slowly(uint32_t crc, const uint8_t *data, size_t len)
{
    crc = ~crc;
    for (size_t i = 0; i < len; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc & 1U) != 0 ? crc >> 1 ^ 0x82f63b78U : crc >> 1;
        }
    }
    return ~crc;
}

Test(index_upload, checksum_of_the_whole_is_that_of_the_joined_payload)
{
    struct rng rng;
    uint8_t data[5000];
    rng_seed(&rng, 11);
    for (uint32_t round = 0; round < 200; round++) {
        size_t a = rng_below(&rng, sizeof(data)), b = rng_below(&rng, sizeof(data) - a + 1);
        for (size_t i = 0; i < a + b; i++) {
            data[i] = (uint8_t)rng_u64(&rng);
        }
        uint32_t joined = crc32c_combine(crc_slowly(0, data, a), crc_slowly(0, data + a, b), b);
        cr_assert_eq(joined, crc_slowly(0, data, a + b));
    }
}

static struct store_list *list_all(struct index_rig *rig, enum index_list_kind kind, const char *id,
                                   const struct store_list_options *options)
{
    struct index_list *builder;
    struct index_list_request request = {.kind = kind, .bucket = "b", .upload_id = id, .options = options};
    cr_assert_eq(index_list_begin(&request, &builder), 0);
    int rc;
    while ((rc = index_list_step(builder, rig->view, 2)) == 0) {
    }
    cr_assert_eq(rc, 1, "%d", rc);
    return index_list_take(builder);
}

Test(index_upload, parts_are_listed_by_number_in_pages)
{
    struct index_rig rig;
    char etag[16];
    setup(&rig);
    for (uint32_t i = 0; i < 25; i++) {
        uint32_t number = 1 + (i * 7) % 25;
        snprintf(etag, sizeof(etag), "e%u", number);
        cr_assert_eq(part_put(&rig, "k", "u1", number, 100 + number, etag), 0);
    }
    struct store_list_options options = {.count_max = 10};
    uint32_t seen = 0;
    bool more = true;
    while (more) {
        struct store_list *list = list_all(&rig, INDEX_LIST_PARTS, "u1", &options);
        for (uint32_t i = 0; i < list->count; i++) {
            seen++;
            snprintf(etag, sizeof(etag), "e%u", seen);
            cr_assert_eq(list->entries[i].part_number, seen);
            cr_assert_eq(list->entries[i].size, 100 + seen);
            cr_assert_eq(list->entries[i].modified_ns, 200 + seen);
            cr_assert_str_eq(list->entries[i].etag, etag);
        }
        more = list->is_truncated;
        options.after_part = seen;
        store_list_free(list);
    }
    cr_assert_eq(seen, 25);
    rig_close(&rig);
}

Test(index_upload, uploads_are_listed_by_key_then_creation)
{
    static const struct {
        const char *key, *id;
    } wanted[] = {{"dir/x", "u8"}, {"k", "u1"}, {"k", "u3"}, {"k", "u5"}, {"z", "u0"}};
    struct index_rig rig;
    setup(&rig);
    for (size_t i = 5; i-- > 0;) {
        if (strcmp(wanted[i].id, "u1") != 0) {
            upload_create(&rig, wanted[i].key, wanted[i].id);
        }
    }
    struct store_list_options options = {.count_max = 1};
    for (size_t i = 0; i < 5; i++) {
        struct store_list *list = list_all(&rig, INDEX_LIST_UPLOADS, NULL, &options);
        cr_assert_eq(list->count, 1);
        cr_assert_str_eq(list->entries[0].upload_id, wanted[i].id);
        cr_assert_eq(list->entries[0].modified_ns, 100);
        cr_assert_eq(list->is_truncated, i < 4);
        rig_key(&options.after, list->entries[0].key, list->entries[0].key_len);
        strcpy(options.after_upload_id, list->entries[0].upload_id);
        store_list_free(list);
    }
    /* A key without an id means: the keys after it. */
    struct store_list_options after_key = {.count_max = 10};
    rig_key(&after_key.after, "k", 1);
    struct store_list *list = list_all(&rig, INDEX_LIST_UPLOADS, NULL, &after_key);
    cr_assert_eq(list->count, 1);
    cr_assert_str_eq(list->entries[0].upload_id, "u0");
    store_list_free(list);
    struct store_list_options folders = {.count_max = 10, .delimiter = "/", .delimiter_len = 1};
    list = list_all(&rig, INDEX_LIST_UPLOADS, NULL, &folders);
    cr_assert_eq(list->count, 5);
    cr_assert(list->entries[0].is_prefix);
    store_list_free(list);
    rig_close(&rig);
}
