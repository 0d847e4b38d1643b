/* SPDX-License-Identifier: Apache-2.0 */
/* index_rig: see index_rig.h. */
#include "index_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint32_t some_checksums[64];

static void open_both(struct index_rig *rig)
{
    struct err err = {""};
    int rc = index_open(&rig->options, &rig->index, &err);
    cr_assert_eq(rc, 0, "index_open: %d %s", rc, err.text);
    rc = index_view_open(&rig->options, &rig->view, &err);
    cr_assert_eq(rc, 0, "index_view_open: %d %s", rc, err.text);
}

void rig_open(struct index_rig *rig, uint64_t size_max)
{
    struct err err = {""};
    memset(rig, 0, sizeof(*rig));
    strcpy(rig->dir, "/tmp/penstock-index-XXXXXX");
    cr_assert_not_null(mkdtemp(rig->dir));
    rig->options.dir = rig->dir;
    rig->options.size_max = size_max;
    /* Durability is the crash tests' subject; here the syncs would only cost time. */
    rig->options.skip_sync = true;
    memcpy(rig->options.store_id, "0123456789abcdef", INDEX_STORE_ID_SIZE);
    int rc = index_create(&rig->options, &err);
    cr_assert_eq(rc, 0, "index_create: %d %s", rc, err.text);
    open_both(rig);
}

static void close_both(struct index_rig *rig)
{
    index_view_close(rig->view);
    index_close(rig->index);
}

void rig_close(struct index_rig *rig)
{
    static const char *const names[] = {"index.db", "index.db-wal", "index.db-shm", "index.reserve"};
    close_both(rig);
    index_freed_close(&rig->freed);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", rig->dir, names[i]);
        unlink(path);
    }
    rmdir(rig->dir);
}

void rig_reopen(struct index_rig *rig)
{
    close_both(rig);
    open_both(rig);
}

void rig_begin(struct index_rig *rig)
{
    index_freed_clear(&rig->freed);
    cr_assert_eq(index_begin(rig->index, false), 0);
}

void rig_commit(struct index_rig *rig)
{
    int rc = index_commit(rig->index);
    cr_assert_eq(rc, 0, "index_commit: %d %s", rc, index_error_text(rig->index));
}

void rig_key(struct store_name *key, const void *bytes, size_t len)
{
    cr_assert_leq(len, STORE_KEY_MAX);
    key->len = (uint16_t)len;
    memcpy(key->bytes, bytes, len);
}

struct object_extent rig_extent(struct index_rig *rig, uint64_t length)
{
    struct object_extent extent = {
        .device = 0,
        .phase = 1,
        .offset = rig->next_offset,
        .length = length,
        .checksum_count = 1,
        .checksums = some_checksums,
    };
    rig->next_offset += object_space_length(extent.phase, length);
    return extent;
}

int rig_put_key(struct index_rig *rig, const char *bucket, const struct store_name *key, uint64_t size,
                const struct store_condition *condition)
{
    struct object_extent extent = {0};
    struct store_attributes attributes = {
        .etag = "etag", .checksum = "crc32c=AAAAAA==", .meta_len = 3, .meta = "abc"};
    if (size > 0) {
        extent = rig_extent(rig, size);
    }
    struct index_put put = {
        .bucket = bucket,
        .key = key,
        .size = size,
        .modified_ns = 1000 + size,
        .crc32c = 77,
        .crc32c_known = true,
        .attributes = &attributes,
        .condition = condition,
        .extents = &extent,
        .extent_count = size > 0 ? 1 : 0,
    };
    index_freed_clear(&rig->freed);
    int rc = index_begin(rig->index, false);
    if (rc != 0) {
        return rc;
    }
    rc = index_object_put(rig->index, &put, &rig->freed);
    if (rc != 0) {
        index_rollback(rig->index);
        return rc;
    }
    return index_commit(rig->index);
}

int rig_put(struct index_rig *rig, const char *bucket, const char *key, uint64_t size)
{
    struct store_name name;
    rig_key(&name, key, strlen(key));
    return rig_put_key(rig, bucket, &name, size, NULL);
}

int rig_delete(struct index_rig *rig, const char *bucket, const char *key, bool *existed)
{
    struct store_name name;
    rig_key(&name, key, strlen(key));
    index_freed_clear(&rig->freed);
    int rc = index_begin(rig->index, true);
    if (rc != 0) {
        return rc;
    }
    rc = index_object_delete(rig->index, bucket, &name, existed, &rig->freed);
    if (rc != 0) {
        index_rollback(rig->index);
        return rc;
    }
    return index_commit(rig->index);
}

void rig_bucket(struct index_rig *rig, const char *name)
{
    rig_begin(rig);
    cr_assert_eq(index_bucket_create(rig->index, name, 42), 0);
    rig_commit(rig);
}

void rig_verify(struct index_rig *rig)
{
    struct err err = {""};
    int rc = index_view_verify(rig->view, &err);
    cr_assert_eq(rc, 0, "%d %s", rc, err.text);
}
