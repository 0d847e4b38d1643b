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
 * Several queues (rx_group.h): a connection whose packets arrive on another member's queue is handed to it when it is accepted.
 * In the middle of a stream the kernel ends the receive with -EFAULT, having taken nothing of those packets; it goes on from the
 * area of that queue, which is then imported, and from the own one again when packets come back.
 *
 * Flow control (design section 4.4): the window is the kernel's, so SO_RCVBUF is capped such that all connections fit the
 * area. A buffer is charged to the connection that first held bytes of it: a one-byte segment pins a whole buffer.
 */
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "ring/zcrx_area.h"
#include "rx/rx_group.h"
#include "rx/rx_ktcp.h"

#define ZCRX_RECORDS 16384U /* power of two; what rx_options.records_max is by default */
#define ZCRX_RETRY_MIN_NS NS_PER_MS
#define ZCRX_RETRY_MAX_NS (64 * NS_PER_MS)
#define ZCRX_LATE_NS NS_PER_MS /* until a borrowed buffer's next message home is tried again */
#define ZCRX_TELL_NS NS_PER_S  /* between two lines about one trouble */
#define ZCRX_RCVBUF_MIN (64 * KIB)
#define ZCRX_RCVBUF_MAX (16 * MIB)

struct zcrx_record {
    struct ktcp_conn *conn;
    uint64_t offset; /* of the fragment in the area, with the area's token */
    uint32_t source; /* whose area */
    int32_t res;
    bool more;
};

struct rx_zcrx {
    struct ktcp ktcp; /* first */
    struct zcrx_area area;
    int32_t buf_index;
    uint32_t conn_buffers_max;
    struct zcrx_record *records;
    uint32_t record_max;  /* power of two */
    uint32_t record_head; /* next to act on */
    uint32_t record_tail; /* next to write */
    bool holding;         /* counted in uring.reap_holds */
    struct list starved;
    struct list over;
    uint64_t retry_at_ns;
    uint64_t retry_after_ns;
    uint64_t flushed_at_refills; /* device-less: refills at the last flush */
    /* Several queues; NULL and unused otherwise. */
    struct rx_group *group;
    struct rx_group_member *member; /* ours */
    uint32_t own;                   /* its index */
    struct zcrx_area *borrowed;     /* by member; ours is not used */
    uint32_t borrowed_count;        /* those in use */
    struct rx_op inbox_op;          /* waits for the inbox */
    bool inbox_seen;                /* the inbox's eventfd was readable */
    struct mpsc_node *handed;       /* connections from others, to be opened */
    struct mpsc_node *told;         /* opened by the last poll, whose events borrow their addresses */
    uint64_t polled_at_ns;
    struct rx_op *exhausted; /* not freed with this: its completion may come later */
    bool is_exhausted;
    uint64_t arm_at_ns;      /* when the kernel is to say it again; 0: it is armed */
    uint64_t copied_told;    /* bytes that the log knows of */
    uint64_t copied_tell_ns; /* not before this */
    const char *name;        /* the listener's, for the log */
};

static bool zcrx_may_receive(const struct ktcp_conn *conn)
{
    return !conn->paused && !conn->ended && !conn->closing;
}

/* A source is 0 for the own area, else the member whose area is borrowed, plus 1. */
static struct zcrx_area *zcrx_area_at(struct rx_zcrx *zc, uint32_t source)
{
    return source == 0 ? &zc->area : &zc->borrowed[source - 1];
}

static uint32_t zcrx_source_of(const struct rx_zcrx *zc, uint32_t member)
{
    return member == zc->own ? 0 : member + 1;
}

/* A slice's token names area and buffer. */
static uint64_t zcrx_token(uint32_t source, uint32_t index)
{
    return (uint64_t)source << 32 | index;
}

/* ---- completions ----------------------------------------------------------------------------------------------- */

static void zcrx_record(struct rx_op *op, const struct io_uring_cqe *cqe)
{
    struct rx_zcrx *zc = op->instance;
    struct ktcp_conn *conn = op->subject;
    const struct io_uring_zcrx_cqe *fragment = (const struct io_uring_zcrx_cqe *)(cqe + 1);
    struct zcrx_record *record = &zc->records[zc->record_tail++ & (zc->record_max - 1)];
    CHECK(zc->record_tail - zc->record_head <= zc->record_max);
    *record = (struct zcrx_record){.conn = conn,
                                   .offset = cqe->res > 0 ? fragment->off : 0,
                                   .source = conn->source_asked,
                                   .res = cqe->res,
                                   .more = (cqe->flags & IORING_CQE_F_MORE) != 0};
    conn->records++;
    if (!record->more) {
        ktcp_op_end(&zc->ktcp, op);
    }
    if (zc->record_tail - zc->record_head == zc->record_max && !zc->holding) {
        zc->holding = true;
        zc->ktcp.uring->reap_holds++;
    }
}

static struct zcrx_record zcrx_record_take(struct rx_zcrx *zc)
{
    struct zcrx_record record = zc->records[zc->record_head++ & (zc->record_max - 1)];
    record.conn->records--;
    if (zc->holding) {
        zc->holding = false;
        zc->ktcp.uring->reap_holds--;
    }
    return record;
}

/* ---- buffers --------------------------------------------------------------------------------------------------- */

/* The NIC drops, for every peer of the queue, while it has no buffer. The kernel says so once until it is armed again. */
static void zcrx_exhausted(struct rx_op *op, const struct io_uring_cqe *cqe)
{
    struct rx_zcrx *zc = op->instance;
    (void)cqe;
    if (zc != NULL) { /* It may come after the instance. */
        zc->is_exhausted = true;
    }
}

static void zcrx_exhausted_watch(struct rx_zcrx *zc, uint64_t now_ns)
{
    if (zc->is_exhausted) {
        zc->is_exhausted = false;
        zc->arm_at_ns = now_ns + ZCRX_TELL_NS;
        ktcp_count(&zc->ktcp.rx.stats.exhausted, 1);
        LOG_WRN("zcrx_area_exhausted", "name=%s held=%u total=%u remedy=%s", zc->name, zc->area.held_count,
                zc->area.buffer_count,
                LOG_Q("peers send again what the NIC dropped; if it stays so: a larger rx_area_size, fewer "
                      "connections or faster devices"));
    } else if (zc->arm_at_ns != 0 && now_ns >= zc->arm_at_ns) {
        zc->arm_at_ns = 0;
        zcrx_area_exhausted_arm(&zc->area);
    }
}

/* The kernel copies what arrived in its own memory: packets that the NIC did not split, or that came by another queue. */
static void zcrx_copied_watch(struct rx_zcrx *zc, uint64_t now_ns)
{
    uint64_t copied = zcrx_area_copied_bytes(&zc->area);
    if (copied == zc->copied_told || now_ns < zc->copied_tell_ns) {
        return;
    }
    LOG_WRN("zcrx_kernel_copies", "name=%s bytes=%llu total=%llu why=%s", zc->name,
            (unsigned long long)(copied - zc->copied_told), (unsigned long long)copied,
            LOG_Q("packets were not split, or arrived on another queue than the listener's"));
    zc->copied_told = copied;
    zc->copied_tell_ns = now_ns + ZCRX_TELL_NS;
}

static void zcrx_gauges(struct rx_zcrx *zc)
{
    struct rx_stats *stats = &zc->ktcp.rx.stats;
    uint64_t free_count = zc->area.buffer_count - zc->area.held_count;
    ktcp_gauge(&stats->buffers_free, free_count);
    if (free_count < stats->buffers_free_low) {
        ktcp_gauge(&stats->buffers_free_low, free_count);
    }
    ktcp_gauge(&stats->refills, zc->area.refills);
    if (!zc->area.no_device) {
        ktcp_gauge(&stats->kernel_copied_bytes, zcrx_area_copied_bytes(&zc->area));
    }
}

static void zcrx_charge(const struct zcrx_area *area, uint32_t index, struct ktcp_conn *conn)
{
    struct zcrx_buffer *buffer = &area->buffers[index];
    if (buffer->refs == 1) {
        buffer->holder = conn->index;
        buffer->holder_generation = conn->generation;
        conn->buffers_held++;
    }
}

static void zcrx_unref(struct rx_zcrx *zc, uint64_t token)
{
    struct zcrx_area *area = zcrx_area_at(zc, (uint32_t)(token >> 32));
    const struct zcrx_buffer *buffer = &area->buffers[(uint32_t)token];
    if (!zcrx_area_release(area, (uint32_t)token)) {
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
    zcrx_area_retain(zcrx_area_at(zcrx_of_owner(owner), (uint32_t)(slice->token >> 32)),
                     (uint32_t)slice->token);
}

static void zcrx_slice_release(struct slice_owner *owner, const struct slice *slice)
{
    zcrx_unref(zcrx_of_owner(owner), slice->token);
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
    sqe->zcrx_ifq_idx = zcrx_area_at(zc, conn->source)->id;
    conn->source_asked = conn->source; /* Its completions are of that area, whatever is chosen meanwhile. */
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
    struct zcrx_area *area = zcrx_area_at(zc, record->source);
    uint8_t *addr;
    uint32_t index = zcrx_area_take(area, record->offset, (uint32_t)record->res, &addr);
    zcrx_charge(area, index, conn);
    conn->source_tries = 0;
    if (conn->closing) {
        zcrx_unref(zc, zcrx_token(record->source, index));
        return false;
    }
    ktcp_event_init(event, RX_DATA, conn);
    /* A borrowed area is no part of this ring's registered buffer: the device then takes it as plain memory. */
    event->slice = (struct slice){.addr = addr,
                                  .len = (uint32_t)record->res,
                                  .buf_index = area == &zc->area ? zc->buf_index : -1,
                                  .owner = &rx->owner,
                                  .token = zcrx_token(record->source, index)};
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
        LOG_WRN(
            "zcrx_wrong_queue", "queue=%s remedy=%s", LOG_Q(zc->area.no_device ? "none" : "ours"),
            LOG_Q("its packets arrived on a zero-copy queue of nobody here, or this kernel cannot share one "
                  "(Linux 7.0 can); steer the listener's port to its own queues"));
    }
    if (error != 0) {
        ktcp_count(&zc->ktcp.rx.stats.conns_reset, 1);
    }
    return true;
}

/* ---- another member's queue ------------------------------------------------------------------------------------ */

static bool zcrx_source_ready(struct rx_zcrx *zc, uint32_t source)
{
    struct zcrx_area *area = zcrx_area_at(zc, source);
    if (source == 0 || zcrx_area_is_borrowed(area)) {
        return true;
    }
    const struct rx_group_member *owner = rx_group_member(zc->group, source - 1);
    int rc = zcrx_area_borrow(area, &owner->lender, zc->ktcp.uring, RX_GROUP_RETURN);
    if (rc < 0) {
        LOG_WRN("zcrx_not_shared", "queue=%u by=%u error=%s", owner->queue, zc->member->queue,
                LOG_Q(err_text(rc)));
        return false;
    }
    zc->borrowed_count++;
    LOG_INF("zcrx_shared", "queue=%u by=%u why=%s", owner->queue, zc->member->queue,
            LOG_Q("packets of a connection that began elsewhere arrive there"));
    return true;
}

/* The packets at hand are in another queue's memory: chooses the next area to receive from. Each is tried once; the socket
 * knows where its latest packet came from, which is nearly always right. False: there is none. */
static bool zcrx_switch(struct rx_zcrx *zc, struct ktcp_conn *conn)
{
    if (zc->group == NULL || !rx_group_is_started(zc->group)) {
        return false;
    }
    uint32_t count = rx_group_member_count(zc->group);
    while (conn->source_tries < count) {
        uint32_t now = conn->source == 0 ? zc->own : conn->source - 1;
        int guess =
            conn->source_tries == 0 ? rx_group_member_of_socket(zc->group, conn->fd) : RX_GROUP_UNKNOWN;
        uint32_t next = guess >= 0 && (uint32_t)guess != now ? (uint32_t)guess : (now + 1) % count;
        conn->source_tries++;
        conn->source = zcrx_source_of(zc, next);
        if (zcrx_source_ready(zc, conn->source)) {
            ktcp_count(&zc->ktcp.rx.stats.wrong_queue, 1);
            return true;
        }
    }
    conn->source = 0;
    return false;
}

/* Accepted here, but its packets arrive on another's queue: nothing is read yet, so it simply moves. */
static bool zcrx_accepted(struct ktcp *ktcp, int fd, const struct ktcp_accept *accept)
{
    struct rx_zcrx *zc = (struct rx_zcrx *)ktcp;
    int member = zc->group == NULL ? RX_GROUP_UNKNOWN : rx_group_member_of_socket(zc->group, fd);
    if (member == RX_GROUP_UNKNOWN || member == (int)zc->own) {
        return false;
    }
    ktcp_count(&ktcp->rx.stats.wrong_queue, 1);
    if (member < 0 ||
        !rx_group_hand(zc->group, zc->own, (uint32_t)member, fd, &accept->peer, &accept->local)) {
        return false;
    }
    ktcp_count(&ktcp->rx.stats.conns_handed, 1);
    return true;
}

static void zcrx_inbox_done(struct rx_op *op, const struct io_uring_cqe *cqe)
{
    struct rx_zcrx *zc = op->instance;
    (void)cqe; /* Readable, or cancelled. */
    ktcp_op_end(&zc->ktcp, op);
    zc->inbox_seen = true;
}

static void zcrx_inbox_arm(struct rx_zcrx *zc)
{
    if (!zc->inbox_op.in_flight) {
        struct io_uring_sqe *sqe = uring_sqe(zc->ktcp.uring);
        io_uring_prep_poll_add(sqe, zc->member->inbox.event_fd, POLLIN);
        ktcp_op_submit(&zc->ktcp, &zc->inbox_op, sqe);
    }
}

static void zcrx_inbox_take(struct rx_zcrx *zc)
{
    if (zc->inbox_seen) {
        zc->inbox_seen = false;
        mpsc_clear(&zc->member->inbox); /* Before taking: what is pushed after it is seen again. */
    }
    struct mpsc_node *node = mpsc_take_all(&zc->member->inbox);
    struct mpsc_node **last = &zc->handed;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    while (node != NULL) {
        struct mpsc_node *next = node->next; /* A returned node is its sender's again at once. */
        struct rx_group_message *message = CONTAINER_OF(node, struct rx_group_message, node);
        if (message->kind == RX_GROUP_RETURN) {
            zcrx_area_returned(&zc->area, CONTAINER_OF(node, struct zcrx_return, node));
        } else {
            node->next = NULL;
            *last = node;
            last = &node->next;
        }
        node = next;
    }
}

static struct rx_group_hand *zcrx_hand_take(struct mpsc_node **list)
{
    struct mpsc_node *node = *list;
    *list = node->next;
    return CONTAINER_OF(node, struct rx_group_hand, message.node);
}

static void zcrx_hand_done(struct rx_group_hand *hand)
{
    atomic_store_explicit(&hand->is_busy, false, memory_order_release);
}

/* Opens what others handed over. The events borrow the addresses until the next poll, and so do the nodes. */
static uint32_t zcrx_open_handed(struct rx_zcrx *zc, struct rx_event *events, uint32_t max)
{
    uint32_t count = 0;
    while (zc->told != NULL) {
        zcrx_hand_done(zcrx_hand_take(&zc->told));
    }
    while (count < max && zc->handed != NULL) {
        struct rx_group_hand *hand = zcrx_hand_take(&zc->handed);
        if (!ktcp_adopt(&zc->ktcp, hand->fd, &hand->peer, &hand->local, &events[count])) {
            zcrx_hand_done(hand);
            continue;
        }
        hand->message.node.next = zc->told;
        zc->told = &hand->message.node;
        count++;
    }
    return count;
}

/* Buffers whose message home is still under way. */
static bool zcrx_borrowed_late(struct rx_zcrx *zc)
{
    for (uint32_t i = 0; zc->borrowed_count > 0 && i < rx_group_member_count(zc->group); i++) {
        if (zcrx_area_is_borrowed(&zc->borrowed[i]) && !list_is_empty(&zc->borrowed[i].late)) {
            return true;
        }
    }
    return false;
}

static void zcrx_borrowed_each(struct rx_zcrx *zc, void (*call)(struct zcrx_area *area))
{
    for (uint32_t i = 0; zc->borrowed_count > 0 && i < rx_group_member_count(zc->group); i++) {
        if (zcrx_area_is_borrowed(&zc->borrowed[i])) {
            call(&zc->borrowed[i]);
        }
    }
}

static void zcrx_flush(struct zcrx_area *area)
{
    (void)zcrx_area_flush(area); /* Kernels without it take the ring when the NIC allocates. */
}

/* What others still need of a member that has no connections any more. */
static void zcrx_leave_turn(void *ctx)
{
    struct rx_zcrx *zc = ctx;
    zc->inbox_seen = true;
    zcrx_inbox_take(zc);
    while (zc->told != NULL) {
        zcrx_hand_done(zcrx_hand_take(&zc->told));
    }
    while (zc->handed != NULL) {
        struct rx_group_hand *hand = zcrx_hand_take(&zc->handed);
        close(hand->fd);
        zcrx_hand_done(hand);
    }
    zcrx_area_refill_late(&zc->area);
    zcrx_borrowed_each(zc, zcrx_area_refill_late);
}

static void zcrx_leave(struct rx_zcrx *zc)
{
    if (!atomic_load(&zc->member->has_joined)) {
        return;
    }
    zcrx_leave_turn(zc);
    while (zcrx_borrowed_late(zc)) { /* Bounded by a turn of the owner, which runs or waits here too. */
        struct pollfd wait = {.fd = zc->member->inbox.event_fd, .events = POLLIN};
        int rc = poll(&wait, 1, 1);
        CHECK(rc >= 0 || errno == EINTR);
        zcrx_leave_turn(zc);
    }
    rx_group_leave(zc->group, zc->own, zcrx_leave_turn, zc);
    zcrx_area_lend_end(&zc->member->lender);
    zcrx_borrowed_each(zc, zcrx_area_close);
}

static int zcrx_join(struct rx_zcrx *zc, struct err *err)
{
    int rc = rx_group_select(zc->group, zc->ktcp.listen_fd);
    if (rc < 0) {
        return err_set(err, rc, "choosing a worker by NIC queue: %s", err_text(rc));
    }
    zc->member->lender.inbox = &zc->member->inbox;
    zcrx_area_lend(&zc->area, &zc->member->lender);
    atomic_store(&zc->member->has_joined, true); /* Releases the lender. */
    return 0;
}

/* ---- ends of a request ----------------------------------------------------------------------------------------- */

/* A request's last completion without data: goes on where the cause passes, tells where it does not. */
static bool zcrx_final(struct rx_zcrx *zc, const struct zcrx_record *record, struct rx_event *event)
{
    struct ktcp_conn *conn = record->conn;
    switch (record->res) {
    case -ENOMEM: /* The copy fallback found no free buffer. */
        ktcp_count(&zc->ktcp.rx.stats.starved, 1);
        if (zcrx_may_receive(conn) && !list_is_linked(&conn->wait_node)) {
            list_append(&zc->starved, &conn->wait_node);
        }
        return false;
    case -EFAULT:
        /* A receive that was started again before this was acted on names the same area, and ends the same way: once is enough. */
        if (conn->closing || (record->source == conn->source && !zcrx_switch(zc, conn))) {
            return zcrx_ended(zc, conn, record->res, event);
        }
        if (zcrx_may_receive(conn)) {
            zcrx_start(&zc->ktcp, conn);
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
        return zcrx_ended(zc, conn, record->res, event);
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
        told = zcrx_final(zc, &record, event);
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
    zcrx_flush(&zc->area);
    zcrx_borrowed_each(zc, zcrx_flush);
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
    zc->polled_at_ns = now_ns;
    if (zc->group != NULL) {
        zcrx_inbox_take(zc);
        zcrx_inbox_arm(zc);
        zcrx_borrowed_each(zc, zcrx_area_refill_late);
    }
    zcrx_area_refill_late(&zc->area);
    zcrx_exhausted_watch(zc, now_ns);
    zcrx_copied_watch(zc, now_ns);
    zcrx_flush_no_device(zc);
    zcrx_wake_over(zc);
    zcrx_wake_starved(zc, now_ns);
    /* Ends, sends and accepts first: they are few, and a flood of data must not keep them waiting. */
    uint32_t filled = zcrx_open_handed(zc, events, max / 4 + 1);
    if (filled < max) {
        uint32_t share = max / 2 < max - filled ? max / 2 : max - filled;
        int count = ktcp_poll(rx, now_ns, events + filled, share > 0 ? share : 1);
        if (count < 0) {
            return count;
        }
        filled += (uint32_t)count;
    }
    while (filled < max && zc->record_head != zc->record_tail) {
        filled += zcrx_act(zc, &events[filled]) ? 1 : 0;
    }
    zcrx_gauges(zc);
    return (int)filled;
}

static uint64_t zcrx_deadline(struct rx *rx)
{
    struct rx_zcrx *zc = (struct rx_zcrx *)rx;
    /* `told`: its nodes go back in the next poll, and until then their sender cannot hand with them. A worker whose new
     * connections are silent would keep them for as long as it sleeps. */
    if (zc->record_head != zc->record_tail || zc->handed != NULL || zc->told != NULL) {
        return 0;
    }
    uint64_t deadline = ktcp_deadline(rx);
    if (zcrx_borrowed_late(zc) && zc->polled_at_ns + ZCRX_LATE_NS < deadline) {
        deadline = zc->polled_at_ns + ZCRX_LATE_NS;
    }
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

/* Its own memory, a page once per listener and never given back: the kernel may complete it until the ring is closed. */
static int zcrx_exhausted_open(struct rx_zcrx *zc)
{
    void *page = mmap(NULL, sizeof(struct rx_op), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return -ENOMEM;
    }
    zc->exhausted = page;
    zc->exhausted->done = zcrx_exhausted;
    zc->exhausted->instance = zc;
    return 0;
}

static void zcrx_exhausted_close(struct rx_zcrx *zc)
{
    if (zc->exhausted != NULL) {
        zc->exhausted->instance = NULL;
    }
}

static int zcrx_area_of(struct rx_zcrx *zc, const struct rx_options *options, struct err *err)
{
    struct zcrx_area_options area_options = {.uring = options->uring,
                                             .addr = options->arena->base + options->area_offset,
                                             .len = options->area_size,
                                             .buffer_size = options->buffer_size,
                                             .queue = options->queue,
                                             .page_size = options->arena->page_size,
                                             .no_device = options->interface == NULL,
                                             .interface = options->interface,
                                             .exhausted_user_data =
                                                 (uint64_t)(uintptr_t)zc->exhausted | URING_CLASS_RX};
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
    if (zc->group != NULL) {
        ktcp_op_cancel(&zc->ktcp, &zc->inbox_op);
    }
    ktcp_close(&zc->ktcp);
    CHECK(zc->record_head == zc->record_tail);
    if (zc->group != NULL) {
        zcrx_leave(zc);
    }
    zcrx_area_close(&zc->area);
    zcrx_exhausted_close(zc);
    rx->magic = 0;
    free(zc->borrowed);
    free(zc->records);
    free(zc);
}

/* A group of one has nothing to share. */
static int zcrx_group_of(struct rx_zcrx *zc, const struct rx_options *options, struct err *err)
{
    if (options->group == NULL || rx_group_member_count(options->group) < 2) {
        return 0;
    }
    zc->borrowed = calloc(rx_group_member_count(options->group), sizeof(*zc->borrowed));
    if (zc->borrowed == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    zc->group = options->group;
    zc->own = options->worker_index;
    zc->member = rx_group_member(zc->group, zc->own);
    ktcp_op_own(&zc->ktcp, &zc->inbox_op, zcrx_inbox_done);
    return 0;
}

/* Registers, listens, joins the group; in that order, so that what is said of a refusal is about the first cause. */
static int zcrx_open_parts(struct rx_zcrx *zc, const struct rx_options *options,
                           const struct ktcp_receive *receive, struct err *err)
{
    int rc = zcrx_group_of(zc, options, err);
    if (rc < 0) {
        return rc;
    }
    rc = zcrx_area_of(zc, options, err);
    if (rc < 0) {
        return rc;
    }
    list_init(&zc->starved);
    list_init(&zc->over);
    zcrx_info(zc, options);
    rc = ktcp_open(&zc->ktcp, options, receive, err);
    if (rc == 0 && zc->group != NULL) {
        rc = zcrx_join(zc, err);
        if (rc < 0) {
            ktcp_close(&zc->ktcp);
        }
    }
    if (rc < 0) {
        zcrx_area_close(&zc->area);
    }
    return rc;
}

static int zcrx_open(const struct rx_options *options, struct rx **out, struct err *err)
{
    static const struct ktcp_receive receive = {.start = zcrx_start,
                                                .accepted = zcrx_accepted,
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
    rx->ops = &rx_zcrx_ops;
    rx->owner = (struct slice_owner){.retain = zcrx_slice_retain, .release = zcrx_slice_release};
    zc->buf_index = options->arena->buf_index;
    zc->name = options->name;
    zc->record_max = options->records_max > 0 ? options->records_max : ZCRX_RECORDS;
    CHECK(bytes_is_power_of_two(zc->record_max));
    zc->records = calloc(zc->record_max, sizeof(*zc->records));
    int rc = zc->records == NULL || zcrx_exhausted_open(zc) < 0 ? err_set(err, -ENOMEM, "out of memory")
                                                                : zcrx_open_parts(zc, options, &receive, err);
    if (rc < 0) {
        zcrx_exhausted_close(zc);
        free(zc->borrowed);
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
    .send_recall = ktcp_send_recall,
    .acked = ktcp_acked,
    .shutdown = ktcp_shutdown,
    .conn_close = ktcp_conn_close,
    .accept_stop = ktcp_accept_stop,
};
