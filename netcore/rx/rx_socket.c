/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_socket: the receive backend that works everywhere: plain io_uring recv into the listener's part of the arena.
 *
 * It owns `buffers_total` buffers of `buffer_size` bytes. A connection that is readable takes a buffer and fills it from
 * receive to receive, so that the slices of one upload lie next to each other; an idle connection holds none, because
 * waiting is a poll and a buffer is chosen only when data is there. Never MSG_WAITALL: it hides slow peers.
 *
 *   waiting (poll) --readable--> receiving (recv, MSG_DONTWAIT) --bytes--> receiving | waiting
 *        no buffer free: on `starved`       too many held by this connection: on `over`     ... until a release
 *
 * Placement. When a connection changes buffers before one was full (because all its bytes were released), the next
 * byte goes to the same address modulo 4 KiB as if the old buffer had gone on. The writer skips `phase` bytes of an
 * extent's first block by the address of its first byte; keeping the residue keeps later bytes aligned on disk.
 *
 * Invariants
 *  1. refs[b] counts the slices lent from buffer b; a buffer is free when refs is 0 and no connection fills it.
 *  2. A buffer that is filled has exactly one filler; fill never passes buffer_size.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "rx/rx_ktcp.h"

#define SOCKET_BUFFER_DEFAULT (128 * KIB)
#define SOCKET_BUFFER_MIN (4 * KIB)
#define SOCKET_BUFFER_MAX (1 * MIB)
#define SOCKET_PLACE_MASK (4 * KIB - 1)

struct socket_buffer {
    uint32_t refs;   /* slices lent and not released */
    int32_t filler;  /* index of the connection that fills it, or -1 */
    uint32_t holder; /* connection that took it */
    uint32_t holder_generation;
};

struct rx_socket {
    struct ktcp ktcp; /* first */
    uint8_t *area;
    int32_t buf_index;
    uint32_t conn_buffers_max;
    struct socket_buffer *buffers;
    uint32_t *free_stack;
    uint32_t free_count;
    bool has_queued; /* a receive is queued whose bytes are known to be there: it ends when it is submitted */
    struct list starved; /* connections that are readable and found no free buffer */
    struct list over;    /* connections that are readable and hold conn_buffers_max */
    bool may_wake;       /* one of `over` may have given a buffer back and is to be tried when one is free */
};

/* ---- buffers --------------------------------------------------------------------------------------------------- */

static void socket_free_gauge(struct rx_socket *sock)
{
    struct rx_stats *stats = &sock->ktcp.rx.stats;
    ktcp_gauge(&stats->buffers_free, sock->free_count);
    if (sock->free_count < stats->buffers_free_low) {
        ktcp_gauge(&stats->buffers_free_low, sock->free_count);
    }
}

static void socket_buffer_free(struct rx_socket *sock, uint32_t index)
{
    struct socket_buffer *buffer = &sock->buffers[index];
    CHECK(buffer->refs == 0);
    CHECK(buffer->filler == -1);
    struct ktcp_conn *holder = ktcp_conn_at(&sock->ktcp, buffer->holder);
    if (holder->fd >= 0 && holder->generation == buffer->holder_generation) {
        holder->buffers_held--;
        sock->may_wake |= list_is_linked(&holder->wait_node);
    }
    CHECK(sock->free_count < sock->ktcp.rx.info.buffers_total);
    sock->free_stack[sock->free_count++] = index;
    socket_free_gauge(sock);
}

/* The connection stops filling its buffer; the next byte's place is remembered. */
static void socket_buffer_detach(struct rx_socket *sock, struct ktcp_conn *conn)
{
    uint32_t index = (uint32_t)conn->buffer;
    CHECK(sock->buffers[index].filler == (int32_t)conn->index);
    conn->residue = conn->fill & SOCKET_PLACE_MASK;
    conn->buffer = -1;
    sock->buffers[index].filler = -1;
    if (sock->buffers[index].refs == 0) {
        socket_buffer_free(sock, index);
    }
}

static void socket_buffer_attach(struct rx_socket *sock, struct ktcp_conn *conn)
{
    CHECK(conn->buffer == -1);
    CHECK(sock->free_count > 0);
    uint32_t index = sock->free_stack[--sock->free_count];
    sock->buffers[index] = (struct socket_buffer){
        .filler = (int32_t)conn->index, .holder = conn->index, .holder_generation = conn->generation};
    conn->buffer = (int32_t)index;
    conn->fill = conn->residue;
    conn->buffers_held++;
    socket_free_gauge(sock);
}

static void socket_retain(struct slice_owner *owner, const struct slice *slice)
{
    struct rx_socket *sock = (struct rx_socket *)CONTAINER_OF(owner, struct rx, owner);
    CHECK(slice->token < sock->ktcp.rx.info.buffers_total);
    CHECK(sock->buffers[slice->token].refs > 0);
    sock->buffers[slice->token].refs++;
}

static void socket_release(struct slice_owner *owner, const struct slice *slice)
{
    struct rx_socket *sock = (struct rx_socket *)CONTAINER_OF(owner, struct rx, owner);
    CHECK(slice->token < sock->ktcp.rx.info.buffers_total);
    struct socket_buffer *buffer = &sock->buffers[slice->token];
    CHECK(buffer->refs > 0);
    buffer->refs--;
    if (buffer->refs > 0) {
        return;
    }
    if (buffer->filler == -1) {
        socket_buffer_free(sock, (uint32_t)slice->token);
        return;
    }
    struct ktcp_conn *conn = ktcp_conn_at(&sock->ktcp, (uint32_t)buffer->filler);
    if (!conn->receiving) {
        socket_buffer_detach(sock, conn); /* Nobody holds bytes in it and nothing is being received: idle. */
    }
}

/* ---- receiving ------------------------------------------------------------------------------------------------- */

static void socket_poll_start(struct rx_socket *sock, struct ktcp_conn *conn)
{
    struct io_uring_sqe *sqe = uring_sqe(sock->ktcp.uring);
    io_uring_prep_poll_add(sqe, conn->fd, POLLIN | POLLRDHUP);
    conn->receiving = false;
    ktcp_op_submit(&sock->ktcp, &conn->recv_op, sqe);
}

/* Receives at once; the caller has reason to believe that the socket is readable. */
static void socket_recv_start(struct rx_socket *sock, struct ktcp_conn *conn)
{
    if (conn->buffer == -1) {
        if (conn->buffers_held >= sock->conn_buffers_max) {
            list_append(&sock->over, &conn->wait_node);
            return;
        }
        if (sock->free_count == 0) {
            ktcp_count(&sock->ktcp.rx.stats.starved, 1);
            list_append(&sock->starved, &conn->wait_node);
            return;
        }
        socket_buffer_attach(sock, conn);
    }
    uint32_t size = sock->ktcp.rx.info.buffer_size;
    uint8_t *to = sock->area + (uint64_t)conn->buffer * size + conn->fill;
    struct io_uring_sqe *sqe = uring_sqe(sock->ktcp.uring);
    io_uring_prep_recv(sqe, conn->fd, to, size - conn->fill, MSG_DONTWAIT);
    conn->receiving = true;
    sock->has_queued = true;
    ktcp_op_submit(&sock->ktcp, &conn->recv_op, sqe);
}

static void socket_start(struct ktcp *ktcp, struct ktcp_conn *conn)
{
    if (conn->recv_op.in_flight || list_is_linked(&conn->recv_op.node) || list_is_linked(&conn->wait_node)) {
        return;
    }
    socket_poll_start((struct rx_socket *)ktcp, conn);
}

static bool socket_may_receive(const struct ktcp_conn *conn)
{
    return !conn->paused && !conn->ended && !conn->closing;
}

/* A buffer in which nobody holds bytes is of no use to a connection that waits. */
static void socket_idle(struct rx_socket *sock, struct ktcp_conn *conn)
{
    if (conn->buffer != -1 && sock->buffers[conn->buffer].refs == 0) {
        socket_buffer_detach(sock, conn);
    }
}

static bool socket_ended(struct rx_socket *sock, struct ktcp_conn *conn, int error, struct rx_event *event)
{
    conn->ended = true;
    socket_idle(sock, conn);
    if (conn->closing) {
        return false;
    }
    ktcp_event_init(event, error == 0 ? RX_EOF : RX_RESET, conn);
    event->error = error;
    if (error != 0) {
        ktcp_count(&sock->ktcp.rx.stats.conns_reset, 1);
    }
    return true;
}

static void socket_data(struct rx_socket *sock, struct ktcp_conn *conn, uint32_t len, struct rx_event *event)
{
    struct rx *rx = &sock->ktcp.rx;
    uint32_t size = rx->info.buffer_size;
    CHECK(len <= size - conn->fill);
    ktcp_event_init(event, RX_DATA, conn);
    event->slice = (struct slice){.addr = sock->area + (uint64_t)conn->buffer * size + conn->fill,
                                  .len = len,
                                  .buf_index = sock->buf_index,
                                  .owner = &rx->owner,
                                  .token = (uint64_t)conn->buffer};
    sock->buffers[conn->buffer].refs++;
    conn->fill += len;
    ktcp_count(&rx->stats.received_bytes, len);
    ktcp_count(&rx->stats.kernel_copied_bytes, len);
    ktcp_count(&rx->stats.receives, 1);
    if (conn->fill == size) {
        socket_buffer_detach(sock, conn);
    }
}

/* After a closing or paused connection's receive: bytes that arrived are dropped (closing) or told (paused). */
static bool socket_recv_done(struct rx_socket *sock, struct ktcp_conn *conn, struct rx_event *event)
{
    int res = conn->recv_op.res;
    conn->receiving = false;
    if (res > 0 && !conn->closing) {
        bool more = (conn->recv_op.flags & IORING_CQE_F_SOCK_NONEMPTY) != 0;
        socket_data(sock, conn, (uint32_t)res, event);
        if (!conn->paused) {
            if (more) {
                socket_recv_start(sock, conn);
            } else {
                socket_poll_start(sock, conn);
            }
        }
        return true;
    }
    if (res == -EAGAIN || res == -EINTR) {
        socket_idle(sock, conn);
        if (socket_may_receive(conn)) {
            socket_poll_start(sock, conn);
        }
        return false;
    }
    if (res > 0 || res == -ECANCELED) { /* Only a closing connection gets here. */
        socket_idle(sock, conn);
        return false;
    }
    return socket_ended(sock, conn, res, event);
}

static bool socket_done(struct ktcp *ktcp, struct ktcp_conn *conn, struct rx_event *event)
{
    struct rx_socket *sock = (struct rx_socket *)ktcp;
    if (conn->receiving) {
        return socket_recv_done(sock, conn, event);
    }
    if (!socket_may_receive(conn)) {
        return false; /* rx_resume polls again. */
    }
    if (conn->recv_op.res < 0 && conn->recv_op.res != -EINTR) {
        return socket_ended(sock, conn, conn->recv_op.res, event);
    }
    socket_recv_start(sock, conn);
    return false;
}

static void socket_end(struct ktcp *ktcp, struct ktcp_conn *conn)
{
    if (conn->buffer != -1) {
        socket_buffer_detach((struct rx_socket *)ktcp, conn);
    }
}

/* Gives waiting connections another try: those over their own bound first look whether they still are. */
static void socket_wake(struct rx_socket *sock, struct list *waiting)
{
    LIST_FOR_EACH_SAFE(node, waiting)
    {
        struct ktcp_conn *conn = CONTAINER_OF(node, struct ktcp_conn, wait_node);
        if (sock->free_count == 0) {
            return;
        }
        if (!socket_may_receive(conn)) {
            list_remove(node);
        } else if (conn->buffers_held < sock->conn_buffers_max) {
            list_remove(node);
            socket_recv_start(sock, conn);
        }
    }
}

static int socket_poll(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max)
{
    struct rx_socket *sock = (struct rx_socket *)rx;
    sock->has_queued = false;
    if (sock->free_count > 0) {
        sock->may_wake = false;
        socket_wake(sock, &sock->starved);
        socket_wake(sock, &sock->over);
        sock->may_wake |= sock->free_count == 0 && !list_is_empty(&sock->over); /* Not all had their turn. */
    }
    return ktcp_poll(rx, now_ns, events, max);
}

static uint64_t socket_deadline(struct rx *rx)
{
    const struct rx_socket *sock = (const struct rx_socket *)rx;
    if (sock->has_queued || (sock->free_count > 0 && (sock->may_wake || !list_is_empty(&sock->starved)))) {
        return 0;
    }
    return ktcp_deadline(rx);
}

/* ---- open and close -------------------------------------------------------------------------------------------- */

static int socket_geometry(const struct rx_options *options, struct rx_info *info, struct err *err)
{
    uint32_t size = options->buffer_size == 0 ? (uint32_t)SOCKET_BUFFER_DEFAULT : options->buffer_size;
    char text[BYTES_SIZE_TEXT_MAX];
    if (!bytes_is_power_of_two(size) || size < SOCKET_BUFFER_MIN || size > SOCKET_BUFFER_MAX) {
        return err_set(err, -EINVAL, "rx_buffer_size %s: a power of two from 4KiB to 1MiB is allowed",
                       bytes_format_size(size, text));
    }
    if (options->area_size / size < 2) {
        return err_set(err, -EINVAL, "rx_area_size %s: at least two buffers of rx_buffer_size must fit",
                       bytes_format_size(options->area_size, text));
    }
    CHECK(options->area_offset + options->area_size <= options->arena->size);
    *info = (struct rx_info){.path = "socket",
                             .flow = RX_FLOW_READ,
                             .buffer_size = size,
                             .buffers_total = (uint32_t)(options->area_size / size),
                             .conns_max = options->conns_max,
                             .copies = true};
    return 0;
}

static int socket_memory(struct rx_socket *sock)
{
    uint32_t total = sock->ktcp.rx.info.buffers_total;
    sock->buffers = calloc(total, sizeof(*sock->buffers));
    sock->free_stack = calloc(total, sizeof(*sock->free_stack));
    if (sock->buffers == NULL || sock->free_stack == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < total; i++) {
        sock->buffers[i].filler = -1;
        sock->free_stack[i] = total - 1 - i;
    }
    sock->free_count = total;
    ktcp_gauge(&sock->ktcp.rx.stats.buffers_free_low, total);
    socket_free_gauge(sock);
    return 0;
}

static void socket_free(struct rx_socket *sock)
{
    free(sock->buffers);
    free(sock->free_stack);
    free(sock);
}

static int socket_open(const struct rx_options *options, struct rx **out, struct err *err)
{
    struct rx_socket *sock = aligned_alloc(64, bytes_round_up(sizeof(*sock), 64));
    if (sock == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    memset(sock, 0, sizeof(*sock));
    struct rx *rx = &sock->ktcp.rx;
    int rc = socket_geometry(options, &rx->info, err);
    if (rc == 0) {
        rc = socket_memory(sock);
    }
    if (rc < 0) {
        socket_free(sock);
        return rc;
    }
    static const struct ktcp_receive receive = {
        .start = socket_start, .done = socket_done, .end = socket_end};
    rx->ops = &rx_socket_ops;
    rx->owner = (struct slice_owner){.retain = socket_retain, .release = socket_release};
    sock->area = options->arena->base + options->area_offset;
    sock->buf_index = options->arena->buf_index;
    sock->conn_buffers_max =
        options->conn_buffers_max > 0 ? options->conn_buffers_max : rx->info.buffers_total;
    list_init(&sock->starved);
    list_init(&sock->over);
    rc = ktcp_open(&sock->ktcp, options, &receive, err);
    if (rc < 0) {
        socket_free(sock);
        return rc;
    }
    rx->magic = RX_MAGIC;
    *out = rx;
    return 0;
}

static void socket_close(struct rx *rx)
{
    struct rx_socket *sock = (struct rx_socket *)rx;
    ktcp_close(&sock->ktcp);
    /* Every slice was released, or a buffer would be lost. */
    CHECK(sock->free_count == rx->info.buffers_total);
    rx->magic = 0;
    socket_free(sock);
}

const struct rx_ops rx_socket_ops = {
    .path = "socket",
    .open = socket_open,
    .close = socket_close,
    .poll = socket_poll,
    .deadline = socket_deadline,
    .user_set = ktcp_user_set,
    .pause = ktcp_pause,
    .resume = ktcp_resume,
    .send = ktcp_send,
    .send_recall = ktcp_send_recall,
    .acked = ktcp_acked,
    .shutdown = ktcp_shutdown,
    .conn_close = ktcp_conn_close,
    .accept_stop = ktcp_accept_stop,
};
