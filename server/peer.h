/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer: how many connections and uploads each remote address has on this worker, for the per-peer limits.
 *
 * A fixed open-addressing table with as many places as the worker has connections (twice, so that probing stays short);
 * an address that has no connection has no entry. Owns only the table. IPv6 addresses count by their /64: one customer
 * has many addresses.
 */
#ifndef SERVER_PEER_H
#define SERVER_PEER_H

#include <stdint.h>
#include <sys/socket.h>

struct peer {
    uint8_t address[16];  /* IPv4 as ::ffff:a.b.c.d; IPv6 with the lower half zeroed */
    uint32_t connections; /* 0: a free place */
    uint32_t uploads;
};

struct peers {
    struct peer *places;
    uint32_t count; /* power of two */
};

/* For at most `connections_max` connections. 0 or -ENOMEM. */
int peers_open(struct peers *peers, uint32_t connections_max);
void peers_close(struct peers *peers);

/* Counts a connection and returns the peer's entry, which stays valid until peers_release; never NULL. `place` is what to
 * keep: entries move when others are removed, so find them by peers_find. */
struct peer *peers_take(struct peers *peers, const struct sockaddr_storage *address);
struct peer *peers_find(struct peers *peers, const struct sockaddr_storage *address);
void peers_release(struct peers *peers, const struct sockaddr_storage *address);

#endif
