/* SPDX-License-Identifier: Apache-2.0 */
/* rx_sim: see rx_sim.h. Bounded by SIM_CONNS connections per instance, which are never reused. */
#include "rx_sim.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/list.h"

#define SIM_CONNS 4096U
#define SIM_BUFFERS 64U

struct sim_fragment {
    struct sim_fragment *next;
    uint32_t refs;
    uint32_t len;
    uint8_t bytes[];
};

struct sim_sent {
    uint64_t cookie;
    int error;
    size_t len;
    size_t sent;
};

struct sim_peer {
    struct rx_sim *sim;
    struct rx_id id;
    void *user;
    struct sockaddr_storage address;
    struct sim_fragment *first;
    struct sim_fragment *last;
    size_t undelivered;
    char *received;
    size_t received_len;
    struct sim_sent sents[RX_SENDS_MAX];
    uint32_t sent_count;
    uint64_t acked;
    bool is_opened, is_paused, has_fin, has_reset, is_end_told, reads_nothing;
    bool is_shut, is_closing, is_abortive, is_closed, is_recalled, has_room;
};

struct rx_sim {
    struct rx rx; /* first */
    struct sim_peer *peers[SIM_CONNS];
    uint32_t count;
    uint32_t next; /* where the next poll begins */
    uint64_t slices_out;
    bool is_stopped;
};

static struct rx_sim *sim_of(const struct rx *rx)
{
    return (struct rx_sim *)(uintptr_t)rx;
}

static struct sim_peer *sim_peer(struct rx *rx, struct rx_id id)
{
    return sim_of(rx)->peers[id.index];
}

/* ---- slices ---------------------------------------------------------------------------------------------------- */

static void sim_retain(struct slice_owner *owner, const struct slice *slice)
{
    struct rx_sim *sim = (struct rx_sim *)CONTAINER_OF(owner, struct rx, owner);
    struct sim_fragment *fragment = (struct sim_fragment *)(uintptr_t)slice->token;
    CHECK(fragment->refs > 0);
    fragment->refs++;
    sim->slices_out++;
}

static void sim_release(struct slice_owner *owner, const struct slice *slice)
{
    struct rx_sim *sim = (struct rx_sim *)CONTAINER_OF(owner, struct rx, owner);
    struct sim_fragment *fragment = (struct sim_fragment *)(uintptr_t)slice->token;
    CHECK(fragment->refs > 0);
    CHECK(sim->slices_out > 0);
    sim->slices_out--;
    fragment->refs--;
    if (fragment->refs == 0) {
        free(fragment);
    }
}

/* ---- the peer's side ------------------------------------------------------------------------------------------- */

struct sim_peer *sim_connect(struct rx *rx, uint8_t host)
{
    struct rx_sim *sim = sim_of(rx);
    CHECK(sim->count < SIM_CONNS);
    struct sim_peer *peer = calloc(1, sizeof(*peer));
    CHECK(peer != NULL);
    peer->sim = sim;
    peer->id = (struct rx_id){.index = sim->count, .generation = 1};
    struct sockaddr_in *in = (struct sockaddr_in *)&peer->address;
    in->sin_family = AF_INET;
    in->sin_port = htons((uint16_t)(40000 + sim->count));
    in->sin_addr.s_addr = htonl(0xc0000200U | host);
    peer->received = calloc(1, 1);
    sim->peers[sim->count++] = peer;
    return peer;
}

void sim_send(struct sim_peer *peer, const void *bytes, size_t len)
{
    struct sim_fragment *fragment = malloc(sizeof(*fragment) + len);
    CHECK(fragment != NULL);
    CHECK(len > 0);
    *fragment = (struct sim_fragment){.refs = 1, .len = (uint32_t)len};
    memcpy(fragment->bytes, bytes, len);
    if (peer->last == NULL) {
        peer->first = fragment;
    } else {
        peer->last->next = fragment;
    }
    peer->last = fragment;
    peer->undelivered++;
}

void sim_send_text(struct sim_peer *peer, const char *text)
{
    sim_send(peer, text, strlen(text));
}

void sim_fin(struct sim_peer *peer)
{
    peer->has_fin = true;
}

void sim_reset(struct sim_peer *peer)
{
    peer->has_reset = true;
}

void sim_reset_with_room(struct sim_peer *peer)
{
    CHECK(peer->is_recalled);
    peer->has_reset = true;
    peer->has_room = true;
}

void sim_read_stop(struct sim_peer *peer, bool is_stopped)
{
    peer->reads_nothing = is_stopped;
}

void sim_ack(struct sim_peer *peer, uint64_t bytes)
{
    peer->acked += bytes;
}

const char *sim_received(const struct sim_peer *peer, size_t *len)
{
    if (len != NULL) {
        *len = peer->received_len;
    }
    return peer->received;
}

size_t sim_undelivered(const struct sim_peer *peer)
{
    return peer->undelivered;
}

bool sim_got_fin(const struct sim_peer *peer)
{
    return peer->is_shut || (peer->is_closed && !peer->is_abortive);
}

bool sim_got_reset(const struct sim_peer *peer)
{
    return peer->is_closed && peer->is_abortive;
}

bool sim_is_closed(const struct sim_peer *peer)
{
    return peer->is_closed;
}

uint64_t sim_slices_out(const struct rx *rx)
{
    return sim_of(rx)->slices_out;
}

void sim_buffers_free(struct rx *rx, uint64_t count)
{
    rx->stats.buffers_free = count;
}

/* ---- the backend's side ---------------------------------------------------------------------------------------- */

static int sim_open(const struct rx_options *options, struct rx **out, struct err *err)
{
    (void)err; /* Nothing can fail that a test could do something about. */
    struct rx_sim *sim = calloc(1, sizeof(*sim));
    CHECK(sim != NULL);
    sim->rx.magic = RX_MAGIC;
    sim->rx.ops = &rx_sim_ops;
    sim->rx.info = (struct rx_info){.path = "sim",
                                    .flow = RX_FLOW_WINDOW,
                                    .buffer_size = 4096,
                                    .buffers_total = SIM_BUFFERS,
                                    .conns_max = SIM_CONNS};
    sim->rx.owner = (struct slice_owner){.retain = sim_retain, .release = sim_release};
    sim->rx.stats.buffers_free = SIM_BUFFERS;
    (void)options; /* Limits of connections are the worker's in these tests. */
    *out = &sim->rx;
    return 0;
}

static void sim_close(struct rx *rx)
{
    struct rx_sim *sim = sim_of(rx);
    CHECK(sim->slices_out == 0);
    for (uint32_t i = 0; i < sim->count; i++) {
        struct sim_peer *peer = sim->peers[i];
        while (peer->first != NULL) {
            struct sim_fragment *fragment = peer->first;
            peer->first = fragment->next;
            free(fragment);
        }
        free(peer->received);
        free(peer);
    }
    free(sim);
}

static bool sim_next_data(struct sim_peer *peer, struct rx_event *event)
{
    if (peer->first == NULL || peer->is_paused || peer->is_closing) {
        return false;
    }
    struct sim_fragment *fragment = peer->first;
    peer->first = fragment->next;
    peer->last = peer->first == NULL ? NULL : peer->last;
    peer->undelivered--;
    peer->sim->slices_out++;
    event->kind = RX_DATA;
    event->slice = (struct slice){.addr = fragment->bytes,
                                  .len = fragment->len,
                                  .buf_index = -1,
                                  .owner = &peer->sim->rx.owner,
                                  .token = (uintptr_t)fragment};
    return true;
}

/* The next event of one connection, in the order the contract demands. */
static bool sim_next(struct sim_peer *peer, struct rx_event *event)
{
    memset(event, 0, sizeof(*event));
    event->id = peer->id;
    event->user = peer->user;
    if (!peer->is_opened) {
        peer->is_opened = true;
        event->kind = RX_OPEN;
        event->peer = &peer->address;
        event->local = &peer->address;
        return true;
    }
    if (peer->sent_count > 0 &&
        (!peer->reads_nothing || peer->is_abortive || peer->has_reset || peer->is_recalled)) {
        event->kind = RX_SENT;
        event->cookie = peer->sents[0].cookie;
        event->error = peer->is_abortive || peer->has_reset ? -ECANCELED : peer->sents[0].error;
        event->sent = peer->sents[0].sent;
        peer->sent_count--;
        memmove(&peer->sents[0], &peer->sents[1], peer->sent_count * sizeof(peer->sents[0]));
        return true;
    }
    if (peer->is_closing && peer->sent_count == 0) {
        event->kind = RX_CLOSED;
        peer->is_closed = true;
        return true;
    }
    if (peer->is_recalled && peer->sent_count == 0 && !peer->reads_nothing && !peer->has_reset &&
        !peer->is_closing) {
        peer->is_recalled = false;
        event->kind = RX_ROOM;
        return true;
    }
    if (peer->has_reset && !peer->is_end_told && !peer->is_closing) {
        peer->is_end_told = true;
        event->kind = RX_RESET;
        event->error = -ECONNRESET;
        return true;
    }
    if (peer->has_reset || sim_next_data(peer, event)) {
        return !peer->has_reset;
    }
    if (peer->has_fin && peer->first == NULL && !peer->is_end_told && !peer->is_paused && !peer->is_closing) {
        peer->is_end_told = true;
        event->kind = RX_EOF;
        return true;
    }
    return false;
}

/* RX_ROOM behind the RX_RESET that was just written. */
static uint32_t sim_room_behind(struct sim_peer *peer, struct rx_event *event)
{
    if (event[-1].kind != RX_RESET || !peer->has_room) {
        return 0;
    }
    *event = (struct rx_event){.kind = RX_ROOM, .id = peer->id, .user = peer->user};
    peer->is_recalled = false;
    return 1;
}

static int sim_poll(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max)
{
    (void)now_ns; /* Nothing here depends on time. */
    struct rx_sim *sim = sim_of(rx);
    uint32_t count = 0;
    /* One event per connection and call, so that the server's answers to an event come before the next one. */
    for (uint32_t i = 0; i < sim->count && count < max; i++) {
        struct sim_peer *peer = sim->peers[(sim->next + i) % sim->count];
        if (!peer->is_closed && (peer->is_opened || !sim->is_stopped) && sim_next(peer, &events[count])) {
            count++;
            count += count < max ? sim_room_behind(peer, &events[count]) : 0;
        }
    }
    sim->next++;
    return (int)count;
}

static uint64_t sim_deadline(struct rx *rx)
{
    (void)rx; /* Tests turn the worker themselves. */
    return UINT64_MAX;
}

static void sim_user_set(struct rx *rx, struct rx_id id, void *user)
{
    sim_peer(rx, id)->user = user;
}

static void sim_pause(struct rx *rx, struct rx_id id)
{
    sim_peer(rx, id)->is_paused = true;
}

static void sim_resume(struct rx *rx, struct rx_id id)
{
    sim_peer(rx, id)->is_paused = false;
}

static int sim_rx_send(struct rx *rx, struct rx_id id, const struct iovec *iov, uint32_t iov_count,
                       uint64_t cookie)
{
    struct sim_peer *peer = sim_peer(rx, id);
    if (peer->has_reset || peer->is_shut || peer->is_closing) {
        return -EPIPE;
    }
    if (peer->sent_count == RX_SENDS_MAX) {
        return -EAGAIN;
    }
    size_t before = peer->received_len;
    for (uint32_t i = 0; i < iov_count; i++) {
        peer->received = realloc(peer->received, peer->received_len + iov[i].iov_len + 1);
        CHECK(peer->received != NULL);
        memcpy(peer->received + peer->received_len, iov[i].iov_base, iov[i].iov_len);
        peer->received_len += iov[i].iov_len;
        peer->received[peer->received_len] = '\0';
    }
    peer->sents[peer->sent_count++] = (struct sim_sent){.cookie = cookie, .len = peer->received_len - before};
    return 0;
}

/* TCP has taken a third of what is in flight, and at least a byte less than all. */
static int sim_send_recall(struct rx *rx, struct rx_id id)
{
    struct sim_peer *peer = sim_peer(rx, id);
    size_t total = 0;
    for (uint32_t i = 0; i < peer->sent_count; i++) {
        total += peer->is_recalled ? 0 : peer->sents[i].len;
    }
    size_t taken = total / 3;
    peer->received_len -= total - taken;
    peer->received[peer->received_len] = '\0';
    for (uint32_t i = 0; i < peer->sent_count && !peer->is_recalled; i++) {
        struct sim_sent *sent = &peer->sents[i];
        sent->sent = taken < sent->len ? taken : sent->len;
        sent->error = sent->sent < sent->len ? -EAGAIN : 0;
        taken -= sent->sent;
    }
    peer->is_recalled = true;
    return 0;
}

static uint64_t sim_acked(struct rx *rx, struct rx_id id)
{
    return sim_peer(rx, id)->acked;
}

static void sim_shutdown(struct rx *rx, struct rx_id id)
{
    sim_peer(rx, id)->is_shut = true;
}

static void sim_conn_close(struct rx *rx, struct rx_id id, bool abortive)
{
    struct sim_peer *peer = sim_peer(rx, id);
    peer->is_closing = true;
    peer->is_abortive = abortive;
}

static void sim_accept_stop(struct rx *rx)
{
    sim_of(rx)->is_stopped = true;
}

const struct rx_ops rx_sim_ops = {
    .path = "sim",
    .open = sim_open,
    .close = sim_close,
    .poll = sim_poll,
    .deadline = sim_deadline,
    .user_set = sim_user_set,
    .pause = sim_pause,
    .resume = sim_resume,
    .send = sim_rx_send,
    .send_recall = sim_send_recall,
    .acked = sim_acked,
    .shutdown = sim_shutdown,
    .conn_close = sim_conn_close,
    .accept_stop = sim_accept_stop,
};
