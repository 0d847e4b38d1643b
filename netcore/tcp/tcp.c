/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp: the engine's face (tcp.h): lays out its memory, sends each frame to whom it concerns, gives events, packets and buffers
 * out. Owns the order in which things are handed out; the protocol itself lives in the other files of this folder.
 */
#include "tcp/tcp.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "tcp/tcp_int.h"

#define TCP_COUNTER_NAME(name, help) #name,
#define TCP_COUNTER_HELP(name, help) help,
static const char *const counter_names[] = {TCP_COUNTER_LIST(TCP_COUNTER_NAME)};
static const char *const counter_helps[] = {TCP_COUNTER_LIST(TCP_COUNTER_HELP)};

/* A refused frame is counted by adding the parser's verdict to the first drop counter. */
_Static_assert(TCP_COUNTER_drop_short + TCP_WIRE_CHECKSUM_PARTIAL - TCP_WIRE_SHORT ==
                   TCP_COUNTER_drop_checksum_partial,
               "counters follow enum tcp_wire_result");
_Static_assert(TCP_COUNTER_drop_fragment - TCP_COUNTER_drop_short == TCP_WIRE_FRAGMENT - TCP_WIRE_SHORT,
               "counters follow enum tcp_wire_result");

const char *tcp_counter_name(enum tcp_counter counter)
{
    return (unsigned)counter < TCP_COUNTERS ? counter_names[counter] : NULL;
}

const char *tcp_counter_help(enum tcp_counter counter)
{
    return (unsigned)counter < TCP_COUNTERS ? counter_helps[counter] : NULL;
}

static void default_u32(uint32_t *value, uint32_t otherwise)
{
    *value = *value == 0 ? otherwise : *value;
}

static void default_u64(uint64_t *value, uint64_t otherwise)
{
    *value = *value == 0 ? otherwise : *value;
}

/* Fills the defaults in. False if the configuration is impossible. */
static bool config_complete(struct tcp_config *config)
{
    default_u32(&config->syns_max, 1024);
    default_u32(&config->time_waits_max, 1024);
    default_u32(&config->frames_hold_max, config->frames_count - config->frames_count / 4);
    default_u32(&config->conn_frames_max, max_u32(config->frames_hold_max / 2, 2));
    default_u32(&config->replies_max, 256);
    default_u32(&config->mtu, 1500);
    default_u32(&config->send_mtu, config->mtu);
    default_u32(&config->frame_bytes, config->mtu);
    default_u64(&config->delayed_ack_ns, 40 * NS_PER_MS);
    default_u64(&config->rto_min_ns, 200 * NS_PER_MS);
    default_u64(&config->rto_max_ns, 60 * NS_PER_S);
    default_u64(&config->user_timeout_ns, 120 * NS_PER_S);
    default_u64(&config->keepalive_ns, 60 * NS_PER_S);
    default_u64(&config->keepalive_interval_ns, 10 * NS_PER_S);
    default_u32(&config->keepalive_probes, 6);
    default_u64(&config->time_wait_ns, 60 * NS_PER_S);
    default_u64(&config->fin_wait_ns, 60 * NS_PER_S);
    default_u32(&config->challenges_per_s, 10);
    default_u32(&config->resets_per_s, 1000);
    uint64_t nodes = (uint64_t)config->conns_max + config->syns_max + config->time_waits_max;
    return config->conns_max > 0 && nodes < (1U << 28) && config->frames_count > 0 &&
           config->frames_count < (1U << 28) && config->frames_hold_max <= config->frames_count &&
           config->frames_hold_max >= 2 && config->conn_frames_max >= 2 &&
           config->conn_frames_max <= config->frames_hold_max && config->mtu >= 576 &&
           config->mtu <= 65535 - 64 && config->send_mtu >= 576 && config->send_mtu <= config->mtu &&
           config->frame_bytes >= 256;
}

/* Where each part of an engine lies, from its start. */
struct layout {
    size_t conns, syns, waits, buckets, heap, frames, replies, size;
    uint32_t bucket_count;
};

static size_t layout_add(struct layout *layout, size_t count, size_t item)
{
    size_t at = layout->size;
    layout->size += (count * item + 63) / 64 * 64;
    return at;
}

static void layout_compute(const struct tcp_config *config, struct layout *layout)
{
    uint32_t nodes = config->conns_max + config->syns_max + config->time_waits_max;
    memset(layout, 0, sizeof(*layout));
    layout->bucket_count = 64;
    while (layout->bucket_count < nodes) {
        layout->bucket_count *= 2;
    }
    (void)layout_add(layout, 1, sizeof(struct tcp_engine)); /* the engine itself is at 0 */
    layout->conns = layout_add(layout, config->conns_max, sizeof(struct tcp_conn));
    layout->syns = layout_add(layout, config->syns_max, sizeof(struct tcp_syn));
    layout->waits = layout_add(layout, config->time_waits_max, sizeof(struct tcp_wait));
    layout->buckets = layout_add(layout, layout->bucket_count, sizeof(struct tcp_node *));
    layout->heap = layout_add(layout, nodes, sizeof(struct tcp_node *));
    layout->frames = layout_add(layout, config->frames_count, sizeof(struct tcp_frame));
    layout->replies = layout_add(layout, config->replies_max, sizeof(struct tcp_reply));
}

size_t tcp_size(const struct tcp_config *config)
{
    struct tcp_config complete = *config;
    struct layout layout;
    if (!config_complete(&complete)) {
        return 0;
    }
    layout_compute(&complete, &layout);
    return layout.size;
}

static void pools_init(struct tcp_engine *engine)
{
    const struct tcp_config *config = &engine->config;
    for (uint32_t i = config->conns_max; i-- > 0;) {
        engine->conns[i].index = i;
        engine->conns[i].node.hash_next = engine->conns_free;
        engine->conns_free = &engine->conns[i].node;
    }
    for (uint32_t i = config->syns_max; i-- > 0;) {
        engine->syns[i].node.hash_next = engine->syns_free;
        engine->syns_free = &engine->syns[i].node;
    }
    for (uint32_t i = config->time_waits_max; i-- > 0;) {
        engine->waits[i].node.hash_next = engine->waits_free;
        engine->waits_free = &engine->waits[i].node;
    }
    list_init(&engine->syn_age);
    list_init(&engine->wait_age);
    list_init(&engine->out);
    for (uint32_t i = 0; i < ARRAY_COUNT(engine->events); i++) {
        list_init(&engine->events[i]);
    }
    list_init(&engine->starved);
    engine->free_head = TCP_NONE;
}

int tcp_init(void *mem, size_t size, const struct tcp_config *config, struct tcp_engine **out)
{
    struct tcp_config complete = *config;
    struct layout layout;
    if (!config_complete(&complete) || (uintptr_t)mem % 64 != 0) {
        return -EINVAL;
    }
    layout_compute(&complete, &layout);
    if (size < layout.size) {
        return -EINVAL;
    }
    uint8_t *base = mem;
    struct tcp_engine *engine = mem;
    memset(base, 0, layout.size);
    engine->magic = TCP_ENGINE_MAGIC;
    engine->config = complete;
    engine->conns = (struct tcp_conn *)(base + layout.conns);
    engine->syns = (struct tcp_syn *)(base + layout.syns);
    engine->waits = (struct tcp_wait *)(base + layout.waits);
    engine->buckets = (struct tcp_node **)(base + layout.buckets);
    engine->bucket_mask = layout.bucket_count - 1;
    engine->heap = (struct tcp_node **)(base + layout.heap);
    engine->frames = (struct tcp_frame *)(base + layout.frames);
    engine->replies = (struct tcp_reply *)(base + layout.replies);
    engine->mtu = complete.mtu;
    engine->send_mtu = complete.send_mtu;
    pools_init(engine);
    /* RFC 7323 section 2.3: the smallest shift that can tell of all a connection may hold; finer steps shrink less. */
    while (engine->rcv_wscale < 14 &&
           (uint64_t)complete.conn_frames_max * min_u32(complete.mtu - 40, complete.frame_bytes) >>
               engine->rcv_wscale > 65535) {
        engine->rcv_wscale++;
    }
    *out = engine;
    return 0;
}

const struct tcp_stats *tcp_stats(const struct tcp_engine *engine)
{
    return &engine->stats;
}

/* ---- in ---- */

uint32_t tcp_input(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_part *parts,
                   uint32_t part_count)
{
    struct tcp_segment segment;
    struct tcp_conn *conn = NULL;
    CHECK(engine->magic == TCP_ENGINE_MAGIC);
    TCP_COUNT(engine, frames_in);
    enum tcp_wire_result result = tcp_wire_parse(parts, part_count, &segment);
    if (result != TCP_WIRE_OK) {
        engine->stats.counters[TCP_COUNTER_drop_short + result - TCP_WIRE_SHORT]++;
        if (result == TCP_WIRE_CHECKSUM_PARTIAL) {
            engine->stats.partial_last = segment.tuple;
        }
        return 0;
    }
    TCP_COUNT(engine, segments_in);
    engine->is_reopened = false;
    struct tcp_node *node = tcp_node_find(engine, &segment.tuple);
    if (node != NULL && node->kind == TCP_KIND_WAIT) {
        if (!tcp_wait_input(engine, now_ns, (struct tcp_wait *)node, &segment)) {
            return 0;
        }
        node = NULL;
    }
    if (node == NULL) {
        bool maybe_cookie = (segment.flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_ACK;
        if (!maybe_cookie || !tcp_cookie_input(engine, now_ns, &segment, &conn)) {
            tcp_listen_input(engine, now_ns, &segment);
        }
    } else if (node->kind == TCP_KIND_SYN) {
        conn = tcp_syn_input(engine, now_ns, (struct tcp_syn *)node, &segment);
    } else {
        conn = (struct tcp_conn *)node;
    }
    if (conn == NULL) {
        return 0;
    }
    uint32_t held = tcp_conn_input(engine, now_ns, conn, &segment, parts);
    tcp_conn_settle(engine, conn);
    return held;
}

uint32_t tcp_input_or_stray(struct tcp_engine *engine, uint64_t now_ns, const struct tcp_part *parts,
                            uint32_t part_count, bool *is_stray)
{
    engine->strays_deferred = true;
    engine->is_stray = false;
    uint32_t held = tcp_input(engine, now_ns, parts, part_count);
    engine->strays_deferred = false;
    *is_stray = engine->is_stray;
    return held;
}

void tcp_tick(struct tcp_engine *engine, uint64_t now_ns)
{
    /* Each timer moves its node's deadline past now, or ends the node, so the loop ends. */
    while (engine->heap_count > 0 && engine->heap[0]->deadline_ns <= now_ns) {
        struct tcp_node *node = engine->heap[0];
        switch (node->kind) {
        case TCP_KIND_SYN:
            tcp_syn_timer(engine, now_ns, (struct tcp_syn *)node);
            break;
        case TCP_KIND_WAIT:
            tcp_wait_give(engine, (struct tcp_wait *)node);
            break;
        default:
            CHECK(node->kind == TCP_KIND_CONN);
            tcp_conn_timer(engine, now_ns, (struct tcp_conn *)node);
            tcp_conn_settle(engine, (struct tcp_conn *)node);
        }
    }
}

uint64_t tcp_poll_at(const struct tcp_engine *engine)
{
    if (engine->reply_count > 0 || !list_is_empty(&engine->out) || engine->events_count > 0) {
        return 0;
    }
    return engine->heap_count > 0 ? engine->heap[0]->deadline_ns : TIME_NEVER;
}

/* ---- out ---- */

uint32_t tcp_next_packet(struct tcp_engine *engine, uint64_t now_ns, uint8_t *buf, uint32_t cap)
{
    uint32_t len = 0;
    CHECK(cap >= TCP_HEADERS_MAX + engine->config.send_mtu);
    len = tcp_reply_output(engine, buf);
    while (len == 0 && !list_is_empty(&engine->out)) {
        struct tcp_node *node = CONTAINER_OF(list_take_first(&engine->out), struct tcp_node, out_link);
        if (node->kind == TCP_KIND_SYN) {
            len = tcp_syn_output(engine, now_ns, (struct tcp_syn *)node, buf);
            continue;
        }
        len = tcp_conn_output(engine, now_ns, (struct tcp_conn *)node, buf);
        if (len > 0) {
            tcp_node_out(engine, node); /* at the end: all who have something to send take turns */
        }
        tcp_conn_settle(engine, (struct tcp_conn *)node);
    }
    if (len > 0) {
        TCP_COUNT(engine, packets_out);
    }
    return len;
}

static bool send_is_done(const struct tcp_conn *conn)
{
    const struct tcp_send_record *record = &conn->sends[conn->send_first];
    return conn->send_count > 0 &&
           (conn->state == TCP_STATE_DEAD || (conn->recalled && conn->snd_una == conn->snd_nxt) ||
            seq_le(record->seq + record->len, conn->snd_una));
}

static bool room_is_due(const struct tcp_conn *conn)
{
    return conn->recalled && conn->send_count == 0 && !conn->closing && conn->state != TCP_STATE_DEAD &&
           tcp_has_room(conn);
}

static bool conn_has_event(const struct tcp_conn *conn)
{
    if (conn->reported) {
        return false;
    }
    bool has_data = conn->ready_head != TCP_NONE;
    return conn->open_due || conn->reset_due || send_is_done(conn) || (has_data && !conn->paused) ||
           (conn->eof_due && !has_data) || (conn->closing && conn->send_count == 0) || room_is_due(conn);
}

void tcp_conn_event(struct tcp_engine *engine, struct tcp_conn *conn)
{
    if (!list_is_linked(&conn->event_link) && conn_has_event(conn)) {
        list_append(&engine->events[conn->listener], &conn->event_link);
        engine->events_count++;
    }
}

void tcp_conn_event_drop(struct tcp_engine *engine, struct tcp_conn *conn)
{
    if (list_is_linked(&conn->event_link)) {
        list_remove(&conn->event_link);
        engine->events_count--;
    }
}

static void take_data(struct tcp_engine *engine, struct tcp_conn *conn, struct tcp_event *event)
{
    uint32_t token = conn->ready_head;
    struct tcp_frame *frame = &engine->frames[token];
    CHECK(frame->state == TCP_FRAME_READY);
    conn->ready_head = frame->next;
    if (conn->ready_head == TCP_NONE) {
        conn->ready_tail = TCP_NONE;
    }
    frame->state = TCP_FRAME_CONSUMER;
    event->kind = TCP_EVENT_DATA;
    event->data.addr = frame->addr;
    event->data.len = frame->len;
    event->data.token = token;
}

static void take_sent(struct tcp_conn *conn, struct tcp_event *event)
{
    const struct tcp_send_record *record = &conn->sends[conn->send_first];
    bool all_acked = seq_le(record->seq + record->len, conn->snd_una);
    event->kind = TCP_EVENT_SENT;
    event->cookie = record->cookie;
    if (!all_acked && conn->recalled && conn->state != TCP_STATE_DEAD) {
        event->error = -EAGAIN;
        event->sent = seq_lt(record->seq, conn->snd_una) ? conn->snd_una - record->seq : 0;
        event->unsent = record->len - event->sent;
    } else {
        event->error = all_acked ? 0 : conn->error != 0 ? conn->error : -ECONNRESET;
    }
    conn->send_first = (conn->send_first + 1) % TCP_SENDS_MAX;
    conn->send_count--;
}

/* The one event that is next for this connection. */
static void conn_take_event(struct tcp_engine *engine, struct tcp_conn *conn, struct tcp_event *event)
{
    bool has_data = conn->ready_head != TCP_NONE;
    memset(event, 0, sizeof(*event));
    event->id = (struct tcp_id){conn->index, conn->generation};
    event->user = conn->user;
    event->tuple = &conn->node.tuple;
    if (conn->open_due) {
        conn->open_due = false;
        event->kind = TCP_EVENT_OPEN;
    } else if (has_data && !conn->paused) {
        take_data(engine, conn, event);
    } else if (conn->eof_due && !has_data) {
        conn->eof_due = false;
        event->kind = TCP_EVENT_EOF;
    } else if (conn->reset_due) {
        conn->reset_due = false;
        event->kind = TCP_EVENT_RESET;
        event->error = conn->error;
    } else if (send_is_done(conn)) {
        take_sent(conn, event);
    } else if (room_is_due(conn)) {
        conn->recalled = false;
        event->kind = TCP_EVENT_ROOM;
    } else {
        CHECK(conn->closing);
        conn->reported = true;
        event->kind = TCP_EVENT_CLOSED;
    }
}

int tcp_next_event_of(struct tcp_engine *engine, uint32_t listener, struct tcp_event *event)
{
    struct tcp_conn *conn = NULL;
    CHECK(listener < ARRAY_COUNT(engine->events));
    do {
        struct list *link = list_take_first(&engine->events[listener]);
        if (link == NULL) {
            return 0;
        }
        engine->events_count--;
        conn = CONTAINER_OF(link, struct tcp_conn, event_link);
    } while (!conn_has_event(conn)); /* what it waited for may be gone: paused meanwhile, or closed */
    conn_take_event(engine, conn, event);
    if (conn_has_event(conn)) {
        /* In front: bytes that follow each other are handed out together. */
        list_prepend(&engine->events[listener], &conn->event_link);
        engine->events_count++;
    }
    tcp_conn_settle(engine, conn);
    return 1;
}

int tcp_next_event(struct tcp_engine *engine, struct tcp_event *event)
{
    for (uint32_t i = 0; i < ARRAY_COUNT(engine->events) && engine->events_count > 0; i++) {
        if (tcp_next_event_of(engine, i, event) != 0) {
            return 1;
        }
    }
    return 0;
}

/* ---- buffers ---- */

void tcp_frame_free(struct tcp_engine *engine, uint32_t token)
{
    struct tcp_frame *frame = &engine->frames[token];
    struct tcp_conn *conn = &engine->conns[frame->conn_index];
    CHECK(frame->state != TCP_FRAME_CALLER && frame->state != TCP_FRAME_FREE);
    if (conn->generation == frame->conn_generation) {
        CHECK(conn->frames_held > 0);
        conn->frames_held--;
    }
    CHECK(engine->stats.frames_held > 0);
    engine->stats.frames_held--;
    frame->state = TCP_FRAME_FREE;
    frame->refs = 0;
    frame->next = engine->free_head;
    engine->free_head = token;
    engine->free_count++;
}

void tcp_retain(struct tcp_engine *engine, uint32_t token)
{
    CHECK(token < engine->config.frames_count);
    CHECK(engine->frames[token].state == TCP_FRAME_CONSUMER);
    engine->frames[token].refs++;
}

void tcp_release(struct tcp_engine *engine, uint32_t token)
{
    CHECK(token < engine->config.frames_count);
    struct tcp_frame *frame = &engine->frames[token];
    CHECK(frame->state == TCP_FRAME_CONSUMER);
    CHECK(frame->refs > 0);
    if (--frame->refs > 0) {
        return;
    }
    struct tcp_conn *conn = &engine->conns[frame->conn_index];
    bool alive = conn->generation == frame->conn_generation;
    tcp_frame_free(engine, token);
    if (alive) {
        tcp_window_opened(engine, conn);
    }
    tcp_starved_wake(engine, 1);
}

uint32_t tcp_frames_take(struct tcp_engine *engine, uint32_t *tokens, uint32_t max)
{
    uint32_t count = 0;
    while (count < max && engine->free_head != TCP_NONE) {
        struct tcp_frame *frame = &engine->frames[engine->free_head];
        CHECK(frame->state == TCP_FRAME_FREE);
        tokens[count++] = engine->free_head;
        engine->free_head = frame->next;
        engine->free_count--;
        frame->state = TCP_FRAME_CALLER;
    }
    return count;
}
