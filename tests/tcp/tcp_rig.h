/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_rig: one engine and scripted peers, for tests that read "segment in, segment out, at this time".
 *
 * Sequence numbers in tests are relative: 0 is the SYN's, 1 the first byte. IN(...) sends a segment of the peer of which only what
 * differs from the template is written; out() takes the next packet of the engine. Events are taken after each step: payload
 * is compared with the pattern and released at once unless `hold` is set. rig_close fails the test if anything leaked.
 */
#ifndef TESTS_TCP_RIG_H
#define TESTS_TCP_RIG_H

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tcp/tcp.h"

#if defined(__clang__)
#pragma clang diagnostic ignored "-Winitializer-overrides"
#else
#pragma GCC diagnostic ignored "-Woverride-init"
#endif

#define RIG_FRAMES 256U
#define RIG_FRAME_SIZE 2048U
#define RIG_MS NS_PER_MS
#define RIG_WINDOW_SHIFT 7

/* A segment of the peer. */
struct shot {
    uint32_t seq, ack; /* relative */
    uint8_t flags;
    uint16_t window;
    uint32_t len; /* payload: the pattern at its place in the stream */
    uint8_t ecn;
    bool no_ts;
    uint32_t ts; /* 0: the clock */
    bool bad_checksum;
    struct tcp_options options; /* of SYNs */
    struct tcp_range sack;      /* one block, relative to our stream; empty: none */
    uint32_t wrong_ack;         /* added to the absolute ACK */
};

struct peer {
    struct tcp_tuple tuple; /* as the engine sees it: local is the engine */
    struct tcp_link link;
    uint32_t irs, iss; /* irs: the peer's own; iss: the engine's, known after its SYN+ACK */
    uint32_t seq, ack; /* template values, relative */
    bool ts_on, sack_on, wscale_on;
    uint32_t ts_echo;
};

struct rig {
    struct tcp_config config;
    struct tcp_engine *engine;
    void *memory;
    uint64_t now;
    uint8_t (*frames)[RIG_FRAME_SIZE];
    uint32_t tokens[RIG_FRAMES]; /* free ones */
    uint32_t tokens_count;
    struct peer *peer; /* the one that IN and out speak of */
    struct peer first;
    struct tcp_id id; /* of the last OPEN */
    bool hold;
    uint32_t held[RIG_FRAMES];
    uint32_t held_count;
    struct tcp_segment seg; /* last packet out */
    uint8_t packet[2048];
    uint32_t packet_len;
    bool for_peer; /* the last packet was for the current peer */
    /* What events said. */
    uint32_t opens, eofs, resets, closes, sents, datas;
    uint32_t rooms;
    int reset_error, sent_error;
    uint64_t sent_cookie;
    uint64_t sent_bytes, unsent_bytes; /* of recalled sends */
    uint32_t received;                 /* bytes */
};

uint8_t rig_pattern(uint32_t at);
void rig_open(struct rig *rig, const struct tcp_config *config);
/* Ends all that is open, lets all timers run out, and checks that every pool is empty and every buffer came back. */
void rig_close(struct rig *rig);
/* Peer number `n`; its SYN offers everything. `version` 4 or 6. */
void rig_peer_init(struct rig *rig, struct peer *peer, uint32_t n, uint32_t version);
uint32_t rig_shoot(struct rig *rig, struct shot shot);
/* A raw frame, as it is. */
uint32_t rig_raw(struct rig *rig, const uint8_t *bytes, uint32_t len);
/* The next packet, or NULL. */
const struct tcp_segment *rig_out(struct rig *rig);
void rig_events(struct rig *rig);
void rig_release(struct rig *rig, uint32_t count);
void rig_advance(struct rig *rig, uint64_t ns);
/* Three-way handshake with the current peer. */
void rig_handshake(struct rig *rig);
/* Handshake, then enough segments that delayed ACKs are in force: rcv_nxt is then `rig->peer->seq`. */
void rig_established(struct rig *rig);
uint64_t rig_count(const struct rig *rig, enum tcp_counter counter);
/* Relative numbers of the last packet out. */
uint32_t rig_seq(const struct rig *rig);
uint32_t rig_ack(const struct rig *rig);
void rig_drain_out(struct rig *rig);

#define IN(...)                                                                                              \
    rig_shoot(                                                                                               \
        &rig,                                                                                                \
        (struct shot){                                                                                       \
            .seq = rig.peer->seq, .ack = rig.peer->ack, .flags = TCP_ACK, .window = 4096, __VA_ARGS__})
#define COUNT(name) rig_count(&rig, TCP_COUNTER_##name)

/* The next packet has these flags, relative sequence and ACK numbers, and length. */
#define EXPECT(flags_, seq_, ack_, len_)                                                                     \
    do {                                                                                                     \
        const struct tcp_segment *got_ = rig_out(&rig);                                                      \
        cr_assert(got_ != NULL, "no packet");                                                                \
        cr_assert(got_->flags == (flags_), "flags %#x, expected %#x", got_->flags, (flags_));                \
        cr_assert(rig_seq(&rig) == (uint32_t)(seq_), "seq %u", rig_seq(&rig));                               \
        cr_assert(rig_ack(&rig) == (uint32_t)(ack_), "ack %u", rig_ack(&rig));                               \
        cr_assert(got_->len == (uint32_t)(len_), "len %u", got_->len);                                       \
    } while (0)
#define EXPECT_ACK(ack_) EXPECT(TCP_ACK, rig.peer->ack, ack_, 0)
#define EXPECT_NONE()                                                                                        \
    cr_assert(rig_out(&rig) == NULL, "flags %#x seq %u ack %u len %u", rig.seg.flags, rig_seq(&rig),         \
              rig_ack(&rig), rig.seg.len)

#endif
