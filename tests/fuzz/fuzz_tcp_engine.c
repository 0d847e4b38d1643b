// SPDX-License-Identifier: Apache-2.0
//
// Whole sequences against an engine: segments with numbers near the true ones, time, sends, closes, held and released buffers,
// decoded from the input one operation at a time. After each operation the engine's invariants hold, its window has not moved left, and
// what it sends and delivers is what belongs at that place of the stream. Then, beside whatever the input left behind, a client of good
// manners uploads and downloads; and at the end everything is ended, all timers run out, and every pool must be empty and every buffer
// back.
//
// Byte `seq` of any stream is pattern[seq & 0xffff], in both directions, so that nothing has to be remembered; a peer may lie (the
// complement), and then either is right until it is delivered.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/tcp/tcp_invariants.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FRAMES = 64, FRAME_SIZE = 2048, PEERS = 4, CLIENT = 4, CONNS = 4, PATTERN = 65536, SEND_MAX = 16384 };
enum { CLIENT_BYTES = 3000, CLIENT_TURNS = 400, CLIENT_SEGMENT = 500, MTU = 1500 };

struct peer {
    uint32_t irs, iss; // iss: the engine's, as learned from what it sends
    uint32_t seq, ack; // next ones, absolute
    uint32_t ts;
    uint32_t acked, edge; // the client: what the engine has said of its stream
    bool has_synack, has_fin, has_reset;
};

struct held {
    uint32_t token, seq, len;
    const uint8_t *addr;
    uint8_t first, last; // bytes that must not change while it is held
};

struct fuzz {
    const uint8_t *at;
    const uint8_t *end;
    struct tcp_engine *engine;
    uint64_t now;
    uint8_t *frames;
    uint32_t tokens[FRAMES];
    uint32_t tokens_count;
    struct held held[FRAMES];
    uint32_t held_count;
    bool open[CONNS];
    struct tcp_id ids[CONNS];
    uint32_t sends[CONNS];
    bool recalled[CONNS];
    bool ended[CONNS];                     // RESET was seen
    uint32_t next[CONNS];                  // sequence number of the next byte delivered
    uint32_t edges[CONNS], edge_of[CONNS]; // right edge that was advertised last, and by which generation
    bool is_v6, is_cut, is_stopped;
    struct peer peers[PEERS + 1];
    uint32_t client_conn; // CONNS: none
    uint32_t client_got;
};

static uint8_t pattern[PATTERN + SEND_MAX];
static const uint8_t any_address[16];

static void pattern_make(void)
{
    for (uint32_t i = 0; i < sizeof(pattern); i++) {
        pattern[i] = (uint8_t)(((i & (PATTERN - 1)) * 2654435761U) >> 24);
    }
}

static uint8_t take(struct fuzz *fuzz)
{
    return fuzz->at < fuzz->end ? *fuzz->at++ : 0;
}

static void collect(struct fuzz *fuzz)
{
    uint32_t before = fuzz->tokens_count;
    fuzz->tokens_count +=
        tcp_frames_take(fuzz->engine, fuzz->tokens + fuzz->tokens_count, FRAMES - fuzz->tokens_count);
    CHECK(fuzz->tokens_count <= FRAMES);
    for (uint32_t i = before; i < fuzz->tokens_count; i++) { // nobody may read it any more
        memset(fuzz->frames + (size_t)fuzz->tokens[i] * FRAME_SIZE, 0x55, FRAME_SIZE);
    }
}

static void take_data(struct fuzz *fuzz, uint32_t i, const struct tcp_event *event)
{
    const uint8_t *frame = fuzz->frames + (size_t)event->data.token * FRAME_SIZE;
    CHECK(!fuzz->ended[i]);
    CHECK(event->data.len > 0);
    CHECK(event->data.addr >= frame);
    CHECK(event->data.addr + event->data.len <= frame + FRAME_SIZE);
    for (uint32_t k = 0; k < event->data.len; k++) {
        uint8_t true_byte = pattern[(fuzz->next[i] + k) & (PATTERN - 1)];
        uint8_t lie = (uint8_t)(0xff - true_byte);
        uint8_t byte = event->data.addr[k];
        CHECK(byte == true_byte || (byte == lie && i != fuzz->client_conn));
    }
    CHECK(fuzz->held_count < FRAMES);
    fuzz->held[fuzz->held_count++] =
        (struct held){event->data.token, fuzz->next[i],       event->data.len,
                      event->data.addr,  event->data.addr[0], event->data.addr[event->data.len - 1]};
    fuzz->next[i] += event->data.len;
    fuzz->client_got += i == fuzz->client_conn ? event->data.len : 0;
}

static void take_open(struct fuzz *fuzz, uint32_t i, const struct tcp_event *event)
{
    fuzz->open[i] = true;
    fuzz->ended[i] = false;
    fuzz->sends[i] = 0;
    fuzz->recalled[i] = false;
    fuzz->ids[i] = event->id;
    fuzz->next[i] = fuzz->engine->conns[i].terms.irs + 1;
    if (event->tuple->peer_port == 1000 + CLIENT) {
        fuzz->client_conn = i;
    }
}

// The contract of events, per connection.
static void take_event(struct fuzz *fuzz, const struct tcp_event *event)
{
    uint32_t i = event->id.index;
    CHECK(i < CONNS);
    CHECK(fuzz->open[i] == (event->kind != TCP_EVENT_OPEN));
    CHECK(fuzz->ids[i].generation == event->id.generation || event->kind == TCP_EVENT_OPEN);
    switch (event->kind) {
    case TCP_EVENT_OPEN:
        take_open(fuzz, i, event);
        break;
    case TCP_EVENT_DATA:
        take_data(fuzz, i, event);
        break;
    case TCP_EVENT_EOF:
        CHECK(!fuzz->ended[i]);
        break;
    case TCP_EVENT_RESET:
        CHECK(!fuzz->ended[i]);
        CHECK(event->error < 0);
        fuzz->ended[i] = true;
        break;
    case TCP_EVENT_SENT:
        CHECK(fuzz->sends[i] > 0);
        fuzz->sends[i]--;
        CHECK(event->error != -EAGAIN || fuzz->recalled[i]);
        break;
    case TCP_EVENT_ROOM:
        CHECK(fuzz->recalled[i] && fuzz->sends[i] == 0 && !fuzz->ended[i]);
        fuzz->recalled[i] = false;
        break;
    case TCP_EVENT_CLOSED:
        CHECK(fuzz->sends[i] == 0);
        fuzz->open[i] = false;
        break;
    }
}

// What a connection says of its window never shrinks, and what it sends is what was queued.
static void check_packet(struct fuzz *fuzz, const struct tcp_segment *segment)
{
    struct tcp_tuple tuple = segment->tuple; // as the engine sees it
    memcpy(tuple.local, segment->tuple.peer, 16);
    memcpy(tuple.peer, segment->tuple.local, 16);
    tuple.local_port = segment->tuple.peer_port;
    tuple.peer_port = segment->tuple.local_port;
    uint32_t seq = segment->seq;
    for (uint32_t i = 0; i < segment->payload_count; i++) {
        for (uint32_t k = 0; k < segment->payload[i].len; k++, seq++) {
            CHECK(segment->payload[i].addr[k] == pattern[seq & (PATTERN - 1)]);
        }
    }
    const struct tcp_conn *conn = (const struct tcp_conn *)tcp_node_find(fuzz->engine, &tuple);
    if (conn == NULL || conn->node.kind != TCP_KIND_CONN || (segment->flags & (TCP_SYN | TCP_RST)) ||
        conn->state == TCP_STATE_SYN_SENT) {
        return;
    }
    uint32_t edge = segment->ack + (segment->window << conn->terms.rcv_wscale);
    if (fuzz->edge_of[conn->index] == conn->generation) {
        CHECK(seq_le(fuzz->edges[conn->index], edge));
    }
    fuzz->edge_of[conn->index] = conn->generation;
    fuzz->edges[conn->index] = edge;
}

static void peer_learn(struct peer *peer, const struct tcp_segment *segment)
{
    if (segment->flags & TCP_RST) {
        peer->has_reset = true;
        return;
    }
    if (segment->flags & TCP_SYN) {
        peer->iss = segment->seq;
        peer->has_synack = true;
        peer->ack = segment->seq + 1;
    }
    uint32_t end = segment->seq + segment->len + !!(segment->flags & (TCP_SYN | TCP_FIN));
    peer->ack = seq_max(peer->ack, end);
    peer->has_fin |= (segment->flags & TCP_FIN) != 0;
    peer->acked = segment->ack;
    peer->edge = segment->ack + segment->window;
    if (segment->options.has_ts) {
        peer->ts = segment->options.ts_value;
    }
}

static void drain(struct fuzz *fuzz)
{
    static uint8_t buf[TCP_HEADERS_MAX + MTU];
    struct tcp_event event;
    struct tcp_segment segment;
    uint32_t len = 0;
    for (uint32_t packets = 0; (len = tcp_next_packet(fuzz->engine, fuzz->now, buf, sizeof(buf))) > 0;
         packets++) {
        struct tcp_part part = {buf, len, 0};
        CHECK(packets < 4096); // it must come to rest
        CHECK(tcp_wire_parse(&part, 1, &segment) == TCP_WIRE_OK);
        CHECK(len <= 14 + 4U * segment.link.tags + MTU);
        uint32_t n = segment.tuple.local_port - 1000U;
        CHECK(n <= PEERS);
        check_packet(fuzz, &segment);
        peer_learn(&fuzz->peers[n], &segment);
    }
    while (tcp_next_event(fuzz->engine, &event)) {
        take_event(fuzz, &event);
    }
    collect(fuzz);
    CHECK(tcp_poll_at(fuzz->engine) > 0 || !list_is_empty(&fuzz->engine->out));
}

static void tuple_of(const struct fuzz *fuzz, uint32_t n, struct tcp_tuple *tuple)
{
    *tuple = (struct tcp_tuple){.local = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 2},
                                .peer = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1},
                                .local_port = (uint16_t)(1000 + n),
                                .peer_port = 80,
                                .version = 4};
    if (fuzz->is_v6 && (n & 1) != 0) {
        memset(tuple->local, 0, 12);
        memset(tuple->peer, 0, 12);
        tuple->local[0] = tuple->peer[0] = 0xfd;
        tuple->version = 6;
    }
}

// Builds the segment, in one buffer or, behind `cut` bytes of payload, in two, and hands it in.
static void input(struct fuzz *fuzz, struct tcp_out *out, uint32_t len, uint32_t cut, bool is_lie)
{
    uint8_t *payload;
    uint8_t *tail;
    struct tcp_part parts[2];
    uint32_t count = fuzz->is_cut && cut < len ? 2 : 1;
    if (fuzz->tokens_count < count) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = fuzz->tokens[--fuzz->tokens_count];
        parts[i] = (struct tcp_part){fuzz->frames + (size_t)token * FRAME_SIZE, 0, token};
    }
    payload = parts[0].addr + tcp_wire_headers_len(out);
    for (uint32_t i = 0; i < len; i++) {
        uint8_t byte = pattern[(out->seq + !!(out->flags & TCP_SYN) + i) & (PATTERN - 1)];
        payload[i] = is_lie ? (uint8_t)(byte ^ 0xff) : byte;
    }
    parts[0].len = tcp_wire_emit(out, parts[0].addr, len, tcp_checksum_add(0, payload, len));
    if (count == 2) {
        tail = payload + cut;
        parts[1].len = (uint32_t)(parts[0].addr + parts[0].len - tail);
        memcpy(parts[1].addr, tail, parts[1].len);
        memset(tail, 0x55, parts[1].len);
        parts[0].len -= parts[1].len;
    }
    uint32_t mask = tcp_input(fuzz->engine, fuzz->now, parts, count);
    CHECK(mask >> count == 0);
    for (uint32_t i = count; i-- > 0;) {
        if (!(mask >> i & 1)) {
            memset(parts[i].addr, 0x55, FRAME_SIZE);
            fuzz->tokens[fuzz->tokens_count++] = parts[i].token;
        }
    }
}

// One segment; small numbers in the input stay near what is expected.
static void op_segment(struct fuzz *fuzz, bool is_wild)
{
    static const uint8_t flag_table[16] = {TCP_ACK,
                                           TCP_ACK,
                                           TCP_SYN,
                                           TCP_ACK | TCP_FIN,
                                           TCP_RST,
                                           TCP_ACK | TCP_PSH,
                                           TCP_ACK | TCP_ECE,
                                           0,
                                           TCP_ACK,
                                           TCP_SYN | TCP_ACK,
                                           TCP_SYN | TCP_ECE | TCP_CWR,
                                           TCP_RST | TCP_ACK,
                                           TCP_ACK | TCP_CWR,
                                           TCP_FIN,
                                           TCP_ACK | TCP_URG | TCP_PSH,
                                           0xff};
    struct tcp_link link = {.peer_mac = {2}, .local_mac = {4}};
    struct tcp_tuple tuple;
    struct tcp_out out = {.tuple = &tuple, .link = &link};
    uint8_t what = take(fuzz);
    uint8_t form = take(fuzz);
    struct peer *peer = &fuzz->peers[what & 3];
    int32_t shift = (int8_t)take(fuzz);
    uint32_t wild = is_wild ? (uint32_t)shift << take(fuzz) % 25 : 0;
    tuple_of(fuzz, what & 3, &tuple);
    link.tags = fuzz->is_v6 && (what & 2) != 0;
    link.tag_type[0] = 0x8100;
    out.flags = flag_table[what >> 2 & 15];
    out.seq = peer->seq + (is_wild ? wild : (uint32_t)(form & 1 ? shift * 64 : 0));
    out.ack = peer->ack - (form & 2 ? take(fuzz) * 16U : 0) +
              (form & 4 ? (uint32_t)(int8_t)take(fuzz) << (form >> 5) : 0);
    out.window = form & 8 ? take(fuzz) : 4096;
    out.ecn = what >> 6;
    uint32_t len = form & 16 ? take(fuzz) * 6U : 0;
    out.options.has_ts = form & 0x20;
    out.options.ts_value = (uint32_t)(fuzz->now / NS_PER_MS) + (is_wild       ? wild
                                                                : form & 0x80 ? (uint32_t)shift
                                                                              : 0);
    out.options.ts_echo = peer->ts;
    if (out.flags & TCP_SYN) {
        peer->seq = out.seq = peer->irs = (uint32_t)shift * 0x01010101U;
        out.options.mss = (uint16_t)(take(fuzz) * 8U);
        out.options.has_wscale = form & 0x20;
        out.options.wscale = form & 15;
        out.options.sack_permitted = form & 0x40;
        len = 0;
    } else if (form & 0x40) {
        out.options.sack_count = 1 + (form >> 5 & 1);
        for (uint32_t i = 0; i < out.options.sack_count; i++) {
            out.options.sack[i].start = peer->ack - take(fuzz) * 100U;
            out.options.sack[i].end = out.options.sack[i].start + take(fuzz) * 100U;
        }
    }
    uint32_t cut = fuzz->is_cut && len > 0 ? take(fuzz) * 4U : len;
    if (!(form & 1) && !is_wild) { // the peer goes on from here
        peer->seq += len + !!(out.flags & (TCP_SYN | TCP_FIN));
    }
    input(fuzz, &out, len, cut, (form & 0x80) != 0);
}

static void release(struct fuzz *fuzz, uint32_t i)
{
    const struct held *held = &fuzz->held[i];
    CHECK(held->addr[0] == held->first);
    CHECK(held->addr[held->len - 1] == held->last);
    tcp_release(fuzz->engine, held->token);
    fuzz->held[i] = fuzz->held[--fuzz->held_count];
}

static void op_release(struct fuzz *fuzz)
{
    if (fuzz->held_count > 0) {
        release(fuzz, take(fuzz) % fuzz->held_count);
    }
}

// Sends bytes that fit the place they will have, in up to three fragments.
static void send_bytes(struct fuzz *fuzz, uint32_t i, uint32_t len, uint32_t cookie)
{
    const uint8_t *from = pattern + (fuzz->engine->conns[i].snd_end & (PATTERN - 1));
    uint32_t third = len / 3;
    struct iovec iov[3] = {{(void *)(uintptr_t)from, len - 2 * third},
                           {(void *)(uintptr_t)(from + len - 2 * third), third},
                           {(void *)(uintptr_t)(from + len - third), third}};
    if (!fuzz->recalled[i] &&
        tcp_send(fuzz->engine, fuzz->now, fuzz->ids[i], iov, third > 0 ? 3 : 1, cookie) == 0) {
        fuzz->sends[i]++;
    }
}

static void op_consumer(struct fuzz *fuzz)
{
    uint8_t what = take(fuzz);
    uint32_t i = what % CONNS;
    uint32_t len = 1 + take(fuzz) * (what & 8 ? 64U : 8U);
    if (!fuzz->open[i]) {
        return;
    }
    struct tcp_id id = fuzz->ids[i];
    const struct tcp_conn *conn = &fuzz->engine->conns[i];
    if (conn->closing) {
        return;
    }
    switch (what >> 4 & 7) {
    case 0:
    case 1:
    case 2:
        send_bytes(fuzz, i, len, what);
        break;
    case 3:
        tcp_shutdown(fuzz->engine, fuzz->now, id);
        break;
    case 4:
        tcp_close(fuzz->engine, fuzz->now, id);
        break;
    case 5:
        tcp_abort(fuzz->engine, fuzz->now, id);
        break;
    case 6:
        if ((what & 0x80) != 0) {
            fuzz->recalled[i] |= tcp_recall(fuzz->engine, fuzz->now, id) == 0;
            break;
        }
        tcp_pause(fuzz->engine, id);
        break;
    default:
        tcp_resume(fuzz->engine, id);
        (void)tcp_too_big(fuzz->engine, tcp_peer(fuzz->engine, id), fuzz->peers[what & 3].ack - 1,
                          len % 1600);
        break;
    }
}

// The listener goes and comes; buffers are kept twice.
static void op_rare(struct fuzz *fuzz)
{
    uint8_t what = take(fuzz);
    if ((what & 3) == 0 && fuzz->is_stopped) {
        fuzz->is_stopped = tcp_listen(fuzz->engine, any_address, 80) < 0;
    } else if ((what & 3) == 0) {
        fuzz->is_stopped = tcp_listen_stop(fuzz->engine, any_address, 80) == 0;
    } else if ((what & 3) == 1 && fuzz->held_count > 0 && fuzz->held_count < FRAMES) {
        const struct held *held = &fuzz->held[what % fuzz->held_count];
        tcp_retain(fuzz->engine, held->token);
        fuzz->held[fuzz->held_count++] = *held;
    } else {
        fuzz->now += (uint64_t)(what >> 2) * NS_PER_S;
        tcp_tick(fuzz->engine, fuzz->now);
    }
}

// ---- the client ----

static void client_say(struct fuzz *fuzz, uint8_t flags, uint32_t len)
{
    struct tcp_link link = {.peer_mac = {2}, .local_mac = {4}};
    struct tcp_tuple tuple;
    struct peer *peer = &fuzz->peers[CLIENT];
    struct tcp_out out = {.tuple = &tuple, .link = &link, .window = 8000};
    tuple_of(fuzz, CLIENT, &tuple);
    out.flags = flags;
    out.seq = peer->seq;
    out.ack = flags & TCP_ACK ? peer->ack : 0;
    out.options.mss = flags & TCP_SYN ? 1000 : 0;
    input(fuzz, &out, len, len, false);
    drain(fuzz);
    invariants_check(fuzz->engine);
}

static void release_all(struct fuzz *fuzz)
{
    while (fuzz->held_count > 0) {
        release(fuzz, fuzz->held_count - 1);
    }
    drain(fuzz);
}

// It waits for an answer to each segment, and asks again after a while.
static void client_wait(struct fuzz *fuzz)
{
    release_all(fuzz);
    fuzz->now += 100 * NS_PER_MS;
    tcp_tick(fuzz->engine, fuzz->now);
    drain(fuzz);
}

static void client_upload(struct fuzz *fuzz)
{
    struct peer *peer = &fuzz->peers[CLIENT];
    uint32_t end = peer->irs + 1 + CLIENT_BYTES;
    for (uint32_t turn = 0; turn < CLIENT_TURNS && seq_lt(peer->acked, end); turn++) {
        uint32_t room = seq_lt(peer->acked, peer->edge) ? peer->edge - peer->acked : 1;
        peer->seq = peer->acked;
        client_say(fuzz, TCP_ACK, min_u32(min_u32(room, CLIENT_SEGMENT), end - peer->seq));
        client_wait(fuzz);
    }
    CHECK(peer->acked == end);
    CHECK(fuzz->client_got == CLIENT_BYTES);
    peer->seq = end;
}

static void client_download(struct fuzz *fuzz)
{
    struct peer *peer = &fuzz->peers[CLIENT];
    uint32_t i = fuzz->client_conn;
    send_bytes(fuzz, i, CLIENT_BYTES, 1);
    CHECK(fuzz->sends[i] == 1);
    tcp_shutdown(fuzz->engine, fuzz->now, fuzz->ids[i]);
    drain(fuzz);
    for (uint32_t turn = 0; turn < CLIENT_TURNS && (fuzz->sends[i] > 0 || !peer->has_fin); turn++) {
        client_say(fuzz, TCP_ACK, 0);
        client_wait(fuzz);
    }
    CHECK(fuzz->sends[i] == 0);
    CHECK(peer->ack == peer->iss + 2 + CLIENT_BYTES);
    client_say(fuzz, TCP_ACK | TCP_FIN, 0);
    tcp_close(fuzz->engine, fuzz->now, fuzz->ids[i]);
    drain(fuzz);
    CHECK(!fuzz->open[i]);
}

// Whatever the others hold, a client that plays by the rules is served; a connection must be free for it.
static void client_is_served(struct fuzz *fuzz)
{
    struct peer *peer = &fuzz->peers[CLIENT];
    release_all(fuzz);
    for (uint32_t i = 0; i < CONNS; i++) {
        if (fuzz->open[i] && !fuzz->engine->conns[i].closing) {
            tcp_resume(fuzz->engine, fuzz->ids[i]); // a consumer that never reads is no peer's doing
        }
    }
    drain(fuzz);
    release_all(fuzz);
    if (fuzz->is_stopped && tcp_listen(fuzz->engine, any_address, 80) < 0) {
        return;
    }
    peer->irs = peer->seq = 0xfffffe00U;
    for (uint32_t turn = 0; turn < 10 && !peer->has_synack; turn++) {
        if (fuzz->engine->conns_free == NULL) {
            return;
        }
        client_say(fuzz, TCP_SYN, 0);
        client_wait(fuzz);
    }
    CHECK(peer->has_synack);
    peer->seq++;
    client_say(fuzz, TCP_ACK, 0);
    if (fuzz->client_conn == CONNS) {
        CHECK(fuzz->engine->conns_free == NULL || peer->has_reset);
        return;
    }
    client_upload(fuzz);
    client_download(fuzz);
}

static void finish(struct fuzz *fuzz)
{
    drain(fuzz);
    for (uint32_t i = 0; i < CONNS; i++) {
        if (fuzz->open[i] && !fuzz->engine->conns[i].closing) {
            tcp_abort(fuzz->engine, fuzz->now, fuzz->ids[i]);
        }
    }
    for (uint32_t i = 0; i < 40; i++) {
        release_all(fuzz);
        fuzz->now += 10 * NS_PER_S;
        tcp_tick(fuzz->engine, fuzz->now);
        drain(fuzz);
        for (uint32_t k = 0; k < CONNS; k++) { // a handshake may still have been completed
            if (fuzz->open[k] && !fuzz->engine->conns[k].closing) {
                tcp_abort(fuzz->engine, fuzz->now, fuzz->ids[k]);
            }
        }
    }
    const struct tcp_stats *stats = tcp_stats(fuzz->engine);
    CHECK(stats->conns_used == 0);
    CHECK(stats->syns_used == 0);
    CHECK(stats->time_waits_used == 0);
    CHECK(stats->frames_held == 0);
    CHECK(fuzz->tokens_count == FRAMES);
    CHECK(tcp_poll_at(fuzz->engine) == TIME_NEVER);
}

static void run(struct fuzz *fuzz)
{
    while (fuzz->at < fuzz->end) {
        uint8_t op = take(fuzz);
        switch (op & 15) {
        case 0:
            fuzz->now += (uint64_t)take(fuzz) << (take(fuzz) % 36);
            tcp_tick(fuzz->engine, fuzz->now);
            break;
        case 1:
        case 9:
            op_consumer(fuzz);
            break;
        case 2:
        case 10:
            op_release(fuzz);
            break;
        case 3:
            op_rare(fuzz);
            break;
        case 4:
            op_segment(fuzz, true);
            break;
        default:
            op_segment(fuzz, false);
            break;
        }
        invariants_check(fuzz->engine);
        if (!(op & 0x80)) { // else several operations between two looks at the engine
            drain(fuzz);
            invariants_check(fuzz->engine);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void *memory;
    static uint8_t frames[FRAMES * FRAME_SIZE];
    struct tcp_config config = {.conns_max = CONNS,
                                .syns_max = 2,
                                .time_waits_max = 2,
                                .frames_count = FRAMES,
                                .frames_hold_max = 40,
                                .conn_frames_max = 16,
                                .replies_max = 4,
                                .mtu = MTU,
                                .secret = {1}};
    struct fuzz fuzz = {
        .at = data, .end = data + size, .now = 100 * NS_PER_S, .frames = frames, .client_conn = CONNS};
    if (size > 4096) {
        return 0;
    }
    uint8_t how = take(&fuzz);
    config.no_timestamps = how & 1;
    config.no_sack = how & 2;
    config.no_ecn = how & 4;
    config.cookies_always = how & 8;
    config.conn_frames_max = how & 16 ? 40 : 16;
    config.frame_bytes = how & 32 ? 700 : 0;
    fuzz.is_cut = how & 32;
    fuzz.is_v6 = how & 64;
    if (memory == NULL) {
        pattern_make();
        memory = aligned_alloc(64, tcp_size(&config));
    }
    CHECK(tcp_init(memory, tcp_size(&config), &config, &fuzz.engine) == 0);
    CHECK(tcp_listen(fuzz.engine, any_address, 80) == 0);
    for (uint32_t i = 0; i < FRAMES; i++) {
        fuzz.tokens[fuzz.tokens_count++] = i;
    }
    run(&fuzz);
    if (how & 0x80) {
        client_is_served(&fuzz);
    }
    finish(&fuzz);
    return 0;
}
