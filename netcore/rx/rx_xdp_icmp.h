/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_xdp_icmp: reads ICMP and ICMPv6 "too big" messages, which the XDP program leaves to the kernel and the kernel shows to raw sockets.
 * Pure. What a message says is a stranger's claim: the engine believes it only if it quotes what is in flight.
 */
#ifndef RX_RX_XDP_ICMP_H
#define RX_RX_XDP_ICMP_H

#include <stdbool.h>
#include <stdint.h>

#include "tcp/tcp_wire.h"

struct xdp_too_big {
    struct tcp_tuple tuple; /* as the engine names the connection: local is who had sent the quoted packet */
    uint32_t seq;
    uint32_t mtu; /* 0: a router that does not say (RFC 792); the caller guesses */
};

/* A message as a raw IPv4 socket gives it, IP header first. False: it is none, or too short. */
bool xdp_too_big_read4(const uint8_t *from, uint32_t len, struct xdp_too_big *out);
/* A message as a raw ICMPv6 socket gives it, without IP header. */
bool xdp_too_big_read6(const uint8_t *from, uint32_t len, struct xdp_too_big *out);

#endif
