/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpsc: the one queue type for messages between threads: many producers push intrusive nodes without a lock, one
 * consumer takes them all, in the order in which they were pushed. A push into an empty queue writes the consumer's
 * eventfd, so that a consumer asleep in its ring (or in poll) wakes.
 */
#ifndef BASE_MPSC_H
#define BASE_MPSC_H

#include <stdatomic.h>
#include <stdint.h>

struct mpsc_node {
    struct mpsc_node *next;
};

struct mpsc {
    _Atomic(struct mpsc_node *) head; /* newest first */
    int event_fd;                     /* written on the empty -> non-empty edge; owned by the queue */
};

/* Creates the eventfd (non-blocking). 0 or -errno. */
int mpsc_open(struct mpsc *queue);
void mpsc_close(struct mpsc *queue);
/* Any thread. The node belongs to the consumer from here on. */
void mpsc_push(struct mpsc *queue, struct mpsc_node *node);
/* Consumer only: all nodes pushed so far, oldest first, linked by next; NULL when there are none. */
struct mpsc_node *mpsc_take_all(struct mpsc *queue);
/* Consumer only, for one that looks in each turn: as mpsc_take_all, and the eventfd is cleared; no system call when there is nothing.
 * A signal may be left over beside an empty queue: it wakes once for nothing. */
struct mpsc_node *mpsc_collect(struct mpsc *queue);
/* Any thread: wakes the consumer without a message. */
void mpsc_wake(struct mpsc *queue);
/* Consumer only: clears the eventfd after it was seen readable. */
void mpsc_clear(struct mpsc *queue);

#endif
