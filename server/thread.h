/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread: runs one worker on a thread of its own: ring, arena, port, receive instances, the clock and the sleep.
 *
 *   thread_start -> (opens everything on the new thread) -> thread_wait_ready -> loop -> DRAIN or STOP message and
 *   nothing left -> (closes everything) -> thread_join
 */
#ifndef SERVER_THREAD_H
#define SERVER_THREAD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/uring.h"
#include "server/gather.h"
#include "server/metrics.h"
#include "server/receive.h"
#include "server/worker.h"

/* Registered files of a worker's ring: devices of the store, descriptors of the receive side. The kernel refuses a table above the limit
 * of open files. */
#define THREAD_FILES 256U

struct thread {
    /* in, set by the owner before thread_start */
    uint32_t index;
    const struct conf *conf;
    struct worker_shared *shared;
    struct store *store;
    struct metrics *metrics;
    struct receive_plan plans[CONF_LISTENERS_MAX]; /* the receive path chosen for each listener */
    struct rx_group *groups[CONF_LISTENERS_MAX];   /* zcrx on several queues; NULL otherwise */
    int ended_fd;                                  /* eventfd, written when the loop has ended */

    /* out */
    int status; /* valid after thread_wait_ready: 0 or why it could not start */
    struct err err;
    _Atomic bool is_ended;

    /* private */
    pthread_t pthread;
    sem_t ready;
    struct uring uring;
    struct arena arena;
    struct store_port *port;
    struct rx *rx[CONF_LISTENERS_MAX];
    struct worker worker;
    struct gather gather;
    struct worker_message drain;
    struct worker_message stop;
    bool is_drain_posted;
    bool is_stop_posted;
    struct thread_wake {
        int fd;
        bool is_armed;
    } __attribute__((aligned(16))) wakes[4];
};

/* Bytes of registered memory and of connection state are as conf.h's formulas say. 0 or -errno (of pthread_create). */
int thread_start(struct thread *thread, struct err *err);
/* Blocks until it runs or has given up; returns thread->status. */
int thread_wait_ready(struct thread *thread);
/* Any thread; each at most once counts. */
void thread_drain(struct thread *thread);
void thread_stop(struct thread *thread);
void thread_join(struct thread *thread);

#endif
