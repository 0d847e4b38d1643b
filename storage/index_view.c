/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_view: reading: point lookups, walks over the extents, and the check of the whole index. A view is one connection
 * and belongs to one thread. A lookup that needs several rows reads them in one snapshot and ends it before it returns, so
 * a view never holds the log back.
 */
#include "storage/index_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

struct index_view *index_own_view(struct index *index)
{
    CHECK(!index->in_transaction);
    return &index->view;
}

int index_view_open(const struct index_options *options, struct index_view **out, struct err *err)
{
    struct index_view *view = calloc(1, sizeof(*view));
    if (view == NULL) {
        return -ENOMEM;
    }
    int rc = index_view_init(view, options, true, err);
    if (rc != 0) {
        free(view);
        return rc;
    }
    *out = view;
    return 0;
}

void index_view_close(struct index_view *view)
{
    if (view == NULL) {
        return;
    }
    index_view_fini(view);
    free(view);
}

static int snapshot_begin(struct index_view *view)
{
    CHECK(!view->in_transaction);
    int rc = index_step(view, index_statement(view, SQL_BEGIN_READ));
    view->in_transaction = rc == 0;
    return rc;
}

/* Ends the snapshot and returns `rc`; statements of the lookup were reset before. */
static int snapshot_end(struct index_view *view, int rc)
{
    if (view->in_transaction) {
        view->in_transaction = false;
        int end = index_step(view, index_statement(view, SQL_COMMIT));
        return rc != 0 ? rc : end;
    }
    return rc;
}

/* ---- buckets, uploads ---------------------------------------------------------------------------------------------- */

int index_view_bucket(struct index_view *view, const char *bucket, uint64_t *created_ns)
{
    int64_t id;
    return index_bucket_id(view, bucket, &id, created_ns);
}

static bool column_attributes(sqlite3_stmt *statement, int first, struct store_attributes *out)
{
    int len = sqlite3_column_bytes(statement, first + 2);
    if (len > (int)STORE_META_MAX || !index_column_text(statement, first, out->etag, STORE_ETAG_MAX) ||
        !index_column_text(statement, first + 1, out->checksum, STORE_CHECKSUMS_MAX)) {
        return false;
    }
    out->meta_len = (uint16_t)len;
    if (len > 0) {
        memcpy(out->meta, sqlite3_column_blob(statement, first + 2), (size_t)len);
    }
    return true;
}

static int upload_read(struct index_view *view, int64_t bucket, const struct store_name *key,
                       const char *upload_id, struct store_attributes *attributes_or_null,
                       uint64_t *created_ns)
{
    sqlite3_stmt *statement = index_statement(view, SQL_UPLOAD_GET);
    if (statement != NULL) {
        index_bind_bytes(statement, 1, upload_id, strlen(upload_id));
    }
    int rc = index_step(view, statement);
    if (rc != 1) {
        return rc == 0 ? ERR_NO_SUCH_UPLOAD : rc;
    }
    bool same = sqlite3_column_int64(statement, 0) == bucket;
    if (same && key->len > 0) {
        same = sqlite3_column_bytes(statement, 1) == key->len &&
               memcmp(sqlite3_column_blob(statement, 1), key->bytes, key->len) == 0;
    }
    rc = same ? 0 : ERR_NO_SUCH_UPLOAD;
    if (rc == 0) {
        *created_ns = (uint64_t)sqlite3_column_int64(statement, 2);
        if (attributes_or_null != NULL && !column_attributes(statement, 3, attributes_or_null)) {
            rc = ERR_CORRUPT;
        }
    }
    sqlite3_reset(statement);
    return rc;
}

int index_view_upload(struct index_view *view, const char *bucket, const struct store_name *key,
                      const char *upload_id, struct store_attributes *attributes_or_null,
                      uint64_t *created_ns)
{
    int64_t id = 0;
    int rc = snapshot_begin(view);
    rc = rc != 0 ? rc : index_bucket_id(view, bucket, &id, NULL);
    rc = rc != 0 ? rc : upload_read(view, id, key, upload_id, attributes_or_null, created_ns);
    return snapshot_end(view, rc);
}

/* ---- objects ----------------------------------------------------------------------------------------------------------- */

/* Checksums of all extents, gathered while the pieces are read; offsets become pointers at the end. */
struct checksums {
    uint32_t *data;
    size_t count;
    size_t capacity;
};

static int checksums_append(struct checksums *sums, const uint8_t *raw, uint32_t count)
{
    if (sums->capacity - sums->count < count || sums->data == NULL) {
        size_t capacity = sums->capacity > 0 ? sums->capacity : 16;
        while (capacity - sums->count < count) {
            capacity *= 2;
        }
        uint32_t *grown = realloc(sums->data, capacity * sizeof(*grown));
        if (grown == NULL) {
            return -ENOMEM;
        }
        sums->data = grown;
        sums->capacity = capacity;
    }
    for (uint32_t i = 0; i < count; i++) {
        sums->data[sums->count++] = bytes_get_le32(raw + 4 * (size_t)i);
    }
    return 0;
}

static int load_piece(struct index_view *view, const uint8_t *packed, struct object_piece *piece,
                      struct checksums *sums)
{
    struct index_piece stored;
    index_piece_get(packed, &stored);
    sqlite3_stmt *statement = index_statement(view, SQL_EXTENT_LOAD);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)stored.extent_id);
    }
    int rc = index_step(view, statement);
    if (rc != 1) {
        return rc == 0 ? ERR_CORRUPT : rc;
    }
    const uint8_t *raw;
    rc = index_extent_column(statement, 0, &piece->extent, &raw);
    if (rc == 0 && (stored.length == 0 || stored.start >= piece->extent.length ||
                    stored.length > piece->extent.length - stored.start)) {
        rc = ERR_CORRUPT;
    }
    rc = rc != 0 ? rc : checksums_append(sums, raw, piece->extent.checksum_count);
    sqlite3_reset(statement);
    piece->extent_id = stored.extent_id;
    piece->start = stored.start;
    piece->length = stored.length;
    return rc;
}

static int load_pieces(struct index_view *view, struct store_object *object, const uint8_t *packed)
{
    struct checksums sums = {0};
    uint64_t at = 0;
    for (uint32_t i = 0; i < object->piece_count; i++) {
        int rc = load_piece(view, packed + (size_t)i * INDEX_PIECE_SIZE, &object->pieces[i], &sums);
        if (rc != 0) {
            free(sums.data);
            object->piece_count = 0; /* object_free must not look for checksums */
            return rc;
        }
        object->pieces[i].at = at;
        at += object->pieces[i].length;
    }
    const uint32_t *next = sums.data;
    for (uint32_t i = 0; i < object->piece_count; i++) {
        object->pieces[i].extent.checksums = next;
        next += object->pieces[i].extent.checksum_count;
    }
    return at == object->size ? 0 : ERR_CORRUPT;
}

static int load_parts(struct store_object *object, const uint8_t *packed)
{
    uint64_t at = 0;
    uint32_t records = object->part_count;
    object->part_count = 0;
    for (uint32_t i = 0; i < records; i++) {
        struct index_part part;
        struct object_part *last = &object->parts[object->part_count];
        index_part_get(packed + (size_t)i * INDEX_PART_SIZE, &part);
        if ((part.number & INDEX_PART_PAYLOAD) != 0) {
            if (object->part_count == 0 || (last - 1)->number != (part.number & ~INDEX_PART_PAYLOAD)) {
                return ERR_CORRUPT;
            }
            (last - 1)->payload = part.length;
            continue;
        }
        *last = (struct object_part){.number = part.number, .at = at, .length = part.length};
        object->part_count++;
        if (part.length > object->size - at) {
            return ERR_CORRUPT;
        }
        at += part.length;
    }
    return object->part_count == 0 || at == object->size ? 0 : ERR_CORRUPT;
}

/* The row of SQL_OBJECT_GET; the statement stays on it while the pieces are read. */
static int object_from_row(struct index_view *view, sqlite3_stmt *row, struct store_object *object)
{
    size_t parts_len = (size_t)sqlite3_column_bytes(row, 6);
    size_t pieces_len = (size_t)sqlite3_column_bytes(row, 7);
    const uint8_t *parts = sqlite3_column_blob(row, 6);
    const uint8_t *pieces = sqlite3_column_blob(row, 7);
    if (parts_len % INDEX_PART_SIZE != 0 || pieces_len % INDEX_PIECE_SIZE != 0 ||
        !column_attributes(row, 3, &object->attributes)) {
        return ERR_CORRUPT;
    }
    object->size = (uint64_t)sqlite3_column_int64(row, 0);
    object->modified_ns = (uint64_t)sqlite3_column_int64(row, 1);
    object->crc32c_known = sqlite3_column_type(row, 2) != SQLITE_NULL;
    object->crc32c = object->crc32c_known ? (uint32_t)sqlite3_column_int64(row, 2) : 0;
    object->pieces = calloc(pieces_len / INDEX_PIECE_SIZE + 1, sizeof(*object->pieces));
    object->parts = calloc(parts_len / INDEX_PART_SIZE + 1, sizeof(*object->parts));
    if (object->pieces == NULL || object->parts == NULL) {
        return -ENOMEM;
    }
    object->part_count = (uint32_t)(parts_len / INDEX_PART_SIZE);
    int rc = load_parts(object, parts);
    if (rc != 0) {
        return rc;
    }
    object->piece_count = (uint32_t)(pieces_len / INDEX_PIECE_SIZE);
    return load_pieces(view, object, pieces);
}

static int object_read(struct index_view *view, const char *bucket, const struct store_name *key,
                       struct store_object **out)
{
    int64_t id = 0;
    int rc = index_bucket_id(view, bucket, &id, NULL);
    if (rc != 0) {
        return rc;
    }
    sqlite3_stmt *row = index_statement(view, SQL_OBJECT_GET);
    if (row != NULL) {
        sqlite3_bind_int64(row, 1, id);
        index_bind_bytes(row, 2, key->bytes, key->len);
    }
    rc = index_step(view, row);
    if (rc != 1) {
        return rc == 0 ? ERR_NO_SUCH_KEY : rc;
    }
    struct store_object *object = calloc(1, sizeof(*object));
    if (object == NULL) {
        sqlite3_reset(row);
        return -ENOMEM;
    }
    object->magic = OBJECT_MAGIC;
    rc = object_from_row(view, row, object);
    sqlite3_reset(row);
    if (rc != 0) {
        object_free(object);
        return rc;
    }
    *out = object;
    return 0;
}

int index_view_object(struct index_view *view, const char *bucket, const struct store_name *key,
                      struct store_object **out)
{
    struct store_object *object = NULL;
    int rc = snapshot_begin(view);
    rc = snapshot_end(view, rc != 0 ? rc : object_read(view, bucket, key, &object));
    if (rc != 0) {
        object_free(object);
        return rc;
    }
    *out = object;
    return 0;
}

/* ---- walks ------------------------------------------------------------------------------------------------------------ */

/* Checksums are copied into the view's own array: SQLite's are unaligned and end with the statement, and a statement that
 * stays open would hold the log. */
static int extent_row(struct index_view *view, sqlite3_stmt *statement, bool with_checksums,
                      struct index_extent_row *out)
{
    const uint8_t *raw = NULL;
    out->id = (uint64_t)sqlite3_column_int64(statement, 0);
    out->references = (uint32_t)sqlite3_column_int64(statement, 1);
    int rc = index_extent_column(statement, 2, &out->extent, with_checksums ? &raw : NULL);
    if (rc != 0 || !with_checksums) {
        return rc;
    }
    if (view->checksums == NULL) {
        view->checksums = malloc(INDEX_CHECKSUMS_MAX * sizeof(*view->checksums));
        if (view->checksums == NULL) {
            return -ENOMEM;
        }
    }
    if (out->extent.checksum_count > INDEX_CHECKSUMS_MAX) {
        return ERR_CORRUPT;
    }
    for (uint32_t i = 0; i < out->extent.checksum_count; i++) {
        view->checksums[i] = bytes_get_le32(raw + 4 * (size_t)i);
    }
    out->extent.checksums = view->checksums;
    return 0;
}

int index_view_extent(struct index_view *view, uint64_t from_id, struct index_extent_row *out)
{
    sqlite3_stmt *statement = index_statement(view, SQL_EXTENT_FROM);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)from_id);
    }
    int rc = index_step(view, statement);
    if (rc != 1) {
        return rc == 0 ? -ENOENT : rc;
    }
    rc = extent_row(view, statement, true, out);
    sqlite3_reset(statement);
    return rc;
}

int index_view_extents(struct index_view *view, bool with_checksums,
                       int (*fn)(void *ctx, const struct index_extent_row *row), void *ctx)
{
    sqlite3_stmt *statement =
        index_statement(view, with_checksums ? SQL_EXTENT_WALK_CHECKSUMS : SQL_EXTENT_WALK);
    int rc;
    while ((rc = index_step(view, statement)) == 1) {
        struct index_extent_row row;
        rc = extent_row(view, statement, with_checksums, &row);
        rc = rc != 0 ? rc : fn(ctx, &row);
        if (rc != 0) {
            sqlite3_reset(statement);
            return rc;
        }
    }
    return rc;
}
