/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_sql: the schema and every statement of the index. FORMAT.md explains the tables; a change here changes it and
 * INDEX_FORMAT_VERSION.
 */
#include "storage/index_int.h"

#include <stddef.h>

const char *const index_schema =
    "CREATE TABLE identity(one INTEGER PRIMARY KEY CHECK(one=1), format INTEGER NOT NULL, store_id BLOB NOT "
    "NULL);"
    "CREATE TABLE counters(one INTEGER PRIMARY KEY CHECK(one=1), objects INTEGER NOT NULL, object_bytes "
    "INTEGER NOT NULL,"
    " uploads INTEGER NOT NULL, upload_bytes INTEGER NOT NULL);"
    "INSERT INTO counters VALUES(1,0,0,0,0);"
    "CREATE TABLE buckets(id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, created_ns INTEGER NOT NULL);"
    /* Small columns first: a list reads them without following a long row's overflow pages. */
    "CREATE TABLE objects(bucket INTEGER NOT NULL, key BLOB NOT NULL, size INTEGER NOT NULL, modified_ns "
    "INTEGER NOT NULL,"
    " crc32c INTEGER, etag TEXT NOT NULL, checksum TEXT NOT NULL, meta BLOB NOT NULL, parts BLOB NOT NULL,"
    " pieces BLOB NOT NULL, PRIMARY KEY(bucket, key)) WITHOUT ROWID;"
    /* Small columns first for the pass at start, which must not read checksums. */
    "CREATE TABLE extents(id INTEGER PRIMARY KEY, refs INTEGER NOT NULL, owner INTEGER NOT NULL, device "
    "INTEGER NOT NULL,"
    " offset INTEGER NOT NULL, phase INTEGER NOT NULL, length INTEGER NOT NULL, checksums BLOB NOT NULL);"
    "CREATE INDEX extents_pending ON extents(owner, id) WHERE refs=0;"
    "CREATE TABLE uploads(id BLOB NOT NULL PRIMARY KEY, bucket INTEGER NOT NULL, key BLOB NOT NULL,"
    " created_ns INTEGER NOT NULL, touched_ns INTEGER NOT NULL, etag TEXT NOT NULL, checksum TEXT NOT NULL,"
    " meta BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX uploads_by_key ON uploads(bucket, key, id);"
    "CREATE INDEX uploads_by_touch ON uploads(touched_ns);"
    "CREATE TABLE parts(upload BLOB NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, modified_ns "
    "INTEGER NOT NULL,"
    " crc32c INTEGER, etag TEXT NOT NULL, checksum TEXT NOT NULL, pieces BLOB NOT NULL,"
    " PRIMARY KEY(upload, number)) WITHOUT ROWID;";

const char *const index_sql_texts[SQL_COUNT] = {
    [SQL_BEGIN_WRITE] = "BEGIN IMMEDIATE",
    [SQL_BEGIN_READ] = "BEGIN",
    [SQL_COMMIT] = "COMMIT",
    [SQL_ROLLBACK] = "ROLLBACK",

    [SQL_BUCKET_GET] = "SELECT id, created_ns FROM buckets WHERE name=?1",
    [SQL_BUCKET_INSERT] = "INSERT INTO buckets(name, created_ns) VALUES(?1, ?2)",
    [SQL_BUCKET_DELETE] = "DELETE FROM buckets WHERE id=?1",
    [SQL_BUCKET_HAS_OBJECT] = "SELECT 1 FROM objects WHERE bucket=?1 LIMIT 1",
    [SQL_BUCKET_HAS_UPLOAD] = "SELECT 1 FROM uploads WHERE bucket=?1 LIMIT 1",

    [SQL_OBJECT_HEAD] = "SELECT size, etag, pieces FROM objects WHERE bucket=?1 AND key=?2",
    [SQL_OBJECT_GET] = "SELECT size, modified_ns, crc32c, etag, checksum, meta, parts, pieces FROM objects"
                       " WHERE bucket=?1 AND key=?2",
    [SQL_OBJECT_SET] =
        "INSERT OR REPLACE INTO objects(bucket, key, size, modified_ns, crc32c, etag, checksum, meta, parts,"
        " pieces) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    [SQL_OBJECT_DELETE] = "DELETE FROM objects WHERE bucket=?1 AND key=?2",

    [SQL_EXTENT_INSERT] = "INSERT INTO extents(id, refs, owner, device, offset, phase, length, checksums)"
                          " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    [SQL_EXTENT_GET] = "SELECT refs, device, offset, phase, length FROM extents WHERE id=?1",
    [SQL_EXTENT_LOAD] = "SELECT device, offset, phase, length, checksums FROM extents WHERE id=?1",
    [SQL_EXTENT_REFER] = "UPDATE extents SET refs=refs+?2 WHERE id=?1",
    [SQL_EXTENT_DELETE] = "DELETE FROM extents WHERE id=?1",
    [SQL_EXTENT_MAX] = "SELECT max(id) FROM extents",
    [SQL_EXTENT_FROM] = "SELECT id, refs, device, offset, phase, length, checksums FROM extents WHERE id>=?1"
                        " ORDER BY id LIMIT 1",
    [SQL_EXTENT_WALK] = "SELECT id, refs, device, offset, phase, length FROM extents ORDER BY id",
    [SQL_EXTENT_WALK_CHECKSUMS] =
        "SELECT id, refs, device, offset, phase, length, checksums FROM extents ORDER BY id",

    [SQL_PENDING_OF_OWNER] =
        "SELECT id, device, offset, phase, length FROM extents WHERE refs=0 AND owner=?1 ORDER BY id",
    [SQL_PENDING_TO_LIVE] = "UPDATE extents SET refs=1, owner=0 WHERE refs=0 AND owner=?1",
    [SQL_PENDING_DELETE_OWNER] = "DELETE FROM extents WHERE refs=0 AND owner=?1",
    [SQL_PENDING_DELETE_SOME] =
        "DELETE FROM extents WHERE id IN (SELECT id FROM extents WHERE refs=0 LIMIT ?1)",

    [SQL_UPLOAD_GET] = "SELECT bucket, key, created_ns, etag, checksum, meta FROM uploads WHERE id=?1",
    [SQL_UPLOAD_INSERT] = "INSERT INTO uploads(id, bucket, key, created_ns, touched_ns, etag, checksum, meta)"
                          " VALUES(?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7)",
    [SQL_UPLOAD_TOUCH] = "UPDATE uploads SET touched_ns=?2 WHERE id=?1",
    [SQL_UPLOAD_DELETE] = "DELETE FROM uploads WHERE id=?1",
    [SQL_UPLOAD_OLDEST] = "SELECT b.name, u.key, u.id FROM uploads u CROSS JOIN buckets b ON b.id=u.bucket"
                          " WHERE u.touched_ns<?1 ORDER BY u.touched_ns LIMIT 1",

    [SQL_PART_GET] = "SELECT size, crc32c, etag, checksum, pieces FROM parts WHERE upload=?1 AND number=?2",
    [SQL_PART_SET] =
        "INSERT OR REPLACE INTO parts(upload, number, size, modified_ns, crc32c, etag, checksum, pieces)"
        " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    [SQL_PART_WALK] = "SELECT number, size, pieces FROM parts WHERE upload=?1 ORDER BY number",
    [SQL_PART_DELETE_ALL] = "DELETE FROM parts WHERE upload=?1",

    [SQL_COUNTERS_GET] = "SELECT objects, object_bytes, uploads, upload_bytes FROM counters",
    [SQL_COUNTERS_SET] = "UPDATE counters SET objects=?1, object_bytes=?2, uploads=?3, upload_bytes=?4",
    [SQL_FREE_PAGES] = "PRAGMA freelist_count",
    [SQL_IDENTITY_GET] = "SELECT format, store_id FROM identity",

    [SQL_LIST_BUCKETS] = "SELECT name, created_ns FROM buckets WHERE name>=?1 ORDER BY name",
    [SQL_LIST_OBJECTS] =
        "SELECT key, size, modified_ns, etag, checksum FROM objects WHERE bucket=?1 AND key>=?2"
        " ORDER BY key",
    [SQL_LIST_UPLOADS] = "SELECT u.key, u.created_ns, u.checksum, u.id FROM uploads u WHERE u.bucket=?1"
                         " AND (u.key, u.id)>=(?2, ?3) ORDER BY u.key, u.id",
    [SQL_LIST_PARTS] =
        "SELECT number, size, modified_ns, etag, checksum FROM parts WHERE upload=?1 AND number>=?2"
        " ORDER BY number",

    [SQL_VERIFY_OBJECTS] =
        "SELECT o.size, o.pieces, b.id FROM objects o LEFT JOIN buckets b ON b.id=o.bucket",
    [SQL_VERIFY_UPLOADS] = "SELECT b.id FROM uploads u LEFT JOIN buckets b ON b.id=u.bucket",
    [SQL_VERIFY_PARTS] = "SELECT p.size, p.pieces, u.id FROM parts p LEFT JOIN uploads u ON u.id=p.upload",
    [SQL_VERIFY_DATABASE] = "PRAGMA integrity_check",
};
