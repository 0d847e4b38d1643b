/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls_buffers: the plaintext buffers of a tls_rx. The rules are rx_socket's, for the same reasons: a connection fills one
 * buffer from record to record, an idle one holds none, and a change of buffers keeps the address modulo 4 KiB.
 *
 * Invariants
 *  1. refs[b] counts the slices lent from buffer b; a buffer is free when refs is 0 and no connection fills it.
 *  2. A buffer that is filled has exactly one filler; fill never passes buffer_size.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/tls_int.h"

static void tls_free_gauge(struct tls_rx *tls)
{
    struct rx_stats *stats = &tls->rx.stats;
    metrics_set(&stats->buffers_free, tls->free_count);
    if (tls->free_count < atomic_load_explicit(&stats->buffers_free_low, memory_order_relaxed)) {
        metrics_set(&stats->buffers_free_low, tls->free_count);
    }
}

static void tls_buffer_free(struct tls_rx *tls, uint32_t index)
{
    struct tls_buffer *buffer = &tls->buffers[index];
    CHECK(buffer->refs == 0);
    CHECK(buffer->filler == -1);
    struct tls_conn *holder = &tls->conns[buffer->holder];
    if (holder->stage != TLS_FREE && holder->id.generation == buffer->holder_generation) {
        holder->buffers_held--;
    }
    CHECK(tls->free_count < tls->rx.info.buffers_total);
    tls->free_stack[tls->free_count++] = index;
    tls->may_wake = tls->may_wake || !list_is_empty(&tls->starved) || !list_is_empty(&tls->over);
    tls_free_gauge(tls);
}

void tls_buffer_detach(struct tls_conn *conn)
{
    struct tls_rx *tls = conn->tls;
    uint32_t index = (uint32_t)conn->buffer;
    CHECK(tls->buffers[index].filler == (int32_t)conn->id.index);
    conn->residue = conn->fill & TLS_PLACE_MASK;
    conn->buffer = -1;
    tls->buffers[index].filler = -1;
    if (tls->buffers[index].refs == 0) {
        tls_buffer_free(tls, index);
    }
}

static void tls_buffer_attach(struct tls_conn *conn)
{
    struct tls_rx *tls = conn->tls;
    uint32_t index = tls->free_stack[--tls->free_count];
    tls->buffers[index] = (struct tls_buffer){.filler = (int32_t)conn->id.index,
                                              .holder = conn->id.index,
                                              .holder_generation = conn->id.generation};
    conn->buffer = (int32_t)index;
    conn->fill = conn->residue;
    conn->buffers_held++;
    tls_free_gauge(tls);
}

bool tls_buffer_want(struct tls_conn *conn)
{
    struct tls_rx *tls = conn->tls;
    if (conn->buffer != -1) {
        return true;
    }
    if (list_is_linked(&conn->wait_node)) {
        return false;
    }
    if (conn->buffers_held >= tls->conn_buffers_max) {
        list_append(&tls->over, &conn->wait_node);
        return false;
    }
    if (tls->free_count == 0) {
        tls->starved_count++;
        list_append(&tls->starved, &conn->wait_node);
        return false;
    }
    tls_buffer_attach(conn);
    return true;
}

void tls_buffer_lend(struct tls_conn *conn, uint32_t len, struct slice *out)
{
    struct tls_rx *tls = conn->tls;
    uint32_t size = tls->rx.info.buffer_size;
    CHECK(len > 0);
    CHECK(len <= size - conn->fill);
    *out = (struct slice){.addr = tls->area + (uint64_t)conn->buffer * size + conn->fill,
                          .len = len,
                          .buf_index = tls->buf_index,
                          .owner = &tls->rx.owner,
                          .token = (uint64_t)conn->buffer};
    tls->buffers[conn->buffer].refs++;
    conn->fill += len;
    if (conn->fill == size) {
        tls_buffer_detach(conn);
    }
}

void tls_buffer_idle(struct tls_conn *conn)
{
    if (conn->buffer != -1 && conn->tls->buffers[conn->buffer].refs == 0) {
        tls_buffer_detach(conn);
    }
}

static void tls_retain(struct slice_owner *owner, const struct slice *slice)
{
    struct tls_rx *tls = tls_of(CONTAINER_OF(owner, struct rx, owner));
    CHECK(slice->token < tls->rx.info.buffers_total);
    CHECK(tls->buffers[slice->token].refs > 0);
    tls->buffers[slice->token].refs++;
}

static void tls_release(struct slice_owner *owner, const struct slice *slice)
{
    struct tls_rx *tls = tls_of(CONTAINER_OF(owner, struct rx, owner));
    CHECK(slice->token < tls->rx.info.buffers_total);
    struct tls_buffer *buffer = &tls->buffers[slice->token];
    CHECK(buffer->refs > 0);
    buffer->refs--;
    if (buffer->refs > 0) {
        return;
    }
    if (buffer->filler == -1) {
        tls_buffer_free(tls, (uint32_t)slice->token);
    } else {
        /* Decryption is synchronous: nobody writes into it now. */
        tls_buffer_detach(&tls->conns[buffer->filler]);
    }
}

void tls_buffers_wake(struct tls_rx *tls)
{
    struct list *lists[] = {&tls->starved, &tls->over};
    uint32_t left = tls->free_count;
    tls->may_wake = false;
    for (uint32_t i = 0; i < 2; i++) {
        LIST_FOR_EACH_SAFE(node, lists[i])
        {
            struct tls_conn *conn = CONTAINER_OF(node, struct tls_conn, wait_node);
            if (left == 0) {
                return;
            }
            if (conn->buffers_held < tls->conn_buffers_max) {
                list_remove(node);
                tls_mark_dirty(conn);
                left--;
            }
        }
    }
}

int tls_buffers_open(struct tls_rx *tls)
{
    uint32_t total = tls->rx.info.buffers_total;
    tls->buffers = calloc(total, sizeof(*tls->buffers));
    tls->free_stack = calloc(total, sizeof(*tls->free_stack));
    if (tls->buffers == NULL || tls->free_stack == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < total; i++) {
        tls->buffers[i].filler = -1;
        tls->free_stack[i] = total - 1 - i;
    }
    tls->free_count = total;
    tls->rx.owner = (struct slice_owner){.retain = tls_retain, .release = tls_release};
    metrics_set(&tls->rx.stats.buffers_free_low, total);
    tls_free_gauge(tls);
    return 0;
}

void tls_buffers_close(struct tls_rx *tls)
{
    /* Every slice was released, or a buffer would be lost. */
    CHECK(tls->buffers == NULL || tls->free_count == tls->rx.info.buffers_total);
    free(tls->buffers);
    free(tls->free_stack);
}
