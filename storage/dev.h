/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dev: block devices behind one table of operations. `uring` (a file or block device, O_DIRECT over io_uring), `mem` (a
 * deterministic memory device that can lose, tear and scramble what was not flushed), `nvme` (a namespace by passthrough) and `fault`
 * (a filter on top of any device) implement it.
 *
 * A `struct dev` is one device, shared by all threads. A thread does I/O through a `struct dev_queue` of its own, bound
 * to that thread's ring (class URING_CLASS_DEV). Callers use the checked wrappers, never the table.
 *
 * Contract (tests/contract/test_dev_contract.c runs it against every implementation):
 *  1. dev_submit takes an io always; it comes back exactly once, from dev_poll of the same queue. At most `depth` are with the
 *     device; the others wait in the queue in the order of submission.
 *  2. Finished ios come in any order. `result` is 0 (all bytes) or -errno; a short transfer is continued inside.
 *  3. A write is durable once a flush has succeeded that was submitted, on any queue, after the write had finished.
 *  4. After one failed flush the device is FAILED: every later write and flush answers ERR_DEVICE_FAILED, never success.
 *     Reads still work. The same after 16 failed writes without a successful one between them.
 *  5. Offsets and total lengths are multiples of lba_size and lie inside the device (CHECK: our bug, not the disk's).
 *     Fragments the device may refuse (alignment) come back as -EINVAL.
 */
#ifndef STORAGE_DEV_H
#define STORAGE_DEV_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"
#include "base/list.h"
#include "base/uring.h"
#include "storage/store.h"

struct dev;
struct dev_queue;

enum dev_op {
    DEV_READ,
    DEV_WRITE,
    DEV_FLUSH, /* offset and len are 0 */
    DEV_ZERO   /* [offset, offset + len) reads as zeros afterwards; durable after a flush */
};
#define DEV_OPS 4U

/* One operation. The caller owns the memory (16-byte aligned), fills the first part and leaves it alone until dev_poll returns
 * it. */
struct dev_io {
    enum dev_op op;
    int32_t buf_index; /* registered buffer that holds *all* fragments, or -1 */
    uint64_t offset;   /* bytes on the device */
    uint64_t len;      /* bytes: sum of the fragments; ZERO: the range */
    struct iovec *iov; /* borrowed and *changed* (advanced) while in flight */
    uint32_t iov_count;
    int result; /* out: 0 or -errno */
    void *user; /* the caller's */
    /* out: from submission to the poll that saw the end; valid for callers that pass a clock */
    uint64_t latency_ns;

    /* the queue's while in flight */
    struct list node;
    struct dev_queue *queue;
    /* the implementation's, called from the ring's handler */
    void (*complete)(struct dev_io *io, int32_t res);
    uint64_t submitted_ns;
    uint64_t done;   /* bytes transferred so far */
    uint64_t ticket; /* mem, fault: their own */
    uint32_t retries;
} __attribute__((aligned(16)));

struct dev_info {
    const char *type;  /* "file", "block", "nvme", "mem", "fault" */
    uint64_t size;     /* bytes, multiple of lba_size */
    uint32_t lba_size; /* bytes: offsets and sums of fragments are multiples of it */
    /* bytes: address and length of a fragment must be multiples of it, as the system states it */
    uint32_t dma_alignment;
    uint32_t fragments_max; /* iovecs of one io that are not split */
    uint32_t bytes_max;     /* bytes of one transfer that is not split */
    bool direct;            /* O_DIRECT is direct */
    bool whole_pages;       /* the controller has no SGL: fragments of one io must meet at page boundaries */
    char note[256];         /* what is worth telling a person, or "" */
};

struct dev_stats {
    _Atomic uint64_t ops[DEV_OPS];
    _Atomic uint64_t bytes[DEV_OPS];
    _Atomic uint64_t errors[DEV_OPS];
    _Atomic uint64_t write_fragments;
    _Atomic uint64_t writes_in_flight; /* gauge */
    struct store_histogram latency[STORE_LATENCY_KINDS];
};

/* The table each implementation fills. `submit` and `poll` see only ios within the queue depth. */
struct dev_ops {
    const char *type;
    void (*close)(struct dev *dev);
    int (*queue_open)(struct dev *dev, struct uring *uring, uint32_t depth, struct dev_queue **out,
                      struct err *err);
    void (*queue_close)(struct dev_queue *queue);
    void (*submit)(struct dev_queue *queue, struct dev_io *io);
    void (*poll)(struct dev_queue *queue, uint64_t now_ns); /* ends ios with dev_io_finish */
};

/* Every implementation's struct begins with this. */
struct dev {
    uint32_t magic;
    const struct dev_ops *ops;
    char path[4096];
    struct dev_info info;
    struct dev_stats stats;
    _Atomic int state; /* enum store_device_state; moves to FAILED for good, SUSPECT comes and goes */
    _Atomic uint32_t write_errors_in_row;
    char state_reason[256]; /* written once, before state becomes FAILED */
};

struct dev_queue {
    uint32_t magic;
    struct dev *dev;
    struct uring *uring; /* NULL when the device does not use one */
    uint32_t depth;
    uint32_t in_flight;
    uint64_t now_ns;      /* of the latest poll */
    struct list waiting;  /* over depth */
    struct list finished; /* not yet returned by dev_poll */
};

#define DEV_MAGIC 0x64657631U
#define DEV_QUEUE_MAGIC 0x64657632U

/* ---- checked wrappers ----------------------------------------------------------------------------------------- */

void dev_close(struct dev *dev);
/* `uring` may be NULL for mem (and for fault over mem). Called on the thread that will use the queue. */
int dev_queue_open(struct dev *dev, struct uring *uring, uint32_t depth, struct dev_queue **out,
                   struct err *err);
/* Nothing may be in flight (CHECK). */
void dev_queue_close(struct dev_queue *queue);
/* See contract points 1 and 5. Submits nothing to the kernel by itself: the owner of the ring does that. */
void dev_submit(struct dev_queue *queue, struct dev_io *io);
/* Never blocks. Finished ios, at most max. The ring's owner has reaped before. */
uint32_t dev_poll(struct dev_queue *queue, uint64_t now_ns, struct dev_io **finished, uint32_t max);
/* Operations submitted and not yet returned. */
uint32_t dev_queue_pending(const struct dev_queue *queue);
/* Start-up and tools only: one io from submission to end, turning the queue's own ring meanwhile (other completions on it are
 * handed out as usual). Returns io->result, or -ETIMEDOUT after 600 s. */
int dev_run(struct dev_queue *queue, struct dev_io *io);

static inline bool dev_takes_writes(const struct dev *dev)
{
    return dev->state == STORE_DEVICE_OK;
}
/* A flush is past its deadline (true) or came back after all (false). Changes nothing on a failed device. */
void dev_suspect_set(struct dev *dev, bool is_suspect);
/* The device takes no more writes; the first reason stays. */
void dev_fail(struct dev *dev, const char *reason);

/* ---- for implementations -------------------------------------------------------------------------------------- */

void dev_queue_init(struct dev_queue *queue, struct dev *dev, struct uring *uring, uint32_t depth);
void dev_io_finish(struct dev_io *io, int result);
/* Moves the iovec array past `bytes`. */
void dev_io_advance(struct dev_io *io, uint64_t bytes);

/* ---- implementations ------------------------------------------------------------------------------------------ */

struct dev_uring_options {
    const char *path;
    bool is_exclusive; /* flock on files, O_EXCL on block devices: two nodes never share a device */
    /* a file that is not there is made, `create_size` bytes of zeros, synced with its directory */
    bool create;
    bool want_direct;
    uint64_t create_size;
};
/* Regular file or block device. On failure `err` says what to do. */
int dev_uring_open(const struct dev_uring_options *options, struct dev **out, struct err *err);

/* An NVMe namespace by passthrough, /dev/ngXnY. `create` and `want_direct` do not apply: it is there and always direct. Exclusive: its
 * block device is claimed as well. */
int dev_nvme_open(const struct dev_uring_options *options, struct dev **out, struct err *err);
/* Whichever of both the path is made for. */
int dev_open(const struct dev_uring_options *options, struct dev **out, struct err *err);

/* Probabilities are n in 1,000,000 per operation. */
struct dev_mem_options {
    uint64_t size;
    uint64_t seed;
    uint32_t lba_size;
    uint32_t dma_alignment;
    uint32_t fragments_max;
    uint32_t bytes_max;
    /* an io ends after 0..this many polls of its queue, so that ios overtake each other; 0: at the next */
    uint32_t delay_polls_max;
    bool refuse_unaligned; /* fragments off dma_alignment answer -EINVAL, as real devices do */
    bool whole_pages;      /* and so do those that do not meet at page boundaries */
};
int dev_mem_open(const struct dev_mem_options *options, struct dev **out);
/* A power cut has two halves, because whoever uses the device must close in between. From dev_mem_die on every operation answers
 * -EIO and changes nothing; what was in flight is as good as unflushed. Then, when the queues are closed, dev_mem_crash decides by
 * chance from `seed` for every write not covered by a flush: applied, lost, torn at sectors or filled with garbage; and the device works
 * again. Called without dev_mem_die it is a cut at a quiet moment. */
void dev_mem_die(struct dev *dev);
void dev_mem_crash(struct dev *dev, uint64_t seed);
/* Dies by itself at the nth flush from now, before it takes effect; 0: never. */
void dev_mem_die_at_flush(struct dev *dev, uint64_t nth);
bool dev_mem_is_dead(struct dev *dev);
/* What the device holds now, unflushed writes included; for tests that flip bits. */
uint8_t *dev_mem_bytes(struct dev *dev);

enum dev_fault_kind {
    DEV_FAULT_NONE,
    DEV_FAULT_ERROR,     /* answers `error`; nothing was transferred */
    DEV_FAULT_TORN,      /* writes a prefix, then answers `error` */
    DEV_FAULT_MISDIRECT, /* a write or read goes to another LBA and answers success */
    DEV_FAULT_CORRUPT,   /* a read flips one bit and answers success */
    DEV_FAULT_HANG,      /* never answers until dev_fault_release */
    DEV_FAULT_LOST       /* a write or flush answers success and does nothing */
};
struct dev_fault_plan {
    enum dev_fault_kind kind;
    uint32_t ops;           /* bit set of 1 << enum dev_op that count */
    int error;              /* -errno */
    uint64_t nth;           /* fires at the nth matching operation from now, 1-based; 0: by rate only */
    bool from_then_on;      /* and at every later one */
    uint32_t rate_ppm;      /* seeded chance per matching operation */
    char trigger_file[256]; /* fires only while this file exists; "": always */
};
/* Stacks on `inner` and owns it (also on failure of later calls). */
int dev_fault_open(struct dev *inner, uint64_t seed, struct dev **out);
/* Replaces the plan and restarts the count. Thread-safe. */
void dev_fault_plan_set(struct dev *dev, const struct dev_fault_plan *plan);
/* Matching operations seen since the plan was set, and how often it fired. */
uint64_t dev_fault_seen(struct dev *dev);
uint64_t dev_fault_fired(struct dev *dev);
/* Lets hanging operations go on. */
void dev_fault_release(struct dev *dev);

#endif
