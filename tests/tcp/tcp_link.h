/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_link: two engines and a simulated link between them, on a virtual clock. A client connects, sends a known pattern and shuts
 * down; the server checks every byte, answers with a pattern of its own, and both close. A run ends when both are idle, or at
 * the ceiling on virtual time.
 */
#ifndef TESTS_TCP_LINK_H
#define TESTS_TCP_LINK_H

#include "base/clock.h"
#include "base/rng.h"
#include "tcp/tcp.h"

/* What the link does; per direction. All zero: a perfect link without delay. */
struct link_options {
    uint64_t delay_ns;
    uint64_t jitter_ns;   /* uniform extra delay of each packet: also reorders */
    uint64_t ns_per_byte; /* rate */
    uint64_t queue_ns;    /* packets that would wait longer are dropped; 0: none */
    uint64_t loss_mask;   /* bit i: of 64 packets from the client, lose the i-th */
    uint32_t loss_ppm, dup_ppm, corrupt_ppm;
    uint32_t mark_ppm;         /* congestion marks on ECN capable packets */
    uint32_t mtu_silent;       /* larger IP packets vanish without a word; 0: none */
    uint64_t consumer_ns;      /* how long the server's consumer keeps each buffer */
    uint32_t conn_frames_max;  /* of the server; 0: default */
    uint32_t upload, response; /* bytes */
    uint32_t version;          /* 4 or 6; 0: 4 */
    bool no_sack, no_timestamps;
    uint64_t seed;
    uint64_t ceiling_ns; /* of virtual time */
};

struct link_result {
    bool complete;    /* all bytes both ways, both ends closed in order, nothing leaked */
    uint64_t took_ns; /* until the client had the whole response */
    uint64_t packets, lost;
    uint32_t got_upload, got_response;
    uint64_t retransmitted; /* bytes, client */
    uint64_t timeouts;      /* client */
    uint64_t acks;          /* server's pure ACKs */
    int error;
};

void link_run(const struct link_options *options, struct link_result *result);

#endif
