/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_link: see tcp_link.h. */
#include "tcp_link.h"

#include <stdlib.h>
#include <string.h>

#include "tcp_invariants.h"
#include "tcp_rig.h"

#define FRAMES 2048U
#define FRAME_SIZE 2048U
#define FLIGHT_MAX 4096U
#define CHUNK 65536U
#define PATTERN_BYTES (1U << 20)

struct flight {
    uint64_t due_ns;
    uint64_t order;
    uint32_t to; /* host */
    uint32_t len;
    uint8_t bytes[1600];
};

struct host {
    struct tcp_engine *engine;
    void *memory;
    uint8_t (*frames)[FRAME_SIZE];
    uint32_t tokens[FRAMES];
    uint32_t tokens_count;
    struct tcp_id id;
    bool open, closed;
    uint32_t to_send, queued; /* bytes of this side, and how many were given to tcp_send */
    bool shut;
    uint32_t expect, got;
    bool eof;
    int error;
    uint64_t link_free_ns; /* when the sender's side of the link is idle */
    struct {
        uint64_t due_ns;
        uint32_t token;
    } kept[FRAMES];
    uint32_t kept_first, kept_count;
};

struct world {
    const struct link_options *options;
    struct link_result *result;
    struct host hosts[2]; /* client, server */
    struct flight *flights;
    uint32_t flight_count;
    uint64_t now;
    uint64_t order;
    uint32_t client_packets;
    struct rng rng;
};

static uint8_t pattern[PATTERN_BYTES + CHUNK]; /* the pattern repeats, so that chunks never wrap */

static void host_open(struct world *world, uint32_t which)
{
    struct host *host = &world->hosts[which];
    static const uint8_t any[16];
    struct tcp_config config = {.conns_max = 2,
                                .frames_count = FRAMES,
                                .no_sack = world->options->no_sack,
                                .no_timestamps = world->options->no_timestamps,
                                .conn_frames_max = which == 1 ? world->options->conn_frames_max : 0};
    memset(config.secret, (int)(which + 1), sizeof(config.secret));
    size_t size = tcp_size(&config);
    host->memory = aligned_alloc(64, size);
    CHECK(tcp_init(host->memory, size, &config, &host->engine) == 0);
    host->frames = malloc((size_t)FRAMES * FRAME_SIZE);
    for (uint32_t i = 0; i < FRAMES; i++) {
        host->tokens[host->tokens_count++] = i;
    }
    CHECK(tcp_listen(host->engine, any, 80) == 0);
    host->to_send = which == 0 ? world->options->upload : world->options->response;
    host->expect = which == 0 ? world->options->response : world->options->upload;
}

static bool link_loses(struct world *world, uint32_t to, const uint8_t *bytes, uint32_t len)
{
    const struct link_options *options = world->options;
    bool masked = to == 1 && (options->loss_mask >> (world->client_packets++ % 64) & 1);
    (void)bytes; /* content decides nothing */
    return masked || rng_chance(&world->rng, options->loss_ppm, 1000000) ||
           (options->mtu_silent != 0 && len > options->mtu_silent + 14);
}

static void link_put(struct world *world, uint32_t to, const uint8_t *bytes, uint32_t len)
{
    const struct link_options *options = world->options;
    struct host *from = &world->hosts[1 - to];
    world->result->packets++;
    uint64_t start = from->link_free_ns > world->now ? from->link_free_ns : world->now;
    if (link_loses(world, to, bytes, len) ||
        (options->queue_ns != 0 && start - world->now > options->queue_ns)) {
        world->result->lost++;
        return;
    }
    from->link_free_ns = start + options->ns_per_byte * (len + 24);
    uint32_t copies = rng_chance(&world->rng, options->dup_ppm, 1000000) ? 2 : 1;
    for (uint32_t i = 0; i < copies; i++) {
        CHECK(world->flight_count < FLIGHT_MAX);
        struct flight *flight = &world->flights[world->flight_count++];
        flight->due_ns = from->link_free_ns + options->delay_ns +
                         (options->jitter_ns != 0 ? rng_below(&world->rng, options->jitter_ns) : 0);
        flight->order = world->order++;
        flight->to = to;
        flight->len = len;
        memcpy(flight->bytes, bytes, len);
        if (rng_chance(&world->rng, options->corrupt_ppm, 1000000)) {
            flight->bytes[rng_below(&world->rng, len)] ^= (uint8_t)(1 + rng_below(&world->rng, 255));
        }
        if (bytes[12] == 0x08 && (bytes[15] & 3) == 2 &&
            rng_chance(&world->rng, options->mark_ppm, 1000000)) {
            uint64_t sum = 0;
            flight->bytes[15] |= 3;
            flight->bytes[24] = flight->bytes[25] = 0;
            sum = (uint16_t)~tcp_checksum_fold(tcp_checksum_add(sum, flight->bytes + 14, 20));
            flight->bytes[24] = (uint8_t)(sum >> 8);
            flight->bytes[25] = (uint8_t)sum;
        }
    }
}

static void host_data(struct world *world, struct host *host, const struct tcp_event *event)
{
    uint32_t at = host->got % PATTERN_BYTES;
    CHECK(event->data.len <= CHUNK);
    CHECK(memcmp(event->data.addr, pattern + at, event->data.len) == 0);
    host->got += event->data.len;
    uint32_t slot = (host->kept_first + host->kept_count++) % FRAMES;
    host->kept[slot].token = event->data.token;
    host->kept[slot].due_ns = world->now + (host == &world->hosts[1] ? world->options->consumer_ns : 0);
}

static void host_release(struct world *world, struct host *host)
{
    while (host->kept_count > 0 && host->kept[host->kept_first].due_ns <= world->now) {
        tcp_release(host->engine, host->kept[host->kept_first].token);
        host->kept_first = (host->kept_first + 1) % FRAMES;
        host->kept_count--;
    }
    host->tokens_count +=
        tcp_frames_take(host->engine, host->tokens + host->tokens_count, FRAMES - host->tokens_count);
}

/* Sends more, shuts down, closes: whatever is next for this side. */
static void host_drive(struct world *world, uint32_t which)
{
    struct host *host = &world->hosts[which];
    if (!host->open || host->closed || host->error != 0) {
        return;
    }
    bool may_send = which == 0 || host->eof; /* the server answers when it has everything */
    while (may_send && host->queued < host->to_send) {
        uint32_t len = host->to_send - host->queued < CHUNK ? host->to_send - host->queued : CHUNK;
        struct iovec iov = {pattern + host->queued % PATTERN_BYTES, len};
        if (tcp_send(host->engine, world->now, host->id, &iov, 1, 0) != 0) {
            return;
        }
        host->queued += len;
    }
    if (may_send && !host->shut) {
        host->shut = true;
        tcp_shutdown(host->engine, world->now, host->id);
    }
    if (host->shut && host->eof) {
        tcp_close(host->engine, world->now, host->id);
        host->open = false;
    }
}

static bool host_events(struct world *world, uint32_t which)
{
    struct host *host = &world->hosts[which];
    struct tcp_event event;
    bool any = false;
    while (tcp_next_event(host->engine, &event)) {
        any = true;
        switch (event.kind) {
        case TCP_EVENT_OPEN:
            host->id = event.id;
            host->open = true;
            break;
        case TCP_EVENT_DATA:
            host_data(world, host, &event);
            if (which == 0 && host->got == host->expect) {
                world->result->took_ns = world->now;
            }
            break;
        case TCP_EVENT_EOF:
            host->eof = true;
            break;
        case TCP_EVENT_RESET:
            host->error = event.error;
            host->open = false;
            tcp_close(host->engine, world->now, host->id);
            break;
        case TCP_EVENT_SENT:
            break;
        case TCP_EVENT_ROOM: /* nothing is recalled here */
            CHECK(false);
            break;
        case TCP_EVENT_CLOSED:
            host->closed = true;
            break;
        }
    }
    return any;
}

/* Until nobody has anything to say at this moment. */
static void world_settle(struct world *world)
{
    static uint8_t buf[2048];
    bool busy = true;
    while (busy) {
        busy = false;
        for (uint32_t which = 0; which < 2; which++) {
            struct host *host = &world->hosts[which];
            busy = host_events(world, which) || busy;
            host_release(world, host);
            host_drive(world, which);
            uint32_t len = 0;
            while ((len = tcp_next_packet(host->engine, world->now, buf, sizeof(buf))) > 0) {
                link_put(world, 1 - which, buf, len);
                busy = true;
            }
            invariants_check(host->engine);
        }
    }
}

static uint64_t world_next(const struct world *world)
{
    uint64_t next = TIME_NEVER;
    for (uint32_t i = 0; i < world->flight_count; i++) {
        next = world->flights[i].due_ns < next ? world->flights[i].due_ns : next;
    }
    for (uint32_t which = 0; which < 2; which++) {
        const struct host *host = &world->hosts[which];
        uint64_t at = tcp_poll_at(host->engine);
        next = at < next ? at : next;
        if (host->kept_count > 0 && host->kept[host->kept_first].due_ns < next) {
            next = host->kept[host->kept_first].due_ns;
        }
    }
    return next;
}

static void deliver(struct world *world, const struct flight *flight)
{
    struct host *host = &world->hosts[flight->to];
    if (host->tokens_count == 0) { /* the card has no buffer */
        world->result->lost++;
        return;
    }
    uint32_t token = host->tokens[--host->tokens_count];
    memcpy(host->frames[token], flight->bytes, flight->len);
    struct tcp_part part = {host->frames[token], flight->len, token};
    if (tcp_input(host->engine, world->now, &part, 1) == 0) {
        host->tokens[host->tokens_count++] = token;
    }
}

/* Delivers what is due, in order of time, then of sending. */
static void world_arrive(struct world *world)
{
    for (;;) {
        uint32_t best = FLIGHT_MAX;
        for (uint32_t i = 0; i < world->flight_count; i++) {
            const struct flight *flight = &world->flights[i];
            if (flight->due_ns <= world->now &&
                (best == FLIGHT_MAX || flight->due_ns < world->flights[best].due_ns ||
                 (flight->due_ns == world->flights[best].due_ns &&
                  flight->order < world->flights[best].order))) {
                best = i;
            }
        }
        if (best == FLIGHT_MAX) {
            return;
        }
        deliver(world, &world->flights[best]);
        world->flights[best] = world->flights[--world->flight_count];
    }
}

static void world_connect(struct world *world)
{
    struct tcp_link link = {.peer_mac = {2, 0, 0, 0, 0, 2}, .local_mac = {2, 0, 0, 0, 0, 1}};
    struct tcp_tuple tuple = {
        .local_port = 40000, .peer_port = 80, .version = world->options->version == 6 ? 6 : 4};
    uint8_t client[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 2};
    uint8_t server[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1};
    if (tuple.version == 6) {
        client[0] = server[0] = 0xfd;
    }
    memcpy(tuple.local, client, 16);
    memcpy(tuple.peer, server, 16);
    CHECK(tcp_connect(world->hosts[0].engine, world->now, &tuple, &link, &world->hosts[0].id) == 0);
}

static void world_report(struct world *world)
{
    struct link_result *result = world->result;
    const struct tcp_stats *client = tcp_stats(world->hosts[0].engine);
    const struct tcp_stats *server = tcp_stats(world->hosts[1].engine);
    result->got_upload = world->hosts[1].got;
    result->got_response = world->hosts[0].got;
    result->retransmitted = client->counters[TCP_COUNTER_bytes_retransmitted];
    result->timeouts = client->counters[TCP_COUNTER_rto_fired];
    result->acks = server->counters[TCP_COUNTER_acks_out];
    result->error = world->hosts[0].error != 0 ? world->hosts[0].error : world->hosts[1].error;
    result->complete = result->got_upload == world->options->upload &&
                       result->got_response == world->options->response && result->error == 0 &&
                       world->hosts[0].closed && world->hosts[1].closed;
    for (uint32_t which = 0; which < 2; which++) {
        struct host *host = &world->hosts[which];
        const struct tcp_stats *stats = tcp_stats(host->engine);
        result->complete = result->complete && stats->conns_used == 0 && stats->syns_used == 0 &&
                           stats->frames_held == 0 && host->tokens_count == FRAMES;
        free(host->memory);
        free(host->frames);
    }
}

void link_run(const struct link_options *options, struct link_result *result)
{
    struct world *world = calloc(1, sizeof(*world));
    uint64_t start = 5000 * NS_PER_S;
    memset(result, 0, sizeof(*result));
    for (uint32_t i = 0; i < sizeof(pattern); i++) {
        pattern[i] = rig_pattern(i % PATTERN_BYTES + 1);
    }
    world->options = options;
    world->result = result;
    world->now = start;
    world->flights = malloc(FLIGHT_MAX * sizeof(*world->flights));
    rng_seed(&world->rng, options->seed);
    host_open(world, 0);
    host_open(world, 1);
    world_connect(world);
    world_settle(world);
    /* TIME-WAIT and FIN_WAIT_2 run out as well, hence the minutes after the ceiling. */
    for (uint64_t at = world_next(world);
         at != TIME_NEVER && at < start + options->ceiling_ns + 300 * NS_PER_S; at = world_next(world)) {
        world->now = at > world->now ? at : world->now;
        world_arrive(world);
        tcp_tick(world->hosts[0].engine, world->now);
        tcp_tick(world->hosts[1].engine, world->now);
        world_settle(world);
    }
    result->took_ns = result->took_ns == 0 ? TIME_NEVER : result->took_ns - start;
    world_report(world);
    free(world->flights);
    free(world);
}
