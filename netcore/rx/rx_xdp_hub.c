/* SPDX-License-Identifier: Apache-2.0 */
/* rx_xdp_hub: the sockets and the engine of one worker on one interface. See the header. */
#include "rx/rx_xdp_hub.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/icmp.h>
#include <netinet/icmp6.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "rx/rx_xdp_gather.h"
#include "rx/rx_xdp_icmp.h"

#define RECEIVE_BATCH 64U
#define RECEIVE_BATCHES_MAX 8U /* of one socket and turn */
#define SEND_MAX 512U          /* packets of one turn */
#define STRAYS_TURN_MAX 256U   /* handed over by other workers, of one turn */
#define CACHE_LINE 64U
#define ICMP_MAX 16U    /* messages of one turn */
#define ICMP_BYTES 256U /* of a message are enough: it quotes headers */
#define FRAMES_MIN 64U
#define COVER_BUFFER 4096U
#define COVER_BUFFERS_MIN 8U
#define BIND_PATIENCE_MS 2000U
#define KICK_AGAIN_NS NS_PER_MS         /* the driver was busy, or asks for a wake-up per batch */
#define LINK_AGAIN_NS (100 * NS_PER_MS) /* the link is being reset */
#define RENEW_AGAIN_NS (50 * NS_PER_MS) /* the old socket is being torn down, or the interface is not there */
#define QUEUES_AGAIN_NS NS_PER_S        /* a queue got no socket: what had it may go */
#define WATCH_BUSY_NS (200 * NS_PER_MS) /* while there are connections */
#define WATCH_IDLE_NS NS_PER_S
#define SEND_DEADLINE_NS (10 * NS_PER_S) /* nothing sent has come back for so long: the sockets are renewed */
#define PARTIAL_AGAIN_NS (60 * NS_PER_S)
#define CLOSE_WAIT_NS (100 * NS_PER_MS)
#define CLOSE_WAITS_MAX 100

static __thread struct xdp_hub *hubs; /* of this worker */

/* ---- receiving ------------------------------------------------------------------------------------------------------- */

/* Any socket of the hub: frames are of all. NULL: this worker has no queue. */
static struct xsk *pool_of(struct xdp_hub *hub)
{
    return hub->lane_count > 0 ? &hub->lanes[0].xsk : NULL;
}

/* Frames come back from the engine. They go to the fill rings with the next refill. */
static void give_back(struct xdp_hub *hub)
{
    uint32_t tokens[RECEIVE_BATCH];
    uint32_t count;
    do { /* Ends: each is one of a bounded number of frames. */
        count = tcp_frames_take(hub->engine, tokens, RECEIVE_BATCH);
        for (uint32_t i = 0; i < count; i++) {
            xsk_give(pool_of(hub), tokens[i]);
        }
    } while (count == RECEIVE_BATCH);
    for (uint32_t i = 0; i < hub->lane_count && hub->state == XDP_HUB_OPEN; i++) {
        xsk_refill(&hub->lanes[i].xsk);
    }
}

/* ---- strays ---- */

/* Hands a segment on to the next worker. */
static void stray_pass(struct xdp_hub *hub, uint32_t len, uint32_t hops)
{
    struct xdp_stray stray = {.len = len, .hops = hops, .frame = hub->stray_frame};
    if (xdp_port_stray_pass(hub->port, hub->stray_place, &stray)) {
        hub->strayed++;
    } else {
        hub->strays_lost++; /* It is sent again. */
    }
}

static void stray_copy(struct xdp_hub *hub, const struct tcp_part *parts, uint32_t count)
{
    uint32_t len = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].len > hub->stray_max - len) {
            hub->strays_lost++;
            return;
        }
        memcpy(hub->stray_frame + len, parts[i].addr, parts[i].len);
        len += parts[i].len;
    }
    stray_pass(hub, len, 1);
}

/* Lays a frame that another worker handed over into buffers of this one, aligned as received ones are. 0: none is free. */
static uint32_t stray_lay(struct xdp_hub *hub, const uint8_t *frame, uint32_t len, struct tcp_part *parts)
{
    uint32_t count = 0;
    for (uint32_t done = 0; done < len && count < TCP_PARTS_MAX; count++) {
        uint32_t skip = count == 0 ? 256U + XSK_HEADROOM : 0;
        uint32_t piece = len - done < XSK_CHUNK_DEFAULT - skip ? len - done : XSK_CHUNK_DEFAULT - skip;
        uint32_t token;
        uint8_t *place = xsk_hold(pool_of(hub), &token);
        if (place == NULL) {
            for (uint32_t i = 0; i < count; i++) {
                xsk_give(pool_of(hub), parts[i].token);
            }
            return 0;
        }
        memcpy(place + skip, frame + done, piece);
        parts[count] = (struct tcp_part){.addr = place + skip, .len = piece, .token = token};
        done += piece;
    }
    return count;
}

static void receive_strays(struct xdp_hub *hub)
{
    struct xdp_stray stray = {.frame = hub->stray_frame};
    for (uint32_t i = 0; i < STRAYS_TURN_MAX && xdp_port_stray_take(hub->port, hub->stray_place, &stray);
         i++) {
        struct tcp_part parts[TCP_PARTS_MAX];
        uint32_t count = stray_lay(hub, stray.frame, stray.len, parts);
        bool is_last = stray.hops + 1 >= xdp_port_strays_count(hub->port);
        bool is_stray = false;
        uint32_t held = 0;
        if (count == 0) {
            hub->strays_lost++;
        } else if (is_last) {
            held = tcp_input(hub->engine, hub->now_ns, parts, count);
        } else {
            held = tcp_input_or_stray(hub->engine, hub->now_ns, parts, count, &is_stray);
        }
        for (uint32_t k = 0; k < count; k++) {
            if ((held >> k & 1U) == 0) {
                xsk_give(pool_of(hub), parts[k].token);
            }
        }
        if (is_stray) {
            stray_pass(hub, stray.len, stray.hops + 1);
        }
    }
}

static int strays_open(struct xdp_hub *hub, uint32_t mtu, struct err *err)
{
    if (hub->lane_count == 0) {
        return 0; /* Nothing arrives here. */
    }
    hub->stray_max = bytes_round_up(mtu + 22U, 64); /* Ethernet with two tags */
    hub->stray_frame = malloc(hub->stray_max);
    if (hub->stray_frame == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    int place = xdp_port_strays_open(hub->port, hub->stray_max, &hub->stray_fd);
    if (place < 0) {
        free(hub->stray_frame); /* This may be tried again. */
        hub->stray_frame = NULL;
        return err_set(err, place, "af_xdp on %s: no place for another worker: %s", hub->interface,
                       err_text(place));
    }
    hub->stray_place = place;
    return 0;
}

/* The kernel wrote the frame on another CPU, and its checksum is the first to read it: without this each line is waited for. */
static void part_prefetch(const struct xsk_part *part)
{
    for (uint32_t at = 0; at < part->len; at += CACHE_LINE) {
        __builtin_prefetch(part->addr + at);
    }
}

/* One packet of `count` parts. What the engine does not hold goes back. */
static void take_packet(struct xdp_hub *hub, struct xsk *xsk, const struct xsk_part *parts, uint32_t count)
{
    struct tcp_part in[TCP_PARTS_MAX];
    uint32_t held = 0;
    if (count <= TCP_PARTS_MAX) {
        for (uint32_t i = 0; i < count; i++) {
            in[i] = (struct tcp_part){.addr = parts[i].addr, .len = parts[i].len, .token = parts[i].frame};
        }
        uint32_t left = count > 1 ? xdp_gather(in, count, hub->area, &hub->moved_bytes) : count;
        bool is_stray = false;
        if (xdp_port_strays_count(hub->port) > 1) {
            held = tcp_input_or_stray(hub->engine, hub->now_ns, in, left, &is_stray);
        } else {
            held = tcp_input(hub->engine, hub->now_ns, in, left);
        }
        if (is_stray) {
            stray_copy(hub, in, left);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (i >= TCP_PARTS_MAX || (held >> i & 1U) == 0) {
            xsk_give(xsk, parts[i].frame);
        }
    }
}

static void receive_lane(struct xdp_hub *hub, struct xdp_lane *lane)
{
    struct xsk_part parts[RECEIVE_BATCH];
    uint32_t count = 0;
    for (uint32_t batch = 0; batch < RECEIVE_BATCHES_MAX; batch++) {
        count = xsk_receive(&lane->xsk, parts, RECEIVE_BATCH);
        for (uint32_t first = 0, i = 0; i < count; i++) {
            if (i + 1 < count) {
                part_prefetch(&parts[i + 1]);
            }
            if (!parts[i].more || i + 1 == count) {
                take_packet(hub, &lane->xsk, parts + first, i + 1 - first);
                first = i + 1;
            }
        }
        give_back(hub);
        if (count < RECEIVE_BATCH / 2) {
            break;
        }
    }
    hub->has_more |= count >= RECEIVE_BATCH / 2;
}

/* ---- ICMP ------------------------------------------------------------------------------------------------------------ */

/* RFC 1191 section 5: a router that does not say its MTU is taken to have one that every path has. */
#define MTU_UNSAID 576U

static void receive_icmp(struct xdp_hub *hub, uint32_t which)
{
    for (uint32_t i = 0; i < ICMP_MAX && hub->icmp_fds[which] >= 0; i++) {
        uint8_t message[ICMP_BYTES];
        struct xdp_too_big said;
        ssize_t len = recv(hub->icmp_fds[which], message, sizeof(message), MSG_DONTWAIT);
        if (len <= 0) {
            return; /* -EAGAIN, or an error of the path that is told once and is nothing to us */
        }
        bool is_one = which == 0 ? xdp_too_big_read4(message, (uint32_t)len, &said)
                                 : xdp_too_big_read6(message, (uint32_t)len, &said);
        if (is_one) {
            hub->too_big++;
            (void)tcp_too_big(hub->engine, &said.tuple, said.seq, said.mtu == 0 ? MTU_UNSAID : said.mtu);
        }
    }
}

/* Raw sockets that see nothing but what may be "too big". Without them black holes are still found, by timeouts. */
static void icmp_open(struct xdp_hub *hub)
{
    struct icmp_filter filter4 = {.data = ~(1U << ICMP_DEST_UNREACH)};
    struct icmp6_filter filter6;
    ICMP6_FILTER_SETBLOCKALL(&filter6);
    ICMP6_FILTER_SETPASS(ICMP6_PACKET_TOO_BIG, &filter6);
    hub->icmp_fds[0] = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_ICMP);
    hub->icmp_fds[1] = socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_ICMPV6);
    bool is_set = hub->icmp_fds[0] >= 0 &&
                  setsockopt(hub->icmp_fds[0], SOL_RAW, ICMP_FILTER, &filter4, sizeof(filter4)) == 0 &&
                  (hub->icmp_fds[1] < 0 || setsockopt(hub->icmp_fds[1], IPPROTO_ICMPV6, ICMP6_FILTER,
                                                      &filter6, sizeof(filter6)) == 0);
    if (!is_set) {
        LOG_WRN("xdp_no_icmp", "interface=%s error=%s note=%s", hub->interface, LOG_Q(err_text(-errno)),
                LOG_Q("ICMP too-big is not seen; a smaller path MTU is found by timeouts only"));
    }
}

/* ---- the ring's polls ------------------------------------------------------------------------------------------------ */

static void poll_done(struct rx_op *op, const struct io_uring_cqe *cqe)
{
    op->res = cqe->res;
    op->in_flight = false; /* The next turn looks whatever this says. */
}

static void poll_arm(struct xdp_hub *hub, struct rx_op *op, int fd)
{
    if (fd >= 0 && !op->in_flight) {
        struct io_uring_sqe *sqe = uring_sqe(hub->uring);
        io_uring_prep_poll_add(sqe, fd, POLLIN);
        uring_sqe_bind(sqe, URING_CLASS_RX, op);
        op->in_flight = true;
    }
}

static void poll_cancel(struct xdp_hub *hub, struct rx_op *op)
{
    if (op->in_flight) {
        struct io_uring_sqe *sqe = uring_sqe(hub->uring);
        io_uring_prep_cancel64(sqe, (uint64_t)(uintptr_t)op | URING_CLASS_RX, 0);
        uring_sqe_bind(sqe, URING_CLASS_NONE, NULL);
    }
}

static bool polls_in_flight(const struct xdp_hub *hub)
{
    for (uint32_t i = 0; i < hub->lane_count; i++) {
        if (hub->lanes[i].poll_op.in_flight) {
            return true;
        }
    }
    return false;
}

static void polls_arm(struct xdp_hub *hub)
{
    for (uint32_t i = 0; i < hub->lane_count && hub->state == XDP_HUB_OPEN; i++) {
        if (!xdp_busy_is_asking(&hub->busy, hub->now_ns)) { /* else the worker does not sleep */
            poll_arm(hub, &hub->lanes[i].poll_op, hub->lanes[i].xsk.fd);
        }
    }
    poll_arm(hub, &hub->icmp_op[0], hub->icmp_fds[0]);
    poll_arm(hub, &hub->icmp_op[1], hub->icmp_fds[1]);
    poll_arm(hub, &hub->stray_op, hub->stray_fd);
}

/* ---- losing and renewing ---------------------------------------------------------------------------------------------- */

static void lose(struct xdp_hub *hub, const char *why)
{
    if (hub->state != XDP_HUB_OPEN) {
        return;
    }
    LOG_WRN("xdp_lost", "interface=%s queue=%u why=%s", hub->interface, hub->lanes[0].queue, LOG_Q(why));
    hub->lost++;
    hub->state = XDP_HUB_LEAVING;
    for (uint32_t i = 0; i < hub->lane_count; i++) {
        /* It may be gone from the map already. From here on frames are dropped, and sent again by the peers. */
        (void)xsk_program_socket_clear(xdp_port_program(hub->port), hub->lanes[i].queue);
        poll_cancel(hub, &hub->lanes[i].poll_op);
    }
}

static void lanes_drop(struct xdp_hub *hub, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;) { /* the base last */
        xsk_drop(&hub->lanes[i].xsk);
    }
}

static struct xsk_options lane_options(struct xdp_hub *hub, uint32_t index, uint32_t patience_ms)
{
    return (struct xsk_options){.interface = hub->interface,
                                .queue = hub->lanes[index].queue,
                                .area = hub->area,
                                .area_size = hub->area_size,
                                .nic_ring = hub->nic_ring,
                                .sockets = hub->lane_count,
                                .place = (uint8_t)index,
                                .base = index == 0 ? NULL : &hub->lanes[0].xsk,
                                .is_generic = xsk_program_is_generic(xdp_port_program(hub->port)),
                                .want_multi = hub->want_multi,
                                .patience_ms = patience_ms};
}

static int lane_steer(struct xdp_hub *hub, const struct xdp_lane *lane)
{
    return xsk_program_socket_set(xdp_port_program(hub->port), lane->queue, lane->xsk.fd);
}

/* Sums over sockets must not shrink when one goes. */
static void stats_move(const struct xsk_stats *from, struct xsk_stats *to)
{
    _Static_assert(sizeof(*from) % sizeof(uint64_t) == 0, "counters only");
    const uint64_t *more = (const uint64_t *)(const void *)from;
    uint64_t *sums = (uint64_t *)(void *)to;
    for (size_t i = 0; i < sizeof(*from) / sizeof(uint64_t); i++) {
        sums[i] += more[i];
    }
}

static void shares_set(struct xdp_hub *hub, uint32_t sockets)
{
    for (uint32_t i = 0; i < hub->lane_count; i++) {
        xsk_share(&hub->lanes[i].xsk, sockets);
    }
}

/* The interface came back with fewer queues: sockets of those that it lacks go, but for the first, which waits for its own. */
static void lanes_cut(struct xdp_hub *hub)
{
    uint32_t queues = xdp_interface_queues(hub->interface);
    for (uint32_t i = hub->lane_count; queues > 0 && hub->share.queue_step > 0 && i-- > 1;) {
        if (hub->lanes[i].queue < queues) {
            break; /* They are in order. */
        }
        (void)xsk_frames_reclaim(hub->lanes[i].xsk.pool, hub->lanes[i].xsk.place); /* Its queue is no more. */
        xsk_close(&hub->lanes[i].xsk);
        stats_move(&hub->lanes[i].xsk.stats, &hub->lanes[0].xsk.stats);
        hub->lane_count = i;
    }
    shares_set(hub, hub->lane_count); /* What the others had is shared by those that are left. */
    hub->queues_seen = 0;             /* There may be other ones. */
}

static void renew(struct xdp_hub *hub)
{
    struct err err = {""};
    uint32_t done = 0;
    int rc = 0;
    if (hub->now_ns < hub->again_ns) {
        return;
    }
    hub->again_ns = hub->now_ns + RENEW_AGAIN_NS;
    if (!xdp_port_watch(hub->port, hub->now_ns)) {
        return; /* No interface, or none that takes the program: it says so. */
    }
    lanes_cut(hub);
    for (; rc == 0 && done < hub->lane_count; done++) {
        struct xsk_options options = lane_options(hub, done, 0);
        rc = xsk_renew(&hub->lanes[done].xsk, &options, &err);
        if (rc == 0) {
            rc = lane_steer(hub, &hub->lanes[done]);
        } else {
            break;
        }
    }
    if (rc < 0) {
        lanes_drop(hub, done);
        if (rc != -EBUSY && rc != -ENODEV && rc != -ENETDOWN) { /* else it only takes its time */
            LOG_ERR("xdp_not_renewed", "interface=%s error=%s", hub->interface, LOG_Q(err.text));
        }
        return;
    }
    hub->state = XDP_HUB_OPEN;
    xdp_busy_forget(&hub->busy);
    hub->renewed++;
    LOG_WRN("xdp_renewed", "interface=%s queues=%u mode=%s connections=%u", hub->interface, hub->lane_count,
            LOG_Q(xsk_mode_text(hub->lanes[0].xsk.mode)), tcp_stats(hub->engine)->conns_used);
}

/* ---- queues that come later ------------------------------------------------------------------------------------------- */

static void lane_init(struct xdp_hub *hub, struct xdp_lane *lane, uint32_t queue)
{
    memset(lane, 0, sizeof(*lane));
    lane->queue = queue;
    lane->xsk.fd = -1;
    lane->poll_op = (struct rx_op){.done = poll_done, .instance = hub};
    list_init(&lane->poll_op.node);
}

static void lane_tell(const struct xdp_hub *hub, const struct xdp_lane *lane, const char *event)
{
    /* Said once: those that share its frames take its mode. */
    const char *refused = hub->lanes[0].xsk.refused;
    char why[544] = "";
    if (refused[0] != '\0' && lane == &hub->lanes[0]) {
        (void)snprintf(why, sizeof(why), " why=%s", LOG_Q(refused));
    }
    if (lane->xsk.mode == XSK_MODE_GENERIC) {
        LOG_WRN(event, "interface=%s queue=%u mode=%s%s note=%s", hub->interface, lane->queue,
                LOG_Q(xsk_mode_text(lane->xsk.mode)), why,
                LOG_Q("the driver runs no XDP: slower than receive: socket, for trials only"));
        return;
    }
    LOG_INF(event, "interface=%s queue=%u mode=%s%s", hub->interface, lane->queue,
            LOG_Q(xsk_mode_text(lane->xsk.mode)), why);
}

static bool has_lane(const struct xdp_hub *hub, uint32_t queue)
{
    for (uint32_t i = 0; i < hub->lane_count; i++) {
        if (hub->lanes[i].queue == queue) {
            return true;
        }
    }
    return false;
}

/* A socket for one more queue, over the frames that there are. 0 or a negative code, and then all is as before. */
static int lane_add(struct xdp_hub *hub, uint32_t queue, struct err *err)
{
    uint32_t at = hub->lane_count;
    if (at == RX_QUEUES_MAX) {
        return err_set(err, -ENOSPC, "a worker has %u queues at most", RX_QUEUES_MAX);
    }
    struct xdp_lane *lane = &hub->lanes[at];
    lane_init(hub, lane, queue);
    hub->lane_count = at + 1; /* whose quota the options are for */
    struct xsk_options options = lane_options(hub, at, 0);
    int rc = xsk_open(&lane->xsk, &options, err);
    hub->lane_count = at;
    if (rc < 0) {
        return rc;
    }
    rc = lane_steer(hub, lane);
    rc = rc == 0 && xdp_busy_is_asking(&hub->busy, hub->now_ns)
             ? xsk_busy_set(&lane->xsk, true, RECEIVE_BATCH)
             : rc;
    rc = rc < 0 ? err_set(err, rc, "%s", err_text(rc)) : 0;
    hub->lane_count = rc == 0 ? at + 1 : at;
    rc = rc == 0 && hub->stray_fd < 0 ? strays_open(hub, hub->mtu_opened, err) : rc;
    if (rc < 0) {
        hub->lane_count = at;
        (void)xsk_program_socket_clear(xdp_port_program(hub->port), queue);
        xsk_close(&lane->xsk);
        return rc;
    }
    shares_set(hub, at + 1);
    return 0;
}

/* Sockets for our queues that have none, in their order, which lanes_cut relies on: the first that gets none ends it, and it and those
 * behind it are not served. */
static void lanes_add(struct xdp_hub *hub, uint32_t queues, bool is_told)
{
    hub->unserved = 0;
    for (uint32_t queue = hub->share.queue_first; queue < queues; queue += hub->share.queue_step) {
        struct err err = {""};
        if (has_lane(hub, queue)) {
            continue;
        }
        if (hub->unserved == 0 && lane_add(hub, queue, &err) == 0) {
            lane_tell(hub, &hub->lanes[hub->lane_count - 1], "xdp_queue_added");
            continue;
        }
        if (is_told && hub->unserved == 0) {
            LOG_ERR("xdp_queue_unserved", "interface=%s queue=%u error=%s remedy=%s", hub->interface, queue,
                    LOG_Q(err.text),
                    LOG_Q("connections that the NIC puts there get no answer, nor those on later queues of "
                          "this worker; it is tried again; else start the node again, or take the queue "
                          "away (ethtool -L)"));
        }
        hub->unserved++;
    }
}

/* A fill ring gives nothing back but by packets that arrive, so the sockets from `first` on may have found too few frames, or none, while
 * those before them have more than their quotas. Renewed sockets keep to those. If nobody has too many, frames come as the engine gives
 * them back. */
static void lanes_spread(struct xdp_hub *hub, uint32_t first)
{
    bool is_short = false;
    bool is_over = false;
    for (uint32_t i = 0; i < hub->lane_count; i++) {
        const struct xsk *xsk = &hub->lanes[i].xsk;
        is_short |= i >= first && xsk_is_short(xsk, hub->nic_ring > 0 ? hub->nic_ring : RECEIVE_BATCH);
        is_over |= xsk_is_over(xsk);
    }
    if (is_short && is_over) {
        lose(hub, "frames are shared out anew, among more queues");
    }
}

/* Queues of ours that the interface has got since (ethtool -L). While some have no socket it is tried again, which the log tells once for
 * each number of queues. */
static void queues_follow(struct xdp_hub *hub)
{
    if (hub->share.queue_step == 0 || hub->state != XDP_HUB_OPEN) {
        return;
    }
    uint32_t queues = xdp_interface_queues(hub->interface);
    bool is_due = hub->unserved > 0 && hub->now_ns >= hub->queues_again_ns;
    if (queues == 0 || (queues == hub->queues_seen && !is_due)) {
        return;
    }
    bool is_new = queues != hub->queues_seen;
    hub->queues_seen = queues;
    hub->queues_again_ns = hub->now_ns + QUEUES_AGAIN_NS;
    uint32_t before = hub->lane_count;
    lanes_add(hub, queues, is_new);
    if (hub->lane_count > before) { /* Only then: renewing leads to no renewing. */
        lanes_spread(hub, before);
    }
}

/* ---- busy polling ----------------------------------------------------------------------------------------------------- */

static int busy_set(struct xdp_hub *hub, bool is_on)
{
    int rc = 0;
    for (uint32_t i = 0; i < hub->lane_count && rc == 0; i++) {
        rc = xsk_busy_set(&hub->lanes[i].xsk, is_on, RECEIVE_BATCH);
    }
    return rc;
}

static void busy_start(struct xdp_hub *hub, uint64_t moved)
{
    int rc = busy_set(hub, true);
    if (rc < 0) {
        (void)busy_set(hub, false); /* the sockets that took it */
        LOG_WRN(
            "xdp_busy_refused", "interface=%s error=%s action=%s", hub->interface, LOG_Q(err_text(rc)),
            LOG_Q(
                "interrupts wake the worker; busy polling needs CAP_NET_ADMIN and CONFIG_NET_RX_BUSY_POLL"));
        xdp_busy_refused(&hub->busy);
        return;
    }
    xdp_busy_started(&hub->busy, hub->now_ns, moved);
    LOG_INF("xdp_busy_on", "interface=%s linger_us=%llu", hub->interface,
            (unsigned long long)(hub->busy.linger_ns / NS_PER_US));
}

static void busy_stop(struct xdp_hub *hub)
{
    hub->busy_stopped++;
    LOG_WRN("xdp_busy_stopped", "interface=%s why=%s again_s=%llu", hub->interface,
            LOG_Q("frames stay with the driver although it is asked; interrupts take over"),
            (unsigned long long)(XDP_BUSY_AGAIN_NS / NS_PER_S));
    (void)busy_set(hub, false); /* Lowering is always allowed. */
    for (uint32_t i = 0; i < hub->lane_count; i++) {
        xsk_wake(&hub->lanes[i].xsk);
    }
}

/* After completions were collected, so that a worker that was held up itself accuses nobody. */
static void busy_look(struct xdp_hub *hub)
{
    uint64_t moved = 0;
    bool is_owed = false;
    for (uint32_t i = 0; i < hub->lane_count; i++) {
        const struct xsk *xsk = &hub->lanes[i].xsk;
        moved += xsk->stats.received + xsk->stats.completed;
        is_owed |= xsk_unsent(xsk) > 0;
    }
    switch (xdp_busy_look(&hub->busy, hub->now_ns, moved, is_owed)) {
    case XDP_BUSY_START:
        busy_start(hub, moved);
        break;
    case XDP_BUSY_STOP:
        busy_stop(hub);
        break;
    case XDP_BUSY_KEEP:
        break;
    }
}

/* ---- the watch ------------------------------------------------------------------------------------------------------- */

static void count_to(_Atomic uint64_t *counter, uint64_t value)
{
    __atomic_store_n((uint64_t *)counter, value, __ATOMIC_RELAXED);
}

static void stats_sockets(struct xdp_hub *hub)
{
    uint64_t sums[RX_XDP_SOCKETS] = {0};
    for (uint32_t i = 0; i < hub->lane_count; i++) {
        const struct xsk_stats *from = &hub->lanes[i].xsk.stats;
        struct xdp_statistics kernel = {0};
        if (hub->state == XDP_HUB_OPEN) {
            (void)xsk_kernel_stats(&hub->lanes[i].xsk, &kernel); /* Zeros on kernels that do not have them. */
        }
        sums[RX_XDP_SOCKET_received] += from->received;
        sums[RX_XDP_SOCKET_sent] += from->sent;
        sums[RX_XDP_SOCKET_completed] += from->completed;
        sums[RX_XDP_SOCKET_wakeups] += from->wakeups;
        sums[RX_XDP_SOCKET_busy_polls] += from->busy_polls;
        sums[RX_XDP_SOCKET_tx_busy] += from->tx_busy;
        sums[RX_XDP_SOCKET_tx_no_room] += from->tx_no_room;
        sums[RX_XDP_SOCKET_tx_lost] += from->tx_lost;
        sums[RX_XDP_SOCKET_link_down] += from->link_resets;
        sums[RX_XDP_SOCKET_wrong] += from->wrong;
        sums[RX_XDP_SOCKET_rx_dropped] += kernel.rx_dropped;
        sums[RX_XDP_SOCKET_rx_ring_full] += kernel.rx_ring_full;
        sums[RX_XDP_SOCKET_fill_ring_empty] += kernel.rx_fill_ring_empty_descs;
        sums[RX_XDP_SOCKET_invalid] += kernel.rx_invalid_descs + kernel.tx_invalid_descs;
    }
    sums[RX_XDP_SOCKET_lost] = hub->lost;
    sums[RX_XDP_SOCKET_renewed] = hub->renewed;
    sums[RX_XDP_SOCKET_stuck] = hub->stuck;
    sums[RX_XDP_SOCKET_busy_stopped] = hub->busy_stopped;
    sums[RX_XDP_SOCKET_too_big] = hub->too_big;
    sums[RX_XDP_SOCKET_strayed] = hub->strayed;
    sums[RX_XDP_SOCKET_strays_lost] = hub->strays_lost;
    uint64_t reasons[XSK_PROG_REASONS];
    uint64_t reattached;
    if (xdp_port_counters(hub->port, hub, reasons, &reattached)) {
        sums[RX_XDP_SOCKET_reattached] = reattached;
        for (uint32_t i = 0; i < XSK_PROG_REASONS; i++) {
            count_to(&hub->stats.program[i], reasons[i]);
        }
    }
    for (uint32_t i = 0; i < RX_XDP_SOCKETS; i++) {
        count_to(&hub->stats.sockets[i], sums[i]);
    }
}

static void stats_queues(struct xdp_hub *hub)
{
    static const enum rx_xdp_state_gauge gauges[] = {[XSK_MODE_ZERO_COPY] = RX_XDP_STATE_queues_zero_copy,
                                                     [XSK_MODE_COPY] = RX_XDP_STATE_queues_one_copy,
                                                     [XSK_MODE_GENERIC] = RX_XDP_STATE_queues_generic};
    uint32_t counts[RX_XDP_STATES] = {0};
    for (uint32_t i = 0; i < hub->lane_count && hub->state == XDP_HUB_OPEN; i++) {
        CHECK((size_t)hub->lanes[i].xsk.mode < ARRAY_COUNT(gauges));
        counts[gauges[hub->lanes[i].xsk.mode]]++;
    }
    for (size_t i = XSK_MODE_ZERO_COPY; i < ARRAY_COUNT(gauges); i++) {
        count_to(&hub->stats.states[gauges[i]], counts[gauges[i]]);
    }
    /* Those of sockets that are being renewed are not served either: it may take until the interface has its queues again. */
    count_to(&hub->stats.states[RX_XDP_STATE_queues_unserved],
             hub->unserved + (hub->state == XDP_HUB_OPEN ? 0 : hub->lane_count));
}

static void stats_write(struct xdp_hub *hub)
{
    const struct tcp_stats *tcp = tcp_stats(hub->engine);
    for (uint32_t i = 0; i < TCP_COUNTERS; i++) {
        count_to(&hub->stats.tcp[i], tcp->counters[i]);
    }
    const struct xsk *pool = pool_of(hub);
    if (pool != NULL) {
        const uint32_t *counts = pool->frames.counts;
        count_to(&hub->stats.states[RX_XDP_STATE_frames_free], counts[XSK_FRAME_FREE]);
        count_to(&hub->stats.states[RX_XDP_STATE_frames_fill], counts[XSK_FRAME_FILL]);
        count_to(&hub->stats.states[RX_XDP_STATE_frames_held], counts[XSK_FRAME_HELD]);
        count_to(&hub->stats.states[RX_XDP_STATE_frames_sending],
                 counts[XSK_FRAME_OURS] + counts[XSK_FRAME_SENT]);
    }
    count_to(&hub->stats.states[RX_XDP_STATE_frames_out_of_order], tcp->frames_out_of_order);
    count_to(&hub->stats.states[RX_XDP_STATE_conns], tcp->conns_used);
    count_to(&hub->stats.states[RX_XDP_STATE_syns], tcp->syns_used);
    count_to(&hub->stats.states[RX_XDP_STATE_time_waits], tcp->time_waits_used);
    stats_queues(hub);
    stats_sockets(hub);
}

static bool partial_is_named(const struct xdp_partial *partial, const struct tcp_tuple *tuple)
{
    for (uint32_t i = 0; i < partial->count; i++) {
        if (partial->peers[i].version == tuple->version &&
            memcmp(partial->peers[i].peer, tuple->peer, sizeof(tuple->peer)) == 0) {
            return true;
        }
    }
    return false;
}

/* A client behind such a peer only sees that nothing answers, so whoever runs the node is told why. */
static void tell_partial(struct xdp_hub *hub)
{
    const struct tcp_stats *tcp = tcp_stats(hub->engine);
    const struct tcp_tuple *last = &tcp->partial_last;
    struct xdp_partial *partial = &hub->partial;
    uint64_t count = tcp->counters[TCP_COUNTER_drop_checksum_partial];
    bool is_new = partial->count < XDP_PARTIAL_PEERS && !partial_is_named(partial, last);
    if (count == partial->told || (!is_new && hub->now_ns < partial->again_ns)) {
        return;
    }
    char peer[INET6_ADDRSTRLEN] = "";
    bool is_v4 = last->version == 4;
    (void)inet_ntop(is_v4 ? AF_INET : AF_INET6, last->peer + (is_v4 ? 12 : 0), peer, sizeof(peer));
    if (is_new) {
        partial->peers[partial->count++] = *last;
        LOG_WRN("xdp_partial_checksums", "interface=%s peer=%s dropped=%" PRIu64 " why=%s", hub->interface,
                peer, count - partial->told,
                LOG_Q("the peer is on this machine and leaves checksums to hardware that its packets never "
                      "pass; run at its end: ethtool -K INTERFACE tx off"));
    } else {
        LOG_WRN("xdp_partial_still", "interface=%s last_peer=%s dropped=%" PRIu64, hub->interface, peer,
                count - partial->told);
    }
    partial->told = count;
    partial->again_ns = hub->now_ns + PARTIAL_AGAIN_NS;
}

/* Frames above the MTU of the interface are dropped on their way in and out, whatever was agreed before. */
static void mtu_follow(struct xdp_hub *hub)
{
    uint32_t mtu = xdp_interface_mtu(hub->interface);
    if (mtu == 0 || mtu == hub->mtu) {
        return;
    }
    hub->mtu = mtu;
    tcp_mtu(hub->engine, mtu);
    LOG_WRN("xdp_mtu", "interface=%s mtu=%u note=%s", hub->interface, mtu,
            mtu > hub->mtu_opened
                ? LOG_Q("larger packets than at the start are not agreed on before the node starts again")
                : LOG_Q("connections keep to it; what peers agreed on before and is larger is lost"));
}

/* What no event tells: a program taken off, an interface gone, a driver that sleeps on a missed wake-up or completes nothing. */
static void watch(struct xdp_hub *hub)
{
    if (hub->now_ns < hub->watch_ns) {
        return;
    }
    bool is_busy = tcp_stats(hub->engine)->conns_used > 0 || hub->state != XDP_HUB_OPEN;
    hub->watch_ns = hub->now_ns + (is_busy ? WATCH_BUSY_NS : WATCH_IDLE_NS);
    (void)xdp_port_watch(hub->port, hub->now_ns); /* It tells; frames come again once it is attached. */
    mtu_follow(hub);
    queues_follow(hub);
    for (uint32_t i = 0; i < hub->lane_count && hub->state == XDP_HUB_OPEN; i++) {
        struct xdp_lane *lane = &hub->lanes[i];
        if (xsk_health(&lane->xsk) == XSK_LOST) {
            lose(hub, "the interface has gone");
        } else if (xsk_is_stuck(&lane->xsk, hub->now_ns, SEND_DEADLINE_NS) &&
                   xdp_interface_is_running(hub->interface)) {
            hub->stuck++;
            lose(hub, "the driver has completed nothing that was sent within the deadline");
        } else if (lane->seen == lane->xsk.stats.received) {
            xsk_wake(&lane->xsk);
        }
        lane->seen = lane->xsk.stats.received;
    }
    stats_write(hub);
    tell_partial(hub);
}

/* ---- the turn -------------------------------------------------------------------------------------------------------- */

void xdp_hub_turn(struct xdp_hub *hub, uint64_t now_ns)
{
    hub->now_ns = now_ns;
    hub->is_owed = false;
    hub->has_more = false;
    if (hub->state == XDP_HUB_LEAVING && !polls_in_flight(hub)) {
        lanes_drop(hub, hub->lane_count);
        hub->state = XDP_HUB_GONE;
        hub->again_ns = now_ns;
    }
    if (hub->state == XDP_HUB_GONE) {
        renew(hub);
    }
    for (uint32_t i = 0; i < hub->lane_count && hub->state == XDP_HUB_OPEN; i++) {
        if (xdp_busy_is_asking(&hub->busy, now_ns)) {
            xsk_busy_poll(&hub->lanes[i].xsk);
        }
        receive_lane(hub, &hub->lanes[i]);
    }
    for (uint32_t i = 0; i < ARRAY_COUNT(hub->icmp_op); i++) {
        if (!hub->icmp_op[i].in_flight) { /* it said that something has come, or was never asked */
            receive_icmp(hub, i);
        }
    }
    if (!hub->stray_op.in_flight && hub->stray_fd >= 0) {
        receive_strays(hub);
    }
    tcp_tick(hub->engine, now_ns);
    watch(hub);
}

static void send_packets(struct xdp_hub *hub)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < SEND_MAX; i++) {
        struct xsk *xsk = &hub->lanes[at].xsk;
        uint32_t frame;
        uint8_t *to = xsk_send_take(xsk, &frame);
        if (to == NULL && ++at < hub->lane_count) {
            continue;
        }
        if (to == NULL) {
            break;
        }
        uint32_t len = tcp_next_packet(hub->engine, hub->now_ns, to, xsk->chunk_size);
        if (len == 0) {
            xsk_send_cancel(xsk, frame);
            break;
        }
        xsk_send_put(xsk, frame, len);
    }
}

static void flush_lanes(struct xdp_hub *hub)
{
    hub->kick_ns = TIME_NEVER;
    for (uint32_t i = 0; i < hub->lane_count && hub->state == XDP_HUB_OPEN; i++) {
        struct xsk *xsk = &hub->lanes[i].xsk;
        enum xsk_trouble trouble = xsk_flush(xsk, hub->now_ns);
        uint64_t kick_ns = trouble == XSK_PAUSED                         ? hub->now_ns + LINK_AGAIN_NS
                           : trouble == XSK_LATER || xsk_unsent(xsk) > 0 ? hub->now_ns + KICK_AGAIN_NS
                                                                         : TIME_NEVER;
        hub->kick_ns = kick_ns < hub->kick_ns ? kick_ns : hub->kick_ns;
        if (trouble == XSK_LOST) {
            lose(hub, "the kernel or the driver refuses the socket");
        }
    }
}

void xdp_hub_flush(struct xdp_hub *hub)
{
    give_back(hub);
    if (hub->state == XDP_HUB_OPEN && hub->lane_count > 0) {
        send_packets(hub);
        flush_lanes(hub);
    }
    if (hub->state == XDP_HUB_OPEN && hub->lane_count > 0) {
        busy_look(hub);
    }
    if (hub->state != XDP_HUB_OPEN) {
        hub->kick_ns = hub->now_ns + RENEW_AGAIN_NS; /* Packets wait for a socket. */
    }
    polls_arm(hub);
}

uint64_t xdp_hub_deadline(const struct xdp_hub *hub)
{
    if (hub->has_more || (hub->is_owed && hub->state == XDP_HUB_OPEN) ||
        (hub->state == XDP_HUB_OPEN && xdp_busy_is_asking(&hub->busy, hub->now_ns))) {
        return 0;
    }
    uint64_t at = tcp_poll_at(hub->engine);
    if (at == 0 && hub->kick_ns != TIME_NEVER) {
        at = hub->kick_ns; /* Packets wait for frames that the driver has. */
    }
    at = hub->watch_ns < at ? hub->watch_ns : at;
    return hub->kick_ns < at ? hub->kick_ns : at;
}

/* ---- opening --------------------------------------------------------------------------------------------------------- */

static int engine_open(struct xdp_hub *hub, uint32_t mtu, struct err *err)
{
    /* Sent packets lie in one frame; so do received ones, unless the MTU is above. */
    uint32_t most = XSK_CHUNK_DEFAULT - TCP_HEADERS_MAX;
    uint32_t one = XSK_CHUNK_DEFAULT - 256U - TCP_HEADERS_MAX;
    struct tcp_config config = {.conns_max = hub->share.conns_max,
                                .frames_count = hub->frames,
                                .frames_hold_max = hub->buffers_total,
                                .conn_frames_max = hub->share.conn_buffers_max,
                                .mtu = hub->want_multi || mtu < one ? mtu : one,
                                .frame_bytes = hub->want_multi ? one : 0};
    config.send_mtu = config.mtu < most ? config.mtu : most;
    if (config.conn_frames_max > config.frames_hold_max) {
        config.conn_frames_max = config.frames_hold_max;
    }
    if (getrandom(config.secret, sizeof(config.secret), 0) != (ssize_t)sizeof(config.secret)) {
        return err_set(err, -EIO, "no randomness from the system");
    }
    size_t size = bytes_round_up(tcp_size(&config), 64);
    hub->engine_memory = size > 0 ? aligned_alloc(64, size) : NULL;
    if (hub->engine_memory == NULL) {
        return size == 0 ? err_set(err, -EINVAL, "the TCP engine cannot have %u connections and %u frames",
                                   config.conns_max, hub->frames)
                         : err_set(err, -ENOMEM, "no memory for %u connections; lower connections_max",
                                   config.conns_max);
    }
    int rc = tcp_init(hub->engine_memory, size, &config, &hub->engine);
    return rc == 0 ? 0 : err_set(err, rc, "the TCP engine refuses: %s", err_text(rc));
}

static int lanes_open(struct xdp_hub *hub, struct err *err)
{
    uint32_t count = hub->share.queue_count;
    CHECK(count <= RX_QUEUES_MAX);
    hub->lanes = calloc(RX_QUEUES_MAX, sizeof(*hub->lanes));
    if (hub->lanes == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    hub->lane_count = count;
    for (uint32_t i = 0; i < count; i++) {
        lane_init(hub, &hub->lanes[i], hub->share.queues[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct xsk_options options = lane_options(hub, i, BIND_PATIENCE_MS);
        struct xsk *xsk = &hub->lanes[i].xsk;
        int rc = xsk_open(xsk, &options, err);
        if (rc < 0) {
            hub->lane_count = i;
            return rc;
        }
        lane_tell(hub, &hub->lanes[i], "xdp_open");
    }
    return 0;
}

static void hub_free(struct xdp_hub *hub)
{
    for (uint32_t i = hub->lane_count; i-- > 0;) { /* the base last */
        xsk_close(&hub->lanes[i].xsk);
    }
    for (uint32_t i = 0; i < ARRAY_COUNT(hub->icmp_fds); i++) {
        if (hub->icmp_fds[i] >= 0) {
            close(hub->icmp_fds[i]);
        }
    }
    if (hub->stray_fd >= 0) {
        xdp_port_strays_close(hub->port, hub->stray_place);
    }
    free(hub->stray_frame);
    if (hub->port != NULL) {
        xdp_port_give(hub->port, hub);
    }
    free(hub->lanes);
    free(hub->engine_memory);
    free(hub);
}

/* Where what lies in the shared piece: frames first, then a little for the kernel socket of each listener. */
static int area_divide(struct xdp_hub *hub, const struct rx_options *options, struct err *err)
{
    const struct rx_share *share = &hub->share;
    uint64_t frames = share->area_size / XSK_CHUNK_DEFAULT;
    if (frames < (uint64_t)FRAMES_MIN * share->listeners || frames > UINT32_MAX) {
        return err_set(err, -EINVAL,
                       "af_xdp needs an interface and an rx_area_size of %u frames of 4KiB at least",
                       FRAMES_MIN);
    }
    uint64_t buffers = frames / 16 / share->listeners;
    hub->cover_size = (buffers > COVER_BUFFERS_MIN ? buffers : COVER_BUFFERS_MIN) * COVER_BUFFER;
    hub->area = options->arena->base + share->area_offset;
    hub->area_size =
        bytes_round_down(share->area_size - share->listeners * hub->cover_size, XSK_CHUNK_DEFAULT);
    hub->frames = (uint32_t)(hub->area_size / XSK_CHUNK_DEFAULT);
    hub->buffers_total = hub->frames * 3 / 4;
    return 0;
}

static int hub_open_parts(struct xdp_hub *hub, const struct rx_options *options, struct err *err)
{
    struct xdp_interface interface = {.mtu = 0};
    int rc = area_divide(hub, options, err);
    rc = rc == 0 ? xdp_interface_read(hub->interface, &interface, err) : rc;
    if (rc < 0) {
        return rc;
    }
    hub->want_multi = interface.mtu > XDP_MTU_ONE_FRAME;
    hub->nic_ring = interface.nic_ring;
    hub->mtu = hub->mtu_opened = interface.mtu;
    /* Those that there are the plan has given away. */
    hub->queues_seen = xdp_interface_queues(hub->interface);
    rc = engine_open(hub, interface.mtu, err);
    if (rc < 0) {
        return rc;
    }
    rc = xdp_port_take(hub->interface, hub->want_multi, &hub->port, err);
    if (rc < 0) {
        hub->port = NULL;
        return rc;
    }
    icmp_open(hub);
    rc = lanes_open(hub, err);
    return rc == 0 ? strays_open(hub, interface.mtu, err) : rc;
}

static void share_alone(const struct rx_options *options, struct rx_share *share)
{
    *share = (struct rx_share){.area_offset = options->area_offset,
                               .area_size = options->area_size,
                               .listeners = 1,
                               .conns_max = options->conns_max,
                               .conn_buffers_max = options->conn_buffers_max,
                               .queue_count = 1,
                               .queues = {(uint16_t)options->queue}};
}

int xdp_hub_take(const struct rx_options *options, struct xdp_hub **out, struct err *err)
{
    if (options->interface == NULL) {
        return err_set(err, -EINVAL, "af_xdp needs an interface");
    }
    for (struct xdp_hub *hub = hubs; hub != NULL; hub = hub->next) {
        if (options->share != NULL && hub->uring == options->uring &&
            strcmp(hub->interface, options->interface) == 0) {
            hub->users++;
            *out = hub;
            return 0;
        }
    }
    struct xdp_hub *hub = aligned_alloc(64, bytes_round_up(sizeof(*hub), 64));
    if (hub == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    memset(hub, 0, sizeof(*hub));
    (void)snprintf(hub->interface, sizeof(hub->interface), "%.15s", options->interface);
    hub->uring = options->uring;
    hub->buf_index = options->arena->buf_index;
    hub->kick_ns = TIME_NEVER;
    hub->icmp_fds[0] = hub->icmp_fds[1] = hub->stray_fd = -1;
    hub->stray_op = (struct rx_op){.done = poll_done, .instance = hub};
    list_init(&hub->stray_op.node);
    hub->users = 1;
    for (uint32_t i = 0; i < ARRAY_COUNT(hub->icmp_op); i++) {
        hub->icmp_op[i] = (struct rx_op){.done = poll_done, .instance = hub};
        list_init(&hub->icmp_op[i].node);
    }
    if (options->share != NULL) {
        hub->share = *options->share;
    } else {
        share_alone(options, &hub->share);
    }
    xdp_busy_init(&hub->busy, hub->share.busy_poll_ns);
    int rc = hub_open_parts(hub, options, err);
    if (rc < 0) {
        hub_free(hub);
        return rc;
    }
    rx_op_class_install(options->uring);
    hub->next = hubs;
    hubs = hub;
    *out = hub;
    return 0;
}

bool xdp_hub_copies(const struct xdp_hub *hub)
{
    return hub->lane_count == 0 || hub->lanes[0].xsk.mode != XSK_MODE_ZERO_COPY;
}

uint64_t xdp_hub_cover_take(struct xdp_hub *hub)
{
    CHECK(hub->covers < hub->share.listeners);
    hub->covers++;
    return hub->share.area_offset + hub->share.area_size - hub->covers * hub->cover_size;
}

int xdp_hub_steer(struct xdp_hub *hub, struct err *err)
{
    for (uint32_t i = 0; i < hub->lane_count; i++) {
        int rc = lane_steer(hub, &hub->lanes[i]);
        if (rc < 0) {
            return err_set(err, rc, "queue %u of %s: %s", hub->lanes[i].queue, hub->interface, err_text(rc));
        }
    }
    return 0;
}

/* ---- closing --------------------------------------------------------------------------------------------------------- */

static void polls_end(struct xdp_hub *hub)
{
    poll_cancel(hub, &hub->icmp_op[0]);
    poll_cancel(hub, &hub->icmp_op[1]);
    poll_cancel(hub, &hub->stray_op);
    for (uint32_t i = 0; i < hub->lane_count; i++) {
        poll_cancel(hub, &hub->lanes[i].poll_op);
    }
    for (int i = 0; i < CLOSE_WAITS_MAX; i++) {
        if (!polls_in_flight(hub) && !hub->icmp_op[0].in_flight && !hub->icmp_op[1].in_flight &&
            !hub->stray_op.in_flight) {
            return;
        }
        CHECK(uring_submit_and_wait(hub->uring, CLOSE_WAIT_NS) == 0);
        uring_reap(hub->uring, UINT32_MAX);
    }
    CHECK(!"a cancelled poll always ends");
}

void xdp_hub_give(struct xdp_hub *hub)
{
    CHECK(hub->users > 0);
    hub->users--;
    if (hub->users > 0) {
        return;
    }
    for (uint32_t i = 0; i < hub->lane_count; i++) { /* From here on frames are dropped. */
        (void)xsk_program_socket_clear(xdp_port_program(hub->port), hub->lanes[i].queue);
    }
    polls_end(hub);
    give_back(hub);
    CHECK(tcp_stats(hub->engine)->frames_held == 0); /* Every slice was released. */
    struct xdp_hub **link = &hubs;
    while (*link != hub) {
        link = &(*link)->next;
    }
    *link = hub->next;
    hub_free(hub);
}
