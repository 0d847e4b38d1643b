/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp: a sans-IO TCP engine for a server that receives in bulk (and answers, and serves reads).
 *
 * The engine has no clock, allocates nothing, calls nobody back and sends nothing. The caller hands in frames with the time,
 * then takes out events, frames to send, and buffers that are free again:
 *
 *     tcp_input / tcp_tick / tcp_send / ...      what happened
 *     tcp_next_event, tcp_next_packet            what follows from it (until each returns 0)
 *     tcp_frames_take                            buffers whose last reference has gone
 *     tcp_poll_at                                when tcp_tick must be called at the latest
 *
 * Frames by reference. A received frame lies in one or more buffers that the caller names by `token` (< frames_count). A buffer
 * that carries payload is held by the engine (out of order, or not yet taken), then by the consumer of the DATA event, and comes
 * back by tcp_frames_take after the last tcp_release. Payload is never copied or touched, except to verify its checksum.
 *
 * Invariants:
 *  1. Events of one connection: OPEN, DATA*, at most one EOF, at most one RESET, a SENT for each accepted send, then, after
 *     tcp_close, exactly one CLOSED, after which the id names nothing. After tcp_close no DATA comes.
 *  2. The right edge of the advertised window never moves left. It follows the buffers that a connection holds.
 *  3. A segment that is refused for lack of buffers changes nothing on the receiving side.
 *  4. SYNs, TIME-WAITs and connections live in pools of their own: a flood of SYNs costs established peers nothing.
 *
 * All times are nanoseconds of one monotonic clock and never go back. One thread uses an engine.
 */
#ifndef TCP_TCP_H
#define TCP_TCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "tcp/tcp_counters.h"
#include "tcp/tcp_wire.h"

#define TCP_SENDS_MAX 4U    /* sends of one connection in flight */
#define TCP_SEND_IOV_MAX 8U /* fragments of one send */
#define TCP_LISTENS_MAX 64U

/* Zero means the default in the comment, except where it says otherwise. */
struct tcp_config {
    uint32_t conns_max;      /* required */
    uint32_t syns_max;       /* half-open connections kept before cookies are used; 1024 */
    uint32_t time_waits_max; /* 1024; the oldest makes room */
    uint32_t frames_count;   /* required: tokens are 0 .. frames_count - 1 */
    uint32_t
        frames_hold_max; /* buffers that engine and consumer may hold together; the rest is for the rings. 3/4 of all */
    uint32_t conn_frames_max; /* buffers that one connection may hold; half of frames_hold_max */
    uint32_t replies_max;     /* answers that belong to no connection, waiting to be sent; 256 */
    uint32_t mtu;             /* IP packet size of the interface, and so of what comes; 1500 */
    uint32_t send_mtu;        /* IP packet size of what is sent: what `buf` of tcp_next_packet holds; mtu */
    uint32_t frame_bytes; /* payload that one buffer holds at most; a packet of mtu may need several; mtu */
    uint8_t secret[32];   /* required: from the system's random source, never used twice */
    bool no_timestamps;   /* refuse RFC 7323 timestamps */
    bool no_sack;         /* refuse RFC 2018 */
    bool no_ecn;          /* refuse RFC 3168 */
    bool cookies_always;  /* never keep half-open state */
    uint64_t delayed_ack_ns;        /* 40 ms */
    uint64_t rto_min_ns;            /* 200 ms */
    uint64_t rto_max_ns;            /* 60 s */
    uint64_t user_timeout_ns;       /* sent data unacknowledged, or zero window, this long: reset; 120 s */
    uint64_t keepalive_ns;          /* idle time before the first probe; 60 s */
    uint64_t keepalive_interval_ns; /* 10 s */
    uint32_t keepalive_probes;      /* unanswered probes before reset; 6 */
    uint64_t time_wait_ns;          /* 60 s */
    uint64_t fin_wait_ns;           /* how long a closed connection waits for the peer's FIN; 60 s */
    uint32_t challenges_per_s;      /* RFC 5961 challenge ACKs of one connection; 10 */
    uint32_t resets_per_s;          /* RSTs to unknown peers; 1000 */
};

struct tcp_id {
    uint32_t index;      /* < conns_max */
    uint32_t generation; /* never 0 for a live connection */
};

enum tcp_event_kind {
    TCP_EVENT_OPEN = 1, /* handshake complete: `tuple` */
    TCP_EVENT_DATA,     /* `data`: the next bytes of the stream */
    TCP_EVENT_EOF,      /* the peer sent FIN */
    TCP_EVENT_RESET,    /* `error`: -ECONNRESET (RST), -ETIMEDOUT, -ECONNREFUSED (answer to tcp_connect) */
    TCP_EVENT_SENT, /* `cookie`, `error`: all bytes were acknowledged (0), `sent` of them before it was recalled (-EAGAIN), or
                           never will be */
    TCP_EVENT_ROOM,  /* after tcp_recall: the peer takes bytes again */
    TCP_EVENT_CLOSED /* last event */
};

struct tcp_event {
    enum tcp_event_kind kind;
    struct tcp_id id;
    void *user;                    /* as tcp_user_set gave it; NULL before */
    const struct tcp_tuple *tuple; /* borrowed until the next call */
    struct {
        uint8_t *addr;
        uint32_t len;
        uint32_t token; /* one reference, to be given to tcp_release */
    } data;
    uint64_t cookie;
    int error;
    uint64_t sent, unsent;
};

struct tcp_stats {
    uint64_t counters[TCP_COUNTERS];
    /* Gauges and peaks of the pools. */
    uint32_t conns_used, conns_peak;
    uint32_t syns_used, syns_peak;
    uint32_t time_waits_used, time_waits_peak;
    uint32_t frames_held, frames_held_peak;
    uint32_t frames_out_of_order;
    struct tcp_tuple
        partial_last; /* whose checksum was partial last, as long as drop_checksum_partial is not 0 */
};

struct tcp_engine;

/* Bytes of memory that an engine of this configuration needs, or 0 if the configuration is impossible. */
size_t tcp_size(const struct tcp_config *config);
/* Lays out an engine in `mem` (aligned to 64 bytes, tcp_size bytes, the caller's until the engine is no longer used). The memory
 * is written whole, so that no page fault comes later. 0, or -EINVAL if the size or the configuration is wrong. */
int tcp_init(void *mem, size_t size, const struct tcp_config *config, struct tcp_engine **out);
const struct tcp_stats *tcp_stats(const struct tcp_engine *engine);

/* Accepts connections to this address (v4-mapped for IPv4; all zeros: any of either version) and port. Returns the listener's
 * number, or -EEXIST, -ENOSPC. A number is used again only when the last connection of a stopped listener is gone. */
int tcp_listen(struct tcp_engine *engine, const uint8_t local[16], uint16_t port);
/* What holds for the connections that a listener accepts from now on; zero: as in the configuration. */
struct tcp_limits {
    uint32_t conns_max;
    uint64_t user_timeout_ns;
    uint64_t keepalive_ns;
};
void tcp_listen_limits(struct tcp_engine *engine, uint32_t listener, const struct tcp_limits *limits);
/* SYNs and handshakes that a listener dropped because no connection was free. */
uint64_t tcp_listen_refused(const struct tcp_engine *engine, uint32_t listener);
/* Its connections, those included whose CLOSED was taken but whose RST is not sent yet. */
uint32_t tcp_listen_conns(const struct tcp_engine *engine, uint32_t listener);
/* No new connections from now on; half-open ones are dropped. 0 or -ENOENT. */
int tcp_listen_stop(struct tcp_engine *engine, const uint8_t local[16], uint16_t port);

/* Takes a received frame. Returns a mask of the parts that the engine now holds; the others are the caller's again at once. */
uint32_t tcp_input(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_part *parts,
                   uint32_t part_count);
/* The same, for one of several engines behind an interface: a segment to a listener that belongs to no connection here, and is no SYN,
 * is not answered and not counted: *is_stray. Another engine may know it; the last that is asked takes it by tcp_input. */
uint32_t tcp_input_or_stray(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_part *parts,
                            uint32_t part_count, bool *is_stray);
/* Runs what is due. */
void tcp_tick(struct tcp_engine *engine, uint64_t now_ns);
/* When tcp_tick must be called; TIME_NEVER if not at all; 0 if packets or events wait to be taken. */
uint64_t tcp_poll_at(const struct tcp_engine *engine);

/* 1 and the next event, or 0. The second takes only events of connections of one listener. */
int tcp_next_event(struct tcp_engine *engine, struct tcp_event *event);
int tcp_next_event_of(struct tcp_engine *engine, uint32_t listener, struct tcp_event *event);
/* Writes the next frame to send into `buf` and returns its length, or 0 if there is none now. `cap` is at least
 * TCP_HEADERS_MAX + send_mtu (CHECK). A frame that the caller cannot send after all is as if lost on the way. */
uint32_t tcp_next_packet(struct tcp_engine *engine, uint64_t now_ns, uint8_t *buf, uint32_t cap);

/* One reference more to a buffer that a DATA event carried (a slice was cut), and one less. */
void tcp_retain(struct tcp_engine *engine, uint32_t token);
void tcp_release(struct tcp_engine *engine, uint32_t token);
/* Tokens of buffers that are the caller's again; at most `max`. Returns how many. */
uint32_t tcp_frames_take(struct tcp_engine *engine, uint32_t *tokens, uint32_t max);

void tcp_user_set(struct tcp_engine *engine, struct tcp_id id, void *user);
const struct tcp_tuple *tcp_peer(const struct tcp_engine *engine, struct tcp_id id);

/* DATA events of this connection stop and start. Its window closes as it fills. */
void tcp_pause(struct tcp_engine *engine, struct tcp_id id);
void tcp_resume(struct tcp_engine *engine, struct tcp_id id);

/* Queues bytes. The memory (not the array) is the engine's until SENT. 0; -EAGAIN: TCP_SENDS_MAX are queued; -EPIPE: shut down
 * or reset; -EINVAL: no fragments, too many, an empty one, or 1 GiB and more in all. */
int tcp_send(struct tcp_engine *engine, uint64_t now_ns, struct tcp_id id, const struct iovec *iov,
             uint32_t iov_count, uint64_t cookie);
/* Gives back what the peer has not got of the queued sends: nothing new leaves, and as soon as what is on the way has arrived (it may have
 * to be sent again; a peer that acknowledges none of it for a second is reset) their SENT come, with -EAGAIN and how much was
 * acknowledged and was not. When the peer's window is open again, one ROOM; no tcp_send before it. 0, or -EAGAIN: a FIN is queued, and
 * nothing changes. */
int tcp_recall(struct tcp_engine *engine, uint64_t now_ns, struct tcp_id id);
/* FIN after what is queued. Receiving goes on. */
void tcp_shutdown(struct tcp_engine *engine, uint64_t now_ns, struct tcp_id id);
/* Ends a connection. What is queued is still sent, then FIN; payload that comes meanwhile is acknowledged and dropped, and
 * answered by RST once everything of ours has arrived. */
void tcp_close(struct tcp_engine *engine, uint64_t now_ns, struct tcp_id id);
/* Ends a connection at once, by RST. Queued sends end with -ECANCELED. */
void tcp_abort(struct tcp_engine *engine, uint64_t now_ns, struct tcp_id id);

/* The MTU of the interface is another one now: connections to come are offered no more, nor sent; those that are there are sent no more.
 * It goes no higher than the configuration's `mtu`, for which buffers were made. */
void tcp_mtu(struct tcp_engine *engine, uint32_t mtu);
/* The path to a peer takes IP packets of at most `mtu` bytes: an ICMP "too big" that quoted a segment of ours with sequence
 * number `seq`. Believed only if that segment is in flight (RFC 5927). True if a connection changed. */
bool tcp_too_big(struct tcp_engine *engine, const struct tcp_tuple *tuple, uint32_t seq, uint32_t mtu);

/* Active open, for load tools and tests: same engine, other side. 0 and the id, -ENFILE when no connection is free, -EADDRINUSE. */
int tcp_connect(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_tuple *tuple,
                const struct tcp_link *link, struct tcp_id *out);

#endif
