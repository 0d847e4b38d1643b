/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_xdp: the backend on AF_XDP, one listener on one worker. Frames of the worker's NIC queues go through our own TCP engine (tcp/),
 * which lends the payload to the consumer where the NIC put it; sockets, frames and engine are the hub's (rx_xdp_hub.c), which the
 * listeners of an interface share. A kernel socket on the same address, the cover, holds the port (so that nothing else of this host
 * binds it) and serves peers that do not come through the NIC: this host's own, and those on other interfaces. What comes through the
 * NIC it drops unanswered, in case the XDP program is off for a moment.
 *
 *   NIC --XDP program--> hub --frames--> engine --events--> rx_poll       engine --packets--> hub --> NIC
 *   loopback -----------------------> cover (socket backend) --events--> rx_poll
 *
 * Invariants
 *  1. A received frame is the engine's (out of order, not yet taken), the consumer's (a slice), or goes back to the fill ring in
 *     the same or the next turn. Its token is its number.
 *  2. Connections 0 .. conns_engine-1 are the engine's, the rest the cover's; generations are theirs. Slices of the cover carry
 *     COVER_TOKEN, so that a release finds its owner.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "rx/rx_int.h"
#include "rx/rx_ktcp.h"
#include "rx/rx_xdp_hub.h"

#define COVER_BUFFER 4096U
#define COVER_CONNS_MAX 64U
#define COVER_TOKEN (1ULL << 63)

struct xdp_conn {
    struct sockaddr_storage peer, local;
    uint32_t generation; /* of the live connection here; 0: none */
};

struct rx_xdp {
    struct rx rx; /* first */
    struct xdp_hub *hub;
    uint32_t listener; /* the engine's number of it */
    struct xdp_conn *
        conns; /* conns_engine of them: a place for each connection of the engine, of which others have some */
    uint32_t conns_engine;
    uint32_t slices; /* of the engine's, at the consumer */
    uint64_t opened, reset;
    uint32_t open;
    struct sockaddr_storage address;
    struct rx *cover;
    uint64_t generation; /* of the port, that the cover's filter is for */
    bool is_cover_first; /* whose events are taken first; by turns */
    bool is_accepting;
    bool is_listening; /* the program knows the address */
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
    uint64_t held = tcp_stats(xdp->hub->engine)->frames_held;
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
    tcp_retain(xdp->hub->engine, (uint32_t)slice->token);
    xdp->slices++;
}

static void xdp_release(struct slice_owner *owner, const struct slice *slice)
{
    struct rx_xdp *xdp = CONTAINER_OF(owner, struct rx_xdp, rx.owner);
    if ((slice->token & COVER_TOKEN) != 0) {
        struct slice inner = cover_slice(xdp, slice);
        slice_release(&inner);
        return;
    }
    CHECK(xdp->slices > 0);
    xdp->slices--;
    tcp_release(xdp->hub->engine, (uint32_t)slice->token);
    xdp->hub->is_owed = true;
    gauge_free(xdp);
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
    xdp->open++;
    address_write(from->tuple->peer, from->tuple->peer_port, from->tuple->version, &conn->peer);
    address_write(from->tuple->local, from->tuple->local_port, from->tuple->version, &conn->local);
    to->peer = &conn->peer;
    to->local = &conn->local;
}

static void event_data(struct rx_xdp *xdp, const struct tcp_event *from, struct rx_event *to)
{
    to->slice = (struct slice){.addr = from->data.addr,
                               .len = from->data.len,
                               .buf_index = xdp->hub->buf_index,
                               .owner = &xdp->rx.owner,
                               .token = from->data.token};
    xdp->slices++;
    count_to(&xdp->rx.stats.receives, count_of(&xdp->rx.stats.receives) + 1);
    count_to(&xdp->rx.stats.received_bytes, count_of(&xdp->rx.stats.received_bytes) + from->data.len);
    if (xdp_hub_copies(xdp->hub)) {
        count_to(&xdp->rx.stats.kernel_copied_bytes,
                 count_of(&xdp->rx.stats.kernel_copied_bytes) + from->data.len);
    }
}

static void event_translate(struct rx_xdp *xdp, const struct tcp_event *from, struct rx_event *to)
{
    static const enum rx_event_kind kinds[] = {
        [TCP_EVENT_OPEN] = RX_OPEN,    [TCP_EVENT_DATA] = RX_DATA, [TCP_EVENT_EOF] = RX_EOF,
        [TCP_EVENT_RESET] = RX_RESET,  [TCP_EVENT_SENT] = RX_SENT, [TCP_EVENT_ROOM] = RX_ROOM,
        [TCP_EVENT_CLOSED] = RX_CLOSED};
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
        xdp->open--;
    } else {
        xdp->reset += from->kind == TCP_EVENT_RESET;
        to->cookie = from->cookie;
        to->error = from->error;
        to->sent = from->sent;
        count_to(&xdp->rx.stats.sent_bytes, count_of(&xdp->rx.stats.sent_bytes) - from->unsent);
    }
}

/* Ends with an RX_OPEN: what follows it carries the consumer's pointer, which it gives only when it has seen the RX_OPEN. */
static uint32_t events_engine(struct rx_xdp *xdp, struct rx_event *events, uint32_t max)
{
    struct tcp_event event;
    uint32_t count = 0;
    while (count < max && tcp_next_event_of(xdp->hub->engine, xdp->listener, &event) != 0) {
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
    int count = max > 0 ? rx_poll(xdp->cover, xdp->hub->now_ns, events, max) : 0;
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
    const struct tcp_stats *tcp = tcp_stats(xdp->hub->engine);
    const struct rx_stats *cover = &xdp->cover->stats;
    struct rx_stats *stats = &xdp->rx.stats;
    count_to(&stats->conns_opened, xdp->opened + count_of(&cover->conns_opened));
    count_to(&stats->conns_refused,
             tcp_listen_refused(xdp->hub->engine, xdp->listener) + count_of(&cover->conns_refused));
    count_to(&stats->conns_reset, xdp->reset + count_of(&cover->conns_reset));
    count_to(&stats->conns_open, xdp->open + count_of(&cover->conns_open));
    count_to(&stats->starved, tcp->counters[TCP_COUNTER_refused_pool] + count_of(&cover->starved));
    if (xdp->rx.xdp != NULL) { /* of the interface, so at its first listener */
        count_to(&stats->moved_bytes, xdp->hub->moved_bytes);
    }
    gauge_free(xdp);
}

/* ---- the loop's face ------------------------------------------------------------------------------------------------- */

/* The interface may have come back as another one, which the kernel must not answer for either. */
static void cover_ignore(struct rx_xdp *xdp)
{
    uint64_t generation = xdp_port_generation(xdp->hub->port);
    if (xdp->generation != generation) {
        xdp->generation = generation;
        int rc = ktcp_ignore((struct ktcp *)xdp->cover, xdp->hub->interface);
        if (rc < 0) {
            LOG_WRN("xdp_cover", "interface=%s error=%s", xdp->hub->interface, LOG_Q(err_text(rc)));
        }
    }
}

static int xdp_poll(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    xdp_hub_turn(xdp->hub, now_ns);
    cover_ignore(xdp);
    int count = events_take(xdp, events, max);
    xdp_hub_flush(xdp->hub);
    stats_update(xdp);
    return count;
}

static uint64_t xdp_deadline(struct rx *rx)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    uint64_t at = xdp_hub_deadline(xdp->hub);
    uint64_t cover = rx_deadline(xdp->cover);
    return cover < at ? cover : at;
}

static void xdp_user_set(struct rx *rx, struct rx_id id, void *user)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    if (is_cover(xdp, id)) {
        rx_user_set(xdp->cover, cover_id(xdp, id), user);
    } else {
        tcp_user_set(xdp->hub->engine, engine_id(id), user);
    }
}

static void xdp_pause(struct rx *rx, struct rx_id id)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    if (is_cover(xdp, id)) {
        rx_pause(xdp->cover, cover_id(xdp, id));
    } else {
        tcp_pause(xdp->hub->engine, engine_id(id));
    }
}

static void xdp_resume(struct rx *rx, struct rx_id id)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    xdp->hub->is_owed = true;
    if (is_cover(xdp, id)) {
        rx_resume(xdp->cover, cover_id(xdp, id));
    } else {
        tcp_resume(xdp->hub->engine, engine_id(id));
    }
}

static int xdp_send(struct rx *rx, struct rx_id id, const struct iovec *iov, uint32_t iov_count,
                    uint64_t cookie)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    _Static_assert(RX_SENDS_MAX == TCP_SENDS_MAX && RX_SEND_IOV_MAX == TCP_SEND_IOV_MAX, "one contract");
    xdp->hub->is_owed = true;
    int rc = is_cover(xdp, id)
                 ? rx_send(xdp->cover, cover_id(xdp, id), iov, iov_count, cookie)
                 : tcp_send(xdp->hub->engine, xdp->hub->now_ns, engine_id(id), iov, iov_count, cookie);
    uint64_t bytes = count_of(&xdp->rx.stats.sent_bytes);
    for (uint32_t i = 0; rc == 0 && i < iov_count; i++) {
        bytes += iov[i].iov_len;
    }
    count_to(&xdp->rx.stats.sent_bytes, bytes);
    return rc;
}

static int xdp_send_recall(struct rx *rx, struct rx_id id)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    xdp->hub->is_owed = true;
    return is_cover(xdp, id) ? rx_send_recall(xdp->cover, cover_id(xdp, id))
                             : tcp_recall(xdp->hub->engine, xdp->hub->now_ns, engine_id(id));
}

static void xdp_shutdown(struct rx *rx, struct rx_id id)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    xdp->hub->is_owed = true;
    if (is_cover(xdp, id)) {
        rx_shutdown(xdp->cover, cover_id(xdp, id));
    } else {
        tcp_shutdown(xdp->hub->engine, xdp->hub->now_ns, engine_id(id));
    }
}

static void xdp_conn_close(struct rx *rx, struct rx_id id, bool abortive)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    xdp->hub->is_owed = true;
    if (is_cover(xdp, id)) {
        rx_conn_close(xdp->cover, cover_id(xdp, id), abortive);
    } else if (abortive) {
        tcp_abort(xdp->hub->engine, xdp->hub->now_ns, engine_id(id));
    } else {
        tcp_close(xdp->hub->engine, xdp->hub->now_ns, engine_id(id));
    }
}

/* ---- opening ------------------------------------------------------------------------------------------------------- */

static int cover_open(struct rx_xdp *xdp, const struct rx_options *options, struct err *err)
{
    struct rx_options cover = *options;
    cover.area_offset = xdp_hub_cover_take(xdp->hub);
    cover.area_size = xdp->hub->cover_size;
    cover.buffer_size = COVER_BUFFER;
    cover.conns_max = options->conns_max < COVER_CONNS_MAX ? options->conns_max : COVER_CONNS_MAX;
    cover.interface = NULL;
    cover.share = NULL;
    cover.filter = NULL;
    cover.ignore_interface = options->interface;
    int rc = rx_open(&rx_socket_ops, &cover, &xdp->cover, err);
    if (rc == 0) {
        xdp->rx.info.conns_max = xdp->conns_engine + cover.conns_max;
    }
    return rc;
}

static int engine_listen(struct rx_xdp *xdp, const struct rx_options *options, struct err *err)
{
    uint8_t addr[16];
    uint16_t port;
    struct tcp_limits limits = {.conns_max = options->conns_max,
                                .user_timeout_ns = options->user_timeout_ms * NS_PER_MS,
                                .keepalive_ns = options->keepalive_s * NS_PER_S};
    xdp_address_bytes(&options->address, addr, &port);
    int rc = tcp_listen(xdp->hub->engine, addr, port);
    if (rc < 0) {
        return err_set(err, rc, "the TCP engine refuses: %s", err_text(rc));
    }
    xdp->is_accepting = true;
    xdp->listener = (uint32_t)rc;
    tcp_listen_limits(xdp->hub->engine, xdp->listener, &limits);
    return 0;
}

/* Last: from here on frames come, and the kernel gets none of ours. */
static int steer(struct rx_xdp *xdp, const struct rx_options *options, struct err *err)
{
    int rc = xdp_hub_steer(xdp->hub, err);
    rc = rc == 0 ? xdp_port_listen(xdp->hub->port, &options->address, err) : rc;
    xdp->is_listening = rc == 0;
    return rc;
}

static int xdp_open_parts(struct rx_xdp *xdp, const struct rx_options *options, struct err *err)
{
    int rc = xdp_hub_take(options, &xdp->hub, err);
    if (rc < 0) {
        xdp->hub = NULL;
        return rc;
    }
    const struct xdp_hub *hub = xdp->hub;
    xdp->rx.info = (struct rx_info){.path = "af_xdp",
                                    .flow = RX_FLOW_WINDOW,
                                    .buffer_size = XSK_CHUNK_DEFAULT,
                                    .buffers_total = hub->buffers_total,
                                    .shares_buffers = true,
                                    .copies = xdp_hub_copies(hub)};
    xdp->rx.xdp = hub->users == 1 ? &hub->stats : NULL;
    xdp->conns_engine = hub->share.conns_max;
    xdp->conns = calloc(xdp->conns_engine, sizeof(*xdp->conns));
    if (xdp->conns == NULL) {
        return err_set(err, -ENOMEM, "no memory for %u connections; lower connections_max",
                       xdp->conns_engine);
    }
    count_to(&xdp->rx.stats.buffers_free_low, xdp->rx.info.buffers_total);
    xdp_interface_advise(options->interface, &options->address);
    rc = cover_open(xdp, options, err);
    rc = rc == 0 ? engine_listen(xdp, options, err) : rc;
    return rc == 0 ? steer(xdp, options, err) : rc;
}

/* Resets every connection of the listener, also those whose RX_OPEN was not taken yet, and sends what can be sent of it. */
static void abort_all(struct rx_xdp *xdp)
{
    struct tcp_engine *engine = xdp->hub->engine;
    struct tcp_event event;
    for (uint32_t i = 0; i < xdp->conns_engine; i++) {
        if (xdp->conns[i].generation != 0) {
            tcp_abort(engine, xdp->hub->now_ns,
                      (struct tcp_id){.index = i, .generation = xdp->conns[i].generation});
        }
    }
    while (tcp_next_event_of(engine, xdp->listener, &event) != 0) { /* Ends: nobody accepts any more. */
        if (event.kind == TCP_EVENT_OPEN) {
            tcp_abort(engine, xdp->hub->now_ns, event.id);
        } else if (event.kind == TCP_EVENT_DATA) {
            tcp_release(engine, event.data.token);
        }
    }
    xdp_hub_flush(xdp->hub); /* Peers that hear nothing time out. */
}

static void accept_end(struct rx_xdp *xdp)
{
    uint8_t addr[16];
    uint16_t port;
    if (xdp->is_accepting) {
        xdp->is_accepting = false;
        xdp_address_bytes(&xdp->address, addr, &port);
        int rc = tcp_listen_stop(xdp->hub->engine, addr, port);
        CHECK(rc == 0);
    }
}

static void xdp_accept_stop(struct rx *rx)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    if (xdp->is_accepting) {
        accept_end(xdp);
        rx_accept_stop(xdp->cover);
        xdp->hub->is_owed = true;
    }
}

static void xdp_free(struct rx_xdp *xdp)
{
    if (xdp->hub != NULL) {
        accept_end(xdp);
        abort_all(xdp);
        if (xdp->is_listening) {
            xdp_port_unlisten(xdp->hub->port, &xdp->address);
        }
    }
    if (xdp->cover != NULL) {
        rx_close(xdp->cover);
    }
    if (xdp->hub != NULL) {
        xdp_hub_give(xdp->hub);
    }
    free(xdp->conns);
    free(xdp);
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
    xdp->address = options->address;
    xdp->listener = TCP_LISTENS_MAX;
    int rc = xdp_open_parts(xdp, options, err);
    if (rc < 0) {
        xdp_free(xdp);
        return rc;
    }
    xdp->rx.magic = RX_MAGIC;
    gauge_free(xdp);
    *out = &xdp->rx;
    return 0;
}

static void xdp_close(struct rx *rx)
{
    struct rx_xdp *xdp = (struct rx_xdp *)rx;
    CHECK(xdp->slices == 0); /* Every slice was released. */
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
    .send_recall = xdp_send_recall,
    .shutdown = xdp_shutdown,
    .conn_close = xdp_conn_close,
    .accept_stop = xdp_accept_stop,
};
