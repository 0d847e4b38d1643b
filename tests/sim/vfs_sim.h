/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vfs_sim: a file system in memory for SQLite, so that the index lives through the same simulated power cuts as the devices.
 *
 * What was written and not synced is a list of operations per file. A power cut decides for each of them, by chance from a
 * seed: applied, lost, or torn (each 512-byte sector of it applied, lost or filled with garbage). Bytes beside a write are
 * never touched (powersafe overwrite, which is what the system's VFS claims too). A file that was never synced may be gone; a
 * deletion whose folder was not synced may be undone.
 *
 * A cut has two halves, because SQLite's handles must be closed in between: vfs_sim_die (from then on every call fails and
 * nothing changes), then the owner closes its connections, then vfs_sim_cut applies the chances and the files can be opened
 * again. vfs_sim_revive instead of vfs_sim_cut is a process that was killed: the page cache stays, unsynced.
 */
#ifndef TESTS_SIM_VFS_SIM_H
#define TESTS_SIM_VFS_SIM_H

#include <stdbool.h>
#include <stdint.h>

struct vfs_sim;

enum vfs_sim_op {
    VFS_SIM_WRITE = 1,
    VFS_SIM_SYNC = 2,
    VFS_SIM_READ = 4,
    VFS_SIM_TRUNCATE = 8,
    VFS_SIM_OPEN = 16
};

/* `name` is what index_options.vfs says; it must be unique and outlive the object. */
struct vfs_sim *vfs_sim_open(const char *name);
/* All handles must be closed. */
void vfs_sim_close(struct vfs_sim *sim);

/* Counts operations of the given kinds from now; the nth (1-based) fails with `sqlite_code`, and with from_then_on every later
 * one too. nth 0: only counts. */
void vfs_sim_fail(struct vfs_sim *sim, uint32_t ops, uint64_t nth, bool from_then_on, int sqlite_code);
uint64_t vfs_sim_seen(const struct vfs_sim *sim);
uint64_t vfs_sim_fired(const struct vfs_sim *sim);

/* Dies by itself at the nth sync from now, before it takes effect; 0: never. */
void vfs_sim_die_at_sync(struct vfs_sim *sim, uint64_t nth);
uint64_t vfs_sim_syncs(const struct vfs_sim *sim); /* since open */
bool vfs_sim_is_dead(const struct vfs_sim *sim);
void vfs_sim_die(struct vfs_sim *sim);
void vfs_sim_cut(struct vfs_sim *sim, uint64_t seed);
void vfs_sim_revive(struct vfs_sim *sim);
/* Everything written so far is durable, as after a long pause. */
void vfs_sim_settle(struct vfs_sim *sim);
/* Operations that a cut now would decide about. */
uint64_t vfs_sim_unsynced(const struct vfs_sim *sim);

#endif
