/* SPDX-License-Identifier: Apache-2.0 */
/* tls_int: what tls_rx.c, tls_conn.c, tls_buffers.c and tls_handshake.c share. */
#ifndef SERVER_TLS_INT_H
#define SERVER_TLS_INT_H

#include "base/list.h"
#include "server/helper.h"
#include "server/tls_rx.h"

#define TLS_IN_SLICES 8U                        /* ciphertext slices of one connection; a power of two */
#define TLS_RECORD_ROOM (TLS_RECORD_MAX + 512U) /* a record of either version, and an alert */
#define TLS_OUT_SIZE CONF_TLS_OUT_SIZE          /* ciphertext on its way to TCP */
#define TLS_INNER_SENDS 2U                      /* inner sends in flight: one is filled while one is sent */
#define TLS_INNER_EVENTS 64U
#define TLS_PLACE_MASK 4095U

_Static_assert(TLS_OUT_SIZE >= 2 * TLS_RECORD_ROOM, "one record is made while another is sent");

struct tls_rx;

struct tls_buffer {
    uint32_t refs;   /* slices lent and not released */
    int32_t filler;  /* index of the connection that fills it, or -1 */
    uint32_t holder; /* connection that took it */
    uint32_t holder_generation;
};

enum tls_stage {
    TLS_FREE,
    TLS_HANDSHAKE,
    TLS_OPEN,
    TLS_REFUSED /* the handshake failed: an alert or a plain answer goes out, input is dropped */
};

enum tls_end { TLS_END_NONE, TLS_END_EOF, TLS_END_RESET };

struct tls_send {
    struct iovec iov[RX_SEND_IOV_MAX];
    uint32_t iov_count;
    uint32_t iov_at; /* first fragment not yet wholly encrypted */
    uint64_t cookie;
    uint64_t out_end; /* position in the ciphertext stream after it, when iov_at == iov_count */
    uint64_t sent;    /* bytes encrypted */
};

/*
 * One connection.
 *
 *   FREE --accepted--> HANDSHAKE --done--> OPEN          any --inner RX_CLOSED--> FREE
 *                          `--failed--> REFUSED
 *
 * `ssl`, in_read, in_at and out_tail belong to the helper thread while is_lent; everything else is the worker's.
 */
struct tls_conn {
    struct mpsc_node job;
    struct list dirty_node;     /* tls->dirty: tls_conn_step has something to do */
    struct list wait_node;      /* tls->starved or tls->over */
    struct list handshake_node; /* tls->handshakes, oldest first */
    struct tls_rx *tls;
    struct rx_id id; /* the inner connection's, which is ours too */
    void *user;
    SSL *ssl;
    enum tls_stage stage;
    uint64_t deadline_ns; /* of the handshake */

    bool is_lent;
    int job_result; /* of SSL_get_error, by the helper */
    bool job_is_http;
    bool is_paused;        /* by the consumer */
    bool is_inner_paused;  /* by us: ciphertext waits */
    bool is_inner_eof;     /* FIN arrived */
    bool is_inner_shut;    /* rx_shutdown of the inner connection */
    bool is_inner_closing; /* rx_conn_close of the inner connection */
    bool is_timed_out;
    bool has_input; /* bytes may be read: set by arrivals, cleared when OpenSSL wants more */
    bool is_ended;  /* EOF or RESET was found: nothing is read any more */
    bool is_reset;  /* RX_RESET was delivered */
    bool is_closing;
    bool is_abortive;
    bool wants_fin;
    bool is_notified; /* close_notify was written */
    bool is_recalled; /* rx_send_recall; RX_ROOM is still to be told */
    enum tls_end end; /* to be delivered */
    int end_error;
    int send_error; /* not 0: no send will succeed any more */

    struct slice in[TLS_IN_SLICES]; /* positions below count up; places are modulo */
    uint32_t in_released;
    uint32_t in_read;
    uint32_t in_limit; /* what OpenSSL may read */
    uint32_t in_tail;
    uint32_t in_at; /* bytes consumed of in[in_read] */

    uint8_t *out; /* a ring of TLS_OUT_SIZE */
    uint64_t out_sent;
    uint64_t out_queued; /* handed to the inner connection */
    uint64_t out_tail;
    uint64_t out_limit; /* how far OpenSSL may write */
    uint32_t inner_sends;

    struct tls_send sends[RX_SENDS_MAX];
    uint32_t send_head;      /* oldest not reported */
    uint32_t send_encrypted; /* next to be encrypted */
    uint32_t send_tail;

    int32_t buffer;   /* plaintext buffer being filled, or -1 */
    uint32_t fill;    /* next byte in it */
    uint32_t residue; /* where the next byte's address must lie, modulo 4 KiB */
    uint32_t buffers_held;
};

_Static_assert(
    sizeof(struct tls_conn) + TLS_OUT_SIZE + 2 * (TLS_RECORD_MAX + 1024) < CONF_TLS_STATE_SIZE,
    "what the configuration promises per connection holds our state, two record buffers and a session");

struct tls_wake {
    struct mpsc *queue;
    bool is_armed;
} __attribute__((aligned(16)));

struct tls_rx {
    struct rx rx; /* first */
    struct rx *inner;
    struct tls_rx_options options;
    struct uring *uring;
    struct tls_conn *conns;
    uint8_t *rings; /* conns_max x TLS_OUT_SIZE */
    BIO_METHOD *bio_method;
    struct list dirty;
    struct list handshakes;
    uint64_t now_ns;

    uint8_t *area;
    int32_t buf_index;
    uint32_t conn_buffers_max;
    struct tls_buffer *buffers;
    uint32_t *free_stack;
    uint32_t free_count;
    struct list starved;
    struct list over;
    uint64_t starved_count;
    bool may_wake; /* a buffer came free while somebody waited */

    struct helper helper;
    uint32_t jobs; /* at the helper */
    struct tls_wake wake;
};

static inline struct tls_rx *tls_of(struct rx *rx)
{
    return (struct tls_rx *)rx;
}

static inline void tls_mark_dirty(struct tls_conn *conn)
{
    if (!list_is_linked(&conn->dirty_node)) {
        list_append(&conn->tls->dirty, &conn->dirty_node);
    }
}

/* tls_buffers.c: the plaintext buffers. */
int tls_buffers_open(struct tls_rx *tls);
void tls_buffers_close(struct tls_rx *tls); /* every slice was released (CHECK) */
void tls_buffer_detach(struct tls_conn *conn);
/* Makes sure that the connection has a buffer to fill; false: it waits for one. */
bool tls_buffer_want(struct tls_conn *conn);
/* Lends `len` bytes at the fill position to the consumer. */
void tls_buffer_lend(struct tls_conn *conn, uint32_t len, struct slice *out);
/* A buffer in which nobody holds bytes is of no use to a connection that waits. */
void tls_buffer_idle(struct tls_conn *conn);
/* Connections that waited and may try again become dirty. */
void tls_buffers_wake(struct tls_rx *tls);

/* tls_conn.c: one connection between OpenSSL, the inner backend and the consumer. */
BIO_METHOD *tls_bio_method_new(void);
int tls_conn_begin(struct tls_rx *tls, struct tls_conn *conn);
void tls_conn_inner(struct tls_conn *conn, const struct rx_event *event);
/* Goes as far as possible; true: `event` is filled and there may be more. */
bool tls_conn_step(struct tls_conn *conn, struct rx_event *event);
void tls_conn_end(struct tls_conn *conn);
/* Around each use of `ssl`: what it may read and write; and releasing what it has read. */
void tls_conn_lend(struct tls_conn *conn);
void tls_conn_settle(struct tls_conn *conn);

/* tls_handshake.c: the helper thread. */
int tls_helper_open(struct tls_rx *tls);
void tls_helper_close(struct tls_rx *tls); /* all connections are back afterwards */
void tls_helper_submit(struct tls_conn *conn);
/* Takes back what is done; those connections become dirty. */
void tls_helper_collect(struct tls_rx *tls);

#endif
