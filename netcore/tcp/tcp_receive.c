/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_receive: payload. Owns the buffers of a connection between tcp_input and the consumer, the reassembly of what came out of
 * order, the advertised window, and what is told to the peer about it (SACK, D-SACK, when to acknowledge).
 *
 * Invariants:
 *  1. Buffers in the out-of-order list are ascending, disjoint, not empty, and start after rcv_nxt once an input is done.
 *  2. conn->frames_held counts buffers in both lists plus those of this connection at the consumer.
 *  3. A segment is taken whole or refused whole; refusing changes nothing but counters and the ACK that is due.
 *  4. rcv_edge never moves left.
 *
 * Overlaps: bytes that are there stay, new ones are trimmed; but a buffer that lies wholly inside a new one gives way to it, so
 * that each buffer is at most one run of the list.
 */
#include "tcp/tcp_int.h"

#define ACKS_DUE_MAX 4U        /* ACKs of one batch: three duplicates start the peer's recovery */
#define MSS_LEAST 536U         /* two equal segments below this say nothing about the path */
#define HOLE_STALE_NS NS_PER_S /* several round trips of nearly every path */
#define STALE_LOOKS 4U         /* connections looked at for each segment */
#define FRAME_BYTES_MIN 64U    /* a stream of single bytes must not close the window for good */

void tcp_ack_soon(struct tcp_engine *engine, struct tcp_conn *conn)
{
    conn->acks_due = min_u32(conn->acks_due + 1, ACKS_DUE_MAX);
    tcp_node_out(engine, &conn->node);
}

/* ---- window ---- */

/* Buffers that may still come for this connection. Of what is free for all it counts on half at most, so that with many
 * connections all windows get smaller before anything has to be refused. */
static uint32_t frames_room(const struct tcp_engine *engine, const struct tcp_conn *conn)
{
    uint32_t promised_max = tcp_frames_promised(engine);
    uint32_t own = promised_max - min_u32(conn->frames_held, promised_max);
    uint32_t all = engine->config.frames_hold_max - engine->stats.frames_held;
    return min_u32(own, all > 2 ? (all + 1) / 2 : all);
}

uint32_t tcp_window_edge(struct tcp_engine *engine, struct tcp_conn *conn)
{
    /* Buffers out of order lie inside the window already. */
    uint64_t bytes = ((uint64_t)frames_room(engine, conn) + conn->frames_ooo) * conn->frame_bytes;
    uint64_t full = (uint64_t)tcp_frames_promised(engine) * conn->frame_bytes;
    bytes = bytes < conn->window_max ? bytes : conn->window_max;
    full = full < conn->window_max ? full : conn->window_max;
    uint32_t edge = conn->rcv_nxt + (uint32_t)bytes;
    uint32_t step = min_u32((uint32_t)full / 2, tcp_mss_own(engine, &conn->node.tuple));
    /* RFC 9293 section 3.8.6.2.2: open in steps worth a segment, never shrink. */
    if (seq_le(edge, conn->rcv_edge) || edge - conn->rcv_edge < step) {
        return conn->rcv_edge;
    }
    return edge;
}

uint16_t tcp_window_take(struct tcp_engine *engine, struct tcp_conn *conn)
{
    uint32_t edge = tcp_window_edge(engine, conn);
    uint32_t shift = conn->terms.rcv_wscale;
    uint32_t field = (edge - conn->rcv_nxt) >> shift;
    if (seq_lt(conn->rcv_nxt + (field << shift), conn->rcv_edge)) {
        /* Rounding down would take back what was promised. */
        field = (conn->rcv_edge - conn->rcv_nxt + (1U << shift) - 1) >> shift;
    }
    field = min_u32(field, 65535);
    conn->rcv_edge = seq_max(conn->rcv_edge, conn->rcv_nxt + (field << shift));
    if (conn->rcv_edge - conn->rcv_nxt < conn->frame_bytes &&
        conn->frames_held < tcp_frames_promised(engine) && !list_is_linked(&conn->starved_link)) {
        list_append(&engine->starved, &conn->starved_link);
    }
    return (uint16_t)field;
}

void tcp_window_opened(struct tcp_engine *engine, struct tcp_conn *conn)
{
    if (conn->state == TCP_STATE_DEAD || conn->state == TCP_STATE_SYN_SENT || conn->fin_received) {
        return;
    }
    uint32_t now = conn->rcv_edge - conn->rcv_nxt;
    uint32_t then = tcp_window_edge(engine, conn) - conn->rcv_nxt;
    /* Worth a packet only if the peer may be waiting: when the window at least doubles, and by two segments. */
    uint64_t full = (uint64_t)tcp_frames_promised(engine) * conn->frame_bytes;
    full =
        full < conn->window_max ? full : conn->window_max; /* What is never reached must not be waited for. */
    uint32_t step = min_u32((uint32_t)full / 2, 2 * tcp_mss_own(engine, &conn->node.tuple));
    if (then < 2 * now || then - now < step) {
        if (now < conn->frame_bytes && conn->frames_held < tcp_frames_promised(engine) &&
            !list_is_linked(&conn->starved_link)) {
            list_append(&engine->starved, &conn->starved_link);
        }
        return;
    }
    if (conn->acks_due == 0) {
        TCP_COUNT(engine, window_updates);
        tcp_ack_soon(engine, conn);
    }
}

void tcp_starved_wake(struct tcp_engine *engine, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct list *link = list_take_first(&engine->starved);
        if (link == NULL) {
            return;
        }
        tcp_window_opened(engine, CONTAINER_OF(link, struct tcp_conn, starved_link));
    }
}

/* ---- SACK ---- */

/* Puts a range in front, joined with those it touches (RFC 2018 section 4: the newest first). */
static void sack_note(struct tcp_conn *conn, uint32_t start, uint32_t end)
{
    struct tcp_range kept[TCP_SACK_BLOCKS_MAX];
    uint32_t count = 1;
    for (uint32_t i = 0; i < conn->sack_count; i++) {
        struct tcp_range *block = &conn->sack[i];
        if (seq_le(block->start, end) && seq_le(start, block->end)) {
            start = seq_min(start, block->start);
            end = seq_max(end, block->end);
        } else if (count < TCP_SACK_BLOCKS_MAX) {
            kept[count++] = *block;
        }
    }
    kept[0] = (struct tcp_range){start, end};
    for (uint32_t i = 0; i < count; i++) {
        conn->sack[i] = kept[i];
    }
    conn->sack_count = count;
}

/* Drops what lies outside [from, to). */
static void sack_clip(struct tcp_conn *conn, uint32_t from, uint32_t to)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < conn->sack_count; i++) {
        struct tcp_range block = conn->sack[i];
        block.start = seq_max(block.start, from);
        block.end = seq_min(block.end, to);
        if (seq_lt(block.start, block.end)) {
            conn->sack[count++] = block;
        }
    }
    conn->sack_count = count;
}

void tcp_sack_fill(struct tcp_conn *conn, struct tcp_options *options, uint32_t max)
{
    options->sack_count = 0;
    if (!conn->terms.sack_on) {
        conn->dsack_due = false;
        return;
    }
    if (conn->dsack_due && max > 0) { /* RFC 2883: the first block says what came twice */
        options->sack[options->sack_count++] = conn->dsack;
        conn->dsack_due = false;
    }
    for (uint32_t i = 0; i < conn->sack_count && options->sack_count < max; i++) {
        options->sack[options->sack_count++] = conn->sack[i];
    }
}

static void note_duplicate(struct tcp_engine *engine, struct tcp_conn *conn, uint32_t start, uint32_t end)
{
    TCP_COUNT_BY(engine, bytes_duplicate, end - start);
    conn->dsack = (struct tcp_range){start, end};
    conn->dsack_due = true;
}

/* ---- buffers ---- */

static void frame_hold(struct tcp_engine *engine, struct tcp_conn *conn, uint32_t token, uint32_t seq,
                       const struct tcp_payload *payload)
{
    CHECK(token < engine->config.frames_count);
    struct tcp_frame *frame = &engine->frames[token];
    CHECK(frame->state == TCP_FRAME_CALLER);
    frame->addr = payload->addr;
    frame->seq = seq;
    frame->len = payload->len;
    frame->refs = 1;
    frame->conn_index = conn->index;
    frame->conn_generation = conn->generation;
    conn->frames_held++;
    engine->stats.frames_held++;
    engine->stats.frames_held_peak = max_u32(engine->stats.frames_held_peak, engine->stats.frames_held);
}

static void ready_append(struct tcp_engine *engine, struct tcp_conn *conn, uint32_t token)
{
    struct tcp_frame *frame = &engine->frames[token];
    frame->state = TCP_FRAME_READY;
    frame->next = TCP_NONE;
    if (conn->ready_tail == TCP_NONE) {
        conn->ready_head = token;
    } else {
        engine->frames[conn->ready_tail].next = token;
    }
    conn->ready_tail = token;
    conn->rcv_nxt += frame->len;
    TCP_COUNT_BY(engine, bytes_in, frame->len);
}

static void ooo_unlink(struct tcp_engine *engine, struct tcp_conn *conn, uint32_t token)
{
    struct tcp_frame *frame = &engine->frames[token];
    CHECK(frame->state == TCP_FRAME_OOO);
    if (frame->prev == TCP_NONE) {
        conn->ooo_head = frame->next;
    } else {
        engine->frames[frame->prev].next = frame->next;
    }
    if (frame->next == TCP_NONE) {
        conn->ooo_tail = frame->prev;
    } else {
        engine->frames[frame->next].prev = frame->prev;
    }
    CHECK(conn->frames_ooo > 0);
    conn->frames_ooo--;
    engine->stats.frames_out_of_order--;
}

static void ooo_link_after(struct tcp_engine *engine, struct tcp_conn *conn, uint32_t prev, uint32_t token)
{
    struct tcp_frame *frame = &engine->frames[token];
    frame->state = TCP_FRAME_OOO;
    frame->prev = prev;
    frame->next = prev == TCP_NONE ? conn->ooo_head : engine->frames[prev].next;
    if (prev == TCP_NONE) {
        conn->ooo_head = token;
    } else {
        engine->frames[prev].next = token;
    }
    if (frame->next == TCP_NONE) {
        conn->ooo_tail = token;
    } else {
        engine->frames[frame->next].prev = token;
    }
    conn->frames_ooo++;
    engine->stats.frames_out_of_order++;
}

void tcp_receive_drop_all(struct tcp_engine *engine, struct tcp_conn *conn)
{
    uint32_t before = engine->free_count;
    while (conn->ooo_head != TCP_NONE) {
        uint32_t token = conn->ooo_head;
        ooo_unlink(engine, conn, token);
        tcp_frame_free(engine, token);
    }
    while (conn->ready_head != TCP_NONE) {
        uint32_t token = conn->ready_head;
        conn->ready_head = engine->frames[token].next;
        tcp_frame_free(engine, token);
    }
    conn->ready_tail = TCP_NONE;
    conn->sack_count = 0;
    tcp_starved_wake(engine, engine->free_count - before);
}

void tcp_receive_end(struct tcp_engine *engine, struct tcp_conn *conn)
{
    uint32_t end = conn->fin_seq;
    while (conn->ooo_tail != TCP_NONE && seq_le(end, engine->frames[conn->ooo_tail].seq)) {
        uint32_t token = conn->ooo_tail;
        TCP_COUNT(engine, evicted_out_of_order);
        ooo_unlink(engine, conn, token);
        tcp_frame_free(engine, token);
    }
    if (conn->ooo_tail != TCP_NONE) {
        struct tcp_frame *last = &engine->frames[conn->ooo_tail];
        last->len = min_u32(last->len, end - last->seq);
    }
    sack_clip(conn, conn->rcv_nxt, end);
}

/* Puts one run into the out-of-order list. False if it brought nothing new; its buffer is then not held. */
static bool ooo_insert(struct tcp_engine *engine, struct tcp_conn *conn, uint32_t token, uint32_t seq,
                       struct tcp_payload run)
{
    uint32_t prev = conn->ooo_tail; /* nearly always the place */
    while (prev != TCP_NONE && seq_lt(seq, engine->frames[prev].seq)) {
        prev = engine->frames[prev].prev;
    }
    if (prev != TCP_NONE) {
        uint32_t prev_end = engine->frames[prev].seq + engine->frames[prev].len;
        uint32_t overlap = seq_lt(seq, prev_end) ? prev_end - seq : 0;
        if (overlap >= run.len) {
            return false;
        }
        if (overlap > 0) {
            note_duplicate(engine, conn, seq, prev_end);
        }
        seq += overlap;
        run.addr += overlap;
        run.len -= overlap;
    }
    uint32_t next = prev == TCP_NONE ? conn->ooo_head : engine->frames[prev].next;
    while (next != TCP_NONE && seq_lt(engine->frames[next].seq, seq + run.len)) {
        struct tcp_frame *frame = &engine->frames[next];
        if (seq_lt(seq + run.len, frame->seq + frame->len)) {
            if (frame->seq != seq) { /* else all of it was there, which the caller notes */
                note_duplicate(engine, conn, frame->seq, seq + run.len);
            }
            run.len = frame->seq - seq;
            break;
        }
        note_duplicate(engine, conn, frame->seq, frame->seq + frame->len);
        uint32_t covered = next;
        next = frame->next;
        ooo_unlink(engine, conn, covered);
        tcp_frame_free(engine, covered);
    }
    if (run.len == 0) {
        return false;
    }
    frame_hold(engine, conn, token, seq, &run);
    ooo_link_after(engine, conn, prev, token);
    return true;
}

/* ---- taking a segment ---- */

/* Runs of payload cut to [start, end), with their sequence numbers. Returns how many. */
static uint32_t cut_runs(const struct tcp_segment *segment, uint32_t start, uint32_t end,
                         struct tcp_payload *runs, uint32_t *seqs)
{
    uint32_t seq = segment->seq;
    uint32_t count = 0;
    for (uint32_t i = 0; i < segment->payload_count; i++) {
        struct tcp_payload run = segment->payload[i];
        uint32_t run_seq = seq;
        seq += run.len;
        if (seq_lt(run_seq, start)) {
            uint32_t skip = min_u32(start - run_seq, run.len);
            run.addr += skip;
            run.len -= skip;
            run_seq += skip;
        }
        if (seq_lt(end, run_seq + run.len)) {
            run.len = seq_lt(run_seq, end) ? end - run_seq : 0;
        }
        if (run.len > 0) {
            seqs[count] = run_seq;
            runs[count++] = run;
        }
    }
    return count;
}

/* RFC 2018 section 8 allows to take back what SACK reported; done only when else the stream would stand still. */
static void evict_last(struct tcp_engine *engine, struct tcp_conn *conn)
{
    uint32_t token = conn->ooo_tail;
    uint32_t from = engine->frames[token].seq;
    TCP_COUNT(engine, evicted_out_of_order);
    ooo_unlink(engine, conn, token);
    tcp_frame_free(engine, token);
    sack_clip(conn, conn->rcv_nxt, from);
}

/* Holes that nobody fills keep buffers from everybody else, at no cost to whoever leaves them. When half of all are held, what lies behind
 * a hole of more than a second goes, a little with each segment that needs room. */
static void evict_stale(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_conn *conn,
                        uint32_t count)
{
    if (engine->stats.frames_held < engine->config.frames_hold_max / 2 ||
        engine->stats.frames_out_of_order == conn->frames_ooo) {
        return;
    }
    for (uint32_t i = 0; i < STALE_LOOKS; i++) {
        engine->stale_hand = (engine->stale_hand + 1) % engine->config.conns_max;
        struct tcp_conn *other = &engine->conns[engine->stale_hand];
        if (other == conn || other->node.kind != TCP_KIND_CONN || now_ns - other->hole_ns < HOLE_STALE_NS) {
            continue;
        }
        for (uint32_t k = 0; k < 2 * count && other->ooo_head != TCP_NONE; k++) {
            evict_last(engine, other);
        }
    }
}

/* May `count` buffers more be held for payload that starts at `start`? */
static bool has_room(struct tcp_engine *engine, struct tcp_conn *conn, uint32_t start, uint32_t count)
{
    const struct tcp_config *config = &engine->config;
    bool in_order = start == conn->rcv_nxt;
    /* What fills a hole must always find room, so what makes one does not get the last eighth. */
    uint32_t own_max = config->conn_frames_max - (in_order ? 0 : max_u32(config->conn_frames_max / 8, 1));
    uint32_t all_max = config->frames_hold_max - (in_order ? 0 : max_u32(config->frames_hold_max / 8, 1));
    bool evicting_helps = in_order && conn->frames_held - conn->frames_ooo + count <= own_max &&
                          engine->stats.frames_held - conn->frames_ooo + count <= all_max;
    while (evicting_helps &&
           (conn->frames_held + count > own_max || engine->stats.frames_held + count > all_max)) {
        evict_last(engine, conn);
    }
    if (conn->frames_held + count <= own_max && engine->stats.frames_held + count <= all_max) {
        return true;
    }
    if (!in_order) {
        TCP_COUNT(engine, refused_hole_limit);
    } else if (conn->frames_held + count > own_max) {
        TCP_COUNT(engine, refused_conn_limit);
    } else {
        TCP_COUNT(engine, refused_pool);
    }
    return false;
}

static void ack_in_order(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn, uint32_t bytes,
                         bool at_once)
{
    conn->unacked_bytes += bytes;
    if (at_once || conn->quick_acks > 0 || conn->unacked_bytes >= 2 * conn->rcv_mss) {
        conn->quick_acks -= conn->quick_acks > 0;
        /* One ACK speaks for the whole batch: a second one like it would be a duplicate, and three of those are a loss. */
        conn->acks_due = 1;
        tcp_node_out(engine, &conn->node);
    } else if (conn->delack_ns == TIME_NEVER) {
        conn->delack_ns = now_ns + engine->config.delayed_ack_ns;
    }
}

static void learn_sizes(struct tcp_conn *conn, const struct tcp_segment *segment,
                        const struct tcp_payload *runs, uint32_t count)
{
    /* Smaller ones time after time: its path has got narrower, and every second of them is to be acknowledged all the same. */
    bool is_smaller = segment->len == conn->rcv_len && segment->len >= MSS_LEAST;
    conn->rcv_mss = is_smaller ? segment->len : max_u32(conn->rcv_mss, segment->len);
    conn->rcv_len = segment->len;
    for (uint32_t i = 0; i < count; i++) {
        /* A moving average: the bytes of a window are what its buffers will likely hold. It falls faster than it rises,
         * because a window that promised too much ends in refused segments. */
        int32_t step = (int32_t)runs[i].len - (int32_t)conn->frame_bytes;
        step = step < 0 ? step / 4 : step / 8;
        conn->frame_bytes = max_u32((uint32_t)((int32_t)conn->frame_bytes + step), FRAME_BYTES_MIN);
    }
}

/* Nobody wants the payload any more: acknowledge what is in order, keep nothing. */
static void receive_unwanted(struct tcp_engine *engine, struct tcp_conn *conn, uint32_t start, uint32_t end)
{
    TCP_COUNT(engine, drop_after_close);
    if (start == conn->rcv_nxt) {
        conn->rcv_nxt = end;
    }
    tcp_ack_soon(engine, conn);
}

/* Takes the runs, all of them. Returns the mask of parts held. */
static uint32_t take_runs(struct tcp_engine *engine, struct tcp_conn *conn, const struct tcp_part *parts,
                          const struct tcp_payload *runs, const uint32_t *seqs, uint32_t count)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = parts[runs[i].part].token;
        if (conn->ooo_head == TCP_NONE && seqs[i] == conn->rcv_nxt) {
            frame_hold(engine, conn, token, seqs[i], &runs[i]);
            ready_append(engine, conn, token);
            held |= 1U << runs[i].part;
        } else if (ooo_insert(engine, conn, token, seqs[i], runs[i])) {
            held |= 1U << runs[i].part;
        }
    }
    while (conn->ooo_head != TCP_NONE && engine->frames[conn->ooo_head].seq == conn->rcv_nxt) {
        uint32_t token = conn->ooo_head;
        ooo_unlink(engine, conn, token);
        ready_append(engine, conn, token);
    }
    return held;
}

uint32_t tcp_receive(struct tcp_engine *engine, uint64_t now_ns, struct tcp_conn *conn,
                     const struct tcp_segment *segment, const struct tcp_part *parts)
{
    struct tcp_payload runs[TCP_PARTS_MAX];
    uint32_t seqs[TCP_PARTS_MAX];
    uint32_t start = seq_max(segment->seq, conn->rcv_nxt);
    uint32_t end = seq_min(segment->seq + segment->len, conn->rcv_edge);
    end = conn->fin_seen ? seq_min(end, conn->fin_seq) : end;
    if (seq_lt(segment->seq, conn->rcv_nxt)) {
        note_duplicate(engine, conn, segment->seq, seq_min(conn->rcv_nxt, segment->seq + segment->len));
    }
    if (seq_le(end, start)) {
        TCP_COUNT(engine, segments_duplicate);
        tcp_ack_soon(engine, conn);
        return 0;
    }
    if (conn->closing) {
        receive_unwanted(engine, conn, start, end);
        return 0;
    }
    uint32_t count = cut_runs(segment, start, end, runs, seqs);
    evict_stale(engine, now_ns, conn, count);
    if (!has_room(engine, conn, start, count)) {
        conn->refused = true;
        tcp_ack_soon(engine, conn);
        return 0;
    }
    bool had_hole = conn->ooo_head != TCP_NONE;
    uint32_t before = conn->rcv_nxt;
    learn_sizes(conn, segment, runs, count);
    uint32_t held = take_runs(engine, conn, parts, runs, seqs, count);
    if (!had_hole || conn->rcv_nxt != before) {
        conn->hole_ns = now_ns;
    }
    if (start != before) {
        if (held == 0) {
            TCP_COUNT(engine, segments_duplicate);
            note_duplicate(engine, conn, start, end);
        }
        TCP_COUNT(engine, segments_out_of_order);
        sack_note(conn, start, end);
        tcp_ack_soon(engine, conn);
    } else {
        ack_in_order(engine, now_ns, conn, conn->rcv_nxt - before, had_hole || start != segment->seq);
    }
    sack_clip(conn, conn->rcv_nxt, conn->rcv_edge);
    tcp_conn_event(engine, conn);
    return held;
}
