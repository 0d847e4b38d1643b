/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_sim: a receive backend without sockets, for tests. A test plays the peers: it connects, sends fragments, FIN or RST,
 * and looks at what came back. Every fragment is memory of its own, so a use after release or a leak shows under a
 * sanitizer; rx_close checks that every slice was released. Goes through rx_check.c like any other backend.
 */
#ifndef TESTS_LIB_RX_SIM_H
#define TESTS_LIB_RX_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rx/rx.h"

extern const struct rx_ops rx_sim_ops;

struct sim_peer; /* one connection, seen from outside; valid until rx_close of the instance */

/* Connects from 192.0.2.`host`. */
struct sim_peer *sim_connect(struct rx *rx, uint8_t host);
/* Queues bytes as one fragment. */
void sim_send(struct sim_peer *peer, const void *bytes, size_t len);
void sim_send_text(struct sim_peer *peer, const char *text);
void sim_fin(struct sim_peer *peer);
void sim_reset(struct sim_peer *peer);
/* The same of a peer whose recalled sends wait for room, and which has made some: both are told by one rx_poll. */
void sim_reset_with_room(struct sim_peer *peer);
/* A peer that reads nothing: sends of the server stay in flight until it reads again. */
void sim_read_stop(struct sim_peer *peer, bool is_stopped);
/* Its TCP acknowledges bytes of a send that stays in flight: a slow reader in front of a large socket buffer. */
void sim_ack(struct sim_peer *peer, uint64_t bytes);

/* What the server has sent so far; borrowed, NUL-terminated. */
const char *sim_received(const struct sim_peer *peer, size_t *len);
/* Fragments that were not delivered yet. */
size_t sim_undelivered(const struct sim_peer *peer);
bool sim_got_fin(const struct sim_peer *peer);   /* shutdown or close in good order */
bool sim_got_reset(const struct sim_peer *peer); /* closed abortively */
bool sim_is_closed(const struct sim_peer *peer);
/* Slices that the server holds. */
uint64_t sim_slices_out(const struct rx *rx);
/* What rx->stats.buffers_free says, of buffers_total 64; the backend does not care. */
void sim_buffers_free(struct rx *rx, uint64_t count);

#endif
