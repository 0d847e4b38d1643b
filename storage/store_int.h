/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_int: what the files of storage/ (and its tests) share about a store: devices with their free maps, the threads'
 * parts, and how space and answers travel between them.
 *
 * Locks, in the only order they may be taken (most code takes none): device->lock (free map), then nothing. The epoch
 * has a leaf lock of its own. No lock is held across I/O or a call into the index.
 */
#ifndef STORAGE_STORE_INT_H
#define STORAGE_STORE_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "storage/alloc.h"
#include "storage/commit.h"
#include "storage/dev.h"
#include "storage/epoch.h"
#include "storage/index.h"
#include "storage/index_reader.h"
#include "storage/object.h"
#include "storage/store.h"
#include "storage/superblock.h"

#define STORE_MAGIC 0x73746f31U
#define STORE_READERS_MAX 16U
#define STORE_QUEUE_DEPTH 128U /* ios of one thread at one device */

/* One device of the store. `index` is its number in the superblock; object_extent.device means that number. */
struct store_device {
    struct dev *dev;
    uint32_t index;
    uint64_t data_offset; /* bytes: extents begin */
    uint64_t data_end;    /* bytes: one past the last usable block */
    /* bytes: what address and length of a fragment must be multiples of, by self-test */
    uint32_t fragment_alignment;
    /* bytes: the same as the system states it; below fragment_alignment when the test failed */
    uint32_t head_alignment;
    bool fragments_ok;
    char note[256];
    pthread_mutex_t lock; /* guards alloc */
    struct alloc alloc;
    void *alloc_memory;
    uint64_t alloc_memory_size;
    _Atomic uint64_t used; /* bytes in extents, pending ones and those still being written included */
    _Atomic bool is_full;  /* an upload was refused for want of space, and there is still hardly any */
};

/* Does it want memory aligned more coarsely than the payload of packets lies (nearly always at multiples of four), or whole pages? */
static inline bool store_device_is_coarse(const struct store_device *device)
{
    return device->dev->info.whole_pages || device->head_alignment > 4;
}

/* Takes `want` bytes (at least `min`), contiguous; both are rounded up to blocks. -ENOSPC. `near` (bytes, 0: none) is tried first:
 * a growing upload asks for the space behind its extent. Any thread. */
int store_space_take(struct store_device *device, uint64_t near, uint64_t want, uint64_t min,
                     uint64_t *offset, uint64_t *len);
/* Back to the free map at once: nobody reads it and no write to it is in flight. Any thread. */
void store_space_give(struct store_device *device, uint64_t offset, uint64_t len);
/* For recover_ops: marks space in use; -EEXIST, -ERANGE, -ENODEV. */
int store_space_mark(struct store *store, const struct object_space *space);

/* How the store is put together. store_open fills it from the configuration; simulations give devices, VFS and seeds of their own and
 * step everything themselves. */
struct store_build {
    const struct store_options *options;
    struct dev *devices[STORE_DEVICES_MAX]; /* NULL: opened from options; otherwise they stay the caller's */
    const char *vfs;                        /* SQLite VFS or NULL */
    uint64_t id_seed;                       /* 0: from the system */
    uint32_t index_log_pages;               /* see index_options; 0: its default */
    bool is_stepped;                        /* no threads: store_step does their work */
    bool skip_flush;                        /* negative controls; never in production */
    bool skip_sync;
};
int store_build_format(const struct store_build *build, bool force, struct err *err);
int store_build_open(const struct store_build *build, struct store **out, struct err *err);
/* Decides what fragments a device takes, by writing some to its scratch region and reading them back. `uring` may be NULL. */
int store_selftest(struct store_device *device, struct uring *uring, struct err *err);

/* A stepped store: one turn of committer and readers. Returns true when there may be more to do at once. */
bool store_step(struct store *store, uint64_t now_ns, uint64_t realtime_ns);

/* Whether a thread is in the index, and since when (busy.c). */
struct store_busy {
    _Atomic uint64_t since_ns;   /* it went in, or something came back; 0: it is not in there */
    _Atomic uint64_t noticed_ns; /* lateness.h; by whichever port looks first */
    _Atomic bool is_known_late;
    char name[16]; /* for the log */
};
/* The thread itself. */
void store_busy_begin(struct store_busy *busy, uint64_t now_ns);
void store_busy_end(struct store_busy *busy);
/* It stays in the index, which has answered: what it waits for from here on has a deadline of its own. */
void store_busy_progress(struct store_busy *busy, uint64_t now_ns);

struct store {
    uint32_t magic;
    struct store_options options;
    bool is_stepped;
    bool owns_devices;
    uint32_t device_count;
    struct store_device devices[STORE_DEVICES_MAX]; /* by superblock index */
    uint8_t store_id[SUPERBLOCK_STORE_ID_BYTES];

    struct epoch *epoch;
    struct index *index;
    struct commit *commit;
    struct index_reader *readers[STORE_READERS_MAX];
    uint32_t reader_count;
    _Atomic uint32_t reader_next;
    struct store_busy commit_busy;
    struct store_busy reader_busy[STORE_READERS_MAX];

    /* the committer's thread */
    struct uring commit_ring;
    bool commit_ring_is_open;
    struct dev_queue *flush_queues[STORE_DEVICES_MAX];
    struct dev_io flush_ios[STORE_DEVICES_MAX];
    struct store_wake {
        int fd;
        bool is_armed;
    } __attribute__((aligned(16))) commit_wakes[2]; /* the committer's messages; stop_fd */
    /* guards start_rc and start_is_known while the committer's thread opens its ring */
    pthread_mutex_t start_lock;
    pthread_cond_t start_known;
    bool start_is_known;
    int start_rc;
    struct err start_err;
    pthread_t commit_thread;
    bool commit_thread_runs;
    int stop_fd;
    _Atomic bool is_stopping;
    pthread_t reader_threads[STORE_READERS_MAX];
    uint32_t reader_threads_running;
    pthread_t scrub_thread;
    bool scrub_thread_runs;

    _Atomic uint64_t puts_in_flight;
    _Atomic uint64_t promised; /* bytes that uploads that have just begun will still take */
    _Atomic uint64_t corrupt_blocks;
    _Atomic uint64_t scrubbed_bytes;
    _Atomic uint32_t port_count;
};

/* ---- messages to a port ------------------------------------------------------------------------------------------- */

/* Any thread: the answer becomes a STORE_EVENT_REQUEST of the port it was submitted to. */
void port_deliver_request(struct store_request *request);
/* Any thread: the answer to a commit_put that a put of some port embeds. */
void port_deliver_put(struct commit_put *message);

/* The committer's and the readers' threads (store_threads.c); the calls of struct commit_ops and struct index_reader_ops. */
int store_threads_start(struct store *store, struct err *err);
void store_threads_stop(struct store *store);
int store_flush_queues_open(struct store *store, struct uring *uring, struct err *err);
void store_flush_queues_close(struct store *store);
/* Hands finished flushes to the committer and lets it work; when it wants to be called again. */
uint64_t store_commit_turn(struct store *store, uint64_t now_ns, uint64_t realtime_ns);
extern const struct commit_ops store_commit_ops;
extern const struct index_reader_ops store_reader_ops;

/* Gives extents back whose readers are gone; called after commits and after pins end. Any thread. */
void store_reclaim(struct store *store);

#endif
