/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_xdp: the backend on AF_XDP. Frames of one NIC queue go through our own TCP engine (tcp/), which lends the payload to the
 * consumer where the NIC put it. A kernel socket on the same address, the cover, holds the port (so that nothing else of this
 * host binds it) and serves peers that do not come through the NIC: this host's own, and those on other interfaces.
 *
 *   NIC --XDP program--> xsk --frames--> engine --events--> rx_poll       engine --packets--> xsk --> NIC
 *   loopback -----------------------> cover (socket backend) --events--> rx_poll
 *
 * Invariants
 *  1. A received frame is the engine's (out of order, not yet taken), the consumer's (a slice), or goes back to the fill ring in
 *     the same or the next turn. Its token is its number.
 *  2. Connections 0 .. conns_engine-1 are the engine's, the rest the cover's; generations are theirs. Slices of the cover carry
 *     COVER_TOKEN, so that a release finds its owner.
 *  3. Nothing reads a clock here: calls between two polls use the time of the last one.
 */
#include <errno.h>
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
#include "ring/xsk.h"
#include "rx/rx_int.h"
#include "rx/rx_xdp_port.h"
#include "tcp/tcp.h"

#define RECEIVE_BATCH 64U
#define RECEIVE_BATCHES_MAX 8U /* of one turn */
#define SEND_MAX 512U          /* packets of one turn */
#define FRAMES_MIN 64U
#define COVER_BUFFER 4096U
#define COVER_BUFFERS_MIN 8U
#define COVER_CONNS_MAX 64U
#define COVER_TOKEN (1ULL << 63)
#define MTU_ONE_FRAME 3498U /* above, drivers want a program that knows frames of several buffers */
#define BIND_PATIENCE_MS 2000U
#define KICK_AGAIN_NS NS_PER_MS          /* the driver was busy, or asks for a wake-up per batch */
#define LINK_AGAIN_NS (100 * NS_PER_MS)  /* the link is being reset */
#define SEND_DEADLINE_NS (10 * NS_PER_S) /* nothing sent has come back for so long: said once */
#define CLOSE_WAIT_NS (100 * NS_PER_MS)
#define CLOSE_WAITS_MAX 100

struct xdp_conn {
    struct sockaddr_storage peer, local;
    uint32_t generation; /* of the live connection here; 0: none */
};

struct rx_xdp {
    struct rx rx; /* first */
    struct uring *uring;
    struct xdp_port *port;
    struct xsk xsk;
    struct tcp_engine *engine;
    void *engine_memory;
    struct xdp_conn *conns; /* conns_engine of them */
    uint32_t conns_engine;
    uint64_t opened; /* RX_OPENs of the engine that were delivered */
    uint32_t queue;
    struct sockaddr_storage address;
    struct rx *cover;
    struct rx_op poll_op; /* tells that frames have come */
    int32_t buf_index;
    uint64_t now_ns;     /* of the last poll */
    uint64_t kick_ns;    /* when the driver wants to be woken again; TIME_NEVER: not */
    bool has_more;       /* the last turn did not take all */
    bool is_owed;        /* frames came back or packets may wait since the last turn */
    bool is_cover_first; /* whose events are taken first; by turns */
    bool is_stuck_said;
    bool is_accepting;
    bool is_bound; /* the queue's frames come to us */
};

static void count_to(_Atomic uint64_t *counter, uint64_t value)
{
    __atomic_store_n((uint64_t *)counter, value, __ATOMIC_RELAXED);
}

static uint64_t count_of(const _Atomic uint64_t *counter)
{
    return __atomic_load_n((const uint64_t *)counter, __ATOMIC_RELAXED);
}

static bool is_cover(const struct rx_xdp *xdp, struct rx_id id)
{
    return id.index >= xdp->conns_engine;
}

static struct rx_id cover_id(const struct rx_xdp *xdp, struct rx_id id)
{
    return (struct rx_id){.index = id.index - xdp->conns_engine, .generation = id.generation};
}

static struct tcp_id engine_id(struct rx_id id)
{
    return (struct tcp_id){.index = id.index, .generation = id.generation};
}

/* ---- slices --------------------------------------------------------------------------------------------------------- */

static void gauge_free(struct rx_xdp *xdp)
{
    uint64_t held = tcp_stats(xdp->engine)->frames_held;
    uint64_t total = xdp->rx.info.buffers_total;
    uint64_t left = held < total ? total - held : 0;
    count_to(&xdp->rx.stats.buffers_free, left);
    if (left < count_of(&xdp->rx.stats.buffers_free_low)) {
        count_to(&xdp->rx.stats.buffers_free_low, left);
    }
}

static struct slice cover_slice(const struct rx_xdp *xdp, const struct slice *slice)
{
    struct slice inner = *slice;
    inner.owner = &xdp->cover->owner;
    inner.token &= ~COVER_TOKEN;
    return inner;
}

static void xdp_retain(struct slice_owner *owner, const struct slice *slice)
{
    struct rx_xdp *xdp = CONTAINER_OF(owner, struct rx_xdp, rx.owner);
    if ((slice->token & COVER_TOKEN) != 0) {
        struct slice inner = cover_slice(xdp, slice);
        slice_retain(&inner);
        return;
    }
    tcp_retain(xdp->engine, (uint32_t)slice->token);
}

static void xdp_release(struct slice_owner *owner, const struct slice *slice)
{
    struct rx_xdp *xdp = CONTAINER_OF(owner, struct rx_xdp, rx.owner);
    if ((slice->token & COVER_TOKEN) != 0) {
        struct slice inner = cover_slice(xdp, slice);
        slice_release(&inner);
        return;
    }
    tcp_release(xdp->engine, (uint32_t)slice->token);
    xdp->is_owed = true;
    gauge_free(xdp);
}

/* ---- frames in and out ------------------------------------------------------------------------------------------------- */

static void give_back(struct rx_xdp *xdp)
{
    uint32_t tokens[RECEIVE_BATCH];
    uint32_t count;
    do { /* Ends: each is one of a bounded number of frames. */
        count = tcp_frames_take(xdp->engine, tokens, RECEIVE_BATCH);
        for (uint32_t i = 0; i < count; i++) {
            xsk_give(&xdp->xsk, tokens[i]);
        }
    } while (count == RECEIVE_BATCH);
    xsk_refill(&xdp->xsk);
}

/* One packet of `count` parts. What the engine does not hold goes back. */
static void take_packet(struct rx_xdp *xdp, const struct xsk_part *parts, uint32_t count)
{
    struct tcp_part in[TCP_PARTS_MAX];
    uint32_t held = 0;
    if (count <= TCP_PARTS_MAX) {
        for (uint32_t i = 0; i < count; i++) {
            in[i] = (struct tcp_part){.addr = parts[i].addr, .len = parts[i].len, .token = parts[i].frame};
        }
        held = tcp_input(xdp->engine, xdp->now_ns, in, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (i >= TCP_PARTS_MAX || (held >> i & 1U) == 0) {
            xsk_give(&xdp->xsk, parts[i].frame);
        }
    }
}

static void receive(struct rx_xdp *xdp)
{
    struct xsk_part parts[RECEIVE_BATCH];
    uint32_t count = 0;
    for (uint32_t batch = 0; batch < RECEIVE_BATCHES_MAX; batch++) {
        count = xsk_receive(&xdp->xsk, parts, RECEIVE_BATCH);
        for (uint32_t first = 0, i = 0; i < count; i++) {
            if (!parts[i].more || i + 1 == count) {
                take_packet(xdp, parts + first, i + 1 - first);
                first = i + 1;
            }
        }
        give_back(xdp);
        if (count < RECEIVE_BATCH / 2) {
            break;
        }
    }
    xdp->has_more = count >= RECEIVE_BATCH / 2;
}

/* Says once that nothing leaves; what was sent is TCP's to send again, so that the connections live on. */
static void watch_sending(struct rx_xdp *xdp)
{
    bool is_stuck = xsk_is_stuck(&xdp->xsk, xdp->now_ns, SEND_DEADLINE_NS);
    if (is_stuck && !xdp->is_stuck_said) {
        LOG_WRN("xdp_send_stuck", "queue=%u unsent=%u remedy=%s", xdp->queue, xsk_unsent(&xdp->xsk),
                LOG_Q("the driver completes nothing; check the link and the driver's version"));
    }
    xdp->is_stuck_said = is_stuck;
}

static int send_packets(struct rx_xdp *xdp)
{
    for (uint32_t i = 0; i < SEND_MAX; i++) {
        uint32_t frame;
        uint8_t *to = xsk_send_take(&xdp->xsk, &frame);
        if (to == NULL) {
            break;
        }
        uint32_t len = tcp_next_packet(xdp->engine, xdp->now_ns, to, xdp->xsk.chunk_size);
        if (len == 0) {
            xsk_send_cancel(&xdp->xsk, frame);
            break;
        }
        xsk_send_put(&xdp->xsk, frame, len);
    }
    enum xsk_trouble trouble = xsk_flush(&xdp->xsk, xdp->now_ns);
    xdp->kick_ns = trouble == XSK_PAUSED                               ? xdp->now_ns + LINK_AGAIN_NS
                   : trouble == XSK_LATER || xsk_unsent(&xdp->xsk) > 0 ? xdp->now_ns + KICK_AGAIN_NS
                                                                       : TIME_NEVER;
    watch_sending(xdp);
    return trouble == XSK_LOST ? -EIO : 0;
}

static void poll_done(struct rx_op *op, const struct io_uring_cqe *cqe)
{
    op->res = cqe->res;
    op->in_flight = false; /* The next poll looks at the ring whatever this says. */
}

static void poll_arm(struct rx_xdp *xdp)
{
    if (!xdp->poll_op.in_flight) {
        struct io_uring_sqe *sqe = uring_sqe(xdp->uring);
        io_uring_prep_poll_add(sqe, xdp->xsk.fd, POLLIN);
        uring_sqe_bind(sqe, URING_CLASS_RX, &xdp->poll_op);
        xdp->poll_op.in_flight = true;
    }
}

/* ---- events --------------------------------------------------------------------------------------------------------- */

static void address_write(const uint8_t bytes[16], uint16_t port, uint32_t version,
                          struct sockaddr_storage *out)
{
    memset(out, 0, sizeof(*out));
    if (version == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)out;
        in->sin_family = AF_INET;
        in->sin_port = htons(port);
        memcpy(&in->sin_addr, bytes + 12, 4);
        return;
    }
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    memcpy(&in6->sin6_addr, bytes, 16);
}

static void event_open(struct rx_xdp *xdp, const struct tcp_event *from, struct rx_event *to)
{
    struct xdp_conn *conn = &xdp->conns[from->id.index];
    conn->generation = from->id.generation;
    xdp->opened++;
    address_write(from->tuple->peer, from->tuple->peer_port, from->tuple->version, &conn->peer);
    address_write(from->tuple->local, from->tuple->local_port, from->tuple->version, &conn->local);
    to->peer = &conn->peer;
    to->local = &conn->local;
}

static void event_data(struct rx_xdp *xdp, const struct tcp_event *from, struct rx_event *to)
{
    to->slice = (struct slice){.addr = from->data.addr,
                               .len = from->data.len,
                               .buf_index = xdp->buf_index,
                               .owner = &xdp->rx.owner,
                               .token = from->data.token};
    count_to(&xdp->rx.stats.receives, count_of(&xdp->rx.stats.receives) + 1);
    count_to(&xdp->rx.stats.received_bytes, count_of(&xdp->rx.stats.received_bytes) + from->data.len);
    if (xdp->rx.info.copies) {
        count_to(&xdp->rx.stats.kernel_copied_bytes,
                 count_of(&xdp->rx.stats.kernel_copied_bytes) + from->data.len);
    }
}

static void event_translate(struct rx_xdp *xdp, const struct tcp_event *from, struct rx_event *to)
{
    static const enum rx_event_kind kinds[] = {
        [TCP_EVENT_OPEN] = RX_OPEN,   [TCP_EVENT_DATA] = RX_DATA, [TCP_EVENT_EOF] = RX_EOF,
        [TCP_EVENT_RESET] = RX_RESET, [TCP_EVENT_SENT] = RX_SENT, [TCP_EVENT_CLOSED] = RX_CLOSED};
    CHECK((size_t)from->kind < ARRAY_COUNT(kinds));
    memset(to, 0, sizeof(*to));
    to->kind = kinds[from->kind];
    to->id = (struct rx_id){.index = from->id.index, .generation = from->id.generation};
    to->user = from->user;
    if (from->kind == TCP_EVENT_OPEN) {
        event_open(xdp, from, to);
    } else if (from->kind == TCP_EVENT_DATA) {
        event_data(xdp, from, to);
    } else if (from->kind == TCP_EVENT_CLOSED) {
        xdp->conns[from->id.index].generation = 0;
    } else {
        to->cookie = from->cookie;
        to->error = from->error;
    }
}

/* Ends with an RX_OPEN: what follows it carries the consumer's pointer, which it gives only when it has seen the RX_OPEN. */
static uint32_t events_engine(struct rx_xdp *xdp, struct rx_event *events, uint32_t max)
{
    struct tcp_event event;
    uint32_t count = 0;
    while (count < max && tcp_next_event(xdp->engine, &event) != 0) {
        event_translate(xdp, &event, &events[count]);
        count++;
        if (event.kind == TCP_EVENT_OPEN) {
            break;
        }
    }
    return count;
}

static int events_cover(struct rx_xdp *xdp, struct rx_event *events, uint32_t max)
{
    int count = max > 0 ? rx_poll(xdp->cover, xdp->now_ns, events, max) : 0;
    for (int i = 0; i < count; i++) {
        events[i].id.index += xdp->conns_engine;
        if (events[i].kind == RX_DATA) {
            CHECK((events[i].slice.token & COVER_TOKEN) == 0);
            events[i].slice.owner = &xdp->rx.owner;
            events[i].slice.token |= COVER_TOKEN;
        }
    }
    return count;
}

static int events_take(struct rx_xdp *xdp, struct rx_event *events, uint32_t max)
{
    uint32_t count = 0;
    if (!xdp->is_cover_first) {
        count = events_engine(xdp, events, max);
    }
    int more = events_cover(xdp, events + count, max - count);
    if (more < 0) {
        return count > 0 ? (int)count : more; /* It stays broken: the next poll says so. */
    }
    count += (uint32_t)more;
    if (xdp->is_cover_first) {
        count += events_engine(xdp, events + count, max - count);
    }
    xdp->is_cover_first = !xdp->is_cover_first;
    return (int)count;
}

/* The sums of engine and cover, for whoever shows metrics. */
static void stats_update(struct rx_xdp *xdp)
{
    const struct tcp_stats *tcp = tcp_stats(xdp->engine);
    const struct rx_stats *cover = &xdp->cover->stats;
    struct rx_stats *stats = &xdp->rx.stats;
    count_to(&stats->conns_opened, xdp->opened + count_of(&cover->conns_opened));
    count_to(&stats->conns_refused, tcp->counters[TCP_COUNTER_syn_conns_full] +
                                        tcp->counters[TCP_COUNTER_conns_full] +
                                        count_of(&cover->conns_refused));
    count_to(&stats->conns_reset, tcp->counters[TCP_COUNTER_conns_reset_in] +
                                      tcp->counters[TCP_COUNTER_conns_timed_out] +
                                      count_of(&cover->conns_reset));
    count_to(&stats->conns_open, tcp->conns_used + count_of(&cover->conns_open));
    count_to(&stats->sent_bytes, tcp->counters[TCP_COUNTER_bytes_out] -
                                     tcp->counters[TCP_COUNTER_bytes_retransmitted] +
                                     count_of(&cover->sent_bytes));
    count_to(&stats->starved, tcp->counters[TCP_COUNTER_refused_pool] + count_of(&cover->starved));
    gauge_free(xdp);
}

/* ---- the loop's face ------------------------------------------------------------------------------------------------- */

static int xdp_poll(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    xdp->now_ns = now_ns;
    xdp->is_owed = false;
    receive(xdp);
    tcp_tick(xdp->engine, now_ns);
    int count = events_take(xdp, events, max);
    give_back(xdp);
    int rc = send_packets(xdp);
    poll_arm(xdp);
    stats_update(xdp);
    if (rc < 0 && count <= 0) {
        LOG_ERR(
            "xdp_lost", "queue=%u remedy=%s", xdp->queue,
            LOG_Q("the AF_XDP socket is of no use any more (interface gone or unbound); restart the node"));
        return rc;
    }
    return count;
}

static uint64_t xdp_deadline(struct rx *rx)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    if (xdp->has_more || xdp->is_owed) {
        return 0;
    }
    uint64_t at = tcp_poll_at(xdp->engine);
    if (at == 0 && xdp->kick_ns != TIME_NEVER) {
        at = xdp->kick_ns; /* Packets wait for frames that the driver has. */
    }
    uint64_t cover = rx_deadline(xdp->cover);
    at = cover < at ? cover : at;
    return xdp->kick_ns < at ? xdp->kick_ns : at;
}

static void xdp_user_set(struct rx *rx, struct rx_id id, void *user)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    if (is_cover(xdp, id)) {
        rx_user_set(xdp->cover, cover_id(xdp, id), user);
    } else {
        tcp_user_set(xdp->engine, engine_id(id), user);
    }
}

static void xdp_pause(struct rx *rx, struct rx_id id)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    if (is_cover(xdp, id)) {
        rx_pause(xdp->cover, cover_id(xdp, id));
    } else {
        tcp_pause(xdp->engine, engine_id(id));
    }
}

static void xdp_resume(struct rx *rx, struct rx_id id)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    xdp->is_owed = true;
    if (is_cover(xdp, id)) {
        rx_resume(xdp->cover, cover_id(xdp, id));
    } else {
        tcp_resume(xdp->engine, engine_id(id));
    }
}

static int xdp_send(struct rx *rx, struct rx_id id, const struct iovec *iov, uint32_t iov_count,
                    uint64_t cookie)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    _Static_assert(RX_SENDS_MAX == TCP_SENDS_MAX && RX_SEND_IOV_MAX == TCP_SEND_IOV_MAX, "one contract");
    xdp->is_owed = true;
    return is_cover(xdp, id) ? rx_send(xdp->cover, cover_id(xdp, id), iov, iov_count, cookie)
                             : tcp_send(xdp->engine, xdp->now_ns, engine_id(id), iov, iov_count, cookie);
}

static void xdp_shutdown(struct rx *rx, struct rx_id id)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    xdp->is_owed = true;
    if (is_cover(xdp, id)) {
        rx_shutdown(xdp->cover, cover_id(xdp, id));
    } else {
        tcp_shutdown(xdp->engine, xdp->now_ns, engine_id(id));
    }
}

static void xdp_conn_close(struct rx *rx, struct rx_id id, bool abortive)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    xdp->is_owed = true;
    if (is_cover(xdp, id)) {
        rx_conn_close(xdp->cover, cover_id(xdp, id), abortive);
    } else if (abortive) {
        tcp_abort(xdp->engine, xdp->now_ns, engine_id(id));
    } else {
        tcp_close(xdp->engine, xdp->now_ns, engine_id(id));
    }
}

static void xdp_accept_stop(struct rx *rx)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    uint8_t addr[16];
    uint16_t port;
    if (xdp->is_accepting) {
        xdp->is_accepting = false;
        xdp_address_bytes(&xdp->address, addr, &port);
        int rc = tcp_listen_stop(xdp->engine, addr, port);
        CHECK(rc == 0);
        rx_accept_stop(xdp->cover);
        xdp->is_owed = true;
    }
}

/* ---- opening ------------------------------------------------------------------------------------------------------- */

static int cover_open(struct rx_xdp *xdp, const struct rx_options *options, uint64_t size, struct err *err)
{
    struct rx_options cover = *options;
    cover.area_offset = options->area_offset + options->area_size - size;
    cover.area_size = size;
    cover.buffer_size = COVER_BUFFER;
    cover.conns_max = options->conns_max < COVER_CONNS_MAX ? options->conns_max : COVER_CONNS_MAX;
    cover.interface = NULL;
    cover.filter = NULL;
    int rc = rx_open(&rx_socket_ops, &cover, &xdp->cover, err);
    if (rc == 0) {
        xdp->rx.info.conns_max = options->conns_max + cover.conns_max;
    }
    return rc;
}

static int engine_open(struct rx_xdp *xdp, const struct rx_options *options, uint32_t frames, uint32_t mtu,
                       struct err *err)
{
    struct tcp_config config = {.conns_max = options->conns_max,
                                .frames_count = frames,
                                .frames_hold_max = xdp->rx.info.buffers_total,
                                .conn_frames_max = options->conn_buffers_max,
                                .mtu = mtu,
                                .user_timeout_ns = options->user_timeout_ms * NS_PER_MS,
                                .keepalive_ns = options->keepalive_s * NS_PER_S};
    if (config.conn_frames_max > config.frames_hold_max) {
        config.conn_frames_max = config.frames_hold_max;
    }
    if (getrandom(config.secret, sizeof(config.secret), 0) != (ssize_t)sizeof(config.secret)) {
        return err_set(err, -EIO, "no randomness from the system");
    }
    size_t size = bytes_round_up(tcp_size(&config), 64);
    xdp->conns = calloc(options->conns_max, sizeof(*xdp->conns));
    xdp->engine_memory = size > 0 ? aligned_alloc(64, size) : NULL;
    if (xdp->conns == NULL || xdp->engine_memory == NULL) {
        return size == 0 ? err_set(err, -EINVAL, "the TCP engine cannot have %u connections and %u frames",
                                   options->conns_max, frames)
                         : err_set(err, -ENOMEM, "no memory for %u connections; lower connections_max",
                                   options->conns_max);
    }
    uint8_t addr[16];
    uint16_t port;
    xdp_address_bytes(&options->address, addr, &port);
    int rc = tcp_init(xdp->engine_memory, size, &config, &xdp->engine);
    rc = rc == 0 ? tcp_listen(xdp->engine, addr, port) : rc;
    return rc == 0 ? 0 : err_set(err, rc, "the TCP engine refuses: %s", err_text(rc));
}

static int frames_open(struct rx_xdp *xdp, const struct rx_options *options, uint64_t size,
                       const struct xdp_interface *interface, struct err *err)
{
    bool want_multi = interface->mtu > MTU_ONE_FRAME;
    int rc = xdp_port_take(options->interface, want_multi, &xdp->port, err);
    if (rc < 0) {
        return rc;
    }
    struct xsk_options socket = {.interface = options->interface,
                                 .queue = options->queue,
                                 .area = options->arena->base + options->area_offset,
                                 .area_size = size,
                                 .nic_ring = interface->nic_ring,
                                 .is_generic = xsk_program_is_generic(xdp_port_program(xdp->port)),
                                 .want_multi = want_multi,
                                 .patience_ms = BIND_PATIENCE_MS};
    rc = xsk_open(&xdp->xsk, &socket, err);
    if (rc < 0) {
        xdp_port_give(xdp->port);
        return rc;
    }
    xdp->is_bound = true;
    xdp->rx.info.copies = xdp->xsk.mode != XSK_MODE_ZERO_COPY;
    LOG_INF("xdp_open", "interface=%s queue=%u mode=%s why=%s", options->interface, options->queue,
            LOG_Q(xsk_mode_text(xdp->xsk.mode)),
            LOG_Q(xdp->xsk.refused[0] != '\0' ? xdp->xsk.refused : "best"));
    return 0;
}

/* Last: from here on frames come, and the kernel gets none of ours. */
static int steer(struct rx_xdp *xdp, const struct rx_options *options, struct err *err)
{
    struct xsk_program *program = xdp_port_program(xdp->port);
    int rc = xsk_program_socket_set(program, options->queue, xdp->xsk.fd);
    if (rc < 0) {
        return err_set(err, rc, "queue %u of %s: %s", options->queue, options->interface, err_text(rc));
    }
    rc = xdp_port_listen(xdp->port, &options->address, err);
    if (rc < 0) {
        (void)xsk_program_socket_clear(program, options->queue); /* It was set above. */
    }
    return rc;
}

static void xdp_free(struct rx_xdp *xdp)
{
    if (xdp->cover != NULL) {
        rx_close(xdp->cover);
    }
    if (xdp->is_bound) {
        xsk_close(&xdp->xsk);
        xdp_port_give(xdp->port);
    }
    free(xdp->engine_memory);
    free(xdp->conns);
    free(xdp);
}

static int xdp_open_parts(struct rx_xdp *xdp, const struct rx_options *options, struct err *err)
{
    uint64_t frames = options->area_size / XSK_CHUNK_DEFAULT;
    if (options->interface == NULL || frames < FRAMES_MIN || frames > UINT32_MAX) {
        return err_set(err, -EINVAL,
                       "af_xdp needs an interface and an rx_area_size of %u frames of 4KiB at least",
                       FRAMES_MIN);
    }
    uint64_t cover_buffers = frames / 16 > COVER_BUFFERS_MIN ? frames / 16 : COVER_BUFFERS_MIN;
    uint64_t cover_size = cover_buffers * COVER_BUFFER;
    uint64_t size = bytes_round_down(options->area_size - cover_size, XSK_CHUNK_DEFAULT);
    uint32_t count = (uint32_t)(size / XSK_CHUNK_DEFAULT);
    struct xdp_interface interface;
    int rc = xdp_interface_read(options->interface, &interface, err);
    if (rc < 0) {
        return rc;
    }
    /* A segment of the peer fits one frame, whatever the interface could take: only then is its payload one piece. */
    uint32_t most = XSK_CHUNK_DEFAULT - 256U - TCP_HEADERS_MAX;
    uint32_t mtu = interface.mtu < most ? interface.mtu : most;
    xdp->rx.info = (struct rx_info){.path = "af_xdp",
                                    .flow = RX_FLOW_WINDOW,
                                    .buffer_size = XSK_CHUNK_DEFAULT,
                                    .buffers_total = count * 3 / 4,
                                    .copies = true};
    count_to(&xdp->rx.stats.buffers_free_low, xdp->rx.info.buffers_total);
    rc = cover_open(xdp, options, cover_size, err);
    rc = rc == 0 ? engine_open(xdp, options, count, mtu, err) : rc;
    rc = rc == 0 ? frames_open(xdp, options, size, &interface, err) : rc;
    return rc == 0 ? steer(xdp, options, err) : rc;
}

static int xdp_open(const struct rx_options *options, struct rx **out, struct err *err)
{
    struct rx_xdp *xdp = aligned_alloc(64, bytes_round_up(sizeof(*xdp), 64));
    if (xdp == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    memset(xdp, 0, sizeof(*xdp));
    xdp->rx.ops = &rx_xdp_ops;
    xdp->rx.owner = (struct slice_owner){.retain = xdp_retain, .release = xdp_release};
    xdp->uring = options->uring;
    xdp->conns_engine = options->conns_max;
    xdp->queue = options->queue;
    xdp->address = options->address;
    xdp->buf_index = options->arena->buf_index;
    xdp->kick_ns = TIME_NEVER;
    xdp->is_accepting = true;
    xdp->poll_op = (struct rx_op){.done = poll_done, .instance = xdp};
    list_init(&xdp->poll_op.node);
    int rc = xdp_open_parts(xdp, options, err);
    if (rc < 0) {
        xdp_free(xdp);
        return rc;
    }
    rx_op_class_install(options->uring);
    xdp->rx.magic = RX_MAGIC;
    gauge_free(xdp);
    *out = &xdp->rx;
    return 0;
}

/* ---- closing ------------------------------------------------------------------------------------------------------- */

/* Resets every connection, also those whose RX_OPEN was not taken yet, and sends what can be sent of it. */
static void abort_all(struct rx_xdp *xdp)
{
    struct tcp_event event;
    for (uint32_t i = 0; i < xdp->conns_engine; i++) {
        if (xdp->conns[i].generation != 0) {
            tcp_abort(xdp->engine, xdp->now_ns,
                      (struct tcp_id){.index = i, .generation = xdp->conns[i].generation});
        }
    }
    while (tcp_next_event(xdp->engine, &event) != 0) { /* Ends: no frame comes in any more. */
        if (event.kind == TCP_EVENT_OPEN) {
            tcp_abort(xdp->engine, xdp->now_ns, event.id);
        } else if (event.kind == TCP_EVENT_DATA) {
            tcp_release(xdp->engine, event.data.token);
        }
    }
    (void)send_packets(xdp); /* Peers that hear nothing time out. */
    give_back(xdp);
}

static void xdp_close(struct rx *rx)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    (void)xsk_program_socket_clear(xdp_port_program(xdp->port),
                                   xdp->queue); /* From here on frames are dropped. */
    abort_all(xdp);
    if (xdp->poll_op.in_flight) {
        struct io_uring_sqe *sqe = uring_sqe(xdp->uring);
        io_uring_prep_cancel64(sqe, (uint64_t)(uintptr_t)&xdp->poll_op | URING_CLASS_RX, 0);
        uring_sqe_bind(sqe, URING_CLASS_NONE, NULL);
    }
    for (int i = 0; xdp->poll_op.in_flight && i < CLOSE_WAITS_MAX; i++) {
        CHECK(uring_submit_and_wait(xdp->uring, CLOSE_WAIT_NS) == 0);
        uring_reap(xdp->uring, UINT32_MAX);
    }
    CHECK(!xdp->poll_op.in_flight);
    CHECK(tcp_stats(xdp->engine)->frames_held == 0); /* Every slice was released. */
    xdp_port_unlisten(xdp->port, &xdp->address);
    rx->magic = 0;
    xdp_free(xdp);
}

const struct rx_ops rx_xdp_ops = {
    .path = "af_xdp",
    .open = xdp_open,
    .close = xdp_close,
    .poll = xdp_poll,
    .deadline = xdp_deadline,
    .user_set = xdp_user_set,
    .pause = xdp_pause,
    .resume = xdp_resume,
    .send = xdp_send,
    .shutdown = xdp_shutdown,
    .conn_close = xdp_conn_close,
    .accept_stop = xdp_accept_stop,
};
