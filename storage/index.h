/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index: what is stored where, in one SQLite database (`index.db` in the data directory; FORMAT.md has the schema).
 *
 * Two kinds of connection. `struct index` is the one writer and belongs to the committer's thread. A `struct index_view`
 * reads on a thread of its own and sees whole transactions only. Statements are prepared once; no SQL is made from input.
 *
 * Keys are BLOBs of 1 .. 1,024 bytes and sort by memcmp. Lengths and structures found in the database are checked, never
 * trusted: what cannot be is ERR_CORRUPT.
 *
 * Errors of the writer: -ENOSPC (size limit or file system full: the transaction was rolled back, reads and deletes go
 * on); anything else of SQLite is an index failure: index_failed() stays nonzero, every later begin and commit fails,
 * because what reached the disk is unknown (a failed sync is never retried as if it had worked).
 *
 * Must not: touch devices, know epochs, answer anybody.
 */
#ifndef STORAGE_INDEX_H
#define STORAGE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/object.h"
#include "storage/store.h"

#define INDEX_STORE_ID_SIZE 16U
#define INDEX_FORMAT_VERSION 1U
#define INDEX_FILE "index.db"

struct index;
struct index_view;

struct index_options {
    const char *dir;
    const char *vfs; /* SQLite VFS to use; NULL: the system's. The crash simulator has its own. */
    uint8_t store_id[INDEX_STORE_ID_SIZE];
    uint64_t size_max;   /* bytes of index.db; 0: the file system's limit only */
    uint64_t reserve;    /* bytes kept on the file system so that deletes always work; 0: none */
    uint64_t cache_size; /* bytes of page cache per connection; 0: 16 MiB */
    /* log pages after which they are written back; 0: 4096 (16 MiB). The log is bounded by 4 times that. */
    uint32_t log_pages;
    bool skip_sync; /* negative control of the crash tests: synchronous=OFF. Never in production. */
};

/* Makes a new, empty index (an old one is removed) and syncs file and directory. */
int index_create(const struct index_options *options, struct err *err);
/* Syncs what a crashed process may have left in the page cache only, then opens. ERR_FOREIGN_STORE when the store id
 * differs, ERR_VERSION for a newer format, -ENOENT when there is none. */
int index_open(const struct index_options *options, struct index **out, struct err *err);
void index_close(struct index *index);
/* 0, or the code of the failure that made this index unusable for writing. Any thread. */
int index_failed(const struct index *index);
/* Sentence of the last error; valid until the next call on this index. */
const char *index_error_text(const struct index *index);

/* ---- transactions ----------------------------------------------------------------------------------------------- */

/* `may_use_reserve`: the transaction only frees (deletes, aborts). */
int index_begin(struct index *index, bool may_use_reserve);
/* Durable when it returns 0. On failure everything since begin is undone (or, after an index failure, unknown). */
int index_commit(struct index *index);
void index_rollback(struct index *index);
/* A transaction met -ENOSPC: gives the log's blocks back to the file system, with the reserve's help, and makes the reserve whole
 * again. True: try once more: there is room, or the transaction may use the reserve, which is then spent. False: the file system is
 * not what is full, or it stays full. */
bool index_make_room(struct index *index, bool may_use_reserve);
/* A freeing transaction met -ENOSPC: gives up the reserve so that it can be tried again; false: nothing left to give. Other
 * transactions get -ENOSPC from index_begin until the reserve is whole again (index_checkpoint_if_due tries). */
bool index_reserve_spend(struct index *index);
/* Writes log pages back when the log has grown beyond its bound; call between transactions. Costs two syncs then. */
int index_checkpoint_if_due(struct index *index);
uint64_t index_size_bytes(const struct index *index); /* database and log; any thread */

struct index_counters {
    uint64_t objects, object_bytes; /* visible objects */
    uint64_t uploads, upload_bytes; /* open multipart uploads and their parts */
};
void index_counters(const struct index *index,
                    struct index_counters *out); /* after the last commit; any thread */

/* Space that a transaction freed; the caller hands it on after index_commit and not before. Grows by itself. */
struct index_freed {
    struct object_space *spaces;
    uint32_t count;
    uint32_t capacity;
};
int index_freed_add(struct index_freed *freed, const struct object_extent *extent); /* 0 or -ENOMEM */
void index_freed_clear(struct index_freed *freed);                                  /* keeps the memory */
void index_freed_close(struct index_freed *freed);

/* ---- changes: all inside a transaction. Conditions are checked before the first change, so a project code, -ENOENT or
 * -ESTALE leaves the transaction as it was; other errors demand index_rollback. */

int index_bucket_create(struct index *index, const char *name, uint64_t now_ns);
int index_bucket_delete(struct index *index, const char *name);

/* What a put, part, copy or completion stores. */
struct index_put {
    const char *bucket;
    const struct store_name *key;
    uint64_t size; /* bytes */
    uint64_t modified_ns;
    uint32_t crc32c;
    bool crc32c_known;
    const struct store_attributes *attributes;
    const struct store_condition *condition; /* NULL: none */
    uint64_t owner;                      /* pending extents recorded under this owner come first; 0: none */
    const struct object_extent *extents; /* then these, not recorded so far */
    uint32_t extent_count;
};
int index_object_put(struct index *index, const struct index_put *put, struct index_freed *freed);
int index_object_delete(struct index *index, const char *bucket, const struct store_name *key, bool *existed,
                        struct index_freed *freed);
/* Metadata only: [offset, offset + len) of `source` becomes the object named by `put` (owner and extents unused).
 * -ESTALE: the source was overwritten since its lookup and its extents are gone: look it up again. */
int index_object_copy(struct index *index, const struct index_put *put, const struct store_object *source,
                      uint64_t offset, uint64_t len, struct index_freed *freed);

/* Records extents of a running upload under `owner` (not 0), after those recorded before. */
int index_pending_add(struct index *index, uint64_t owner, const struct object_extent *extents,
                      uint32_t count);
/* Drops the pending extents of `owner`. */
int index_pending_drop(struct index *index, uint64_t owner, struct index_freed *freed);
/* Drops at most `max` pending extents of any owner (recovery); *dropped says how many. */
int index_pending_drop_all(struct index *index, uint32_t max, uint32_t *dropped);

int index_upload_create(struct index *index, const char *bucket, const struct store_name *key,
                        const struct store_attributes *attributes, const char *upload_id, uint64_t now_ns);
int index_upload_abort(struct index *index, const char *bucket, const struct store_name *key,
                       const char *upload_id, struct index_freed *freed);
/* put->bucket and key must be the upload's; put->condition is unused. */
int index_part_put(struct index *index, const char *upload_id, uint32_t number, const struct index_put *put,
                   struct index_freed *freed);
int index_part_copy(struct index *index, const char *upload_id, uint32_t number, const struct index_put *put,
                    const struct store_object *source, uint64_t offset, uint64_t len,
                    struct index_freed *freed);
/* The parts named become the object; parts not named are freed. put->attributes gives the ETag and checksum; meta comes
 * from the upload. put->size, crc32c are filled in. `part_size_min` (bytes) applies to all but the last. */
int index_upload_complete(struct index *index, const char *upload_id, struct index_put *put,
                          const struct store_part_ref *parts, uint32_t part_count, uint64_t part_size_min,
                          struct index_freed *freed);
/* An upload that nobody has touched since `before_ns`: its bucket, key and id; -ENOENT when there is none. */
int index_upload_oldest(struct index *index, uint64_t before_ns, char bucket[STORE_BUCKET_MAX + 1],
                        struct store_name *key, char upload_id[STORE_UPLOAD_ID_MAX + 1]);

/* ---- recovery and scrub: walks in id order ------------------------------------------------------------------------ */

struct index_extent_row {
    uint64_t id;
    uint32_t references;         /* 0: pending */
    struct object_extent extent; /* checksums borrowed until the next call */
};

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* The writer's own connection as a view: on the writer's thread, outside a transaction. */
struct index_view *index_own_view(struct index *index);
int index_view_open(const struct index_options *options, struct index_view **out, struct err *err);
void index_view_close(struct index_view *view);

/* The first extent with an id of at least `from_id`; -ENOENT after the last. Each call is its own snapshot. */
int index_view_extent(struct index_view *view, uint64_t from_id, struct index_extent_row *out);
/* Calls fn for every extent in one snapshot, without checksums when with_checksums is false; stops when fn returns nonzero
 * and returns that. */
int index_view_extents(struct index_view *view, bool with_checksums,
                       int (*fn)(void *ctx, const struct index_extent_row *row), void *ctx);
/* Whole-index check (slow): reference counts equal the references, pieces lie inside their extents, sizes add up,
 * counters are right, SQLite's own integrity check passes. ERR_CORRUPT and a sentence on the first fault. */
int index_view_verify(struct index_view *view, struct err *err);

int index_view_bucket(struct index_view *view, const char *bucket, uint64_t *created_ns);
/* ERR_NO_SUCH_BUCKET, ERR_NO_SUCH_KEY, -ENOMEM. The object's epoch is left 0: pin before calling. */
int index_view_object(struct index_view *view, const char *bucket, const struct store_name *key,
                      struct store_object **out);
int index_view_upload(struct index_view *view, const char *bucket, const struct store_name *key,
                      const char *upload_id, struct store_attributes *attributes_or_null,
                      uint64_t *created_ns);

/* A list being made, in slices. What is listed is fixed at begin; `after` moves with each slice, so nothing is held
 * between slices. */
enum index_list_kind { INDEX_LIST_BUCKETS, INDEX_LIST_OBJECTS, INDEX_LIST_UPLOADS, INDEX_LIST_PARTS };
struct index_list_request {
    enum index_list_kind kind;
    const char *bucket;                       /* objects, uploads */
    const char *upload_id;                    /* parts */
    const struct store_list_options *options; /* NULL: all defaults, at most 1,000 entries */
};
struct index_list; /* builder */
int index_list_begin(const struct index_list_request *request, struct index_list **out);
/* Examines at most rows_max rows. 0: more to do; 1: done, take the result; negative: failed. */
int index_list_step(struct index_list *list, struct index_view *view, uint32_t rows_max);
/* The finished list; the builder ends. */
struct store_list *index_list_take(struct index_list *list);
void index_list_abandon(struct index_list *list);

#endif
