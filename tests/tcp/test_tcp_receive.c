/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families "receive", "window" and "ack": payload in every order, what is told to the peer about it, and when. Method: tcp_rig.h.
 */
#include <criterion/criterion.h>
#include <errno.h>

#include "tcp_rig.h"

static struct rig rig;

#define NEXT (rig.peer->seq)
/* The engine's SACK block `n`, relative. */
#define SACK_START(n) (rig.seg.options.sack[n].start - rig.peer->irs)
#define SACK_END(n) (rig.seg.options.sack[n].end - rig.peer->irs)

static void start(const struct tcp_config *config)
{
    rig_open(&rig, config);
    rig_established(&rig);
}

static uint32_t window_of(void)
{
    uint32_t shift = 0;
    uint64_t most = (uint64_t)rig.config.conn_frames_max * 1460;
    for (; shift < 14 && most >> shift > 65535; shift++) {
    }
    return rig.seg.window << shift;
}

Test(tcp_receive, in_order_is_delivered_and_acknowledged_every_second_segment)
{
    start(&(struct tcp_config){0});
    IN(.len = 1000);
    EXPECT_NONE();
    IN(.seq = NEXT + 1000, .len = 1000);
    EXPECT_ACK(NEXT + 2000);
    EXPECT_NONE();
    cr_assert(rig.received == 18000);
    rig_close(&rig);
}

Test(tcp_receive, lone_segment_is_acknowledged_by_the_timer)
{
    start(&(struct tcp_config){0});
    IN(.len = 1000);
    cr_assert(tcp_poll_at(rig.engine) == 0); /* the connection waits to be asked */
    EXPECT_NONE();
    cr_assert(tcp_poll_at(rig.engine) == rig.now + 40 * RIG_MS);
    rig_advance(&rig, 40 * RIG_MS - 1);
    EXPECT_NONE();
    rig_advance(&rig, 1);
    EXPECT_ACK(NEXT + 1000);
    EXPECT_NONE();
    rig_close(&rig);
}

Test(tcp_receive, dup_full_is_acked_at_once_with_dsack)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT - 1000, .len = 1000);
    EXPECT_ACK(NEXT);
    cr_assert(rig.seg.options.sack_count == 1);
    cr_assert(SACK_START(0) == NEXT - 1000 && SACK_END(0) == NEXT);
    cr_assert(rig.received == 16000);
    IN(.seq = NEXT + 1000, .len = 10); /* said once only */
    EXPECT_ACK(NEXT);
    cr_assert(rig.seg.options.sack_count == 1 && SACK_START(0) == NEXT + 1000);
    rig_close(&rig);
}

Test(tcp_receive, overlap_left_is_trimmed)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT - 500, .len = 1000);
    EXPECT_ACK(NEXT + 500);
    cr_assert(rig.received == 16500);
    cr_assert(rig.seg.options.sack_count == 1 && SACK_START(0) == NEXT - 500 &&
              SACK_END(0) == NEXT); /* D-SACK */
    rig_close(&rig);
}

Test(tcp_receive, overlap_right_with_what_is_held_is_trimmed)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT + 500, .len = 1000);
    EXPECT_ACK(NEXT);
    IN(.len = 1000);
    EXPECT_ACK(NEXT + 1500);
    cr_assert(rig.received == 17500);
    rig_close(&rig);
}

Test(tcp_receive, segment_that_covers_what_is_held_replaces_it)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT + 200, .len = 100);
    IN(.seq = NEXT + 400, .len = 100);
    rig_drain_out(&rig);
    IN(.seq = NEXT + 100, .len = 600);
    cr_assert(tcp_stats(rig.engine)->frames_held == 1);
    rig_drain_out(&rig);
    IN(.len = 100);
    EXPECT_ACK(NEXT + 700);
    cr_assert(rig.received == 16700);
    rig_close(&rig);
}

Test(tcp_receive, gap_dup_acks_one_for_each_segment)
{
    start(&(struct tcp_config){0});
    for (uint32_t i = 1; i <= 4; i++) {
        IN(.seq = NEXT + i * 1000, .len = 1000);
        EXPECT_ACK(NEXT);
        EXPECT_NONE();
        cr_assert(rig.seg.options.sack_count == 1);
        cr_assert(SACK_START(0) == NEXT + 1000 && SACK_END(0) == NEXT + (i + 1) * 1000);
    }
    rig_close(&rig);
}

Test(tcp_receive, gap_dup_acks_of_a_batch_are_at_least_three)
{
    start(&(struct tcp_config){0});
    for (uint32_t i = 1; i <= 20; i++) {
        IN(.seq = NEXT + i * 1000, .len = 1000);
    }
    for (int i = 0; i < 4; i++) {
        EXPECT_ACK(NEXT);
    }
    EXPECT_NONE();
    rig_close(&rig);
}

Test(tcp_receive, gap_filled_delivers_all_at_once)
{
    start(&(struct tcp_config){0});
    for (uint32_t i = 1; i <= 3; i++) {
        IN(.seq = NEXT + i * 1000, .len = 1000);
    }
    rig_drain_out(&rig);
    cr_assert(rig.received == 16000);
    IN(.len = 1000);
    EXPECT_ACK(NEXT + 4000);
    cr_assert(rig.seg.options.sack_count == 0);
    EXPECT_NONE();
    cr_assert(rig.received == 20000);
    rig_close(&rig);
}

Test(tcp_receive, sack_blocks_newest_first)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT + 1000, .len = 100);
    IN(.seq = NEXT + 3000, .len = 100);
    IN(.seq = NEXT + 2000, .len = 100);
    rig_drain_out(&rig);
    IN(.seq = NEXT + 4000, .len = 100);
    EXPECT_ACK(NEXT);
    cr_assert(rig.seg.options.sack_count == 3);
    cr_assert(SACK_START(0) == NEXT + 4000 && SACK_END(0) == NEXT + 4100);
    cr_assert(SACK_START(1) == NEXT + 2000);
    cr_assert(SACK_START(2) == NEXT + 3000);
    IN(.seq = NEXT + 3000, .len = 100); /* a duplicate out of order: D-SACK, then the block it lies in */
    EXPECT_ACK(NEXT);
    cr_assert(SACK_START(0) == NEXT + 3000 && SACK_END(0) == NEXT + 3100);
    cr_assert(SACK_START(1) == NEXT + 3000);
    rig_close(&rig);
}

/* RFC 2883 section 4: the first block says which part came twice, the second where it lies. */
Test(tcp_receive, what_comes_twice_behind_a_hole_is_told_in_part_too)
{
    static const struct {
        uint32_t at, len, dsack, dsack_end, sack, sack_end;
    } cases[] = {
        {1500, 600, 1500, 1800, 1200, 2100}, /* its head */
        {900, 600, 1200, 1500, 900, 1800},   /* its tail */
        {900, 1200, 1200, 1800, 900, 2100},  /* its middle */
    };
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        start(&(struct tcp_config){0});
        IN(.seq = NEXT + 1200, .len = 600);
        EXPECT_ACK(NEXT);
        cr_assert(rig.seg.options.sack_count == 1);
        IN(.seq = NEXT + cases[i].at, .len = cases[i].len);
        EXPECT_ACK(NEXT);
        cr_assert(rig.seg.options.sack_count == 2, "case %u: %u blocks", i, rig.seg.options.sack_count);
        cr_assert(SACK_START(0) == NEXT + cases[i].dsack && SACK_END(0) == NEXT + cases[i].dsack_end,
                  "case %u", i);
        cr_assert(SACK_START(1) == NEXT + cases[i].sack && SACK_END(1) == NEXT + cases[i].sack_end, "case %u",
                  i);
        cr_assert(COUNT(bytes_duplicate) == cases[i].dsack_end - cases[i].dsack);
        IN(.len = 1200);
        cr_assert(rig.received ==
                  16000 + cases[i].sack_end - (cases[i].sack > 2000 ? cases[i].sack - 2000 : 0));
        rig_close(&rig);
    }
}

Test(tcp_receive, no_sack_without_agreement)
{
    rig_open(&rig, &(struct tcp_config){0});
    rig.peer->sack_on = false;
    rig_established(&rig);
    IN(.seq = NEXT + 1000, .len = 100);
    EXPECT_ACK(NEXT);
    cr_assert(rig.seg.options.sack_count == 0);
    IN(.seq = NEXT - 1000, .len = 1000);
    EXPECT_ACK(NEXT);
    cr_assert(rig.seg.options.sack_count == 0);
    rig_close(&rig);
}

Test(tcp_receive, holes_full_refuses_and_state_same)
{
    start(&(struct tcp_config){.conn_frames_max = 16});
    uint32_t free_before = 0;
    for (uint32_t i = 1; i <= 14; i++) {
        cr_assert(IN(.seq = NEXT + 200 * i, .len = 100) == 1, "%u", i);
    }
    rig_drain_out(&rig);
    struct tcp_stats before = *tcp_stats(rig.engine);
    free_before = rig.tokens_count;
    cr_assert(IN(.seq = NEXT + 200 * 15, .len = 100) == 0);
    cr_assert(COUNT(refused_hole_limit) == 1);
    cr_assert(tcp_stats(rig.engine)->frames_held == before.frames_held && rig.tokens_count == free_before);
    EXPECT_ACK(NEXT);
    cr_assert(SACK_START(0) == NEXT + 200 * 14);
    for (uint32_t i = 0; i < 15; i++) { /* what fills the holes still finds room */
        cr_assert(IN(.seq = NEXT + 200 * i, .len = 200) <= 1);
    }
    cr_assert(rig.received == 16000 + 3000, "%u", rig.received);
    rig_close(&rig);
}

Test(tcp_receive, hole_filler_evicts_what_is_behind_when_the_consumer_holds_the_rest)
{
    start(&(struct tcp_config){.conn_frames_max = 16});
    rig.hold = true;
    for (uint32_t i = 0; i < 8; i++) {
        cr_assert(IN(.seq = NEXT + 100 * i, .len = 100) == 1);
    }
    for (uint32_t i = 0; i < 6; i++) {
        cr_assert(IN(.seq = NEXT + 1000 + 200 * i, .len = 100) == 1);
    }
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert(IN(.seq = NEXT + 800 + 100 * i, .len = 100) == 1);
    }
    cr_assert(COUNT(evicted_out_of_order) == 0);
    cr_assert(rig.received == 16000 + 1100, "%u", rig.received);
    cr_assert(IN(.seq = NEXT + 1100, .len = 100) == 1);
    cr_assert(COUNT(evicted_out_of_order) == 1);
    rig_drain_out(&rig);
    cr_assert(rig.received == 16000 + 1300);
    cr_assert(rig.seg.options.sack_count > 0);
    for (uint32_t i = 0; i < rig.seg.options.sack_count;
         i++) { /* what was dropped again is reported no more */
        cr_assert(SACK_END(i) - NEXT <= 1900, "%u: to %u", i, SACK_END(i) - NEXT);
    }
    rig_close(&rig);
}

Test(tcp_receive, seq_wrap_is_no_event)
{
    rig_open(&rig, &(struct tcp_config){0});
    rig.peer->irs = 0xffffffffU - 16500;
    rig_established(&rig);
    IN(.seq = NEXT + 1000, .len = 1000); /* over the wrap */
    EXPECT_ACK(NEXT);
    cr_assert(SACK_START(0) == NEXT + 1000);
    IN(.len = 1000);
    EXPECT_ACK(NEXT + 2000);
    cr_assert(rig.received == 18000);
    rig_close(&rig);
}

Test(tcp_receive, partly_outside_window_is_cut)
{
    start(&(struct tcp_config){.conn_frames_max = 4});
    IN(.seq = NEXT - 1, .len = 1);
    EXPECT_ACK(NEXT);
    uint32_t window = window_of();
    cr_assert(window < 6000);
    IN(.seq = NEXT + window - 50, .len = 100);
    EXPECT_ACK(NEXT);
    cr_assert(SACK_END(0) == NEXT + window);
    IN(.seq = NEXT + window, .len = 100);
    EXPECT_ACK(NEXT);
    cr_assert(COUNT(drop_out_of_window) >= 1);
    rig_close(&rig);
}

Test(tcp_receive, bad_checksum_counted_no_reply)
{
    start(&(struct tcp_config){0});
    IN(.len = 1000, .bad_checksum = true);
    IN(.seq = NEXT + 3000, .len = 1000, .bad_checksum = true);
    EXPECT_NONE();
    cr_assert(COUNT(drop_checksum) == 2 && rig.received == 16000);
    rig_close(&rig);
}

Test(tcp_receive, odd_length_checksum)
{
    start(&(struct tcp_config){0});
    for (uint32_t len = 1; len < 40; len++) {
        IN(.len = len);
        NEXT += len;
    }
    cr_assert(rig.received == 16000 + 39 * 20);
    rig_close(&rig);
}

Test(tcp_receive, frame_in_several_parts_is_held_part_by_part)
{
    struct tcp_tuple tuple;
    struct tcp_part parts[3];
    start(&(struct tcp_config){0});
    const struct peer *peer = rig.peer;
    tuple = peer->tuple;
    memcpy(tuple.local, peer->tuple.peer, 16);
    memcpy(tuple.peer, peer->tuple.local, 16);
    tuple.local_port = peer->tuple.peer_port;
    tuple.peer_port = 80;
    struct tcp_out out = {
        .tuple = &tuple,
        .link = &peer->link,
        .seq = peer->irs + NEXT,
        .ack = peer->iss + 1,
        .flags = TCP_ACK,
        .window = 4096,
        .options = {.has_ts = true, .ts_value = (uint32_t)(rig.now / NS_PER_MS), .ts_echo = peer->ts_echo}};
    uint8_t whole[4096];
    uint32_t headers = tcp_wire_headers_len(&out);
    for (uint32_t i = 0; i < 3001; i++) {
        whole[headers + i] = rig_pattern(NEXT + i);
    }
    uint32_t len = tcp_wire_emit(&out, whole, 3001, tcp_checksum_add(0, whole + headers, 3001));
    uint32_t cuts[4] = {0, headers + 333, headers + 333 + 1501, len}; /* odd places */
    for (uint32_t i = 0; i < 3; i++) {
        parts[i].token = rig.tokens[--rig.tokens_count];
        parts[i].addr = rig.frames[parts[i].token];
        parts[i].len = cuts[i + 1] - cuts[i];
        memcpy(parts[i].addr, whole + cuts[i], parts[i].len);
    }
    cr_assert(tcp_input(rig.engine, rig.now, parts, 3) == 7);
    rig_events(&rig);
    cr_assert(rig.received == 19001 && rig.datas == 19);
    rig_close(&rig);
}

Test(tcp_receive, retained_buffer_comes_back_after_the_last_release)
{
    start(&(struct tcp_config){0});
    rig.hold = true;
    IN(.len = 100);
    uint32_t token = rig.held[0];
    uint32_t free_before = rig.tokens_count;
    tcp_retain(rig.engine, token);
    tcp_release(rig.engine, token);
    rig_events(&rig);
    cr_assert(rig.tokens_count == free_before);
    rig_release(&rig, 1);
    cr_assert(rig.tokens_count == free_before + 1);
    rig_close(&rig);
}

Test(tcp_receive, paused_connection_gets_nothing_until_resumed)
{
    start(&(struct tcp_config){0});
    tcp_pause(rig.engine, rig.id);
    IN(.len = 100);
    IN(.seq = NEXT + 100, .len = 100, .flags = TCP_ACK | TCP_FIN);
    cr_assert(rig.received == 16000 && rig.eofs == 0);
    tcp_resume(rig.engine, rig.id);
    rig_events(&rig);
    cr_assert(rig.received == 16200 && rig.eofs == 1);
    rig_close(&rig);
}

Test(tcp_receive, pause_and_close_with_events_waiting)
{
    struct tcp_event event;
    start(&(struct tcp_config){0});
    for (uint32_t i = 0; i < 2; i++) {
        IN(.len = 100);
        NEXT += 100;
    }
    rig.hold = true;
    tcp_pause(rig.engine, rig.id);
    tcp_resume(rig.engine, rig.id);
    cr_assert(tcp_next_event(rig.engine, &event) == 0);
    tcp_pause(rig.engine, rig.id);
    IN(.len = 100);
    NEXT += 100;
    tcp_resume(rig.engine, rig.id); /* queues the connection ... */
    tcp_pause(rig.engine, rig.id);  /* ... and takes its reason away */
    cr_assert(tcp_next_event(rig.engine, &event) == 0);
    tcp_resume(rig.engine, rig.id);
    tcp_close(rig.engine, rig.now, rig.id);
    cr_assert(tcp_next_event(rig.engine, &event) == 1 && event.kind == TCP_EVENT_CLOSED);
    rig.closes++;
    rig_close(&rig);
}

Test(tcp_receive, ce_is_echoed_until_cwr)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(.flags = TCP_SYN | TCP_ECE | TCP_CWR, .seq = 0, .options = (struct tcp_options){.mss = 1460});
    EXPECT(TCP_SYN | TCP_ACK | TCP_ECE, 0, 1, 0);
    NEXT = rig.peer->ack = 1;
    IN(.len = 100, .ecn = TCP_ECN_CE);
    EXPECT(TCP_ACK | TCP_ECE, 1, 101, 0);
    IN(.seq = 101, .len = 100, .ecn = TCP_ECN_ECT0);
    EXPECT(TCP_ACK | TCP_ECE, 1, 201, 0);
    IN(.seq = 201, .len = 100, .ecn = TCP_ECN_ECT0, .flags = TCP_ACK | TCP_CWR);
    EXPECT(TCP_ACK, 1, 301, 0);
    rig_close(&rig);
}

/* ---- window ---- */

/* Fills the window with segments of 1,000 bytes while the consumer holds all; returns where the window ends. */
static uint32_t fill_window(void)
{
    rig.hold = true;
    uint32_t edge = NEXT + 1000000;
    for (uint32_t i = 0; i < 100 && NEXT < edge; i++) {
        uint32_t len = edge - NEXT < 1000 ? edge - NEXT : 1000;
        if (IN(.len = len) != 1) {
            break;
        }
        NEXT += len;
        rig_advance(&rig, 41 * RIG_MS);
        cr_assert(rig_out(&rig) != NULL);
        uint32_t now_edge = rig_ack(&rig) + window_of();
        cr_assert(edge == 16001 + 1000000 || now_edge >= edge, "the window shrank from %u to %u", edge,
                  now_edge);
        edge = now_edge;
        rig_drain_out(&rig);
    }
    return edge;
}

Test(tcp_window, closes_when_consumer_holds_and_never_shrinks)
{
    start(&(struct tcp_config){.conn_frames_max = 16});
    uint32_t edge = fill_window();
    cr_assert(edge == NEXT, "edge %u next %u", edge, NEXT);
    cr_assert(rig.seg.window == 0);
    cr_assert(tcp_stats(rig.engine)->frames_held <= 17);
    cr_assert(COUNT(refused_conn_limit) == 0, "%lu", (unsigned long)COUNT(refused_conn_limit));
    rig_close(&rig);
}

Test(tcp_window, never_shrinks_when_scaled)
{
    start(&(struct tcp_config){.frames_hold_max = 240,
                               .conn_frames_max = 240}); /* 350,400 bytes: a shift of 3 */
    rig.hold = true;
    uint32_t edge = 0;
    for (uint32_t i = 0; i < 180; i++) {
        uint32_t len = 1001 + i % 7;
        cr_assert(IN(.len = len) == 1);
        NEXT += len;
        rig_advance(&rig, 41 * RIG_MS);
        while (rig_out(&rig) != NULL) {
            cr_assert(rig_ack(&rig) + window_of() >= edge, "from %u to %u", edge,
                      rig_ack(&rig) + window_of());
            edge = rig_ack(&rig) + window_of();
        }
    }
    cr_assert(edge > NEXT);
    rig_close(&rig);
}

Test(tcp_window, zero_window_probe_is_answered_and_not_taken)
{
    start(&(struct tcp_config){.conn_frames_max = 16});
    fill_window();
    uint32_t received = rig.received;
    cr_assert(IN(.len = 1) == 0);
    EXPECT_ACK(NEXT);
    cr_assert(rig.seg.window == 0 && rig.seg.options.sack_count == 0);
    EXPECT_NONE();
    cr_assert(rig.received == received && COUNT(zero_window_probes_in) == 1);
    IN(.seq = NEXT - 1); /* as Linux asks */
    EXPECT_ACK(NEXT);
    cr_assert(rig.received == received && COUNT(zero_window_probes_in) == 2);
    rig_close(&rig);
}

/* Buffers, not bytes, are what runs out: tiny segments use them up inside an open window. */
Test(tcp_window, tiny_segments_are_refused_when_the_share_of_buffers_is_used_up)
{
    start(&(struct tcp_config){.conn_frames_max = 16});
    rig.hold = true;
    for (uint32_t i = 0; i < 16; i++) {
        cr_assert(IN(.len = 10) == 1, "%u", i);
        NEXT += 10;
    }
    rig_drain_out(&rig);
    cr_assert(IN(.len = 10, .flags = TCP_ACK | TCP_FIN) == 0);
    EXPECT_ACK(NEXT);
    cr_assert(COUNT(refused_conn_limit) == 1 && rig.eofs == 0);
    rig_release(&rig, 8);
    cr_assert(IN(.len = 10, .flags = TCP_ACK | TCP_FIN) == 1);
    cr_assert(rig.eofs == 1);
    rig_close(&rig);
}

/* Half known, half beyond a closed window: nothing is taken, and the answer says what came twice. */
Test(tcp_window, old_bytes_with_new_ones_at_a_closed_window_are_acknowledged)
{
    start(&(struct tcp_config){.conn_frames_max = 16});
    fill_window();
    uint32_t received = rig.received;
    cr_assert(IN(.seq = NEXT - 100, .len = 200) == 0);
    EXPECT_ACK(NEXT);
    cr_assert(rig.received == received && rig.seg.window == 0);
    cr_assert(rig.seg.options.sack_count == 1 && SACK_START(0) == NEXT - 100 && SACK_END(0) == NEXT);
    rig_close(&rig);
}

/* It needs no buffer, and its sender has nothing else to say. */
Test(tcp_window, closed_window_still_takes_a_lone_fin)
{
    start(&(struct tcp_config){.conn_frames_max = 16});
    fill_window();
    IN(.flags = TCP_ACK | TCP_FIN);
    EXPECT_ACK(NEXT + 1);
    cr_assert(rig.eofs == 1 && rig.seg.window == 0);
    rig_close(&rig);
}

Test(tcp_window, zero_window_still_takes_the_ack_of_what_we_sent)
{
    struct iovec iov = {(void *)"response", 8};
    start(&(struct tcp_config){.conn_frames_max = 16});
    fill_window();
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, &iov, 1, 5) == 0);
    EXPECT(TCP_ACK | TCP_PSH, 1, NEXT, 8);
    IN(.len = 1, .ack = 9);
    cr_assert(rig.sents == 1 && rig.sent_cookie == 5);
    rig_close(&rig);
}

Test(tcp_window, reopens_once_not_silly)
{
    start(&(struct tcp_config){.conn_frames_max = 16});
    fill_window();
    rig_release(&rig, 1);
    EXPECT_NONE(); /* less than two segments: not worth a packet */
    uint32_t updates = 0;
    while (rig.held_count > 0) {
        rig_release(&rig, 1);
        while (rig_out(&rig) != NULL) {
            cr_assert(window_of() >= 1460, "%u", window_of());
            updates++;
        }
    }
    cr_assert(updates >= 1 && updates <= 4, "%u", updates);
    rig_close(&rig);
}

/* With few buffers, or small segments in them, the window is never worth two segments: it is opened all the same when the buffers are
 * free. Otherwise each segment costs the peer a persist timer. */
/* The peer is not waiting: the news rides on the next ACK. */
Test(tcp_window, a_window_that_is_open_is_not_announced_wider_by_a_packet_of_its_own)
{
    start(&(struct tcp_config){.conn_frames_max = 64});
    rig.hold = true;
    for (uint32_t i = 0; i < 20; i++) {
        cr_assert(IN(.len = 1000) == 1);
        NEXT += 1000;
        rig_drain_out(&rig);
    }
    rig_advance(&rig, 50 * RIG_MS);
    rig_drain_out(&rig);
    rig_release(&rig, 8);
    EXPECT_NONE();
    cr_assert(COUNT(window_updates) == 0);
    rig_close(&rig);
}

Test(tcp_window, the_smallest_window_reopens_as_soon_as_its_buffers_are_free)
{
    for (uint32_t frames = 2; frames <= 5; frames++) {
        start(&(struct tcp_config){.conn_frames_max = frames});
        fill_window();
        cr_assert(rig.held_count > 0);
        rig_release(&rig, rig.held_count);
        cr_assert(rig_out(&rig) != NULL && window_of() > 0, "%u buffers: the peer must ask", frames);
        rig.hold = false;
        rig_close(&rig);
    }
}

Test(tcp_window, one_that_starves_reopens_when_another_lets_go)
{
    struct peer second;
    start(&(struct tcp_config){.frames_hold_max = 16, .conn_frames_max = 16});
    rig.hold = true;
    for (uint32_t i = 0; i < 16; i++) {
        IN(.len = 1000);
        NEXT += 1000;
        rig_drain_out(&rig);
    }
    rig_peer_init(&rig, &second, 2, 4);
    rig.peer = &second;
    struct tcp_id first = rig.id;
    uint32_t held = rig.held_count;
    IN(.flags = TCP_SYN, .seq = 0, .options = (struct tcp_options){.mss = 1460});
    rig_drain_out(&rig);
    NEXT = second.ack = 1;
    for (uint32_t i = 0; i < 20; i++) { /* no buffer is left: refused or answered with a closing window */
        if (IN(.len = 1000) == 1) {
            NEXT += 1000;
        }
        rig_drain_out(&rig);
    }
    cr_assert(rig.held_count <= 16 && held <= 16);
    cr_assert(COUNT(refused_pool) > 0);
    rig_release(&rig, rig.held_count);
    uint32_t refused = (uint32_t)COUNT(refused_pool);
    cr_assert(IN(.len = 1000) == 1);
    cr_assert(COUNT(refused_pool) == refused);
    tcp_abort(rig.engine, rig.now, first);
    rig_close(&rig);
}

/* What lies behind holes never takes the last eighth of what all have together: the stream that fills them may be another's. */
Test(tcp_window, holes_leave_room_for_what_is_in_order_also_of_others)
{
    struct peer second;
    start(&(struct tcp_config){.frames_hold_max = 32, .conn_frames_max = 32});
    struct tcp_id first = rig.id;
    rig.hold = true;
    rig_peer_init(&rig, &second, 2, 4);
    rig.peer = &second;
    IN(.flags = TCP_SYN, .seq = 0, .options = (struct tcp_options){.mss = 1460});
    rig_drain_out(&rig);
    NEXT = second.ack = 1;
    for (uint32_t i = 0; i < 12; i++) {
        cr_assert(IN(.len = 1000) == 1);
        NEXT += 1000;
        rig_drain_out(&rig);
    }
    rig.peer = &rig.first;
    for (uint32_t i = 1; i < 30; i++) { /* every second one is missing */
        IN(.seq = NEXT + i * 400, .len = 200);
        rig_drain_out(&rig);
    }
    cr_assert(tcp_stats(rig.engine)->frames_held == 28 && tcp_stats(rig.engine)->frames_out_of_order == 16);
    cr_assert(COUNT(refused_hole_limit) == 13);
    rig.peer = &second;
    cr_assert(IN(.len = 1000) == 1);
    rig_drain_out(&rig);
    tcp_abort(rig.engine, rig.now, first);
    rig_close(&rig);
}

/* Holes cost their peer nothing and everybody else buffers: after a second they give way to who needs room, in order or not. */
Test(tcp_receive, holes_that_nobody_fills_give_way_to_others)
{
    struct peer second;
    start(&(struct tcp_config){.frames_hold_max = 16, .conn_frames_max = 16});
    struct tcp_id first = rig.id;
    for (uint32_t i = 1; i < 20; i++) {
        IN(.seq = NEXT + i * 400, .len = 200);
    }
    rig_drain_out(&rig);
    cr_assert(tcp_stats(rig.engine)->frames_out_of_order == 14);
    rig_peer_init(&rig, &second, 2, 4);
    rig.peer = &second;
    IN(.flags = TCP_SYN, .seq = 0, .options = (struct tcp_options){.mss = 1460});
    rig_drain_out(&rig);
    NEXT = second.ack = 1;
    cr_assert(IN(.seq = 1001, .len = 1000) == 0, "what makes a hole does not get the last of all");
    cr_assert(COUNT(refused_hole_limit) > 0 && COUNT(evicted_out_of_order) == 0, "the holes are young");
    rig_advance(&rig, NS_PER_S);
    for (uint32_t i = 1; i < 4; i++) {
        IN(.seq = 1 + i * 1000, .len = 1000);
    }
    cr_assert(COUNT(evicted_out_of_order) > 0);
    cr_assert(IN(.len = 1000) == 1 && rig.received == 4000, "%u", rig.received);
    tcp_abort(rig.engine, rig.now, first);
    rig_drain_out(&rig);
    rig_close(&rig);
}

/* Buffers come back also from a connection that ends with holes; nobody else would tell those who wait for them. */
Test(tcp_window, one_that_starves_reopens_when_another_ends)
{
    struct peer second;
    start(&(struct tcp_config){.frames_hold_max = 16, .conn_frames_max = 16});
    struct tcp_id first = rig.id;
    rig.hold = true;
    rig_peer_init(&rig, &second, 2, 4);
    rig.peer = &second;
    IN(.flags = TCP_SYN, .seq = 0, .options = (struct tcp_options){.mss = 1460});
    rig_drain_out(&rig);
    NEXT = second.ack = 1;
    for (uint32_t i = 0; i < 16 && (i == 0 || rig.seg.window >= 1460); i++) { /* its window is used up */
        cr_assert(IN(.len = 1460) == 1);
        NEXT += 1460;
        rig_drain_out(&rig);
    }
    uint32_t before = rig.seg.window;
    cr_assert(rig.for_peer && before < 1460);
    for (uint32_t i = 1; i < 20; i++) { /* what it lets go, the other takes for what comes behind a hole */
        rig_release(&rig, rig.held_count > 0);
        rig.peer = &rig.first;
        IN(.seq = NEXT + i * 400, .len = 200);
        rig_drain_out(&rig);
    }
    rig.peer = &second;
    cr_assert(tcp_stats(rig.engine)->frames_held == tcp_stats(rig.engine)->frames_out_of_order);
    tcp_abort(rig.engine, rig.now, first);
    rig_events(&rig);
    const struct tcp_segment *said = rig_out(&rig); /* in front of the RST: it was woken first */
    cr_assert(said != NULL && rig.for_peer && said->window > before);
    rig_drain_out(&rig);
    rig_close(&rig);
}

/* ---- ack ---- */

Test(tcp_ack, first_segments_are_acknowledged_one_by_one)
{
    rig_open(&rig, &(struct tcp_config){0});
    rig_handshake(&rig);
    for (uint32_t i = 0; i < 16; i++) {
        IN(.len = 10);
        NEXT += 10;
        EXPECT_ACK(NEXT);
    }
    IN(.len = 10);
    EXPECT_NONE();
    rig_close(&rig);
}

Test(tcp_ack, batch_in_order_gets_one_ack_and_no_duplicates)
{
    start(&(struct tcp_config){0});
    for (uint32_t i = 0; i < 20; i++) {
        IN(.len = 1000);
        NEXT += 1000;
    }
    EXPECT_ACK(NEXT);
    EXPECT_NONE();
    IN(.seq = NEXT + 1000, .len = 1000); /* a hole, and what fills it, in one batch */
    IN(.seq = NEXT + 2000, .len = 1000);
    IN(.len = 1000);
    EXPECT_ACK(NEXT + 3000);
    EXPECT_NONE();
    rig_close(&rig);
}

Test(tcp_ack, lost_ack_repaired_by_peer_resend)
{
    start(&(struct tcp_config){.challenges_per_s = 1});
    for (int i = 0; i < 5; i++) { /* no limit applies */
        IN(.seq = NEXT - 1000, .len = 1000);
        EXPECT_ACK(NEXT);
    }
    rig_close(&rig);
}

Test(tcp_ack, response_carries_the_ack)
{
    struct iovec iov = {(void *)"response", 8};
    start(&(struct tcp_config){0});
    IN(.len = 1000);
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, &iov, 1, 5) == 0);
    EXPECT(TCP_ACK | TCP_PSH, 1, NEXT + 1000, 8);
    IN(.seq = NEXT + 1000, .ack = 9);
    rig_advance(&rig, 100 * RIG_MS);
    EXPECT_NONE();
    rig_close(&rig);
}

Test(tcp_ack, keepalive_probes_an_idle_peer_then_resets)
{
    start(&(struct tcp_config){0});
    cr_assert(tcp_poll_at(rig.engine) == rig.now + 60 * NS_PER_S);
    rig_advance(&rig, 60 * NS_PER_S);
    EXPECT(TCP_ACK, 0, NEXT, 0);
    IN();
    rig_drain_out(&rig);
    rig_advance(&rig, 60 * NS_PER_S - 1);
    EXPECT_NONE();
    for (uint32_t i = 0; i < 6; i++) {
        rig_advance(&rig, i == 0 ? 1 + 10 * NS_PER_S : 10 * NS_PER_S);
        EXPECT(TCP_ACK, 0, NEXT, 0);
    }
    cr_assert(rig.resets == 0);
    rig_advance(&rig, 10 * NS_PER_S);
    cr_assert(rig.resets == 1 && rig.reset_error == -ETIMEDOUT);
    rig_close(&rig);
}

/* The retransmission timer asks already, and has its own patience. */
Test(tcp_ack, keepalive_is_silent_while_data_is_on_the_way)
{
    struct iovec iov = {(void *)"response", 8};
    start(&(struct tcp_config){.keepalive_ns = 2 * NS_PER_S, .keepalive_interval_ns = NS_PER_S});
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, &iov, 1, 5) == 0);
    for (uint32_t i = 0; i < 20; i++) {
        rig_drain_out(&rig);
        rig_advance(&rig, NS_PER_S);
    }
    cr_assert(COUNT(keepalives_out) == 0 && rig.resets == 0);
    rig_close(&rig);
}

Test(tcp_ack, peers_keepalive_is_answered)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT - 1);
    EXPECT_ACK(NEXT);
    rig_close(&rig);
}

/* RFC 5681 section 4.2: an ACK for every second full segment, also when the peer's path has got narrower meanwhile. */
Test(tcp_ack, every_second_segment_also_of_smaller_ones)
{
    start(&(struct tcp_config){0});
    IN(.len = 1400);
    NEXT += 1400;
    IN(.len = 1400);
    NEXT += 1400;
    EXPECT_ACK(NEXT);
    uint32_t unacked = 0;
    uint32_t unacked_max = 0;
    for (uint32_t i = 0; i < 12; i++) {
        IN(.len = 1000);
        NEXT += 1000;
        unacked = rig_out(&rig) != NULL ? 0 : unacked + 1;
        unacked_max = i >= 4 && unacked > unacked_max ? unacked : unacked_max;
    }
    cr_assert(unacked_max == 1, "%u", unacked_max);
    rig_close(&rig);
}

/* RFC 3168 section 6.1.3: a mark is told without delay. */
Test(tcp_ack, congestion_mark_is_acknowledged_at_once)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(.flags = TCP_SYN | TCP_ECE | TCP_CWR, .seq = 0, .options = (struct tcp_options){.mss = 1460});
    EXPECT(TCP_SYN | TCP_ACK | TCP_ECE, 0, 1, 0);
    NEXT = rig.peer->ack = 1;
    for (uint32_t i = 0; i < 16; i++) {
        IN(.len = 1000);
        NEXT += 1000;
        cr_assert(rig_out(&rig) != NULL);
    }
    IN(.len = 1000, .ecn = TCP_ECN_ECT0);
    NEXT += 1000;
    EXPECT_NONE();
    IN(.len = 100);
    NEXT += 100;
    EXPECT_NONE();
    rig_advance(&rig, 40 * RIG_MS);
    EXPECT_ACK(NEXT);
    IN(.len = 1000, .ecn = TCP_ECN_CE);
    NEXT += 1000;
    EXPECT(TCP_ACK | TCP_ECE, 1, NEXT, 0);
    rig_close(&rig);
}

/* RFC 7323 section 4.3: what is echoed is of the segment that the ACK is about, so that delayed ACKs do not hide the delay. */
Test(tcp_ack, timestamp_echoed_is_of_the_first_segment_not_yet_acknowledged)
{
    start(&(struct tcp_config){0});
    uint32_t first = (uint32_t)(rig.now / NS_PER_MS);
    IN(.len = 1000);
    NEXT += 1000;
    rig_advance(&rig, 5 * RIG_MS);
    IN(.len = 1000);
    NEXT += 1000;
    EXPECT_ACK(NEXT);
    cr_assert(rig.seg.options.ts_echo == first, "%u, first %u", rig.seg.options.ts_echo, first);
    /* Out of order: the echo stays with what was last in order, so that the peer measures nothing while there is a hole. */
    rig_advance(&rig, 5 * RIG_MS);
    IN(.seq = NEXT + 1000, .len = 1000);
    EXPECT_ACK(NEXT);
    cr_assert(rig.seg.options.ts_echo == first);
    rig_advance(&rig, 5 * RIG_MS);
    IN(.len = 1000);
    NEXT += 2000;
    EXPECT_ACK(NEXT);
    cr_assert(rig.seg.options.ts_echo == first + 15);
    rig_close(&rig);
}

/* The peer's frames come another way from now on, another router's for one. */
Test(tcp_ack, answers_follow_the_way_the_last_good_segment_came)
{
    start(&(struct tcp_config){0});
    rig.peer->link.peer_mac[4] = 9;
    rig.peer->link.tags = 1;
    rig.peer->link.tag_type[0] = 0x8100;
    rig.peer->link.tag_id[0] = 7;
    IN(.len = 100, .wrong_ack = 1); /* a guess changes nothing */
    EXPECT_ACK(NEXT);
    cr_assert(rig.packet[4] == 0 && rig.seg.link.tags == 0);
    IN(.len = 1000);
    IN(.seq = NEXT + 1000, .len = 1000);
    EXPECT_ACK(NEXT + 2000);
    cr_assert(rig.packet[4] == 9 && rig.seg.link.tags == 1 && rig.seg.link.tag_id[0] == 7);
    rig_close(&rig);
}

/* RFC 9293 section 3.8.5: urgent bytes are bytes of the stream. */
Test(tcp_receive, urgent_bytes_stay_in_line)
{
    start(&(struct tcp_config){0});
    IN(.len = 1000, .flags = TCP_ACK | TCP_URG | TCP_PSH);
    cr_assert(rig.received == 17000);
    rig_close(&rig);
}

/* A FIN that lies beyond the window is not the end yet: what is before it was cut. */
Test(tcp_receive, fin_beyond_the_window_does_not_count)
{
    start(&(struct tcp_config){.conn_frames_max = 16});
    uint32_t edge = fill_window();
    cr_assert(edge == NEXT);
    rig_release(&rig, 8);
    rig_drain_out(&rig);
    uint32_t room = window_of();
    cr_assert(room > 0 && room < 1400 * 16);
    for (; room > 1400; room -= 1000) {
        cr_assert(IN(.len = 1000) == 1);
        NEXT += 1000;
    }
    rig_drain_out(&rig);
    uint32_t received = rig.received;
    IN(.len = 1460, .flags = TCP_ACK | TCP_FIN);
    cr_assert(rig.eofs == 0);
    uint32_t taken = rig.received - received;
    cr_assert(taken > 0 && taken < 1460, "%u", taken);
    rig_drain_out(&rig);
    rig_release(&rig, rig.held_count);
    rig.hold = false;
    rig_drain_out(&rig);
    IN(.seq = NEXT + taken, .len = 1460 - taken, .flags = TCP_ACK | TCP_FIN);
    cr_assert(rig.eofs == 1 && rig.received == received + 1460);
    rig_drain_out(&rig);
    rig_close(&rig);
}
