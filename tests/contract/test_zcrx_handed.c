/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that one worker hands to another, and receives that change their area. Goal: whatever state the receiver is in - asleep,
 * full, draining, closing - a handed descriptor is opened or closed, its node goes back to the sender, and a stream whose packets
 * move to another area keeps every byte. Method: the zcrx backend device-less on loopback as member 1 of a group whose other member
 * is the test; where both must run, the other one is a thread. Linux 7.1: the VM lane sets ZCRX_MUST, elsewhere the tests skip.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "rx/rx.h"
#include "rx/rx_group.h"

#define PATIENCE_NS (60 * NS_PER_S)
#define EVENTS 64U
#define PAGES 256U
#define CONNS_MAX 40U

/* One worker's part of the listener. */
struct member {
    struct uring uring;
    struct arena arena;
    struct rx *rx;
    uint32_t events_max;
    uint32_t opens, closeds, resets, eofs;
    uint64_t seen;
    uint64_t wrong;   /* bytes that are not the stream's */
    int cancelled_is; /* an -ECANCELED end of a receive becomes this; 0: it stays */
    struct rx_id ids[CONNS_MAX];
};

/* A port that was free a moment ago. */
static struct sockaddr_in port_take(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(bind(probe, (struct sockaddr *)&address, len) == 0);
    cr_assert(getsockname(probe, (struct sockaddr *)&address, &len) == 0);
    close(probe);
    return address;
}

static void ends_alter(void *ctx, enum uring_class class, void *op, int32_t *res)
{
    struct member *member = ctx;
    (void)op;
    if (class == URING_CLASS_RX && *res == -ECANCELED && member->cancelled_is != 0) {
        *res = member->cancelled_is;
        member->cancelled_is = 0;
    }
}

static int member_open(struct member *member, struct rx_group *group, uint32_t index,
                       const struct sockaddr_in *address, struct err *err)
{
    memset(member, 0, sizeof(*member));
    struct uring_options ring = {.sq_entries = 64, .cq_entries = 4096, .buffers_max = 1, .want_cqe32 = true};
    struct arena_options memory = {.staging_size = 4096,
                                   .area_size = (uint64_t)PAGES * 4096,
                                   .pages = ARENA_PAGES_NORMAL,
                                   .numa_node = -1};
    int rc = uring_open(&member->uring, &ring, err);
    rc = rc == 0 ? arena_open(&member->arena, &memory, err) : rc;
    if (rc < 0) {
        return rc;
    }
    struct rx_options options = {.name = "test",
                                 .address_len = sizeof(*address),
                                 .uring = &member->uring,
                                 .arena = &member->arena,
                                 .area_offset = member->arena.staging_size,
                                 .area_size = memory.area_size,
                                 .conns_max = CONNS_MAX,
                                 .conn_buffers_max = 65536, /* no bound but the area */
                                 .worker_index = index,
                                 .workers = 2,
                                 .group = group};
    memcpy(&options.address, address, sizeof(*address));
    member->events_max = EVENTS;
    member->uring.filter = ends_alter;
    member->uring.filter_ctx = member;
    return rx_open(&rx_zcrx_ops, &options, &member->rx, err);
}

static void member_close(struct member *member)
{
    rx_close(member->rx);
    uring_close(&member->uring);
    arena_close(&member->arena);
}

static uint8_t stream_byte(uint64_t at)
{
    return (uint8_t)(at * 31 + at / 251);
}

static void member_take(struct member *member, const struct rx_event *event)
{
    switch (event->kind) {
    case RX_OPEN:
        cr_assert(member->opens < CONNS_MAX);
        cr_expect(event->peer->ss_family == AF_INET && event->local->ss_family == AF_INET);
        member->ids[member->opens++] = event->id;
        break;
    case RX_DATA:
        for (uint32_t i = 0; i < event->slice.len; i++) {
            member->wrong += event->slice.addr[i] != stream_byte(member->seen + i);
        }
        member->seen += event->slice.len;
        slice_release(&event->slice);
        break;
    case RX_EOF:
        member->eofs++;
        break;
    case RX_RESET:
        member->resets++;
        break;
    default:
        member->closeds += event->kind == RX_CLOSED;
        break;
    }
}

static void member_poll(struct member *member)
{
    struct rx_event events[EVENTS];
    int count = rx_poll(member->rx, clock_monotonic_ns(), events, member->events_max);
    cr_assert(count >= 0 && count <= (int)member->events_max);
    for (int i = 0; i < count; i++) {
        member_take(member, &events[i]);
    }
}

/* One turn as a worker's: it sleeps while nothing completes and no deadline has come, and polls once when it wakes. */
static void member_turn(struct member *member)
{
    uint64_t deadline_ns = rx_deadline(member->rx);
    cr_assert(uring_submit_and_wait(&member->uring, deadline_ns == 0 ? 0 : 10 * NS_PER_MS) == 0);
    if (uring_reap(&member->uring, UINT32_MAX) > 0 || clock_monotonic_ns() >= deadline_ns) {
        member_poll(member);
    }
}

#define PUMP_UNTIL(member, condition)                                                                        \
    do {                                                                                                     \
        uint64_t give_up_ns = clock_monotonic_ns() + PATIENCE_NS;                                            \
        while (!(condition)) {                                                                               \
            member_turn(member);                                                                             \
            cr_assert(clock_monotonic_ns() < give_up_ns, "never: %s", #condition);                           \
        }                                                                                                    \
    } while (0)

/* ---- the other member is the test ------------------------------------------------------------------------------ */

struct handing {
    struct rx_group *group;
    struct member receiver;     /* member 1 */
    struct sockaddr_in address; /* of the receiver */
    int listener;               /* the sender's own, from which it accepts */
    struct sockaddr_in sender;
};

static struct handing handing;

static void handing_open(void)
{
    static const uint32_t queues[2] = {0, 1};
    struct err err = {""};
    socklen_t len = sizeof(handing.sender);
    memset(&handing, 0, sizeof(handing));
    cr_assert(rx_group_open(&handing.group, queues, 2, &err) == 0, "%s", err.text);
    handing.address = port_take();
    int rc = member_open(&handing.receiver, handing.group, 1, &handing.address, &err);
    if (rc < 0 && getenv("ZCRX_MUST") == NULL) {
        cr_skip_test("host: no device-less zero-copy receive here (Linux 7.1); runs in the VM lane");
    }
    cr_assert(rc == 0, "%s", err.text);
    member_poll(&handing.receiver);
    handing.sender = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    handing.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(bind(handing.listener, (struct sockaddr *)&handing.sender, len) == 0);
    cr_assert(listen(handing.listener, 128) == 0);
    cr_assert(getsockname(handing.listener, (struct sockaddr *)&handing.sender, &len) == 0);
}

static void handing_close(void)
{
    close(handing.listener);
    member_close(&handing.receiver);
    rx_group_close(handing.group); /* checks that both inboxes are empty */
}

/* A connected client; its other end, accepted, in `accepted`. */
static int client_connect(int *accepted)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(connect(fd, (struct sockaddr *)&handing.sender, sizeof(handing.sender)) == 0);
    *accepted = accept4(handing.listener, NULL, NULL, SOCK_CLOEXEC);
    cr_assert(*accepted >= 0);
    return fd;
}

static bool hand(int accepted)
{
    struct sockaddr_storage any;
    memset(&any, 0, sizeof(any));
    memcpy(&any, &handing.sender, sizeof(handing.sender));
    return rx_group_hand(handing.group, 0, 1, accepted, &any, &any);
}

static int client_hand(void)
{
    int accepted = -1;
    int fd = client_connect(&accepted);
    cr_assert(hand(accepted));
    return fd;
}

static uint32_t nodes_free(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < RX_GROUP_HANDS; i++) {
        count += !atomic_load(&rx_group_member(handing.group, 0)->hands[i].is_busy);
    }
    return count;
}

/* Nothing more comes from the other side: FIN or RST, for this client. */
static bool is_cut(int fd)
{
    char byte;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    cr_assert(poll(&wait, 1, 60000) == 1, "the connection was neither served nor closed");
    return recv(fd, &byte, 1, 0) <= 0;
}

Test(zcrx_handed, a_receiver_that_falls_asleep_keeps_no_node, .timeout = 120)
{
    int clients[RX_GROUP_HANDS];
    handing_open();
    for (uint32_t i = 0; i < RX_GROUP_HANDS; i++) {
        clients[i] = client_hand();
    }
    cr_assert(nodes_free() == 0);
    PUMP_UNTIL(&handing.receiver, handing.receiver.opens == RX_GROUP_HANDS);
    /* The clients are silent, so from here on nothing wakes it. */
    PUMP_UNTIL(&handing.receiver, rx_deadline(handing.receiver.rx) != 0);
    cr_expect(nodes_free() == RX_GROUP_HANDS, "%u of %u", nodes_free(), RX_GROUP_HANDS);
    for (uint32_t i = 0; i < RX_GROUP_HANDS; i++) {
        close(clients[i]);
    }
    handing_close();
}

Test(zcrx_handed, a_loop_with_room_for_one_event_opens_them_all, .timeout = 120)
{
    int clients[4];
    handing_open();
    for (uint32_t max = 1; max <= 4; max++) {
        handing.receiver.events_max = max;
        clients[max - 1] = client_hand();
        PUMP_UNTIL(&handing.receiver, handing.receiver.opens == max);
    }
    for (uint32_t i = 0; i < 4; i++) {
        close(clients[i]);
    }
    PUMP_UNTIL(&handing.receiver, handing.receiver.eofs == 4);
    handing_close();
}

Test(zcrx_handed, a_full_receiver_closes_what_is_handed_and_counts_it, .timeout = 120)
{
    int clients[CONNS_MAX];
    handing_open();
    for (uint32_t i = 0; i < CONNS_MAX; i++) {
        clients[i] = client_hand();
        PUMP_UNTIL(&handing.receiver, handing.receiver.opens == i + 1);
    }
    int extra = client_hand();
    PUMP_UNTIL(&handing.receiver, handing.receiver.rx->stats.conns_refused == 1);
    cr_expect(is_cut(extra));
    PUMP_UNTIL(&handing.receiver, nodes_free() == RX_GROUP_HANDS);
    /* One leaves, and the next is welcome. */
    rx_conn_close(handing.receiver.rx, handing.receiver.ids[0], true);
    handing.receiver.opens--;
    PUMP_UNTIL(&handing.receiver, handing.receiver.closeds == 1);
    int next = client_hand();
    PUMP_UNTIL(&handing.receiver, handing.receiver.opens == CONNS_MAX);
    close(next);
    close(extra);
    for (uint32_t i = 0; i < CONNS_MAX; i++) {
        close(clients[i]);
    }
    handing_close();
}

Test(zcrx_handed, peers_that_left_on_the_way_end_like_others, .timeout = 120)
{
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    handing_open();
    for (int is_reset = 0; is_reset < 2; is_reset++) {
        int accepted = -1;
        int fd = client_connect(&accepted);
        uint8_t first = stream_byte(0);
        if (is_reset != 0) {
            cr_assert(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) == 0);
        } else {
            cr_assert(send(fd, &first, 1, 0) == 1);
        }
        close(fd);
        cr_assert(hand(accepted));
    }
    PUMP_UNTIL(&handing.receiver, handing.receiver.eofs == 1 && handing.receiver.resets == 1);
    cr_expect(handing.receiver.seen == 1 && handing.receiver.wrong == 0);
    rx_conn_close(handing.receiver.rx, handing.receiver.ids[0], false);
    rx_conn_close(handing.receiver.rx, handing.receiver.ids[1], false);
    PUMP_UNTIL(&handing.receiver, handing.receiver.closeds == 2);
    handing_close();
}

Test(zcrx_handed, a_receiver_that_drains_or_closes_leaves_nobody_hanging, .timeout = 120)
{
    handing_open();
    rx_accept_stop(handing.receiver.rx);
    int draining = client_hand();
    PUMP_UNTIL(&handing.receiver, handing.receiver.rx->stats.conns_refused == 1);
    cr_expect(is_cut(draining));
    int closing = client_hand(); /* in the inbox when it closes */
    handing_close();
    cr_expect(is_cut(closing));
    close(draining);
    close(closing);
}

/* ---- both members run ------------------------------------------------------------------------------------------ */

struct lender {
    struct member member;
    struct rx_group *group;
    const struct sockaddr_in *address;
    pthread_t thread;
    _Atomic int state; /* 1: open, 2: to close, negative: refused */
};

static void *lender_main(void *ctx)
{
    struct lender *lender = ctx;
    struct err err = {""};
    int rc = member_open(&lender->member, lender->group, 1, lender->address, &err);
    atomic_store(&lender->state, rc < 0 ? rc : 1);
    while (rc == 0 && atomic_load(&lender->state) == 1) {
        member_turn(&lender->member);
    }
    if (rc == 0) {
        member_close(&lender->member);
    }
    return NULL;
}

static void stream_send(int fd, uint64_t from, uint32_t len)
{
    uint8_t bytes[4096];
    cr_assert(len <= sizeof(bytes));
    for (uint32_t i = 0; i < len; i++) {
        bytes[i] = stream_byte(from + i);
    }
    cr_assert(send(fd, bytes, len, 0) == (ssize_t)len);
}

struct sharing {
    struct rx_group *group;
    struct member own; /* member 0 */
    struct sockaddr_in address;
    struct lender lender;     /* member 1, a thread */
    struct sockaddr_in other; /* a port of its own, so that all connections come here */
    int fd;                   /* a client of ours */
};

static struct sharing sharing;

static void sharing_open(void)
{
    static const uint32_t queues[2] = {0, 1};
    struct err err = {""};
    memset(&sharing, 0, sizeof(sharing));
    sharing.address = port_take();
    cr_assert(rx_group_open(&sharing.group, queues, 2, &err) == 0, "%s", err.text);
    int rc = member_open(&sharing.own, sharing.group, 0, &sharing.address, &err);
    if (rc < 0 && getenv("ZCRX_MUST") == NULL) {
        cr_skip_test("host: no device-less zero-copy receive here (Linux 7.1); runs in the VM lane");
    }
    cr_assert(rc == 0, "%s", err.text);
    sharing.other = port_take();
    sharing.lender.group = sharing.group;
    sharing.lender.address = &sharing.other;
    cr_assert(pthread_create(&sharing.lender.thread, NULL, lender_main, &sharing.lender) == 0);
    PUMP_UNTIL(&sharing.own, atomic_load(&sharing.lender.state) != 0);
    cr_assert(atomic_load(&sharing.lender.state) == 1, "%s", err_text(atomic_load(&sharing.lender.state)));
    cr_assert(rx_group_start(sharing.group));
    sharing.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(connect(sharing.fd, (struct sockaddr *)&sharing.address, sizeof(sharing.address)) == 0);
}

static void sharing_close(void)
{
    close(sharing.fd);
    atomic_store(&sharing.lender.state, 2);
    member_close(&sharing.own); /* Members leave together. */
    cr_assert(pthread_join(sharing.lender.thread, NULL) == 0);
    rx_group_close(sharing.group);
}

/* The receive ends because the packets lie elsewhere, which no peer can cause here: the end of a cancelled one is altered. It has arrived
 * when this returns, and the worker has not polled yet. */
static void sharing_elsewhere(void)
{
    uint64_t give_up_ns = clock_monotonic_ns() + PATIENCE_NS;
    sharing.own.cancelled_is = -EFAULT;
    rx_pause(sharing.own.rx, sharing.own.ids[0]);
    while (sharing.own.cancelled_is != 0) {
        cr_assert(uring_submit_and_wait(&sharing.own.uring, NS_PER_MS) == 0);
        (void)uring_reap(&sharing.own.uring, UINT32_MAX);
        cr_assert(clock_monotonic_ns() < give_up_ns);
    }
}

/* rx_resume starts the receive again before the end of the last one was acted on: it still names the old area, while that end
 * chooses the new one. */
Test(zcrx_handed, a_receive_is_read_from_the_area_that_it_names, .timeout = 120)
{
    struct member *own = &sharing.own;
    sharing_open();
    stream_send(sharing.fd, 0, 1000);
    PUMP_UNTIL(own, own->seen == 1000);
    sharing_elsewhere();
    rx_resume(own->rx, own->ids[0]);
    member_poll(own); /* acts on the end: borrows the other's area */
    cr_expect(own->rx->stats.wrong_queue == 1);
    stream_send(sharing.fd, 1000, 3000);
    PUMP_UNTIL(own, own->seen == 4000);
    cr_expect(own->wrong == 0, "%llu bytes of another area", (unsigned long long)own->wrong);
    sharing_close();
}

Test(zcrx_handed, a_stream_goes_on_in_a_borrowed_area_and_its_buffers_go_home, .timeout = 120)
{
    struct member *own = &sharing.own;
    sharing_open();
    stream_send(sharing.fd, 0, 1000);
    PUMP_UNTIL(own, own->seen == 1000);
    sharing_elsewhere();
    member_poll(own);
    cr_expect(own->rx->stats.wrong_queue == 1);
    rx_resume(own->rx, own->ids[0]);
    for (uint64_t at = 1000; at < 3000000; at += 4000) { /* three times the area */
        stream_send(sharing.fd, at, 4000);
        PUMP_UNTIL(own, own->seen == at + 4000);
    }
    cr_expect(own->wrong == 0 && own->resets == 0);
    cr_expect(own->rx->stats.buffers_free == PAGES, "none of them was ours");
    sharing_close();
}
