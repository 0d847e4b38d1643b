/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker: one thread's share of the node: its receive instances, its port of the store, its connections and its timers.
 *
 * This part has no thread, ring or clock: worker_turn is given the time and does one bounded turn of the loop, so that
 * a test drives it with a simulated receive backend and virtual time. thread.c adds the ring, the clock and the sleep.
 *
 * Invariants:
 *  1. Everything reachable from a worker is touched by its thread only; other threads talk to it through `messages`
 *     and read its metrics cells.
 *  2. All memory of the data path is taken in worker_open.
 *  3. Each stage of a turn has a maximum; reaching it is counted (stage_full) and leaves the rest to the next turn.
 */
#ifndef SERVER_WORKER_H
#define SERVER_WORKER_H

#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/mpsc.h"
#include "base/pool.h"
#include "base/rng.h"
#include "conf/conf.h"
#include "rx/rx.h"
#include "server/auth_sigv4.h"
#include "server/filter.h"
#include "server/hash.h"
#include "server/http_date.h"
#include "server/metrics.h"
#include "server/peer.h"
#include "server/share.h"
#include "server/timer.h"
#include "storage/store.h"

#define WORKER_RX_EVENTS 256U /* receive events of one instance per turn */
#define WORKER_STORE_EVENTS 256U
#define WORKER_TIMERS 256U
#define WORKER_PRESSURE 64U      /* puts told to write, or to let go of their slices, per turn */
#define WORKER_IDLE_PARTS 2U     /* with less than one buffer in two free, idle uploads keep none */
#define WORKER_SHORT_PARTS 4U    /* with less than one in four, buffers are short: all write what they have */
#define WORKER_CRITICAL_PARTS 8U /* with less than one in eight, nobody keeps any */
#define WORKER_BLOCKS 32U        /* answers that need a block of text at once: listings, multi-deletes */
#define WORKER_BLOCK_SIZE 65536U
#define WORKER_TABLES 4U                    /* part tables of completions at once */
#define WORKER_PARTIAL_NS (100 * NS_PER_MS) /* a put that was not fed for this long writes what it has */

struct conn;
struct exchange;
struct worker;

/* What outlives workers and is shared by them, read-only apart from the atomics. */
struct worker_shared {
    _Atomic uint64_t raw_sequence;                        /* {seq} of key templates */
    _Atomic(struct auth_keys *) keys[CONF_LISTENERS_MAX]; /* NULL: the listener has no credentials */
    struct tls_context *tls[CONF_LISTENERS_MAX];          /* NULL: plain; constant while workers run */
};

struct listener {
    struct worker *worker;
    uint32_t index; /* in conf->listeners */
    const struct conf_listener *conf;
    struct rx *rx;
    struct rx_info info;
    struct metrics_listener *cells;
    struct list conns;
    uint32_t conn_count;
    uint32_t upload_count;
    uint32_t idle_slices_max; /* more of them make an upload write what it has */
    bool is_broken;           /* the backend failed; its connections are gone */
    bool is_stopped;          /* accepts nothing any more */
    struct text domain;       /* virtual-host style; absent: none */
};

struct worker_options {
    uint32_t index;
    const struct conf *conf;
    struct worker_shared *shared;
    struct store_port *port;
    struct rx *rx[CONF_LISTENERS_MAX]; /* one per configured listener */
    struct metrics_worker *cells;
    struct metrics_listener *listener_cells[CONF_LISTENERS_MAX];
    bool wants_hash_thread;
    uint64_t now_ns;
    uint64_t random_seed; /* request ids and ETags; from getrandom in production */
};

enum worker_message_kind {
    WORKER_MESSAGE_DRAIN, /* accept nothing, finish what is under way */
    WORKER_MESSAGE_STOP,  /* reset what is left and end */
    WORKER_MESSAGE_SYNC,  /* post `done`: what was replaced in worker_shared before is not used any more */
};
struct worker_message {
    struct mpsc_node node;
    enum worker_message_kind kind;
    sem_t *done; /* SYNC */
};

struct worker {
    uint32_t index;
    const struct conf *conf;
    struct worker_shared *shared;
    struct store_port *port;
    uint64_t now_ns;
    uint64_t wall_ns;
    struct metrics_worker *cells;
    uint64_t copied_seen[STORE_COPY_REASONS]; /* of the port, so that two listeners never claim one byte */
    struct listener listeners[CONF_LISTENERS_MAX];
    uint32_t listener_count;

    struct pool conns;
    struct pool exchanges;
    struct pool inbox_nodes;
    struct pool blocks; /* WORKER_BLOCK_SIZE each */
    struct pool tables; /* STORE_PART_MAX part references each */
    struct peers peers;
    struct timers timers;
    struct hasher hasher;
    struct filter filter;
    struct mpsc messages;

    struct list hoarders;         /* conns that hold what their peers sent ahead, longest first */
    struct list exchange_waiters; /* conns that found no free exchange */
    struct share shares[SHARE_COUNT];
    struct list uploads;     /* open puts, least recently fed first */
    struct list relieved;    /* those that have written what they could since, least recently fed first */
    struct list copying;     /* uploads that read an object of ours */
    struct list filtering;   /* uploads with payload on its way through the filter */
    struct list throttled;   /* puts whose peer is paused until the device has caught up */
    uint32_t exchange_count; /* in use, those whose connection is gone included */
    uint32_t orphans;        /* of these, the ones whose connection is gone */

    struct rng rng;
    uint64_t request_prefix;
    uint64_t request_count;
    struct auth_sigv4_cache key_cache;
    int64_t date_s;
    char date[HTTP_DATE_SIZE];

    bool is_draining;
    bool is_stopping;
    /* payload bytes of listeners whose peers the kernel holds back while the worker sleeps */
    uint64_t gatherable;
    struct rx_event rx_events[WORKER_RX_EVENTS];
    struct store_event store_events[WORKER_STORE_EVENTS];
};

/* Takes all memory. On failure nothing is left. The ring, port and receive instances stay the caller's. */
int worker_open(struct worker *worker, const struct worker_options *options, struct err *err);
/* Every connection and exchange must be gone (worker_is_idle). */
void worker_close(struct worker *worker);
/* Last of all, when no other thread can post any more: a message may come while the worker is closing. */
void worker_messages_close(struct worker *worker);

/* One turn. Never blocks. */
void worker_turn(struct worker *worker, uint64_t now_ns, uint64_t wall_ns);
/* When the next turn is due even if nothing completes; 0: at once. */
uint64_t worker_deadline(struct worker *worker);

/* Any thread. */
void worker_post(struct worker *worker, struct worker_message *message);

/* Nothing is open or in flight. */
bool worker_is_idle(const struct worker *worker);

/* For the rest of the server: 16 hex digits and a NUL, unique over restarts for all practical purposes. */
void worker_request_id(struct worker *worker, char out[17]);
/* The Date header's value for the current turn. */
const char *worker_date(struct worker *worker);

#endif
