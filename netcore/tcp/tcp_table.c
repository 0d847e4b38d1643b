/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_table: the peers an engine knows. Owns the hash table, the pools of nodes, and the heap of deadlines. Knows nothing of
 * the protocol.
 *
 * Invariants:
 *  1. A node is in its pool's free list exactly when its kind is TCP_KIND_FREE.
 *  2. heap[node->heap_index] == node for every node with a deadline; a parent is never due after its child.
 *  3. A node that is given back is in no list, no bucket and not in the heap.
 */
#include <string.h>

#include "tcp/tcp_int.h"

static struct tcp_node **bucket_of(const struct tcp_engine *engine, const struct tcp_tuple *tuple)
{
    uint64_t hash = tcp_siphash(engine->config.secret, (const uint8_t *)tuple, sizeof(*tuple));
    return &engine->buckets[hash & engine->bucket_mask];
}

struct tcp_node *tcp_node_find(const struct tcp_engine *engine, const struct tcp_tuple *tuple)
{
    struct tcp_node *node = *bucket_of(engine, tuple);
    while (node != NULL && memcmp(&node->tuple, tuple, sizeof(*tuple)) != 0) {
        node = node->hash_next;
    }
    return node;
}

void tcp_node_insert(struct tcp_engine *engine, struct tcp_node *node)
{
    struct tcp_node **bucket = bucket_of(engine, &node->tuple);
    node->hash_next = *bucket;
    *bucket = node;
}

void tcp_node_remove(struct tcp_engine *engine, struct tcp_node *node)
{
    struct tcp_node **at = bucket_of(engine, &node->tuple);
    while (*at != NULL && *at != node) {
        at = &(*at)->hash_next;
    }
    if (*at == node) {
        *at = node->hash_next;
    }
    node->hash_next = NULL;
}

static void heap_place(struct tcp_engine *engine, struct tcp_node *node, uint32_t index)
{
    engine->heap[index] = node;
    node->heap_index = index;
}

static void heap_up(struct tcp_engine *engine, struct tcp_node *node)
{
    uint32_t index = node->heap_index;
    while (index > 0) {
        struct tcp_node *parent = engine->heap[(index - 1) / 2];
        if (parent->deadline_ns <= node->deadline_ns) {
            break;
        }
        heap_place(engine, parent, index);
        index = (index - 1) / 2;
    }
    heap_place(engine, node, index);
}

static void heap_down(struct tcp_engine *engine, struct tcp_node *node)
{
    uint32_t index = node->heap_index;
    for (;;) {
        uint32_t child = 2 * index + 1;
        if (child >= engine->heap_count) {
            break;
        }
        if (child + 1 < engine->heap_count &&
            engine->heap[child + 1]->deadline_ns < engine->heap[child]->deadline_ns) {
            child++;
        }
        if (node->deadline_ns <= engine->heap[child]->deadline_ns) {
            break;
        }
        heap_place(engine, engine->heap[child], index);
        index = child;
    }
    heap_place(engine, node, index);
}

static void heap_remove(struct tcp_engine *engine, struct tcp_node *node)
{
    uint32_t index = node->heap_index;
    struct tcp_node *last = engine->heap[--engine->heap_count];
    node->heap_index = TCP_NONE;
    if (last != node) {
        heap_place(engine, last, index);
        heap_up(engine, last);
        heap_down(engine, last);
    }
}

void tcp_node_deadline(struct tcp_engine *engine, struct tcp_node *node, uint64_t deadline_ns)
{
    if (node->deadline_ns == deadline_ns) {
        return;
    }
    node->deadline_ns = deadline_ns;
    if (deadline_ns == TIME_NEVER) {
        heap_remove(engine, node);
        return;
    }
    if (node->heap_index == TCP_NONE) {
        heap_place(engine, node, engine->heap_count++);
    }
    heap_up(engine, node);
    heap_down(engine, node);
}

void tcp_node_out(struct tcp_engine *engine, struct tcp_node *node)
{
    if (!list_is_linked(&node->out_link)) {
        list_append(&engine->out, &node->out_link);
    }
}

static void node_init(struct tcp_node *node, enum tcp_kind kind)
{
    list_init(&node->out_link);
    node->deadline_ns = TIME_NEVER;
    node->heap_index = TCP_NONE;
    node->hash_next = NULL;
    node->kind = kind;
}

/* Takes a node out of everything but the hash table, and gives it to the pool. */
static void node_give(struct tcp_engine *engine, struct tcp_node *node, struct tcp_node **pool)
{
    CHECK(node->kind != TCP_KIND_FREE);
    list_remove(&node->out_link);
    tcp_node_deadline(engine, node, TIME_NEVER);
    node->kind = TCP_KIND_FREE;
    node->hash_next = *pool;
    *pool = node;
}

static struct tcp_node *node_take(struct tcp_node **pool)
{
    struct tcp_node *node = *pool;
    if (node != NULL) {
        CHECK(node->kind == TCP_KIND_FREE);
        *pool = node->hash_next;
    }
    return node;
}

static void gauge_up(uint32_t *used, uint32_t *peak)
{
    (*used)++;
    *peak = max_u32(*peak, *used);
}

struct tcp_conn *tcp_conn_take(struct tcp_engine *engine, uint32_t listener)
{
    struct tcp_conn *conn = (struct tcp_conn *)node_take(&engine->conns_free);
    if (conn == NULL) {
        return NULL;
    }
    uint32_t index = conn->index;
    uint32_t generation = conn->generation + 1;
    memset(conn, 0, sizeof(*conn));
    node_init(&conn->node, TCP_KIND_CONN);
    list_init(&conn->event_link);
    list_init(&conn->starved_link);
    conn->index = index;
    conn->generation = generation == 0 ? 1 : generation;
    conn->listener = listener;
    if (listener < TCP_LISTENS_MAX) {
        engine->listens[listener].conns_used++;
    }
    conn->ready_head = conn->ready_tail = conn->ooo_head = conn->ooo_tail = TCP_NONE;
    conn->delack_ns = conn->rtx_ns = conn->idle_ns = TIME_NEVER;
    gauge_up(&engine->stats.conns_used, &engine->stats.conns_peak);
    return conn;
}

void tcp_conn_give(struct tcp_engine *engine, struct tcp_conn *conn)
{
    CHECK(conn->ready_head == TCP_NONE);
    CHECK(conn->ooo_head == TCP_NONE);
    CHECK(conn->send_count == 0);
    tcp_conn_event_drop(engine, conn);
    list_remove(&conn->starved_link);
    if (conn->listener < TCP_LISTENS_MAX) {
        CHECK(engine->listens[conn->listener].conns_used > 0);
        engine->listens[conn->listener].conns_used--;
    }
    conn->generation++; /* buffers still at the consumer must not be accounted to the slot's next user */
    node_give(engine, &conn->node, &engine->conns_free);
    engine->stats.conns_used--;
}

struct tcp_syn *tcp_syn_take(struct tcp_engine *engine)
{
    struct tcp_syn *syn = (struct tcp_syn *)node_take(&engine->syns_free);
    if (syn != NULL) {
        memset(syn, 0, sizeof(*syn));
        node_init(&syn->node, TCP_KIND_SYN);
        list_init(&syn->age_link);
        list_append(&engine->syn_age, &syn->age_link);
        gauge_up(&engine->stats.syns_used, &engine->stats.syns_peak);
    }
    return syn;
}

void tcp_syn_give(struct tcp_engine *engine, struct tcp_syn *syn)
{
    tcp_node_remove(engine, &syn->node);
    list_remove(&syn->age_link);
    node_give(engine, &syn->node, &engine->syns_free);
    engine->stats.syns_used--;
}

struct tcp_wait *tcp_wait_take(struct tcp_engine *engine)
{
    if (engine->waits_free == NULL && !list_is_empty(&engine->wait_age)) {
        TCP_COUNT(engine, time_wait_recycled);
        tcp_wait_give(engine, CONTAINER_OF(engine->wait_age.next, struct tcp_wait, age_link));
    }
    struct tcp_wait *wait = (struct tcp_wait *)node_take(&engine->waits_free);
    if (wait != NULL) {
        memset(wait, 0, sizeof(*wait));
        node_init(&wait->node, TCP_KIND_WAIT);
        list_init(&wait->age_link);
        list_append(&engine->wait_age, &wait->age_link);
        gauge_up(&engine->stats.time_waits_used, &engine->stats.time_waits_peak);
    }
    return wait;
}

void tcp_wait_give(struct tcp_engine *engine, struct tcp_wait *wait)
{
    tcp_node_remove(engine, &wait->node);
    list_remove(&wait->age_link);
    node_give(engine, &wait->node, &engine->waits_free);
    engine->stats.time_waits_used--;
}

struct tcp_conn *tcp_conn_get(const struct tcp_engine *engine, struct tcp_id id)
{
    CHECK(id.index < engine->config.conns_max);
    struct tcp_conn *conn = &engine->conns[id.index];
    CHECK(conn->node.kind == TCP_KIND_CONN);
    CHECK(conn->generation == id.generation);
    CHECK(!conn->reported);
    return conn;
}

struct tcp_reply *tcp_reply_take(struct tcp_engine *engine, const struct tcp_segment *segment)
{
    if (engine->reply_count == engine->config.replies_max) {
        TCP_COUNT(engine, replies_dropped);
        return NULL;
    }
    uint32_t at = (engine->reply_first + engine->reply_count) % engine->config.replies_max;
    struct tcp_reply *reply = &engine->replies[at];
    engine->reply_count++;
    memset(reply, 0, sizeof(*reply));
    reply->tuple = segment->tuple;
    reply->link = segment->link;
    return reply;
}
