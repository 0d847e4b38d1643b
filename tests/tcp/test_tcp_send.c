/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families "send" and "close": what we send, what is done about loss, and how connections end. Method: tcp_rig.h. Sent bytes are
 * compared with the pattern at their place, so a segment cut at the wrong place fails.
 */
#include <criterion/criterion.h>
#include <errno.h>

#include "tcp_invariants.h"
#include "tcp_rig.h"

static struct rig rig;
static uint8_t bytes[256 * 1024];

#define NEXT (rig.peer->seq)
#define MSS 1448U

static void fill_bytes(void)
{
    for (uint32_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = rig_pattern(1 + i);
    }
}

static void start(const struct tcp_config *config)
{
    fill_bytes();
    rig_open(&rig, config);
    rig_established(&rig);
}

/* The same with a peer that lacks options. */
static void start_without(bool no_sack, bool no_ts)
{
    fill_bytes();
    rig_open(&rig, &(struct tcp_config){0});
    rig.peer->sack_on = !no_sack;
    rig.peer->ts_on = !no_ts;
    rig_established(&rig);
}

static int put(uint32_t at, uint32_t len, uint64_t cookie)
{
    /* Two fragments, so that segments cross the border. */
    struct iovec iov[2] = {{bytes + at, len / 3}, {bytes + at + len / 3, len - len / 3}};
    return len < 3 ? tcp_send(rig.engine, rig.now, rig.id, iov + 1, 1, cookie)
                   : tcp_send(rig.engine, rig.now, rig.id, iov, 2, cookie);
}

/* The next packet carries bytes [seq, seq+len) of our stream. */
static void expect_data(uint32_t seq, uint32_t len, int line)
{
    const struct tcp_segment *seg = rig_out(&rig);
    cr_assert(seg != NULL, "line %d: no packet", line);
    cr_assert(rig_seq(&rig) == seq && seg->len == len, "line %d: seq %u len %u", line, rig_seq(&rig),
              seg->len);
    for (uint32_t i = 0; i < len; i++) {
        cr_assert(seg->payload[0].addr[i] == rig_pattern(seq + i), "line %d: byte %u", line, i);
    }
}
#define EXPECT_DATA(seq, len) expect_data((seq), (len), __LINE__)

/* Everything that may go out; returns one past the highest byte. */
static uint32_t drain_data(void)
{
    uint32_t end = 0;
    while (rig_out(&rig) != NULL) {
        end = rig_seq(&rig) + rig.seg.len > end ? rig_seq(&rig) + rig.seg.len : end;
    }
    return end;
}

Test(tcp_send, mss_limit_and_push_at_the_end)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 3000, 1) == 0);
    EXPECT_DATA(1, MSS);
    cr_assert(rig.seg.flags == TCP_ACK);
    EXPECT_DATA(1 + MSS, MSS);
    EXPECT_DATA(1 + 2 * MSS, 3000 - 2 * MSS);
    cr_assert(rig.seg.flags == (TCP_ACK | TCP_PSH));
    EXPECT_NONE();
    IN(.ack = 3000);
    cr_assert(rig.sents == 0);
    IN(.ack = 3001);
    cr_assert(rig.sents == 1 && rig.sent_error == 0 && rig.sent_cookie == 1);
    EXPECT_NONE();
    rig_close(&rig);
}

Test(tcp_send, more_sends_than_slots_are_refused)
{
    start(&(struct tcp_config){0});
    for (uint32_t i = 0; i < TCP_SENDS_MAX; i++) {
        cr_assert(put(i * 10, 10, i) == 0);
    }
    cr_assert(put(40, 10, 9) == -EAGAIN);
    EXPECT_DATA(1, 40); /* small sends share a segment */
    IN(.ack = 41);
    cr_assert(rig.sents == 4 && rig.sent_cookie == 3);
    cr_assert(put(40, 1, 9) == 0);
    EXPECT_DATA(41, 1);
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, NULL, 0, 1) == -EINVAL);
    rig_close(&rig);
}

/* Numbers are compared within half of their space. */
Test(tcp_send, more_than_a_gibibyte_in_flight_is_refused)
{
    struct iovec huge = {bytes, 600U << 20}; /* only what the window takes is read */
    start(&(struct tcp_config){0});
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, &huge, 1, 1) == 0);
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, &huge, 1, 2) == -EAGAIN);
    EXPECT_DATA(1, MSS);
    struct iovec too_huge = {bytes, 1U << 30};
    cr_assert(tcp_send(rig.engine, rig.now, rig.id, &too_huge, 1, 3) == -EINVAL);
    rig_close(&rig);
}

Test(tcp_send, peer_window_limit)
{
    start(&(struct tcp_config){0});
    IN(.window = 20); /* 2,560 bytes */
    cr_assert(put(0, 10000, 1) == 0);
    EXPECT_DATA(1, MSS);
    EXPECT_NONE(); /* 1,112 bytes are left of the window: less than a segment, less than half of the most offered */
    IN(.ack = 1 + MSS, .window = 20);
    EXPECT_DATA(1 + MSS, MSS);
    rig_close(&rig);
}

Test(tcp_send, zero_window_is_probed_with_backoff_and_opens)
{
    start(&(struct tcp_config){0});
    IN(.window = 0);
    cr_assert(put(0, 5000, 1) == 0);
    EXPECT_NONE();
    rig_advance(&rig, 200 * RIG_MS + NS_PER_S);
    EXPECT(TCP_ACK, 0, NEXT, 0);
    IN(.window = 0);
    EXPECT_NONE();
    rig_advance(&rig, 3 * NS_PER_S);
    EXPECT(TCP_ACK, 0, NEXT, 0);
    cr_assert(COUNT(window_probes_out) == 2);
    IN(.window = 4096);
    EXPECT_DATA(1, MSS);
    cr_assert(rig.resets == 0);
    rig_close(&rig);
}

/* RFC 9293 section 3.8.6.1: each probe of a window that stays closed waits twice as long. */
Test(tcp_send, probes_of_a_closed_window_back_off)
{
    start(&(struct tcp_config){.rto_max_ns = 8 * NS_PER_S});
    IN(.window = 0);
    cr_assert(put(0, 5000, 1) == 0);
    EXPECT_NONE();
    for (uint32_t i = 0; i < 6; i++) { /* 1, 2, 4, 8, 8, ... */
        uint64_t wait = tcp_poll_at(rig.engine) - rig.now;
        cr_assert(wait == (i < 3 ? NS_PER_S << i : 8 * NS_PER_S), "%u: %lu", i, (unsigned long)wait);
        rig_advance(&rig, wait);
        EXPECT(TCP_ACK, 0, NEXT, 0);
        IN(.window = 0);
        EXPECT_NONE();
    }
    rig_close(&rig);
}

/* A peer that does not read: the memory of what it has not got comes back at once, and it is asked until its window opens. */
Test(tcp_send, recalled_sends_come_back_and_room_is_told_when_the_window_opens)
{
    start(&(struct tcp_config){0});
    IN(.window = 20);
    cr_assert(put(0, 5000, 1) == 0);
    cr_assert(put(5000, 3000, 2) == 0);
    EXPECT_DATA(1, MSS);
    cr_assert(tcp_recall(rig.engine, rig.now, rig.id) == 0);
    rig_events(&rig);
    cr_assert(rig.sents == 0, "a segment is on the way and may have to be sent again");
    IN(.window = 4096);
    EXPECT_NONE(); /* Nothing new leaves. */
    IN(.ack = 1 + MSS, .window = 0);
    cr_assert(rig.sents == 2 && rig.sent_error == -EAGAIN);
    cr_assert(rig.sent_bytes == MSS && rig.unsent_bytes == 8000 - MSS);
    cr_assert(rig.rooms == 0);
    EXPECT_NONE();
    rig_advance(&rig, 200 * RIG_MS + NS_PER_S);
    EXPECT(TCP_ACK, MSS, NEXT, 0); /* The window update may have been lost. */
    IN(.ack = 1 + MSS, .window = 0);
    cr_assert(rig.rooms == 0);
    IN(.ack = 1 + MSS, .window = 4096);
    cr_assert(rig.rooms == 1);
    cr_assert(put(MSS, 1000, 3) == 0);
    EXPECT_DATA(1 + MSS, 1000);
    IN(.ack = 1 + MSS + 1000);
    cr_assert(rig.sents == 3 && rig.sent_error == 0);
    rig_close(&rig);
}

/* Window updates that offer too little to be worth a segment do not end the asking. */
Test(tcp_send, room_is_told_also_when_the_window_stays_small)
{
    start(&(struct tcp_config){0});
    IN(.window = 0);
    cr_assert(put(0, 5000, 1) == 0);
    cr_assert(tcp_recall(rig.engine, rig.now, rig.id) == 0);
    IN(.window = 1);
    cr_assert(rig.sents == 1 && rig.rooms == 0);
    rig_advance(&rig, 2 * NS_PER_S);
    rig_events(&rig);
    cr_assert(rig.rooms == 1);
    cr_assert(put(0, 5000, 2) == 0);
    EXPECT_DATA(1, 128);
    rig_close(&rig);
}

Test(tcp_send, recalled_with_an_open_window_it_goes_on_at_once)
{
    start(&(struct tcp_config){0});
    cr_assert(tcp_recall(rig.engine, rig.now, rig.id) == 0);
    rig_events(&rig);
    cr_assert(rig.sents == 0 && rig.rooms == 1);
    cr_assert(put(0, 1000, 1) == 0);
    cr_assert(tcp_recall(rig.engine, rig.now, rig.id) == 0);
    rig_events(&rig);
    cr_assert(rig.sents == 1 && rig.unsent_bytes == 1000 && rig.rooms == 2);
    EXPECT_NONE();
    cr_assert(put(0, 1000, 2) == 0);
    tcp_shutdown(rig.engine, rig.now, rig.id);
    cr_assert(tcp_recall(rig.engine, rig.now, rig.id) == -EAGAIN, "a FIN waits behind it");
    EXPECT(TCP_ACK | TCP_PSH | TCP_FIN, 1, NEXT, 1000);
    rig_close(&rig);
}

static uint64_t timeouts(void)
{
    return tcp_stats(rig.engine)->counters[TCP_COUNTER_rto_fired];
}

/* Advances until what is in flight has been sent again so often. */
static void time_out_to(uint64_t times)
{
    for (int i = 0; timeouts() < times; i++) {
        cr_assert(i < 600 && rig.resets == 0, "%lu timeouts, %u resets", (unsigned long)timeouts(),
                  rig.resets);
        rig_advance(&rig, 100 * RIG_MS);
        (void)drain_data();
        rig_events(&rig);
    }
}

/* Others wait for the memory, and nobody knows whether the peer is there at all: it is asked four times. */
Test(tcp_send, a_recalled_peer_that_acknowledges_nothing_is_reset_after_four_retransmissions)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 100000, 1) == 0);
    (void)drain_data();
    cr_assert(tcp_recall(rig.engine, rig.now, rig.id) == 0);
    time_out_to(4);
    for (int i = 0; rig.resets == 0; i++) {
        cr_assert(i < 600 && timeouts() == 4, "the fifth time is the end");
        rig_advance(&rig, 100 * RIG_MS);
        (void)drain_data();
        rig_events(&rig);
    }
    cr_assert(rig.reset_error == -ETIMEDOUT && rig.sents == 1 && rig.sent_error == -ETIMEDOUT &&
              rig.rooms == 0);
    rig_close(&rig);
}

/* A wire that loses three retransmissions in a row, twice, is a bad one and no reason to end a transfer because others wait. */
Test(tcp_send, a_recalled_peer_behind_a_lossy_wire_lives_on)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 100000, 1) == 0);
    uint32_t end = drain_data();
    cr_assert(end > 1 + 2 * MSS);
    cr_assert(tcp_recall(rig.engine, rig.now, rig.id) == 0);
    time_out_to(3);
    IN(.ack = 1 + MSS);
    (void)drain_data();
    time_out_to(6);
    IN(.ack = end);
    rig_events(&rig);
    cr_assert(rig.resets == 0 && rig.sents == 1 && rig.sent_error == -EAGAIN);
    rig_close(&rig);
}

/* Whoever never reads again is given up as ever. */
Test(tcp_send, a_recalled_peer_whose_window_stays_closed_times_out)
{
    start(&(struct tcp_config){.user_timeout_ns = 20 * NS_PER_S});
    IN(.window = 0);
    cr_assert(put(0, 5000, 1) == 0);
    cr_assert(tcp_recall(rig.engine, rig.now, rig.id) == 0);
    for (int i = 0; i < 60 && rig.resets == 0; i++) {
        rig_advance(&rig, NS_PER_S);
        rig_events(&rig);
        if (rig.resets == 0 && rig_out(&rig) != NULL) {
            IN(.window = 0);
        }
    }
    cr_assert(rig.resets == 1 && rig.reset_error == -ETIMEDOUT);
    cr_assert(rig.rooms == 0);
    rig_drain_out(&rig);
    rig_close(&rig);
}

/* Nothing worth sending, so no progress: whoever moves its window up and down by a little is given up like one that keeps it closed. */
Test(tcp_send, a_window_that_flickers_does_not_keep_a_connection)
{
    start(&(struct tcp_config){.user_timeout_ns = 20 * NS_PER_S});
    IN(.window = 0);
    cr_assert(put(0, 5000, 1) == 0);
    for (int i = 0; i < 1000 && rig.resets == 0; i++) {
        rig_advance(&rig, 100 * RIG_MS);
        rig_events(&rig);
        if (rig.resets == 0) {
            rig_drain_out(&rig);
            IN(.window = (uint16_t)(i & 1));
        }
    }
    cr_assert(rig.resets == 1 && rig.reset_error == -ETIMEDOUT);
    rig_drain_out(&rig);
    rig_close(&rig);
}

/* The timer that was far away comes nearer when there is a little room, so that a slow reader gets its little at once. */
Test(tcp_send, a_little_room_brings_the_persist_timer_nearer)
{
    start(&(struct tcp_config){0});
    IN(.window = 0);
    cr_assert(put(0, 5000, 1) == 0);
    for (int i = 0; i < 6; i++) {
        rig_advance(&rig, (NS_PER_S << i) + 1);
        rig_drain_out(&rig);
    }
    IN(.window = 1);
    EXPECT_NONE();
    rig_advance(&rig, 2 * NS_PER_S);
    EXPECT_DATA(1, 128);
    rig_close(&rig);
}

Test(tcp_send, small_window_is_used_when_the_persist_timer_says_so)
{
    start(&(struct tcp_config){0});
    IN(.window = 1); /* 128 bytes of 524,288 */
    cr_assert(put(0, 5000, 1) == 0);
    EXPECT_NONE();
    rig_advance(&rig, 2 * NS_PER_S);
    EXPECT_DATA(1, 128);
    rig_close(&rig);
}

Test(tcp_send, rto_backoff_then_reset)
{
    start(&(struct tcp_config){.user_timeout_ns = 20 * NS_PER_S});
    cr_assert(put(0, 100, 1) == 0);
    EXPECT_DATA(1, 100);
    uint64_t rto = tcp_poll_at(rig.engine) == 0 ? 0 : tcp_poll_at(rig.engine) - rig.now;
    EXPECT_NONE();
    rto = tcp_poll_at(rig.engine) - rig.now;
    cr_assert(rto >= 200 * RIG_MS && rto <= NS_PER_S, "%lu", (unsigned long)rto);
    uint64_t waited = 0;
    while (waited + rto < 20 * NS_PER_S) {
        rig_advance(&rig, rto - 1);
        EXPECT_NONE();
        rig_advance(&rig, 1);
        EXPECT_DATA(1, 100);
        waited += rto;
        rto *= 2;
    }
    rig_advance(&rig, rto);
    EXPECT(TCP_RST | TCP_ACK, 101, NEXT, 0); /* in case only its way to us is broken */
    cr_assert(rig.resets == 1 && rig.reset_error == -ETIMEDOUT);
    cr_assert(rig.sents == 1 && rig.sent_error == -ETIMEDOUT);
    rig_close(&rig);
}

Test(tcp_send, rto_follows_the_round_trip)
{
    start(&(struct tcp_config){0});
    for (uint32_t i = 0; i < 40; i++) {
        cr_assert(put(i, 1, 1) == 0);
        EXPECT_DATA(1 + i, 1);
        rig_advance(&rig, 300 * RIG_MS);
        rig_drain_out(&rig);
        IN(.ack = 2 + i);
        rig_drain_out(&rig);
    }
    cr_assert(put(40, 1, 1) == 0);
    EXPECT_DATA(41, 1);
    EXPECT_NONE();
    uint64_t rto = tcp_poll_at(rig.engine) - rig.now;
    cr_assert(rto > 300 * RIG_MS && rto < 450 * RIG_MS, "%lu", (unsigned long)rto);
    rig_close(&rig);
}

Test(tcp_send, karn_repeated_segment_measures_nothing_without_timestamps)
{
    start_without(false, true);
    cr_assert(put(0, 100, 1) == 0);
    EXPECT_DATA(1, 100);
    rig_advance(&rig, NS_PER_S);
    EXPECT_DATA(1, 100);
    rig_advance(&rig, RIG_MS);
    IN(.ack = 101); /* of the first or of the second? */
    cr_assert(put(100, 100, 1) == 0);
    EXPECT_DATA(101, 100);
    EXPECT_NONE();
    cr_assert(tcp_poll_at(rig.engine) - rig.now == 2 * NS_PER_S, "still backed off");
    rig_close(&rig);
}

Test(tcp_send, fast_retransmit_on_third_dup_without_sack)
{
    start_without(true, false);
    cr_assert(put(0, 10 * MSS, 1) == 0);
    cr_assert(drain_data() == 1 + 10 * MSS);
    IN();
    EXPECT_NONE();
    IN();
    EXPECT_NONE();
    IN();
    EXPECT_DATA(1, MSS);
    EXPECT_NONE();
    cr_assert(COUNT(fast_recoveries) == 1);
    IN(.ack = 1 + 10 * MSS);
    cr_assert(rig.sents == 1);
    rig_close(&rig);
}

Test(tcp_send, partial_ack_names_the_next_hole)
{
    start_without(true, false);
    cr_assert(put(0, 10 * MSS, 1) == 0);
    drain_data();
    for (int i = 0; i < 3; i++) {
        IN();
    }
    EXPECT_DATA(1, MSS);
    IN(.ack = 1 + 4 * MSS); /* the fifth is missing as well */
    EXPECT_DATA(1 + 4 * MSS, MSS);
    EXPECT_NONE();
    cr_assert(COUNT(fast_recoveries) == 1);
    rig_close(&rig);
}

Test(tcp_send, timeouts_are_no_further_apart_than_the_largest)
{
    start(&(struct tcp_config){.rto_max_ns = 4 * NS_PER_S});
    cr_assert(put(0, 100, 1) == 0);
    EXPECT_DATA(1, 100);
    EXPECT_NONE();
    for (uint32_t i = 0; i < 8; i++) { /* 1, 2, 4, 4, ... */
        uint64_t rto = tcp_poll_at(rig.engine) - rig.now;
        cr_assert(rto == (i < 2 ? NS_PER_S << i : 4 * NS_PER_S), "%u: %lu", i, (unsigned long)rto);
        rig_advance(&rig, rto);
        EXPECT_DATA(1, 100);
        EXPECT_NONE();
    }
    rig_close(&rig);
}

/* RFC 7323 section 4.1: with timestamps also the answer to a repeat measures, and ends the backing off. */
Test(tcp_send, timestamp_of_a_repeat_ends_the_backoff)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 100, 1) == 0);
    EXPECT_DATA(1, 100);
    rig_advance(&rig, NS_PER_S);
    EXPECT_DATA(1, 100);
    rig_advance(&rig, 10 * RIG_MS);
    IN(.ack = 101);
    cr_assert(put(100, 100, 1) == 0);
    EXPECT_DATA(101, 100);
    EXPECT_NONE();
    cr_assert(tcp_poll_at(rig.engine) - rig.now == 200 * RIG_MS);
    rig_close(&rig);
}

/* It may be of what came long ago, the ACK for it lost since then; believed, the next timeout would take as long again. */
Test(tcp_send, echo_from_before_the_last_timeout_measures_nothing)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 100, 1) == 0);
    EXPECT_DATA(1, 100);
    rig_advance(&rig, NS_PER_S);
    EXPECT_DATA(1, 100);
    uint32_t second = rig.peer->ts_echo;
    rig_advance(&rig, 2 * NS_PER_S);
    EXPECT_DATA(1, 100);
    rig_advance(&rig, 10 * RIG_MS);
    rig.peer->ts_echo = second;
    IN(.ack = 101);
    cr_assert(put(100, 100, 1) == 0);
    EXPECT_DATA(101, 100);
    EXPECT_NONE();
    cr_assert(tcp_poll_at(rig.engine) - rig.now == 4 * NS_PER_S, "still backed off");
    rig_advance(&rig, 10 * RIG_MS);
    IN(.ack = 201);
    cr_assert(put(200, 100, 1) == 0);
    EXPECT_DATA(201, 100);
    EXPECT_NONE();
    cr_assert(tcp_poll_at(rig.engine) - rig.now == 200 * RIG_MS);
    rig_close(&rig);
}

/* A peer can echo anything: five minutes are no round trip, and neither is an answer before the question. */
Test(tcp_send, echo_that_no_round_trip_explains_measures_nothing)
{
    static const uint32_t wrong[] = {10, 400000U,
                                     0x80000000U}; /* ms off: to come, too long ago, half around */
    for (uint32_t i = 0; i < 3; i++) {
        start(&(struct tcp_config){0});
        cr_assert(put(0, 100, 1) == 0);
        EXPECT_DATA(1, 100);
        rig.peer->ts_echo += i == 0 ? wrong[i] : 0U - wrong[i];
        IN(.ack = 101);
        cr_assert(put(100, 100, 1) == 0);
        EXPECT_DATA(101, 100);
        EXPECT_NONE();
        cr_assert(tcp_poll_at(rig.engine) - rig.now == NS_PER_S, "case %u", i);
        rig_close(&rig);
    }
}

/* RFC 3168 section 6.1.2. */
Test(tcp_send, timeout_is_told_with_cwr_as_well)
{
    fill_bytes();
    rig_open(&rig, &(struct tcp_config){0});
    IN(.flags = TCP_SYN | TCP_ECE | TCP_CWR, .seq = 0,
       .options = (struct tcp_options){.mss = 1460, .has_wscale = true, .wscale = 7, .sack_permitted = true});
    EXPECT(TCP_SYN | TCP_ACK | TCP_ECE, 0, 1, 0);
    NEXT = rig.peer->ack = 1;
    IN();
    cr_assert(put(0, MSS, 1) == 0);
    EXPECT_DATA(1, MSS);
    cr_assert(rig.seg.ecn == TCP_ECN_ECT0);
    cr_assert(put(MSS, 2 * MSS, 2) == 0);
    rig_advance(&rig, NS_PER_S);
    EXPECT_DATA(1, MSS);
    cr_assert(rig.seg.ecn == TCP_ECN_NOT_ECT && !(rig.seg.flags & TCP_CWR)); /* repeats are not marked */
    IN(.ack = 1 + MSS);
    EXPECT_DATA(1 + MSS, MSS);
    cr_assert(rig.seg.ecn == TCP_ECN_ECT0 && (rig.seg.flags & TCP_CWR));
    EXPECT_DATA(1 + 2 * MSS, MSS);
    cr_assert(!(rig.seg.flags & TCP_CWR));
    rig_close(&rig);
}

/* RFC 3042: the first two duplicates let new segments out, so that a small window still gets its third. */
static void limited_transmit(bool sack)
{
    start_without(!sack, false);
    cr_assert(put(0, 20 * MSS, 1) == 0);
    cr_assert(drain_data() == 1 + 10 * MSS);
    for (uint32_t i = 1; i <= 2; i++) {
        if (sack) {
            IN(.sack = {1 + MSS, 1 + (i + 1) * MSS});
        } else {
            IN();
        }
        EXPECT_DATA(1 + (9 + i) * MSS, MSS);
        EXPECT_NONE();
    }
    cr_assert(COUNT(fast_recoveries) == 0);
    rig_close(&rig);
}

Test(tcp_send, first_two_duplicates_let_new_segments_out)
{
    limited_transmit(false);
    limited_transmit(true);
}

/* RFC 6582 section 3.2, step 2: a recovery without SACK sends again what had arrived, and that comes back as duplicate ACKs. */
Test(tcp_send, duplicates_at_the_end_of_a_recovery_without_sack_are_no_new_loss)
{
    start_without(true, false);
    cr_assert(put(0, 4 * MSS, 1) == 0);
    drain_data();
    rig_advance(&rig, 2 * NS_PER_S);
    EXPECT_DATA(1, MSS);
    cr_assert(put(4 * MSS, 4 * MSS, 2) == 0);
    IN(.ack = 1 + 4 * MSS); /* only the first was missing */
    EXPECT_DATA(1 + 4 * MSS, MSS);
    for (int i = 0; i < 4; i++) {
        IN(.ack = 1 + 4 * MSS);
    }
    drain_data();
    cr_assert(COUNT(fast_recoveries) == 0 && COUNT(bytes_retransmitted) == MSS);
    IN(.ack = 1 + 5 * MSS); /* beyond it they mean what they say */
    drain_data();
    for (int i = 0; i < 3; i++) {
        IN(.ack = 1 + 5 * MSS);
    }
    cr_assert(COUNT(fast_recoveries) == 1);
    rig_close(&rig);
}

/* RFC 3465: an ACK for many segments opens the window by two, so that no burst of that size follows. */
Test(tcp_send, slow_start_grows_by_two_segments_for_a_stretched_ack)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 100 * MSS, 1) == 0);
    cr_assert(drain_data() == 1 + 10 * MSS);
    IN(.ack = 1 + 10 * MSS);
    cr_assert(drain_data() == 1 + 22 * MSS);
    IN(.ack = 1 + 11 * MSS);
    cr_assert(drain_data() == 1 + 24 * MSS);
    rig_close(&rig);
}

Test(tcp_send, window_that_was_not_used_does_not_grow)
{
    start(&(struct tcp_config){0});
    for (uint32_t i = 0; i < 20; i++) {
        cr_assert(put(i * MSS, MSS, 1) == 0);
        EXPECT_DATA(1 + i * MSS, MSS);
        IN(.ack = 1 + (i + 1) * MSS);
    }
    cr_assert(put(20 * MSS, 50 * MSS, 1) == 0);
    cr_assert(drain_data() == 1 + 30 * MSS);
    rig_close(&rig);
}

/* RFC 6675 and RFC 5681: half the window while it recovers, no burst behind it, then a segment more for each window. */
Test(tcp_send, after_a_loss_the_window_is_half_and_grows_by_one_segment_a_round)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 150 * MSS, 1) == 0);
    cr_assert(drain_data() == 1 + 10 * MSS);
    for (uint32_t i = 2; i <= 4; i++) {
        IN(.sack = {1 + MSS, 1 + i * MSS});
        if (i < 4) {
            EXPECT_DATA(1 + (8 + i) * MSS, MSS);
        }
    }
    EXPECT_DATA(1, MSS); /* 12 were on the way, so 6 are allowed; 9 are */
    EXPECT_NONE();
    IN(.ack = 1 + 12 * MSS);
    uint32_t acked = 12 * MSS;
    uint32_t before = 0;
    for (uint32_t round = 0; round < 8; round++) {
        uint32_t end = drain_data() - 1;
        uint32_t window = (end - acked) / MSS;
        cr_assert(round > 0 || window == 2, "a burst of %u", window);
        cr_assert(before < 6 || (window >= before && window <= before + 1), "round %u: %u after %u", round,
                  window, before);
        before = window;
        while (acked < end) {
            acked += end - acked > 2 * MSS ? 2 * MSS : end - acked;
            IN(.ack = 1 + acked);
        }
    }
    cr_assert(before >= 8 && before <= 12, "%u", before);
    rig_close(&rig);
}

/* RFC 5681 section 2: a duplicate brings nothing: no payload, no new window. */
Test(tcp_send, segments_that_bring_something_are_no_duplicates)
{
    start_without(true, false);
    cr_assert(put(0, 10 * MSS, 1) == 0);
    drain_data();
    for (uint32_t i = 0; i < 5; i++) {
        IN(.len = 100);
        NEXT += 100;
        IN(.window = (uint16_t)(3000 + i));
    }
    rig_drain_out(&rig);
    cr_assert(COUNT(fast_recoveries) == 0 && COUNT(bytes_retransmitted) == 0);
    rig_close(&rig);
}

/* RFC 2883: what came twice says nothing about what is missing. */
Test(tcp_send, dsack_of_what_is_acknowledged_is_no_sack)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 10 * MSS, 1) == 0);
    drain_data();
    IN(.ack = 1 + 4 * MSS);
    for (uint32_t i = 0; i < 5; i++) {
        IN(.ack = 1 + 4 * MSS, .sack = {1, 1 + 4 * MSS});
    }
    rig_drain_out(&rig);
    cr_assert(COUNT(fast_recoveries) == 0 && COUNT(bytes_retransmitted) == 0);
    rig_close(&rig);
}

Test(tcp_send, karn_segment_of_a_fast_retransmit_measures_nothing_without_timestamps)
{
    start_without(false, true);
    const uint32_t mss = 1460;
    cr_assert(put(0, 5 * mss, 1) == 0);
    drain_data();
    IN(.sack = {1 + mss, 1 + 5 * mss});
    EXPECT_DATA(1, mss);
    rig_advance(&rig, 500 * RIG_MS);
    IN(.ack = 1 + 5 * mss); /* of the first or of the second? */
    cr_assert(put(5 * mss, 100, 2) == 0);
    EXPECT_DATA(1 + 5 * mss, 100);
    EXPECT_NONE();
    cr_assert(tcp_poll_at(rig.engine) - rig.now == NS_PER_S);
    rig_close(&rig);
}

/* What is known of holes rides on responses, but never makes a segment longer than its path. */
Test(tcp_send, sack_rides_on_segments_that_have_room)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT + 1000, .len = 1000);
    rig_drain_out(&rig);
    cr_assert(put(0, 2 * MSS + 100, 1) == 0);
    EXPECT_DATA(1, MSS);
    cr_assert(rig.seg.options.sack_count == 0 && rig.packet_len == 1514);
    EXPECT_DATA(1 + MSS, MSS);
    EXPECT_DATA(1 + 2 * MSS, 100);
    cr_assert(rig.seg.options.sack_count == 1);
    cr_assert(rig.seg.options.sack[0].start - rig.peer->irs == NEXT + 1000);
    rig_close(&rig);
}

/* RFC 5681 section 4.1: a window that was right before a pause may not be right after it. */
Test(tcp_send, after_a_pause_no_more_than_the_initial_window_leaves_at_once)
{
    start(&(struct tcp_config){0});
    uint32_t sent = 0;
    for (uint32_t round = 0; round < 3; round++) { /* slow start */
        uint32_t len = (10U << round) * MSS;
        cr_assert(put(sent, len, 1) == 0);
        cr_assert(drain_data() == 1 + sent + len, "round %u", round);
        sent += len;
        rig_advance(&rig, RIG_MS);
        for (uint32_t acked = sent - len; acked < sent; acked += 2 * MSS) {
            IN(.ack = 1 + acked + 2 * MSS);
        }
    }
    cr_assert(rig.sents == 3);
    rig_advance(&rig, 199 * RIG_MS); /* not yet a pause */
    cr_assert(put(sent, 40 * MSS, 1) == 0);
    cr_assert(drain_data() == 1 + sent + 40 * MSS);
    sent += 40 * MSS;
    rig_advance(&rig, RIG_MS);
    IN(.ack = 1 + sent);
    rig_advance(&rig, 10 * NS_PER_S);
    cr_assert(put(sent, 40 * MSS, 1) == 0);
    cr_assert(drain_data() == 1 + sent + 10 * MSS);
    rig_close(&rig);
}

/* RFC 6298 section 5.3: what is on the way gets its time from the last ACK on, not from when it left. */
Test(tcp_send, ack_of_a_part_starts_the_timer_anew)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 2 * MSS, 1) == 0);
    drain_data();
    rig_advance(&rig, 900 * RIG_MS);
    IN(.ack = 1 + MSS);
    EXPECT_NONE();
    cr_assert(tcp_poll_at(rig.engine) - rig.now > 900 * RIG_MS);
    cr_assert(COUNT(rto_fired) == 0);
    rig_close(&rig);
}

/* Slow is not gone: the patience is for a peer that acknowledges nothing. */
Test(tcp_send, peer_that_takes_a_little_now_and_then_is_kept)
{
    start(&(struct tcp_config){.user_timeout_ns = 10 * NS_PER_S});
    cr_assert(put(0, 5 * MSS, 1) == 0);
    drain_data();
    for (uint32_t i = 1; i <= 4; i++) {
        for (uint32_t k = 0; k < 8; k++) {
            rig_advance(&rig, NS_PER_S);
            rig_drain_out(&rig);
        }
        IN(.ack = 1 + i * MSS);
        rig_drain_out(&rig);
    }
    cr_assert(rig.resets == 0 && COUNT(rto_fired) > 4);
    rig_close(&rig);
}

/* RFC 9293 section 3.10.7.4: SND.WL1. A segment that was overtaken says what was, not what is. */
Test(tcp_send, window_of_an_overtaken_segment_is_not_taken)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT + 2000, .len = 100, .window = 4096);
    IN(.len = 100, .window = 0);
    rig_drain_out(&rig);
    cr_assert(put(0, MSS, 1) == 0);
    EXPECT_DATA(1, MSS);
    rig_close(&rig);
}

/* RFC 6582 section 3.2, step 3: what a partial ACK takes was counted by duplicates before, and is not to be counted twice. */
Test(tcp_send, partial_ack_without_sack_lets_nothing_new_out_too_early)
{
    start_without(true, false);
    cr_assert(put(0, 20 * MSS, 1) == 0);
    cr_assert(drain_data() == 1 + 10 * MSS);
    for (uint32_t i = 0; i < 4; i++) {
        IN();
        if (i != 3) {
            EXPECT_DATA(i < 2 ? 1 + (10 + i) * MSS : 1, MSS);
        }
        EXPECT_NONE();
    }
    IN(.ack = 1 + 4 * MSS);
    EXPECT_DATA(1 + 4 * MSS, MSS);
    EXPECT_NONE(); /* 8 are on the way, one has arrived, 6 are allowed */
    rig_close(&rig);
}

/* RFC 9293 section 3.10.7.4: the window is taken only with an ACK that is not from the past. */
Test(tcp_send, window_of_an_old_ack_is_not_taken)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 4 * MSS, 1) == 0);
    drain_data();
    IN(.ack = 1 + 4 * MSS);
    IN(.seq = NEXT + 1000, .len = 1000, .ack = 1, .window = 0);
    rig_drain_out(&rig);
    cr_assert(put(4 * MSS, MSS, 2) == 0);
    EXPECT_DATA(1 + 4 * MSS, MSS);
    rig_close(&rig);
}

Test(tcp_send, sack_tells_which_holes_to_fill)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 10 * MSS, 1) == 0);
    cr_assert(drain_data() == 1 + 10 * MSS);
    IN(.sack = {1 + MSS, 1 + 2 * MSS});
    EXPECT_NONE();
    IN(.sack = {1 + 3 * MSS, 1 + 6 * MSS}); /* more than two segments above both holes */
    EXPECT_DATA(1, MSS);
    IN(.sack = {1 + 3 * MSS, 1 + 9 * MSS});
    EXPECT_DATA(1 + 2 * MSS, MSS);
    EXPECT_NONE();
    cr_assert(COUNT(bytes_retransmitted) == 2 * MSS);
    IN(.sack = {1 + 30 * MSS, 1 + 40 * MSS}); /* never sent */
    cr_assert(COUNT(sack_ignored) == 1);
    rig_close(&rig);
}

Test(tcp_send, timeout_sends_again_all_that_is_not_sacked_afterwards)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 4 * MSS, 1) == 0);
    drain_data();
    rig_advance(&rig, 2 * NS_PER_S);
    EXPECT_DATA(1, MSS);
    EXPECT_NONE(); /* congestion window of one */
    IN(.ack = 1 + MSS, .sack = {1 + 2 * MSS, 1 + 3 * MSS});
    EXPECT_DATA(1 + MSS, MSS);
    EXPECT_DATA(1 + 3 * MSS, MSS);
    EXPECT_NONE();
    rig_close(&rig);
}

Test(tcp_send, timeout_forgets_sack_because_the_peer_may_have_dropped_it)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 4 * MSS, 1) == 0);
    drain_data();
    IN(.sack = {1 + 2 * MSS, 1 + 3 * MSS});
    rig_advance(&rig, 2 * NS_PER_S);
    EXPECT_DATA(1, MSS);
    IN(.ack = 1 + MSS); /* and not a word of what was reported before */
    EXPECT_DATA(1 + MSS, MSS);
    EXPECT_DATA(1 + 2 * MSS, MSS);
    rig_close(&rig);
}

/* More holes than are remembered: some are sent once too often, and all arrives. */
Test(tcp_send, more_sacked_runs_than_are_kept_are_forgotten)
{
    start_without(false, true);
    const uint32_t mss = 1460;
    uint32_t una = 1;
    uint32_t end = 1;
    cr_assert(put(0, 150 * mss, 1) == 0);
    while (end - una < 45 * mss) { /* slow start */
        IN(.ack = una);
        uint32_t sent = drain_data();
        end = sent > end ? sent : end;
        for (uint32_t i = 0; i < 6 && end - una < 45 * mss; i++) {
            una += 2 * mss;
            IN(.ack = una);
            sent = drain_data();
            end = sent > end ? sent : end;
        }
    }
    for (uint32_t i = 0; i < 20; i++) {
        IN(.ack = una, .sack = {una + (2 * i + 1) * mss, una + (2 * i + 2) * mss});
        invariants_check(rig.engine);
        drain_data();
    }
    for (uint32_t i = 0; i < 100 && rig.sents == 0; i++) {
        uint32_t sent = drain_data();
        end = sent > end ? sent : end;
        IN(.ack = end);
        invariants_check(rig.engine);
    }
    cr_assert(rig.sents == 1 && rig.resets == 0);
    rig_close(&rig);
}

Test(tcp_send, sack_taken_back_is_sent_again)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 6 * MSS, 1) == 0);
    drain_data();
    IN(.sack = {1 + MSS, 1 + 5 * MSS});
    EXPECT_DATA(1, MSS);
    IN(.ack = 1 + MSS); /* fills the hole, but acknowledges nothing of what was reported */
    EXPECT_DATA(1 + MSS, MSS);
    rig_close(&rig);
}

Test(tcp_send, too_big_makes_segments_smaller_only_if_it_quotes_what_is_in_flight)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 2 * MSS, 1) == 0);
    drain_data();
    cr_assert(!tcp_too_big(rig.engine, &rig.peer->tuple, rig.peer->iss + 1 + 2 * MSS, 1300));
    cr_assert(!tcp_too_big(rig.engine, &rig.peer->tuple, rig.peer->iss, 1300));
    cr_assert(!tcp_too_big(rig.engine, &rig.peer->tuple, rig.peer->iss + 1, 1500));
    EXPECT_NONE();
    cr_assert(tcp_too_big(rig.engine, &rig.peer->tuple, rig.peer->iss + 1, 1300));
    EXPECT_DATA(1, 1300 - 52);
    EXPECT_DATA(1 + 1248, 1248);
    EXPECT_DATA(1 + 2 * 1248, 2 * MSS - 2 * 1248);
    EXPECT_NONE();
    rig_close(&rig);
}

/* A path that got narrower is no timeout: the answer to what is sent again measures as any other. */
Test(tcp_send, round_trip_is_measured_after_too_big_as_well)
{
    for (uint32_t n = 1; n <= 8; n++) { /* each has its own offset of timestamps */
        struct peer peer;
        fill_bytes();
        rig_open(&rig, &(struct tcp_config){0});
        rig_peer_init(&rig, &peer, n, 4);
        rig.peer = &peer;
        rig_established(&rig);
        cr_assert(put(0, 2 * MSS, 1) == 0);
        drain_data();
        cr_assert(tcp_too_big(rig.engine, &peer.tuple, peer.iss + 1, 1300));
        drain_data();
        rig_advance(&rig, 10 * RIG_MS);
        IN(.ack = 1 + 2 * MSS);
        cr_assert(put(2 * MSS, 100, 2) == 0);
        EXPECT_DATA(1 + 2 * MSS, 100);
        EXPECT_NONE();
        cr_assert(tcp_poll_at(rig.engine) - rig.now == 200 * RIG_MS, "peer %u", n);
        rig_close(&rig);
    }
}

/* RFC 1191 allows less than every router takes: then the packets may be cut on the way. IPv6 has no such thing below 1280. */
Test(tcp_send, too_big_never_goes_below_what_every_path_takes)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 2 * MSS, 1) == 0);
    EXPECT_DATA(1, MSS);
    cr_assert((rig.packet[20] & 0x40) != 0); /* don't fragment */
    drain_data();
    cr_assert(tcp_too_big(rig.engine, &rig.peer->tuple, rig.peer->iss + 1, 68));
    EXPECT_DATA(1, 576 - 52);
    cr_assert((rig.packet[20] & 0x40) == 0);
    cr_assert(!tcp_too_big(rig.engine, &rig.peer->tuple, rig.peer->iss + 1, 68)); /* once is enough */
    rig_close(&rig);

    struct peer six;
    fill_bytes();
    rig_open(&rig, &(struct tcp_config){0});
    rig_peer_init(&rig, &six, 9, 6);
    rig.peer = &six;
    rig_established(&rig);
    cr_assert(put(0, 2 * MSS, 1) == 0);
    drain_data();
    cr_assert(tcp_too_big(rig.engine, &six.tuple, six.iss + 1, 600));
    EXPECT_DATA(1, 1280 - 72);
    rig_close(&rig);
}

/* Full packets got through before, so it takes more to believe that they do not any more. */
Test(tcp_send, black_hole_on_a_proven_path_needs_six_timeouts)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, MSS, 1) == 0);
    EXPECT_DATA(1, MSS);
    IN(.ack = 1 + MSS);
    cr_assert(put(MSS, 2 * MSS, 2) == 0);
    drain_data();
    for (uint32_t i = 1; i <= 6; i++) {
        uint64_t due = tcp_poll_at(rig.engine);
        rig_advance(&rig, due - rig.now);
        EXPECT_DATA(1 + MSS, i < 6 ? MSS : 1280 - 52);
        EXPECT_NONE();
    }
    cr_assert(COUNT(black_holes) == 1);
    rig_close(&rig);
}

/* Somebody lowers the MTU of the interface: what is under way was dropped there, and new peers are told. */
Test(tcp_send, a_smaller_mtu_of_the_interface_holds_for_all_connections)
{
    struct peer second;
    start(&(struct tcp_config){0});
    cr_assert(put(0, 2000, 1) == 0);
    EXPECT_DATA(1, MSS);
    EXPECT_DATA(1 + MSS, 2000 - MSS);
    tcp_mtu(rig.engine, 1300);
    EXPECT_DATA(1, 1248);
    IN(.ack = 2001);
    tcp_mtu(rig.engine, 1280); /* nothing is under way */
    cr_assert(put(2000, 2000, 2) == 0);
    EXPECT_DATA(2001, 1228);
    rig_drain_out(&rig);
    struct tcp_id first = rig.id;
    rig_peer_init(&rig, &second, 2, 4);
    rig.peer = &second;
    IN(.flags = TCP_SYN, .seq = 0, .options = (struct tcp_options){.mss = 1460});
    cr_assert(rig_out(&rig) != NULL && rig.seg.options.mss == 1240);
    tcp_mtu(rig.engine, 9000); /* not above what buffers were made for */
    IN(.flags = TCP_SYN, .seq = 0, .options = (struct tcp_options){.mss = 1460});
    cr_assert(rig_out(&rig) != NULL && rig.seg.options.mss == 1460);
    tcp_abort(rig.engine, rig.now, first);
    rig_drain_out(&rig);
    rig_close(&rig);
}

Test(tcp_send, black_hole_falls_back_after_three_timeouts)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 2 * MSS, 1) == 0);
    drain_data();
    rig_advance(&rig, 2 * NS_PER_S);
    EXPECT_DATA(1, MSS);
    rig_advance(&rig, 4 * NS_PER_S);
    EXPECT_DATA(1, MSS);
    rig_advance(&rig, 8 * NS_PER_S);
    EXPECT_DATA(1, 1280 - 52);
    cr_assert(COUNT(black_holes) == 1);
    rig_close(&rig);
}

Test(tcp_send, ecn_echo_halves_the_window_once_and_is_answered_with_cwr)
{
    start(&(struct tcp_config){0});
    rig_close(&rig);
    rig_open(&rig, &(struct tcp_config){0});
    IN(.flags = TCP_SYN | TCP_ECE | TCP_CWR, .seq = 0,
       .options = (struct tcp_options){.mss = 1460, .has_wscale = true, .wscale = 7, .sack_permitted = true});
    EXPECT(TCP_SYN | TCP_ACK | TCP_ECE, 0, 1, 0);
    NEXT = rig.peer->ack = 1;
    IN();
    cr_assert(put(0, 20 * MSS, 1) == 0);
    EXPECT_DATA(1, MSS);
    cr_assert(rig.seg.ecn == TCP_ECN_ECT0);
    drain_data();
    IN(.ack = 1 + MSS, .flags = TCP_ACK | TCP_ECE);
    IN(.ack = 1 + 2 * MSS, .flags = TCP_ACK | TCP_ECE);
    cr_assert(COUNT(ecn_reductions) == 1);
    EXPECT_NONE();
    IN(.ack = 1 + 8 * MSS, .flags = TCP_ACK | TCP_ECE);
    EXPECT_DATA(1 + 10 * MSS, MSS);
    cr_assert(rig.seg.flags & TCP_CWR);
    rig_close(&rig);
}

Test(tcp_send, rst_stops_all)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 5000, 7) == 0);
    cr_assert(rig_out(&rig) != NULL);
    IN(.flags = TCP_RST);
    EXPECT_NONE();
    cr_assert(rig.resets == 1 && rig.sents == 1 && rig.sent_error == -ECONNRESET);
    cr_assert(put(0, 10, 8) == -EPIPE);
    rig_advance(&rig, 100 * NS_PER_S);
    EXPECT_NONE();
    tcp_close(rig.engine, rig.now, rig.id);
    rig_events(&rig);
    cr_assert(rig.closes == 1);
    rig_close(&rig);
}

/* ---- close ---- */

Test(tcp_close, fin_with_data_is_taken_with_it)
{
    start(&(struct tcp_config){0});
    IN(.len = 100, .flags = TCP_ACK | TCP_FIN);
    EXPECT_ACK(NEXT + 101);
    cr_assert(rig.received == 16100 && rig.eofs == 1);
    tcp_close(rig.engine, rig.now, rig.id);
    EXPECT(TCP_ACK | TCP_FIN, 1, NEXT + 101, 0);
    rig_events(&rig);
    cr_assert(rig.closes == 1);
    IN(.seq = NEXT + 101, .ack = 2);
    EXPECT_NONE();
    cr_assert(tcp_stats(rig.engine)->conns_used == 0);
    rig_close(&rig);
}

Test(tcp_close, fin_out_of_order_waits_for_what_is_before_it)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT + 100, .len = 100, .flags = TCP_ACK | TCP_FIN);
    EXPECT_ACK(NEXT);
    cr_assert(rig.eofs == 0);
    IN(.len = 100);
    EXPECT_ACK(NEXT + 201);
    cr_assert(rig.eofs == 1 && rig.received == 16200);
    rig_close(&rig);
}

/* Alone it holds no buffer, but the peer must learn of the hole before it all the same. */
Test(tcp_close, lone_fin_out_of_order_is_told_at_once_and_ends_the_stream_where_it_stands)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT + 100, .flags = TCP_ACK | TCP_FIN);
    EXPECT_ACK(NEXT);
    EXPECT_NONE();
    IN(.len = 300); /* goes on behind its own end: that is cut */
    EXPECT_ACK(NEXT + 101);
    cr_assert(rig.eofs == 1 && rig.received == 16100);
    rig_close(&rig);
}

/* A peer that says its stream ends before what it sent already is wrong in one of the two; the end counts, and nothing stays behind. */
Test(tcp_close, fin_before_what_is_held_ends_the_stream_there)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT + 200, .len = 100);
    IN(.seq = NEXT + 101, .len = 50);
    IN(.len = 100, .flags = TCP_ACK | TCP_FIN);
    cr_assert(rig.eofs == 1 && rig.received == 16100);
    cr_assert(tcp_stats(rig.engine)->frames_out_of_order == 0);
    rig_drain_out(&rig);
    cr_assert(rig_ack(&rig) == NEXT + 101 && rig.seg.options.sack_count == 0);
    rig_close(&rig);
}

Test(tcp_close, fin_inside_what_is_held_cuts_it)
{
    start(&(struct tcp_config){0});
    IN(.seq = NEXT + 50, .len = 200);
    IN(.seq = NEXT + 100, .flags = TCP_ACK | TCP_FIN);
    cr_assert(rig.eofs == 0);
    IN(.len = 50);
    cr_assert(rig.eofs == 1 && rig.received == 16100);
    rig_drain_out(&rig);
    cr_assert(rig_ack(&rig) == NEXT + 101);
    rig_close(&rig);
}

Test(tcp_close, repeated_fin_is_acknowledged_again)
{
    start(&(struct tcp_config){.challenges_per_s = 1});
    IN(.flags = TCP_ACK | TCP_FIN);
    EXPECT_ACK(NEXT + 1);
    for (int i = 0; i < 3; i++) {
        IN(.flags = TCP_ACK | TCP_FIN);
        EXPECT_ACK(NEXT + 1);
    }
    cr_assert(rig.eofs == 1);
    rig_close(&rig);
}

Test(tcp_close, half_close_then_send)
{
    start(&(struct tcp_config){0});
    IN(.flags = TCP_ACK | TCP_FIN);
    EXPECT_ACK(NEXT + 1);
    cr_assert(put(0, 500, 1) == 0);
    EXPECT_DATA(1, 500);
    tcp_shutdown(rig.engine, rig.now, rig.id);
    EXPECT(TCP_ACK | TCP_FIN, 501, NEXT + 1, 0);
    cr_assert(put(0, 500, 1) == -EPIPE);
    IN(.seq = NEXT + 1, .ack = 502);
    cr_assert(rig.sents == 1 && rig.closes == 0);
    tcp_close(rig.engine, rig.now, rig.id);
    rig_events(&rig);
    cr_assert(rig.closes == 1 && tcp_stats(rig.engine)->conns_used == 0);
    rig_close(&rig);
}

Test(tcp_close, shutdown_first_still_receives)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 500, 1) == 0);
    tcp_shutdown(rig.engine, rig.now, rig.id);
    EXPECT_DATA(1, 500);
    cr_assert(rig.seg.flags == (TCP_ACK | TCP_FIN | TCP_PSH));
    IN(.ack = 502, .len = 1000);
    NEXT += 1000;
    cr_assert(rig.received == 17000);
    IN(.ack = 502, .flags = TCP_ACK | TCP_FIN);
    cr_assert(rig_out(&rig) != NULL && rig_ack(&rig) == NEXT + 1);
    cr_assert(rig.eofs == 1);
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 1);
    rig_close(&rig);
}

Test(tcp_close, simultaneous_close)
{
    start(&(struct tcp_config){0});
    tcp_close(rig.engine, rig.now, rig.id);
    EXPECT(TCP_ACK | TCP_FIN, 1, NEXT, 0);
    IN(.flags = TCP_ACK | TCP_FIN);
    EXPECT(TCP_ACK, 2, NEXT + 1, 0);
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 0);
    IN(.seq = NEXT + 1, .ack = 2);
    EXPECT_NONE();
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 1 && tcp_stats(rig.engine)->conns_used == 0);
    rig_advance(&rig, 60 * NS_PER_S - 1);
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 1);
    rig_advance(&rig, 1);
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 0);
    rig_close(&rig);
}

/* Ends in TIME-WAIT: we close first. */
static void to_time_wait(void)
{
    start(&(struct tcp_config){0});
    tcp_close(rig.engine, rig.now, rig.id);
    EXPECT(TCP_ACK | TCP_FIN, 1, NEXT, 0);
    IN(.ack = 2);
    EXPECT_NONE();
    IN(.ack = 2, .flags = TCP_ACK | TCP_FIN);
    EXPECT(TCP_ACK, 2, NEXT + 1, 0);
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 1 && rig.closes == 1);
}

Test(tcp_close, time_wait_dup_fin_is_acknowledged_and_starts_it_anew)
{
    to_time_wait();
    rig_advance(&rig, 30 * NS_PER_S);
    IN(.ack = 2, .flags = TCP_ACK | TCP_FIN);
    EXPECT(TCP_ACK, 2, NEXT + 1, 0);
    IN(.ack = 2, .flags = TCP_RST); /* RFC 1337 */
    EXPECT_NONE();
    rig_advance(&rig, 59 * NS_PER_S);
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 1);
    rig_advance(&rig, NS_PER_S);
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 0);
    rig_close(&rig);
}

Test(tcp_close, time_wait_gives_way_to_a_newer_syn_only)
{
    to_time_wait();
    uint32_t old = (uint32_t)(rig.now / NS_PER_MS) - 5;
    IN(.flags = TCP_SYN, .seq = 10, .ts = old);
    EXPECT(TCP_ACK, 2, NEXT + 1, 0);
    rig_advance(&rig, NS_PER_S);
    IN(.flags = TCP_SYN, .seq = NEXT + 1000, .options = (struct tcp_options){.mss = 1460});
    cr_assert(rig_out(&rig) != NULL && rig.seg.flags == (TCP_SYN | TCP_ACK));
    cr_assert(COUNT(time_wait_reused) == 1 && tcp_stats(rig.engine)->time_waits_used == 0);
    rig_close(&rig);
}

Test(tcp_close, time_wait_of_a_stopped_listener_is_not_reopened)
{
    static const uint8_t any[16];
    to_time_wait();
    cr_assert(tcp_listen_stop(rig.engine, any, 80) == 0);
    IN(.flags = TCP_SYN, .seq = NEXT + 1000, .ts = (uint32_t)(rig.now / NS_PER_MS) + 5,
       .options = (struct tcp_options){.mss = 1460});
    EXPECT(TCP_ACK, 2, NEXT + 1, 0);
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 1 && COUNT(time_wait_reused) == 0);
    rig_close(&rig);
}

Test(tcp_close, oldest_time_wait_makes_room)
{
    struct peer peers[3];
    fill_bytes();
    rig_open(&rig, &(struct tcp_config){.time_waits_max = 2});
    for (uint32_t i = 0; i < 3; i++) {
        rig_peer_init(&rig, &peers[i], 10 + i, 4);
        rig.peer = &peers[i];
        rig_handshake(&rig);
        tcp_close(rig.engine, rig.now, rig.id);
        EXPECT(TCP_ACK | TCP_FIN, 1, 1, 0);
        IN(.ack = 2, .flags = TCP_ACK | TCP_FIN);
        EXPECT(TCP_ACK, 2, 2, 0);
        rig_advance(&rig, NS_PER_S);
    }
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 2 && COUNT(time_wait_recycled) == 1);
    for (uint32_t i = 0; i < 3; i++) { /* a repeated FIN: the first is a stranger now */
        rig.peer = &peers[i];
        IN(.ack = 2, .flags = TCP_ACK | TCP_FIN);
        if (i == 0) {
            EXPECT(TCP_RST, 2, 0, 0);
        } else {
            EXPECT(TCP_ACK, 2, 2, 0);
        }
    }
    rig_close(&rig);
}

Test(tcp_close, time_wait_is_silent_to_a_late_ack)
{
    to_time_wait();
    IN(.seq = NEXT + 1, .ack = 2);
    EXPECT_NONE();
    rig_close(&rig);
}

/* RFC 6191: within one tick of the peer's clock the sequence number decides. */
Test(tcp_close, time_wait_gives_way_to_a_syn_of_the_same_tick_with_a_higher_number)
{
    to_time_wait();
    IN(.flags = TCP_SYN, .seq = NEXT - 1000, .options = (struct tcp_options){.mss = 1460});
    EXPECT(TCP_ACK, 2, NEXT + 1, 0);
    cr_assert(COUNT(time_wait_reused) == 0);
    IN(.flags = TCP_SYN, .seq = NEXT + 1000, .options = (struct tcp_options){.mss = 1460});
    cr_assert(rig_out(&rig) != NULL && rig.seg.flags == (TCP_SYN | TCP_ACK));
    cr_assert(COUNT(time_wait_reused) == 1);
    rig_close(&rig);
}

/* RFC 1122 section 4.2.2.13: or a late ACK of the old connection could be one of the new. */
Test(tcp_close, connection_after_a_time_wait_numbers_above_all_that_was_sent)
{
    start(&(struct tcp_config){0});
    uint32_t sent = 0;
    for (uint32_t round = 0; round < 8;
         round++) { /* 1 MiB in 8 ms: a clock of 4 us per number falls behind */
        cr_assert(put(0, 128 * 1024, 1) == 0);
        uint32_t end = sent + 128 * 1024;
        for (uint32_t i = 0; i < 200 && sent < end; i++) {
            while (rig_out(&rig) != NULL) {
                sent = rig_seq(&rig) + rig.seg.len - 1 > sent ? rig_seq(&rig) + rig.seg.len - 1 : sent;
            }
            IN(.ack = 1 + sent);
        }
        rig_advance(&rig, RIG_MS);
    }
    cr_assert(sent == 8 * 128 * 1024 && rig.sents == 8);
    tcp_close(rig.engine, rig.now, rig.id);
    EXPECT(TCP_ACK | TCP_FIN, 1 + sent, NEXT, 0);
    IN(.ack = 2 + sent, .flags = TCP_ACK | TCP_FIN);
    EXPECT(TCP_ACK, 2 + sent, NEXT + 1, 0);
    uint32_t last = rig.seg.seq;
    rig_advance(&rig, RIG_MS);
    IN(.flags = TCP_SYN, .seq = NEXT + 1000, .options = (struct tcp_options){.mss = 1460});
    cr_assert(rig_out(&rig) != NULL && rig.seg.flags == (TCP_SYN | TCP_ACK));
    cr_assert((int32_t)(rig.seg.seq - last) > 0, "%d", (int)(rig.seg.seq - last));
    rig_close(&rig);
}

/* Only the peer's own FIN starts it anew: not one that anybody can guess. */
Test(tcp_close, time_wait_is_not_kept_by_other_fins)
{
    to_time_wait();
    rig_advance(&rig, 30 * NS_PER_S);
    IN(.seq = NEXT + 77, .ack = 2, .flags = TCP_ACK | TCP_FIN);
    EXPECT(TCP_ACK, 2, NEXT + 1, 0);
    rig_advance(&rig, 100 * RIG_MS);
    IN(.seq = NEXT + 77, .ack = 2, .flags = TCP_ACK | TCP_FIN);
    EXPECT_NONE(); /* two ends that disagree do not play ping-pong */
    rig_advance(&rig, 30 * NS_PER_S);
    cr_assert(tcp_stats(rig.engine)->time_waits_used == 0);
    rig_close(&rig);
}

/* Bytes not yet taken go with a reset, so there must be no end after it: half an object would look whole. */
Test(tcp_close, reset_takes_an_end_back_that_was_not_told_yet)
{
    start(&(struct tcp_config){0});
    tcp_pause(rig.engine, rig.id);
    IN(.len = 1000, .flags = TCP_ACK | TCP_FIN);
    EXPECT_ACK(NEXT + 1001);
    IN(.seq = NEXT + 1001, .flags = TCP_RST);
    tcp_resume(rig.engine, rig.id);
    rig_events(&rig);
    cr_assert(rig.eofs == 0 && rig.resets == 1 && rig.received == 16000);
    rig_close(&rig);
}

/* RFC 9293 section 3.10.7.4: in CLOSING and LAST-ACK an RST ends what was over anyway. */
Test(tcp_close, rst_after_both_fins_is_no_error)
{
    start(&(struct tcp_config){0});
    IN(.flags = TCP_ACK | TCP_FIN);
    EXPECT_ACK(NEXT + 1);
    tcp_shutdown(rig.engine, rig.now, rig.id);
    EXPECT(TCP_ACK | TCP_FIN, 1, NEXT + 1, 0);
    IN(.seq = NEXT + 1, .flags = TCP_RST);
    cr_assert(rig.eofs == 1 && rig.resets == 0);
    rig_close(&rig);
    start(&(struct tcp_config){0});
    tcp_shutdown(rig.engine, rig.now, rig.id);
    EXPECT(TCP_ACK | TCP_FIN, 1, NEXT, 0);
    IN(.flags = TCP_ACK | TCP_FIN);
    EXPECT(TCP_ACK, 2, NEXT + 1, 0);
    IN(.seq = NEXT + 1, .flags = TCP_RST);
    cr_assert(rig.eofs == 1 && rig.resets == 0);
    rig_close(&rig);
}

Test(tcp_close, queued_data_is_sent_before_the_fin_and_closed_comes_after_it)
{
    start(&(struct tcp_config){0});
    cr_assert(put(0, 2000, 1) == 0);
    tcp_close(rig.engine, rig.now, rig.id);
    rig_events(&rig);
    cr_assert(rig.closes == 0);
    EXPECT_DATA(1, MSS);
    EXPECT_DATA(1 + MSS, 2000 - MSS);
    cr_assert(rig.seg.flags & TCP_FIN);
    IN(.len = 100); /* nobody reads it, but our response must get through */
    EXPECT(TCP_ACK, 2002, NEXT + 100, 0);
    IN(.seq = NEXT + 100, .ack = 2002);
    cr_assert(rig.sents == 1 && rig.closes == 1 && rig.received == 16000);
    IN(.seq = NEXT + 100, .ack = 2002, .len = 100);
    cr_assert(rig_out(&rig) != NULL && (rig.seg.flags & TCP_RST));
    cr_assert(tcp_stats(rig.engine)->conns_used == 0);
    rig_close(&rig);
}

Test(tcp_close, peer_vanishes_after_our_close)
{
    start(&(struct tcp_config){0});
    tcp_close(rig.engine, rig.now, rig.id);
    EXPECT(TCP_ACK | TCP_FIN, 1, NEXT, 0);
    IN(.ack = 2);
    rig_events(&rig);
    cr_assert(rig.closes == 1 && tcp_stats(rig.engine)->conns_used == 1);
    rig_advance(&rig, 60 * NS_PER_S);
    cr_assert(tcp_stats(rig.engine)->conns_used == 0);
    EXPECT_NONE();
    rig_close(&rig);
}

/* Not the time of an idle connection: nobody waits for this one. */
Test(tcp_close, peer_that_never_closes_is_waited_for_as_long_as_configured)
{
    start(&(struct tcp_config){.fin_wait_ns = 5 * NS_PER_S});
    tcp_close(rig.engine, rig.now, rig.id);
    EXPECT(TCP_ACK | TCP_FIN, 1, NEXT, 0);
    IN(.ack = 2);
    rig_events(&rig);
    rig_advance(&rig, 5 * NS_PER_S - 1);
    cr_assert(tcp_stats(rig.engine)->conns_used == 1);
    rig_advance(&rig, 1);
    cr_assert(tcp_stats(rig.engine)->conns_used == 0);
    rig_close(&rig);
}

Test(tcp_close, peer_vanishes_before_it_acknowledges_the_fin)
{
    start(&(struct tcp_config){.user_timeout_ns = 10 * NS_PER_S});
    tcp_close(rig.engine, rig.now, rig.id);
    EXPECT(TCP_ACK | TCP_FIN, 1, NEXT, 0);
    for (int i = 0; i < 40 && tcp_stats(rig.engine)->conns_used > 0; i++) {
        rig_advance(&rig, NS_PER_S);
        rig_drain_out(&rig);
    }
    cr_assert(tcp_stats(rig.engine)->conns_used == 0 && COUNT(rto_fired) > 2 && rig.closes == 1);
    rig_close(&rig);
}

Test(tcp_close, abort_sends_rst_and_ends_sends)
{
    start(&(struct tcp_config){0});
    rig.hold = true;
    IN(.len = 100);
    cr_assert(put(0, 100, 1) == 0);
    tcp_abort(rig.engine, rig.now, rig.id);
    EXPECT(TCP_RST | TCP_ACK, 1, NEXT + 100, 0);
    EXPECT_NONE();
    cr_assert(rig.sents == 1 && rig.sent_error == -ECANCELED && rig.closes == 1);
    cr_assert(tcp_stats(rig.engine)->conns_used == 0);
    cr_assert(tcp_stats(rig.engine)->frames_held == 1); /* the consumer's, also after CLOSED */
    rig_close(&rig);
}
