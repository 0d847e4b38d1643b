/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_rig: a store with one worker's port for tests: on a file through a real ring (threads run), or on memory devices, stepped
 * (no threads, virtual time). Every wait is for an event with a deadline, never a sleep.
 */
#ifndef TESTS_STORE_RIG_H
#define TESTS_STORE_RIG_H

#include "base/rng.h"
#include "storage/store_int.h"

struct store_rig_options {
    const char *name;       /* of the working directory, unique per test */
    uint64_t device_size;   /* 0: 64 MiB */
    uint32_t device_count;  /* 0: 1 */
    bool is_memory;         /* memory devices, stepped */
    uint32_t dma_alignment; /* memory devices; 0: 4 */
    uint32_t lba_size;      /* memory devices; 0: 512 */
    bool whole_pages;       /* memory devices */
    uint32_t fragments_max; /* memory devices; 0: 64 */
    uint32_t delay_polls_max;
    uint64_t staging_size;                  /* 0: 4 MiB */
    uint32_t puts_max;                      /* 0: 16 */
    uint32_t write_unit;                    /* 0: 1 MiB */
    uint32_t writes_per_put;                /* 0: 4 */
    struct dev *(*wrap)(struct dev *inner); /* puts a filter over each memory device; may be NULL */
};

struct store_rig {
    struct store_rig_options options;
    char dir[256];
    struct store_options store_options;
    struct dev *devices[STORE_DEVICES_MAX];
    struct uring ring;
    struct arena arena;
    struct store *store;
    struct store_port *port;
    struct slice_owner owner; /* lends slices of the arena's area part */
    int64_t slices_out;       /* references that are out */
    uint64_t now_ns;
    /* what the last events said */
    struct store_request *request_back;
    struct store_read *read_back;
    uint64_t put_events;
    uint64_t late_events;
};

void store_rig_open(struct store_rig *rig, const struct store_rig_options *options);
/* Closes port and store and opens both again on the same devices. */
void store_rig_reopen(struct store_rig *rig);
void store_rig_close(struct store_rig *rig);
/* One turn of everything; hands events to the fields above. */
void store_rig_turn(struct store_rig *rig);

/* Runs a request to its end and returns its status. */
int store_rig_request(struct store_rig *rig, struct store_request *request);
int store_rig_bucket(struct store_rig *rig, const char *name);
void store_rig_key(struct store_name *key, const char *text);
struct store_put *store_rig_begin(struct store_rig *rig, const char *key, uint64_t size);
/* Appends bytes that are put into the area at `area_offset`. */
void store_rig_append(struct store_rig *rig, struct store_put *put, const uint8_t *bytes, uint32_t len,
                      uint64_t area_offset);
/* Until DONE (0) or FAILED (its error; then aborts and waits for ABORTED). Frees the put. */
int store_rig_finish(struct store_rig *rig, struct store_put *put);
/* begin, append in slices of at most `step`, finish. */
int store_rig_put(struct store_rig *rig, const char *key, const uint8_t *bytes, uint64_t len, uint32_t step,
                  uint64_t area_offset);
/* Looks up and reads the whole object, compares. 0, a negative code, or 1 when bytes differ. */
int store_rig_compare(struct store_rig *rig, const char *key, const uint8_t *bytes, uint64_t len);
int store_rig_delete(struct store_rig *rig, const char *key);
uint64_t store_rig_used(struct store_rig *rig);
void store_rig_fill(uint8_t *bytes, uint64_t len, uint64_t seed);

#endif
