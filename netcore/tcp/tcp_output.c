/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_output: what a connection sends next. Each call emits at most one frame, in this order: RST, what was lost, what is new (with
 * FIN at its end), a probe, an ACK. Owns snd_nxt and the bookkeeping of what left; what is lost is decided by tcp_recover.c.
 */
#include <string.h>

#include "tcp/tcp_int.h"

/* What a connection's segment has in common. */
static void out_init(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, struct tcp_out *out)
{
    memset(out, 0, sizeof(*out));
    out->tuple = &conn->node.tuple;
    out->link = &conn->node.link;
    out->ip_id = engine->ip_id++;
    out->fragmentable = conn->node.tuple.version == 4 && conn->path_mtu <= 576;
    out->ack = conn->rcv_nxt;
    out->flags = TCP_ACK;
    out->options.has_ts = conn->terms.ts_on;
    out->options.ts_value = tcp_ts_clock(now_ns, conn->terms.ts_offset);
    out->options.ts_echo = conn->terms.ts_recent;
}

/* Every segment carries the newest ACK and window, so nothing of that is due any more. */
static void out_finish_ack(struct tcp_engine *engine, struct tcp_conn *conn, struct tcp_out *out)
{
    out->window = tcp_window_take(engine, conn);
    out->flags |= conn->ecn_echo ? TCP_ECE : 0;
    conn->last_ack_sent = conn->rcv_nxt;
    conn->acks_due -= conn->acks_due > 0;
    conn->unacked_bytes = 0;
    conn->delack_ns = TIME_NEVER;
}

/* Copies queued bytes [seq, seq+len) behind the headers and returns their checksum. */
static uint64_t copy_payload(const struct tcp_conn *conn, uint32_t seq, uint32_t len, uint8_t *to)
{
    uint32_t done = 0;
    for (uint32_t i = 0; i < conn->send_count && done < len; i++) {
        const struct tcp_send_record *record = &conn->sends[(conn->send_first + i) % TCP_SENDS_MAX];
        uint32_t at = record->seq;
        for (uint32_t k = 0; k < record->iov_count && done < len; k++) {
            uint32_t iov_len = (uint32_t)record->iov[k].iov_len;
            uint32_t skip = seq + done - at;
            if (seq_le(at, seq + done) && skip < iov_len) {
                uint32_t piece = min_u32(iov_len - skip, len - done);
                memcpy(to + done, (const uint8_t *)record->iov[k].iov_base + skip, piece);
                done += piece;
            }
            at += iov_len;
        }
    }
    CHECK(done == len);
    return tcp_checksum_add(0, to, len);
}

/* Emits [start, end) of the send sequence; `end` may include the FIN. */
static uint32_t emit_range(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                           struct tcp_range range, bool is_new, uint8_t *buf)
{
    struct tcp_out out;
    uint32_t data_end = seq_min(range.end, conn->snd_end);
    uint32_t len = data_end - range.start;
    out_init(engine, now_ns, conn, &out);
    out.seq = range.start;
    if (range.end != data_end) {
        out.flags |= TCP_FIN;
    }
    if (len > 0 && data_end == conn->snd_end) {
        out.flags |= TCP_PSH;
    }
    if (is_new && len > 0 && conn->terms.ecn_on) { /* RFC 3168 section 6.1.5: repeats are not marked */
        out.ecn = TCP_ECN_ECT0;
        out.flags |= conn->cwr_due ? TCP_CWR : 0;
        conn->cwr_due = false;
    }
    out_finish_ack(engine, conn, &out);
    uint32_t room = conn->mss - min_u32(conn->mss, len);
    tcp_sack_fill(conn, &out.options, room >= 12 ? min_u32((room - 4) / 8, 3) : 0);
    uint64_t sum = copy_payload(conn, range.start, len, buf + tcp_wire_headers_len(&out));
    conn->sent_ns = now_ns;
    TCP_COUNT_BY(engine, bytes_out, len);
    if (!is_new) {
        TCP_COUNT_BY(engine, bytes_retransmitted, len);
    }
    return tcp_wire_emit(&out, buf, len, sum);
}

static uint32_t output_lost(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint8_t *buf)
{
    struct tcp_range range;
    if (!tcp_recover_next(conn, &range)) {
        return 0;
    }
    bool is_first = conn->high_rxt == conn->snd_una;
    if (!is_first && tcp_pipe(conn) + (range.end - range.start) > conn->cwnd) {
        return 0;
    }
    conn->high_rxt = range.end;
    if (conn->rtt_timing && seq_lt(range.start, conn->rtt_seq + 1)) {
        conn->rtt_timing = false; /* Karn */
    }
    if (is_first || conn->rtx_ns == TIME_NEVER) {
        tcp_rtx_arm(conn, now_ns);
    }
    return emit_range(engine, now_ns, conn, range, false, buf);
}

/* Queued bytes that window and congestion window let out now; the sender's half of silly window avoidance. */
static uint32_t sendable(struct tcp_conn *conn)
{
    uint32_t queued = conn->snd_end - conn->snd_nxt;
    uint32_t flight = conn->snd_nxt - conn->snd_una;
    uint32_t window = conn->snd_wnd - min_u32(conn->snd_wnd, flight);
    uint32_t len = min_u32(queued, conn->mss);
    uint32_t pipe = tcp_pipe(conn);
    if (len > 0 && pipe > 0 && pipe + len > conn->cwnd) {
        conn->cwnd_limited = true;
        return 0;
    }
    if (len <= window) {
        return len;
    }
    /* RFC 9293 section 3.8.6.2.1: less than a segment only if it is a good part of what the peer ever offered. */
    bool worth = window >= conn->snd_wnd_max / 2 || conn->window_override;
    return worth ? window : 0;
}

/* RFC 5681 section 4.1: after a pause nobody knows what the path takes now. */
static void restart_after_idle(struct tcp_conn *conn, uint64_t now_ns)
{
    if (conn->snd_una == conn->snd_nxt && conn->snd_end != conn->snd_nxt && conn->sent_ns != 0 &&
        now_ns - conn->sent_ns > conn->rto_ns) {
        conn->cwnd = min_u32(conn->cwnd, tcp_cwnd_initial(conn->mss));
    }
}

static void left(struct tcp_conn *conn, uint64_t now_ns, struct tcp_range range)
{
    if (!conn->rtt_timing && !conn->terms.ts_on) {
        conn->rtt_timing = true;
        conn->rtt_seq = range.start;
        conn->rtt_start_ns = now_ns;
    }
    if (conn->snd_una == conn->snd_nxt || conn->rtx_ns == TIME_NEVER) {
        conn->stalled_ns = conn->stalled_ns == 0 ? now_ns : conn->stalled_ns;
        tcp_rtx_arm(conn, now_ns);
    }
    if (!conn->mss_tried && range.end - range.start >= conn->mss) {
        conn->mss_tried = true;
        conn->mss_tried_end = range.end;
    }
    conn->snd_nxt = range.end;
    conn->window_override = false;
    conn->cwnd_limited = tcp_pipe(conn) + conn->mss > conn->cwnd;
}

static void fin_leaves(struct tcp_conn *conn)
{
    conn->fin_sent = true;
    if (conn->state == TCP_STATE_ESTABLISHED) {
        conn->state = TCP_STATE_FIN_WAIT_1;
    } else {
        CHECK(conn->state == TCP_STATE_CLOSE_WAIT);
        conn->state = TCP_STATE_LAST_ACK;
    }
}

static uint32_t output_new(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint8_t *buf)
{
    if (conn->fin_sent || (conn->snd_nxt == conn->snd_end && !conn->fin_queued)) {
        return 0;
    }
    restart_after_idle(conn, now_ns);
    struct tcp_range range = {conn->snd_nxt, conn->snd_nxt + sendable(conn)};
    bool with_fin = conn->fin_queued && range.end == conn->snd_end;
    if (range.start == range.end && !with_fin) {
        if (conn->snd_una == conn->snd_nxt &&
            conn->rtx_ns == TIME_NEVER) { /* only the window can be in the way */
            conn->stalled_ns = conn->stalled_ns == 0 ? now_ns : conn->stalled_ns;
            tcp_rtx_arm(conn, now_ns);
        }
        return 0;
    }
    if (with_fin) {
        fin_leaves(conn);
        range.end++;
    }
    left(conn, now_ns, range);
    return emit_range(engine, now_ns, conn, range, true, buf);
}

/* An old sequence number without payload: the peer must answer with its ACK and window. */
static uint32_t output_probe(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint8_t *buf)
{
    struct tcp_out out;
    conn->probe_due = false;
    if (conn->rtx_ns != TIME_NEVER) {
        TCP_COUNT(engine, window_probes_out);
    }
    out_init(engine, now_ns, conn, &out);
    out.seq = conn->snd_una - 1;
    out_finish_ack(engine, conn, &out);
    return tcp_wire_emit(&out, buf, 0, 0);
}

static uint32_t output_ack(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint8_t *buf)
{
    struct tcp_out out;
    TCP_COUNT(engine, acks_out);
    out_init(engine, now_ns, conn, &out);
    out.seq = conn->snd_nxt;
    out_finish_ack(engine, conn, &out);
    tcp_sack_fill(conn, &out.options, conn->terms.ts_on ? 3 : 4);
    return tcp_wire_emit(&out, buf, 0, 0);
}

static uint32_t output_reset(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint8_t *buf)
{
    struct tcp_out out;
    TCP_COUNT(engine, resets_sent);
    conn->rst_due = false;
    out_init(engine, now_ns, conn, &out);
    out.seq = conn->snd_nxt;
    out.flags = TCP_RST | TCP_ACK;
    return tcp_wire_emit(&out, buf, 0, 0);
}

uint32_t tcp_conn_output(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint8_t *buf)
{
    uint32_t len = 0;
    if (conn->rst_due) {
        return output_reset(engine, now_ns, conn, buf);
    }
    if (conn->state == TCP_STATE_DEAD) {
        return 0;
    }
    if (conn->state == TCP_STATE_SYN_SENT) {
        return tcp_connect_output(engine, now_ns, conn, buf);
    }
    len = output_lost(engine, now_ns, conn, buf);
    if (len == 0) {
        len = output_new(engine, now_ns, conn, buf);
    }
    if (len == 0 && conn->probe_due) {
        len = output_probe(engine, now_ns, conn, buf);
    }
    if (len == 0 && conn->acks_due > 0) {
        len = output_ack(engine, now_ns, conn, buf);
    }
    if (conn->finishing && conn->acks_due == 0) { /* the ACK of the peer's FIN has left */
        tcp_wait_enter(engine, now_ns, conn);
        tcp_conn_dead(engine, conn, 0);
    }
    return len;
}

uint32_t tcp_reply_output(struct tcp_engine *engine, uint8_t *buf)
{
    if (engine->reply_count == 0) {
        return 0;
    }
    const struct tcp_reply *reply = &engine->replies[engine->reply_first];
    struct tcp_out out = {.tuple = &reply->tuple,
                          .link = &reply->link,
                          .seq = reply->seq,
                          .ack = reply->ack,
                          .window = reply->window,
                          .flags = reply->flags,
                          .ip_id = engine->ip_id++,
                          .options = reply->options};
    engine->reply_first = (engine->reply_first + 1) % engine->config.replies_max;
    engine->reply_count--;
    return tcp_wire_emit(&out, buf, 0, 0);
}
