/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_int: what the files of the engine share; also for white-box tests. Nobody else includes it.
 *
 * Every peer we know is a `struct tcp_node` in one hash table: a half-open connection (tcp_syn), a connection (tcp_conn) or a
 * TIME-WAIT (tcp_wait). Nodes with a deadline are in one heap; nodes with something to send are in one list.
 */
#ifndef TCP_TCP_INT_H
#define TCP_TCP_INT_H

#include "base/check.h"
#include "base/clock.h"
#include "base/list.h"
#include "tcp/tcp.h"

#define TCP_NONE UINT32_MAX
#define TCP_ENGINE_MAGIC 0x74637065U
#define TCP_SCORES_MAX 16U /* runs of bytes that the peer reported by SACK */
#define TCP_CWND_MAX (64U << 20)

/* Sequence number arithmetic, modulo 2^32 (RFC 9293 section 3.4). */
static inline bool seq_lt(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}
static inline bool seq_le(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) <= 0;
}
static inline uint32_t seq_max(uint32_t a, uint32_t b)
{
    return seq_lt(a, b) ? b : a;
}
static inline uint32_t seq_min(uint32_t a, uint32_t b)
{
    return seq_lt(a, b) ? a : b;
}
static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

enum tcp_kind { TCP_KIND_FREE = 0, TCP_KIND_SYN, TCP_KIND_CONN, TCP_KIND_WAIT };

struct tcp_node {
    struct tcp_node *hash_next; /* also the free list of its pool */
    struct list out_link;       /* linked: something may have to be sent */
    uint64_t deadline_ns;       /* TIME_NEVER: not in the heap */
    uint32_t heap_index;        /* TCP_NONE: not in the heap */
    enum tcp_kind kind;
    struct tcp_tuple tuple;
    struct tcp_link link;
};

/* How much was done in the second under way. */
struct tcp_quota {
    uint64_t second_ns; /* its start */
    uint32_t count;
};

/* What a handshake agreed on. */
struct tcp_terms {
    uint32_t irs; /* peer's initial sequence number */
    uint32_t iss; /* ours */
    uint16_t peer_mss;
    uint8_t snd_wscale; /* peer's shift */
    uint8_t rcv_wscale; /* ours */
    bool wscale_on;
    bool sack_on;
    bool ts_on;
    bool ecn_on;
    uint32_t ts_offset;
    uint32_t ts_recent;
};

struct tcp_syn {
    struct tcp_node node;
    struct list age_link;
    struct tcp_terms terms;
    struct tcp_quota challenges;
    uint8_t retries;
    bool answer; /* a SYN+ACK is to be sent */
    bool ack;    /* an ACK is to be sent (challenge) */
};

struct tcp_wait {
    struct tcp_node node;
    struct list age_link; /* oldest first */
    uint32_t rcv_nxt;
    uint32_t snd_nxt;
    uint32_t ts_offset;
    uint32_t ts_recent;
    bool ts_on;
    uint16_t window;
    uint64_t answered_ns; /* limits answers */
};

enum tcp_state {
    TCP_STATE_SYN_SENT = 1,
    TCP_STATE_ESTABLISHED,
    TCP_STATE_CLOSE_WAIT,
    TCP_STATE_FIN_WAIT_1,
    TCP_STATE_FIN_WAIT_2,
    TCP_STATE_CLOSING,
    TCP_STATE_LAST_ACK,
    TCP_STATE_DEAD /* reset or finished: says no more to the peer, lives until the consumer knows */
};

enum tcp_recovery { TCP_RECOVERY_NONE = 0, TCP_RECOVERY_FAST, TCP_RECOVERY_LOSS };

struct tcp_send_record {
    uint64_t cookie;
    uint32_t seq; /* of the first byte */
    uint32_t len;
    uint32_t iov_count;
    struct iovec iov[TCP_SEND_IOV_MAX];
};

struct tcp_conn {
    struct tcp_node node;
    struct list event_link;   /* linked: the consumer has something to take */
    struct list starved_link; /* linked: its window is closed because others hold the buffers */
    uint32_t index;
    uint32_t generation;
    uint32_t listener; /* whose connection it is; TCP_LISTENS_MAX: of tcp_connect */
    void *user;
    enum tcp_state state;
    struct tcp_terms terms;

    /* Towards the consumer. */
    bool open_due, eof_due, reset_due; /* events not yet taken */
    bool closing;                      /* tcp_close or tcp_abort was called */
    bool reported;                     /* CLOSED was taken: the id names nothing any more */
    bool paused;
    int error; /* why it is dead; 0 after an orderly end */

    /* Receiving. */
    uint32_t rcv_nxt;
    uint32_t rcv_edge; /* right edge that the peer knows */
    uint32_t last_ack_sent;
    uint32_t window_max;  /* bytes: what all of its buffers could hold */
    uint32_t rcv_mss;     /* payload of the peer's full segments */
    uint32_t rcv_len;     /* payload of the last one */
    uint32_t frame_bytes; /* average payload of a buffer */
    uint32_t frames_held; /* by engine and consumer */
    uint32_t frames_ooo;
    uint32_t ready_head, ready_tail; /* in order, for the consumer; tokens */
    uint32_t ooo_head, ooo_tail;     /* by sequence number; tokens */
    bool fin_received;               /* its sequence number was consumed */
    bool fin_seen;                   /* a FIN is known to come at fin_seq */
    uint32_t fin_seq;
    uint64_t hole_ns;                           /* since when the first hole is there */
    struct tcp_range sack[TCP_SACK_BLOCKS_MAX]; /* newest first */
    uint32_t sack_count;
    struct tcp_range dsack;
    bool dsack_due;
    uint32_t acks_due; /* ACKs to be sent at once */
    uint32_t unacked_bytes;
    uint32_t quick_acks;   /* segments still to be acknowledged one by one */
    uint64_t delack_ns;    /* deadline */
    uint64_t ts_recent_ns; /* when ts_recent was set */
    bool refused;          /* this segment was refused: its FIN does not count either */
    bool ecn_echo;         /* ECE until the peer says CWR */
    struct tcp_quota challenges;
    uint64_t heard_ns; /* last valid segment */

    /* Sending. */
    uint32_t snd_una, snd_nxt;
    uint32_t snd_end; /* one past the last queued byte; FIN has this number */
    uint32_t snd_wnd, snd_wl1, snd_wl2, snd_wnd_max;
    uint32_t mss; /* payload bytes of a full segment, options deducted */
    uint32_t path_mtu;
    bool mss_tried,
        mss_proven; /* a segment of that size, ending at mss_tried_end, was sent; was acknowledged */
    uint32_t mss_tried_end;
    bool fin_queued, fin_sent;
    bool finishing; /* both FINs are acknowledged but for our ACK, then TIME-WAIT */
    struct tcp_send_record sends[TCP_SENDS_MAX];
    uint32_t send_first, send_count;
    bool recalled; /* tcp_recall: no send is queued until the consumer was told of room */
    uint32_t cwnd, ssthresh, cwnd_acked;
    bool cwnd_limited;
    uint64_t sent_ns; /* when payload left last; 0: never */
    enum tcp_recovery recovery;
    uint32_t recovery_point;
    uint32_t high_rxt;     /* what was sent again in this recovery ends here */
    bool at_recovery_edge; /* all that a recovery was about is acknowledged, and not a byte more */
    uint32_t dup_acks;
    uint32_t dup_bytes;                      /* without SACK: bytes that duplicate ACKs stand for */
    struct tcp_range scores[TCP_SCORES_MAX]; /* ascending, disjoint */
    uint32_t score_count;
    bool cwr_due;
    uint32_t ecn_point; /* no further reduction below this */
    uint64_t srtt_ns, rttvar_ns, rto_ns, rto_max_ns;
    uint32_t rto_shift;
    uint32_t timeout_ts; /* our timestamp at the last timeout */
    bool rtt_timing;     /* without timestamps: one segment at a time is timed */
    uint32_t rtt_seq;
    uint64_t rtt_start_ns;
    uint64_t rtx_ns;     /* deadline: retransmission, or probe of a closed window */
    uint64_t stalled_ns; /* since when nothing was acknowledged; 0: nothing is outstanding */
    uint32_t timeouts;   /* of what is in flight, since something was acknowledged last */
    uint64_t idle_ns;    /* deadline: keepalive, or the end of FIN_WAIT_2 */
    uint64_t user_timeout_ns, keepalive_ns;
    uint32_t keepalives; /* unanswered */
    bool probe_due, rst_due;
    bool window_override; /* the persist timer lets one small segment go */
};

/* A buffer of the caller. */
enum tcp_frame_state {
    TCP_FRAME_CALLER = 0,
    TCP_FRAME_OOO,
    TCP_FRAME_READY,
    TCP_FRAME_CONSUMER,
    TCP_FRAME_FREE
};

struct tcp_frame {
    uint8_t *addr;
    uint32_t seq;
    uint32_t len;
    uint32_t refs;
    uint32_t conn_index; /* with its generation: who accounts for it */
    uint32_t conn_generation;
    uint32_t next, prev;
    enum tcp_frame_state state;
};

/* An answer that belongs to no connection. */
struct tcp_reply {
    struct tcp_tuple tuple;
    struct tcp_link link;
    uint32_t seq, ack;
    uint16_t window;
    uint8_t flags;
    struct tcp_options options;
};

struct tcp_listener {
    uint8_t local[16];
    uint16_t port; /* 0: unused, or stopped while conns_used > 0 */
    uint32_t conns_used;
    uint64_t refused;
    struct tcp_limits limits;
};

struct tcp_engine {
    uint32_t magic;
    struct tcp_config config;
    struct tcp_stats stats;
    struct tcp_listener listens[TCP_LISTENS_MAX];
    struct tcp_node **buckets;
    uint32_t bucket_mask;
    struct tcp_conn *conns;
    struct tcp_syn *syns;
    struct tcp_wait *waits;
    struct tcp_node *conns_free, *syns_free, *waits_free;
    struct list syn_age, wait_age; /* oldest first */
    struct tcp_node **heap;
    uint32_t heap_count;
    struct tcp_frame *frames;
    uint32_t free_head, free_count; /* to be taken by the caller */
    struct tcp_reply *replies;
    uint32_t reply_first, reply_count;
    struct list out, starved;
    struct list events[TCP_LISTENS_MAX + 1]; /* by listener; the last: of tcp_connect */
    uint32_t events_count;                   /* connections in them */
    uint8_t rcv_wscale;
    uint32_t stale_hand;    /* the connection whose holes were looked at last */
    uint32_t mtu, send_mtu; /* now; at most the configuration's */
    uint16_t ip_id;
    bool strays_deferred, is_stray; /* of the input under way */
    uint64_t cookie_ns;             /* when a cookie was sent last; 0: never */
    bool is_reopened;               /* the input under way ended a TIME-WAIT */
    uint32_t reopened_nxt;          /* which had sent up to this number */
    uint64_t reset_ns;
    uint32_t reset_count;
};

#define TCP_COUNT(engine, name) ((engine)->stats.counters[TCP_COUNTER_##name]++)
#define TCP_COUNT_BY(engine, name, by) ((engine)->stats.counters[TCP_COUNTER_##name] += (by))

/* tcp_hash.c: a keyed hash (SipHash-2-4) of short inputs. */
uint64_t tcp_siphash(const uint8_t key[16], const uint8_t *from, uint32_t len);

/* tcp_table.c: pools, lookup, heap. */
struct tcp_node *tcp_node_find(const struct tcp_engine *engine, const struct tcp_tuple *tuple);
void tcp_node_insert(struct tcp_engine *engine, struct tcp_node *node);
void tcp_node_remove(struct tcp_engine *engine, struct tcp_node *node);
void tcp_node_deadline(struct tcp_engine *engine, struct tcp_node *node, uint64_t deadline_ns);
void tcp_node_out(struct tcp_engine *engine, struct tcp_node *node);
struct tcp_conn *tcp_conn_take(struct tcp_engine *engine, uint32_t listener);
void tcp_conn_give(struct tcp_engine *engine, struct tcp_conn *conn);
struct tcp_syn *tcp_syn_take(struct tcp_engine *engine);
void tcp_syn_give(struct tcp_engine *engine, struct tcp_syn *syn);
struct tcp_wait *tcp_wait_take(struct tcp_engine *engine);
void tcp_wait_give(struct tcp_engine *engine, struct tcp_wait *wait);
struct tcp_conn *tcp_conn_get(const struct tcp_engine *engine, struct tcp_id id);
/* Room for one answer more, or NULL. */
struct tcp_reply *tcp_reply_take(struct tcp_engine *engine, const struct tcp_segment *segment);

/* tcp_listen.c: from nothing to a connection. */
void tcp_listen_input(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_segment *segment);
/* A connection if the segment completed the handshake; the segment is then to be processed by it. */
struct tcp_conn *tcp_syn_input(struct tcp_engine *engine, uint64_t now_ns, struct tcp_syn *syn,
                               const struct tcp_segment *segment);
/* True if the segment carried a good cookie; `*conn` is then the connection, or NULL if none was free. */
bool tcp_cookie_input(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_segment *segment,
                      struct tcp_conn **conn);
void tcp_syn_timer(struct tcp_engine *engine, uint64_t now_ns, struct tcp_syn *syn);
void tcp_reset_reply(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_segment *segment);
/* An answer to tcp_connect. True if the connection is established and the segment may carry more. */
bool tcp_connect_answered(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                          const struct tcp_segment *segment);
uint32_t tcp_connect_output(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint8_t *buf);
/* The listener for this address and port, one of that very address before one of any; TCP_LISTENS_MAX: none. */
uint32_t tcp_listen_match(const struct tcp_engine *engine, const struct tcp_tuple *tuple);
/* Initial sequence number and timestamp offset of a tuple (RFC 6528, RFC 7323 section 5.4). */
uint32_t tcp_isn(const struct tcp_engine *engine, const struct tcp_tuple *tuple, uint64_t now_ns);
uint32_t tcp_ts_offset(const struct tcp_engine *engine, const struct tcp_tuple *tuple);
uint16_t tcp_mss_own(const struct tcp_engine *engine, const struct tcp_tuple *tuple);
static inline uint32_t tcp_ts_clock(uint64_t now_ns, uint32_t offset)
{
    return (uint32_t)(now_ns / NS_PER_MS) + offset;
}

/* tcp_wait.c: TIME-WAIT. */
void tcp_wait_enter(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn);
/* True if the segment is a SYN that ended this TIME-WAIT and is to be taken as a new one. */
bool tcp_wait_input(struct tcp_engine *engine, uint64_t now_ns, struct tcp_wait *wait,
                    const struct tcp_segment *segment);

/* tcp_conn.c: life of a connection. */
void tcp_conn_open(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn);
void tcp_conn_mss(struct tcp_conn *conn);
/* RFC 6928 section 2. */
static inline uint32_t tcp_cwnd_initial(uint32_t mss)
{
    return min_u32(10 * mss, max_u32(2 * mss, 14600));
}
void tcp_conn_dead(struct tcp_engine *engine, struct tcp_conn *conn, int error);
/* After anything that may have ended it or changed its deadlines. May give the connection back: do not touch it afterwards. */
void tcp_conn_settle(struct tcp_engine *engine, struct tcp_conn *conn);
void tcp_conn_event(struct tcp_engine *engine, struct tcp_conn *conn);
void tcp_conn_event_drop(struct tcp_engine *engine, struct tcp_conn *conn);
void tcp_conn_timer(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn);
/* True, and counted, if the limit allows one challenge ACK more (RFC 5961 section 7: per peer, so that it tells nobody about others). */
bool tcp_challenge_allowed(struct tcp_engine *engine, uint64_t now_ns, struct tcp_quota *quota);
/* A challenge ACK if the limit allows it. */
void tcp_conn_challenge(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn);

/* tcp_conn_input.c: a segment for a connection. Returns the mask of parts held. */
uint32_t tcp_conn_input(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                        const struct tcp_segment *segment, const struct tcp_part *parts);

/* tcp_receive.c: payload, reassembly, window, what to acknowledge. */
uint32_t tcp_receive(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                     const struct tcp_segment *segment, const struct tcp_part *parts);
void tcp_receive_drop_all(struct tcp_engine *engine, struct tcp_conn *conn);
/* The FIN's place is known: what is held from there on never was of the stream. */
void tcp_receive_end(struct tcp_engine *engine, struct tcp_conn *conn);
void tcp_frame_free(struct tcp_engine *engine, uint32_t token);
/* Buffers that a window speaks of: an eighth less than a connection may hold, because the peer may send smaller segments than
 * those that the promise was reckoned with. */
static inline uint32_t tcp_frames_promised(const struct tcp_engine *engine)
{
    return engine->config.conn_frames_max - max_u32(engine->config.conn_frames_max / 8, 1);
}
/* Right edge that could be advertised now; never left of rcv_edge. */
uint32_t tcp_window_edge(struct tcp_engine *engine, struct tcp_conn *conn);
/* The window field for the next segment; moves rcv_edge. */
uint16_t tcp_window_take(struct tcp_engine *engine, struct tcp_conn *conn);
void tcp_window_opened(struct tcp_engine *engine, struct tcp_conn *conn);
/* `count` buffers came back: as many of those whose window is closed only because others held everything get their chance. */
void tcp_starved_wake(struct tcp_engine *engine, uint32_t count);
void tcp_ack_soon(struct tcp_engine *engine, struct tcp_conn *conn);
/* SACK blocks for the next segment, `max` at most; a D-SACK first. */
void tcp_sack_fill(struct tcp_conn *conn, struct tcp_options *options, uint32_t max);

/* tcp_recover.c: what an ACK means for what was sent. */
void tcp_acked(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
               const struct tcp_segment *segment);
void tcp_recover_timeout(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn);
/* Bytes believed to be on the way (RFC 6675 section 4). */
uint32_t tcp_pipe(const struct tcp_conn *conn);
/* After a recall: the peer's window takes what is worth sending. */
bool tcp_has_room(const struct tcp_conn *conn);
/* Arms what asks the peer for its window, if nothing does. */
void tcp_room_ask(struct tcp_conn *conn, uint64_t now_ns);
/* The next bytes to send again. False if there are none. */
bool tcp_recover_next(const struct tcp_conn *conn, struct tcp_range *range);
void tcp_rtx_arm(struct tcp_conn *conn, uint64_t now_ns);

/* tcp_output.c */
uint32_t tcp_conn_output(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint8_t *buf);
uint32_t tcp_syn_output(struct tcp_engine *engine, uint64_t now_ns, struct tcp_syn *syn, uint8_t *buf);
uint32_t tcp_reply_output(struct tcp_engine *engine, uint8_t *buf);

#endif
