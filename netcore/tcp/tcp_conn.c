/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_conn: life and death of a connection. Owns its timers, what the caller asks of it (send, shutdown, close, abort), and when
 * its slot is free again.
 *
 *   tcp_conn_open: ESTABLISHED --tcp_shutdown, FIN sent--> FIN_WAIT_1 --> FIN_WAIT_2 --peer's FIN--> TIME-WAIT (tcp_wait.c)
 *        |                                                    `--FIN--> CLOSING --ACK--> TIME-WAIT
 *        `--peer's FIN--> CLOSE_WAIT --tcp_shutdown, FIN sent--> LAST_ACK --ACK--> over
 *   any --RST, timeout, tcp_abort: tcp_conn_dead--> over
 *
 * "Over" is TCP_STATE_DEAD: out of the hash table, no timers, nothing to say (but one RST). The slot lives on until the consumer
 * has taken the last event; tcp_conn_settle gives it back.
 */
#include <errno.h>
#include <string.h>

#include "tcp/tcp_int.h"

#define INITIAL_RTO_NS NS_PER_S /* RFC 6298 section 2 */
/* A recalled peer that acknowledges nothing for so long is reset, once so many retransmissions have gone unanswered: a lossy wire loses
 * two in a row. */
#define RECALL_WAIT_NS NS_PER_S
#define RECALL_TRIES 4U
#define MSS_GUESS 536U      /* of what the peer sends, until its first segment */
#define MTU_MIN 576U        /* what every IPv4 host takes (RFC 1122 section 3.3.2) */
#define SEND_MAX (1U << 30) /* far below half of the sequence space */

void tcp_conn_mss(struct tcp_conn *conn)
{
    uint32_t headers = conn->node.tuple.version == 4 ? 40 : 60;
    uint32_t mss = min_u32(conn->terms.peer_mss, conn->path_mtu - headers);
    conn->mss = mss - (conn->terms.ts_on ? 12 : 0); /* RFC 6691: the MSS does not count options */
}

void tcp_conn_open(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn)
{
    uint32_t own = tcp_mss_own(engine, &conn->node.tuple);
    uint64_t window = (uint64_t)engine->config.conn_frames_max * min_u32(own, engine->config.frame_bytes);
    uint64_t window_limit = 65535ULL << conn->terms.rcv_wscale;
    if (conn->state != TCP_STATE_SYN_SENT) {
        tcp_node_insert(engine, &conn->node);
    }
    conn->state = TCP_STATE_ESTABLISHED;
    conn->open_due = true;
    conn->window_max = (uint32_t)(window < window_limit ? window : window_limit);
    conn->rcv_mss = MSS_GUESS;
    conn->frame_bytes = min_u32(own - (conn->terms.ts_on ? 12 : 0), engine->config.frame_bytes);
    conn->last_ack_sent = conn->rcv_nxt;
    conn->quick_acks = 16;
    conn->ts_recent_ns = now_ns;
    conn->heard_ns = now_ns;
    conn->snd_wnd_max = conn->snd_wnd;
    conn->path_mtu = engine->send_mtu;
    tcp_conn_mss(conn);
    conn->cwnd = tcp_cwnd_initial(conn->mss);
    conn->ssthresh = TCP_CWND_MAX;
    conn->recovery_point = conn->ecn_point = conn->high_rxt = conn->snd_una;
    conn->rto_ns = INITIAL_RTO_NS;
    conn->rto_max_ns = engine->config.rto_max_ns;
    conn->rto_shift = 0;
    conn->rtx_ns = TIME_NEVER;
    conn->stalled_ns = 0;
    conn->timeouts = 0;
    conn->user_timeout_ns = engine->config.user_timeout_ns;
    conn->keepalive_ns = engine->config.keepalive_ns;
    if (conn->listener < TCP_LISTENS_MAX) {
        const struct tcp_limits *limits = &engine->listens[conn->listener].limits;
        conn->user_timeout_ns = limits->user_timeout_ns > 0 ? limits->user_timeout_ns : conn->user_timeout_ns;
        conn->keepalive_ns = limits->keepalive_ns > 0 ? limits->keepalive_ns : conn->keepalive_ns;
    }
    conn->idle_ns = now_ns + conn->keepalive_ns;
    tcp_node_out(engine, &conn->node);
}

void tcp_conn_dead(struct tcp_engine *engine, struct tcp_conn *conn, int error)
{
    if (conn->state == TCP_STATE_DEAD) {
        return;
    }
    conn->state = TCP_STATE_DEAD;
    conn->error = error;
    tcp_node_remove(engine, &conn->node);
    conn->delack_ns = conn->rtx_ns = conn->idle_ns = TIME_NEVER;
    conn->acks_due = 0;
    list_remove(&conn->starved_link);
    if (error != 0) {
        conn->reset_due = !conn->closing;
        conn->eof_due = false;
        tcp_receive_drop_all(engine, conn);
    }
}

void tcp_conn_settle(struct tcp_engine *engine, struct tcp_conn *conn)
{
    uint64_t deadline = conn->delack_ns < conn->rtx_ns ? conn->delack_ns : conn->rtx_ns;
    if (conn->node.kind != TCP_KIND_CONN) {
        return;
    }
    deadline = deadline < conn->idle_ns ? deadline : conn->idle_ns;
    tcp_node_deadline(engine, &conn->node, deadline);
    tcp_conn_event(engine, conn);
    if (conn->state != TCP_STATE_DEAD) {
        return;
    }
    if (conn->rst_due) {
        tcp_node_out(engine, &conn->node);
    } else if (conn->reported) {
        tcp_conn_give(engine, conn);
    }
}

/* ---- timers ---- */

bool tcp_challenge_allowed(struct tcp_engine *engine, uint64_t now_ns, struct tcp_quota *quota)
{
    if (now_ns - quota->second_ns >= NS_PER_S) {
        quota->second_ns = now_ns;
        quota->count = 0;
    }
    if (quota->count >= engine->config.challenges_per_s) {
        TCP_COUNT(engine, challenge_acks_limited);
        return false;
    }
    quota->count++;
    TCP_COUNT(engine, challenge_acks);
    return true;
}

void tcp_conn_challenge(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn)
{
    if (tcp_challenge_allowed(engine, now_ns, &conn->challenges)) {
        tcp_ack_soon(engine, conn);
    }
}

static void time_out(struct tcp_engine *engine, struct tcp_conn *conn)
{
    TCP_COUNT(engine, conns_timed_out);
    conn->rst_due = conn->state != TCP_STATE_SYN_SENT; /* in case only its way to us is broken */
    tcp_conn_dead(engine, conn, -ETIMEDOUT);
}

/* Nothing is in flight, but the peer's window keeps us from sending: ask (RFC 9293 section 3.8.6.1). */
static void persist_timer(uint64_t now_ns, struct tcp_conn *conn)
{
    conn->rto_shift += conn->rto_shift < 16;
    conn->window_override = conn->snd_wnd > 0; /* the window is small, not closed: send what fits */
    conn->probe_due = conn->snd_wnd == 0;
    tcp_rtx_arm(conn, now_ns);
}

static void retransmit_timer(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn)
{
    conn->rtx_ns = TIME_NEVER;
    if (conn->snd_una == conn->snd_nxt && conn->snd_nxt == conn->snd_end &&
        !(conn->fin_queued && !conn->fin_sent) && !conn->recalled) {
        return;
    }
    /* A recall waits for what is in flight: others need the memory. */
    bool is_wanted = conn->recalled && conn->snd_una != conn->snd_nxt && conn->timeouts >= RECALL_TRIES;
    uint64_t patience_ns =
        is_wanted && conn->user_timeout_ns > RECALL_WAIT_NS ? RECALL_WAIT_NS : conn->user_timeout_ns;
    if (conn->stalled_ns != 0 && now_ns - conn->stalled_ns >= patience_ns) {
        time_out(engine, conn);
        return;
    }
    if (conn->snd_una == conn->snd_nxt) {
        persist_timer(now_ns, conn);
    } else {
        tcp_recover_timeout(engine, now_ns, conn);
    }
}

static void idle_timer(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn)
{
    uint64_t due_ns = conn->heard_ns + conn->keepalive_ns;
    if (conn->state == TCP_STATE_FIN_WAIT_2 && conn->closing) {
        tcp_conn_dead(engine, conn, 0); /* the peer never closes; nobody is waiting for it */
        return;
    }
    if (conn->keepalives == 0 && now_ns < due_ns) { /* it was heard meanwhile */
        conn->idle_ns = due_ns;
        return;
    }
    if (conn->keepalives >= engine->config.keepalive_probes) {
        time_out(engine, conn);
        return;
    }
    conn->idle_ns = now_ns + engine->config.keepalive_interval_ns;
    if (conn->snd_una == conn->snd_nxt && conn->rtx_ns == TIME_NEVER) { /* else the other timer asks */
        conn->keepalives++;
        conn->probe_due = true;
        TCP_COUNT(engine, keepalives_out);
    }
}

void tcp_conn_timer(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn)
{
    if (conn->delack_ns <= now_ns) {
        conn->delack_ns = TIME_NEVER;
        tcp_ack_soon(engine, conn);
    }
    if (conn->rtx_ns <= now_ns) {
        retransmit_timer(engine, now_ns, conn);
    }
    if (conn->idle_ns <= now_ns) {
        idle_timer(engine, now_ns, conn);
    }
    tcp_node_out(engine, &conn->node);
}

/* ---- the caller's side ---- */

void tcp_user_set(struct tcp_engine *engine, struct tcp_id id, void *user)
{
    tcp_conn_get(engine, id)->user = user;
}

const struct tcp_tuple *tcp_peer(const struct tcp_engine *engine, struct tcp_id id)
{
    return &tcp_conn_get(engine, id)->node.tuple;
}

void tcp_pause(struct tcp_engine *engine, struct tcp_id id)
{
    tcp_conn_get(engine, id)->paused = true;
}

void tcp_resume(struct tcp_engine *engine, struct tcp_id id)
{
    struct tcp_conn *conn = tcp_conn_get(engine, id);
    conn->paused = false;
    tcp_conn_event(engine, conn);
}

/* Sum of the fragments, or 0 if they are not acceptable. */
static uint64_t iov_total(const struct iovec *iov, uint32_t iov_count)
{
    uint64_t total = 0;
    if (iov_count == 0 || iov_count > TCP_SEND_IOV_MAX) {
        return 0;
    }
    for (uint32_t i = 0; i < iov_count; i++) {
        if (iov[i].iov_len == 0 || iov[i].iov_len >= SEND_MAX) {
            return 0;
        }
        total += iov[i].iov_len;
    }
    return total < SEND_MAX ? total : 0;
}

int tcp_send(struct tcp_engine *engine, uint64_t now_ns, struct tcp_id id, const struct iovec *iov,
             uint32_t iov_count, uint64_t cookie)
{
    struct tcp_conn *conn = tcp_conn_get(engine, id);
    uint64_t total = iov_total(iov, iov_count);
    (void)now_ns; /* the timers start when the bytes go out */
    if (total == 0) {
        return -EINVAL;
    }
    if (conn->state == TCP_STATE_DEAD || conn->closing || conn->fin_queued) {
        return -EPIPE;
    }
    CHECK(!conn->recalled);
    if (conn->send_count == TCP_SENDS_MAX || conn->snd_end - conn->snd_una + total > SEND_MAX) {
        return -EAGAIN;
    }
    struct tcp_send_record *record = &conn->sends[(conn->send_first + conn->send_count) % TCP_SENDS_MAX];
    record->cookie = cookie;
    record->seq = conn->snd_end;
    record->len = (uint32_t)total;
    record->iov_count = iov_count;
    memcpy(record->iov, iov, iov_count * sizeof(*iov));
    conn->send_count++;
    conn->snd_end += (uint32_t)total;
    tcp_node_out(engine, &conn->node);
    return 0;
}

int tcp_recall(struct tcp_engine *engine, uint64_t now_ns, struct tcp_id id)
{
    struct tcp_conn *conn = tcp_conn_get(engine, id);
    CHECK(!conn->closing);
    if (conn->state == TCP_STATE_DEAD) {
        return 0; /* Its sends come back anyway, and there is no room any more. */
    }
    if (conn->fin_queued || conn->state == TCP_STATE_SYN_SENT) {
        return -EAGAIN;
    }
    conn->recalled = true;
    conn->snd_end = conn->snd_nxt;
    tcp_room_ask(conn, now_ns);
    tcp_conn_settle(engine, conn);
    return 0;
}

void tcp_shutdown(struct tcp_engine *engine, uint64_t now_ns, struct tcp_id id)
{
    struct tcp_conn *conn = tcp_conn_get(engine, id);
    (void)now_ns; /* as for tcp_send */
    conn->fin_queued = true;
    tcp_node_out(engine, &conn->node);
}

void tcp_close(struct tcp_engine *engine, uint64_t now_ns, struct tcp_id id)
{
    struct tcp_conn *conn = tcp_conn_get(engine, id);
    conn->closing = true;
    conn->open_due = conn->eof_due = conn->reset_due = false;
    tcp_receive_drop_all(engine, conn);
    if (conn->state == TCP_STATE_SYN_SENT) {
        tcp_conn_dead(engine, conn, -ECANCELED);
    } else if (conn->state != TCP_STATE_DEAD) {
        conn->fin_queued = true;
        if (conn->state == TCP_STATE_FIN_WAIT_2) {
            conn->idle_ns = now_ns + engine->config.fin_wait_ns;
        }
        tcp_node_out(engine, &conn->node);
    }
    tcp_conn_settle(engine, conn);
}

void tcp_abort(struct tcp_engine *engine, uint64_t now_ns, struct tcp_id id)
{
    struct tcp_conn *conn = tcp_conn_get(engine, id);
    (void)now_ns; /* as for tcp_send */
    conn->closing = true;
    conn->open_due = conn->eof_due = conn->reset_due = false;
    tcp_receive_drop_all(engine, conn);
    if (conn->state != TCP_STATE_DEAD) {
        TCP_COUNT(engine, conns_aborted);
        conn->rst_due = conn->state != TCP_STATE_SYN_SENT;
        tcp_conn_dead(engine, conn, -ECANCELED);
    }
    tcp_conn_settle(engine, conn);
}

/* What is in flight was dropped on the way, not lost to congestion: it is sent again in smaller pieces at once. */
static void path_narrowed(struct tcp_engine *engine, struct tcp_conn *conn, uint32_t mtu)
{
    TCP_COUNT(engine, mtu_reductions);
    conn->path_mtu = mtu;
    conn->mss_proven = conn->mss_tried = false;
    tcp_conn_mss(conn);
    if (conn->snd_una != conn->snd_nxt) {
        conn->recovery = TCP_RECOVERY_LOSS;
        conn->recovery_point = conn->snd_nxt;
        conn->high_rxt = conn->snd_una;
        conn->rtt_timing = false;
        tcp_node_out(engine, &conn->node);
    }
}

void tcp_mtu(struct tcp_engine *engine, uint32_t mtu)
{
    engine->mtu = max_u32(min_u32(mtu, engine->config.mtu), MTU_MIN);
    engine->send_mtu = min_u32(engine->mtu, engine->config.send_mtu);
    for (uint32_t i = 0; i < engine->config.conns_max; i++) {
        struct tcp_conn *conn = &engine->conns[i];
        bool is_sending = conn->node.kind == TCP_KIND_CONN && conn->state != TCP_STATE_DEAD &&
                          conn->state != TCP_STATE_SYN_SENT;
        if (is_sending && conn->path_mtu > engine->send_mtu) {
            path_narrowed(engine, conn, engine->send_mtu);
        }
    }
}

bool tcp_too_big(struct tcp_engine *engine, const struct tcp_tuple *tuple, uint32_t seq, uint32_t mtu)
{
    struct tcp_node *node = tcp_node_find(engine, tuple);
    struct tcp_conn *conn = (struct tcp_conn *)node;
    uint32_t floor = tuple->version == 4 ? 576 : 1280;
    if (node == NULL || node->kind != TCP_KIND_CONN || !seq_le(conn->snd_una, seq) ||
        !seq_lt(seq, conn->snd_nxt) || max_u32(mtu, floor) >= conn->path_mtu) {
        TCP_COUNT(engine, too_big_ignored);
        return false;
    }
    path_narrowed(engine, conn, max_u32(mtu, floor));
    return true;
}
