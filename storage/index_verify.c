/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_verify: checks the whole index against itself, in one snapshot: for tests, tools and a suspicious administrator.
 * It needs memory for one entry per extent (40 bytes) and reads everything, so it never runs on its own.
 */
#include "storage/index_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct extent_entry {
    uint64_t id;
    uint64_t offset;
    uint64_t length; /* payload */
    uint64_t space;
    uint32_t device;
    uint32_t references; /* as the row says */
    uint32_t found;      /* pieces that name it */
};

struct verify {
    struct index_view *view;
    struct err *err;
    struct extent_entry *entries; /* by id */
    size_t count, capacity;
    struct index_counters counted;
};

static int bad(struct verify *verify, const char *what, uint64_t id)
{
    return err_set(verify->err, ERR_CORRUPT, "index check: %s (id or number %llu)", what,
                   (unsigned long long)id);
}

static int gather(void *ctx, const struct index_extent_row *row)
{
    struct verify *verify = ctx;
    if (verify->count == verify->capacity) {
        size_t capacity = verify->capacity > 0 ? verify->capacity * 2 : 1024;
        struct extent_entry *grown = realloc(verify->entries, capacity * sizeof(*grown));
        if (grown == NULL) {
            return -ENOMEM;
        }
        verify->entries = grown;
        verify->capacity = capacity;
    }
    verify->entries[verify->count++] = (struct extent_entry){
        .id = row->id,
        .offset = row->extent.offset,
        .length = row->extent.length,
        .space = object_space_length(row->extent.phase, row->extent.length),
        .device = row->extent.device,
        .references = row->references,
    };
    return 0;
}

static int by_id(const void *a, const void *b)
{
    const struct extent_entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int by_place(const void *a, const void *b)
{
    const struct extent_entry *x = a, *y = b;
    if (x->device != y->device) {
        return x->device < y->device ? -1 : 1;
    }
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Counts the pieces of one list and checks that they add up to `size`. */
static int check_pieces(struct verify *verify, const uint8_t *packed, int len, uint64_t size)
{
    uint64_t total = 0;
    if (len % (int)INDEX_PIECE_SIZE != 0) {
        return bad(verify, "piece list of an impossible length", (uint64_t)len);
    }
    for (int at = 0; at < len; at += (int)INDEX_PIECE_SIZE) {
        struct index_piece piece;
        index_piece_get(packed + at, &piece);
        struct extent_entry wanted = {.id = piece.extent_id};
        struct extent_entry *entry =
            verify->count > 0 ? bsearch(&wanted, verify->entries, verify->count, sizeof(wanted), by_id)
                              : NULL;
        if (entry == NULL) {
            return bad(verify, "a piece names an extent that is not there", piece.extent_id);
        }
        if (piece.length == 0 || (uint64_t)piece.start + piece.length > entry->length) {
            return bad(verify, "a piece lies outside its extent", piece.extent_id);
        }
        entry->found++;
        total += piece.length;
    }
    return total == size ? 0 : bad(verify, "pieces do not add up to the size", size);
}

static int check_objects(struct verify *verify)
{
    sqlite3_stmt *statement = index_statement(verify->view, SQL_VERIFY_OBJECTS);
    int rc;
    while ((rc = index_step(verify->view, statement)) == 1) {
        uint64_t size = (uint64_t)sqlite3_column_int64(statement, 0);
        verify->counted.objects++;
        verify->counted.object_bytes += size;
        rc = sqlite3_column_type(statement, 2) != SQLITE_NULL
                 ? check_pieces(verify, sqlite3_column_blob(statement, 1), sqlite3_column_bytes(statement, 1),
                                size)
                 : bad(verify, "an object is in no bucket", 0);
        if (rc != 0) {
            sqlite3_reset(statement);
            return rc;
        }
    }
    return rc;
}

static int check_parts(struct verify *verify)
{
    sqlite3_stmt *statement = index_statement(verify->view, SQL_VERIFY_UPLOADS);
    int rc;
    while ((rc = index_step(verify->view, statement)) == 1) {
        verify->counted.uploads++;
        if (sqlite3_column_type(statement, 0) == SQLITE_NULL) {
            sqlite3_reset(statement);
            return bad(verify, "an upload is in no bucket", 0);
        }
    }
    statement = rc == 0 ? index_statement(verify->view, SQL_VERIFY_PARTS) : NULL;
    while (rc == 0 && (rc = index_step(verify->view, statement)) == 1) {
        uint64_t size = (uint64_t)sqlite3_column_int64(statement, 0);
        verify->counted.upload_bytes += size;
        rc = sqlite3_column_type(statement, 2) != SQLITE_NULL
                 ? check_pieces(verify, sqlite3_column_blob(statement, 1), sqlite3_column_bytes(statement, 1),
                                size)
                 : bad(verify, "a part is of no upload", 0);
        if (rc != 0) {
            sqlite3_reset(statement);
            return rc;
        }
    }
    return rc;
}

static int check_counters(struct verify *verify)
{
    sqlite3_stmt *statement = index_statement(verify->view, SQL_COUNTERS_GET);
    int rc = index_step(verify->view, statement);
    if (rc != 1) {
        return rc < 0 ? rc : bad(verify, "counters are missing", 0);
    }
    struct index_counters stored = {
        .objects = (uint64_t)sqlite3_column_int64(statement, 0),
        .object_bytes = (uint64_t)sqlite3_column_int64(statement, 1),
        .uploads = (uint64_t)sqlite3_column_int64(statement, 2),
        .upload_bytes = (uint64_t)sqlite3_column_int64(statement, 3),
    };
    sqlite3_reset(statement);
    return memcmp(&stored, &verify->counted, sizeof(stored)) == 0
               ? 0
               : bad(verify, "counters are wrong", stored.objects);
}

static int check_extents(struct verify *verify)
{
    for (size_t i = 0; i < verify->count; i++) {
        const struct extent_entry *entry = &verify->entries[i];
        if (entry->references != entry->found) {
            return bad(verify, "an extent's references are miscounted", entry->id);
        }
    }
    if (verify->count > 0) {
        qsort(verify->entries, verify->count, sizeof(*verify->entries), by_place);
    }
    for (size_t i = 1; i < verify->count; i++) {
        const struct extent_entry *before = &verify->entries[i - 1], *entry = &verify->entries[i];
        if (before->device == entry->device && before->offset + before->space > entry->offset) {
            return bad(verify, "two extents overlap", entry->id);
        }
    }
    return 0;
}

static int check_database(struct verify *verify)
{
    sqlite3_stmt *statement = index_statement(verify->view, SQL_VERIFY_DATABASE);
    int rc = index_step(verify->view, statement);
    if (rc != 1) {
        return rc < 0 ? rc : bad(verify, "integrity check gave nothing", 0);
    }
    char text[128];
    bool fits = index_column_text(statement, 0, text, sizeof(text) - 1);
    sqlite3_reset(statement);
    return fits && strcmp(text, "ok") == 0 ? 0 : bad(verify, "SQLite's integrity check found a fault", 0);
}

int index_view_verify(struct index_view *view, struct err *err)
{
    struct verify verify = {.view = view, .err = err};
    int rc = index_step(view, index_statement(view, SQL_BEGIN_READ));
    if (rc != 0) {
        return err_set(err, rc, "index check: cannot begin: %s", sqlite3_errmsg(view->db));
    }
    if (err != NULL) {
        err->text[0] = '\0';
    }
    rc = index_view_extents(view, false, gather, &verify);
    rc = rc != 0 ? rc : check_objects(&verify);
    rc = rc != 0 ? rc : check_parts(&verify);
    rc = rc != 0 ? rc : check_counters(&verify);
    rc = rc != 0 ? rc : check_extents(&verify);
    rc = rc != 0 ? rc : check_database(&verify);
    int end = index_step(view, index_statement(view, SQL_COMMIT));
    free(verify.entries);
    rc = rc != 0 ? rc : end;
    if (rc != 0 && err != NULL && err->text[0] == '\0') {
        err_set(err, rc, "index check: %s", sqlite3_errmsg(view->db));
    }
    return rc;
}
