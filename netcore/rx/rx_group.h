/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_group: what the zcrx instances of one listener, one per worker and NIC queue, share. A connection belongs to the worker
 * of the queue on which its packets arrive. Where they arrive on another's,
 *   - before the first read the accepted descriptor is handed to that worker (rx_group_hand);
 *   - in the middle of a stream it stays and receives from the other queue's area, imported into its own ring; the buffers
 *     go home through the owner's inbox (ring/zcrx_area, "borrowing").
 *
 * A member's inbox is an mpsc queue: any worker pushes, the member takes. Nodes are the sender's memory and carry a flag that
 * the receiver clears when it is done with them; nothing is allocated while a node runs.
 *
 * Life: rx_group_open; members join while their workers open, one after the other; rx_group_start when all have; members
 * leave together (rx_group_leave waits for each other), because each may hold buffers of all. Before rx_group_start nothing
 * is handed or borrowed, so that a start that fails half way waits for nobody.
 */
#ifndef RX_RX_GROUP_H
#define RX_RX_GROUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/err.h"
#include "base/mpsc.h"
#include "ring/zcrx_area.h"

#define RX_GROUP_HANDS 32U  /* descriptors under way from one member */
#define RX_GROUP_NAPIS 512U /* queues of a NIC that are told apart */
#define RX_GROUP_NOBODY (-1)
#define RX_GROUP_UNKNOWN (-2)

enum rx_group_kind { RX_GROUP_RETURN, RX_GROUP_HAND };

/* Every node of an inbox begins with this. */
struct rx_group_message {
    struct mpsc_node node;
    enum rx_group_kind kind;
};

/* An accepted connection on its way to another worker. */
struct rx_group_hand {
    struct rx_group_message message;
    _Atomic bool is_busy; /* the receiver clears it */
    int fd;
    struct sockaddr_storage peer;
    struct sockaddr_storage local;
};

struct rx_group_member {
    struct mpsc inbox;
    uint32_t queue;
    _Atomic bool has_joined;
    struct zcrx_lender lender; /* valid once it has joined */
    struct rx_group_hand hands[RX_GROUP_HANDS];
};

struct rx_group;

/* 0 or -errno. `queues`: that of each member. */
int rx_group_open(struct rx_group **out, const uint32_t *queues, uint32_t member_count, struct err *err);
/* All members have left or never joined. NULL is allowed. */
void rx_group_close(struct rx_group *group);

/* A NAPI instance behind one of the NIC's queues; member RX_GROUP_NOBODY for a queue that is nobody's here. */
struct rx_group_napi {
    uint32_t id; /* 0: not reported, left out */
    int member;
};

/* Replaces the table of NAPI instances. One thread at a time, also while the group runs: NICs give their queues other instances
 * when they are set down and up or their channels change. Who looks meanwhile finds the old or the new one, or none, which a
 * receive from the wrong area corrects later. True: it differs from what it was. */
bool rx_group_napis_set(struct rx_group *group, const struct rx_group_napi *napis, uint32_t count,
                        uint64_t now_ns);
/* Is the NIC to be asked again? Yes when something happened to it (`is_suspect`), or a socket came with an instance that the table
 * does not have. Connections over other interfaces bring such instances too, so that looks which find nothing new come ever more
 * seldom, from one second to a minute. The thread of rx_group_napis_set, every few seconds. */
bool rx_group_napis_are_due(struct rx_group *group, uint64_t now_ns, bool is_suspect);
/* Handing and borrowing begin. False, and they do not: some member has not joined (it took another path). */
bool rx_group_start(struct rx_group *group);
bool rx_group_is_started(const struct rx_group *group);

uint32_t rx_group_member_count(const struct rx_group *group);
struct rx_group_member *rx_group_member(struct rx_group *group, uint32_t index);
/* Who serves the queue on which this socket's latest packet arrived: a member, RX_GROUP_NOBODY or RX_GROUP_UNKNOWN. */
int rx_group_member_of_socket(struct rx_group *group, int fd);
/* The same for an instance that is known, for rx_group_member_of_socket and tests. */
int rx_group_member_of_napi(struct rx_group *group, uint32_t id);

/* Makes the kernel choose the listening socket of the group by the queue of the SYN; where it cannot, it spreads connections
 * by hash, and they are handed. 0 or -errno. */
int rx_group_select(const struct rx_group *group, int listen_fd);

/* Gives a connection to another member. False: all nodes are under way, and the caller keeps it. */
bool rx_group_hand(struct rx_group *group, uint32_t from, uint32_t to, int fd,
                   const struct sockaddr_storage *peer, const struct sockaddr_storage *local);

/* Waits until every member has come here, calling `turn` meanwhile so that what others still need of this one goes on; before
 * and after the last of them came. Does nothing if the group was never started. Nothing may be pushed by this member after
 * it, and its inbox is empty. */
void rx_group_leave(struct rx_group *group, uint32_t member, void (*turn)(void *ctx), void *ctx);

#endif
