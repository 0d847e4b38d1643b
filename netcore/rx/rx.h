/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx: the receive interface. One `struct rx` is one backend instance of one listener on one worker; `socket`, `zcrx`,
 * `af_xdp` and the simulated backend implement it. They meet at byte-stream events; packets exist only below af_xdp.
 *
 * Contract (asserted by rx_check.c in every build, tested by tests/contract/ against every backend):
 *  1. rx_poll never blocks and returns at most `max` events.
 *  2. Per connection: RX_OPEN, then RX_DATA*, optionally one RX_EOF or RX_RESET, RX_SENT for each accepted send, then
 *     exactly one RX_CLOSED, after which its id is never used again (the generation differs).
 *  3. RX_DATA carries a slice that belongs to the consumer until released (slice.h), also after RX_CLOSED, in any
 *     order. Slices of one connection are delivered in stream order. Slices that follow each other in one buffer are
 *     adjacent in memory.
 *  4. Flow control is the backend's: see `flow` in struct rx_info. rx_pause stops delivery of RX_DATA for one
 *     connection (a bounded number of slices that were under way may still come); rx_resume starts it again.
 *  5. Trouble with one peer is an event (RX_RESET with an errno); a negative return of rx_poll means that the backend
 *     itself is broken and the listener with it.
 *  6. A send holds its memory as long as the peer likes, unless it is recalled: after rx_send_recall its RX_SENT comes soon, with
 *     error -EAGAIN and in `sent` how much of it TCP had taken. When TCP takes bytes again, one RX_ROOM comes; no sends before it.
 *  7. rx_close may be called in any state and always leads to RX_CLOSED. After rx_close no RX_DATA comes any more.
 *
 * All functions run on the worker's thread. Nothing here blocks.
 */
#ifndef RX_RX_H
#define RX_RX_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/slice.h"
#include "base/uring.h"
#include "rx/rx_xdp_stats.h"

/* Names a connection of one rx instance. */
struct rx_id {
    uint32_t index;
    uint32_t generation; /* never 0 for a live connection */
};

enum rx_event_kind {
    RX_OPEN = 1, /* accepted; `peer` and `local` are valid */
    RX_DATA,     /* `slice` */
    RX_EOF, /* the peer sent FIN: no more RX_DATA; sending is still possible. `error` 0, or -ECONNABORTED: a FIN that anybody on
                    the way could have sent (TLS without close_notify), so that it proves nothing about what came before */
    RX_RESET, /* RST, timeout or receive error: `error` is a -errno; nothing more will be received or sent */
    RX_SENT,  /* a send completed: `cookie`, and `error` 0 or -errno; its memory is the consumer's again */
    RX_ROOM,  /* after rx_send_recall: TCP takes bytes again */
    RX_CLOSED /* last event of a connection */
};

struct rx_event {
    enum rx_event_kind kind;
    struct rx_id id;
    void *user; /* what rx_user_set gave; NULL before */
    union {
        struct slice slice;
        struct {
            const struct sockaddr_storage *peer; /* borrowed until the next rx_poll */
            const struct sockaddr_storage *local;
        };
        struct {
            uint64_t cookie;
            int error;
            uint64_t sent; /* bytes of a recalled send that TCP has */
        };
    };
};

enum rx_flow {
    RX_FLOW_READ,   /* no read, no window: the backend stops reading when its area is empty (socket) */
    RX_FLOW_WINDOW, /* releasing slices opens the advertised window (af_xdp) */
    RX_FLOW_SHARED /* the window is the kernel's; an empty area makes the NIC drop for every peer of the queue (zcrx) */
};

/* What a backend is and has; constant after open except where said. */
struct rx_info {
    const char *path; /* "socket", "zcrx", "af_xdp", "sim" */
    enum rx_flow flow;
    uint32_t buffer_size; /* bytes of one receive buffer, as granted */
    uint32_t buffers_total;
    uint32_t conns_max;
    bool shares_buffers; /* af_xdp: with the other listeners of its interface, of which the first has `xdp` */
    bool copies;         /* the kernel copies payload into the area (socket; zcrx in device-less mode) */
};

/* Counters since open; per instance, read by other threads with relaxed loads. Names are those of metrics.def. */
struct rx_stats {
    _Atomic uint64_t conns_opened;
    _Atomic uint64_t conns_refused; /* over conns_max, closed at once */
    _Atomic uint64_t conns_reset;
    _Atomic uint64_t conns_open; /* gauge */
    _Atomic uint64_t received_bytes;
    _Atomic uint64_t sent_bytes;
    _Atomic uint64_t receives;            /* completions that carried data */
    _Atomic uint64_t buffers_free;        /* gauge */
    _Atomic uint64_t buffers_free_low;    /* lowest value of the gauge */
    _Atomic uint64_t starved;             /* times a readable connection found no free buffer */
    _Atomic uint64_t exhausted;           /* zcrx: times the NIC found no free buffer and dropped */
    _Atomic uint64_t refills;             /* zcrx: entries of the refill ring */
    _Atomic uint64_t kernel_copied_bytes; /* zcrx: copy fallback; socket: every byte */
    _Atomic uint64_t
        moved_bytes; /* af_xdp: bytes of jumbo frames behind their first buffer, moved to be aligned */
    _Atomic uint64_t accept_errors;
    _Atomic uint64_t conns_handed; /* zcrx: accepted here and given to the worker of their queue */
    _Atomic uint64_t
        wrong_queue; /* zcrx: connections, and turns of one, that arrived on another worker's queue */
};

struct rx_group;

#define RX_QUEUES_MAX 128U

/* af_xdp: what the listeners of one interface have together on one worker; each of them is opened with the same. */
struct rx_share {
    uint64_t area_offset; /* one piece of the mapping, for the frames of all and their kernel sockets */
    uint64_t area_size;
    uint32_t listeners;
    uint32_t conns_max; /* of all together */
    uint32_t conn_buffers_max;
    uint64_t
        busy_poll_ns; /* how long after the last frame the worker asks for more without sleeping; 0: never */
    uint32_t queue_count; /* 0: this worker has none, and serves what comes through the kernel */
    uint16_t queues[RX_QUEUES_MAX];
    /* Queues that the interface gets later are this worker's, too, when they are queue_first, queue_first + queue_step and so on; step 0:
     * none but those above. */
    uint32_t queue_first, queue_step;
};

struct rx_options {
    const char *name; /* listener name, for messages; outlives the instance */
    struct sockaddr_storage address;
    socklen_t address_len;
    struct uring *uring; /* the worker's ring; class URING_CLASS_RX is this instance's group's */
    struct arena
        *arena; /* registered; the receive area is cut from [area_offset, +area_size) of the mapping */
    uint64_t area_offset; /* bytes from arena->base */
    uint64_t area_size;   /* bytes, multiple of buffer_size */
    uint32_t buffer_size; /* bytes, power of two, 4 KiB .. 1 MiB; 0: the backend's default */
    uint32_t conns_max;
    uint32_t
        conn_buffers_max; /* buffers that one connection may hold; zcrx may overshoot once by what the kernel had queued */
    uint32_t worker_index; /* SO_REUSEPORT group member */
    uint32_t workers;
    uint32_t keepalive_s;     /* TCP keepalive idle time; 0: system default */
    uint32_t user_timeout_ms; /* TCP_USER_TIMEOUT; 0: system default */
    const char *interface;    /* zcrx, af_xdp; NULL otherwise */
    uint32_t queue;           /* zcrx; af_xdp without `share` */
    struct rx_group *group; /* zcrx on several queues: what its workers share (rx_group.h); NULL otherwise */
    const struct rx_share *share; /* af_xdp; NULL: the listener has its interface and `queue` alone */
    const char *
        ignore_interface; /* socket: TCP that comes through it (or a VLAN on it) is dropped unanswered; NULL: none */
    uint32_t records_max; /* zcrx: completions recorded ahead of rx_poll, power of two; 0: 16,384 */
    const void *filter;   /* a filter above a backend (TLS): its own options; NULL otherwise */
};

struct rx;

/* The table each backend fills. Callers use the checked wrappers below, never the table. */
struct rx_ops {
    const char *path;
    int (*open)(const struct rx_options *options, struct rx **out, struct err *err);
    void (*close)(struct rx *rx);
    int (*poll)(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max);
    uint64_t (*deadline)(struct rx *rx);
    void (*user_set)(struct rx *rx, struct rx_id id, void *user);
    void (*pause)(struct rx *rx, struct rx_id id);
    void (*resume)(struct rx *rx, struct rx_id id);
    int (*send)(struct rx *rx, struct rx_id id, const struct iovec *iov, uint32_t iov_count, uint64_t cookie);
    int (*send_recall)(struct rx *rx, struct rx_id id); /* NULL: the backend cannot */
    uint64_t (*acked)(struct rx *rx, struct rx_id id);  /* NULL: RX_SENT says it soon enough */
    void (*shutdown)(struct rx *rx, struct rx_id id);
    void (*conn_close)(struct rx *rx, struct rx_id id, bool abortive);
    void (*accept_stop)(struct rx *rx);
};

/* Every backend's struct begins with this. */
struct rx {
    uint32_t magic; /* RX_MAGIC while open */
    const struct rx_ops *ops;
    struct rx_check *check; /* rx_check.c's record of the contract */
    struct rx_info info;
    struct rx_stats stats;
    const struct rx_xdp_stats *xdp; /* af_xdp, at the first listener of an interface; else NULL */
    struct slice_owner owner;       /* lends the slices */
};

#define RX_MAGIC 0x72783031U
#define RX_SEND_IOV_MAX 8U /* fragments of one send */
#define RX_SENDS_MAX 4U    /* sends of one connection in flight */

extern const struct rx_ops rx_socket_ops;
/* Needs a ring with 32-byte CQEs. `interface` NULL: device-less mode, in which the kernel copies (development, tests). */
extern const struct rx_ops rx_zcrx_ops;
/* Needs `interface`, CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF. Has up to 64 connections more than conns_max: those of peers that do not
 * come through the interface, served by a kernel socket. Over conns_max a SYN is not answered, so that the peer tries again. Several
 * listeners on one interface and ring are opened with one rx_share. */
extern const struct rx_ops rx_xdp_ops;
/* Is the XDP program of af_xdp attached to this interface? False also while nobody has it open. Any thread. */
bool rx_xdp_is_attached(const char *interface);
/* Whether the kernel takes the XDP program of this process: it is loaded for an interface and let go. */
int rx_xdp_try(const char *interface, struct err *err);

/* Opens a listening instance. On failure nothing stays open and `err` names the listener, address and remedy. */
int rx_open(const struct rx_ops *ops, const struct rx_options *options, struct rx **out, struct err *err);
/* Closes everything: connections are reset, RX_CLOSED is not delivered. The consumer must have released all slices
 * (CHECK) and keep no send memory in use by it afterwards. */
void rx_close(struct rx *rx);

/* Collects events; see the contract. 0..max, or negative when the backend is broken. */
int rx_poll(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max);
/* When rx_poll wants to be called next even if nothing completes; TIME_NEVER if not at all; 0: at once. */
uint64_t rx_deadline(struct rx *rx);

/* Attaches the consumer's pointer; events carry it from then on. */
void rx_user_set(struct rx *rx, struct rx_id id, void *user);

void rx_pause(struct rx *rx, struct rx_id id);
void rx_resume(struct rx *rx, struct rx_id id);

/* Queues bytes in order after earlier sends. The memory (not the iovec array) is the backend's until RX_SENT with this
 * cookie: all bytes were handed to TCP, or `error` says why not. -EAGAIN: RX_SENDS_MAX are in flight; -EPIPE: the
 * connection was reset or shut down: no RX_SENT will come. iov_count 1..RX_SEND_IOV_MAX, no empty fragments. */
int rx_send(struct rx *rx, struct rx_id id, const struct iovec *iov, uint32_t iov_count, uint64_t cookie);
/* Takes back what TCP has not taken of the sends in flight; see the contract. Without any in flight only RX_ROOM comes. No RX_ROOM
 * comes after rx_conn_close; one may stand behind the RX_RESET of the same rx_poll. Idempotent. -EOPNOTSUPP: the backend cannot; -EAGAIN: not after
 * rx_shutdown (af_xdp). Nothing changes then. */
int rx_send_recall(struct rx *rx, struct rx_id id);
/* How much the peer's TCP has acknowledged, to be compared with what it was before: it moves while a send is in flight, too, whose
 * RX_SENT may stay away until a third of a large socket buffer is free. Always 0: the backend tells by RX_SENT alone. */
uint64_t rx_acked(struct rx *rx, struct rx_id id);
/* Sends FIN after the queued sends. Receiving goes on: with rx_close later this is the lingering close. */
void rx_shutdown(struct rx *rx, struct rx_id id);
/* Ends the connection: `abortive` sends RST and drops queued sends (their RX_SENT come with -ECANCELED before
 * RX_CLOSED), otherwise queued sends are completed first. */
void rx_conn_close(struct rx *rx, struct rx_id id, bool abortive);
/* Drain: accepts no new connections from now on; the listening socket is closed. */
void rx_accept_stop(struct rx *rx);

#endif
