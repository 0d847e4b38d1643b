/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_int: what the files of the index share: the connection with its prepared statements, the mapping of SQLite's
 * results, and the packed forms of piece and part lists. Only index*.c, recover.c and tests include it.
 */
#ifndef STORAGE_INDEX_INT_H
#define STORAGE_INDEX_INT_H

#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "storage/index.h"

/* Every statement there is. The texts are in index_sql.c, in this order. */
enum index_sql {
    SQL_BEGIN_WRITE,
    SQL_BEGIN_READ,
    SQL_COMMIT,
    SQL_ROLLBACK,
    SQL_BUCKET_GET,
    SQL_BUCKET_INSERT,
    SQL_BUCKET_DELETE,
    SQL_BUCKET_HAS_OBJECT,
    SQL_BUCKET_HAS_UPLOAD,
    SQL_OBJECT_HEAD,
    SQL_OBJECT_GET,
    SQL_OBJECT_SET,
    SQL_OBJECT_DELETE,
    SQL_EXTENT_INSERT,
    SQL_EXTENT_GET,
    SQL_EXTENT_LOAD,
    SQL_EXTENT_REFER,
    SQL_EXTENT_DELETE,
    SQL_EXTENT_MAX,
    SQL_EXTENT_FROM,
    SQL_EXTENT_WALK,
    SQL_EXTENT_WALK_CHECKSUMS,
    SQL_PENDING_OF_OWNER,
    SQL_PENDING_TO_LIVE,
    SQL_PENDING_DELETE_OWNER,
    SQL_PENDING_DELETE_SOME,
    SQL_UPLOAD_GET,
    SQL_UPLOAD_INSERT,
    SQL_UPLOAD_TOUCH,
    SQL_UPLOAD_DELETE,
    SQL_UPLOAD_OLDEST,
    SQL_PART_GET,
    SQL_PART_SET,
    SQL_PART_WALK,
    SQL_PART_DELETE_ALL,
    SQL_COUNTERS_GET,
    SQL_COUNTERS_SET,
    SQL_IDENTITY_GET,
    SQL_FREE_PAGES,
    SQL_LIST_BUCKETS,
    SQL_LIST_OBJECTS,
    SQL_LIST_UPLOADS,
    SQL_LIST_PARTS,
    SQL_VERIFY_OBJECTS,
    SQL_VERIFY_UPLOADS,
    SQL_VERIFY_PARTS,
    SQL_VERIFY_DATABASE,
    SQL_COUNT
};
extern const char *const index_sql_texts[SQL_COUNT];
extern const char *const index_schema;

/* An extent of 1 GiB that begins inside a checksum block touches one block more. */
#define INDEX_CHECKSUMS_MAX ((uint32_t)(STORE_EXTENT_MAX / OBJECT_CHECKSUM_BLOCK) + 1U)

/* A connection with statements; prepared on first use and kept. */
struct index_view {
    sqlite3 *db;
    uint32_t *checksums; /* of the extent last handed out by a walk; INDEX_CHECKSUMS_MAX, made on first use */
    sqlite3_stmt *statements[SQL_COUNT];
    bool in_transaction;
};

/* A piece list as stored: 16 bytes each, little endian: extent id u64, start u32, length u32. */
#define INDEX_PIECE_SIZE 16U
struct index_piece {
    uint64_t extent_id;
    uint32_t start;
    uint32_t length;
};
/* A part list as stored: 12 bytes each, little endian: number u32, length u64. A part whose payload has another length
 * than its stored bytes is followed by a record with the flag in its number: that length. */
#define INDEX_PART_SIZE 12U
#define INDEX_PART_PAYLOAD 0x80000000U
struct index_part {
    uint32_t number;
    uint64_t length;
};

/* Bytes that grow. */
struct index_bytes {
    uint8_t *data;
    size_t len;
    size_t capacity;
};

struct index {
    struct index_view view; /* must be first */
    struct index_options options;
    char dir[4096];
    char vfs[64];
    char reserve_path[4200];
    bool in_transaction;
    bool reserve_spent;
    _Atomic int failed;
    uint64_t next_extent_id;
    uint64_t page_size;
    int log_frames;     /* pages in the log after the last commit */
    int log_frames_due; /* at which the log is written back */
    bool limit_set;     /* the page limit in force, so that it is not set again for each transaction */
    bool limit_with_reserve;
    struct index_counters now;                                     /* as of the open transaction */
    struct index_counters saved;                                   /* as of its begin */
    _Atomic uint64_t objects, object_bytes, uploads, upload_bytes; /* published */
    _Atomic uint64_t size_bytes;                                   /* published */
    struct index_bytes pieces;                                     /* scratch: the piece list being made */
    struct index_bytes parts;                                      /* scratch: the part list being made */
    struct index_bytes old; /* scratch: the piece list of what is replaced */
    char error[256];
};

int index_view_init(struct index_view *view, const struct index_options *options, bool read_only,
                    struct err *err);
void index_view_fini(struct index_view *view);

/* The statement, reset and without bindings; NULL after a failure to prepare. */
sqlite3_stmt *index_statement(struct index_view *view, enum index_sql which);
/* SQLITE_ROW, SQLITE_DONE -> 1, 0; else a negative code by index_map. The statement is reset unless a row is there. */
int index_step(struct index_view *view, sqlite3_stmt *statement);
int index_map(sqlite3 *db, int rc);
/* index_step for the writer: a failure that is not -ENOSPC or -ENOMEM makes the index failed. 1 row, 0 done, negative. */
int index_write_step(struct index *index, sqlite3_stmt *statement);
int index_fail(struct index *index, int code, const char *what);

/* Binding of bytes that stay valid until the statement is reset; an empty string stays an empty BLOB, not NULL. */
void index_bind_bytes(sqlite3_stmt *statement, int at, const void *bytes, size_t len);
void index_bind_text(sqlite3_stmt *statement, int at, const char *text);
/* Copies a text column into to[max + 1]; false when it does not fit. */
bool index_column_text(sqlite3_stmt *statement, int at, char *to, size_t max);

int index_bytes_append(struct index_bytes *bytes, const void *data, size_t len);
int index_pieces_append(struct index_bytes *bytes, const struct index_piece *piece);
void index_piece_get(const uint8_t *at, struct index_piece *out);
void index_part_get(const uint8_t *at, struct index_part *out);
/* Fills an extent from columns first.. : device, offset, phase, length, checksums (NULL checksums: none). ERR_CORRUPT when
 * impossible. Checksums are borrowed until the statement moves, and may be unaligned: `raw` points at them. */
int index_extent_column(sqlite3_stmt *statement, int first, struct object_extent *out, const uint8_t **raw);

/* ---- shared by index_change.c and index_upload.c ------------------------------------------------------------------ */

/* What a put meets under its key. */
struct index_found {
    int64_t bucket;
    bool exists;
    uint64_t size;
    char etag[STORE_ETAG_MAX + 1];
};
/* Fills `found` and index->old (the piece list of what is there). */
int index_object_find(struct index *index, const char *bucket, const struct store_name *key,
                      struct index_found *found);
int index_check_condition(const struct store_condition *condition, const struct index_found *found);
/* Writes the object row over whatever is there, with index->pieces and index->parts as its lists. */
int index_object_write(struct index *index, const struct index_found *found, const struct index_put *put);
/* `payload` 0: as long as it is stored. */
int index_parts_append(struct index_bytes *bytes, uint32_t number, uint64_t length, uint64_t payload);
/* Makes index->pieces: what was pending under the owner, then the new extents; all of them become live. */
int index_put_pieces(struct index *index, const struct index_put *put);
/* Makes index->pieces: the range of a looked-up object. -ESTALE when an extent has gone since. Changes nothing. */
int index_copy_pieces(struct index *index, const struct store_object *source, uint64_t offset, uint64_t len);
/* One reference more for each of index->pieces. */
int index_refer_pieces(struct index *index);
int index_drop_pieces(struct index *index, const struct index_bytes *pieces, struct index_freed *freed);
/* Copies a column that holds a piece list. */
int index_take_pieces(struct index *index, sqlite3_stmt *statement, int column, struct index_bytes *to);

/* The bucket's id: 0 or ERR_NO_SUCH_BUCKET or a failure. */
int index_bucket_id(struct index_view *view, const char *name, int64_t *id, uint64_t *created_ns);

#endif
