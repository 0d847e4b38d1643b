/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families "listen", "handshake" and "challenge": what a SYN and what follows it is answered with. Method: tcp_rig.h. Names are
 * state_stimulus.
 */
#include <criterion/criterion.h>
#include <errno.h>

#include "tcp_rig.h"

static struct rig rig;

#define OFFER                                                                                                \
    .flags = TCP_SYN, .seq = 0, .options = (struct tcp_options)                                              \
    {                                                                                                        \
        .mss = 1460, .sack_permitted = true, .has_wscale = true, .wscale = 7                                 \
    }
#define SYNACK (TCP_SYN | TCP_ACK)

Test(tcp_listen, syn_is_answered_with_all_that_was_offered)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    cr_assert(rig.seg.options.mss == 1460);
    cr_assert(rig.seg.options.has_wscale && rig.seg.options.sack_permitted && rig.seg.options.has_ts);
    cr_assert(rig.seg.options.ts_echo == (uint32_t)(rig.now / NS_PER_MS));
    cr_assert(memcmp(rig.packet, rig.peer->link.peer_mac, 6) == 0);
    EXPECT_NONE();
    rig_close(&rig);
}

Test(tcp_listen, syn_without_options_gets_none)
{
    rig_open(&rig, &(struct tcp_config){0});
    rig.peer->ts_on = false;
    IN(.flags = TCP_SYN, .seq = 0);
    EXPECT(SYNACK, 0, 1, 0);
    cr_assert(!rig.seg.options.has_wscale && !rig.seg.options.sack_permitted && !rig.seg.options.has_ts);
    rig_close(&rig);
}

Test(tcp_listen, syn_with_data_acknowledges_the_syn_only)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER, .len = 100);
    EXPECT(SYNACK, 0, 1, 0);
    rig_close(&rig);
}

Test(tcp_listen, syn_zero_and_tiny_mss_still_send_useful_segments)
{
    static const uint8_t bytes[4096];
    for (uint16_t mss = 0; mss < 3; mss++) {
        rig_open(&rig, &(struct tcp_config){0});
        rig.peer->ts_on = false;
        IN(.flags = TCP_SYN, .seq = 0, .options = (struct tcp_options){.mss = mss});
        EXPECT(SYNACK, 0, 1, 0);
        rig.peer->seq = rig.peer->ack = 1;
        IN(.window = 65535);
        struct iovec iov = {(void *)bytes, sizeof(bytes)};
        cr_assert(tcp_send(rig.engine, rig.now, rig.id, &iov, 1, 1) == 0);
        cr_assert(rig_out(&rig) != NULL);
        cr_assert(rig.seg.len == (mss == 0 ? 536 : 64), "%u", rig.seg.len);
        rig_close(&rig);
    }
}

Test(tcp_listen, syn_window_scale_over_14_counts_as_14)
{
    static const uint8_t bytes[1460];
    rig_open(&rig, &(struct tcp_config){0});
    IN(.flags = TCP_SYN, .seq = 0,
       .options = (struct tcp_options){.mss = 1460, .has_wscale = true, .wscale = 15});
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer->seq = rig.peer->ack = 1;
    IN(.window = 1); /* 16384 bytes, not 32768 */
    struct iovec iov[8];
    for (int i = 0; i < 8; i++) {
        iov[i] = (struct iovec){(void *)bytes, sizeof(bytes)};
    }
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, iov, 8, 1) == 0);
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, iov, 8, 2) == 0);
    uint32_t sent = 0;
    for (int round = 0; round < 3; round++) { /* so that only the window can be the limit */
        while (rig_out(&rig) != NULL) {
            sent += rig.seg.len;
        }
        if (round < 1) {
            rig_advance(&rig, RIG_MS);
            IN(.ack = 1 + sent, .window = 1);
        }
    }
    cr_assert(sent <= 14600 + 16384, "%u", sent);
    cr_assert(sent > 16384, "%u", sent);
    rig_close(&rig);
}

Test(tcp_listen, ack_gets_rst)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(.seq = 5, .ack = 77);
    EXPECT(TCP_RST, 77, 0, 0);
    EXPECT_NONE();
    cr_assert(COUNT(cookies_bad) == 0); /* none was sent, so there is nothing to guess */
    rig_close(&rig);
}

Test(tcp_listen, rst_is_never_answered)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(.flags = TCP_RST);
    IN(.flags = TCP_RST | TCP_ACK);
    EXPECT_NONE();
    rig_close(&rig);
}

Test(tcp_listen, syn_that_no_stack_sends_is_dropped)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(.seq = 0, .flags = TCP_SYN | TCP_FIN);
    EXPECT_NONE();
    IN(.seq = 0, .flags = 0, .len = 10);
    EXPECT_NONE();
    IN(.seq = 0, .flags = TCP_FIN);
    EXPECT_NONE();
    rig.peer->tuple.peer_port = 0;
    IN(.seq = 0, .flags = TCP_SYN);
    EXPECT_NONE();
    cr_assert(COUNT(drop_flags) == 4 && COUNT(syns_in) == 0);
    rig_close(&rig);
}

Test(tcp_listen, syn_to_another_port_gets_rst_with_ack)
{
    rig_open(&rig, &(struct tcp_config){0});
    rig.peer->tuple.local_port = 81;
    IN(OFFER);
    EXPECT(TCP_RST | TCP_ACK, 0 - rig.peer->iss, 1, 0);
    cr_assert(COUNT(drop_no_listener) == 1);
    rig_close(&rig);
}

Test(tcp_listen, resets_are_limited)
{
    rig_open(&rig, &(struct tcp_config){.resets_per_s = 3});
    for (int i = 0; i < 5; i++) {
        IN(.seq = 5, .ack = 77);
    }
    for (int i = 0; i < 3; i++) {
        EXPECT(TCP_RST, 77, 0, 0);
    }
    EXPECT_NONE();
    rig_advance(&rig, NS_PER_S);
    IN(.seq = 5, .ack = 77);
    EXPECT(TCP_RST, 77, 0, 0);
    rig_close(&rig);
}

Test(tcp_listen, syn_with_no_connection_free_is_dropped_silently)
{
    struct peer second;
    rig_open(&rig, &(struct tcp_config){.conns_max = 1});
    rig_handshake(&rig);
    rig_peer_init(&rig, &second, 2, 4);
    rig.peer = &second;
    IN(OFFER);
    EXPECT_NONE();
    cr_assert(COUNT(syn_conns_full) == 1);
    rig_close(&rig);
}

Test(tcp_listen, stop_refuses_new_and_keeps_established)
{
    static const uint8_t any[16];
    struct peer second;
    rig_open(&rig, &(struct tcp_config){0});
    rig_handshake(&rig);
    cr_assert(tcp_listen_stop(rig.engine, any, 80) == 0);
    cr_assert(tcp_listen_stop(rig.engine, any, 80) == -ENOENT);
    IN(.len = 10);
    EXPECT_ACK(11);
    rig_peer_init(&rig, &second, 2, 4);
    rig.peer = &second;
    IN(OFFER);
    cr_assert(rig_out(&rig) != NULL && rig.seg.flags == (TCP_RST | TCP_ACK));
    rig_close(&rig);
}

/* Two listeners of one engine: the events of each are taken apart, its own address goes before "any", and a number is used again only
 * when the last connection is gone. */
Test(tcp_listen, stop_forgets_handshakes_of_this_listener_only)
{
    static const uint8_t any[16];
    struct peer other;
    rig_open(&rig, &(struct tcp_config){0});
    cr_assert(tcp_listen(rig.engine, any, 80) == -EEXIST);
    cr_assert(tcp_listen(rig.engine, any, 81) == 1);
    rig_peer_init(&rig, &other, 2, 4);
    other.tuple.local_port = 81;
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer = &other;
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    cr_assert(tcp_listen_stop(rig.engine, any, 80) == 0 && tcp_listen_stop(rig.engine, any, 80) == -ENOENT);
    cr_assert(tcp_stats(rig.engine)->syns_used == 1);
    other.seq = other.ack = 1;
    IN();
    cr_assert(rig.opens == 1);
    rig.peer = &rig.first;
    rig.peer->seq = 1;
    IN(.ack = 1);
    EXPECT(TCP_RST, 1, 0, 0);
    rig.peer = &other;
    rig_close(&rig);
}

Test(tcp_listen, listeners_beyond_the_table_are_refused)
{
    static const uint8_t any[16];
    rig_open(&rig, &(struct tcp_config){0});
    for (uint32_t i = 1; i < TCP_LISTENS_MAX; i++) {
        cr_assert(tcp_listen(rig.engine, any, (uint16_t)(1000 + i)) == (int)i);
    }
    cr_assert(tcp_listen(rig.engine, any, 2000) == -ENOSPC);
    cr_assert(tcp_listen_stop(rig.engine, any, 1007) == 0);
    cr_assert(tcp_listen(rig.engine, any, 2000) == 7);
    rig_close(&rig);
}

/* Nobody takes packets: what cannot be kept is lost, as on the way. */
Test(tcp_listen, answers_beyond_their_room_are_dropped)
{
    rig_open(&rig, &(struct tcp_config){.replies_max = 8, .cookies_always = true});
    for (uint32_t i = 0; i < 20; i++) {
        if (i % 2) {
            IN(OFFER);
        } else {
            IN(.ack = 5, .no_ts = true, .seq = i);
        }
    }
    cr_assert(COUNT(replies_dropped) == 12 && COUNT(cookies_sent) == 4 && COUNT(resets_sent) == 4);
    uint32_t sent = 0;
    while (rig_out(&rig) != NULL) {
        sent++;
    }
    cr_assert(sent == 8);
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig_close(&rig);
}

Test(tcp_listen, impossible_configurations_have_no_size)
{
    static const struct tcp_config wrong[] = {
        {.conns_max = 0, .frames_count = 64},
        {.conns_max = 8, .frames_count = 0},
        {.conns_max = 8, .frames_count = 64, .frames_hold_max = 65},
        {.conns_max = 8, .frames_count = 64, .conn_frames_max = 60},
        {.conns_max = 8, .frames_count = 64, .conn_frames_max = 1},
        {.conns_max = 8, .frames_count = 64, .mtu = 575},
        {.conns_max = 8, .frames_count = 64, .mtu = 65535},
        {.conns_max = 8, .frames_count = 64, .mtu = 1500, .send_mtu = 1501},
        {.conns_max = 8, .frames_count = 64, .frame_bytes = 255},
        {.conns_max = 1U << 28, .frames_count = 64},
    };
    struct tcp_engine *engine;
    struct tcp_config right = {.conns_max = 8, .frames_count = 64};
    static _Alignas(64) uint8_t memory[1 << 20];
    size_t size = tcp_size(&right);
    for (uint32_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        cr_assert(tcp_size(&wrong[i]) == 0, "%u", i);
        cr_assert(tcp_init(memory, sizeof(memory), &wrong[i], &engine) == -EINVAL, "%u", i);
    }
    cr_assert(size > 0 && size <= sizeof(memory) - 64);
    cr_assert(tcp_init(memory, size - 1, &right, &engine) == -EINVAL);
    cr_assert(tcp_init(memory + 8, size, &right, &engine) == -EINVAL);
    cr_assert(tcp_init(memory, size, &right, &engine) == 0);
}

Test(tcp_listen, listeners_have_events_of_their_own)
{
    struct tcp_event event;
    rig_open(&rig, &(struct tcp_config){0});
    int own = tcp_listen(rig.engine, rig.first.tuple.local, 80);
    cr_assert(own == 1, "0 is the rig's, on any address");
    IN(OFFER);
    cr_assert(rig_out(&rig) != NULL);
    rig.peer->iss = rig.seg.seq;
    rig.peer->seq = rig.peer->ack = 1;
    IN(.seq = 1, .ack = 1);
    cr_expect_eq(rig.opens, 1);
    cr_expect_eq(tcp_listen_conns(rig.engine, 1), 1);
    cr_expect_eq(tcp_listen_conns(rig.engine, 0), 0);
    tcp_close(rig.engine, rig.now, rig.id);
    tcp_abort(rig.engine, rig.now, rig.id);
    cr_expect_eq(tcp_next_event_of(rig.engine, 0, &event), 0, "it is the other's");
    cr_assert_eq(tcp_next_event_of(rig.engine, 1, &event), 1);
    cr_expect_eq(event.kind, TCP_EVENT_CLOSED);
    rig.closes++;
    cr_assert(tcp_listen_stop(rig.engine, rig.first.tuple.local, 80) == 0);
    cr_expect_eq(tcp_listen(rig.engine, rig.first.tuple.local, 81), 2,
                 "the RST of 1's connection is not sent yet");
    rig_drain_out(&rig);
    cr_expect_eq(tcp_listen(rig.engine, rig.first.tuple.local, 82), 1);
    rig_close(&rig);
}

Test(tcp_listen, a_listener_that_has_its_share_is_silent_and_others_go_on)
{
    struct peer second;
    rig_open(&rig, &(struct tcp_config){0});
    tcp_listen_limits(rig.engine, 0, &(struct tcp_limits){.conns_max = 1});
    rig_handshake(&rig);
    rig_peer_init(&rig, &second, 2, 4);
    rig.peer = &second;
    IN(OFFER);
    EXPECT_NONE();
    cr_expect_eq(tcp_listen_refused(rig.engine, 0), 1);
    cr_expect_eq(COUNT(syn_conns_full), 1);
    cr_assert(tcp_listen(rig.engine, second.tuple.local, 80) == 1);
    IN(OFFER);
    cr_expect(rig_out(&rig) != NULL && rig.seg.flags == (TCP_SYN | TCP_ACK | (rig.seg.flags & TCP_ECE)));
    rig_close(&rig);
}

/* One of several engines must not reset what another may know; the last that is asked does. */
Test(tcp_listen, limits_of_a_listener_hold_for_its_connections)
{
    struct iovec iov = {(void *)"response", 8};
    struct tcp_limits limits = {.keepalive_ns = 5 * NS_PER_S, .user_timeout_ns = 7 * NS_PER_S};
    rig_open(&rig, &(struct tcp_config){0});
    tcp_listen_limits(rig.engine, 0, &limits);
    rig_established(&rig);
    rig_advance(&rig, 5 * NS_PER_S);
    EXPECT(TCP_ACK, 0, rig.peer->seq, 0);
    cr_assert(COUNT(keepalives_out) == 1);
    IN();
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, &iov, 1, 1) == 0);
    rig_drain_out(&rig);
    for (uint32_t i = 0; i < 8; i++) { /* timeouts 1, 3 and 7 s after it left */
        cr_assert(rig.resets == (i > 6 ? 1 : 0));
        rig_advance(&rig, NS_PER_S);
        rig_drain_out(&rig);
    }
    cr_assert(rig.resets == 1 && rig.reset_error == -ETIMEDOUT);
    rig_close(&rig);
}

Test(tcp_listen, a_stray_is_told_and_not_answered)
{
    struct tcp_out out = {.tuple = NULL, .seq = 5000, .ack = 6000, .window = 100};
    static const uint8_t flags[] = {TCP_ACK, TCP_ACK | TCP_FIN, TCP_RST | TCP_ACK, TCP_RST};
    uint8_t frame[256];
    bool is_stray = false;
    rig_open(&rig, &(struct tcp_config){0});
    struct tcp_tuple from = rig.first.tuple;
    memcpy(from.local, rig.first.tuple.peer, 16);
    memcpy(from.peer, rig.first.tuple.local, 16);
    from.local_port = rig.first.tuple.peer_port;
    from.peer_port = rig.first.tuple.local_port;
    out.tuple = &from;
    out.link = &rig.first.link;
    for (uint32_t i = 0; i < sizeof(flags); i++) {
        out.flags = flags[i];
        struct tcp_part part = {.addr = frame, .len = tcp_wire_emit(&out, frame, 0, 0), .token = 0};
        (void)tcp_input_or_stray(rig.engine, rig.now, &part, 1, &is_stray);
        cr_expect(is_stray, "flags %#x", flags[i]);
        EXPECT_NONE();
    }
    out.flags = TCP_SYN;
    struct tcp_part syn = {.addr = frame, .len = tcp_wire_emit(&out, frame, 0, 0), .token = 0};
    (void)tcp_input_or_stray(rig.engine, rig.now, &syn, 1, &is_stray);
    cr_expect(!is_stray, "a SYN is for whoever it reaches");
    rig_drain_out(&rig);
    from.local_port++;
    out.flags = TCP_ACK;
    struct tcp_part ack = {.addr = frame, .len = tcp_wire_emit(&out, frame, 0, 0), .token = 0};
    (void)tcp_input(rig.engine, rig.now, &ack, 1);
    cr_expect(rig_out(&rig) != NULL && (rig.seg.flags & TCP_RST) != 0, "the last one resets");
    rig_close(&rig);
}

/* 2,000 SYNs from other addresses into 16 half-open slots, while a transfer goes on. */
Test(tcp_listen, flood_keeps_established)
{
    struct peer flood;
    rig_open(&rig, &(struct tcp_config){.syns_max = 16});
    rig_handshake(&rig);
    for (uint32_t i = 0; i < 2000; i++) {
        rig_peer_init(&rig, &flood, 1000 + i, 4);
        rig.peer = &flood;
        IN(OFFER);
        while (rig_out(&rig) != NULL) {
            cr_assert((rig.seg.flags & SYNACK) == SYNACK);
        }
        rig.peer = &rig.first;
        if (i % 10 == 0) {
            IN(.len = 100);
            rig.peer->seq += 100;
            rig_advance(&rig, 45 * RIG_MS); /* past the delayed ACK */
            do {                            /* SYN+ACKs are repeated meanwhile */
                cr_assert(rig_out(&rig) != NULL);
            } while (!rig.for_peer);
            cr_assert(rig_ack(&rig) == rig.peer->seq);
        }
        rig_drain_out(&rig);
    }
    cr_assert(COUNT(cookies_sent) > 1900, "%lu", (unsigned long)COUNT(cookies_sent));
    cr_assert(rig.received == 20000, "%u", rig.received);
    cr_assert(tcp_stats(rig.engine)->syns_peak == 16);
    cr_assert(rig.resets == 0);
    rig_close(&rig);
}

Test(tcp_handshake, cookie_roundtrip_keeps_what_was_agreed)
{
    rig_open(&rig, &(struct tcp_config){.cookies_always = true});
    rig_advance(&rig, 1234567890123ULL);
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    cr_assert(rig.seg.options.has_ts && rig.seg.options.sack_permitted && rig.seg.options.has_wscale);
    cr_assert(tcp_stats(rig.engine)->syns_used == 0);
    rig.peer->seq = rig.peer->ack = 1;
    rig_advance(&rig, 100 * RIG_MS);
    IN(.len = 10); /* the pure ACK was lost; the first data completes */
    cr_assert(rig.opens == 1 && rig.received == 10);
    EXPECT_ACK(11);
    IN(.seq = 100, .len = 10); /* SACK was agreed on */
    EXPECT_ACK(11);
    cr_assert(rig.seg.options.sack_count == 1);
    rig_close(&rig);
}

/* Each of them travels in a few bits of the SYN+ACK and must come back as it was. */
Test(tcp_handshake, cookie_keeps_a_small_mss_and_the_lack_of_a_window_scale)
{
    static uint8_t bytes[8000];
    struct iovec iov = {bytes, sizeof(bytes)};
    rig_open(&rig, &(struct tcp_config){.cookies_always = true});
    rig.peer->sack_on = false;
    IN(.seq = 0, .flags = TCP_SYN, .window = 65535, .options = (struct tcp_options){.mss = 600});
    EXPECT(SYNACK, 0, 1, 0);
    cr_assert(!rig.seg.options.has_wscale && !rig.seg.options.sack_permitted);
    rig.peer->seq = rig.peer->ack = 1;
    IN(.window = 1200);
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, &iov, 1, 1) == 0);
    EXPECT(TCP_ACK, 1, 1, 536 - 12); /* the largest of the table that is not above */
    EXPECT(TCP_ACK, 1 + 524, 1, 524);
    EXPECT_NONE(); /* 1,200 bytes are 1,200 bytes */
    rig_close(&rig);
}

Test(tcp_handshake, cookie_that_finds_no_connection_free_is_good_later)
{
    struct peer second;
    rig_open(&rig, &(struct tcp_config){.cookies_always = true, .conns_max = 1});
    rig_peer_init(&rig, &second, 2, 4);
    rig.peer = &second;
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    second.seq = second.ack = 1;
    rig.peer = &rig.first;
    rig_handshake(&rig);
    rig.peer = &second;
    IN(.len = 10);
    EXPECT_NONE();
    cr_assert(COUNT(conns_full) == 1 && rig.opens == 1);
    tcp_abort(rig.engine, rig.now, rig.id);
    rig_drain_out(&rig);
    IN(.len = 10);
    cr_assert(rig.opens == 2 && rig.received == 10);
    rig_close(&rig);
}

/* Its low bits are taken for options, yet a peer that compares must find that time goes on. */
Test(tcp_handshake, cookie_timestamp_is_not_ahead_of_the_clock)
{
    struct iovec iov = {(void *)"response", 8};
    rig_open(&rig, &(struct tcp_config){.cookies_always = true, .conns_max = 64});
    for (uint32_t n = 1; n <= 40; n++) {
        struct peer peer;
        rig_peer_init(&rig, &peer, n, 4);
        rig.peer = &peer;
        rig_handshake(&rig);
        uint32_t then = peer.ts_echo;
        cr_assert(tcp_send(rig.engine, rig.now, rig.id, &iov, 1, 1) == 0);
        EXPECT(TCP_ACK | TCP_PSH, 1, 1, 8);
        uint32_t ahead = rig.seg.options.ts_value - then;
        cr_assert(ahead < 64, "peer %u: %d", n, (int)ahead);
        tcp_abort(rig.engine, rig.now, rig.id);
        rig_drain_out(&rig);
    }
    rig.peer = &rig.first;
    rig_close(&rig);
}

Test(tcp_handshake, cookie_without_timestamps_has_no_options_but_mss)
{
    rig_open(&rig, &(struct tcp_config){.cookies_always = true});
    rig.peer->ts_on = false;
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    cr_assert(rig.seg.options.mss == 1460 && !rig.seg.options.has_wscale && !rig.seg.options.sack_permitted);
    rig.peer->seq = rig.peer->ack = 1;
    IN(.window = 1000);
    cr_assert(rig.opens == 1);
    rig_close(&rig);
}

Test(tcp_handshake, cookie_forged_or_late_gets_rst)
{
    rig_open(&rig, &(struct tcp_config){.cookies_always = true});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer->seq = rig.peer->ack = 1;
    IN(.ack = 2);
    EXPECT(TCP_RST, 2, 0, 0);
    IN(.seq = 2);
    EXPECT(TCP_RST, 1, 0, 0);
    IN(.wrong_ack = 1U << 27); /* another MSS than the one that was signed */
    cr_assert(rig_out(&rig) != NULL && (rig.seg.flags & TCP_RST));
    cr_assert(COUNT(cookies_bad) == 3);
    rig_advance(&rig, 129 * NS_PER_S);
    IN();
    EXPECT(TCP_RST, 1, 0, 0);
    cr_assert(rig.opens == 0);
    rig_close(&rig);
}

Test(tcp_handshake, cookie_of_long_ago_is_refused_while_others_are_sent)
{
    struct peer second;
    rig_open(&rig, &(struct tcp_config){.cookies_always = true});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig_advance(&rig, 129 * NS_PER_S);
    rig_peer_init(&rig, &second, 2, 4);
    rig.peer = &second;
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer = &rig.first;
    rig.peer->seq = 1;
    IN(.ack = 1);
    EXPECT(TCP_RST, 1, 0, 0);
    cr_assert(COUNT(cookies_bad) == 1 && rig.opens == 0);
    rig_close(&rig);
}

Test(tcp_handshake, ack_too_low_or_too_high_gets_rst_and_keeps_the_handshake)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer->seq = 1;
    IN(.ack = 0);
    EXPECT(TCP_RST, 0, 0, 0);
    IN(.ack = 2);
    EXPECT(TCP_RST, 2, 0, 0);
    IN(.ack = 1);
    cr_assert(rig.opens == 1);
    rig_close(&rig);
}

Test(tcp_handshake, dup_syn_is_answered_again)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    uint32_t iss = rig.peer->iss;
    rig_advance(&rig, 500 * RIG_MS);
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    cr_assert(rig.peer->iss == iss);
    cr_assert(tcp_stats(rig.engine)->syns_used == 1);
    rig_close(&rig);
}

Test(tcp_handshake, other_syn_gets_an_ack_and_the_reset_that_follows_frees_it)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer->ack = 1;
    IN(OFFER, .seq = 5000);
    EXPECT_ACK(1);
    IN(.seq = 1, .flags = TCP_RST);
    cr_assert(tcp_stats(rig.engine)->syns_used == 0);
    rig_close(&rig);
}

Test(tcp_handshake, rst_in_window_is_challenged_and_exact_one_frees)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer->ack = 1;
    IN(.seq = 100, .flags = TCP_RST);
    EXPECT_ACK(1);
    IN(.seq = 1, .flags = TCP_RST);
    EXPECT_NONE();
    cr_assert(tcp_stats(rig.engine)->syns_used == 0);
    rig_close(&rig);
}

Test(tcp_handshake, rst_out_of_window_is_ignored)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    IN(.seq = 1000000, .flags = TCP_RST);
    EXPECT_NONE();
    cr_assert(tcp_stats(rig.engine)->syns_used == 1);
    rig_close(&rig);
}

Test(tcp_handshake, synack_lost_is_sent_again_with_backoff_then_given_up)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    cr_assert(tcp_poll_at(rig.engine) == rig.now + NS_PER_S);
    for (uint32_t i = 0; i < 5; i++) {
        rig_advance(&rig, (NS_PER_S << i) - 1);
        EXPECT_NONE();
        rig_advance(&rig, 1);
        EXPECT(SYNACK, 0, 1, 0);
    }
    rig_advance(&rig, NS_PER_S << 5);
    EXPECT_NONE();
    cr_assert(tcp_stats(rig.engine)->syns_used == 0 && COUNT(syn_timeouts) == 1);
    rig_close(&rig);
}

/* RFC 5681 section 3.1 and RFC 6298 section 5.7: the first thing known of this path is that it loses. */
Test(tcp_handshake, after_a_lost_synack_sending_begins_with_one_segment_and_three_seconds)
{
    static uint8_t bytes[20000];
    struct iovec iov = {bytes, sizeof(bytes)};
    rig_open(&rig, &(struct tcp_config){0});
    rig.peer->ts_on = false; /* else the ACK of the first segment measures, and says more */
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig_advance(&rig, NS_PER_S);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer->seq = rig.peer->ack = 1;
    IN();
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, &iov, 1, 1) == 0);
    EXPECT(TCP_ACK, 1, 1, 1460);
    EXPECT_NONE();
    cr_assert(tcp_poll_at(rig.engine) == rig.now + 3 * NS_PER_S);
    rig_close(&rig);
}

/* The slot is taken between SYN and ACK: the peer asks again, and gets in when it is free. */
Test(tcp_handshake, last_ack_that_finds_no_connection_free_keeps_the_handshake)
{
    struct peer second;
    rig_open(&rig, &(struct tcp_config){.conns_max = 1});
    rig_peer_init(&rig, &second, 2, 4);
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer = &second;
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer = &rig.first;
    rig.peer->seq = rig.peer->ack = 1;
    IN();
    cr_assert(rig.opens == 1);
    rig.peer = &second;
    second.seq = second.ack = 1;
    IN(.len = 100);
    EXPECT_NONE();
    cr_assert(COUNT(conns_full) == 1 && tcp_stats(rig.engine)->syns_used == 1);
    tcp_abort(rig.engine, rig.now, rig.id);
    rig_drain_out(&rig);
    IN(.len = 100);
    cr_assert(rig.opens == 2 && rig.received == 100);
    rig_close(&rig);
}

/* RFC 9293 section 3.10.7.4: without ACK there is nothing to go by. */
Test(tcp_handshake, segment_without_ack_completes_nothing)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    IN(.seq = 1, .flags = TCP_PSH, .len = 10);
    IN(.seq = 1, .flags = TCP_FIN);
    EXPECT_NONE();
    cr_assert(COUNT(drop_no_ack) == 2 && rig.opens == 0 && tcp_stats(rig.engine)->syns_used == 1);
    rig_close(&rig);
}

/* The active side, for load tools: what is no answer to our SYN changes nothing, an RST that is ends it. */
Test(tcp_handshake, connect_believes_only_what_answers_its_syn)
{
    struct tcp_id id;
    rig_open(&rig, &(struct tcp_config){.conns_max = 1});
    struct peer *peer = rig.peer;
    cr_assert(tcp_connect(rig.engine, rig.now, &peer->tuple, &peer->link, &id) == 0);
    cr_assert(tcp_connect(rig.engine, rig.now, &peer->tuple, &peer->link, &rig.id) == -EADDRINUSE);
    struct peer second;
    rig_peer_init(&rig, &second, 2, 4);
    cr_assert(tcp_connect(rig.engine, rig.now, &second.tuple, &second.link, &rig.id) == -ENFILE);
    cr_assert(rig_out(&rig) != NULL && (rig.seg.flags & TCP_SYN) && !(rig.seg.flags & TCP_ACK));
    IN(.seq = 0, .ack = 77, .flags = TCP_SYN | TCP_ACK);
    EXPECT(TCP_RST, 77, 0, 0);
    IN(.seq = 0, .ack = 77, .flags = TCP_RST | TCP_ACK);
    IN(.seq = 0, .flags = TCP_RST);
    IN(.seq = 0, .flags = TCP_SYN);
    IN(.seq = 0, .ack = 1);
    EXPECT_NONE();
    cr_assert(rig.resets == 0);
    IN(.seq = 0, .ack = 1, .flags = TCP_RST | TCP_ACK);
    cr_assert(rig.resets == 1 && rig.reset_error == -ECONNREFUSED);
    tcp_close(rig.engine, rig.now, id);
    rig_events(&rig);
    cr_assert(rig.closes == 1);
    cr_assert(tcp_connect(rig.engine, rig.now, &second.tuple, &second.link, &id) == 0);
    tcp_close(rig.engine, rig.now, id);
    rig_events(&rig);
    EXPECT_NONE();
    cr_assert(rig.closes == 2 && tcp_stats(rig.engine)->conns_used == 0);
    rig_close(&rig);
}

/* RFC 6528 section 3: for one and the same peer the numbers rise with time. */
Test(tcp_handshake, initial_numbers_of_a_peer_rise_with_time)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    uint32_t before = rig.peer->iss;
    IN(.seq = 1, .flags = TCP_RST);
    rig_advance(&rig, NS_PER_S);
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    cr_assert(rig.peer->iss - before > 100000 && rig.peer->iss - before < 1000000);
    rig_close(&rig);
}

/* RFC 3168 section 6.1.1.1. */
Test(tcp_handshake, syn_repeated_without_ecn_ends_the_talk_of_ecn)
{
    struct iovec iov = {(void *)"response", 8};
    struct shot offer = {OFFER};
    rig_open(&rig, &(struct tcp_config){0});
    IN(.flags = TCP_SYN | TCP_ECE | TCP_CWR, .seq = 0, .options = offer.options);
    EXPECT(SYNACK | TCP_ECE, 0, 1, 0);
    IN(.flags = TCP_SYN | TCP_ECE | TCP_CWR, .seq = 0, .options = offer.options);
    EXPECT(SYNACK | TCP_ECE, 0, 1, 0);
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer->seq = rig.peer->ack = 1;
    IN();
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, &iov, 1, 1) == 0);
    EXPECT(TCP_ACK | TCP_PSH, 1, 1, 8);
    cr_assert(rig.seg.ecn == TCP_ECN_NOT_ECT);
    rig_close(&rig);
}

/* A forged SYN and what follows it must not make an echo of us. */
Test(tcp_handshake, challenges_of_a_handshake_are_limited)
{
    rig_open(&rig, &(struct tcp_config){.challenges_per_s = 2});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer->ack = 1;
    for (uint32_t i = 0; i < 5; i++) {
        IN(.seq = 100, .flags = i % 2 ? TCP_RST : TCP_SYN);
        if (i < 2) {
            EXPECT_ACK(1);
        } else {
            EXPECT_NONE();
        }
    }
    cr_assert(COUNT(challenge_acks) == 2 && COUNT(challenge_acks_limited) == 3);
    rig_advance(&rig, NS_PER_S);
    EXPECT(SYNACK, 0, 1, 0);
    IN(.seq = 100, .flags = TCP_RST);
    EXPECT_ACK(1);
    rig_close(&rig);
}

/* RFC 7323 section 5: what a peer sent before its SYN completes no handshake. */
Test(tcp_handshake, ack_with_an_older_timestamp_than_the_syn_does_not_complete)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer->seq = rig.peer->ack = 1;
    IN(.ts = (uint32_t)(rig.now / NS_PER_MS) - 1);
    EXPECT_ACK(1);
    cr_assert(rig.opens == 0 && tcp_stats(rig.engine)->syns_used == 1);
    IN();
    cr_assert(rig.opens == 1);
    rig_close(&rig);
}

/* RFC 3168 section 6.1.1.1: ECN may be what got the SYN+ACK lost. */
Test(tcp_handshake, repeated_synack_asks_no_more_for_ecn)
{
    struct shot offer = {OFFER};
    rig_open(&rig, &(struct tcp_config){0});
    IN(.flags = TCP_SYN | TCP_ECE | TCP_CWR, .seq = 0, .options = offer.options);
    EXPECT(SYNACK | TCP_ECE, 0, 1, 0);
    rig_advance(&rig, NS_PER_S);
    EXPECT(SYNACK, 0, 1, 0);
    rig_close(&rig);
}

Test(tcp_handshake, data_and_fin_with_the_last_ack_are_taken)
{
    rig_open(&rig, &(struct tcp_config){0});
    IN(OFFER);
    EXPECT(SYNACK, 0, 1, 0);
    rig.peer->seq = rig.peer->ack = 1;
    IN(.len = 10, .flags = TCP_ACK | TCP_FIN);
    EXPECT_ACK(12);
    cr_assert(rig.opens == 1 && rig.received == 10 && rig.eofs == 1);
    rig_close(&rig);
}

Test(tcp_handshake, ipv6_and_vlan_answer_the_way_they_came)
{
    struct peer six;
    rig_open(&rig, &(struct tcp_config){0});
    rig_peer_init(&rig, &six, 9, 6);
    six.link.tags = 1;
    six.link.tag_type[0] = 0x8100;
    six.link.tag_id[0] = 42;
    rig.peer = &six;
    rig_established(&rig);
    cr_assert(rig.received == 16000);
    cr_assert(rig.seg.tuple.version == 6);
    IN(.len = 2000 - 1000);
    IN(.seq = six.seq + 1000, .len = 1000);
    EXPECT_ACK(six.seq + 2000);
    cr_assert(rig.seg.link.tags == 1 && rig.seg.link.tag_id[0] == 42);
    cr_assert(memcmp(rig.packet, six.link.peer_mac, 6) == 0);
    rig_close(&rig);
}

Test(tcp_challenge, syn_on_a_connection_gets_a_limited_ack)
{
    rig_open(&rig, &(struct tcp_config){.challenges_per_s = 3});
    rig_established(&rig);
    uint32_t next = rig.peer->seq;
    for (int i = 0; i < 5; i++) {
        IN(.flags = TCP_SYN, .seq = next + 10);
        if (i < 3) {
            EXPECT_ACK(next);
        } else {
            EXPECT_NONE();
        }
    }
    cr_assert(COUNT(challenge_acks) == 3 && COUNT(challenge_acks_limited) == 2);
    rig_advance(&rig, NS_PER_S);
    IN(.flags = TCP_SYN, .seq = next + 10);
    EXPECT_ACK(next);
    cr_assert(rig.resets == 0);
    rig_close(&rig);
}

Test(tcp_challenge, rst_exact_resets_in_window_is_challenged_outside_ignored)
{
    rig_open(&rig, &(struct tcp_config){0});
    rig_established(&rig);
    IN(.flags = TCP_RST, .seq = rig.peer->seq + 1);
    EXPECT_ACK(rig.peer->seq);
    IN(.flags = TCP_RST, .seq = rig.peer->seq - 1);
    EXPECT_NONE();
    cr_assert(rig.resets == 0);
    IN(.flags = TCP_RST);
    EXPECT_NONE();
    cr_assert(rig.resets == 1 && rig.reset_error == -ECONNRESET);
    rig_close(&rig);
}

/* RFC 9293 section 3.5.2: an RST may carry text, and counts also when the window is closed and whatever its timestamp says. */
Test(tcp_challenge, rst_with_text_counts_by_its_number_alone)
{
    for (uint32_t old = 0; old < 2; old++) {
        rig_open(&rig, &(struct tcp_config){.conn_frames_max = 16});
        rig_established(&rig);
        rig.hold = true;
        for (uint32_t i = 0; i < 100 && IN(.len = 1000) == 1; i++) {
            rig.peer->seq += 1000;
            rig_drain_out(&rig);
        }
        IN(.len = 1000);
        rig_drain_out(&rig);
        cr_assert(rig.seg.window == 0);
        rig.peer->seq = rig_ack(&rig);
        IN(.flags = TCP_RST, .len = 5, .seq = rig.peer->seq - 3);
        EXPECT_NONE(); /* begins before the window: not even a challenge */
        cr_assert(rig.resets == 0);
        IN(.flags = TCP_RST, .len = 5, .ts = old ? 1 : 0);
        cr_assert(rig.resets == 1 && rig.reset_error == -ECONNRESET);
        rig_close(&rig);
    }
}

Test(tcp_challenge, segment_without_ack_is_dropped)
{
    rig_open(&rig, &(struct tcp_config){0});
    rig_established(&rig);
    IN(.flags = 0, .len = 100);
    IN(.flags = TCP_FIN, .len = 100);
    EXPECT_NONE();
    cr_assert(COUNT(drop_no_ack) == 2 && rig.received == 16000 && rig.eofs == 0);
    rig_close(&rig);
}

/* RFC 7323 section 5.5: after 24 days the clock of timestamps may have turned half around, so old and new cannot be told apart. */
Test(tcp_challenge, timestamp_is_not_compared_with_one_of_24_days_ago)
{
    const uint64_t day_ns = 24ULL * 3600 * NS_PER_S;
    rig_open(&rig, &(struct tcp_config){.keepalive_ns = 100 * day_ns});
    rig_established(&rig);
    uint32_t then = (uint32_t)(rig.now / NS_PER_MS);
    rig_advance(&rig, 23 * day_ns);
    IN(.len = 100, .ts = then - 1000);
    cr_assert(COUNT(drop_paws) == 1 && rig.received == 16000);
    rig_advance(&rig, 2 * day_ns);
    IN(.len = 100, .ts = then - 1000);
    cr_assert(COUNT(drop_paws) == 1 && rig.received == 16100);
    rig.peer->seq += 100;
    rig_drain_out(&rig);
    IN(.len = 100, .ts = then - 1001); /* the new one counts from here on */
    cr_assert(COUNT(drop_paws) == 2);
    rig_drain_out(&rig);
    rig_close(&rig);
}

Test(tcp_challenge, ack_of_what_was_never_sent_or_far_too_old_is_challenged)
{
    rig_open(&rig, &(struct tcp_config){0});
    rig_established(&rig);
    IN(.len = 100, .wrong_ack = 1);
    EXPECT_ACK(rig.peer->seq);
    IN(.len = 100, .wrong_ack = 0x80000000U);
    EXPECT_ACK(rig.peer->seq);
    cr_assert(COUNT(drop_ack_invalid) == 2 && rig.received == 16000);
    rig_close(&rig);
}

Test(tcp_challenge, old_timestamp_is_dropped_and_missing_one_too)
{
    rig_open(&rig, &(struct tcp_config){0});
    rig_established(&rig);
    IN(.len = 100, .ts = (uint32_t)(rig.now / NS_PER_MS) - 1);
    EXPECT_ACK(rig.peer->seq);
    cr_assert(COUNT(drop_paws) == 1);
    IN(.len = 100, .no_ts = true);
    EXPECT_NONE();
    cr_assert(COUNT(drop_no_timestamp) == 1 && rig.received == 16000);
    rig_close(&rig);
}
