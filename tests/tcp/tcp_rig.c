/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_rig: see tcp_rig.h. */
#include "tcp_rig.h"

#include "base/check.h"

uint8_t rig_pattern(uint32_t at)
{
    return (uint8_t)((at * 2654435761U) >> 24);
}

void rig_open(struct rig *rig, const struct tcp_config *config)
{
    static const uint8_t any[16];
    memset(rig, 0, sizeof(*rig));
    rig->config = *config;
    if (rig->config.conns_max == 0) {
        rig->config.conns_max = 8;
    }
    rig->config.frames_count = RIG_FRAMES;
    memset(rig->config.secret, 7, sizeof(rig->config.secret));
    size_t size = tcp_size(&rig->config);
    CHECK(size > 0);
    rig->memory = aligned_alloc(64, size);
    CHECK(tcp_init(rig->memory, size, &rig->config, &rig->engine) == 0);
    rig->frames = calloc(RIG_FRAMES, RIG_FRAME_SIZE);
    for (uint32_t i = 0; i < RIG_FRAMES; i++) {
        rig->tokens[rig->tokens_count++] = i;
    }
    rig->now = 1000 * NS_PER_S;
    CHECK(tcp_listen(rig->engine, any, 80) == 0);
    rig_peer_init(rig, &rig->first, 1, 4);
    rig->peer = &rig->first;
}

void rig_peer_init(struct rig *rig, struct peer *peer, uint32_t n, uint32_t version)
{
    (void)rig; /* peers are alike in every rig */
    memset(peer, 0, sizeof(*peer));
    if (version == 4) {
        uint8_t local[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1};
        uint8_t remote[16] = {
            [10] = 0xff, [11] = 0xff, [12] = 10, [13] = 1, [14] = (uint8_t)(n >> 8), [15] = (uint8_t)n};
        memcpy(peer->tuple.local, local, 16);
        memcpy(peer->tuple.peer, remote, 16);
    } else {
        uint8_t local[16] = {[0] = 0xfd, [15] = 1};
        uint8_t remote[16] = {[0] = 0xfd, [1] = 1, [14] = (uint8_t)(n >> 8), [15] = (uint8_t)n};
        memcpy(peer->tuple.local, local, 16);
        memcpy(peer->tuple.peer, remote, 16);
    }
    peer->tuple.version = version;
    peer->tuple.local_port = 80;
    peer->tuple.peer_port = (uint16_t)(10000 + n);
    peer->link = (struct tcp_link){.peer_mac = {2, 0, 0, 0, 0, (uint8_t)n}, .local_mac = {2, 1, 1, 1, 1, 1}};
    peer->irs = 0xfffff000U + n; /* wraps after 4 KiB */
    peer->ts_on = peer->sack_on = peer->wscale_on = true;
}

/* The tuple and link as the peer writes them. */
static void turn(const struct peer *peer, struct tcp_tuple *tuple, struct tcp_link *link)
{
    *tuple = peer->tuple;
    memcpy(tuple->local, peer->tuple.peer, 16);
    memcpy(tuple->peer, peer->tuple.local, 16);
    tuple->local_port = peer->tuple.peer_port;
    tuple->peer_port = peer->tuple.local_port;
    *link = peer->link;
    memcpy(link->local_mac, peer->link.peer_mac, 6);
    memcpy(link->peer_mac, peer->link.local_mac, 6);
}

static void collect_frames(struct rig *rig)
{
    rig->tokens_count +=
        tcp_frames_take(rig->engine, rig->tokens + rig->tokens_count, RIG_FRAMES - rig->tokens_count);
}

static uint32_t feed(struct rig *rig, uint32_t token, uint32_t len)
{
    struct tcp_part part = {.addr = rig->frames[token], .len = len, .token = token};
    uint32_t held = tcp_input(rig->engine, rig->now, &part, 1);
    CHECK(held <= 1);
    if (held == 0) {
        rig->tokens[rig->tokens_count++] = token;
    }
    rig_events(rig);
    return held;
}

uint32_t rig_shoot(struct rig *rig, struct shot shot)
{
    const struct peer *peer = rig->peer;
    struct tcp_tuple tuple;
    struct tcp_link link;
    turn(peer, &tuple, &link);
    struct tcp_out out = {.tuple = &tuple,
                          .link = &link,
                          .seq = peer->irs + shot.seq,
                          .ack = shot.flags & TCP_ACK ? peer->iss + shot.ack + shot.wrong_ack : 0,
                          .window = shot.window,
                          .flags = shot.flags,
                          .ecn = shot.ecn,
                          .options = shot.options};
    if (peer->ts_on && !shot.no_ts) {
        out.options.has_ts = true;
        out.options.ts_value = shot.ts != 0 ? shot.ts : (uint32_t)(rig->now / NS_PER_MS);
        out.options.ts_echo = peer->ts_echo;
    }
    if (shot.sack.start != shot.sack.end) {
        out.options.sack_count = 1;
        out.options.sack[0] = (struct tcp_range){peer->iss + shot.sack.start, peer->iss + shot.sack.end};
    }
    CHECK(rig->tokens_count > 0);
    uint32_t token = rig->tokens[--rig->tokens_count];
    uint8_t *frame = rig->frames[token];
    uint8_t *payload = frame + tcp_wire_headers_len(&out);
    for (uint32_t i = 0; i < shot.len; i++) {
        payload[i] = rig_pattern(shot.seq + i);
    }
    uint32_t len = tcp_wire_emit(&out, frame, shot.len, tcp_checksum_add(0, payload, shot.len));
    if (shot.bad_checksum) {
        frame[tcp_wire_headers_len(&out) - 1 + shot.len] ^= 1;
    }
    return feed(rig, token, len);
}

uint32_t rig_raw(struct rig *rig, const uint8_t *bytes, uint32_t len)
{
    CHECK(rig->tokens_count > 0);
    uint32_t token = rig->tokens[--rig->tokens_count];
    memcpy(rig->frames[token], bytes, len);
    return feed(rig, token, len);
}

const struct tcp_segment *rig_out(struct rig *rig)
{
    rig->packet_len = tcp_next_packet(rig->engine, rig->now, rig->packet, sizeof(rig->packet));
    rig_events(rig);
    if (rig->packet_len == 0) {
        return NULL;
    }
    struct tcp_part part = {.addr = rig->packet, .len = rig->packet_len};
    CHECK(tcp_wire_parse(&part, 1, &rig->seg) == TCP_WIRE_OK);
    /* As the engine's peer sees it, local is the peer. */
    rig->for_peer = memcmp(rig->seg.tuple.local, rig->peer->tuple.peer, 16) == 0;
    if (!rig->for_peer) {
        return &rig->seg;
    }
    if (rig->seg.flags & TCP_SYN) {
        rig->peer->iss = rig->seg.seq;
    }
    if (rig->seg.options.has_ts) {
        rig->peer->ts_echo = rig->seg.options.ts_value;
    }
    return &rig->seg;
}

uint32_t rig_seq(const struct rig *rig)
{
    return rig->seg.seq - rig->peer->iss;
}

uint32_t rig_ack(const struct rig *rig)
{
    return rig->seg.flags & TCP_ACK ? rig->seg.ack - rig->peer->irs : 0;
}

static void event_data(struct rig *rig, const struct tcp_event *event)
{
    rig->datas++;
    for (uint32_t i = 0; i < event->data.len; i++) {
        CHECK(event->data.addr[i] == rig_pattern(1 + rig->received + i));
    }
    rig->received += event->data.len;
    rig->held[rig->held_count++] = event->data.token;
    if (!rig->hold) {
        rig_release(rig, 1);
    }
}

void rig_events(struct rig *rig)
{
    struct tcp_event event;
    while (tcp_next_event(rig->engine, &event)) {
        switch (event.kind) {
        case TCP_EVENT_OPEN:
            rig->opens++;
            rig->id = event.id;
            rig->received = 0;
            break;
        case TCP_EVENT_DATA:
            event_data(rig, &event);
            break;
        case TCP_EVENT_EOF:
            rig->eofs++;
            break;
        case TCP_EVENT_RESET:
            rig->resets++;
            rig->reset_error = event.error;
            break;
        case TCP_EVENT_SENT:
            rig->sents++;
            rig->sent_error = event.error;
            rig->sent_cookie = event.cookie;
            rig->sent_bytes += event.sent;
            rig->unsent_bytes += event.unsent;
            break;
        case TCP_EVENT_ROOM:
            rig->rooms++;
            break;
        case TCP_EVENT_CLOSED:
            rig->closes++;
            break;
        }
    }
    collect_frames(rig);
}

/* Oldest first. */
void rig_release(struct rig *rig, uint32_t count)
{
    CHECK(count <= rig->held_count);
    for (uint32_t i = 0; i < count; i++) {
        tcp_release(rig->engine, rig->held[i]);
    }
    memmove(rig->held, rig->held + count, (rig->held_count - count) * sizeof(rig->held[0]));
    rig->held_count -= count;
    collect_frames(rig);
}

void rig_advance(struct rig *rig, uint64_t ns)
{
    rig->now += ns;
    tcp_tick(rig->engine, rig->now);
    rig_events(rig);
}

void rig_handshake(struct rig *rig)
{
    struct peer *peer = rig->peer;
    struct tcp_options offer = {.mss = 1460,
                                .sack_permitted = peer->sack_on,
                                .has_wscale = peer->wscale_on,
                                .wscale = RIG_WINDOW_SHIFT};
    uint32_t opens = rig->opens;
    rig_shoot(rig, (struct shot){.flags = TCP_SYN, .window = 65535, .options = offer});
    const struct tcp_segment *synack = rig_out(rig);
    CHECK(synack != NULL);
    CHECK((synack->flags & ~TCP_ECE) == (TCP_SYN | TCP_ACK));
    peer->seq = peer->ack = 1;
    rig_shoot(rig, (struct shot){.seq = 1, .ack = 1, .flags = TCP_ACK, .window = 4096});
    CHECK(rig->opens == opens + 1);
    CHECK(rig_out(rig) == NULL);
}

void rig_established(struct rig *rig)
{
    rig_handshake(rig);
    for (uint32_t i = 0; i < 16; i++) { /* quick ACKs come first */
        rig_shoot(rig, (struct shot){
                           .seq = rig->peer->seq, .ack = 1, .flags = TCP_ACK, .window = 4096, .len = 1000});
        rig->peer->seq += 1000;
        CHECK(rig_out(rig) != NULL);
    }
    CHECK(rig_out(rig) == NULL);
}

uint64_t rig_count(const struct rig *rig, enum tcp_counter counter)
{
    return tcp_stats(rig->engine)->counters[counter];
}

void rig_drain_out(struct rig *rig)
{
    while (rig_out(rig) != NULL) {
    }
}

void rig_close(struct rig *rig)
{
    const struct tcp_stats *stats = tcp_stats(rig->engine);
    rig_events(rig);
    rig_release(rig, rig->held_count);
    if (stats->conns_used > 0 && rig->opens > rig->closes) {
        tcp_abort(rig->engine, rig->now, rig->id);
    }
    rig_drain_out(rig);
    for (uint32_t i = 0; i < 100; i++) {
        rig_advance(rig, 10 * NS_PER_S);
        rig_drain_out(rig);
    }
    CHECK(stats->conns_used == 0);
    CHECK(stats->syns_used == 0);
    CHECK(stats->time_waits_used == 0);
    CHECK(stats->frames_held == 0);
    CHECK(stats->frames_out_of_order == 0);
    CHECK(rig->tokens_count == RIG_FRAMES);
    CHECK(tcp_poll_at(rig->engine) == TIME_NEVER);
    free(rig->memory);
    free(rig->frames);
}
