/* SPDX-License-Identifier: Apache-2.0 */
/* peer: the table. Removal closes gaps by moving later entries of the run back, so there are no tombstones. */
#include "server/peer.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static void peer_address(const struct sockaddr_storage *from, uint8_t out[16])
{
    memset(out, 0, 16);
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)from;
        out[10] = 0xff;
        out[11] = 0xff;
        memcpy(out + 12, &in->sin_addr, 4);
    } else if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)from;
        bool is_mapped = IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr);
        memcpy(out, &in6->sin6_addr, is_mapped ? 16 : 8);
    }
}

static uint32_t peer_home(const struct peers *peers, const uint8_t address[16])
{
    /* FNV-1a: short keys, and a flood of peers is bounded by connections */
    uint64_t hash = 14695981039346656037ULL;
    for (int i = 0; i < 16; i++) {
        hash = (hash ^ address[i]) * 1099511628211ULL;
    }
    return (uint32_t)(hash ^ hash >> 32) & (peers->count - 1);
}

int peers_open(struct peers *peers, uint32_t connections_max)
{
    uint32_t count = 16;
    while (count < 2 * (uint64_t)connections_max && count < 1U << 30) {
        count *= 2;
    }
    peers->places = calloc(count, sizeof(*peers->places));
    peers->count = count;
    return peers->places == NULL ? -ENOMEM : 0;
}

void peers_close(struct peers *peers)
{
    free(peers->places);
    memset(peers, 0, sizeof(*peers));
}

/* The place of an address, or the free place where it belongs. */
static uint32_t peer_place(const struct peers *peers, const uint8_t address[16])
{
    uint32_t place = peer_home(peers, address);
    for (uint32_t i = 0; i < peers->count; i++) {
        const struct peer *peer = &peers->places[place];
        if (peer->connections == 0 || memcmp(peer->address, address, 16) == 0) {
            return place;
        }
        place = (place + 1) & (peers->count - 1);
    }
    CHECK(peers->count == 0); /* The table is at most half full. */
    return 0;
}

struct peer *peers_take(struct peers *peers, const struct sockaddr_storage *address)
{
    uint8_t key[16];
    peer_address(address, key);
    struct peer *peer = &peers->places[peer_place(peers, key)];
    if (peer->connections == 0) {
        memcpy(peer->address, key, sizeof(key));
        peer->uploads = 0;
    }
    peer->connections++;
    return peer;
}

struct peer *peers_find(struct peers *peers, const struct sockaddr_storage *address)
{
    uint8_t key[16];
    peer_address(address, key);
    struct peer *peer = &peers->places[peer_place(peers, key)];
    CHECK(peer->connections > 0);
    return peer;
}

static void peer_remove(struct peers *peers, uint32_t hole)
{
    uint32_t mask = peers->count - 1;
    uint32_t place = (hole + 1) & mask;
    for (; peers->places[place].connections != 0; place = (place + 1) & mask) {
        uint32_t home = peer_home(peers, peers->places[place].address);
        /* An entry may fill the hole unless its home lies between the hole and itself. */
        if (((place - home) & mask) >= ((place - hole) & mask)) {
            peers->places[hole] = peers->places[place];
            hole = place;
        }
    }
    memset(&peers->places[hole], 0, sizeof(peers->places[hole]));
}

void peers_release(struct peers *peers, const struct sockaddr_storage *address)
{
    struct peer *peer = peers_find(peers, address);
    peer->connections--;
    if (peer->connections == 0) {
        CHECK(peer->uploads == 0);
        peer_remove(peers, (uint32_t)(peer - peers->places));
    }
}
