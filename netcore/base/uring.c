/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uring: one io_uring, one thread.
 *
 * user_data is the operation's address with the class in its low four bits; operations are therefore 16-byte aligned,
 * which malloc, pools and static storage of max-aligned types give.
 */
#include "base/uring.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"

#define CLASS_MASK 0xfULL
#define SIDE_SQ_ENTRIES 256U  /* more are submitted in between */
#define SIDE_CQ_ENTRIES 2048U /* beyond it the kernel keeps completions until there is room */
#define SIDE_FILES 256U
#define MEMLOCK_WAIT_NS (2 * NS_PER_S)
#define MEMLOCK_AGAIN_NS (5 * NS_PER_MS)
_Static_assert(URING_CLASS_COUNT <= CLASS_MASK, "classes fit the low bits of user_data");

static int uring_open_flags(struct uring *uring, const struct uring_options *options, uint32_t flags)
{
    struct io_uring_params params;
    memset(&params, 0, sizeof(params));
    params.flags = flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    params.cq_entries = options->cq_entries;
    int rc = io_uring_queue_init_params(options->sq_entries, &uring->ring, &params);
    if (rc == 0) {
        uring->setup_flags = params.flags;
    }
    return rc;
}

static int uring_open_refused(int rc, struct err *err)
{
    if (rc == -ENOMEM) {
        return err_set(err, rc,
                       "io_uring: not enough memory for the ring; free memory, lower workers, or raise the "
                       "limit of locked "
                       "memory (ulimit -l, LimitMEMLOCK= in the unit)");
    }
    if (rc == -EPERM) {
        return err_set(err, rc,
                       "io_uring is not permitted here; set sysctl kernel.io_uring_disabled=0 and, in a "
                       "container, allow io_uring_setup in the seccomp profile");
    }
    if (rc == -ENOSYS) {
        return err_set(err, rc, "this kernel has no io_uring; Linux 6.1 or later is needed");
    }
    return err_set(err, rc, "io_uring_setup: %s; Linux 6.1 or later is needed", err_text(rc));
}

/* The table sizes are fixed here because resizing a live table would disturb I/O in flight. */
static int uring_open_tables(struct uring *uring, const struct uring_options *options, struct err *err)
{
    CHECK(options->files_max <= sizeof(uring->files_used) * 8);
    if (options->buffers_max > 0) {
        int rc = io_uring_register_buffers_sparse(&uring->ring, options->buffers_max);
        if (rc < 0) {
            return err_set(err, rc, "io_uring: registering a table of %u buffers: %s", options->buffers_max,
                           err_text(rc));
        }
    }
    if (options->files_max > 0) {
        int rc = io_uring_register_files_sparse(&uring->ring, options->files_max);
        if (rc < 0) {
            return err_set(err, rc, "io_uring: registering a table of %u files: %s; raise RLIMIT_NOFILE",
                           options->files_max, err_text(rc));
        }
    }
    uring->buffers_max = options->buffers_max;
    uring->files_max = options->files_max;
    return 0;
}

int uring_open(struct uring *uring, const struct uring_options *options, struct err *err)
{
    CHECK(bytes_is_power_of_two(options->sq_entries));
    CHECK(bytes_is_power_of_two(options->cq_entries));
    memset(uring, 0, sizeof(*uring));
    uint32_t must = (options->want_cqe32 ? IORING_SETUP_CQE32 : 0U) |
                    (options->want_sqe128 ? IORING_SETUP_SQE128 : 0U) |
                    (options->want_iopoll ? IORING_SETUP_IOPOLL : 0U);
    const uint32_t optional[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                 IORING_SETUP_COOP_TASKRUN, 0};
    int rc = -EINVAL;
    for (size_t i = 0; i < ARRAY_COUNT(optional) && rc == -EINVAL; i++) {
        rc = uring_open_flags(uring, options, must | optional[i]);
    }
    if (rc < 0) {
        return uring_open_refused(rc, err);
    }
    rc = uring_open_tables(uring, options, err);
    if (rc < 0) {
        io_uring_queue_exit(&uring->ring);
    }
    return rc;
}

void uring_close(struct uring *uring)
{
    CHECK(uring->side_users == 0);
    io_uring_queue_exit(&uring->ring);
    memset(uring, 0, sizeof(*uring));
}

void uring_handler_set(struct uring *uring, enum uring_class class, uring_handler_fn fn, void *ctx)
{
    uring->handlers[class].fn = fn;
    uring->handlers[class].ctx = ctx;
}

static int uring_submit_own(struct uring *uring)
{
    int rc = io_uring_submit(&uring->ring);
    if (rc < 0) {
        return rc;
    }
    uring->submitted += (uint32_t)rc;
    return 0;
}

struct io_uring_sqe *uring_sqe(struct uring *uring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    /* One submit empties the queue unless the kernel refuses for want of CQ room (-EBUSY) or memory (-EAGAIN); then
     * flushing overflowed completions makes room. The bound turns a stuck kernel into a crash with a line number. */
    for (int attempt = 0; sqe == NULL && attempt < 1000; attempt++) {
        int rc = uring_submit_own(uring);
        CHECK(rc == 0 || rc == -EBUSY || rc == -EAGAIN || rc == -EINTR);
        if (rc != 0) {
            io_uring_get_events(&uring->ring);
        }
        sqe = io_uring_get_sqe(&uring->ring);
    }
    CHECK(sqe != NULL);
    return sqe;
}

void uring_sqe_bind(struct io_uring_sqe *sqe, enum uring_class class, void *op)
{
    CHECK(((uintptr_t)op & CLASS_MASK) == 0);
    sqe->user_data = (uint64_t)(uintptr_t)op | (uint64_t) class;
}

int uring_submit(struct uring *uring)
{
    int rc = uring->side != NULL ? uring_submit_own(uring->side) : 0;
    return rc == 0 ? uring_submit_own(uring) : rc;
}

static bool uring_side_is_busy(const struct uring *side)
{
    return side->submitted != side->completed;
}

/* Submits what is queued on the side ring and lets it post what is finished. -EBUSY and the like pass: the next turn tries again. */
static int uring_side_turn(struct uring *uring)
{
    struct uring *side = uring->side;
    if (io_uring_sq_ready(&side->ring) == 0 && !uring_side_is_busy(side)) {
        return 0;
    }
    if (!uring->side_is_watched) {
        /* Cleared before the completions are looked at: what comes after that look raises it again. One shot, because the kernel ends
         * multishot polls of events that a ring raises. */
        eventfd_t ignored;
        (void)eventfd_read(uring->side_event_fd, &ignored); /* empty is fine */
        struct io_uring_sqe *sqe = uring_sqe(uring);
        io_uring_prep_poll_add(sqe, uring->side_event_fd, POLLIN);
        uring_sqe_bind(sqe, URING_CLASS_SIDE, NULL);
        uring->side_is_watched = true;
    }
    int rc = io_uring_submit_and_get_events(&side->ring);
    if (rc >= 0) {
        side->submitted += (uint32_t)rc;
        return 0;
    }
    return rc == -EINTR || rc == -EBUSY || rc == -EAGAIN ? 0 : rc;
}

/* Is there anything on the side ring that no signal would tell of? What finishes after the look raises the event and ends the wait. */
static bool uring_side_needs_turn(const struct uring *uring)
{
    const struct uring *side = uring->side;
    return side != NULL && (io_uring_cq_ready(&side->ring) > 0 || io_uring_sq_ready(&side->ring) > 0);
}

int uring_submit_and_wait(struct uring *uring, uint64_t timeout_ns)
{
    return uring_submit_and_gather(uring, 1, timeout_ns);
}

int uring_submit_and_gather(struct uring *uring, uint32_t count, uint64_t timeout_ns)
{
    struct io_uring_cqe *cqe = NULL;
    struct __kernel_timespec ts = {.tv_sec = (long long)(timeout_ns / NS_PER_S),
                                   .tv_nsec = (long long)(timeout_ns % NS_PER_S)};
    int rc = uring->side != NULL ? uring_side_turn(uring) : 0;
    if (rc < 0) {
        return rc;
    }
    if (timeout_ns == 0 || uring_side_needs_turn(uring)) {
        rc = io_uring_submit_and_get_events(&uring->ring);
    } else {
        rc = io_uring_submit_and_wait_timeout(&uring->ring, &cqe, count,
                                              timeout_ns == TIME_NEVER ? NULL : &ts, NULL);
    }
    if (rc >= 0) {
        uring->submitted += (uint32_t)rc;
    } else if (rc != -ETIME && rc != -EINTR && rc != -EBUSY && rc != -EAGAIN) {
        return rc;
    }
    if (uring->side != NULL && uring_side_is_busy(uring->side)) {
        io_uring_get_events(&uring->side->ring); /* nothing else runs its deferred completions */
    }
    return 0;
}

static void uring_dispatch(struct uring *uring, struct io_uring_cqe *cqe)
{
    enum uring_class class = (enum uring_class)(cqe->user_data & CLASS_MASK);
    void *op = (void *)(uintptr_t)(cqe->user_data & ~CLASS_MASK);
    CHECK(class < URING_CLASS_COUNT);
    if (uring->filter != NULL) {
        uring->filter(uring->filter_ctx, class, op, &cqe->res);
    }
    if (class == URING_CLASS_SIDE) {
        uring->side_is_watched = false; /* armed again by the next turn that has something to wait for */
    } else if (class != URING_CLASS_NONE) {
        CHECK(uring->handlers[class].fn != NULL);
        uring->handlers[class].fn(uring->handlers[class].ctx, op, cqe);
    }
}

static uint32_t uring_reap_own(struct uring *uring, uint32_t max)
{
    uint32_t count = 0;
    struct io_uring_cqe *cqe;
    while (count < max && uring->reap_holds == 0 && io_uring_peek_cqe(&uring->ring, &cqe) == 0 &&
           cqe != NULL) {
        uring_dispatch(uring, cqe);
        io_uring_cqe_seen(&uring->ring, cqe);
        count++;
    }
    if (io_uring_cq_has_overflow(&uring->ring)) {
        uring->cq_overflows++;
    }
    uring->completed += count;
    return count;
}

uint32_t uring_reap(struct uring *uring, uint32_t max)
{
    uint32_t count = 0;
    if (uring->side != NULL) {
        /* First, because there are never more than device queues are deep: they cannot starve the others. */
        uring->side->filter = uring->filter;
        uring->side->filter_ctx = uring->filter_ctx;
        count = uring_reap_own(uring->side, max);
    }
    return count + uring_reap_own(uring, max - count);
}

static int uring_memlock_refused(uint64_t len, struct err *err)
{
    struct rlimit limit = {0, 0};
    char need[BYTES_SIZE_TEXT_MAX];
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return err_set(
        err, -ENOMEM,
        "io_uring: registering %s of memory was refused: RLIMIT_MEMLOCK is %llu bytes (soft), %llu (hard); "
        "raise it (ulimit -l, systemd LimitMEMLOCK=) or give the process CAP_IPC_LOCK",
        bytes_format_size(len, need), (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
}

/* The limit holds for all of a user's processes, and the kernel takes the rings of one that has ended apart only afterwards (io_uring/io_uring.c,
 * io_ring_exit_work): what the last command had is given back a little later. False once waiting is of no use. */
static bool memlock_may_come(uint64_t len, uint64_t until_ns)
{
    static const struct timespec pause = {.tv_nsec = MEMLOCK_AGAIN_NS};
    struct rlimit limit = {0, 0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (len > limit.rlim_cur || clock_monotonic_ns() >= until_ns) {
        return false;
    }
    nanosleep(&pause, NULL); /* lint: allow: start-up, the kernel gives no event for this */
    return true;
}

int uring_buffer_register(struct uring *uring, uint32_t index, void *addr, uint64_t len, struct err *err)
{
    CHECK(index < uring->buffers_max);
    struct iovec iov = {.iov_base = addr, .iov_len = len};
    uint64_t until_ns = clock_monotonic_ns() + MEMLOCK_WAIT_NS;
    int rc;
    do { /* Ends at until_ns. */
        rc = io_uring_register_buffers_update_tag(&uring->ring, index, &iov, NULL, 1);
    } while (rc == -ENOMEM && memlock_may_come(len, until_ns));
    if (rc == 1) {
        return 0;
    }
    if (rc == -ENOMEM) {
        return uring_memlock_refused(len, err);
    }
    rc = rc >= 0 ? -EIO : rc;
    return err_set(err, rc, "io_uring: registering buffer %u: %s", index, err_text(rc));
}

int uring_file_register(struct uring *uring, int fd)
{
    for (uint32_t slot = 0; slot < uring->files_max; slot++) {
        uint64_t bit = 1ULL << (slot % 64);
        if ((uring->files_used[slot / 64] & bit) != 0) {
            continue;
        }
        int rc = io_uring_register_files_update(&uring->ring, slot, &fd, 1);
        if (rc != 1) {
            return rc < 0 ? rc : -EIO;
        }
        uring->files_used[slot / 64] |= bit;
        return (int)slot;
    }
    return -ENOSPC;
}

void uring_file_unregister(struct uring *uring, int slot)
{
    CHECK(slot >= 0 && (uint32_t)slot < uring->files_max);
    int none = -1;
    int rc = io_uring_register_files_update(&uring->ring, (unsigned)slot, &none, 1);
    CHECK(rc == 1);
    uring->files_used[slot / 64] &= ~(1ULL << (slot % 64));
}

/* ---- the side ring -------------------------------------------------------------------------------------------- */

static int uring_side_open(struct uring *uring, struct err *err)
{
    struct uring_options options = {.sq_entries = SIDE_SQ_ENTRIES,
                                    .cq_entries = SIDE_CQ_ENTRIES,
                                    .want_cqe32 = true,
                                    .want_sqe128 = true,
                                    .files_max = SIDE_FILES};
    struct uring *side = malloc(sizeof(*side));
    if (side == NULL) {
        return err_set(err, -ENOMEM, "out of memory for a second ring");
    }
    int rc = uring_open(side, &options, err);
    if (rc < 0) {
        goto free_side;
    }
    uring->side_event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (uring->side_event_fd < 0) {
        rc = err_set(err, -errno, "an eventfd: %s", err_text(-errno));
        goto close_ring;
    }
    rc = io_uring_register_eventfd(&side->ring, uring->side_event_fd);
    if (rc < 0) {
        rc = err_set(err, rc, "io_uring: registering an eventfd: %s", err_text(rc));
        goto close_event;
    }
    uring->side = side;
    uring->side_is_watched = false;
    uring->side_buffers = URING_SIDE_UNTRIED;
    return 0;

close_event:
    close(uring->side_event_fd);
close_ring:
    uring_close(side);
free_side:
    free(side);
    return rc;
}

int uring_side_take(struct uring *uring, struct uring **side, struct err *err)
{
    int rc = uring->side != NULL ? 0 : uring_side_open(uring, err);
    if (rc == 0) {
        uring->side_users++;
        *side = uring->side;
    }
    return rc;
}

void uring_side_give(struct uring *uring)
{
    CHECK(uring->side_users > 0);
    if (--uring->side_users > 0) {
        return;
    }
    CHECK(!uring_side_is_busy(uring->side));
    if (uring->side_is_watched) {
        struct io_uring_sqe *sqe = uring_sqe(uring);
        io_uring_prep_poll_remove(sqe, URING_CLASS_SIDE);
        uring_sqe_bind(sqe, URING_CLASS_NONE, NULL);
        uring->side_is_watched = false;
    }
    uring_close(uring->side);
    free(uring->side);
    uring->side = NULL;
    close(uring->side_event_fd);
}

bool uring_side_shares_buffers(struct uring *uring)
{
    CHECK(uring->side != NULL);
    if (uring->side_buffers == URING_SIDE_UNTRIED) {
        int rc = uring->buffers_max > 0 ? io_uring_clone_buffers(&uring->side->ring, &uring->ring) : -ENXIO;
        uring->side_buffers = rc == 0 ? URING_SIDE_SHARED : URING_SIDE_REFUSED;
    }
    return uring->side_buffers == URING_SIDE_SHARED;
}
