/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn: one accepted connection, whatever protocol it speaks: what has arrived and was not consumed, flow control, sends
 * in flight, one timer, and how it ends.
 *
 * It owns the slices in its inbox and decides when reading is paused. It knows nothing of HTTP, S3 or uploads: a
 * `struct conn_protocol` is asked. It must not free anything that the receive backend may still send from.
 *
 *   OPEN --conn_finish--> LINGER --EOF, idle or time is up--> CLOSING --RX_CLOSED--> (freed)
 *   OPEN, LINGER --conn_abort, RX_RESET--> CLOSING
 *
 * Lingering: an answer that was sent before all input was read is lost when the socket is closed with unread bytes (the
 * kernel then sends RST). So: FIN first, then input is read and dropped until the peer has closed, within bounds.
 */
#ifndef SERVER_CONN_H
#define SERVER_CONN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/list.h"
#include "base/slice.h"
#include "rx/rx.h"
#include "server/metrics.h"
#include "server/timer.h"

#define CONN_LINGER_IDLE_NS (5 * NS_PER_S) /* no byte for this long */
/* and never longer than this: a client that reads no answer is given up */
#define CONN_LINGER_NS (60 * NS_PER_S)

/* a peer that sent ahead keeps its buffers this long while they are short */
#define CONN_HOARDING_NS NS_PER_S
#define CONN_HOARDERS 64U /* reset per turn */

struct conn;
struct exchange;
struct listener;
struct worker;

enum conn_stage { CONN_OPEN = 1, CONN_LINGER, CONN_CLOSING };

struct conn_protocol {
    /* Something changed (bytes, EOF, an answer of the store): go as far as possible without blocking. */
    void (*run)(struct conn *conn);
    /* Can bytes be used now? Otherwise what arrives waits in the inbox and the peer is paused. */
    bool (*wants_data)(const struct conn *conn);
    /* A send has completed, or was given back (RX_SENT). */
    void (*sent)(struct conn *conn, const struct rx_event *event);
    /* RX_ROOM; NULL: never recalls. */
    void (*room)(struct conn *conn);
    /* The conn's timer fired. */
    void (*timeout)(struct conn *conn);
    /* The connection is about to end without the protocol having asked for it: let go of everything but send memory. */
    void (*gone)(struct conn *conn);
    /* FIN is how this protocol says that everything has come: one that proves nothing resets the connection. */
    bool ends_by_fin;
    /* The node drains: end as soon as nothing is under way. */
    void (*drain)(struct conn *conn);
};

struct inbox_node {
    struct inbox_node *next;
    struct slice slice;
};

#define CONN_MAGIC 0x636f6e6eU

struct conn {
    uint32_t magic;
    enum conn_stage stage;
    struct worker *worker;
    struct listener *listener;
    const struct conn_protocol *protocol;
    struct exchange *exchange; /* what is under way; stays until RX_CLOSED because sends may use its memory */
    struct rx_id id;
    struct list link;    /* listener->conns */
    struct list waiter;  /* worker->exchange_waiters */
    struct list hoarder; /* worker->hoarders: it holds receive buffers that wait for the end of its request */
    struct timer timer;
    struct inbox_node *inbox_first;
    struct inbox_node *inbox_last;
    uint64_t opened_ns;
    uint64_t received_ns;    /* last byte */
    uint64_t received_bytes; /* since open */
    uint64_t stage_ns;       /* when this stage began */
    uint64_t acked;          /* rx_acked() when conn_has_taken() looked last */
    uint64_t hoarding_ns;    /* while in worker->hoarders: since when nothing was consumed */
    uint32_t sends;          /* in flight */
    bool is_eof;             /* the peer sent FIN */
    bool is_paused;
    bool is_over_limit; /* refused: answer and close (connections_per_peer_max) */
    struct sockaddr_storage peer;
};

/* An RX_OPEN: takes a conn and attaches it, or closes the connection when a limit is reached. */
void conn_open(struct listener *listener, const struct rx_event *event);
/* The other events; event->user is the conn. */
void conn_event(struct conn *conn, const struct rx_event *event);
/* The conn whose timer this is: it fired. */
void conn_timeout(struct timer *timer);

/* Resets peers that have long held receive buffers with what they sent ahead of an answer, while buffers are short: each such
 * peer pins a whole buffer with a few bytes, and enough of them would stop the listener for all others. */
void conns_turn(struct worker *worker);
uint64_t conns_deadline(const struct worker *worker);

/* Runs the protocol and brings flow control up to date. Call it after anything the protocol may be waiting for. */
void conn_run(struct conn *conn);

/* First slice that was not consumed, or NULL; borrowed until the next call that consumes. */
struct slice *conn_inbox_peek(struct conn *conn);
/* Takes the first slice over, or its first `len` bytes (0 < len <= its length); the caller owns what it gets. */
void conn_inbox_take(struct conn *conn, uint32_t len, struct slice *out);
/* Drops the first `len` bytes of the first slice. */
void conn_inbox_skip(struct conn *conn, uint32_t len);
static inline bool conn_inbox_is_empty(const struct conn *conn)
{
    return conn->inbox_first == NULL;
}

/* Sends; false when the connection can send no more (it is then on its way to RX_CLOSED or will get RX_RESET). */
bool conn_send(struct conn *conn, const struct iovec *iov, uint32_t iov_count, uint64_t cookie);

/* Takes back what was not sent, so that a peer that does not read holds no memory of others; false: the backend cannot. */
bool conn_recall(struct conn *conn);

/* Has the peer taken something of what was sent since the last call? Costs a system call. */
bool conn_has_taken(struct conn *conn);

void conn_timer_set(struct conn *conn, uint64_t deadline_ns);

/* Everything was queued: end politely (FIN, then linger). The protocol is not called again, except `sent`. */
void conn_finish(struct conn *conn);
/* Close without an answer, orderly: idle connections. */
void conn_close(struct conn *conn);
/* RST: what the peer got so far must not look complete. */
void conn_abort(struct conn *conn);

#endif
