// SPDX-License-Identifier: Apache-2.0
//
// Whole sequences against an engine: segments with numbers near the true ones, time, sends, closes, held and released buffers,
// decoded from the input one operation at a time. After each operation the engine's invariants hold; at the end everything is
// ended, all timers run out, and every pool must be empty and every buffer back.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/tcp/tcp_invariants.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FRAMES = 64, FRAME_SIZE = 2048, PEERS = 4, CONNS = 3 };

struct peer {
    uint32_t irs, iss; // iss: the engine's, as learned from what it sends
    uint32_t seq, ack; // next ones, absolute
    uint32_t ts;
};

struct fuzz {
    const uint8_t *at;
    const uint8_t *end;
    struct tcp_engine *engine;
    uint64_t now;
    uint8_t *frames;
    uint32_t tokens[FRAMES];
    uint32_t tokens_count;
    uint32_t held[FRAMES];
    uint32_t held_count;
    bool open[CONNS];
    struct tcp_id ids[CONNS];
    uint32_t sends[CONNS];
    bool recalled[CONNS];
    bool ended[CONNS]; // RESET was seen
    struct peer peers[PEERS];
};

static uint8_t take(struct fuzz *fuzz)
{
    return fuzz->at < fuzz->end ? *fuzz->at++ : 0;
}

static void collect(struct fuzz *fuzz)
{
    fuzz->tokens_count +=
        tcp_frames_take(fuzz->engine, fuzz->tokens + fuzz->tokens_count, FRAMES - fuzz->tokens_count);
    CHECK(fuzz->tokens_count <= FRAMES);
}

// The contract of events, per connection.
static void take_event(struct fuzz *fuzz, const struct tcp_event *event)
{
    uint32_t i = event->id.index;
    CHECK(i < CONNS);
    CHECK(fuzz->open[i] == (event->kind != TCP_EVENT_OPEN));
    switch (event->kind) {
    case TCP_EVENT_OPEN:
        fuzz->open[i] = true;
        fuzz->ended[i] = false;
        fuzz->sends[i] = 0;
        fuzz->recalled[i] = false;
        fuzz->ids[i] = event->id;
        break;
    case TCP_EVENT_DATA:
        CHECK(!fuzz->ended[i]);
        CHECK(event->data.len > 0);
        CHECK(event->data.addr >= fuzz->frames + (size_t)event->data.token * FRAME_SIZE);
        CHECK(event->data.addr + event->data.len <=
              fuzz->frames + ((size_t)event->data.token + 1) * FRAME_SIZE);
        fuzz->held[fuzz->held_count++] = event->data.token;
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

static void drain(struct fuzz *fuzz)
{
    static uint8_t buf[TCP_HEADERS_MAX + 1500];
    struct tcp_event event;
    struct tcp_segment segment;
    uint32_t len = 0;
    for (uint32_t packets = 0; (len = tcp_next_packet(fuzz->engine, fuzz->now, buf, sizeof(buf))) > 0;
         packets++) {
        struct tcp_part part = {buf, len, 0};
        CHECK(packets < 4096); // it must come to rest
        CHECK(tcp_wire_parse(&part, 1, &segment) == TCP_WIRE_OK);
        uint32_t n = segment.tuple.local_port - 1000U;
        CHECK(n < PEERS);
        if (segment.flags & TCP_SYN) {
            fuzz->peers[n].iss = segment.seq;
        }
        if (!(segment.flags & TCP_RST)) {
            fuzz->peers[n].ack = segment.seq + segment.len + !!(segment.flags & (TCP_SYN | TCP_FIN));
        }
        if (segment.options.has_ts) {
            fuzz->peers[n].ts = segment.options.ts_value;
        }
    }
    while (tcp_next_event(fuzz->engine, &event)) {
        take_event(fuzz, &event);
    }
    collect(fuzz);
}

// One segment; small numbers in the input stay near what is expected.
static void op_segment(struct fuzz *fuzz)
{
    static const uint8_t flag_table[8] = {TCP_ACK, TCP_ACK,           TCP_SYN,           TCP_ACK | TCP_FIN,
                                          TCP_RST, TCP_ACK | TCP_PSH, TCP_ACK | TCP_ECE, 0};
    struct tcp_link link = {.peer_mac = {2}, .local_mac = {4}};
    struct tcp_tuple tuple = {.local = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 2},
                              .peer = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1},
                              .peer_port = 80,
                              .version = 4};
    struct tcp_out out = {.tuple = &tuple, .link = &link};
    uint8_t what = take(fuzz);
    uint8_t form = take(fuzz);
    struct peer *peer = &fuzz->peers[what & 3];
    int32_t shift = (int8_t)take(fuzz);
    tuple.local_port = (uint16_t)(1000 + (what & 3));
    out.flags = flag_table[what >> 2 & 7];
    out.seq = peer->seq + (uint32_t)(form & 1 ? shift * 64 : 0);
    out.ack = peer->ack - (form & 2 ? take(fuzz) * 16U : 0) +
              (form & 4 ? (uint32_t)(int8_t)take(fuzz) << (form >> 5) : 0);
    out.window = form & 8 ? take(fuzz) : 4096;
    out.ecn = what >> 6;
    uint32_t len = form & 16 ? take(fuzz) * 6U : 0;
    out.options.has_ts = what & 0x20;
    out.options.ts_value = (uint32_t)(fuzz->now / NS_PER_MS) + (form & 0x80 ? (uint32_t)shift : 0);
    out.options.ts_echo = peer->ts;
    if (out.flags & TCP_SYN) {
        peer->seq = out.seq = peer->irs = (uint32_t)shift * 0x01010101U;
        out.options.mss = (uint16_t)(take(fuzz) * 8U);
        out.options.has_wscale = form & 0x20;
        out.options.wscale = form & 15;
        out.options.sack_permitted = form & 0x40;
        len = 0;
    } else if (form & 0x40) {
        out.options.sack_count = 1;
        out.options.sack[0].start = peer->ack - take(fuzz) * 100U;
        out.options.sack[0].end = out.options.sack[0].start + take(fuzz) * 100U;
    }
    if (fuzz->tokens_count == 0) {
        return;
    }
    uint32_t token = fuzz->tokens[--fuzz->tokens_count];
    uint8_t *frame = fuzz->frames + (size_t)token * FRAME_SIZE;
    uint8_t *payload = frame + tcp_wire_headers_len(&out);
    memset(payload, 'x', len);
    struct tcp_part part = {frame, tcp_wire_emit(&out, frame, len, tcp_checksum_add(0, payload, len)), token};
    if (!(form & 1)) { // the peer goes on from here
        peer->seq += len + !!(out.flags & (TCP_SYN | TCP_FIN));
    }
    if (tcp_input(fuzz->engine, fuzz->now, &part, 1) == 0) {
        fuzz->tokens[fuzz->tokens_count++] = token;
    }
}

static void op_release(struct fuzz *fuzz)
{
    if (fuzz->held_count > 0) {
        uint32_t i = take(fuzz) % fuzz->held_count;
        tcp_release(fuzz->engine, fuzz->held[i]);
        fuzz->held[i] = fuzz->held[--fuzz->held_count];
    }
}

static void op_consumer(struct fuzz *fuzz)
{
    static uint8_t bytes[8192];
    uint8_t what = take(fuzz);
    uint32_t i = what % CONNS;
    struct iovec iov = {bytes, 1 + take(fuzz) * 32U};
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
        fuzz->sends[i] += !fuzz->recalled[i] && tcp_send(fuzz->engine, fuzz->now, id, &iov, 1, what) == 0;
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
                          576 + take(fuzz) * 4U);
        break;
    }
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
        while (fuzz->held_count > 0) {
            tcp_release(fuzz->engine, fuzz->held[--fuzz->held_count]);
        }
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t any[16];
    static void *memory;
    static uint8_t frames[FRAMES * FRAME_SIZE];
    struct tcp_config config = {.conns_max = CONNS,
                                .syns_max = 2,
                                .time_waits_max = 2,
                                .frames_count = FRAMES,
                                .frames_hold_max = 40,
                                .conn_frames_max = 16,
                                .replies_max = 4,
                                .secret = {1}};
    struct fuzz fuzz = {.at = data, .end = data + size, .now = 100 * NS_PER_S, .frames = frames};
    if (size > 4096) {
        return 0;
    }
    config.no_timestamps = take(&fuzz) & 1;
    if (memory == NULL) {
        memory = aligned_alloc(64, tcp_size(&config));
    }
    CHECK(tcp_init(memory, tcp_size(&config), &config, &fuzz.engine) == 0);
    CHECK(tcp_listen(fuzz.engine, any, 80) == 0);
    for (uint32_t i = 0; i < FRAMES; i++) {
        fuzz.tokens[fuzz.tokens_count++] = i;
    }
    while (fuzz.at < fuzz.end) {
        uint8_t op = take(&fuzz);
        switch (op & 7) {
        case 0:
            fuzz.now += (uint64_t)take(&fuzz) << (take(&fuzz) % 36);
            tcp_tick(fuzz.engine, fuzz.now);
            break;
        case 1:
            op_consumer(&fuzz);
            break;
        case 2:
            op_release(&fuzz);
            break;
        default:
            op_segment(&fuzz);
            break;
        }
        invariants_check(fuzz.engine);
        if (!(op & 0x80)) { // else several operations between two looks at the engine
            drain(&fuzz);
            invariants_check(fuzz.engine);
        }
    }
    finish(&fuzz);
    return 0;
}
