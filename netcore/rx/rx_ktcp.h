/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_ktcp: what the backends on kernel TCP (`socket`, `zcrx`) share: listening, accepting, sending, closing and the
 * queue of completions. How payload is received is the backend's; it fills struct ktcp_receive.
 *
 * Only for files of this folder. All functions run on the worker's thread.
 *
 * Invariants
 *  1. A connection's memory is reused only when none of its operations is in flight.
 *  2. A completion is recorded in `done` and acted on in ktcp_poll, one at a time, at most one event each.
 *  3. A connection that has more to say without a completion is on `dirty`.
 */
#ifndef RX_RX_KTCP_H
#define RX_RX_KTCP_H

#include "base/pool.h"
#include "rx/rx_int.h"

#define KTCP_ACCEPTS 16U /* accept operations kept in flight */

struct ktcp;

struct ktcp_send {
    struct iovec iov[RX_SEND_IOV_MAX];
    uint32_t iov_count;
    uint32_t iov_at; /* first fragment not yet wholly sent */
    uint64_t cookie;
    uint64_t sent; /* bytes TCP has taken */
};

struct ktcp_conn {
    struct rx_op recv_op;
    struct rx_op send_op;
    struct rx_op recall_op; /* the cancellation of send_op that rx_send_recall asks for */
    struct list dirty_node;
    struct list wait_node; /* the receive side's: waiting for a buffer */
    uint32_t index;
    uint32_t generation;
    int fd; /* -1: this place is free */
    void *user;
    bool opened; /* RX_OPEN was delivered */
    bool paused;
    bool ended;   /* EOF or RESET was delivered, or receiving failed */
    bool closing; /* rx_conn_close */
    bool abortive;
    bool fin_wanted;
    bool send_dead; /* a send failed or FIN was sent */
    bool recalled;  /* rx_send_recall; RX_ROOM is still to be told */
    bool polling;   /* send_op waits for room (true) or is a send (false) */
    bool cancelled; /* the receive operation was told to stop */
    uint8_t send_head;
    uint8_t send_count;
    int send_error; /* why send_dead, for the sends behind the failed one */
    struct ktcp_send sends[RX_SENDS_MAX];
    struct msghdr message;
    /* The receive side's own. */
    int32_t buffer;   /* index of the buffer being filled, or -1 */
    uint32_t fill;    /* next byte in it */
    uint32_t residue; /* where the next byte's address must lie, modulo 4 KiB */
    uint32_t buffers_held;
    uint32_t
        source; /* zcrx: whose area it is to receive from: 0 its own, else a member of the group, plus 1 */
    uint32_t source_asked; /* zcrx: whose area the receive that is under way, or was last, names */
    uint32_t source_tries; /* zcrx: areas that were not the right one, since the last data */
    bool receiving;        /* recv_op is a receive (true) or a poll (false) */
    uint32_t records;      /* completions of a multishot receive that were recorded and not acted on */
};

struct ktcp_accept {
    struct rx_op op;
    struct sockaddr_storage peer;
    struct sockaddr_storage local;
    socklen_t peer_len;
};

/* What a backend does differently. */
struct ktcp_receive {
    /* (Re)starts receiving on an open connection that is not paused, ended or closing. Called freely: does nothing if
     * an operation is in flight or the connection waits for a buffer. */
    void (*start)(struct ktcp *ktcp, struct ktcp_conn *conn);
    /* A connection was accepted and nothing of it read: true when it was given away. NULL: all are kept. */
    bool (*accepted)(struct ktcp *ktcp, int fd, const struct ktcp_accept *accept);
    /* recv_op completed. Fills `event` and returns true when there is something to tell. */
    bool (*done)(struct ktcp *ktcp, struct ktcp_conn *conn, struct rx_event *event);
    /* Records a completion of recv_op; NULL: the common way, one completion per operation. A multishot backend keeps
     * its own queue, counts conn->records and calls ktcp_op_end with the last completion. */
    void (*record)(struct rx_op *op, const struct io_uring_cqe *cqe);
    /* The instance closes: give back what recorded completions carry. NULL if `record` is. */
    void (*drop)(struct ktcp *ktcp);
    /* The connection is going: give back what it holds for receiving. No operation is in flight. */
    void (*end)(struct ktcp *ktcp, struct ktcp_conn *conn);
};

struct ktcp {
    struct rx rx; /* first */
    const struct ktcp_receive *receive;
    struct uring *uring;
    struct pool pool;  /* of struct ktcp_conn; index = place */
    struct list done;  /* completed operations, oldest first */
    struct list dirty; /* connections with something to say */
    struct ktcp_accept accepts[KTCP_ACCEPTS];
    bool accept_rearm; /* some accept is not in flight */
    bool accepting;
    uint64_t accept_after_ns; /* no accept before this (descriptors were short) */
    int listen_fd;
    uint32_t keepalive_s;
    uint32_t user_timeout_ms;
    uint32_t receive_buffer_max; /* SO_RCVBUF of accepted connections, bytes; 0: the system chooses */
    uint32_t ops_in_flight;
};

/* Binds and listens. `ktcp` is zeroed memory; rx.info.conns_max is set. 0 or -errno with a sentence. */
int ktcp_open(struct ktcp *ktcp, const struct rx_options *options, const struct ktcp_receive *receive,
              struct err *err);
/* Resets every connection and waits (in the ring) until nothing is in flight. */
void ktcp_close(struct ktcp *ktcp);

/* From now on TCP that comes through this interface, or a VLAN on it, is dropped unanswered by the listening socket and what it
 * accepts: somebody else's engine answers it. So is what comes through interfaces that do not exist yet: call it again when there are
 * others (xdp_port_generation). 0 or -errno. */
int ktcp_ignore(struct ktcp *ktcp, const char *interface);

/* Submission by a receive side: a fresh SQE bound to `op`. Fill it with io_uring_prep_* and call ktcp_submit. */
void ktcp_op_submit(struct ktcp *ktcp, struct rx_op *op, struct io_uring_sqe *sqe);
/* The last completion of an operation arrived (for a backend's own `record`). */
void ktcp_op_end(struct ktcp *ktcp, struct rx_op *op);
/* An operation of the backend's own, beside those of connections; `done` must call ktcp_op_end. */
void ktcp_op_own(struct ktcp *ktcp, struct rx_op *op,
                 void (*done)(struct rx_op *op, const struct io_uring_cqe *cqe));
/* Takes in an accepted descriptor: true and RX_OPEN in `event`, or it was closed and counted as refused. The addresses are
 * borrowed by the event. */
bool ktcp_adopt(struct ktcp *ktcp, int fd, const struct sockaddr_storage *peer,
                const struct sockaddr_storage *local, struct rx_event *event);
/* Asks the kernel to end an operation early; its completion still comes. Does nothing if none is in flight. */
void ktcp_op_cancel(struct ktcp *ktcp, const struct rx_op *op);
/* Puts a connection on the list of those with something to say (after the last record of a closing one). */
void ktcp_mark_dirty(struct ktcp *ktcp, struct ktcp_conn *conn);
/* Fills kind, id and user; zeroes the rest. */
void ktcp_event_init(struct rx_event *event, enum rx_event_kind kind, const struct ktcp_conn *conn);
struct ktcp_conn *ktcp_conn_at(struct ktcp *ktcp, uint32_t index);

int ktcp_poll(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max);
uint64_t ktcp_deadline(struct rx *rx);
void ktcp_user_set(struct rx *rx, struct rx_id id, void *user);
void ktcp_pause(struct rx *rx, struct rx_id id);
void ktcp_resume(struct rx *rx, struct rx_id id);
int ktcp_send(struct rx *rx, struct rx_id id, const struct iovec *iov, uint32_t iov_count, uint64_t cookie);
int ktcp_send_recall(struct rx *rx, struct rx_id id);
uint64_t ktcp_acked(struct rx *rx, struct rx_id id);
void ktcp_shutdown(struct rx *rx, struct rx_id id);
void ktcp_conn_close(struct rx *rx, struct rx_id id, bool abortive);
void ktcp_accept_stop(struct rx *rx);

/* Counters are written by one thread and read by others. */
static inline void ktcp_count(_Atomic uint64_t *counter, uint64_t by)
{
    __atomic_store_n((uint64_t *)counter, __atomic_load_n((uint64_t *)counter, __ATOMIC_RELAXED) + by,
                     __ATOMIC_RELAXED);
}

static inline void ktcp_gauge(_Atomic uint64_t *gauge, uint64_t value)
{
    __atomic_store_n((uint64_t *)gauge, value, __ATOMIC_RELAXED);
}

#endif
