/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_list: lists of buckets, objects, uploads and parts, made in slices of a bounded number of rows.
 *
 * A list is a walk from a lower bound upwards. With a delimiter, a key that has one after the prefix stands for all keys
 * with the same beginning: that common prefix is said once and the walk goes on behind it with a new seek, so the cost is
 * the number of entries and never the number of keys below a common prefix. Between slices only the lower bound is kept.
 *
 *   begin -> index_list_step: [slice] -> lower bound moves -> ... -> done -> index_list_take
 */
#include "storage/index_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define ENTRIES_MAX 1000U
/* A lower bound: a key, or a key and the zero byte that makes "after this key". */
#define BOUND_MAX (STORE_KEY_MAX + 1U)

struct index_list {
    enum index_list_kind kind;
    char bucket[STORE_BUCKET_MAX + 1];
    char upload_id[STORE_UPLOAD_ID_MAX + 1];
    struct store_name prefix;
    uint8_t delimiter[8];
    uint32_t delimiter_len;
    uint32_t count_max;
    bool is_done;
    /* the lower bound, inclusive */
    uint8_t bound[BOUND_MAX];
    uint32_t bound_len;
    char bound_id[STORE_UPLOAD_ID_MAX + 2]; /* uploads: with an equal key, ids from here on */
    uint32_t bound_id_len;
    uint32_t bound_part;
    /* the result; text offsets become pointers in index_list_take */
    struct store_list *result;
    struct index_bytes text;
};

/* store_list with its memory: entries first, then the text they point into. */
struct list_memory {
    struct store_list list;
    struct store_list_entry entries[ENTRIES_MAX];
    uint8_t *text;
};

/* A row as read, before it is kept. */
struct list_row {
    const uint8_t *key;
    uint32_t key_len;
    uint32_t part_number;
    uint64_t size;
    uint64_t modified_ns;
    char etag[STORE_ETAG_MAX + 1];
    char checksum[STORE_CHECKSUMS_MAX + 1];
    char upload_id[STORE_UPLOAD_ID_MAX + 1];
};

/* ---- bounds ---------------------------------------------------------------------------------------------------------- */

static void bound_set(struct index_list *list, const uint8_t *key, uint32_t len)
{
    CHECK(len <= BOUND_MAX);
    memmove(list->bound, key, len);
    list->bound_len = len;
    list->bound_id_len = 0;
}

/* The first key after `key`: itself and a zero byte. */
static void bound_after_key(struct index_list *list, const uint8_t *key, uint32_t len)
{
    CHECK(len < BOUND_MAX);
    bound_set(list, key, len);
    list->bound[list->bound_len++] = 0;
}

/* The first key that does not begin with `prefix`; false when there can be none (all bytes are 0xff). */
static bool bound_after_prefix(struct index_list *list, const uint8_t *prefix, uint32_t len)
{
    bound_set(list, prefix, len);
    while (list->bound_len > 0 && list->bound[list->bound_len - 1] == 0xff) {
        list->bound_len--;
    }
    if (list->bound_len == 0) {
        return false;
    }
    list->bound[list->bound_len - 1]++;
    return true;
}

static int compare(const uint8_t *a, uint32_t a_len, const uint8_t *b, uint32_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order != 0 ? order : (a_len > b_len) - (a_len < b_len);
}

/* ---- begin ------------------------------------------------------------------------------------------------------------ */

static void bound_from_options(struct index_list *list, const struct store_list_options *options)
{
    if (options->after_is_prefix && options->after.len > 0) {
        list->is_done = !bound_after_prefix(list, options->after.bytes, options->after.len);
    } else if (list->kind == INDEX_LIST_UPLOADS && options->after_upload_id[0] != '\0') {
        /* After this id of this key, and then the following keys. */
        bound_set(list, options->after.bytes, options->after.len);
        list->bound_id_len = (uint32_t)strlen(options->after_upload_id) + 1;
        /* with the zero byte: strictly after */
        memcpy(list->bound_id, options->after_upload_id, list->bound_id_len);
    } else if (options->after.len > 0) {
        bound_after_key(list, options->after.bytes, options->after.len);
    }
    list->bound_part = options->after_part + 1;
    if (!list->is_done && compare(list->bound, list->bound_len, list->prefix.bytes, list->prefix.len) < 0) {
        bound_set(list, list->prefix.bytes, list->prefix.len);
    }
}

int index_list_begin(const struct index_list_request *request, struct index_list **out)
{
    struct index_list *list = calloc(1, sizeof(*list));
    struct list_memory *memory = calloc(1, sizeof(*memory));
    if (list == NULL || memory == NULL) {
        free(list);
        free(memory);
        return -ENOMEM;
    }
    memory->list.entries = memory->entries;
    list->result = &memory->list;
    list->kind = request->kind;
    list->count_max = ENTRIES_MAX;
    list->bound_part = 1;
    int len =
        snprintf(list->bucket, sizeof(list->bucket), "%s", request->bucket != NULL ? request->bucket : "");
    CHECK(len < (int)sizeof(list->bucket));
    len = snprintf(list->upload_id, sizeof(list->upload_id), "%s",
                   request->upload_id != NULL ? request->upload_id : "");
    CHECK(len < (int)sizeof(list->upload_id));
    const struct store_list_options *options = request->options;
    if (options != NULL) {
        CHECK(options->delimiter_len <= sizeof(list->delimiter));
        CHECK(options->prefix.len <= STORE_KEY_MAX);
        CHECK(options->after.len <= STORE_KEY_MAX);
        list->prefix = options->prefix;
        memcpy(list->delimiter, options->delimiter, options->delimiter_len);
        list->delimiter_len = options->delimiter_len;
        list->count_max = options->count_max < ENTRIES_MAX ? options->count_max : ENTRIES_MAX;
        bound_from_options(list, options);
    }
    *out = list;
    return 0;
}

/* ---- entries ------------------------------------------------------------------------------------------------------------ */

/* Offsets travel as pointers until index_list_take adds the base: the text moves while it grows. */
static int keep_text(struct index_list *list, const void *from, size_t len, const void **offset)
{
    *offset = (const void *)(uintptr_t)list->text.len;
    int rc = index_bytes_append(&list->text, from, len);
    return rc != 0 ? rc : index_bytes_append(&list->text, "", 1);
}

static int entry_add(struct index_list *list, const struct list_row *row, uint32_t key_len, bool is_prefix)
{
    struct store_list_entry *entry = &list->result->entries[list->result->count];
    memset(entry, 0, sizeof(*entry));
    const void *key, *etag, *checksum, *upload_id;
    int rc = keep_text(list, row->key, key_len, &key);
    rc = rc != 0 ? rc : keep_text(list, row->etag, is_prefix ? 0 : strlen(row->etag), &etag);
    rc = rc != 0 ? rc : keep_text(list, row->checksum, is_prefix ? 0 : strlen(row->checksum), &checksum);
    rc = rc != 0 ? rc : keep_text(list, row->upload_id, is_prefix ? 0 : strlen(row->upload_id), &upload_id);
    if (rc != 0) {
        return rc;
    }
    entry->key = key;
    entry->key_len = (uint16_t)key_len;
    entry->etag = etag;
    entry->checksum = checksum;
    entry->upload_id = upload_id;
    entry->is_prefix = is_prefix;
    if (!is_prefix) {
        entry->part_number = row->part_number;
        entry->size = row->size;
        entry->modified_ns = row->modified_ns;
    }
    list->result->count++;
    return 0;
}

/* Length of the common prefix that `row` stands for, or 0. */
static uint32_t common_prefix(const struct index_list *list, const struct list_row *row)
{
    if (list->delimiter_len == 0) {
        return 0;
    }
    const uint8_t *from = row->key + list->prefix.len;
    const uint8_t *hit = memmem(from, row->key_len - list->prefix.len, list->delimiter, list->delimiter_len);
    return hit == NULL ? 0 : (uint32_t)(hit - row->key) + list->delimiter_len;
}

/* Takes one row. *seek: the walk goes on from the bound with a new statement. */
static int take_row(struct index_list *list, const struct list_row *row, bool *seek)
{
    if (list->kind == INDEX_LIST_PARTS) {
        if (list->result->count == list->count_max) {
            list->result->is_truncated = true;
            list->is_done = true;
            return 0;
        }
        list->bound_part = row->part_number + 1;
        return entry_add(list, row, 0, false);
    }
    bool inside =
        row->key_len >= list->prefix.len && memcmp(row->key, list->prefix.bytes, list->prefix.len) == 0;
    if (!inside || list->result->count == list->count_max) {
        list->result->is_truncated = inside;
        list->is_done = true;
        return 0;
    }
    uint32_t common = common_prefix(list, row);
    if (common > 0) {
        int rc = entry_add(list, row, common, true);
        *seek = true;
        list->is_done = !bound_after_prefix(list, row->key, common);
        return rc;
    }
    int rc = entry_add(list, row, row->key_len, false);
    if (list->kind == INDEX_LIST_UPLOADS) {
        bound_set(list, row->key, row->key_len);
        list->bound_id_len = (uint32_t)strlen(row->upload_id) + 1;
        memcpy(list->bound_id, row->upload_id, list->bound_id_len);
    } else {
        bound_after_key(list, row->key, row->key_len);
    }
    return rc;
}

/* ---- rows --------------------------------------------------------------------------------------------------------------- */

static bool row_key(sqlite3_stmt *statement, struct list_row *row)
{
    int len = sqlite3_column_bytes(statement, 0);
    row->key = sqlite3_column_blob(statement, 0);
    row->key_len = (uint32_t)len;
    return len >= 1 && len <= (int)STORE_KEY_MAX;
}

static bool row_read(const struct index_list *list, sqlite3_stmt *statement, struct list_row *row)
{
    row->etag[0] = '\0';
    row->checksum[0] = '\0';
    row->upload_id[0] = '\0';
    row->size = 0;
    row->part_number = 0;
    switch (list->kind) {
    case INDEX_LIST_BUCKETS:
        row->modified_ns = (uint64_t)sqlite3_column_int64(statement, 1);
        return row_key(statement, row);
    case INDEX_LIST_UPLOADS:
        row->modified_ns = (uint64_t)sqlite3_column_int64(statement, 1);
        return index_column_text(statement, 2, row->checksum, STORE_CHECKSUMS_MAX) &&
               index_column_text(statement, 3, row->upload_id, STORE_UPLOAD_ID_MAX) &&
               row_key(statement, row);
    case INDEX_LIST_PARTS:
        row->key = (const uint8_t *)"";
        row->key_len = 0;
        row->part_number = (uint32_t)sqlite3_column_int64(statement, 0);
        break;
    case INDEX_LIST_OBJECTS:
        if (!row_key(statement, row)) {
            return false;
        }
        break;
    }
    row->size = (uint64_t)sqlite3_column_int64(statement, 1);
    row->modified_ns = (uint64_t)sqlite3_column_int64(statement, 2);
    return index_column_text(statement, 3, row->etag, STORE_ETAG_MAX) &&
           index_column_text(statement, 4, row->checksum, STORE_CHECKSUMS_MAX);
}

/* The walk from the bound on. */
static sqlite3_stmt *walk_statement(struct index_list *list, struct index_view *view, int64_t bucket)
{
    static const enum index_sql by_kind[] = {
        [INDEX_LIST_BUCKETS] = SQL_LIST_BUCKETS,
        [INDEX_LIST_OBJECTS] = SQL_LIST_OBJECTS,
        [INDEX_LIST_UPLOADS] = SQL_LIST_UPLOADS,
        [INDEX_LIST_PARTS] = SQL_LIST_PARTS,
    };
    sqlite3_stmt *statement = index_statement(view, by_kind[list->kind]);
    if (statement == NULL) {
        return NULL;
    }
    int at = 1;
    if (list->kind == INDEX_LIST_PARTS) {
        index_bind_bytes(statement, at++, list->upload_id, strlen(list->upload_id));
        sqlite3_bind_int64(statement, at, (int64_t)list->bound_part);
        return statement;
    }
    if (list->kind != INDEX_LIST_BUCKETS) {
        sqlite3_bind_int64(statement, at++, bucket);
    }
    /* The bound moves while the statement runs, so it gets a copy. */
    int rc = sqlite3_bind_blob(statement, at++, list->bound_len > 0 ? (const void *)list->bound : "",
                               (int)list->bound_len, SQLITE_TRANSIENT);
    if (list->kind == INDEX_LIST_UPLOADS && rc == SQLITE_OK) {
        rc = sqlite3_bind_blob(statement, at, list->bound_id_len > 0 ? (const void *)list->bound_id : "",
                               (int)list->bound_id_len, SQLITE_TRANSIENT);
    }
    return rc == SQLITE_OK ? statement : NULL;
}

/* The bucket's number, or that the upload is there. */
static int find_parent(struct index_list *list, struct index_view *view, int64_t *bucket)
{
    if (list->kind == INDEX_LIST_BUCKETS) {
        return 0;
    }
    if (list->kind != INDEX_LIST_PARTS) {
        return index_bucket_id(view, list->bucket, bucket, NULL);
    }
    sqlite3_stmt *statement = index_statement(view, SQL_UPLOAD_GET);
    if (statement != NULL) {
        index_bind_bytes(statement, 1, list->upload_id, strlen(list->upload_id));
    }
    int rc = index_step(view, statement);
    if (rc == 1) {
        sqlite3_reset(statement);
        return 0;
    }
    return rc == 0 ? ERR_NO_SUCH_UPLOAD : rc;
}

/* One statement's worth of rows, up to *rows_left. */
static int walk(struct index_list *list, struct index_view *view, int64_t bucket, uint32_t *rows_left)
{
    sqlite3_stmt *statement = walk_statement(list, view, bucket);
    bool seek = false;
    while (*rows_left > 0 && !seek && !list->is_done) {
        struct list_row row;
        int rc = index_step(view, statement);
        if (rc <= 0) {
            list->is_done = rc == 0;
            return rc;
        }
        (*rows_left)--;
        rc = row_read(list, statement, &row) ? take_row(list, &row, &seek) : ERR_CORRUPT;
        if (rc != 0) {
            sqlite3_reset(statement);
            return rc;
        }
    }
    if (statement != NULL) {
        sqlite3_reset(statement);
    }
    return 0;
}

int index_list_step(struct index_list *list, struct index_view *view, uint32_t rows_max)
{
    CHECK(rows_max > 0);
    int64_t bucket = 0;
    int rc = find_parent(list, view, &bucket);
    if (rc != 0) {
        return rc;
    }
    if (list->count_max == 0) {
        return 1; /* S3: nothing asked for, nothing more to come */
    }
    uint32_t rows_left = rows_max;
    while (rows_left > 0 && !list->is_done) {
        rc = walk(list, view, bucket, &rows_left);
        if (rc != 0) {
            return rc;
        }
    }
    return list->is_done ? 1 : 0;
}

/* ---- end ---------------------------------------------------------------------------------------------------------------- */

struct store_list *index_list_take(struct index_list *list)
{
    struct store_list *result = list->result;
    struct list_memory *memory = CONTAINER_OF(result, struct list_memory, list);
    const uint8_t *base = list->text.data;
    memory->text = list->text.data;
    for (uint32_t i = 0; i < result->count; i++) {
        struct store_list_entry *entry = &result->entries[i];
        entry->key = base + (uintptr_t)entry->key;
        entry->etag = (const char *)base + (uintptr_t)entry->etag;
        entry->checksum = (const char *)base + (uintptr_t)entry->checksum;
        entry->upload_id = (const char *)base + (uintptr_t)entry->upload_id;
    }
    free(list);
    return result;
}

void index_list_abandon(struct index_list *list)
{
    if (list != NULL) {
        free(list->text.data);
        free(CONTAINER_OF(list->result, struct list_memory, list));
        free(list);
    }
}

void store_list_free(struct store_list *list)
{
    if (list != NULL) {
        struct list_memory *memory = CONTAINER_OF(list, struct list_memory, list);
        free(memory->text);
        free(memory);
    }
}
