/* SPDX-License-Identifier: Apache-2.0 */
/* index_rig: a fresh index in a folder of its own, and short ways to change and read it, for the tests of the index. */
#ifndef TESTS_UNIT_INDEX_RIG_H
#define TESTS_UNIT_INDEX_RIG_H

#include "storage/index.h"

struct index_rig {
    char dir[64];
    struct index_options options;
    struct index *index;
    struct index_view *view;
    struct index_freed freed; /* by the last rig_commit */
    uint64_t next_offset;     /* where the next extent goes on device 0 */
};

/* size_max 0: no limit. Aborts the test when anything fails. */
void rig_open(struct index_rig *rig, uint64_t size_max);
void rig_close(struct index_rig *rig);
/* Closes and opens again. */
void rig_reopen(struct index_rig *rig);
/* Begin, then commit with whatever was freed left in rig->freed. */
void rig_begin(struct index_rig *rig);
void rig_commit(struct index_rig *rig);

void rig_key(struct store_name *key, const void *bytes, size_t len);
/* One extent of `length` payload bytes at the next place. The checksums are constants. */
struct object_extent rig_extent(struct index_rig *rig, uint64_t length);
/* Puts one object of one extent (none for size 0) in its own transaction and returns the status. */
int rig_put(struct index_rig *rig, const char *bucket, const char *key, uint64_t size);
int rig_put_key(struct index_rig *rig, const char *bucket, const struct store_name *key, uint64_t size,
                const struct store_condition *condition);
int rig_delete(struct index_rig *rig, const char *bucket, const char *key, bool *existed);
void rig_bucket(struct index_rig *rig, const char *name);
/* The whole-index check; fails the test with its sentence. */
void rig_verify(struct index_rig *rig);

#endif
