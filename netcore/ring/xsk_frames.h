/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xsk_frames: who has each frame of a UMEM. Pure book-keeping: it knows no ring and no socket.
 *
 *            .--fill--> FILL --receive--> HELD --give--.
 *   FREE ----+                                         +---> FREE
 *            `--take--> OURS --send--> SENT --complete-'
 *                         `-------cancel---------------'
 *            FILL, SENT --bury, their socket is closed--> GONE --reclaim, the kernel is done with it--> FREE
 *
 * Invariants
 *  1. Each frame is in exactly one state; each move names the state it comes from, which is CHECKed where our own code could be
 *     wrong and answered by false where the kernel or a driver could be.
 *  2. A frame that was in the rings of a closed socket is nobody's until the kernel has taken that socket from its queue, which it does
 *     some time after the close: a NIC may still write into it. Which queue's that is, is remembered.
 *  3. counts[s] is the number of frames in state s; together they are `count`.
 */
#ifndef RING_XSK_FRAMES_H
#define RING_XSK_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

enum xsk_frame_state {
    XSK_FRAME_FREE, /* nobody's */
    XSK_FRAME_FILL, /* in the fill ring or the NIC's */
    XSK_FRAME_HELD, /* received: the reader's */
    XSK_FRAME_OURS, /* being written, to be sent */
    XSK_FRAME_SENT, /* in the TX ring, the NIC's or the completion ring */
    XSK_FRAME_GONE, /* was in the rings of a socket that is closed: the kernel may still use it */
    XSK_FRAME_STATES
};

struct xsk_frames {
    uint32_t count;
    uint32_t counts[XSK_FRAME_STATES];
    uint32_t *stack; /* the free ones */
    uint8_t *states; /* of each frame: enum xsk_frame_state */
    uint8_t *queues; /* in FILL, SENT and GONE: the place of the socket that has or had it */
};

/* All frames start FREE. 0 or -ENOMEM. */
int xsk_frames_open(struct xsk_frames *frames, uint32_t count);
void xsk_frames_close(struct xsk_frames *frames);

/* Takes a free frame into `to` (FILL or OURS). False: none is free. */
bool xsk_frames_take(struct xsk_frames *frames, enum xsk_frame_state to, uint32_t *frame);
/* Moves a frame that our own code knows to be in `from`. To FREE, it may be taken again. */
void xsk_frames_move(struct xsk_frames *frames, uint32_t frame, enum xsk_frame_state from,
                     enum xsk_frame_state to);
/* The same for what the kernel says about a frame: false, and nothing changes, if that cannot be. */
bool xsk_frames_move_if(struct xsk_frames *frames, uint64_t frame, enum xsk_frame_state from,
                        enum xsk_frame_state to);
/* Goes into the rings of a socket. Before the move to FILL or SENT. */
void xsk_frames_tag(struct xsk_frames *frames, uint32_t frame, uint8_t queue);
/* Its socket is closed: all of its frames in FILL and SENT are GONE. Returns how many. */
uint32_t xsk_frames_bury(struct xsk_frames *frames, uint8_t queue);
/* The kernel is done with the socket that was closed: what is GONE with it is free. Returns how many. */
uint32_t xsk_frames_reclaim(struct xsk_frames *frames, uint8_t queue);
/* It was not after all: every free frame is GONE with it, as nobody knows which of them were. */
void xsk_frames_unclaim(struct xsk_frames *frames, uint8_t queue);
/* CHECKs invariant 3, by counting. For tests and for closing. */
void xsk_frames_check(const struct xsk_frames *frames);

#endif
