/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_conn_input: a segment for a synchronised connection, in the order of RFC 9293 section 3.10.7.4 with the changes of RFC 7323
 * (timestamps first) and RFC 5961 (RST, SYN and ACK from the blind). Decides what a segment may do; what it brings is left to
 * tcp_receive.c (payload) and tcp_recover.c (ACK).
 *
 *   is_stale -> is_acceptable -> RST -> SYN -> ACK -> payload -> FIN
 */
#include <errno.h>

#include "tcp/tcp_int.h"

#define PAWS_VALID_NS (24ULL * 24 * 3600 * NS_PER_S) /* RFC 7323 section 5.5: older than this says nothing */

static bool is_stale(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                     const struct tcp_segment *segment)
{
    if (!conn->terms.ts_on || (segment->flags & TCP_RST)) {
        return false;
    }
    if (!segment->options.has_ts) { /* RFC 7323 section 3.2 */
        TCP_COUNT(engine, drop_no_timestamp);
        return true;
    }
    if (!seq_lt(segment->options.ts_value, conn->terms.ts_recent) ||
        now_ns - conn->ts_recent_ns > PAWS_VALID_NS) {
        return false;
    }
    TCP_COUNT(engine, drop_paws);
    tcp_conn_challenge(engine, now_ns, conn);
    return true;
}

/* Is any of it inside the window? A segment without length may stand at the right edge: a peer that has filled the window
 * still acknowledges from there. */
static bool is_acceptable(const struct tcp_conn *conn, const struct tcp_segment *segment)
{
    uint32_t len = segment->len + !!(segment->flags & TCP_SYN) + !!(segment->flags & TCP_FIN);
    if (len == 0 || (segment->flags & TCP_RST)) { /* RFC 5961 section 3.2: of an RST only the number counts */
        return seq_le(conn->rcv_nxt, segment->seq) && seq_le(segment->seq, conn->rcv_edge);
    }
    /* A lone FIN at the edge takes no buffer. */
    uint32_t edge = conn->rcv_edge + (segment->len == 0 ? 1 : 0);
    return seq_lt(segment->seq, edge) && seq_lt(conn->rcv_nxt, segment->seq + len);
}

/* RFC 9293: an ACK in reply, unless it is an RST. The window closed is the one case where the segment's ACK still counts. */
static bool input_unacceptable(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                               const struct tcp_segment *segment)
{
    uint32_t end = segment->seq + segment->len;
    if (segment->flags & TCP_RST) {
        TCP_COUNT(engine, rst_ignored);
        return false;
    }
    if (segment->seq == conn->rcv_nxt && segment->len > 0) {
        TCP_COUNT(engine, zero_window_probes_in);
        tcp_ack_soon(engine, conn);
        return !(segment->flags & TCP_SYN);
    }
    if (end == conn->rcv_nxt - 1 && segment->len == 0 && conn->rcv_nxt == conn->rcv_edge) {
        TCP_COUNT(engine, zero_window_probes_in); /* Linux asks without payload, like a keepalive. */
        tcp_conn_challenge(engine, now_ns, conn);
        return false;
    }
    TCP_COUNT(engine, drop_out_of_window);
    if (segment->len > 0 && seq_le(end, conn->rcv_nxt) &&
        seq_lt(conn->rcv_nxt - conn->window_max - 1, segment->seq)) {
        /* Seen before: our ACK was lost. The answer must not be limited, it is what gets the peer going again. */
        TCP_COUNT(engine, segments_duplicate);
        TCP_COUNT_BY(engine, bytes_duplicate, segment->len);
        conn->dsack = (struct tcp_range){segment->seq, end};
        conn->dsack_due = true;
        tcp_ack_soon(engine, conn);
        return false;
    }
    if ((segment->flags & TCP_FIN) && end + 1 == conn->rcv_nxt) { /* a repeated FIN is in the same position */
        tcp_ack_soon(engine, conn);
        return false;
    }
    tcp_conn_challenge(engine, now_ns, conn);
    return false;
}

static void input_reset(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                        const struct tcp_segment *segment)
{
    if (segment->seq !=
        conn->rcv_nxt) { /* RFC 5961 section 3.2: perhaps a guess; a true one comes again, exact */
        TCP_COUNT(engine, rst_in_window);
        tcp_conn_challenge(engine, now_ns, conn);
        return;
    }
    TCP_COUNT(engine, conns_reset_in);
    bool was_over = conn->state == TCP_STATE_CLOSING || conn->state == TCP_STATE_LAST_ACK;
    tcp_conn_dead(engine, conn, was_over ? 0 : -ECONNRESET);
}

/* RFC 5961 section 5.2. */
static bool ack_is_valid(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                         const struct tcp_segment *segment)
{
    if (seq_le(segment->ack, conn->snd_nxt) && seq_le(conn->snd_una - conn->snd_wnd_max, segment->ack)) {
        return true;
    }
    TCP_COUNT(engine, drop_ack_invalid);
    tcp_conn_challenge(engine, now_ns, conn);
    return false;
}

/* What an ACK of our FIN leads to. */
static void input_fin_acked(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn)
{
    if (!conn->fin_sent || conn->snd_una != conn->snd_end + 1) {
        return;
    }
    switch (conn->state) {
    case TCP_STATE_FIN_WAIT_1:
        conn->state = TCP_STATE_FIN_WAIT_2;
        conn->rtx_ns = TIME_NEVER;
        if (conn->closing) { /* a consumer that has only shut down may wait as long as it likes */
            conn->idle_ns = now_ns + engine->config.fin_wait_ns;
        }
        break;
    case TCP_STATE_CLOSING:
        tcp_wait_enter(engine, now_ns, conn);
        tcp_conn_dead(engine, conn, 0);
        break;
    case TCP_STATE_LAST_ACK:
        tcp_conn_dead(engine, conn, 0);
        break;
    default:
        break;
    }
}

/* The peer's FIN has its turn: everything before it has come. */
static void input_fin(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn)
{
    conn->rcv_nxt++;
    conn->rcv_edge = seq_max(conn->rcv_edge, conn->rcv_nxt);
    conn->fin_received = true;
    conn->eof_due = !conn->closing;
    tcp_ack_soon(engine, conn);
    switch (conn->state) {
    case TCP_STATE_ESTABLISHED:
        conn->state = TCP_STATE_CLOSE_WAIT;
        break;
    case TCP_STATE_FIN_WAIT_1: /* our FIN is not acknowledged, else the state were FIN_WAIT_2 */
        conn->state = TCP_STATE_CLOSING;
        break;
    case TCP_STATE_FIN_WAIT_2:
        conn->finishing = true; /* the ACK goes out first, see tcp_conn_output */
        break;
    default:
        CHECK(!"a second FIN is not acceptable");
    }
    (void)now_ns; /* TIME-WAIT begins when the ACK goes out */
    tcp_conn_event(engine, conn);
}

static uint32_t input_text(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                           const struct tcp_segment *segment, const struct tcp_part *parts)
{
    uint32_t held = 0;
    conn->refused = false;
    if (segment->len > 0) {
        if (conn->closing && conn->state == TCP_STATE_FIN_WAIT_2 &&
            seq_lt(conn->rcv_nxt, segment->seq + segment->len)) {
            /* RFC 9293 section 3.6: the peer must learn that nobody reads what it sends. */
            TCP_COUNT(engine, drop_after_close);
            conn->rst_due = true;
            tcp_conn_dead(engine, conn, -ECONNRESET);
            return 0;
        }
        held = tcp_receive(engine, now_ns, conn, segment, parts);
    }
    if ((segment->flags & TCP_FIN) && !conn->fin_seen && !conn->refused &&
        seq_le(segment->seq + segment->len, conn->rcv_edge)) {
        conn->fin_seen = true;
        conn->fin_seq = segment->seq + segment->len;
        tcp_receive_end(engine, conn);
        if (conn->fin_seq != conn->rcv_nxt) {
            tcp_ack_soon(engine, conn);
        }
    }
    if (conn->fin_seen && conn->fin_seq == conn->rcv_nxt) {
        input_fin(engine, now_ns, conn);
    }
    return held;
}

/* RFC 3168 section 6.1.3: say so in every ACK until the peer has slowed down. */
static void input_ecn(struct tcp_engine *engine, struct tcp_conn *conn, const struct tcp_segment *segment)
{
    if (!conn->terms.ecn_on) {
        return;
    }
    if (segment->flags & TCP_CWR) {
        conn->ecn_echo = false;
    }
    if (segment->ecn == TCP_ECN_CE && segment->len > 0) {
        TCP_COUNT(engine, ce_in);
        conn->ecn_echo = true;
        conn->quick_acks = max_u32(conn->quick_acks, 1);
    }
}

uint32_t tcp_conn_input(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                        const struct tcp_segment *segment, const struct tcp_part *parts)
{
    bool only_ack = false;
    tcp_node_out(engine, &conn->node);
    if (conn->state == TCP_STATE_SYN_SENT) {
        if (!tcp_connect_answered(engine, now_ns, conn, segment)) {
            return 0;
        }
        return 0; /* payload of a SYN+ACK comes again */
    }
    if (is_stale(engine, now_ns, conn, segment)) {
        return 0;
    }
    if (!is_acceptable(conn, segment)) {
        only_ack = input_unacceptable(engine, now_ns, conn, segment);
        if (!only_ack) {
            return 0;
        }
    }
    if (segment->flags & TCP_RST) {
        input_reset(engine, now_ns, conn, segment);
        return 0;
    }
    if (segment->flags & TCP_SYN) { /* RFC 5961 section 4 */
        TCP_COUNT(engine, drop_flags);
        tcp_conn_challenge(engine, now_ns, conn);
        return 0;
    }
    if (!(segment->flags & TCP_ACK)) {
        TCP_COUNT(engine, drop_no_ack);
        return 0;
    }
    if (!ack_is_valid(engine, now_ns, conn, segment)) {
        return 0;
    }
    conn->heard_ns = now_ns;
    conn->keepalives = 0;
    conn->node.link = segment->link;
    if (conn->terms.ts_on && seq_le(segment->seq, conn->last_ack_sent)) { /* RFC 7323 section 4.3 */
        conn->terms.ts_recent = segment->options.ts_value;
        conn->ts_recent_ns = now_ns;
    }
    input_ecn(engine, conn, segment);
    tcp_acked(engine, now_ns, conn, segment);
    input_fin_acked(engine, now_ns, conn);
    bool receiving = conn->state == TCP_STATE_ESTABLISHED || conn->state == TCP_STATE_FIN_WAIT_1 ||
                     (conn->state == TCP_STATE_FIN_WAIT_2 && !conn->finishing);
    if (only_ack || !receiving) {
        return 0;
    }
    return input_text(engine, now_ns, conn, segment, parts);
}
