/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover: see recover.h. Everything it does is idempotent: a crash in the middle of it is another start.
 */
#include "storage/recover.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "storage/index_int.h"

#define DROP_BATCH 4096U /* pending rows per transaction, so that the log stays bounded */

struct walk {
    const struct recover_ops *ops;
    void *ctx;
    struct recover_result *result;
    struct err *err;
};

static int drop_pending(struct index *index, uint64_t *total, struct err *err)
{
    for (;;) {
        uint32_t dropped = 0;
        int rc = index_begin(index, true);
        if (rc == 0) {
            rc = index_pending_drop_all(index, DROP_BATCH, &dropped);
            if (rc == 0) {
                rc = index_commit(index);
            } else {
                index_rollback(index);
            }
        }
        if (rc == -ENOSPC && index_reserve_spend(index)) {
            continue;
        }
        if (rc != 0) {
            return err_set(err, rc, "unfinished uploads cannot be dropped from the index: %s",
                           index_error_text(index));
        }
        *total += dropped;
        rc = index_checkpoint_if_due(index);
        if (rc != 0 || dropped < DROP_BATCH) {
            return rc == 0
                       ? 0
                       : err_set(err, rc, "index log cannot be written back: %s", index_error_text(index));
        }
    }
}

static int mark_row(void *ctx, const struct index_extent_row *row)
{
    struct walk *walk = ctx;
    struct object_space space = {
        .device = row->extent.device,
        .offset = row->extent.offset,
        .length = object_space_length(row->extent.phase, row->extent.length),
    };
    if (row->references == 0) {
        return 0; /* dropped before the walk; one written meanwhile is impossible, the writer is this thread */
    }
    int rc = walk->ops->mark_used(walk->ctx, &space);
    if (rc == 0) {
        walk->result->extents++;
        walk->result->bytes += space.length;
        return 0;
    }
    const char *what = rc == -EEXIST   ? "overlaps another extent"
                       : rc == -ERANGE ? "lies outside its device"
                       : rc == -ENODEV ? "is on a device that is not there"
                                       : err_text(rc);
    err_set(walk->err, rc, "extent %llu (device %u, offset %llu, length %llu) %s",
            (unsigned long long)row->id, space.device, (unsigned long long)space.offset,
            (unsigned long long)space.length, what);
    return rc == -EEXIST || rc == -ERANGE ? ERR_CORRUPT : rc;
}

int recover_run(struct index *index, const struct recover_ops *ops, void *ops_ctx, struct recover_result *out,
                struct err *err)
{
    struct recover_result result = {0};
    struct walk walk = {.ops = ops, .ctx = ops_ctx, .result = &result, .err = err};
    int rc = drop_pending(index, &result.pending_dropped, err);
    if (rc != 0) {
        return rc;
    }
    if (err != NULL) {
        err->text[0] = '\0';
    }
    rc = index_view_extents(index_own_view(index), false, mark_row, &walk);
    if (rc != 0) {
        return err == NULL || err->text[0] != '\0'
                   ? rc
                   : err_set(err, rc, "extents cannot be read from the index: %s", index_error_text(index));
    }
    *out = result;
    return 0;
}
