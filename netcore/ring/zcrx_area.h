/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zcrx_area: one registration of io_uring zero-copy receive: an area of buffers that a NIC queue fills, and the refill
 * ring by which they go back. It knows nothing of connections.
 *
 * The kernel hands out *fragments*: each data completion carries a reference to one buffer (a run of buffer_size bytes
 * of the area) and wants one refill entry in return. A buffer is the NIC's again when as many entries as completions
 * came back. zcrx_area counts, per buffer, the references our side holds; when the last is released it writes all entries
 * that are owed, next to each other because the kernel folds equal neighbours (io_uring/zcrx.c).
 *
 * Invariants
 *  1. refs[b] = slices of buffer b that someone holds; owed[b] = completions of b not yet answered by a refill entry.
 *  2. refs[b] == 0 and owed[b] > 0 only while b is on the `late` list: the refill ring was full. Nothing is dropped.
 *  3. The refill ring's tail never passes its head by more than its size.
 *
 * Kernel: Linux 6.15; buffer sizes above a page 7.0; device-less mode 7.1. All functions run on the ring's thread.
 */
#ifndef RING_ZCRX_AREA_H
#define RING_ZCRX_AREA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"
#include "base/mpsc.h"
#include "base/uring.h"

/*
 * Borrowing. A ring may receive into an area that another thread's ring registered (ZCRX_CTRL_EXPORT and ZCRX_REG_IMPORT, Linux 7.0): its
 * thread has a struct zcrx_area of its own for it, with its own references. Only the owner's thread writes the refill ring, so a
 * borrower that is done with a buffer posts what the buffer is owed to the owner's inbox; the owner adds it to its own debt.
 */
struct zcrx_lender {
    int fd; /* of the exported registration; -1: this kernel does not export */
    uint8_t *addr;
    uint64_t len;
    uint64_t token;
    uint32_t buffer_size;
    uint32_t buffer_count;
    struct mpsc *inbox; /* of the owner */
    /* Test seam: replaces io_uring_register_ifq. NULL in production. */
    int (*register_fn)(struct io_uring *ring, void *reg);
};

/* A buffer on its way home; one per buffer and borrower. */
struct zcrx_return {
    struct mpsc_node node;
    uint32_t kind; /* the inbox's: what kind of message this is */
    uint32_t index;
    _Atomic uint32_t count; /* refill entries; 0: the borrower's to use */
};

struct zcrx_area_options {
    struct uring *uring;      /* opened with want_cqe32 */
    uint8_t *addr;            /* page aligned; huge pages when buffer_size is above a page */
    uint64_t len;             /* bytes, multiple of the buffer size */
    uint32_t buffer_size;     /* bytes; 0: the driver's default (a page) */
    uint32_t interface_index; /* 0 with no_device */
    uint32_t queue;
    uint64_t page_size;    /* of the area's memory, bytes: what is contiguous for sure; 0: not known */
    bool no_device;        /* ZCRX_REG_NODEV: any socket, loopback too; the kernel copies every byte */
    const char *interface; /* for messages; NULL with no_device */
    /* user_data of the completion by which the kernel says that the NIC found no free buffer (Linux 7.3); 0: not wanted. It may
     * come until the ring is closed. */
    uint64_t exhausted_user_data;
    /* Test seam: replaces io_uring_register_ifq. NULL in production. */
    int (*register_fn)(struct io_uring *ring, void *reg);
};

struct zcrx_buffer {
    struct list late_node;
    uint32_t refs;
    uint32_t owed;
    uint32_t holder; /* the user's: who is charged for it */
    uint32_t holder_generation;
};

struct zcrx_area {
    struct uring *uring;
    uint8_t *addr;
    uint64_t len;
    uint32_t buffer_size; /* as granted */
    uint32_t buffer_count;
    uint32_t id;    /* zcrx_ifq_idx of receives */
    uint64_t token; /* area token of refill entries */
    bool no_device;
    struct zcrx_buffer *buffers;
    uint32_t held_count; /* buffers with refs > 0 */
    /* refill ring */
    void *region;
    uint64_t region_size;
    uint32_t *ring_head; /* written by the kernel */
    uint32_t *ring_tail; /* written by us */
    struct io_uring_zcrx_rqe *entries;
    uint32_t entry_count;
    uint32_t tail;
    struct list late;             /* buffers whose entries did not fit */
    struct mpsc *lender_inbox;    /* borrowed: where what is owed goes instead of the ring; NULL otherwise */
    struct zcrx_return *returns;  /* borrowed: one per buffer */
    const uint64_t *kernel_stats; /* {copy_count, copy_bytes} or NULL when the kernel offers none */
    /* counters */
    uint64_t refills;     /* entries written */
    uint64_t refill_full; /* times the ring was full */
    uint64_t flushes;     /* ZCRX_CTRL_FLUSH_RQ calls */
};

/* Registers. On failure nothing stays registered and `err` names what refused (kernel, permission, driver, buffer
 * size, huge pages, queue, header split, XDP, memory lock) and what would be accepted or done. 0 or -errno. */
int zcrx_area_open(struct zcrx_area *area, const struct zcrx_area_options *options, struct err *err);
/* Frees our side. The registration itself ends with the ring, after which the memory may be unmapped. Every slice must
 * have been released (CHECK). */
void zcrx_area_close(struct zcrx_area *area);

/* A data completion arrived with this offset (io_uring_zcrx_cqe.off): counts its reference. Returns the buffer's index and
 * the fragment's address. An offset outside the area is a broken kernel (CHECK). */
uint32_t zcrx_area_take(struct zcrx_area *area, uint64_t offset, uint32_t len, uint8_t **addr);
void zcrx_area_retain(struct zcrx_area *area, uint32_t index);
/* Ends one reference; true when the buffer went back (or waits to). */
bool zcrx_area_release(struct zcrx_area *area, uint32_t index);
/* Writes what waits for room in the refill ring. Call once per turn. */
void zcrx_area_refill_late(struct zcrx_area *area);
/* Lends: fills `lender` (its inbox is the caller's). A kernel that cannot leaves fd -1. The descriptor keeps the registration alive:
 * zcrx_area_lend_end closes it. */
void zcrx_area_lend(struct zcrx_area *area, struct zcrx_lender *lender);
void zcrx_area_lend_end(struct zcrx_lender *lender);
/* Imports into `uring`: a few system calls, once for each pair of rings that need it. Messages to the owner carry `return_kind`.
 * 0 or -errno, with nothing kept. */
int zcrx_area_borrow(struct zcrx_area *area, const struct zcrx_lender *lender, struct uring *uring,
                     uint32_t return_kind);
bool zcrx_area_is_borrowed(const struct zcrx_area *area);
/* Owner: a borrower's message arrived; the message is the borrower's again when this returns. */
void zcrx_area_returned(struct zcrx_area *area, struct zcrx_return *message);

/* Makes the kernel read the refill ring now (Linux 7.1): without a NIC that allocates, nothing else does. 0, or
 * -EINVAL on kernels without it. */
int zcrx_area_flush(struct zcrx_area *area);

/* The kernel says once that the NIC found no free buffer; this makes it say so again. Kernels without it never said it. */
void zcrx_area_exhausted_arm(struct zcrx_area *area);

/* Bytes the kernel copied into the area because they were not received there; 0 where the kernel does not count. */
uint64_t zcrx_area_copied_bytes(const struct zcrx_area *area);

#define ZCRX_SIZE_NONE UINT32_MAX

/* After a refusal of options->buffer_size: the largest smaller size that is accepted (0: only the default), or ZCRX_SIZE_NONE. Tries
 * each on a ring of its own, so that nothing stays registered; restarts the queue where one is accepted. */
uint32_t zcrx_area_accepted(const struct zcrx_area_options *options);

/* The sentence for a refused registration: which of kernel, driver, huge pages, alignment or set-up refused, and what would be
 * accepted. `accepted`: of zcrx_area_accepted. Pure, so that the whole table is tested. Returns rc. */
int zcrx_area_refused(int rc, uint32_t accepted, const struct zcrx_area_options *options, struct err *err);

#endif
