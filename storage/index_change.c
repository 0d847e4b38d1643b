/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_change: every change of the index, inside the writer's transaction.
 *
 * Invariants.
 * 1. extents.refs equals the number of pieces (of objects and parts) that name the extent; 0 means pending.
 * 2. Each function checks all its conditions before its first change, so that a refused item leaves the batch usable.
 * 3. Space reaches `freed` in the same transaction that removes the last reference, never earlier.
 */
#include "storage/index_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define LENGTH_LIMIT (INT64_MAX / 2) /* no size in the database may come near overflow */

/* ---- growing bytes, packed lists ------------------------------------------------------------------------------------- */

int index_bytes_append(struct index_bytes *bytes, const void *data, size_t len)
{
    if (bytes->capacity - bytes->len < len) {
        size_t capacity = bytes->capacity > 0 ? bytes->capacity : 4096;
        while (capacity - bytes->len < len) {
            capacity *= 2;
        }
        uint8_t *grown = realloc(bytes->data, capacity);
        if (grown == NULL) {
            return -ENOMEM;
        }
        bytes->data = grown;
        bytes->capacity = capacity;
    }
    if (len > 0) {
        memcpy(bytes->data + bytes->len, data, len);
        bytes->len += len;
    }
    return 0;
}

int index_pieces_append(struct index_bytes *bytes, const struct index_piece *piece)
{
    uint8_t packed[INDEX_PIECE_SIZE];
    bytes_put_le64(packed, piece->extent_id);
    bytes_put_le32(packed + 8, piece->start);
    bytes_put_le32(packed + 12, piece->length);
    return index_bytes_append(bytes, packed, sizeof(packed));
}

void index_piece_get(const uint8_t *at, struct index_piece *out)
{
    out->extent_id = bytes_get_le64(at);
    out->start = bytes_get_le32(at + 8);
    out->length = bytes_get_le32(at + 12);
}

void index_part_get(const uint8_t *at, struct index_part *out)
{
    out->number = bytes_get_le32(at);
    out->length = bytes_get_le64(at + 4);
}

int index_parts_append(struct index_bytes *bytes, uint32_t number, uint64_t length, uint64_t payload)
{
    uint8_t packed[2 * INDEX_PART_SIZE];
    bytes_put_le32(packed, number);
    bytes_put_le64(packed + 4, length);
    bytes_put_le32(packed + INDEX_PART_SIZE, number | INDEX_PART_PAYLOAD);
    bytes_put_le64(packed + INDEX_PART_SIZE + 4, payload);
    return index_bytes_append(bytes, packed, payload == 0 ? INDEX_PART_SIZE : sizeof(packed));
}

/* ---- freed space ---------------------------------------------------------------------------------------------------- */

int index_freed_add(struct index_freed *freed, const struct object_extent *extent)
{
    if (freed->count == freed->capacity) {
        uint32_t capacity = freed->capacity > 0 ? freed->capacity * 2 : 64;
        struct object_space *grown = realloc(freed->spaces, capacity * sizeof(*grown));
        if (grown == NULL) {
            return -ENOMEM;
        }
        freed->spaces = grown;
        freed->capacity = capacity;
    }
    freed->spaces[freed->count++] = (struct object_space){
        .device = extent->device,
        .offset = extent->offset,
        .length = object_space_length(extent->phase, extent->length),
    };
    return 0;
}

void index_freed_clear(struct index_freed *freed)
{
    freed->count = 0;
}

void index_freed_close(struct index_freed *freed)
{
    free(freed->spaces);
    memset(freed, 0, sizeof(*freed));
}

/* ---- references ------------------------------------------------------------------------------------------------------ */

int index_extent_column(sqlite3_stmt *statement, int first, struct object_extent *out, const uint8_t **raw)
{
    int64_t device = sqlite3_column_int64(statement, first);
    int64_t offset = sqlite3_column_int64(statement, first + 1);
    int64_t phase = sqlite3_column_int64(statement, first + 2);
    int64_t length = sqlite3_column_int64(statement, first + 3);
    if (device < 0 || device >= (int64_t)STORE_DEVICES_MAX || offset < 0 || offset > LENGTH_LIMIT ||
        offset % OBJECT_BLOCK_SIZE != 0 || phase < 0 || phase >= (int64_t)OBJECT_BLOCK_SIZE || length < 1 ||
        length > (int64_t)STORE_EXTENT_MAX) {
        return ERR_CORRUPT;
    }
    out->device = (uint32_t)device;
    out->offset = (uint64_t)offset;
    out->phase = (uint32_t)phase;
    out->length = (uint64_t)length;
    out->checksums = NULL;
    out->checksum_count = 0;
    if (raw != NULL) {
        int len = sqlite3_column_bytes(statement, first + 4);
        if (len % 4 != 0) {
            return ERR_CORRUPT;
        }
        *raw = sqlite3_column_blob(statement, first + 4);
        out->checksum_count = (uint32_t)len / 4;
    }
    return 0;
}

static int extent_refer(struct index *index, uint64_t id, int64_t delta)
{
    sqlite3_stmt *statement = index_statement(&index->view, SQL_EXTENT_REFER);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)id);
        sqlite3_bind_int64(statement, 2, delta);
    }
    return index_write_step(index, statement);
}

/* Ends one reference; the last one deletes the row and frees the space. */
static int extent_drop(struct index *index, uint64_t id, struct index_freed *freed)
{
    sqlite3_stmt *statement = index_statement(&index->view, SQL_EXTENT_GET);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)id);
    }
    int rc = index_write_step(index, statement);
    if (rc <= 0) {
        return rc < 0 ? rc : index_fail(index, ERR_CORRUPT, "a piece names an extent that is not there");
    }
    int64_t refs = sqlite3_column_int64(statement, 0);
    struct object_extent extent;
    rc = index_extent_column(statement, 1, &extent, NULL);
    sqlite3_reset(statement);
    if (rc != 0 || refs < 1) {
        return index_fail(index, ERR_CORRUPT, "extent row");
    }
    if (refs > 1) {
        return extent_refer(index, id, -1);
    }
    rc = index_freed_add(freed, &extent);
    if (rc != 0) {
        return rc;
    }
    statement = index_statement(&index->view, SQL_EXTENT_DELETE);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)id);
    }
    return index_write_step(index, statement);
}

int index_drop_pieces(struct index *index, const struct index_bytes *pieces, struct index_freed *freed)
{
    for (size_t at = 0; at + INDEX_PIECE_SIZE <= pieces->len; at += INDEX_PIECE_SIZE) {
        struct index_piece piece;
        index_piece_get(pieces->data + at, &piece);
        int rc = extent_drop(index, piece.extent_id, freed);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* Copies a column that holds a piece list; ERR_CORRUPT (and a failed index) when its length is impossible. */
int index_take_pieces(struct index *index, sqlite3_stmt *statement, int column, struct index_bytes *to)
{
    const void *data = sqlite3_column_blob(statement, column);
    int len = sqlite3_column_bytes(statement, column);
    if (len % (int)INDEX_PIECE_SIZE != 0) {
        return index_fail(index, ERR_CORRUPT, "piece list");
    }
    to->len = 0;
    return index_bytes_append(to, data, (size_t)len);
}

/* ---- extents of a put ----------------------------------------------------------------------------------------------- */

/* SQLite copies nothing here, so the packed form must live until the statement is reset: the caller passes scratch. */
static int extent_insert(struct index *index, const struct object_extent *extent, int64_t refs,
                         uint64_t owner, uint64_t *id)
{
    CHECK(extent->length > 0);
    CHECK(extent->length <= STORE_EXTENT_MAX);
    CHECK(extent->phase < OBJECT_BLOCK_SIZE);
    CHECK(extent->offset % OBJECT_BLOCK_SIZE == 0);
    CHECK(extent->device < STORE_DEVICES_MAX);
    *id = index->next_extent_id;
    sqlite3_stmt *statement = index_statement(&index->view, SQL_EXTENT_INSERT);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)*id);
        sqlite3_bind_int64(statement, 2, refs);
        sqlite3_bind_int64(statement, 3, (int64_t)owner);
        sqlite3_bind_int64(statement, 4, (int64_t)extent->device);
        sqlite3_bind_int64(statement, 5, (int64_t)extent->offset);
        sqlite3_bind_int64(statement, 6, (int64_t)extent->phase);
        sqlite3_bind_int64(statement, 7, (int64_t)extent->length);
        /* Stored little endian, which is what this machine has (checked where it matters: index_view.c reads by bytes). */
        _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
                       "checksums are stored little endian as they lie");
        index_bind_bytes(statement, 8, extent->checksums, (size_t)extent->checksum_count * 4);
    }
    int rc = index_write_step(index, statement);
    if (rc == 0) {
        index->next_extent_id++; /* not taken back by a rollback: a gap in the ids costs nothing */
    }
    return rc;
}

/* Appends the pending extents of `owner` to the piece list, in the order of their recording; adds up their bytes. */
static int pending_pieces(struct index *index, uint64_t owner, uint64_t *total)
{
    sqlite3_stmt *statement = index_statement(&index->view, SQL_PENDING_OF_OWNER);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)owner);
    }
    int rc;
    while ((rc = index_write_step(index, statement)) == 1) {
        struct index_piece piece = {
            .extent_id = (uint64_t)sqlite3_column_int64(statement, 0),
            .length = (uint32_t)sqlite3_column_int64(statement, 4),
        };
        *total += piece.length;
        int append = index_pieces_append(&index->pieces, &piece);
        if (append != 0) {
            sqlite3_reset(statement);
            return append;
        }
    }
    return rc;
}

/* Makes index->pieces: what was pending, then the new extents; all of them become live. */
int index_put_pieces(struct index *index, const struct index_put *put)
{
    uint64_t total = 0;
    int rc = 0;
    index->pieces.len = 0;
    if (put->owner != 0) {
        rc = pending_pieces(index, put->owner, &total);
        if (rc == 0 && total > 0) {
            sqlite3_stmt *statement = index_statement(&index->view, SQL_PENDING_TO_LIVE);
            if (statement != NULL) {
                sqlite3_bind_int64(statement, 1, (int64_t)put->owner);
            }
            rc = index_write_step(index, statement);
        }
    }
    for (uint32_t i = 0; rc == 0 && i < put->extent_count; i++) {
        struct index_piece piece = {.length = (uint32_t)put->extents[i].length};
        total += put->extents[i].length;
        rc = extent_insert(index, &put->extents[i], 1, 0, &piece.extent_id);
        rc = rc != 0 ? rc : index_pieces_append(&index->pieces, &piece);
    }
    CHECK(rc != 0 || total == put->size); /* the writer lost or doubled an extent */
    return rc;
}

/* Makes index->pieces: the part [offset, offset + len) of a looked-up object. -ESTALE when an extent has gone since; refers
 * to each only after all were seen. */
int index_copy_pieces(struct index *index, const struct store_object *source, uint64_t offset, uint64_t len)
{
    CHECK(source->magic == OBJECT_MAGIC);
    CHECK(offset <= source->size && len <= source->size - offset);
    index->pieces.len = 0;
    for (uint32_t i = 0; i < source->piece_count; i++) {
        const struct object_piece *from = &source->pieces[i];
        uint64_t begin = from->at > offset ? from->at : offset;
        uint64_t from_end = from->at + from->length;
        uint64_t end = from_end < offset + len ? from_end : offset + len;
        if (begin >= end) {
            continue;
        }
        struct index_piece piece = {
            .extent_id = from->extent_id,
            .start = (uint32_t)(from->start + (begin - from->at)),
            .length = (uint32_t)(end - begin),
        };
        sqlite3_stmt *statement = index_statement(&index->view, SQL_EXTENT_GET);
        if (statement != NULL) {
            sqlite3_bind_int64(statement, 1, (int64_t)piece.extent_id);
        }
        int rc = index_write_step(index, statement);
        if (rc == 1) {
            rc = sqlite3_column_int64(statement, 0) > 0 ? 0 : -ESTALE;
            sqlite3_reset(statement);
        } else if (rc == 0) {
            rc = -ESTALE;
        }
        rc = rc != 0 ? rc : index_pieces_append(&index->pieces, &piece);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

int index_refer_pieces(struct index *index)
{
    for (size_t at = 0; at < index->pieces.len; at += INDEX_PIECE_SIZE) {
        struct index_piece piece;
        index_piece_get(index->pieces.data + at, &piece);
        int rc = extent_refer(index, piece.extent_id, 1);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* ---- buckets ---------------------------------------------------------------------------------------------------------- */

int index_bucket_id(struct index_view *view, const char *name, int64_t *id, uint64_t *created_ns)
{
    sqlite3_stmt *statement = index_statement(view, SQL_BUCKET_GET);
    if (statement != NULL) {
        index_bind_bytes(statement, 1, name, strlen(name));
    }
    int rc = index_step(view, statement);
    if (rc == 1) {
        *id = sqlite3_column_int64(statement, 0);
        if (created_ns != NULL) {
            *created_ns = (uint64_t)sqlite3_column_int64(statement, 1);
        }
        sqlite3_reset(statement);
        return 0;
    }
    return rc < 0 ? rc : ERR_NO_SUCH_BUCKET;
}

static int bucket_find(struct index *index, const char *name, int64_t *id)
{
    int rc = index_bucket_id(&index->view, name, id, NULL);
    return rc == 0 || rc == ERR_NO_SUCH_BUCKET || rc == -ENOMEM ? rc : index_fail(index, rc, "bucket");
}

int index_bucket_create(struct index *index, const char *name, uint64_t now_ns)
{
    CHECK(index->in_transaction);
    int64_t id;
    int rc = bucket_find(index, name, &id);
    if (rc != ERR_NO_SUCH_BUCKET) {
        return rc == 0 ? ERR_BUCKET_EXISTS : rc;
    }
    sqlite3_stmt *statement = index_statement(&index->view, SQL_BUCKET_INSERT);
    if (statement != NULL) {
        index_bind_bytes(statement, 1, name, strlen(name));
        sqlite3_bind_int64(statement, 2, (int64_t)now_ns);
    }
    return index_write_step(index, statement);
}

static int bucket_holds(struct index *index, enum index_sql which, int64_t id)
{
    sqlite3_stmt *statement = index_statement(&index->view, which);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, id);
    }
    int rc = index_write_step(index, statement);
    if (rc == 1) {
        sqlite3_reset(statement);
        return ERR_BUCKET_NOT_EMPTY;
    }
    return rc;
}

int index_bucket_delete(struct index *index, const char *name)
{
    CHECK(index->in_transaction);
    int64_t id = 0;
    int rc = bucket_find(index, name, &id);
    rc = rc != 0 ? rc : bucket_holds(index, SQL_BUCKET_HAS_OBJECT, id);
    rc = rc != 0 ? rc : bucket_holds(index, SQL_BUCKET_HAS_UPLOAD, id);
    if (rc != 0) {
        return rc;
    }
    sqlite3_stmt *statement = index_statement(&index->view, SQL_BUCKET_DELETE);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, id);
    }
    return index_write_step(index, statement);
}

/* ---- objects ---------------------------------------------------------------------------------------------------------- */

int index_object_find(struct index *index, const char *bucket, const struct store_name *key,
                      struct index_found *found)
{
    memset(found, 0, sizeof(*found));
    index->old.len = 0;
    CHECK(key->len >= 1 && key->len <= STORE_KEY_MAX);
    int rc = bucket_find(index, bucket, &found->bucket);
    if (rc != 0) {
        return rc;
    }
    sqlite3_stmt *statement = index_statement(&index->view, SQL_OBJECT_HEAD);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, found->bucket);
        index_bind_bytes(statement, 2, key->bytes, key->len);
    }
    rc = index_write_step(index, statement);
    if (rc != 1) {
        return rc;
    }
    found->exists = true;
    found->size = (uint64_t)sqlite3_column_int64(statement, 0);
    bool fits = index_column_text(statement, 1, found->etag, STORE_ETAG_MAX);
    rc = fits ? index_take_pieces(index, statement, 2, &index->old) : index_fail(index, ERR_CORRUPT, "ETag");
    sqlite3_reset(statement);
    return rc;
}

int index_check_condition(const struct store_condition *condition, const struct index_found *found)
{
    if (condition == NULL) {
        return 0;
    }
    if (condition->if_none_match_any && found->exists) {
        return ERR_PRECONDITION;
    }
    if (condition->if_match[0] != '\0') {
        bool any = strcmp(condition->if_match, "*") == 0;
        if (!found->exists || (!any && strcmp(condition->if_match, found->etag) != 0)) {
            return ERR_PRECONDITION;
        }
    }
    return 0;
}

/* Writes the object row over whatever is there, with index->pieces and index->parts as its lists. */
int index_object_write(struct index *index, const struct index_found *found, const struct index_put *put)
{
    const struct store_attributes *attributes = put->attributes;
    sqlite3_stmt *statement = index_statement(&index->view, SQL_OBJECT_SET);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, found->bucket);
        index_bind_bytes(statement, 2, put->key->bytes, put->key->len);
        sqlite3_bind_int64(statement, 3, (int64_t)put->size);
        sqlite3_bind_int64(statement, 4, (int64_t)put->modified_ns);
        if (put->crc32c_known) {
            sqlite3_bind_int64(statement, 5, (int64_t)put->crc32c);
        }
        index_bind_text(statement, 6, attributes->etag);
        index_bind_text(statement, 7, attributes->checksum);
        index_bind_bytes(statement, 8, attributes->meta, attributes->meta_len);
        index_bind_bytes(statement, 9, index->parts.data, index->parts.len);
        index_bind_bytes(statement, 10, index->pieces.data, index->pieces.len);
    }
    int rc = index_write_step(index, statement);
    if (rc != 0) {
        return rc;
    }
    index->now.objects += found->exists ? 0 : 1;
    index->now.object_bytes += put->size - found->size;
    return 0;
}

int index_object_put(struct index *index, const struct index_put *put, struct index_freed *freed)
{
    CHECK(index->in_transaction);
    struct index_found found;
    int rc = index_object_find(index, put->bucket, put->key, &found);
    rc = rc != 0 ? rc : index_check_condition(put->condition, &found);
    if (rc != 0) {
        return rc;
    }
    index->parts.len = 0;
    rc = index_put_pieces(index, put);
    rc = rc != 0 ? rc : index_drop_pieces(index, &index->old, freed);
    return rc != 0 ? rc : index_object_write(index, &found, put);
}

int index_object_delete(struct index *index, const char *bucket, const struct store_name *key, bool *existed,
                        struct index_freed *freed)
{
    CHECK(index->in_transaction);
    struct index_found found;
    int rc = index_object_find(index, bucket, key, &found);
    if (rc != 0) {
        return rc;
    }
    *existed = found.exists;
    if (!found.exists) {
        return 0;
    }
    rc = index_drop_pieces(index, &index->old, freed);
    if (rc != 0) {
        return rc;
    }
    sqlite3_stmt *statement = index_statement(&index->view, SQL_OBJECT_DELETE);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, found.bucket);
        index_bind_bytes(statement, 2, key->bytes, key->len);
    }
    rc = index_write_step(index, statement);
    if (rc == 0) {
        index->now.objects--;
        index->now.object_bytes -= found.size;
    }
    return rc;
}

int index_object_copy(struct index *index, const struct index_put *put, const struct store_object *source,
                      uint64_t offset, uint64_t len, struct index_freed *freed)
{
    CHECK(index->in_transaction);
    struct index_found found;
    int rc = index_object_find(index, put->bucket, put->key, &found);
    rc = rc != 0 ? rc : index_check_condition(put->condition, &found);
    rc = rc != 0 ? rc : index_copy_pieces(index, source, offset, len);
    /* New references first: copying an object onto itself must not free it in between. */
    rc = rc != 0 ? rc : index_refer_pieces(index);
    rc = rc != 0 ? rc : index_drop_pieces(index, &index->old, freed);
    if (rc != 0) {
        return rc;
    }
    struct index_put made = *put;
    bool whole = offset == 0 && len == source->size;
    made.size = len;
    made.crc32c_known = whole && source->crc32c_known;
    made.crc32c = made.crc32c_known ? source->crc32c : 0;
    index->parts.len = 0;
    for (uint32_t i = 0; whole && rc == 0 && i < source->part_count; i++) {
        const struct object_part *part = &source->parts[i];
        rc = index_parts_append(&index->parts, part->number, part->length, part->payload);
    }
    return rc != 0 ? rc : index_object_write(index, &found, &made);
}

/* ---- pending extents -------------------------------------------------------------------------------------------------- */

int index_pending_add(struct index *index, uint64_t owner, const struct object_extent *extents,
                      uint32_t count)
{
    CHECK(index->in_transaction);
    CHECK(owner != 0);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        uint64_t id;
        rc = extent_insert(index, &extents[i], 0, owner, &id);
    }
    return rc;
}

int index_pending_drop(struct index *index, uint64_t owner, struct index_freed *freed)
{
    CHECK(index->in_transaction);
    sqlite3_stmt *statement = index_statement(&index->view, SQL_PENDING_OF_OWNER);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)owner);
    }
    int rc;
    while ((rc = index_write_step(index, statement)) == 1) {
        struct object_extent extent;
        rc = index_extent_column(statement, 1, &extent, NULL);
        rc = rc == 0 ? index_freed_add(freed, &extent) : index_fail(index, rc, "pending extent");
        if (rc != 0) {
            sqlite3_reset(statement);
            return rc;
        }
    }
    if (rc != 0) {
        return rc;
    }
    statement = index_statement(&index->view, SQL_PENDING_DELETE_OWNER);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)owner);
    }
    return index_write_step(index, statement);
}

int index_pending_drop_all(struct index *index, uint32_t max, uint32_t *dropped)
{
    CHECK(index->in_transaction);
    sqlite3_stmt *statement = index_statement(&index->view, SQL_PENDING_DELETE_SOME);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)max);
    }
    int rc = index_write_step(index, statement);
    if (rc == 0) {
        *dropped = (uint32_t)sqlite3_changes(index->view.db);
    }
    return rc;
}
