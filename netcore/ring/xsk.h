/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xsk: one AF_XDP socket on one queue of an interface: its UMEM, the four rings (libxdp's), and who has which frame. It knows
 * nothing of TCP, and the XDP program that sends frames here is xsk_load's.
 *
 * Sockets of several queues may share one UMEM, so that a busy queue finds the frames that an idle one does not need: the first is
 * opened as ever, the others with `base`. Each has rings of its own and a quota of what may lie in its fill ring. They are closed,
 * dropped and renewed together, the base last (closing) or first (renewing).
 *
 * A socket that is of no use any more (XSK_LOST) is dropped and renewed over the same memory: frames that somebody holds stay held.
 * Those in its rings are nobody's meanwhile: the kernel takes a closed socket from its queue some time later, and a NIC may write
 * into them until then. That it is done shows when the same queue can be bound again.
 *
 * Frames are chunks of the UMEM. Received payload begins at a multiple of four in its frame: XDP leaves 256 bytes before a packet and
 * Ethernet, IPv4 and TCP with timestamps are 66, so the headroom is 2 (IPv6 and VLAN tags add multiples of four).
 *
 * The fill ring is filled before the bind, and can hold what the NIC's ring and the RX ring hold together: several drivers never
 * recover from an empty one. A wake-up is repeated as long as there is something to send, whether or not anything was added.
 *
 * All functions but xsk_open and xsk_close may be called from a loop; none blocks, except that xsk_renew pins the memory anew, which
 * takes milliseconds. Linux 5.18.
 */
#ifndef RING_XSK_H
#define RING_XSK_H

#include <linux/if_xdp.h>
#include <stdbool.h>
#include <stdint.h>
#include <xdp/xsk.h>

#include "base/err.h"
#include "ring/xsk_frames.h"

#define XSK_CHUNK_DEFAULT 4096U /* 2 KiB chunks lose large frames on 82599 without a counter */

/* What was asked for, and what the kernel granted. Never changed silently: xsk->mode says which it is. */
enum xsk_mode {
    XSK_MODE_AUTO,      /* the best that can be had (asked only) */
    XSK_MODE_ZERO_COPY, /* the NIC writes into the UMEM */
    XSK_MODE_COPY,      /* native XDP, the kernel copies each frame */
    XSK_MODE_GENERIC    /* the driver has no XDP: after the kernel has made a packet of it, and copied */
};

struct xsk_options {
    const char *interface;
    uint32_t queue;
    uint8_t *area;       /* page aligned; the caller's, kept until xsk_close */
    uint64_t area_size;  /* bytes, multiple of chunk_size */
    uint32_t chunk_size; /* 2048 or 4096; 0: XSK_CHUNK_DEFAULT */
    uint32_t nic_ring;   /* descriptors of the NIC's receive ring; 0: not known */
    uint32_t tx_frames;  /* kept back for sending; 0: a sixteenth, at most 512 */
    uint32_t sockets;    /* that will share the frames; 0: this one only */
    uint8_t place;       /* of this one among them, each another */
    struct xsk
        *base; /* the socket whose area is shared, open and not moved before this is closed; NULL: own area */
    enum xsk_mode mode;
    bool is_generic; /* the program is attached in generic mode: only copying is possible */
    bool want_multi; /* frames of several chunks (Linux 6.6 and the driver) */
    uint32_t
        patience_ms; /* how long a busy queue is asked again; teardown of an earlier socket is asynchronous */
};

/* Counters, of one thread. */
struct xsk_stats {
    uint64_t received, received_bytes;
    uint64_t sent, sent_bytes, completed;
    uint64_t wakeups;
    uint64_t busy_polls;  /* times the driver was asked to work in our own time */
    uint64_t tx_busy;     /* a wake-up that the driver asked to repeat */
    uint64_t tx_no_room;  /* no frame or no place in the ring */
    uint64_t tx_lost;     /* given back unsent by xsk_close: never completed */
    uint64_t link_resets; /* times sending found the interface down after it was up */
    uint64_t wrong;       /* descriptors that cannot be: kernel or driver is broken */
};

struct xsk_part {
    uint8_t *addr;
    uint32_t len;
    uint32_t frame;
    bool more; /* the packet goes on in the next part */
};

enum xsk_trouble {
    XSK_FINE,
    XSK_LATER,  /* ring or driver is busy: the next call tries again */
    XSK_PAUSED, /* the link is being reset: what is queued stays; try again when there is carrier */
    XSK_LOST /* the socket is of no use any more (unbound, device gone, a descriptor that cannot be): open anew */
};

struct xsk {
    struct xsk_umem *umem;
    struct xsk_socket *socket;
    struct xsk_ring_prod fill, tx;
    struct xsk_ring_cons rx, completion;
    struct xsk_frames frames; /* of a base */
    struct xsk_frames *pool;  /* the base's frames */
    struct xsk_stats stats;
    uint8_t *area;
    uint32_t chunk_size, chunk_shift;
    uint32_t tx_frames;
    uint8_t place;
    uint32_t fill_max;  /* frames that may be in the fill ring and with the NIC */
    uint32_t filled;    /* are there */
    uint32_t unsent;    /* given to be sent and not completed */
    uint32_t unwritten; /* taken to be written */
    int fd;             /* -1: dropped */
    enum xsk_mode mode; /* as read back from the kernel */
    bool is_multi;
    bool is_lost;
    bool is_paused;       /* the last wake-up found the interface down */
    uint64_t progress_ns; /* when sending last moved, or was idle */
    char refused[512];    /* why each better mode was refused; empty when the best was had */
};

/* Opens and binds. Takes EBUSY for up to patience_ms. On failure nothing stays open, and `err` says what is missing in a sentence. */
int xsk_open(struct xsk *xsk, const struct xsk_options *options, struct err *err);
/* Closes. The caller has given back all received frames (CHECK). */
void xsk_close(struct xsk *xsk);
/* So many sockets share the frames now: the quota of this one follows as its fill ring empties. */
void xsk_share(struct xsk *xsk, uint32_t sockets);
/* Closes the socket and keeps the frames: what lay in the rings is free again once it is renewed, what was to be sent is lost. Nothing may refer to
 * the descriptor any more (a poll in flight keeps the queue busy). */
void xsk_drop(struct xsk *xsk);
/* Opens a dropped one again, with the options it had. On failure it stays dropped: -EBUSY while the old socket is torn down. */
int xsk_renew(struct xsk *xsk, const struct xsk_options *options, struct err *err);
/* What the kernel holds against the socket without being asked to send: XSK_LOST when its interface has gone. */
enum xsk_trouble xsk_health(struct xsk *xsk);
/* Wakes the driver for receiving and sending, whether or not it asked for it: for a watchdog. */
void xsk_wake(struct xsk *xsk);

/* Busy polling: from now on xsk_busy_poll runs the queue's NAPI instance in the caller's time, and where the NIC is set up for it
 * (napi_defer_hard_irqs, gro_flush_timeout) its interrupts stay away as long as that goes on. `frames`: that one call handles. Off gives
 * the interrupts back. 0 or -errno, and then it is off: -EPERM without CAP_NET_ADMIN, -ENOPROTOOPT by a kernel without it. */
int xsk_busy_set(struct xsk *xsk, bool is_on, uint32_t frames);
void xsk_busy_poll(struct xsk *xsk);

/* Received parts, each of which is the caller's until xsk_give. Never ends in the middle of a packet unless that has more than `max`. */
uint32_t xsk_receive(struct xsk *xsk, struct xsk_part *parts, uint32_t max);
void xsk_give(struct xsk *xsk, uint32_t frame);
/* A free frame as if it had been received, for bytes that came another way. NULL: none is free. */
uint8_t *xsk_hold(struct xsk *xsk, uint32_t *frame);
/* Puts free frames where the NIC finds them, all but those kept for sending, and wakes the driver if it asked for it. */
void xsk_refill(struct xsk *xsk);

/* A frame to write into: chunk_size bytes. NULL: none now (xsk_complete may bring one). */
uint8_t *xsk_send_take(struct xsk *xsk, uint32_t *frame);
void xsk_send_put(struct xsk *xsk, uint32_t frame, uint32_t len);
void xsk_send_cancel(struct xsk *xsk, uint32_t frame);
/* Collects what was sent, and makes the driver send. */
enum xsk_trouble xsk_flush(struct xsk *xsk, uint64_t now_ns);
/* Has nothing that was given to the driver come back for this long? */
bool xsk_is_stuck(const struct xsk *xsk, uint64_t now_ns, uint64_t deadline_ns);

static inline uint32_t xsk_unsent(const struct xsk *xsk)
{
    return xsk->unsent;
}

/* Has the NIC less than `least` frames of it, though its quota allows more? */
static inline bool xsk_is_short(const struct xsk *xsk, uint32_t least)
{
    return xsk->filled < least && xsk->filled < xsk->fill_max;
}

/* Has it frames beyond its quota? They stay until packets arrive, or until it is renewed. */
static inline bool xsk_is_over(const struct xsk *xsk)
{
    return xsk->filled > xsk->fill_max;
}

/* The kernel's own counters of the socket. 0 or -errno. */
int xsk_kernel_stats(const struct xsk *xsk, struct xdp_statistics *stats);

/* ---- pure ------------------------------------------------------------------------------------------------------- */

const char *xsk_mode_text(enum xsk_mode mode);
/* What a refusal of the UMEM or of the bind means. Returns rc. */
int xsk_refused(int rc, const struct xsk_options *options, struct err *err);
/* What an errno of the wake-up (0: none) means for who sends. */
enum xsk_trouble xsk_wakeup_trouble(int rc);
/* Ring sizes for so many frames. False: too few frames for a NIC ring of that size. */
struct xsk_sizes {
    uint32_t fill, rx, tx, tx_frames;
};
bool xsk_sizes(uint32_t frames, uint32_t nic_ring, uint32_t tx_frames, struct xsk_sizes *sizes);
/* The headroom that makes payload dword aligned. */
#define XSK_HEADROOM 2U

#endif
