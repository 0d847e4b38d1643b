/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index: the index on a real file: every kind of change, its conditions, what it frees, keys of every length in byte order,
 * limits, and identity. After each test the whole index is checked against itself.
 */
#include "index_rig.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "storage/index_int.h"

static struct store_object *find(struct index_rig *rig, const char *bucket, const char *key)
{
    struct store_name name;
    struct store_object *object = NULL;
    rig_key(&name, key, strlen(key));
    int rc = index_view_object(rig->view, bucket, &name, &object);
    cr_assert(rc == 0 || rc == ERR_NO_SUCH_KEY, "%d", rc);
    return object;
}

Test(index, put_object_is_found_with_all_that_was_given)
{
    struct index_rig rig;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    cr_assert_eq(rig_put(&rig, "b", "k", 5000), 0);
    struct store_object *object = find(&rig, "b", "k");
    cr_assert_not_null(object);
    cr_assert_eq(object->size, 5000);
    cr_assert_eq(object->modified_ns, 6000);
    cr_assert_eq(object->crc32c, 77);
    cr_assert(object->crc32c_known);
    cr_assert_str_eq(object->attributes.etag, "etag");
    cr_assert_str_eq(object->attributes.checksum, "crc32c=AAAAAA==");
    cr_assert_eq(object->attributes.meta_len, 3);
    cr_assert_arr_eq(object->attributes.meta, "abc", 3);
    cr_assert_eq(object->piece_count, 1);
    cr_assert_eq(object->pieces[0].length, 5000);
    cr_assert_eq(object->pieces[0].extent.phase, 1);
    cr_assert_eq(object->pieces[0].extent.checksum_count, 1);
    object_free(object);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, empty_object_has_no_pieces)
{
    struct index_rig rig;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    cr_assert_eq(rig_put(&rig, "b", "k", 0), 0);
    struct store_object *object = find(&rig, "b", "k");
    cr_assert_not_null(object);
    cr_assert_eq(object->size, 0);
    cr_assert_eq(object->piece_count, 0);
    object_free(object);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, put_into_a_missing_bucket_is_refused_and_changes_nothing)
{
    struct index_rig rig;
    rig_open(&rig, 0);
    cr_assert_eq(rig_put(&rig, "nowhere", "k", 10), ERR_NO_SUCH_BUCKET);
    struct index_counters counters;
    index_counters(rig.index, &counters);
    cr_assert_eq(counters.objects, 0);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, overwrite_frees_the_old_space_only)
{
    struct index_rig rig;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    cr_assert_eq(rig_put(&rig, "b", "k", 5000), 0);
    cr_assert_eq(rig.freed.count, 0);
    cr_assert_eq(rig_put(&rig, "b", "k", 100), 0);
    cr_assert_eq(rig.freed.count, 1);
    cr_assert_eq(rig.freed.spaces[0].offset, 0);
    cr_assert_eq(rig.freed.spaces[0].length, 8192);
    struct index_counters counters;
    index_counters(rig.index, &counters);
    cr_assert_eq(counters.objects, 1);
    cr_assert_eq(counters.object_bytes, 100);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, delete_tells_whether_there_was_something)
{
    struct index_rig rig;
    bool existed = false;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    cr_assert_eq(rig_put(&rig, "b", "k", 5000), 0);
    cr_assert_eq(rig_delete(&rig, "b", "k", &existed), 0);
    cr_assert(existed);
    cr_assert_eq(rig.freed.count, 1);
    cr_assert_eq(rig_delete(&rig, "b", "k", &existed), 0);
    cr_assert_not(existed);
    cr_assert_eq(rig.freed.count, 0);
    cr_assert_null(find(&rig, "b", "k"));
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, conditions_are_decided_on_what_is_there)
{
    struct index_rig rig;
    struct store_name key;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    rig_key(&key, "k", 1);
    struct store_condition none_match = {.if_none_match_any = true};
    struct store_condition match = {.if_match = "etag"};
    struct store_condition match_any = {.if_match = "*"};
    struct store_condition match_other = {.if_match = "other"};
    cr_assert_eq(rig_put_key(&rig, "b", &key, 10, &match), ERR_PRECONDITION);
    cr_assert_eq(rig_put_key(&rig, "b", &key, 10, &match_any), ERR_PRECONDITION);
    cr_assert_eq(rig_put_key(&rig, "b", &key, 10, &none_match), 0);
    cr_assert_eq(rig_put_key(&rig, "b", &key, 11, &none_match), ERR_PRECONDITION);
    cr_assert_eq(rig_put_key(&rig, "b", &key, 12, &match_other), ERR_PRECONDITION);
    cr_assert_eq(rig_put_key(&rig, "b", &key, 13, &match), 0);
    cr_assert_eq(rig_put_key(&rig, "b", &key, 14, &match_any), 0);
    struct store_object *object = find(&rig, "b", "k");
    cr_assert_eq(object->size, 14);
    object_free(object);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, bucket_with_objects_or_uploads_is_not_deleted)
{
    struct index_rig rig;
    bool existed;
    struct store_name key;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    rig_begin(&rig);
    cr_assert_eq(index_bucket_create(rig.index, "b", 1), ERR_BUCKET_EXISTS);
    cr_assert_eq(index_bucket_delete(rig.index, "c"), ERR_NO_SUCH_BUCKET);
    rig_commit(&rig);
    cr_assert_eq(rig_put(&rig, "b", "k", 1), 0);
    rig_begin(&rig);
    cr_assert_eq(index_bucket_delete(rig.index, "b"), ERR_BUCKET_NOT_EMPTY);
    rig_commit(&rig);
    cr_assert_eq(rig_delete(&rig, "b", "k", &existed), 0);
    rig_key(&key, "u", 1);
    rig_begin(&rig);
    cr_assert_eq(index_upload_create(rig.index, "b", &key, NULL, "u1", 1), 0);
    cr_assert_eq(index_bucket_delete(rig.index, "b"), ERR_BUCKET_NOT_EMPTY);
    cr_assert_eq(index_upload_abort(rig.index, "b", &key, "u1", &rig.freed), 0);
    cr_assert_eq(index_bucket_delete(rig.index, "b"), 0);
    rig_commit(&rig);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, copy_shares_extents_until_the_last_reference_goes)
{
    struct index_rig rig;
    bool existed;
    struct store_name key;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    cr_assert_eq(rig_put(&rig, "b", "k", 5000), 0);
    struct store_object *source = find(&rig, "b", "k");
    rig_key(&key, "copy", 4);
    struct index_put put = {.bucket = "b", .key = &key, .modified_ns = 9, .attributes = &source->attributes};
    rig_begin(&rig);
    cr_assert_eq(index_object_copy(rig.index, &put, source, 0, source->size, &rig.freed), 0);
    rig_commit(&rig);
    rig_verify(&rig);
    cr_assert_eq(rig_delete(&rig, "b", "k", &existed), 0);
    cr_assert_eq(rig.freed.count, 0);
    struct store_object *copy = find(&rig, "b", "copy");
    cr_assert_eq(copy->size, 5000);
    cr_assert(copy->crc32c_known);
    cr_assert_eq(copy->pieces[0].extent_id, source->pieces[0].extent_id);
    object_free(copy);
    cr_assert_eq(rig_delete(&rig, "b", "copy", &existed), 0);
    cr_assert_eq(rig.freed.count, 1);
    /* The looked-up source is now only a memory of what was. */
    rig_begin(&rig);
    cr_assert_eq(index_object_copy(rig.index, &put, source, 0, source->size, &rig.freed), -ESTALE);
    rig_commit(&rig);
    object_free(source);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, copy_onto_itself_keeps_the_payload)
{
    struct index_rig rig;
    struct store_name key;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    cr_assert_eq(rig_put(&rig, "b", "k", 5000), 0);
    struct store_object *source = find(&rig, "b", "k");
    rig_key(&key, "k", 1);
    struct index_put put = {.bucket = "b", .key = &key, .modified_ns = 9, .attributes = &source->attributes};
    rig_begin(&rig);
    cr_assert_eq(index_object_copy(rig.index, &put, source, 0, source->size, &rig.freed), 0);
    rig_commit(&rig);
    cr_assert_eq(rig.freed.count, 0);
    object_free(source);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, pending_extents_come_before_the_last_ones_in_their_order)
{
    struct index_rig rig;
    struct store_name key;
    struct store_attributes attributes = {.etag = "e"};
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    rig_key(&key, "k", 1);
    struct object_extent extents[4] = {rig_extent(&rig, 100), rig_extent(&rig, 200), rig_extent(&rig, 300),
                                       rig_extent(&rig, 400)};
    struct object_extent other = rig_extent(&rig, 999);
    rig_begin(&rig);
    cr_assert_eq(index_pending_add(rig.index, 7, extents, 1), 0);
    cr_assert_eq(index_pending_add(rig.index, 8, &other, 1), 0);
    cr_assert_eq(index_pending_add(rig.index, 7, extents + 1, 2), 0);
    rig_commit(&rig);
    struct index_put put = {.bucket = "b",
                            .key = &key,
                            .size = 1000,
                            .attributes = &attributes,
                            .owner = 7,
                            .extents = &extents[3],
                            .extent_count = 1};
    rig_begin(&rig);
    cr_assert_eq(index_object_put(rig.index, &put, &rig.freed), 0);
    rig_commit(&rig);
    struct store_object *object = find(&rig, "b", "k");
    cr_assert_eq(object->piece_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(object->pieces[i].extent.offset, extents[i].offset);
    }
    object_free(object);
    rig_begin(&rig);
    cr_assert_eq(index_pending_drop(rig.index, 8, &rig.freed), 0);
    rig_commit(&rig);
    cr_assert_eq(rig.freed.count, 1);
    cr_assert_eq(rig.freed.spaces[0].offset, other.offset);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, keys_of_every_length_are_kept_and_sort_by_bytes)
{
    struct index_rig rig;
    struct store_name key;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    rig_begin(&rig);
    struct store_attributes attributes = {.etag = "e"};
    memset(key.bytes, 0xff, sizeof(key.bytes));
    for (uint32_t len = 1; len <= STORE_KEY_MAX; len++) {
        key.len = (uint16_t)len;
        key.bytes[len - 1] = (uint8_t)(len * 7); /* zero and 0xff bytes are among the last ones */
        struct index_put put = {.bucket = "b", .key = &key, .attributes = &attributes, .modified_ns = len};
        cr_assert_eq(index_object_put(rig.index, &put, &rig.freed), 0);
        key.bytes[len - 1] = 0xff;
    }
    rig_commit(&rig);
    for (uint32_t len = 1; len <= STORE_KEY_MAX; len++) {
        struct store_object *object = NULL;
        key.len = (uint16_t)len;
        key.bytes[len - 1] = (uint8_t)(len * 7);
        cr_assert_eq(index_view_object(rig.view, "b", &key, &object), 0, "length %u", len);
        cr_assert_eq(object->modified_ns, len);
        object_free(object);
        key.bytes[len - 1] = 0xff;
    }
    struct index_list *list;
    struct index_list_request request = {.kind = INDEX_LIST_OBJECTS, .bucket = "b"};
    cr_assert_eq(index_list_begin(&request, &list), 0);
    while (index_list_step(list, rig.view, 50) == 0) {
    }
    struct store_list *result = index_list_take(list);
    cr_assert_eq(result->count, 1000);
    cr_assert(result->is_truncated);
    for (uint32_t i = 1; i < result->count; i++) {
        const struct store_list_entry *a = &result->entries[i - 1], *b = &result->entries[i];
        int order = memcmp(a->key, b->key, a->key_len < b->key_len ? a->key_len : b->key_len);
        cr_assert(order < 0 || (order == 0 && a->key_len < b->key_len));
    }
    store_list_free(result);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, full_index_refuses_puts_and_takes_deletes)
{
    struct index_rig rig;
    char key[32];
    bool existed;
    uint32_t n = 0;
    rig_open(&rig, 256 * 1024);
    rig_bucket(&rig, "b");
    int rc = 0;
    while (rc == 0) {
        cr_assert_lt(n, 100000U);
        snprintf(key, sizeof(key), "key-%08u", n++);
        rc = rig_put(&rig, "b", key, 10);
    }
    cr_assert_eq(rc, -ENOSPC);
    cr_assert_eq(index_failed(rig.index), 0);
    rig_verify(&rig);
    cr_assert_eq(rig_put(&rig, "b", key, 10), -ENOSPC);
    for (uint32_t i = 0; i < n / 2; i++) {
        snprintf(key, sizeof(key), "key-%08u", i);
        cr_assert_eq(rig_delete(&rig, "b", key, &existed), 0);
        cr_assert(existed);
    }
    for (uint32_t i = 0; i < n / 4; i++) {
        snprintf(key, sizeof(key), "new-%08u", i);
        cr_assert_eq(rig_put(&rig, "b", key, 10), 0);
    }
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, another_store_or_a_newer_format_is_refused)
{
    struct index_rig rig;
    struct index *index = NULL;
    struct err err = {""};
    rig_open(&rig, 0);
    struct index_options options = rig.options;
    options.store_id[3] ^= 1;
    cr_assert_eq(index_open(&options, &index, &err), ERR_FOREIGN_STORE);
    sqlite3_exec(rig.index->view.db, "UPDATE identity SET format=format+1", NULL, NULL, NULL);
    cr_assert_eq(index_open(&rig.options, &index, &err), ERR_VERSION);
    options.dir = "/nonexistent";
    cr_assert_eq(index_open(&options, &index, &err), -ENOENT);
    rig_close(&rig);
}

Test(index, everything_is_there_after_reopening)
{
    struct index_rig rig;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    cr_assert_eq(rig_put(&rig, "b", "k", 5000), 0);
    rig_reopen(&rig);
    struct index_counters counters;
    index_counters(rig.index, &counters);
    cr_assert_eq(counters.objects, 1);
    cr_assert_eq(counters.object_bytes, 5000);
    cr_assert_eq(rig_put(&rig, "b", "l", 6000), 0);
    rig_verify(&rig);
    rig_close(&rig);
}

Test(index, log_stays_bounded_while_objects_are_put)
{
    struct index_rig rig;
    char key[32];
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    int frames_max = 0;
    for (uint32_t i = 0; i < 4000; i++) {
        snprintf(key, sizeof(key), "%08u", i * 2654435761U);
        cr_assert_eq(rig_put(&rig, "b", key, 10), 0);
        cr_assert_eq(index_checkpoint_if_due(rig.index), 0);
        frames_max = rig.index->log_frames > frames_max ? rig.index->log_frames : frames_max;
    }
    cr_assert_gt(frames_max, 1000); /* the loop was long enough to matter */
    cr_assert_leq(frames_max, 4096 + 64);
    rig_close(&rig);
}

/* Every statement that walks must walk an index in its order: a sort or a scan would make lists cost the whole table. */
Test(index, no_statement_sorts_or_scans_more_than_it_returns)
{
    static const enum index_sql may_scan[] = {
        SQL_EXTENT_WALK,    SQL_EXTENT_WALK_CHECKSUMS, SQL_COUNTERS_GET,
        SQL_IDENTITY_GET,   SQL_COUNTERS_SET,          SQL_VERIFY_OBJECTS,
        SQL_VERIFY_UPLOADS, SQL_VERIFY_PARTS,          SQL_PENDING_DELETE_SOME};
    struct index_rig rig;
    rig_open(&rig, 0);
    for (uint32_t i = 0; i < SQL_COUNT; i++) {
        char text[1024];
        bool allowed = false;
        sqlite3_stmt *statement = NULL;
        for (size_t k = 0; k < sizeof(may_scan) / sizeof(may_scan[0]); k++) {
            allowed = allowed || may_scan[k] == i;
        }
        snprintf(text, sizeof(text), "EXPLAIN QUERY PLAN %s", index_sql_texts[i]);
        cr_assert_eq(sqlite3_prepare_v2(rig.index->view.db, text, -1, &statement, NULL), SQLITE_OK, "%s",
                     text);
        while (sqlite3_step(statement) == SQLITE_ROW) {
            const char *plan = (const char *)sqlite3_column_text(statement, 3);
            bool scans = strncmp(plan, "SCAN", 4) == 0 || strstr(plan, "TEMP B-TREE") != NULL;
            cr_assert(allowed || !scans || i == SQL_BUCKET_HAS_OBJECT, "%s: %s", index_sql_texts[i], plan);
        }
        sqlite3_finalize(statement);
    }
    rig_close(&rig);
}

/* An object of 5 TiB: 5,120 extents of 1 GiB, recorded four at a time while it would be uploaded, then copied. By arithmetic: nothing
 * is written but rows. */
Test(index, object_of_five_tebibytes_is_recorded_copied_and_freed)
{
    enum { COUNT = 5120 };
    struct index_rig rig;
    struct store_name key;
    struct store_attributes attributes = {.etag = "e"};
    bool existed;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    for (uint32_t i = 0; i < COUNT; i += 4) {
        struct object_extent extents[4];
        for (uint32_t k = 0; k < 4; k++) {
            extents[k] = rig_extent(&rig, STORE_EXTENT_MAX);
        }
        rig_begin(&rig);
        cr_assert_eq(index_pending_add(rig.index, 1, extents, 4), 0);
        rig_commit(&rig);
    }
    rig_key(&key, "k", 1);
    struct index_put put = {
        .bucket = "b", .key = &key, .size = COUNT * STORE_EXTENT_MAX, .attributes = &attributes, .owner = 1};
    rig_begin(&rig);
    cr_assert_eq(index_object_put(rig.index, &put, &rig.freed), 0);
    rig_commit(&rig);
    struct store_object *object = find(&rig, "b", "k");
    cr_assert_eq(object->size, 5 * TIB);
    cr_assert_eq(object->piece_count, COUNT);
    cr_assert_eq(object->pieces[COUNT - 1].at, 5 * TIB - STORE_EXTENT_MAX);
    rig_key(&key, "copy", 4);
    rig_begin(&rig);
    cr_assert_eq(index_object_copy(rig.index, &put, object, 0, object->size, &rig.freed), 0);
    rig_commit(&rig);
    object_free(object);
    rig_verify(&rig);
    cr_assert_eq(rig_delete(&rig, "b", "k", &existed), 0);
    cr_assert_eq(rig.freed.count, 0);
    cr_assert_eq(rig_delete(&rig, "b", "copy", &existed), 0);
    cr_assert_eq(rig.freed.count, COUNT);
    rig_verify(&rig);
    rig_close(&rig);
}
