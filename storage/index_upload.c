/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_upload: multipart uploads: creation, parts, completion and abort, inside the writer's transaction. A part is live
 * from its commit on and belongs to its upload; completion moves its pieces to the object, so it costs rows, not payload.
 * The rules of index_change.c hold here too.
 */
#include "storage/index_int.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "storage/extent.h"

/* ---- finding ------------------------------------------------------------------------------------------------------- */

static int upload_row(struct index *index, const char *upload_id, sqlite3_stmt **out)
{
    sqlite3_stmt *statement = index_statement(&index->view, SQL_UPLOAD_GET);
    if (statement != NULL) {
        index_bind_bytes(statement, 1, upload_id, strlen(upload_id));
    }
    *out = statement;
    return index_write_step(index, statement);
}

/* 0 when the upload is there and of this bucket and key (a key of length 0 is not compared). */
static int upload_find(struct index *index, const char *bucket, const struct store_name *key,
                       const char *upload_id)
{
    int64_t id = 0;
    int rc = index_bucket_id(&index->view, bucket, &id, NULL);
    if (rc != 0) {
        return rc == ERR_NO_SUCH_BUCKET || rc == -ENOMEM ? rc : index_fail(index, rc, "bucket");
    }
    sqlite3_stmt *statement;
    rc = upload_row(index, upload_id, &statement);
    if (rc != 1) {
        return rc == 0 ? ERR_NO_SUCH_UPLOAD : rc;
    }
    bool same = sqlite3_column_int64(statement, 0) == id;
    if (same && key->len > 0) {
        same = sqlite3_column_bytes(statement, 1) == key->len &&
               memcmp(sqlite3_column_blob(statement, 1), key->bytes, key->len) == 0;
    }
    sqlite3_reset(statement);
    return same ? 0 : ERR_NO_SUCH_UPLOAD;
}

static sqlite3_stmt *part_statement(struct index *index, enum index_sql which, const char *upload_id)
{
    sqlite3_stmt *statement = index_statement(&index->view, which);
    if (statement != NULL) {
        index_bind_bytes(statement, 1, upload_id, strlen(upload_id));
    }
    return statement;
}

static int part_row(struct index *index, const char *upload_id, uint32_t number, sqlite3_stmt **out)
{
    *out = part_statement(index, SQL_PART_GET, upload_id);
    if (*out != NULL) {
        sqlite3_bind_int64(*out, 2, (int64_t)number);
    }
    return index_write_step(index, *out);
}

/* ---- creation and parts ------------------------------------------------------------------------------------------------ */

int index_upload_create(struct index *index, const char *bucket, const struct store_name *key,
                        const struct store_attributes *attributes, const char *upload_id, uint64_t now_ns)
{
    CHECK(index->in_transaction);
    CHECK(key->len >= 1 && key->len <= STORE_KEY_MAX);
    int64_t id = 0;
    int rc = index_bucket_id(&index->view, bucket, &id, NULL);
    if (rc != 0) {
        return rc == ERR_NO_SUCH_BUCKET || rc == -ENOMEM ? rc : index_fail(index, rc, "bucket");
    }
    sqlite3_stmt *statement = index_statement(&index->view, SQL_UPLOAD_INSERT);
    if (statement != NULL) {
        index_bind_bytes(statement, 1, upload_id, strlen(upload_id));
        sqlite3_bind_int64(statement, 2, id);
        index_bind_bytes(statement, 3, key->bytes, key->len);
        sqlite3_bind_int64(statement, 4, (int64_t)now_ns);
        index_bind_text(statement, 5, attributes != NULL ? attributes->etag : "");
        index_bind_text(statement, 6, attributes != NULL ? attributes->checksum : "");
        index_bind_bytes(statement, 7, attributes != NULL ? attributes->meta : NULL,
                         attributes != NULL ? attributes->meta_len : 0);
    }
    rc = index_write_step(index, statement);
    if (rc == 0) {
        index->now.uploads++;
    }
    return rc;
}

/* Size of the part that is there and index->old; both zero when there is none. */
static int part_find(struct index *index, const char *upload_id, uint32_t number, uint64_t *size)
{
    sqlite3_stmt *statement;
    *size = 0;
    index->old.len = 0;
    int rc = part_row(index, upload_id, number, &statement);
    if (rc != 1) {
        return rc;
    }
    *size = (uint64_t)sqlite3_column_int64(statement, 0);
    rc = index_take_pieces(index, statement, 4, &index->old);
    sqlite3_reset(statement);
    return rc;
}

static int upload_touch(struct index *index, const char *upload_id, uint64_t now_ns)
{
    sqlite3_stmt *statement = part_statement(index, SQL_UPLOAD_TOUCH, upload_id);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 2, (int64_t)now_ns);
    }
    return index_write_step(index, statement);
}

/* Replaces the part with what index->pieces lists. */
static int part_write(struct index *index, const char *upload_id, uint32_t number,
                      const struct index_put *put, uint64_t old_size, struct index_freed *freed)
{
    int rc = index_drop_pieces(index, &index->old, freed);
    if (rc != 0) {
        return rc;
    }
    sqlite3_stmt *statement = part_statement(index, SQL_PART_SET, upload_id);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 2, (int64_t)number);
        sqlite3_bind_int64(statement, 3, (int64_t)put->size);
        sqlite3_bind_int64(statement, 4, (int64_t)put->modified_ns);
        if (put->crc32c_known) {
            sqlite3_bind_int64(statement, 5, (int64_t)put->crc32c);
        }
        index_bind_text(statement, 6, put->attributes->etag);
        index_bind_text(statement, 7, put->attributes->checksum);
        index_bind_bytes(statement, 8, index->pieces.data, index->pieces.len);
    }
    rc = index_write_step(index, statement);
    rc = rc != 0 ? rc : upload_touch(index, upload_id, put->modified_ns);
    if (rc == 0) {
        index->now.upload_bytes += put->size - old_size;
    }
    return rc;
}

int index_part_put(struct index *index, const char *upload_id, uint32_t number, const struct index_put *put,
                   struct index_freed *freed)
{
    CHECK(index->in_transaction);
    CHECK(number >= 1 && number <= STORE_PART_MAX);
    uint64_t old_size = 0;
    int rc = upload_find(index, put->bucket, put->key, upload_id);
    rc = rc != 0 ? rc : part_find(index, upload_id, number, &old_size);
    rc = rc != 0 ? rc : index_put_pieces(index, put);
    return rc != 0 ? rc : part_write(index, upload_id, number, put, old_size, freed);
}

int index_part_copy(struct index *index, const char *upload_id, uint32_t number, const struct index_put *put,
                    const struct store_object *source, uint64_t offset, uint64_t len,
                    struct index_freed *freed)
{
    CHECK(index->in_transaction);
    CHECK(number >= 1 && number <= STORE_PART_MAX);
    uint64_t old_size = 0;
    int rc = upload_find(index, put->bucket, put->key, upload_id);
    rc = rc != 0 ? rc : part_find(index, upload_id, number, &old_size);
    rc = rc != 0 ? rc : index_copy_pieces(index, source, offset, len);
    rc = rc != 0 ? rc : index_refer_pieces(index);
    if (rc != 0) {
        return rc;
    }
    struct index_put made = *put;
    made.size = len;
    made.crc32c_known = offset == 0 && len == source->size && source->crc32c_known;
    made.crc32c = made.crc32c_known ? source->crc32c : 0;
    return part_write(index, upload_id, number, &made, old_size, freed);
}

/* ---- completion --------------------------------------------------------------------------------------------------------- */

/* Compares a part that is there with what the client named. */
static int part_matches(sqlite3_stmt *statement, const struct store_part_ref *ref)
{
    char etag[STORE_ETAG_MAX + 1];
    char checksum[STORE_CHECKSUMS_MAX + 1];
    if (!index_column_text(statement, 2, etag, STORE_ETAG_MAX) ||
        !index_column_text(statement, 3, checksum, STORE_CHECKSUMS_MAX)) {
        return ERR_CORRUPT;
    }
    if (ref->etag[0] != '\0' && strcmp(ref->etag, etag) != 0) {
        return ERR_INVALID_PART;
    }
    if ((ref->is_checksum_exact || ref->checksum[0] != '\0') && strcmp(ref->checksum, checksum) != 0) {
        return ERR_INVALID_PART;
    }
    return 0;
}

/* Adds one part to what is being completed: its pieces, its place, its share of size and checksum. */
static int complete_add(struct index *index, sqlite3_stmt *statement, const struct store_part_ref *ref,
                        struct index_put *put)
{
    int rc = part_matches(statement, ref);
    if (rc != 0) {
        return rc == ERR_CORRUPT ? index_fail(index, rc, "part row") : rc;
    }
    uint64_t size = (uint64_t)sqlite3_column_int64(statement, 0);
    if (sqlite3_column_type(statement, 1) == SQLITE_NULL) {
        put->crc32c_known = false;
    } else {
        put->crc32c = crc32c_combine(put->crc32c, (uint32_t)sqlite3_column_int64(statement, 1), size);
    }
    put->size += size;
    rc = index_take_pieces(index, statement, 4, &index->old);
    rc = rc != 0 ? rc : index_bytes_append(&index->pieces, index->old.data, index->old.len);
    return rc != 0 ? rc : index_parts_append(&index->parts, ref->number, size, ref->payload);
}

/* Makes index->pieces and index->parts from the parts named; changes nothing in the database. */
static int complete_gather(struct index *index, const char *upload_id, struct index_put *put,
                           const struct store_part_ref *parts, uint32_t part_count, uint64_t part_size_min)
{
    index->pieces.len = 0;
    index->parts.len = 0;
    put->size = 0;
    put->crc32c = 0;
    put->crc32c_known = true;
    if (part_count == 0) {
        return ERR_INVALID_PART;
    }
    for (uint32_t i = 1; i < part_count; i++) {
        if (parts[i].number <= parts[i - 1].number) {
            return ERR_INVALID_PART_ORDER;
        }
    }
    for (uint32_t i = 0; i < part_count; i++) {
        sqlite3_stmt *statement;
        int rc = part_row(index, upload_id, parts[i].number, &statement);
        if (rc != 1) {
            return rc == 0 ? ERR_INVALID_PART : rc;
        }
        uint64_t size =
            parts[i].payload != 0 ? parts[i].payload : (uint64_t)sqlite3_column_int64(statement, 0);
        rc = complete_add(index, statement, &parts[i], put);
        sqlite3_reset(statement);
        if (rc == 0 && size < part_size_min && i + 1 < part_count) {
            rc = ERR_PART_TOO_SMALL;
        }
        if (rc != 0) {
            return rc;
        }
    }
    if (!put->crc32c_known) {
        put->crc32c = 0;
    }
    return 0;
}

/* Frees the parts that `parts` (ascending) does not name; with part_count 0 all of them. Then all part rows and the upload
 * go. The sum of what the parts held leaves the counters. */
static int upload_end(struct index *index, const char *upload_id, const struct store_part_ref *parts,
                      uint32_t part_count, struct index_freed *freed)
{
    uint32_t next = 0;
    int rc;
    sqlite3_stmt *walk = part_statement(index, SQL_PART_WALK, upload_id);
    while ((rc = index_write_step(index, walk)) == 1) {
        uint32_t number = (uint32_t)sqlite3_column_int64(walk, 0);
        index->now.upload_bytes -= (uint64_t)sqlite3_column_int64(walk, 1);
        while (next < part_count && parts[next].number < number) {
            next++;
        }
        if (next < part_count && parts[next].number == number) {
            continue;
        }
        rc = index_take_pieces(index, walk, 2, &index->old);
        rc = rc != 0 ? rc : index_drop_pieces(index, &index->old, freed);
        if (rc != 0) {
            sqlite3_reset(walk);
            return rc;
        }
    }
    rc = rc != 0 ? rc : index_write_step(index, part_statement(index, SQL_PART_DELETE_ALL, upload_id));
    rc = rc != 0 ? rc : index_write_step(index, part_statement(index, SQL_UPLOAD_DELETE, upload_id));
    if (rc == 0) {
        index->now.uploads--;
    }
    return rc;
}

/* The headers of the object were given when the upload was created. */
static int upload_meta(struct index *index, const char *upload_id, struct store_attributes *attributes)
{
    sqlite3_stmt *statement;
    int rc = upload_row(index, upload_id, &statement);
    if (rc != 1) {
        return rc == 0 ? ERR_NO_SUCH_UPLOAD : rc;
    }
    int len = sqlite3_column_bytes(statement, 5);
    if (len <= (int)STORE_META_MAX) {
        attributes->meta_len = (uint16_t)len;
        memcpy(attributes->meta, len > 0 ? sqlite3_column_blob(statement, 5) : "", (size_t)len);
        rc = 0;
    } else {
        rc = index_fail(index, ERR_CORRUPT, "upload row");
    }
    sqlite3_reset(statement);
    return rc;
}

int index_upload_complete(struct index *index, const char *upload_id, struct index_put *put,
                          const struct store_part_ref *parts, uint32_t part_count, uint64_t part_size_min,
                          struct index_freed *freed)
{
    CHECK(index->in_transaction);
    struct index_found found;
    struct store_attributes attributes = *put->attributes;
    int rc = upload_find(index, put->bucket, put->key, upload_id);
    rc = rc != 0 ? rc : upload_meta(index, upload_id, &attributes);
    rc = rc != 0 ? rc : complete_gather(index, upload_id, put, parts, part_count, part_size_min);
    rc = rc != 0 ? rc : index_object_find(index, put->bucket, put->key, &found);
    rc = rc != 0 ? rc : index_check_condition(put->condition, &found);
    /* From here on rows change. index->old holds the replaced object's pieces until upload_end takes it for its own. */
    rc = rc != 0 ? rc : index_drop_pieces(index, &index->old, freed);
    rc = rc != 0 ? rc : upload_end(index, upload_id, parts, part_count, freed);
    if (rc != 0) {
        return rc;
    }
    struct index_put made = *put;
    made.attributes = &attributes;
    return index_object_write(index, &found, &made);
}

int index_upload_abort(struct index *index, const char *bucket, const struct store_name *key,
                       const char *upload_id, struct index_freed *freed)
{
    CHECK(index->in_transaction);
    static const struct store_part_ref none[1];
    int rc = upload_find(index, bucket, key, upload_id);
    return rc != 0 ? rc : upload_end(index, upload_id, none, 0, freed);
}

int index_upload_oldest(struct index *index, uint64_t before_ns, char bucket[STORE_BUCKET_MAX + 1],
                        struct store_name *key, char upload_id[STORE_UPLOAD_ID_MAX + 1])
{
    sqlite3_stmt *statement = index_statement(&index->view, SQL_UPLOAD_OLDEST);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)before_ns);
    }
    int rc = index_write_step(index, statement);
    if (rc != 1) {
        return rc == 0 ? -ENOENT : rc;
    }
    int len = sqlite3_column_bytes(statement, 1);
    bool good = len >= 1 && len <= (int)STORE_KEY_MAX &&
                index_column_text(statement, 0, bucket, STORE_BUCKET_MAX) &&
                index_column_text(statement, 2, upload_id, STORE_UPLOAD_ID_MAX);
    if (good) {
        key->len = (uint16_t)len;
        memcpy(key->bytes, sqlite3_column_blob(statement, 1), (size_t)len);
    }
    sqlite3_reset(statement);
    return good ? 0 : index_fail(index, ERR_CORRUPT, "upload row");
}
