/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_world: the whole storage engine on simulated devices and a simulated file system, stepped by one thread, under random work:
 * puts of known and unknown length in odd slices, overwrites, deletes, copies, uploads in parts, and readers that hold what they
 * found while it is overwritten. A model remembers what was answered.
 *
 * Oracle. A version's bytes follow from its number, which is its ETag. Whoever reads a version gets exactly its bytes or an error.
 * After a cut each key holds the version last answered, or the one whose change was under way; nothing else, nothing partial;
 * the index agrees with itself, and the free map with the index.
 */
#ifndef TESTS_SIM_CRASH_WORLD_H
#define TESTS_SIM_CRASH_WORLD_H

#include "base/rng.h"
#include "storage/store_int.h"
#include "vfs_sim.h"

#define WORLD_KEYS 10U
#define WORLD_JOBS 8U
#define WORLD_DEVICES 2U

struct job;

struct world_options {
    uint64_t seed;
    bool skip_flush; /* negative controls */
    bool skip_sync;
    bool with_faults; /* puts a fault filter over device 0 */
};

struct world {
    struct world_options options;
    struct rng rng;
    struct vfs_sim *vfs;
    struct dev *memory[WORLD_DEVICES];  /* the memory devices */
    struct dev *devices[WORLD_DEVICES]; /* what the store sees: memory, or a filter over it */
    struct store_options store_options;
    struct arena arena;
    struct store *store;
    struct store_port *port;
    uint64_t now_ns;
    uint64_t next_version;
    uint64_t answered[WORLD_KEYS]; /* version; 0: absent */
    uint64_t maybe[WORLD_KEYS];    /* version of a change whose outcome is unknown; MAYBE_NONE */
    bool key_busy[WORLD_KEYS];
    struct job *jobs[WORLD_JOBS];
    bool is_ending;  /* jobs give up where they can */
    uint32_t damage; /* reads that gave other bytes than their version's */
    /* what happened, so that a test can tell that it tested something */
    uint64_t acks, refusals, reads, copies, completions, uploads_aborted, pendings;
};

#define MAYBE_NONE UINT64_MAX

void world_open(struct world *world, const struct world_options *options);
void world_close(struct world *world);
/* Random work for so many turns, or until something has died or the index has failed. */
void world_work(struct world *world, uint32_t turns);
/* Lets everything that runs come to its end. */
void world_settle(struct world *world);
/* Power cut now (or where vfs or a device died already); then starts again. Returns the number of faults found by the oracle. */
uint32_t world_cut(struct world *world, uint64_t seed);
/* Without a cut, after world_settle: free map against index. Returns the number of bytes they differ by. */
uint64_t world_leak(struct world *world);

#endif
