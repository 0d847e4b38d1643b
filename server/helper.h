/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper: a thread beside one worker for what would stall it (digests, compression, handshakes). Jobs go to the thread by one queue and
 * come back by another, in the order in which they were submitted. It owns the thread and both queues. It knows nothing of what is in a
 * job: that belongs to the thread from helper_submit until it was collected, and to the worker at any other time.
 *
 * Everything but the work function is called by the worker alone.
 */
#ifndef SERVER_HELPER_H
#define SERVER_HELPER_H

#include <pthread.h>
#include <stdbool.h>

#include "base/mpsc.h"

struct helper {
    bool is_open;
    void (*work)(void *user, struct mpsc_node *job);
    void *user;
    pthread_t thread;
    struct mpsc to_thread;
    struct mpsc to_worker;
    struct mpsc_node stop; /* told from jobs by its address */
};

/* Starts the thread, which calls work(user, job) for each job. name: at most 15 bytes, for people who look at top. 0 or -errno, and the
 * helper is closed then. */
int helper_open(struct helper *helper, const char *name, void (*work)(void *user, struct mpsc_node *job),
                void *user);
/* The thread works off what it was given and ends. Returns the jobs that were not collected before, as helper_collect does. Closing a
 * helper that is closed does nothing. */
struct mpsc_node *helper_close(struct helper *helper);
void helper_submit(struct helper *helper, struct mpsc_node *job);
/* Jobs that are done, oldest first, linked by next; NULL when there are none, which costs no system call. */
struct mpsc_node *helper_collect(struct helper *helper);
/* Blocks until a job may have come back. Only while the thread has one: nothing else ends it. */
void helper_wait(struct helper *helper);
/* Becomes readable when jobs came back; -1 when closed. */
int helper_event_fd(const struct helper *helper);

#endif
