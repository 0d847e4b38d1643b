/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_zcrx: the zero-copy receive backend: one multishot RECV_ZC per connection, payload in the area that a NIC queue
 * fills. Connections, sends and closing are rx_ktcp's; the area and its refill ring are zcrx_area's.
 *
 * It owns the area's registration and a queue of recorded completions (a multishot request completes many times). When
 * that queue is full it holds the ring's reaping (uring.reap_holds) until rx_poll has made room, so nothing is dropped.
 *
 *   idle --start--> receiving --data--> receiving
 *     ^                | CQ full (-ENOSPC): again at once
 *     |                | area exhausted (-ENOMEM): on `starved`, again after a release, with back-off
 *     |                | holds too many buffers: cancelled, on `over`, again at half its bound
 *     `--- paused -----' cancelled; rx_resume starts again
 *
 * Flow control (design section 4.4): the window is the kernel's, so SO_RCVBUF is capped such that all connections fit the
 * area. A buffer is charged to the connection that first held bytes of it: a one-byte segment pins a whole buffer.
 */
#include <errno.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "ring/zcrx_area.h"
#include "rx/rx_ktcp.h"

#define ZCRX_RECORDS 16384U /* power of two */
#define ZCRX_RETRY_MIN_NS NS_PER_MS
#define ZCRX_RETRY_MAX_NS (64 * NS_PER_MS)
#define ZCRX_RCVBUF_MIN (64 * KIB)
#define ZCRX_RCVBUF_MAX (16 * MIB)

struct zcrx_record {
    struct ktcp_conn *conn;
    uint64_t offset; /* of the fragment in the area, with the area's token */
    int32_t res;
    bool more;
};

struct rx_zcrx {
    struct ktcp ktcp; /* first */
    struct zcrx_area area;
    int32_t buf_index;
    uint32_t conn_buffers_max;
    struct zcrx_record *records;
    uint32_t record_head; /* next to act on */
    uint32_t record_tail; /* next to write */
    bool holding;         /* counted in uring.reap_holds */
    struct list starved;
    struct list over;
    uint64_t retry_at_ns;
    uint64_t retry_after_ns;
    uint64_t flushed_at_refills; /* device-less: refills at the last flush */
};

static bool zcrx_may_receive(const struct ktcp_conn *conn)
{
    return !conn->paused && !conn->ended && !conn->closing;
}

/* ---- completions ----------------------------------------------------------------------------------------------- */

static void zcrx_record(struct rx_op *op, const struct io_uring_cqe *cqe)
{
    struct rx_zcrx *zc = op->instance;
    struct ktcp_conn *conn = op->subject;
    const struct io_uring_zcrx_cqe *fragment = (const struct io_uring_zcrx_cqe *)(cqe + 1);
    struct zcrx_record *record = &zc->records[zc->record_tail++ & (ZCRX_RECORDS - 1)];
    CHECK(zc->record_tail - zc->record_head <= ZCRX_RECORDS);
    *record = (struct zcrx_record){.conn = conn,
                                   .offset = cqe->res > 0 ? fragment->off : 0,
                                   .res = cqe->res,
                                   .more = (cqe->flags & IORING_CQE_F_MORE) != 0};
    conn->records++;
    if (!record->more) {
        ktcp_op_end(&zc->ktcp, op);
    }
    if (zc->record_tail - zc->record_head == ZCRX_RECORDS && !zc->holding) {
        zc->holding = true;
        zc->ktcp.uring->reap_holds++;
    }
}

static struct zcrx_record zcrx_record_take(struct rx_zcrx *zc)
{
    struct zcrx_record record = zc->records[zc->record_head++ & (ZCRX_RECORDS - 1)];
    record.conn->records--;
    if (zc->holding) {
        zc->holding = false;
        zc->ktcp.uring->reap_holds--;
    }
    return record;
}

/* ---- buffers --------------------------------------------------------------------------------------------------- */

static void zcrx_gauges(struct rx_zcrx *zc)
{
    struct rx_stats *stats = &zc->ktcp.rx.stats;
    uint64_t free_count = zc->area.buffer_count - zc->area.held_count;
    ktcp_gauge(&stats->buffers_free, free_count);
    if (free_count < stats->buffers_free_low) {
        ktcp_gauge(&stats->buffers_free_low, free_count);
    }
    if (!zc->area.no_device) {
        ktcp_gauge(&stats->kernel_copied_bytes, zcrx_area_copied_bytes(&zc->area));
    }
}

static void zcrx_charge(struct rx_zcrx *zc, uint32_t index, struct ktcp_conn *conn)
{
    struct zcrx_buffer *buffer = &zc->area.buffers[index];
    if (buffer->refs == 1) {
        buffer->holder = conn->index;
        buffer->holder_generation = conn->generation;
        conn->buffers_held++;
    }
}

static void zcrx_unref(struct rx_zcrx *zc, uint32_t index)
{
    const struct zcrx_buffer *buffer = &zc->area.buffers[index];
    if (!zcrx_area_release(&zc->area, index)) {
        return;
    }
    struct ktcp_conn *holder = ktcp_conn_at(&zc->ktcp, buffer->holder);
    if (holder->fd >= 0 && holder->generation == buffer->holder_generation) {
        CHECK(holder->buffers_held > 0);
        holder->buffers_held--;
    }
    zcrx_gauges(zc);
}

static struct rx_zcrx *zcrx_of_owner(struct slice_owner *owner)
{
    return (struct rx_zcrx *)CONTAINER_OF(owner, struct rx, owner);
}

static void zcrx_slice_retain(struct slice_owner *owner, const struct slice *slice)
{
    zcrx_area_retain(&zcrx_of_owner(owner)->area, (uint32_t)slice->token);
}

static void zcrx_slice_release(struct slice_owner *owner, const struct slice *slice)
{
    zcrx_unref(zcrx_of_owner(owner), (uint32_t)slice->token);
}

/* ---- receiving ------------------------------------------------------------------------------------------------- */

static void zcrx_start(struct ktcp *ktcp, struct ktcp_conn *conn)
{
    struct rx_zcrx *zc = (struct rx_zcrx *)ktcp;
    if (conn->recv_op.in_flight || list_is_linked(&conn->wait_node)) {
        return;
    }
    struct io_uring_sqe *sqe = uring_sqe(ktcp->uring);
    io_uring_prep_rw(IORING_OP_RECV_ZC, sqe, conn->fd, NULL, 0, 0);
    sqe->ioprio |= IORING_RECV_MULTISHOT;
    sqe->zcrx_ifq_idx = zc->area.id;
    conn->receiving = true;
    ktcp_op_submit(ktcp, &conn->recv_op, sqe);
}

/* A connection over its bound stops until half of it was released; its peer meets the kernel's window meanwhile. */
static void zcrx_bound(struct rx_zcrx *zc, struct ktcp_conn *conn)
{
    if (conn->buffers_held >= zc->conn_buffers_max && zcrx_may_receive(conn) &&
        !list_is_linked(&conn->wait_node)) {
        ktcp_op_cancel(&zc->ktcp, &conn->recv_op);
        list_append(&zc->over, &conn->wait_node);
    }
}

static bool zcrx_data(struct rx_zcrx *zc, const struct zcrx_record *record, struct rx_event *event)
{
    struct ktcp_conn *conn = record->conn;
    struct rx *rx = &zc->ktcp.rx;
    uint8_t *addr;
    uint32_t index = zcrx_area_take(&zc->area, record->offset, (uint32_t)record->res, &addr);
    zcrx_charge(zc, index, conn);
    if (conn->closing) {
        zcrx_unref(zc, index);
        return false;
    }
    ktcp_event_init(event, RX_DATA, conn);
    event->slice = (struct slice){.addr = addr,
                                  .len = (uint32_t)record->res,
                                  .buf_index = zc->buf_index,
                                  .owner = &rx->owner,
                                  .token = index};
    ktcp_count(&rx->stats.received_bytes, (uint64_t)record->res);
    ktcp_count(&rx->stats.receives, 1);
    if (zc->area.no_device) {
        ktcp_count(&rx->stats.kernel_copied_bytes, (uint64_t)record->res);
    }
    zcrx_bound(zc, conn);
    return true;
}

static bool zcrx_ended(struct rx_zcrx *zc, struct ktcp_conn *conn, int error, struct rx_event *event)
{
    conn->ended = true;
    if (conn->closing) {
        return false;
    }
    ktcp_event_init(event, error == 0 ? RX_EOF : RX_RESET, conn);
    event->error = error;
    if (error == -EFAULT) {
        ktcp_count(&zc->ktcp.rx.stats.wrong_queue, 1);
        LOG_WRN("zcrx_wrong_queue", "queue=%s remedy=%s", LOG_Q(zc->area.no_device ? "none" : "ours"),
                LOG_Q("its packets arrived on another zero-copy queue; steer the listener's port to its own "
                      "queues"));
    }
    if (error != 0) {
        ktcp_count(&zc->ktcp.rx.stats.conns_reset, 1);
    }
    return true;
}

/* A request's last completion without data: goes on where the cause passes, tells where it does not. */
static bool zcrx_final(struct rx_zcrx *zc, struct ktcp_conn *conn, int res, struct rx_event *event)
{
    switch (res) {
    case -ENOMEM: /* The copy fallback found no free buffer. */
        ktcp_count(&zc->ktcp.rx.stats.starved, 1);
        if (zcrx_may_receive(conn) && !list_is_linked(&conn->wait_node)) {
            list_append(&zc->starved, &conn->wait_node);
        }
        return false;
    case -ENOSPC: /* The completion queue was full; it has been reaped by now. */
    case -ECANCELED:
    case -EINTR:
    case -EAGAIN:
        if (zcrx_may_receive(conn)) {
            zcrx_start(&zc->ktcp, conn);
        }
        return false;
    default:
        return zcrx_ended(zc, conn, res, event);
    }
}

static bool zcrx_act(struct rx_zcrx *zc, struct rx_event *event)
{
    struct zcrx_record record = zcrx_record_take(zc);
    struct ktcp_conn *conn = record.conn;
    bool told;
    if (record.res > 0) {
        told = zcrx_data(zc, &record, event);
        if (!record.more && zcrx_may_receive(conn)) {
            zcrx_start(&zc->ktcp, conn);
        }
    } else {
        told = zcrx_final(zc, conn, record.res, event);
    }
    if (conn->closing) {
        ktcp_mark_dirty(&zc->ktcp, conn);
    }
    return told;
}

static bool zcrx_done_unused(struct ktcp *ktcp, struct ktcp_conn *conn, struct rx_event *event)
{
    (void)ktcp;
    (void)conn;
    (void)event;
    CHECK(!"completions of this backend are recorded by zcrx_record");
    return false;
}

/* Every connection is closing by now, so acting on a record only gives its buffer back. */
static void zcrx_drop(struct ktcp *ktcp)
{
    struct rx_zcrx *zc = (struct rx_zcrx *)ktcp;
    while (zc->record_head != zc->record_tail) {
        struct rx_event unused;
        CHECK(!zcrx_act(zc, &unused));
    }
}

static void zcrx_end(struct ktcp *ktcp, struct ktcp_conn *conn)
{
    (void)ktcp; /* Slices outlive the connection and know their buffer; nothing else is held. */
    CHECK(conn->records == 0);
}

/* ---- waiting connections --------------------------------------------------------------------------------------- */

static void zcrx_wake_over(struct rx_zcrx *zc)
{
    LIST_FOR_EACH_SAFE(node, &zc->over)
    {
        struct ktcp_conn *conn = CONTAINER_OF(node, struct ktcp_conn, wait_node);
        if (!zcrx_may_receive(conn)) {
            list_remove(node);
        } else if (conn->buffers_held <= zc->conn_buffers_max / 2) {
            list_remove(node);
            zcrx_start(&zc->ktcp, conn);
        }
    }
}

/* Exhausted connections try again when buffers came back, and after a while in any case: the kernel takes returns only
 * when something allocates, so the refill ring is flushed first. */
static void zcrx_wake_starved(struct rx_zcrx *zc, uint64_t now_ns)
{
    if (list_is_empty(&zc->starved)) {
        zc->retry_after_ns = ZCRX_RETRY_MIN_NS;
        zc->retry_at_ns = 0;
        return;
    }
    if (zc->retry_at_ns == 0) {
        zc->retry_at_ns = now_ns + zc->retry_after_ns;
    }
    if (now_ns < zc->retry_at_ns) {
        return;
    }
    zc->retry_after_ns =
        zc->retry_after_ns * 2 < ZCRX_RETRY_MAX_NS ? zc->retry_after_ns * 2 : ZCRX_RETRY_MAX_NS;
    zc->retry_at_ns = now_ns + zc->retry_after_ns;
    (void)zcrx_area_flush(&zc->area); /* Kernels without it take the ring when the NIC allocates. */
    LIST_FOR_EACH_SAFE(node, &zc->starved)
    {
        struct ktcp_conn *conn = CONTAINER_OF(node, struct ktcp_conn, wait_node);
        list_remove(node);
        if (zcrx_may_receive(conn)) {
            zcrx_start(&zc->ktcp, conn);
        }
    }
}

/* Without a device nothing allocates, so nothing would read the refill ring until the area is exhausted. */
static void zcrx_flush_no_device(struct rx_zcrx *zc)
{
    uint64_t unflushed = zc->area.refills - zc->flushed_at_refills;
    if (zc->area.no_device && unflushed >= zc->area.buffer_count / 4 + 1) {
        (void)zcrx_area_flush(&zc->area); /* An old kernel's refusal shows as -ENOMEM and is retried there. */
        zc->flushed_at_refills = zc->area.refills;
    }
}

static int zcrx_poll(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max)
{
    struct rx_zcrx *zc = (struct rx_zcrx *)rx;
    zcrx_area_refill_late(&zc->area);
    zcrx_flush_no_device(zc);
    zcrx_wake_over(zc);
    zcrx_wake_starved(zc, now_ns);
    /* Ends, sends and accepts first: they are few, and a flood of data must not keep them waiting. */
    int count = ktcp_poll(rx, now_ns, events, max > 1 ? max / 2 : 1);
    if (count < 0) {
        return count;
    }
    uint32_t filled = (uint32_t)count;
    while (filled < max && zc->record_head != zc->record_tail) {
        filled += zcrx_act(zc, &events[filled]) ? 1 : 0;
    }
    zcrx_gauges(zc);
    return (int)filled;
}

static uint64_t zcrx_deadline(struct rx *rx)
{
    const struct rx_zcrx *zc = (const struct rx_zcrx *)rx;
    if (zc->record_head != zc->record_tail) {
        return 0;
    }
    uint64_t deadline = ktcp_deadline(rx);
    if (!list_is_empty(&zc->starved) && zc->retry_at_ns < deadline) {
        deadline = zc->retry_at_ns;
    }
    return deadline;
}

static void zcrx_pause(struct rx *rx, struct rx_id id)
{
    struct ktcp *ktcp = (struct ktcp *)rx;
    ktcp_pause(rx, id);
    ktcp_op_cancel(ktcp, &ktcp_conn_at(ktcp, id.index)->recv_op);
}

/* ---- open and close -------------------------------------------------------------------------------------------- */

static int zcrx_area_of(struct rx_zcrx *zc, const struct rx_options *options, struct err *err)
{
    struct zcrx_area_options area_options = {.uring = options->uring,
                                             .addr = options->arena->base + options->area_offset,
                                             .len = options->area_size,
                                             .buffer_size = options->buffer_size,
                                             .queue = options->queue,
                                             .no_device = options->interface == NULL,
                                             .interface = options->interface};
    if (options->interface != NULL) {
        area_options.interface_index = if_nametoindex(options->interface);
        if (area_options.interface_index == 0) {
            return err_set(err, -ENODEV, "interface %s: %s", options->interface, err_text(-errno));
        }
    } else {
        area_options.buffer_size =
            0; /* Device-less areas have buffers of one page only (-EOPNOTSUPP otherwise). */
        area_options.queue = 0;
    }
    return zcrx_area_open(&zc->area, &area_options, err);
}

static void zcrx_info(struct rx_zcrx *zc, const struct rx_options *options)
{
    zc->ktcp.rx.info = (struct rx_info){.path = "zcrx",
                                        .flow = RX_FLOW_SHARED,
                                        .buffer_size = zc->area.buffer_size,
                                        .buffers_total = zc->area.buffer_count,
                                        .conns_max = options->conns_max,
                                        .copies = zc->area.no_device};
    uint64_t share = options->area_size / options->conns_max;
    share = share < ZCRX_RCVBUF_MIN ? ZCRX_RCVBUF_MIN : share;
    zc->ktcp.receive_buffer_max = (uint32_t)(share > ZCRX_RCVBUF_MAX ? ZCRX_RCVBUF_MAX : share);
    zc->conn_buffers_max = options->conn_buffers_max > 0 ? options->conn_buffers_max : zc->area.buffer_count;
    ktcp_gauge(&zc->ktcp.rx.stats.buffers_free_low, zc->area.buffer_count);
    zcrx_gauges(zc);
}

static void zcrx_close(struct rx *rx)
{
    struct rx_zcrx *zc = (struct rx_zcrx *)rx;
    ktcp_close(&zc->ktcp);
    CHECK(zc->record_head == zc->record_tail);
    zcrx_area_close(&zc->area);
    rx->magic = 0;
    free(zc->records);
    free(zc);
}

static int zcrx_open(const struct rx_options *options, struct rx **out, struct err *err)
{
    static const struct ktcp_receive receive = {.start = zcrx_start,
                                                .done = zcrx_done_unused,
                                                .record = zcrx_record,
                                                .drop = zcrx_drop,
                                                .end = zcrx_end};
    if ((options->uring->setup_flags & IORING_SETUP_CQE32) == 0) {
        return err_set(err, -EINVAL, "zero-copy receive needs a ring with 32-byte completions");
    }
    struct rx_zcrx *zc = aligned_alloc(64, bytes_round_up(sizeof(*zc), 64));
    if (zc == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    memset(zc, 0, sizeof(*zc));
    struct rx *rx = &zc->ktcp.rx;
    zc->records = calloc(ZCRX_RECORDS, sizeof(*zc->records));
    int rc = zc->records == NULL ? err_set(err, -ENOMEM, "out of memory") : zcrx_area_of(zc, options, err);
    if (rc < 0) {
        free(zc->records);
        free(zc);
        return rc;
    }
    rx->ops = &rx_zcrx_ops;
    rx->owner = (struct slice_owner){.retain = zcrx_slice_retain, .release = zcrx_slice_release};
    zc->buf_index = options->arena->buf_index;
    list_init(&zc->starved);
    list_init(&zc->over);
    zcrx_info(zc, options);
    rc = ktcp_open(&zc->ktcp, options, &receive, err);
    if (rc < 0) {
        zcrx_area_close(&zc->area);
        free(zc->records);
        free(zc);
        return rc;
    }
    rx->magic = RX_MAGIC;
    *out = rx;
    return 0;
}

const struct rx_ops rx_zcrx_ops = {
    .path = "zcrx",
    .open = zcrx_open,
    .close = zcrx_close,
    .poll = zcrx_poll,
    .deadline = zcrx_deadline,
    .user_set = ktcp_user_set,
    .pause = zcrx_pause,
    .resume = ktcp_resume,
    .send = ktcp_send,
    .shutdown = ktcp_shutdown,
    .conn_close = ktcp_conn_close,
    .accept_stop = ktcp_accept_stop,
};
