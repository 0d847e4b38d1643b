/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uring: a thin wrapper around one io_uring. It is the only place that submits to and reaps from a ring, so it is the
 * seam where a test may rewrite results.
 *
 * A ring belongs to one thread (SINGLE_ISSUER + DEFER_TASKRUN where the kernel has them, Linux 6.1): open it and use
 * it there. Each submission carries a class (which module's) and an operation pointer (whose); uring_reap hands each
 * completion to the class's handler. A handler only records the completion; whoever owns the class acts on it later
 * from its own poll function.
 */
#ifndef BASE_URING_H
#define BASE_URING_H

#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"

enum uring_class {
    URING_CLASS_NONE,   /* Completions nobody waits for (cancellations, message sends). */
    URING_CLASS_RX,     /* netcore/rx */
    URING_CLASS_DEV,    /* storage devices */
    URING_CLASS_WAKE,   /* wake-ups from other threads */
    URING_CLASS_SIDE,   /* uring.c itself: the side ring has something */
    URING_CLASS_FILTER, /* filters above a receive backend: their helpers' wake-ups */
    URING_CLASS_COUNT
};

/* `op` is what was given to uring_sqe. The CQE is borrowed until the handler returns. */
typedef void (*uring_handler_fn)(void *ctx, void *op, const struct io_uring_cqe *cqe);

/* Test seam. Called for every completion before its handler; may change *res. Never set in production. */
typedef void (*uring_filter_fn)(void *ctx, enum uring_class class, void *op, int32_t *res);

struct uring_options {
    uint32_t sq_entries;  /* power of two */
    uint32_t cq_entries;  /* power of two, >= 2 * sq_entries */
    bool want_cqe32;      /* 32-byte CQEs, which zero-copy receive demands (IORING_SETUP_CQE32). */
    bool want_sqe128;     /* 128-byte SQEs, which NVMe passthrough demands (IORING_SETUP_SQE128). */
    bool want_iopoll;     /* Polled completions; block devices only, never for sockets. */
    uint32_t buffers_max; /* Registered-buffer table size (sparse), 0: none. */
    uint32_t files_max;   /* Registered-file table size (sparse), 0: none. */
};

struct uring {
    struct io_uring ring;
    struct {
        uring_handler_fn fn;
        void *ctx;
    } handlers[URING_CLASS_COUNT];
    uring_filter_fn filter;
    void *filter_ctx;
    uint64_t submitted;    /* SQEs handed to the kernel since open. */
    uint64_t completed;    /* CQEs reaped since open. */
    uint64_t cq_overflows; /* Times the kernel reported CQ overflow. */
    uint32_t reap_holds; /* Handlers that cannot record another completion now; uring_reap stops while > 0. */
    uint32_t setup_flags; /* IORING_SETUP_* in force. */
    uint32_t buffers_max;
    uint32_t files_max;
    uint64_t files_used[64]; /* Bitmap of registered-file slots in use; files_max <= 4096. */

    struct uring *side; /* Turned along with this ring, or NULL; see uring_side_take. */
    uint32_t side_users;
    int side_event_fd;    /* Signalled when the side ring has something; valid while side is. */
    bool side_is_watched; /* A poll for side_event_fd is armed in this ring. */
    enum uring_side_buffers { URING_SIDE_UNTRIED, URING_SIDE_SHARED, URING_SIDE_REFUSED } side_buffers;
};

/* Opens a ring for the calling thread. Falls back in order when the kernel lacks optional flags; a wanted CQE32,
 * SQE128 or IOPOLL is never dropped. On failure `err` says what the kernel refused and what to do (RLIMIT_MEMLOCK,
 * kernel.io_uring_disabled, seccomp). Returns 0 or -errno. */
int uring_open(struct uring *uring, const struct uring_options *options, struct err *err);
/* Closes the ring. In-flight operations are cancelled by the kernel; their memory must stay valid until this returns. */
void uring_close(struct uring *uring);

void uring_handler_set(struct uring *uring, enum uring_class class, uring_handler_fn fn, void *ctx);

/* A prepared-to-be-filled SQE whose user_data names class and op (op: 16-byte aligned or NULL). Never NULL: a full
 * submission queue is submitted first. Call io_uring_prep_* on it and then uring_sqe_bind, because prep clears it. */
struct io_uring_sqe *uring_sqe(struct uring *uring);
void uring_sqe_bind(struct io_uring_sqe *sqe, enum uring_class class, void *op);

/* Submits what is queued; does not wait. 0 or -errno (-EBUSY: completions must be reaped first). */
int uring_submit(struct uring *uring);
/* Submits and waits until at least one completion is there or timeout_ns passed (0: only collects what is ready).
 * 0, also on timeout and on signals; otherwise -errno. */
int uring_submit_and_wait(struct uring *uring, uint64_t timeout_ns);
/* The same, but waits for `count` completions (or the timeout): one wake-up for many. */
int uring_submit_and_gather(struct uring *uring, uint32_t count, uint64_t timeout_ns);
/* Hands at most `max` completions to their handlers and returns how many. */
uint32_t uring_reap(struct uring *uring, uint32_t max);

/* Registers memory as buffer `index` (whole table is sparse). One range is at most 1 GiB on kernels before 6.x.
 * -ENOMEM usually means RLIMIT_MEMLOCK: `err` then names needed bytes, the limit and the remedies. It is waited for up to 2 s when the
 * limit itself is enough: another process of the user, or one that has just ended, has the rest. */
int uring_buffer_register(struct uring *uring, uint32_t index, void *addr, uint64_t len, struct err *err);
/* Puts a descriptor in the registered-file table and returns its slot, or -ENOSPC / -errno. */
int uring_file_register(struct uring *uring, int fd);
void uring_file_unregister(struct uring *uring, int slot);

/* Operations that need 128-byte SQEs (NVMe passthrough) go through a second ring, which the first one owns and turns: whoever
 * submits, waits and reaps on the first does it for both, and a completion on the second ends the wait on the first. It is made for
 * the first user and closed by the last, who has nothing in flight on it. Completions go to the handlers set on the side ring.
 * 0 or -errno with `err`. */
int uring_side_take(struct uring *uring, struct uring **side, struct err *err);
void uring_side_give(struct uring *uring);
/* True when operations of the side ring may name the buffers of this one by the same index (Linux 6.12). Shared once, at the first call:
 * what is registered later is not known there. */
bool uring_side_shares_buffers(struct uring *uring);

#endif
