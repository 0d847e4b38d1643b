/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_invariants: walks an engine and aborts if what its files promise does not hold. For tests and fuzz targets, after any step.
 */
#ifndef TESTS_TCP_INVARIANTS_H
#define TESTS_TCP_INVARIANTS_H

#include "tcp/tcp_int.h"

static inline void invariants_receive(const struct tcp_engine *engine, const struct tcp_conn *conn,
                                      uint32_t *held)
{
    uint32_t prev = TCP_NONE;
    uint32_t count = 0;
    uint32_t end = conn->rcv_nxt;
    for (uint32_t token = conn->ooo_head; token != TCP_NONE; token = engine->frames[token].next) {
        const struct tcp_frame *frame = &engine->frames[token];
        CHECK(frame->state == TCP_FRAME_OOO);
        CHECK(frame->prev == prev);
        CHECK(frame->len > 0);
        CHECK(count == 0 ? seq_lt(end, frame->seq) : seq_le(end, frame->seq));
        end = frame->seq + frame->len;
        CHECK(seq_le(end, conn->rcv_edge));
        prev = token;
        count++;
    }
    CHECK(conn->ooo_tail == prev);
    CHECK(conn->frames_ooo == count);
    for (uint32_t token = conn->ready_head; token != TCP_NONE; token = engine->frames[token].next) {
        CHECK(engine->frames[token].state == TCP_FRAME_READY);
        count++;
    }
    CHECK(count <= conn->frames_held);
    CHECK(conn->frames_held <= engine->config.conn_frames_max);
    CHECK(conn->sack_count <= TCP_SACK_BLOCKS_MAX);
    for (uint32_t i = 0; i < conn->sack_count; i++) {
        CHECK(seq_lt(conn->sack[i].start, conn->sack[i].end));
        CHECK(seq_le(conn->rcv_nxt, conn->sack[i].start));
        CHECK(seq_le(conn->sack[i].end, conn->rcv_edge));
    }
    *held += conn->frames_held;
}

static inline void invariants_send(const struct tcp_conn *conn)
{
    if (conn->state == TCP_STATE_SYN_SENT || conn->state == TCP_STATE_DEAD) {
        return;
    }
    CHECK(seq_le(conn->snd_una, conn->snd_nxt));
    CHECK(seq_le(conn->snd_nxt, conn->snd_end + (conn->fin_sent ? 1 : 0)));
    CHECK(!conn->fin_sent || conn->snd_nxt == conn->snd_end + 1);
    CHECK(seq_le(conn->snd_una, conn->high_rxt));
    CHECK(conn->cwnd >= min_u32(conn->mss, 64));
    CHECK(conn->mss > 0);
    CHECK(tcp_pipe(conn) <= conn->snd_nxt - conn->snd_una);
    CHECK(conn->score_count <= TCP_SCORES_MAX);
    uint32_t end = conn->snd_una;
    for (uint32_t i = 0; i < conn->score_count; i++) {
        CHECK(seq_lt(end, conn->scores[i].start));
        CHECK(seq_lt(conn->scores[i].start, conn->scores[i].end));
        end = conn->scores[i].end;
    }
    CHECK(seq_le(end, conn->snd_nxt));
    if (conn->recovery != TCP_RECOVERY_NONE) {
        CHECK(seq_lt(conn->snd_una, conn->recovery_point));
        CHECK(seq_le(conn->recovery_point, conn->snd_nxt));
    }
    /* What is outstanding has a timer, or the peer's answer would be waited for in vain. */
    CHECK(conn->snd_una == conn->snd_nxt || conn->rtx_ns != TIME_NEVER);
}

static inline void invariants_frames(const struct tcp_engine *engine)
{
    uint32_t free_count = 0;
    uint32_t states[TCP_FRAME_FREE + 1] = {0};
    for (uint32_t i = 0; i < engine->config.frames_count; i++) {
        states[engine->frames[i].state]++;
    }
    CHECK(states[TCP_FRAME_OOO] == engine->stats.frames_out_of_order);
    CHECK(states[TCP_FRAME_OOO] + states[TCP_FRAME_READY] + states[TCP_FRAME_CONSUMER] ==
          engine->stats.frames_held);
    for (uint32_t token = engine->free_head; token != TCP_NONE; token = engine->frames[token].next) {
        free_count++;
    }
    CHECK(free_count == engine->free_count);
    CHECK(free_count == states[TCP_FRAME_FREE]);
    CHECK(engine->stats.frames_held <= engine->config.frames_hold_max);
}

static inline void invariants_check(const struct tcp_engine *engine)
{
    uint32_t held = 0;
    uint32_t used = 0;
    for (uint32_t i = 0; i < engine->config.conns_max; i++) {
        const struct tcp_conn *conn = &engine->conns[i];
        if (conn->node.kind != TCP_KIND_CONN) {
            continue;
        }
        used++;
        invariants_receive(engine, conn, &held);
        invariants_send(conn);
        CHECK(conn->state == TCP_STATE_DEAD || tcp_node_find(engine, &conn->node.tuple) == &conn->node);
    }
    CHECK(used == engine->stats.conns_used);
    CHECK(held <= engine->stats.frames_held);
    invariants_frames(engine);
    for (uint32_t i = 0; i < engine->heap_count; i++) {
        CHECK(engine->heap[i]->heap_index == i);
        CHECK(i == 0 || engine->heap[(i - 1) / 2]->deadline_ns <= engine->heap[i]->deadline_ns);
    }
    CHECK(engine->reply_count <= engine->config.replies_max);
}

#endif
