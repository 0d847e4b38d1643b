/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_xdp_hub: one worker's share of an interface: the AF_XDP sockets of its queues over one UMEM, and the TCP engine behind them. The
 * listeners of that interface on that worker (rx_xdp.c) have it together; the first opens it, the last closes it.
 *
 *   OPEN --socket of no use, nothing sent in time: lose--> LEAVING --no poll in flight: leave--> GONE --renew--> OPEN
 *
 * Invariants
 *  1. All sockets are in the same state. Frames and engine live through all of them; a frame's token is its number in the UMEM.
 *  2. A connection stays here from its first packet on: each queue belongs to one worker, and packets leave by whichever socket has room.
 *  3. The first socket's UMEM is everybody's, so it stays as long as the hub; those of queues that came later may go again.
 *  4. Nothing reads a clock here: calls between two turns use the time of the last one.
 *
 * Only for files of this folder, on the worker's thread.
 */
#ifndef RX_RX_XDP_HUB_H
#define RX_RX_XDP_HUB_H

#include <net/if.h>

#include "ring/xsk.h"
#include "rx/rx_int.h"
#include "rx/rx_xdp_busy.h"
#include "rx/rx_xdp_port.h"
#include "rx/rx_xdp_stats.h"
#include "tcp/tcp.h"

enum xdp_hub_state { XDP_HUB_OPEN, XDP_HUB_LEAVING, XDP_HUB_GONE };

struct xdp_lane {
    struct xsk xsk;
    struct rx_op poll_op; /* tells that frames have come */
    uint32_t queue;
    uint64_t seen; /* frames received when the watch looked last */
};

/* Peers that send partial checksums: each is named once, and from then on a sum each minute says that it goes on. */
#define XDP_PARTIAL_PEERS 16U
struct xdp_partial {
    struct tcp_tuple peers[XDP_PARTIAL_PEERS];
    uint32_t count;
    uint64_t told; /* segments, when the log spoke last */
    uint64_t again_ns;
};

struct xdp_hub {
    struct xdp_hub *next; /* of this thread */
    uint32_t users;
    struct uring *uring;
    struct xdp_port *port;
    char interface[IFNAMSIZ];
    struct rx_share share;
    uint64_t cover_size; /* bytes at the end of the area that each listener's kernel socket has */
    uint32_t covers;     /* of them given */
    uint8_t *area;
    uint64_t area_size; /* of the frames */
    uint32_t frames;
    uint32_t buffers_total; /* what engine and consumers may hold */
    int32_t buf_index;
    bool want_multi;
    uint32_t nic_ring;
    uint32_t mtu, mtu_opened; /* of the interface: now, and when buffers were made */
    struct tcp_engine *engine;
    void *engine_memory;
    struct xdp_lane *lanes; /* RX_QUEUES_MAX places: a socket stays where it is */
    uint32_t lane_count;
    uint32_t queues_seen;      /* of the interface, when missing sockets were looked for last */
    uint32_t unserved;         /* queues of ours that have none */
    uint64_t queues_again_ns;  /* when those are tried again */
    int icmp_fds[2];           /* IPv4, IPv6; -1: not open */
    struct rx_op icmp_op[2];   /* tells that a message has come */
    int stray_place, stray_fd; /* -1: this worker has no queue */
    struct rx_op stray_op;     /* tells that another worker has handed something over */
    uint8_t *stray_frame;      /* one, under way */
    uint32_t stray_max;        /* bytes of it */
    enum xdp_hub_state state;
    struct xdp_busy busy;
    uint64_t now_ns;   /* of the last turn */
    uint64_t kick_ns;  /* when the driver wants to be woken again; TIME_NEVER: not */
    uint64_t watch_ns; /* when the watch looks again */
    uint64_t again_ns; /* when renewing is tried again */
    bool has_more;     /* the last turn did not take all */
    bool is_owed;      /* frames came back or packets may wait since the last turn */
    struct xdp_partial partial;
    uint64_t lost, renewed, stuck, busy_stopped, too_big, moved_bytes, strayed, strays_lost;
    struct rx_xdp_stats stats;
};

/* The hub of options->interface on options->uring; the first caller's share is what is opened. Blocks. */
int xdp_hub_take(const struct rx_options *options, struct xdp_hub **out, struct err *err);
/* The caller's connections are gone. Blocks, for the last. */
void xdp_hub_give(struct xdp_hub *hub);
/* The piece of the area for one listener's kernel socket, as an offset into the arena. */
uint64_t xdp_hub_cover_take(struct xdp_hub *hub);
/* Does every received byte get here by a copy of the kernel's? */
bool xdp_hub_copies(const struct xdp_hub *hub);
/* From here on frames come: the queues' sockets are told to the program. Any number of times. */
int xdp_hub_steer(struct xdp_hub *hub, struct err *err);

/* Takes what has come and runs what is due. */
void xdp_hub_turn(struct xdp_hub *hub, uint64_t now_ns);
/* Gives frames back and sends. After the events were taken. */
void xdp_hub_flush(struct xdp_hub *hub);
uint64_t xdp_hub_deadline(const struct xdp_hub *hub);

#endif
