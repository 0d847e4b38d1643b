/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index: the writer's connection: creation, opening, transactions, limits, and the log's bound. The changes themselves are
 * in index_change.c, reading in index_view.c and index_list.c, all SQL in index_sql.c.
 *
 * Invariants.
 * 1. After an index failure (`failed` nonzero) nothing is begun or committed by this process: what the disk holds is
 *    unknown, and a second sync may claim what the first one lost.
 * 2. Counters are published only after the transaction that changed them is durable.
 * 3. -ENOSPC never makes the index fail: SQLite has undone the transaction, and the reserve lets deletes go on.
 */
#include "storage/index_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"
#include "base/owner.h"

#define CACHE_DEFAULT (16 * MIB)
#define BUSY_TIMEOUT_MS 10000
/* Log pages after which they are written back: 16 MiB of 4 KiB pages. Beyond four times that (a reader held the log's
 * start) the writer waits for the reader, so the log is bounded. */
#define LOG_FRAMES_DUE 4096U
#define LOG_FRAMES_FACTOR 4
#define ROOM_MIN MIB /* free bytes below which the file system counts as full */
/* free pages inside the database from which on puts may borrow the reserve for the log */
#define ROOM_PAGES 256
#define RESERVE_PAGES 256 /* pages a freeing transaction may go beyond the size limit */

/* ---- statements and results --------------------------------------------------------------------------------------- */

int index_map(sqlite3 *db, int rc)
{
    switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_DONE:
    case SQLITE_ROW:
        return 0;
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return ERR_CORRUPT;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    case SQLITE_IOERR: {
        /* A full file system shows as an I/O error where SQLite grows its shared memory. A sync that failed is never
         * "full", whatever errno says: the pages it covered may be gone. */
        int system = sqlite3_system_errno(db);
        bool sync = rc == SQLITE_IOERR_FSYNC || rc == SQLITE_IOERR_DIR_FSYNC;
        return !sync && (system == ENOSPC || system == EDQUOT) ? -ENOSPC : -EIO;
    }
    default:
        return -EIO;
    }
}

sqlite3_stmt *index_statement(struct index_view *view, enum index_sql which)
{
    CHECK(which < SQL_COUNT);
    sqlite3_stmt *statement = view->statements[which];
    if (statement == NULL) {
        int rc = sqlite3_prepare_v3(view->db, index_sql_texts[which], -1, SQLITE_PREPARE_PERSISTENT,
                                    &statement, NULL);
        if (rc != SQLITE_OK) {
            return NULL;
        }
        view->statements[which] = statement;
    }
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return statement;
}

int index_step(struct index_view *view, sqlite3_stmt *statement)
{
    if (statement == NULL) {
        int code = index_map(view->db, sqlite3_extended_errcode(view->db));
        return code != 0 ? code : -EIO;
    }
    int rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW) {
        return 1;
    }
    int code = rc == SQLITE_DONE ? 0 : index_map(view->db, sqlite3_extended_errcode(view->db));
    sqlite3_reset(statement);
    CHECK(rc == SQLITE_DONE || code < 0);
    return code;
}

int index_fail(struct index *index, int code, const char *what)
{
    snprintf(index->error, sizeof(index->error), "%s: %s", what, sqlite3_errmsg(index->view.db));
    int expected = 0;
    if (atomic_compare_exchange_strong(&index->failed, &expected, code)) {
        LOG_ERR("index_failed", "what=%s code=%d why=%s", what, code, LOG_Q(sqlite3_errmsg(index->view.db)));
    }
    return code;
}

int index_write_step(struct index *index, sqlite3_stmt *statement)
{
    int rc = index_step(&index->view, statement);
    if (rc < 0 && rc != -ENOSPC && rc != -ENOMEM) {
        return index_fail(index, rc, "statement");
    }
    return rc;
}

void index_bind_bytes(sqlite3_stmt *statement, int at, const void *bytes, size_t len)
{
    int rc = sqlite3_bind_blob(statement, at, len > 0 ? bytes : "", (int)len, SQLITE_STATIC);
    CHECK(rc == SQLITE_OK);
}

void index_bind_text(sqlite3_stmt *statement, int at, const char *text)
{
    int rc = sqlite3_bind_text(statement, at, text, -1, SQLITE_STATIC);
    CHECK(rc == SQLITE_OK);
}

bool index_column_text(sqlite3_stmt *statement, int at, char *to, size_t max)
{
    const void *from = sqlite3_column_blob(statement, at);
    size_t len = (size_t)sqlite3_column_bytes(statement, at);
    if (len > max || (len > 0 && from == NULL)) {
        return false;
    }
    if (len > 0) {
        memcpy(to, from, len);
    }
    to[len] = '\0';
    return true;
}

/* ---- opening ------------------------------------------------------------------------------------------------------ */

static int set_up_connection(struct index_view *view, const struct index_options *options, bool read_only)
{
    char text[256];
    uint64_t cache = options->cache_size > 0 ? options->cache_size : CACHE_DEFAULT;
    /* Numbers only, from the configuration: nothing a client sent ever becomes SQL. */
    snprintf(text, sizeof(text),
             "PRAGMA synchronous=%s; PRAGMA cache_size=-%llu; PRAGMA temp_store=MEMORY; PRAGMA "
             "wal_autocheckpoint=0;"
             " PRAGMA query_only=%d;",
             options->skip_sync ? "OFF" : "FULL", (unsigned long long)(cache / KIB), read_only ? 1 : 0);
    int rc = sqlite3_busy_timeout(view->db, BUSY_TIMEOUT_MS);
    return rc != SQLITE_OK ? rc : sqlite3_exec(view->db, text, NULL, NULL, NULL);
}

int index_view_init(struct index_view *view, const struct index_options *options, bool read_only,
                    struct err *err)
{
    char path[4200];
    memset(view, 0, sizeof(*view));
    snprintf(path, sizeof(path), "%s/" INDEX_FILE, options->dir);
    int rc =
        sqlite3_open_v2(path, &view->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, options->vfs);
    if (rc == SQLITE_OK) {
        sqlite3_extended_result_codes(view->db, 1);
        rc = set_up_connection(view, options, read_only);
    }
    if (rc != SQLITE_OK) {
        int code = index_map(view->db, rc);
        err_set(err, code, "index %s cannot be opened: %s", path,
                view->db != NULL ? sqlite3_errmsg(view->db) : sqlite3_errstr(rc));
        sqlite3_close(view->db);
        view->db = NULL;
        return code;
    }
    return 0;
}

void index_view_fini(struct index_view *view)
{
    for (uint32_t i = 0; i < SQL_COUNT; i++) {
        sqlite3_finalize(view->statements[i]);
        view->statements[i] = NULL;
    }
    int rc = sqlite3_close(view->db);
    free(view->checksums);
    view->checksums = NULL;
    CHECK(rc == SQLITE_OK); /* SQLITE_BUSY: a statement was left out above */
    view->db = NULL;
}

/* Files are synced before SQLite reads them: a process that died between writing a commit to the log
 * and syncing it left a transaction that is readable and not durable. */
static int sync_path(const char *path, bool is_dir)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | (is_dir ? O_DIRECTORY : 0));
    if (fd < 0) {
        return -errno;
    }
    int rc = fsync(fd) != 0 ? -errno : 0;
    close(fd);
    return rc;
}

/* The same through a VFS that is not the system's (the simulator's). */
static int sync_in_vfs(const char *vfs_name, const char *path, int flags)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(vfs_name);
    if (vfs == NULL) {
        return -EINVAL;
    }
    sqlite3_file *file = calloc(1, (size_t)vfs->szOsFile);
    if (file == NULL) {
        return -ENOMEM;
    }
    int rc = vfs->xOpen(vfs, path, file, flags | SQLITE_OPEN_READWRITE, NULL);
    int synced = rc == SQLITE_OK ? file->pMethods->xSync(file, SQLITE_SYNC_FULL) : SQLITE_OK;
    if (file->pMethods != NULL) {
        file->pMethods->xClose(file);
    }
    free(file);
    return synced != SQLITE_OK ? -EIO : rc != SQLITE_OK ? -ENOENT : 0;
}

static int sync_leftover(const struct index_options *options, const char *path, bool is_log)
{
    if (options->vfs == NULL) {
        return sync_path(path, false);
    }
    return sync_in_vfs(options->vfs, path, is_log ? SQLITE_OPEN_WAL : SQLITE_OPEN_MAIN_DB);
}

static int sync_leftovers(const struct index_options *options, struct err *err)
{
    static const char *const names[] = {INDEX_FILE, INDEX_FILE "-wal"};
    char path[4200];
    for (uint32_t i = 0; i < ARRAY_COUNT(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", options->dir, names[i]);
        int rc = sync_leftover(options, path, i == 1);
        if (rc == -ENOENT && i == 0) {
            return err_set(err, rc,
                           "no index at %s: run penstock format once; if this store held objects, restore "
                           "its data_dir instead",
                           path);
        }
        if (rc != 0 && rc != -ENOENT) {
            return err_set(err, rc, "index file %s cannot be synced: %s", path, err_text(rc));
        }
    }
    int rc = options->vfs == NULL ? sync_path(options->dir, true) : 0;
    return rc == 0 ? 0
                   : err_set(err, rc, "data directory %s cannot be synced: %s", options->dir, err_text(rc));
}

static int check_identity(struct index *index, struct err *err)
{
    sqlite3_stmt *statement = index_statement(&index->view, SQL_IDENTITY_GET);
    int rc = index_step(&index->view, statement);
    if (rc <= 0) {
        return err_set(err, rc < 0 ? rc : ERR_CORRUPT, "index in %s has no identity: %s", index->dir,
                       sqlite3_errmsg(index->view.db));
    }
    int64_t format = sqlite3_column_int64(statement, 0);
    const void *id = sqlite3_column_blob(statement, 1);
    bool same = sqlite3_column_bytes(statement, 1) == (int)INDEX_STORE_ID_SIZE &&
                memcmp(id, index->options.store_id, INDEX_STORE_ID_SIZE) == 0;
    sqlite3_reset(statement);
    if (format > (int64_t)INDEX_FORMAT_VERSION || format < 1) {
        return err_set(err, ERR_VERSION, "index in %s has format %lld; this program knows up to %u",
                       index->dir, (long long)format, INDEX_FORMAT_VERSION);
    }
    return same ? 0
                : err_set(err, ERR_FOREIGN_STORE, "index in %s belongs to another store than the devices",
                          index->dir);
}

static int load_numbers(struct index *index, struct err *err)
{
    struct index_view *view = &index->view;
    sqlite3_stmt *statement = index_statement(view, SQL_COUNTERS_GET);
    int rc = index_step(view, statement);
    if (rc == 1) {
        index->now.objects = (uint64_t)sqlite3_column_int64(statement, 0);
        index->now.object_bytes = (uint64_t)sqlite3_column_int64(statement, 1);
        index->now.uploads = (uint64_t)sqlite3_column_int64(statement, 2);
        index->now.upload_bytes = (uint64_t)sqlite3_column_int64(statement, 3);
        sqlite3_reset(statement);
        statement = index_statement(view, SQL_EXTENT_MAX);
        rc = index_step(view, statement);
    }
    if (rc != 1) {
        return err_set(err, rc < 0 ? rc : ERR_CORRUPT, "index in %s cannot be read: %s", index->dir,
                       sqlite3_errmsg(view->db));
    }
    /* Ids are never used twice while the process lives, so that a looked-up object cannot name another's extent. */
    index->next_extent_id = (uint64_t)sqlite3_column_int64(statement, 0) + 1;
    sqlite3_reset(statement);
    return 0;
}

static void publish(struct index *index)
{
    atomic_store_explicit(&index->objects, index->now.objects, memory_order_relaxed);
    atomic_store_explicit(&index->object_bytes, index->now.object_bytes, memory_order_relaxed);
    atomic_store_explicit(&index->uploads, index->now.uploads, memory_order_relaxed);
    atomic_store_explicit(&index->upload_bytes, index->now.upload_bytes, memory_order_relaxed);
}

static int exec_pragma_number(sqlite3 *db, const char *text, int64_t *out)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(db, text, -1, &statement, NULL);
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(statement);
        *out = rc == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
        rc = rc == SQLITE_ROW ? SQLITE_OK : rc;
    }
    sqlite3_finalize(statement);
    return rc == SQLITE_OK ? 0 : index_map(db, sqlite3_extended_errcode(db));
}

/* Puts get size_max, freeing transactions a little more. */
static int set_page_limit(struct index *index, bool may_use_reserve)
{
    if (index->options.size_max == 0) {
        return 0;
    }
    char text[64];
    if (index->limit_set && index->limit_with_reserve == may_use_reserve) {
        return 0;
    }
    index->limit_set = true;
    index->limit_with_reserve = may_use_reserve;
    uint64_t pages = index->options.size_max / index->page_size + (may_use_reserve ? RESERVE_PAGES : 0);
    snprintf(text, sizeof(text), "PRAGMA max_page_count=%llu", (unsigned long long)pages);
    int64_t ignored; /* the limit in force: never below the pages in use */
    return exec_pragma_number(index->view.db, text, &ignored);
}

static int log_hook(void *ctx, sqlite3 *db, const char *schema, int frames)
{
    (void)db;     /* one database per connection */
    (void)schema; /* likewise */
    struct index *index = ctx;
    if (frames < index->log_frames) {
        index->log_frames_due = (int)index->options.log_pages; /* the log began anew */
    }
    index->log_frames = frames;
    return SQLITE_OK;
}

static void update_size(struct index *index)
{
    char path[4200];
    struct stat st;
    uint64_t total = 0;
    snprintf(path, sizeof(path), "%s/" INDEX_FILE, index->dir);
    total += stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    snprintf(path, sizeof(path), "%s/" INDEX_FILE "-wal", index->dir);
    total += stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    atomic_store_explicit(&index->size_bytes, total, memory_order_relaxed);
}

/* ---- the reserve: a file full of nothing that can be given up ---------------------------------------------------------- */

/* 0 when it is whole. fallocate is enough: blocks are taken, and nobody ever reads them. */
static int reserve_make(struct index *index)
{
    if (index->options.reserve == 0) {
        return 0;
    }
    int fd = owner_open(index->reserve_path, O_RDWR);
    if (fd < 0) {
        return fd;
    }
    int rc = -posix_fallocate(fd, 0, (off_t)index->options.reserve);
    if (rc != 0 && ftruncate(fd, 0) != 0) {
        rc = -errno; /* what it took stays taken; the next attempt tries again */
    }
    close(fd);
    return rc;
}

bool index_reserve_spend(struct index *index)
{
    if (index->options.reserve == 0 || index->reserve_spent) {
        return false;
    }
    if (truncate(index->reserve_path, 0) != 0 && errno != ENOENT) {
        return false;
    }
    index->reserve_spent = true;
    LOG_WRN(
        "index_reserve_spent", "bytes=%llu why=%s", (unsigned long long)index->options.reserve,
        LOG_Q("the index's file system is full; only deletes are taken until the reserve is whole again"));
    return true;
}

static void reserve_restore(struct index *index)
{
    if (index->reserve_spent && reserve_make(index) == 0) {
        index->reserve_spent = false;
        LOG_INF("index_reserve_whole", "bytes=%llu", (unsigned long long)index->options.reserve);
    }
}

/* A limit of our own answers -ENOSPC too; then there is nothing to gain here. */
static bool file_system_is_full(const struct index *index)
{
    struct statvfs fs;
    return statvfs(index->dir, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < ROOM_MIN;
}

/* Pages inside the database that deletes have freed: with enough of them a put needs no room but the log's, which the reserve
 * lends and a truncation of the log gives back. */
static bool has_room_inside(struct index *index)
{
    sqlite3_stmt *statement = index_statement(&index->view, SQL_FREE_PAGES);
    bool room = index_step(&index->view, statement) == 1 && sqlite3_column_int64(statement, 0) >= ROOM_PAGES;
    sqlite3_reset(statement);
    return room;
}

bool index_make_room(struct index *index, bool may_use_reserve)
{
    CHECK(!index->in_transaction);
    if (index_failed(index) != 0 || !file_system_is_full(index) || !index_reserve_spend(index)) {
        return false; /* spent already: index_checkpoint_if_due tries to make it whole */
    }
    int rc = sqlite3_wal_checkpoint_v2(index->view.db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    int code = index_map(index->view.db, rc);
    if (code != 0 && code != -EBUSY && code != -ENOSPC) {
        index_fail(index, code, "checkpoint of a full file system");
        return false;
    }
    index->log_frames = 0;
    if (may_use_reserve || has_room_inside(index)) {
        return true; /* it stays spent for this transaction; index_checkpoint_if_due makes it whole again */
    }
    reserve_restore(index);
    return !index->reserve_spent;
}

/* ---- open, close ------------------------------------------------------------------------------------------------------ */

static void copy_options(struct index *index, const struct index_options *options)
{
    index->options = *options;
    index->options.log_pages = options->log_pages != 0 ? options->log_pages : LOG_FRAMES_DUE;
    int len = snprintf(index->dir, sizeof(index->dir), "%s", options->dir);
    CHECK(len < (int)sizeof(index->dir));
    index->options.dir = index->dir;
    if (options->vfs != NULL) {
        len = snprintf(index->vfs, sizeof(index->vfs), "%s", options->vfs);
        CHECK(len < (int)sizeof(index->vfs));
        index->options.vfs = index->vfs;
    }
    snprintf(index->reserve_path, sizeof(index->reserve_path), "%s/index.reserve", index->dir);
}

int index_open(const struct index_options *options, struct index **out, struct err *err)
{
    int rc = options->skip_sync && options->vfs != NULL ? 0 : sync_leftovers(options, err);
    if (rc != 0) {
        return rc;
    }
    struct index *index = calloc(1, sizeof(*index));
    if (index == NULL) {
        return -ENOMEM;
    }
    copy_options(index, options);
    rc = index_view_init(&index->view, &index->options, false, err);
    if (rc != 0) {
        goto free_index;
    }
    int64_t page_size = 0;
    rc = check_identity(index, err);
    rc = rc != 0 ? rc : load_numbers(index, err);
    rc = rc != 0 ? rc : exec_pragma_number(index->view.db, "PRAGMA page_size", &page_size);
    if (rc != 0) {
        goto close_view;
    }
    index->page_size = (uint64_t)page_size;
    index->log_frames_due = (int)index->options.log_pages;
    sqlite3_wal_hook(index->view.db, log_hook, index);
    rc = reserve_make(index);
    if (rc == -EACCES || rc == -EPERM) {
        /* For want of the reserve no change would be taken, as if the file system were full. */
        err_set(err, rc, "%s: %s; it must belong to the user that runs the node", index->reserve_path,
                err_text(rc));
        goto close_view;
    }
    index->reserve_spent = rc != 0;
    publish(index);
    update_size(index);
    *out = index;
    return 0;

close_view:
    index_view_fini(&index->view);
free_index:
    free(index);
    return rc;
}

void index_close(struct index *index)
{
    if (index == NULL) {
        return;
    }
    CHECK(!index->in_transaction);
    index_view_fini(&index->view);
    free(index->pieces.data);
    free(index->parts.data);
    free(index->old.data);
    free(index);
}

/* EXTRA: the change to WAL mode goes through a rollback journal, and a journal whose deletion was not synced comes back
 * after a power cut and undoes page 1 under the tables that were made meanwhile. */
static int create_schema(sqlite3 *db, const struct index_options *options)
{
    static const char begin[] =
        "PRAGMA synchronous=EXTRA; PRAGMA page_size=4096; PRAGMA auto_vacuum=NONE;"
        " PRAGMA journal_mode=WAL; PRAGMA application_id=1886614379; BEGIN IMMEDIATE;";
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_exec(db, begin, NULL, NULL, NULL);
    rc = rc != SQLITE_OK ? rc : sqlite3_exec(db, index_schema, NULL, NULL, NULL);
    rc = rc != SQLITE_OK
             ? rc
             : sqlite3_prepare_v2(db, "INSERT INTO identity VALUES(1, ?1, ?2)", -1, &statement, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(statement, 1, INDEX_FORMAT_VERSION);
        index_bind_bytes(statement, 2, options->store_id, INDEX_STORE_ID_SIZE);
        rc = sqlite3_step(statement);
        rc = rc == SQLITE_DONE ? SQLITE_OK : rc;
    }
    sqlite3_finalize(statement);
    rc =
        rc != SQLITE_OK ? rc : sqlite3_exec(db, "COMMIT; PRAGMA wal_checkpoint(TRUNCATE);", NULL, NULL, NULL);
    return rc;
}

static int remove_old(const struct index_options *options, struct err *err)
{
    static const char *const names[] = {INDEX_FILE "-wal", INDEX_FILE "-shm", INDEX_FILE "-journal",
                                        INDEX_FILE};
    char path[4200];
    for (uint32_t i = 0; i < ARRAY_COUNT(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", options->dir, names[i]);
        if (unlink(path) != 0 && errno != ENOENT) {
            return err_set(err, -errno, "old index file %s cannot be removed: %s", path, err_text(-errno));
        }
    }
    return 0;
}

int index_create(const struct index_options *options, struct err *err)
{
    int rc = options->vfs == NULL ? remove_old(options, err) : 0;
    if (rc != 0) {
        return rc;
    }
    char path[4200];
    snprintf(path, sizeof(path), "%s/" INDEX_FILE, options->dir);
    int fd = options->vfs == NULL ? owner_open(path, O_RDWR)
                                  : -ENOTSUP; /* SQLite takes an empty file for a new one. */
    if (fd >= 0) {
        close(fd);
    }
    sqlite3 *db = NULL;
    int sql = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                              options->vfs);
    sql = sql != SQLITE_OK ? sql : create_schema(db, options);
    rc = sql == SQLITE_OK ? 0 : index_map(db, sql);
    if (rc != 0) {
        err_set(err, rc, "index %s cannot be created: %s", path,
                db != NULL ? sqlite3_errmsg(db) : sqlite3_errstr(sql));
    }
    sqlite3_close(db);
    return rc != 0 ? rc : sync_leftovers(options, err);
}

int index_failed(const struct index *index)
{
    return atomic_load_explicit(&index->failed, memory_order_relaxed);
}

const char *index_error_text(const struct index *index)
{
    return index->error[0] != '\0' ? index->error : sqlite3_errmsg(index->view.db);
}

uint64_t index_size_bytes(const struct index *index)
{
    return atomic_load_explicit(&index->size_bytes, memory_order_relaxed);
}

void index_counters(const struct index *index, struct index_counters *out)
{
    out->objects = atomic_load_explicit(&index->objects, memory_order_relaxed);
    out->object_bytes = atomic_load_explicit(&index->object_bytes, memory_order_relaxed);
    out->uploads = atomic_load_explicit(&index->uploads, memory_order_relaxed);
    out->upload_bytes = atomic_load_explicit(&index->upload_bytes, memory_order_relaxed);
}

/* ---- transactions ------------------------------------------------------------------------------------------------------- */

int index_begin(struct index *index, bool may_use_reserve)
{
    CHECK(!index->in_transaction);
    int rc = index_failed(index);
    if (rc != 0) {
        return rc;
    }
    if (index->reserve_spent && !may_use_reserve && !has_room_inside(index)) {
        return -ENOSPC;
    }
    rc = set_page_limit(index, may_use_reserve);
    rc = rc != 0 ? rc : index_write_step(index, index_statement(&index->view, SQL_BEGIN_WRITE));
    if (rc != 0) {
        return rc;
    }
    index->in_transaction = true;
    index->saved = index->now;
    return 0;
}

void index_rollback(struct index *index)
{
    CHECK(index->in_transaction);
    index->in_transaction = false;
    index->now = index->saved;
    if (sqlite3_get_autocommit(index->view.db) != 0) {
        return; /* SQLite has rolled back by itself, as it does on a full disk. */
    }
    int rc = index_step(&index->view, index_statement(&index->view, SQL_ROLLBACK));
    if (rc != 0) {
        index_fail(index, rc, "rollback");
    }
}

static int write_counters(struct index *index)
{
    if (memcmp(&index->now, &index->saved, sizeof(index->now)) == 0) {
        return 0;
    }
    sqlite3_stmt *statement = index_statement(&index->view, SQL_COUNTERS_SET);
    if (statement != NULL) {
        sqlite3_bind_int64(statement, 1, (int64_t)index->now.objects);
        sqlite3_bind_int64(statement, 2, (int64_t)index->now.object_bytes);
        sqlite3_bind_int64(statement, 3, (int64_t)index->now.uploads);
        sqlite3_bind_int64(statement, 4, (int64_t)index->now.upload_bytes);
    }
    return index_write_step(index, statement);
}

int index_commit(struct index *index)
{
    CHECK(index->in_transaction);
    int rc = write_counters(index);
    if (rc == 0) {
        rc = index_step(&index->view, index_statement(&index->view, SQL_COMMIT));
        if (rc < 0 && rc != -ENOSPC) {
            index_fail(index, rc, "commit");
        }
    }
    if (rc != 0) {
        index_rollback(index);
        return rc;
    }
    index->in_transaction = false;
    publish(index);
    return 0;
}

int index_checkpoint_if_due(struct index *index)
{
    CHECK(!index->in_transaction);
    if (index_failed(index) != 0) {
        return index_failed(index);
    }
    bool log_is_short = (uint64_t)index->log_frames * index->page_size < index->options.reserve / 2;
    if (index->reserve_spent && !(log_is_short && has_room_inside(index))) {
        /* Give the log's blocks back first: the reserve may fit there. A full disk is no failure here. */
        sqlite3_wal_checkpoint_v2(index->view.db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
        reserve_restore(index);
    }
    if (index->log_frames < index->log_frames_due) {
        return 0;
    }
    /* While a reader keeps the log from starting anew, trying after each commit would cost syncs for nothing. */
    index->log_frames_due = index->log_frames + (int)index->options.log_pages / LOG_FRAMES_FACTOR;
    int mode = index->log_frames < (int)index->options.log_pages * LOG_FRAMES_FACTOR
                   ? SQLITE_CHECKPOINT_PASSIVE
                   : SQLITE_CHECKPOINT_RESTART;
    int rc = sqlite3_wal_checkpoint_v2(index->view.db, NULL, mode, NULL, NULL);
    update_size(index);
    int code = index_map(index->view.db, rc);
    if (code == 0 || code == -EBUSY || code == -ENOSPC) {
        return 0; /* A reader holds the log, or the database cannot grow now: the log stays the truth until next time. */
    }
    return index_fail(index, code, "checkpoint");
}
