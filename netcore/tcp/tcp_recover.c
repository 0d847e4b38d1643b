/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_recover: what the peer's ACKs say about what we sent. Owns the round-trip estimate (RFC 6298), the congestion window
 * (RFC 5681), the scoreboard of SACKed runs and the choice of what to send again (RFC 6675; RFC 6582 without SACK).
 *
 *   NONE --3 duplicates, or SACK says so: enter_fast--> FAST --ACK of recovery_point: leave--> NONE
 *   any --timeout: tcp_recover_timeout--> LOSS --ACK of recovery_point: leave--> NONE
 *
 * Invariants: snd_una <= high_rxt; scores are ascending, disjoint, inside (snd_una, snd_nxt]; in recovery
 * snd_una < recovery_point <= snd_nxt.
 */
#include "tcp/tcp_int.h"

#define DUP_THRESHOLD 3U
#define BLACK_HOLE_TIMEOUTS 3U /* timeouts in a row that suggest that full packets do not get through */
#define BLACK_HOLE_TIMEOUTS_PROVEN                                                                           \
    6U /* the same when full packets did get through before: the way may have changed */
#define RTT_SANE_MS 300000U

void tcp_rtx_arm(struct tcp_conn *conn, uint64_t now_ns)
{
    uint64_t rto = conn->rto_ns << min_u32(conn->rto_shift, 16);
    conn->rtx_ns = now_ns + (rto < conn->rto_max_ns ? rto : conn->rto_max_ns);
}

/* RFC 6298 section 2. */
static void rtt_sample(struct tcp_engine *engine, struct tcp_conn *conn, uint64_t rtt_ns)
{
    if (conn->srtt_ns == 0) {
        conn->srtt_ns = rtt_ns;
        conn->rttvar_ns = rtt_ns / 2;
    } else {
        uint64_t delta = conn->srtt_ns > rtt_ns ? conn->srtt_ns - rtt_ns : rtt_ns - conn->srtt_ns;
        conn->rttvar_ns += delta / 4 - conn->rttvar_ns / 4;
        conn->srtt_ns += rtt_ns / 8 - conn->srtt_ns / 8;
    }
    uint64_t spread = 4 * conn->rttvar_ns;
    uint64_t rto = conn->srtt_ns + (spread > NS_PER_MS ? spread : NS_PER_MS);
    rto = rto < engine->config.rto_min_ns ? engine->config.rto_min_ns : rto;
    conn->rto_ns = rto < engine->config.rto_max_ns ? rto : engine->config.rto_max_ns;
    conn->rto_shift = 0;
}

static void rtt_measure(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                        const struct tcp_segment *segment)
{
    /* An echo from before the last timeout may be of what came long ago, its ACK lost since: as Karn without timestamps, wait for a clear
     * one. If the path is that slow indeed, what is sent from now on will tell. */
    bool is_doubtful = conn->recovery == TCP_RECOVERY_LOSS && conn->rto_shift > 0 &&
                       seq_lt(segment->options.ts_echo, conn->timeout_ts);
    if (conn->terms.ts_on && (segment->options.ts_echo == 0 || is_doubtful)) {
        return;
    }
    if (conn->terms.ts_on) {
        uint32_t ms = tcp_ts_clock(now_ns, conn->terms.ts_offset) - segment->options.ts_echo;
        if (ms < RTT_SANE_MS) { /* the peer can echo anything */
            rtt_sample(engine, conn, ms == 0 ? NS_PER_MS / 2 : ms * NS_PER_MS);
        }
    } else if (conn->rtt_timing && seq_lt(conn->rtt_seq, segment->ack)) {
        conn->rtt_timing = false;
        rtt_sample(engine, conn, now_ns - conn->rtt_start_ns + 1);
    }
}

/* ---- scoreboard ---- */

/* Enters one run. True if it says anything new. */
static bool score_add(struct tcp_conn *conn, uint32_t start, uint32_t end)
{
    uint32_t i = 0;
    while (i < conn->score_count && seq_lt(conn->scores[i].end, start)) {
        i++;
    }
    uint32_t first = i;
    if (i < conn->score_count && seq_le(conn->scores[i].start, start) && seq_le(end, conn->scores[i].end)) {
        return false;
    }
    while (i < conn->score_count && seq_le(conn->scores[i].start, end)) {
        start = seq_min(start, conn->scores[i].start);
        end = seq_max(end, conn->scores[i].end);
        i++;
    }
    if (i == first && conn->score_count == TCP_SCORES_MAX) {
        return false; /* forgetting a run is safe: it may be sent once too often */
    }
    /* Runs first .. i-1 become one. */
    uint32_t tail = conn->score_count - i;
    struct tcp_range moved[TCP_SCORES_MAX];
    for (uint32_t k = 0; k < tail; k++) {
        moved[k] = conn->scores[i + k];
    }
    conn->scores[first] = (struct tcp_range){start, end};
    for (uint32_t k = 0; k < tail; k++) {
        conn->scores[first + 1 + k] = moved[k];
    }
    conn->score_count = first + 1 + tail;
    return true;
}

static void score_trim(struct tcp_conn *conn)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < conn->score_count; i++) {
        /* A run that begins at snd_una or before, yet was not acknowledged with it, was taken back (RFC 2018 section 8). */
        if (seq_lt(conn->snd_una, conn->scores[i].start)) {
            conn->scores[kept++] = conn->scores[i];
        }
    }
    conn->score_count = kept;
}

static bool scores_take(struct tcp_engine *engine, struct tcp_conn *conn, const struct tcp_segment *segment)
{
    bool news = false;
    if (!conn->terms.sack_on) {
        return false;
    }
    for (uint32_t i = 0; i < segment->options.sack_count; i++) {
        struct tcp_range block = segment->options.sack[i];
        if (!seq_lt(block.start, block.end) || seq_lt(conn->snd_nxt, block.end)) {
            TCP_COUNT(engine, sack_ignored);
        } else if (seq_lt(conn->snd_una,
                          block.start)) { /* else it is a D-SACK: what it says is acknowledged anyway */
            news = score_add(conn, block.start, block.end) || news;
        }
    }
    return news;
}

/* Everything not SACKed before this number is taken for lost. */
static uint32_t lost_edge(const struct tcp_conn *conn)
{
    uint32_t edge = conn->snd_una;
    uint32_t above = 0;
    if (conn->recovery == TCP_RECOVERY_LOSS) {
        return conn->recovery_point;
    }
    if (conn->recovery == TCP_RECOVERY_FAST) {
        edge = seq_min(conn->snd_una + conn->mss, conn->snd_nxt);
    }
    for (uint32_t i = conn->score_count; i-- > 0;) { /* RFC 6675 section 4, IsLost */
        above += conn->scores[i].end - conn->scores[i].start;
        if (conn->score_count - i >= DUP_THRESHOLD || above > (DUP_THRESHOLD - 1) * conn->mss) {
            return seq_max(edge, conn->scores[i].start);
        }
    }
    return edge;
}

/* Bytes of the hole [start, end) that are thought to be on the way: not lost, or lost and sent again. */
static uint32_t hole_in_flight(uint32_t start, uint32_t end, uint32_t edge, uint32_t high_rxt)
{
    uint32_t again = seq_min(seq_min(edge, high_rxt), end);
    uint32_t bytes = seq_lt(start, again) ? again - start : 0;
    uint32_t alive = seq_max(start, edge);
    return bytes + (seq_lt(alive, end) ? end - alive : 0);
}

uint32_t tcp_pipe(const struct tcp_conn *conn)
{
    uint32_t edge = lost_edge(conn);
    uint32_t at = conn->snd_una;
    uint32_t pipe = 0;
    for (uint32_t i = 0; i < conn->score_count; i++) {
        pipe += hole_in_flight(at, conn->scores[i].start, edge, conn->high_rxt);
        at = conn->scores[i].end;
    }
    pipe += hole_in_flight(at, conn->snd_nxt, edge, conn->high_rxt);
    return pipe - min_u32(pipe, conn->dup_bytes);
}

bool tcp_recover_next(const struct tcp_conn *conn, struct tcp_range *range)
{
    if (conn->recovery == TCP_RECOVERY_NONE) {
        return false;
    }
    uint32_t edge = lost_edge(conn);
    uint32_t at = seq_max(conn->snd_una, conn->high_rxt);
    uint32_t end = conn->snd_nxt;
    for (uint32_t i = 0; i < conn->score_count; i++) {
        if (seq_lt(at, conn->scores[i].start)) {
            end = conn->scores[i].start;
            break;
        }
        at = seq_max(at, conn->scores[i].end);
    }
    if (!seq_lt(at, edge) || !seq_lt(at, end)) {
        return false;
    }
    range->start = at;
    range->end = seq_min(end, at + conn->mss);
    return true;
}

/* ---- congestion window ---- */

static void reduce(struct tcp_conn *conn)
{
    uint32_t flight = conn->snd_nxt - conn->snd_una;
    conn->ssthresh = max_u32(flight / 2, 2 * conn->mss); /* RFC 5681, equation 4 */
}

static void grow(struct tcp_conn *conn, uint32_t acked)
{
    if (!conn->cwnd_limited || conn->cwnd >= TCP_CWND_MAX) {
        return; /* a window that was not used proves nothing (RFC 7661) */
    }
    if (conn->cwnd < conn->ssthresh) {
        conn->cwnd += min_u32(acked, 2 * conn->mss); /* RFC 3465: a stretched ACK counts for two */
        return;
    }
    conn->cwnd_acked += acked;
    if (conn->cwnd_acked >= conn->cwnd) {
        conn->cwnd_acked -= conn->cwnd;
        conn->cwnd += conn->mss;
    }
}

static void enter_fast(struct tcp_engine *engine, struct tcp_conn *conn)
{
    TCP_COUNT(engine, fast_recoveries);
    reduce(conn);
    conn->cwnd = conn->ssthresh;
    conn->cwnd_acked = 0;
    conn->recovery = TCP_RECOVERY_FAST;
    conn->recovery_point = conn->snd_nxt;
    conn->high_rxt = conn->snd_una;
    conn->cwr_due = conn->terms.ecn_on;
    conn->ecn_point = conn->snd_nxt;
}

static void leave(struct tcp_conn *conn)
{
    if (conn->recovery == TCP_RECOVERY_FAST) {
        /* RFC 6582 section 3.2, step 3: no burst after a long recovery. */
        conn->cwnd = min_u32(conn->ssthresh, max_u32(tcp_pipe(conn), conn->mss) + conn->mss);
    }
    conn->at_recovery_edge = conn->snd_una == conn->recovery_point;
    conn->recovery = TCP_RECOVERY_NONE;
    conn->dup_acks = 0;
    conn->dup_bytes = 0;
}

/* snd_una has moved by `acked`. */
static void progress(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint32_t acked)
{
    score_trim(conn);
    conn->high_rxt = seq_max(conn->high_rxt, conn->snd_una);
    conn->mss_proven = conn->mss_proven || (conn->mss_tried && seq_le(conn->mss_tried_end, conn->snd_una));
    if (conn->recovery == TCP_RECOVERY_NONE) {
        conn->at_recovery_edge = false;
        conn->dup_acks = 0;
        conn->dup_bytes = 0;
        conn->recovery_point = conn->snd_una;
        grow(conn, acked);
    } else if (conn->recovery == TCP_RECOVERY_LOSS) {
        conn->cwnd_limited = true;
        grow(conn, acked); /* RFC 5681 section 3.1: slow start, up to and with the ACK that ends it */
        if (seq_le(conn->recovery_point, conn->snd_una)) {
            leave(conn);
        }
    } else if (seq_le(conn->recovery_point, conn->snd_una)) {
        leave(conn);
    } else if (!conn->terms.sack_on) { /* RFC 6582: a partial ACK names the next hole */
        conn->high_rxt = conn->snd_una;
        uint32_t beyond = acked > conn->mss ? acked - conn->mss : 0;
        conn->dup_bytes -= min_u32(conn->dup_bytes, beyond);
    }
    conn->stalled_ns = conn->snd_una == conn->snd_nxt ? 0 : now_ns;
    conn->timeouts = 0;
    if (conn->snd_una == conn->snd_nxt) {
        conn->rtx_ns = TIME_NEVER;
    } else {
        tcp_rtx_arm(conn, now_ns);
    }
    tcp_conn_event(engine, conn);
}

static void duplicate(struct tcp_engine *engine, struct tcp_conn *conn)
{
    conn->dup_acks++;
    if (!conn->terms.sack_on) {
        uint32_t flight = conn->snd_nxt - conn->snd_una;
        conn->dup_bytes = min_u32(conn->dup_bytes + conn->mss, flight - min_u32(flight, conn->mss));
    }
    /* RFC 6582 section 3.2, step 2: without SACK, what was sent once too often in a recovery looks like a loss behind its end. */
    bool is_doubtful = conn->at_recovery_edge && !conn->terms.sack_on;
    if (conn->recovery == TCP_RECOVERY_NONE && !is_doubtful &&
        (conn->dup_acks >= DUP_THRESHOLD || seq_lt(conn->snd_una, lost_edge(conn)))) {
        enter_fast(engine, conn);
    }
}

/* The window has opened, and nothing is on the way. Only what is worth a segment ends the waiting, and with it the peer's time: one that
 * opens it by a byte and closes it again has taken nothing. A little room brings the timer nearer, which lets a little go. */
static void window_wider(struct tcp_conn *conn, uint64_t now_ns)
{
    conn->rto_shift = 0;
    if (tcp_has_room(conn)) {
        conn->rtx_ns = TIME_NEVER;
        conn->stalled_ns = 0;
    } else if (conn->rtx_ns != TIME_NEVER && conn->rtx_ns > now_ns + conn->rto_ns) {
        conn->rtx_ns = now_ns + conn->rto_ns;
    }
}

/* RFC 9293 section 3.10.7.4: only a newer segment may change the window, and none with an ACK from the past. True if it changed. */
static bool window_take(struct tcp_conn *conn, uint64_t now_ns, const struct tcp_segment *segment)
{
    bool newer = seq_lt(conn->snd_wl1, segment->seq) ||
                 (conn->snd_wl1 == segment->seq && seq_le(conn->snd_wl2, segment->ack));
    uint32_t window = segment->window << conn->terms.snd_wscale;
    uint32_t before = conn->snd_wnd;
    if (!newer || seq_lt(segment->ack, conn->snd_una)) {
        return false;
    }
    conn->snd_wl1 = segment->seq;
    conn->snd_wl2 = segment->ack;
    conn->snd_wnd = window;
    conn->snd_wnd_max = max_u32(conn->snd_wnd_max, window);
    if (window > before && conn->snd_una == conn->snd_nxt) {
        window_wider(conn, now_ns);
    }
    return window != before;
}

static void echo_take(struct tcp_engine *engine, struct tcp_conn *conn, const struct tcp_segment *segment)
{
    if (!conn->terms.ecn_on || !(segment->flags & TCP_ECE) || conn->recovery != TCP_RECOVERY_NONE ||
        seq_lt(segment->ack, conn->ecn_point) || conn->snd_una == conn->snd_nxt) {
        return;
    }
    TCP_COUNT(engine, ecn_reductions);
    reduce(conn);
    conn->cwnd = conn->ssthresh;
    conn->cwr_due = true;
    conn->ecn_point = conn->snd_nxt;
}

bool tcp_has_room(const struct tcp_conn *conn)
{
    uint32_t worth = min_u32(conn->mss, max_u32(conn->snd_wnd_max / 2, 1));
    return conn->snd_wnd >= worth || (conn->snd_wnd > 0 && conn->window_override);
}

void tcp_room_ask(struct tcp_conn *conn, uint64_t now_ns)
{
    if (conn->recalled && conn->snd_una == conn->snd_nxt && conn->rtx_ns == TIME_NEVER &&
        !tcp_has_room(conn)) {
        conn->stalled_ns = conn->stalled_ns == 0 ? now_ns : conn->stalled_ns;
        tcp_rtx_arm(conn, now_ns);
    }
}

void tcp_acked(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
               const struct tcp_segment *segment)
{
    bool advances = seq_lt(conn->snd_una, segment->ack);
    bool outstanding = conn->snd_una != conn->snd_nxt;
    bool window_changed = window_take(conn, now_ns, segment);
    bool news = false;
    echo_take(engine, conn, segment);
    if (advances) {
        uint32_t acked = segment->ack - conn->snd_una;
        rtt_measure(engine, now_ns, conn, segment);
        conn->snd_una = segment->ack;
        news = scores_take(engine, conn, segment);
        progress(engine, now_ns, conn, acked);
    } else if (segment->ack == conn->snd_una) {
        news = scores_take(engine, conn, segment);
    }
    bool plain = segment->len == 0 && !window_changed && !(segment->flags & TCP_FIN);
    bool is_duplicate =
        !advances && segment->ack == conn->snd_una && outstanding && (conn->terms.sack_on ? news : plain);
    if (is_duplicate) {
        duplicate(engine, conn);
    }
    tcp_room_ask(conn, now_ns);
}

/* RFC 4821 in small: when full packets vanish time after time, try what nearly every path takes. Plain loss must not look like it:
 * small packets would be the lasting price. */
static void black_hole(struct tcp_engine *engine, struct tcp_conn *conn)
{
    uint32_t fallback = conn->node.tuple.version == 6 || conn->path_mtu > 1280 ? 1280 : 576;
    uint32_t timeouts = conn->mss_proven ? BLACK_HOLE_TIMEOUTS_PROVEN : BLACK_HOLE_TIMEOUTS;
    if (conn->rto_shift % timeouts != 0 || conn->path_mtu <= fallback ||
        conn->snd_nxt - conn->snd_una < conn->mss) {
        return;
    }
    TCP_COUNT(engine, black_holes);
    conn->path_mtu = fallback;
    conn->mss_proven = conn->mss_tried = false;
    tcp_conn_mss(conn);
}

void tcp_recover_timeout(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn)
{
    TCP_COUNT(engine, rto_fired);
    if (conn->rto_shift == 0) {
        reduce(conn);
    }
    conn->rto_shift += conn->rto_shift < 16;
    conn->timeouts++;
    conn->rtt_timing = false; /* Karn: what is sent again measures nothing */
    conn->timeout_ts = tcp_ts_clock(now_ns, conn->terms.ts_offset);
    tcp_rtx_arm(conn, now_ns);
    if (conn->state == TCP_STATE_SYN_SENT) {
        conn->snd_nxt = conn->terms.iss;
        return;
    }
    black_hole(engine, conn);
    conn->cwr_due = conn->terms.ecn_on; /* RFC 3168 section 6.1.2: after any reduction, whatever its cause */
    conn->ecn_point = conn->snd_nxt;
    conn->cwnd = conn->mss;
    conn->cwnd_acked = 0;
    conn->score_count = 0; /* RFC 2018 section 8: the peer may have dropped what it reported */
    conn->dup_acks = 0;
    conn->dup_bytes = 0;
    conn->recovery = TCP_RECOVERY_LOSS;
    conn->recovery_point = conn->snd_nxt;
    conn->high_rxt = conn->snd_una;
}
