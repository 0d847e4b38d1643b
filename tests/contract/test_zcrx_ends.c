/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How requests of zero-copy receive end. Goal: a full completion queue (-ENOSPC, overflow), an exhausted area (-ENOMEM), a full
 * queue of our own and the end of a stream cost no byte, and every other error is told as what it is. Method: the zcrx backend
 * device-less on loopback, so that requests, completions and refusals are the kernel's own; the ring's filter watches
 * completions, and alters the last one where no peer can cause an error. Linux 7.1: the VM lane sets ZCRX_MUST, elsewhere
 * the tests skip.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "rx/rx.h"

#define PATIENCE_NS (60 * NS_PER_S)
#define HELD_MAX 8192U
#define EVENTS 64U

struct ends {
    struct uring uring;
    struct arena arena;
    struct rx *rx;
    struct sockaddr_in address;
    int fd;         /* the client */
    uint64_t sent;  /* bytes the client has handed to TCP */
    uint64_t total; /* bytes it wants to */
    uint64_t seen;  /* bytes received */
    uint64_t wrong; /* slices with other bytes than were sent */
    bool hold;
    struct slice held[HELD_MAX];
    uint32_t held_count;
    uint32_t eofs, resets, closeds;
    int reset_error;
    struct rx_id id;
    /* what the filter saw of class RX */
    uint32_t nospc, nomem;
    int replace_end_by; /* a completion of 0 becomes this, `replace_left` times */
    uint32_t replace_left;
};

#define PERIOD 64256U /* of the pattern: 251 * 256 */
#define RUN 65536U

static uint8_t patterns[PERIOD + RUN];

/* The stream's bytes from this offset on, RUN of them. */
static const uint8_t *pattern_at(uint64_t offset)
{
    if (patterns[1] == 0) {
        for (uint32_t i = 0; i < sizeof(patterns); i++) {
            patterns[i] = (uint8_t)(i % PERIOD * 31 + i % PERIOD / 251);
        }
    }
    return patterns + offset % PERIOD;
}

static void watch(void *ctx, enum uring_class class, void *op, int32_t *res)
{
    struct ends *ends = ctx;
    (void)op;
    if (class != URING_CLASS_RX) {
        return;
    }
    ends->nospc += *res == -ENOSPC;
    ends->nomem += *res == -ENOMEM;
    if (*res == 0 && ends->replace_left > 0) {
        ends->replace_left--;
        *res = ends->replace_end_by;
    }
}

/* The memory of the area, a ring of `cq` completions, a listener and one connected client. */
static void ends_open(struct ends *ends, uint32_t pages, uint32_t cq, uint32_t records)
{
    struct err err = {""};
    memset(ends, 0, sizeof(*ends));
    struct uring_options ring = {.sq_entries = 8, .cq_entries = cq, .buffers_max = 1, .want_cqe32 = true};
    cr_assert(uring_open(&ends->uring, &ring, &err) == 0, "%s", err.text);
    struct arena_options memory = {.staging_size = 4096,
                                   .area_size = (uint64_t)pages * 4096,
                                   .pages = ARENA_PAGES_NORMAL,
                                   .numa_node = -1};
    cr_assert(arena_open(&ends->arena, &memory, &err) == 0, "%s", err.text);
    socklen_t len = sizeof(ends->address);
    ends->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(bind(probe, (struct sockaddr *)&ends->address, len) == 0);
    cr_assert(getsockname(probe, (struct sockaddr *)&ends->address, &len) == 0);
    close(probe);
    struct rx_options options = {.name = "test",
                                 .address_len = len,
                                 .uring = &ends->uring,
                                 .arena = &ends->arena,
                                 .area_offset = ends->arena.staging_size,
                                 .area_size = memory.area_size,
                                 .conns_max = 4,
                                 .conn_buffers_max = 65536, /* no bound but the area */
                                 .workers = 1,
                                 .records_max = records};
    memcpy(&options.address, &ends->address, len);
    int rc = rx_open(&rx_zcrx_ops, &options, &ends->rx, &err);
    if (rc < 0 && getenv("ZCRX_MUST") == NULL) {
        cr_skip_test("host: no device-less zero-copy receive here (Linux 7.1); runs in the VM lane");
    }
    cr_assert(rc == 0, "%s", err.text);
    ends->uring.filter = watch;
    ends->uring.filter_ctx = ends;
    ends->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(connect(ends->fd, (struct sockaddr *)&ends->address, len) == 0);
    cr_assert(fcntl(ends->fd, F_SETFL, O_NONBLOCK) == 0);
}

static void ends_send(struct ends *ends)
{
    while (ends->sent < ends->total) {
        uint64_t left = ends->total - ends->sent;
        ssize_t sent = send(ends->fd, pattern_at(ends->sent), left < RUN ? (size_t)left : RUN, MSG_NOSIGNAL);
        if (sent <= 0) {
            return;
        }
        ends->sent += (uint64_t)sent;
    }
}

static void ends_take(struct ends *ends, const struct rx_event *event)
{
    switch (event->kind) {
    case RX_OPEN:
        ends->id = event->id;
        break;
    case RX_DATA:
        cr_assert(event->slice.len <= RUN);
        ends->wrong += memcmp(event->slice.addr, pattern_at(ends->seen), event->slice.len) != 0;
        ends->seen += event->slice.len;
        if (ends->hold) {
            cr_assert(ends->held_count < HELD_MAX);
            ends->held[ends->held_count++] = event->slice;
        } else {
            slice_release(&event->slice);
        }
        break;
    case RX_EOF:
        ends->eofs++;
        break;
    case RX_RESET:
        ends->resets++;
        ends->reset_error = event->error;
        break;
    default:
        ends->closeds += event->kind == RX_CLOSED;
        break;
    }
}

/* One turn of a loop: what a worker does. `reaps` and `polls` may be left out, as by a worker that is behind. */
static void ends_turn(struct ends *ends, bool reaps, bool polls)
{
    struct rx_event events[EVENTS];
    ends_send(ends);
    cr_assert(uring_submit_and_wait(&ends->uring, NS_PER_MS) == 0);
    if (reaps) {
        (void)uring_reap(&ends->uring, UINT32_MAX);
    }
    if (polls) {
        int count = rx_poll(ends->rx, clock_monotonic_ns(), events, EVENTS);
        cr_assert(count >= 0);
        for (int i = 0; i < count; i++) {
            ends_take(ends, &events[i]);
        }
    }
}

#define PUMP_UNTIL(ends, condition)                                                                          \
    do {                                                                                                     \
        uint64_t give_up_ns = clock_monotonic_ns() + PATIENCE_NS;                                            \
        while (!(condition)) {                                                                               \
            ends_turn(ends, true, true);                                                                     \
            cr_assert(clock_monotonic_ns() < give_up_ns, "never: %s (%llu of %llu bytes)", #condition,       \
                      (unsigned long long)(ends)->seen, (unsigned long long)(ends)->total);                  \
        }                                                                                                    \
    } while (0)

static void ends_close(struct ends *ends)
{
    while (ends->held_count > 0) {
        slice_release(&ends->held[--ends->held_count]);
    }
    close(ends->fd);
    rx_close(ends->rx);
    uring_close(&ends->uring);
    arena_close(&ends->arena);
}

static void ends_whole(struct ends *ends)
{
    PUMP_UNTIL(ends, ends->seen == ends->total);
    cr_expect(ends->wrong == 0, "%llu slices of other bytes", (unsigned long long)ends->wrong);
    cr_expect(ends->eofs == 0 && ends->resets == 0);
}

static struct ends ends;

Test(zcrx_ends, a_full_completion_queue_ends_requests_and_costs_no_byte, .timeout = 120)
{
    ends_open(&ends, 512, 16, 0);
    PUMP_UNTIL(&ends, ends.id.generation != 0);
    ends.total = 2 * MIB;
    for (int round = 0; round < 20;
         round++) { /* A worker that is behind: the kernel has 16 places and much more to say. */
        for (int i = 0; i < 4; i++) {
            ends_turn(&ends, false, false);
        }
        ends_turn(&ends, true, true);
    }
    ends_whole(&ends);
    cr_expect(ends.nospc > 0, "the kernel ended requests for want of room");
    ends_close(&ends);
}

Test(zcrx_ends, completions_that_overflow_are_kept_and_counted, .timeout = 120)
{
    ends_open(&ends, 256, 16, 0);
    PUMP_UNTIL(&ends, ends.id.generation != 0);
    ends.total = 1 * MIB;
    for (int i = 0; i < 24;
         i++) { /* 16 places, and completions of such operations go to the overflow list. */
        struct io_uring_sqe *sqe = uring_sqe(&ends.uring);
        io_uring_prep_nop(sqe);
        uring_sqe_bind(sqe, URING_CLASS_NONE, NULL);
    }
    ends_turn(&ends, false, false);
    (void)uring_reap(&ends.uring, 1);
    cr_expect(ends.uring.cq_overflows > 0);
    ends_whole(&ends);
    ends_close(&ends);
}

Test(zcrx_ends, an_exhausted_area_waits_for_releases, .timeout = 120)
{
    ends_open(&ends, 16, 256, 0);
    ends.hold = true;
    ends.total = 1 * MIB;
    PUMP_UNTIL(&ends, ends.nomem > 2);
    cr_expect(ends.held_count == 16, "%u: all pages and no more", ends.held_count);
    cr_expect(ends.rx->stats.starved > 0);
    cr_expect(ends.rx->stats.buffers_free == 0);
    ends.hold = false;
    while (ends.held_count > 0) {
        slice_release(&ends.held[--ends.held_count]);
    }
    ends_whole(&ends);
    cr_expect(ends.rx->stats.buffers_free == 16, "every page is back");
    ends_close(&ends);
}

Test(zcrx_ends, a_worker_that_does_not_poll_holds_the_ring_and_loses_nothing, .timeout = 120)
{
    ends_open(&ends, 1024, 512, 64);
    PUMP_UNTIL(&ends, ends.id.generation != 0);
    ends.total = 4 * MIB;
    uint64_t give_up_ns = clock_monotonic_ns() + PATIENCE_NS;
    while (ends.uring.reap_holds == 0) { /* 64 completions are recorded and not acted on */
        ends_turn(&ends, true, false);
        cr_assert(clock_monotonic_ns() < give_up_ns, "never held");
    }
    uint64_t completed = ends.uring.completed;
    ends_turn(&ends, true, false);
    cr_expect(ends.uring.completed == completed, "nothing is reaped while held");
    ends_whole(&ends);
    cr_expect(ends.uring.reap_holds == 0);
    ends_close(&ends);
}

Test(zcrx_ends, the_end_of_a_stream_is_told_once_and_sending_goes_on, .timeout = 120)
{
    ends_open(&ends, 64, 64, 0);
    ends.total = 100001;
    ends_whole(&ends);
    cr_assert(shutdown(ends.fd, SHUT_WR) == 0);
    PUMP_UNTIL(&ends, ends.eofs > 0);
    uint8_t answer[4] = "okay";
    struct iovec iov = {.iov_base = answer, .iov_len = sizeof(answer)};
    cr_assert(rx_send(ends.rx, ends.id, &iov, 1, 1) == 0);
    rx_conn_close(ends.rx, ends.id, false);
    PUMP_UNTIL(&ends, ends.closeds == 1);
    cr_expect(ends.eofs == 1 && ends.resets == 0);
    cr_expect(recv(ends.fd, answer, sizeof(answer), 0) == 4);
    ends_close(&ends);
}

Test(zcrx_ends, ends_that_pass_are_started_again, .timeout = 120)
{
    static const int passing[] = {-EINTR, -EAGAIN, -ENOSPC, -ENOMEM};
    for (size_t i = 0; i < ARRAY_COUNT(passing); i++) {
        ends_open(&ends, 64, 64, 0);
        ends.total = 50000;
        ends_whole(&ends);
        ends.replace_end_by = passing[i];
        ends.replace_left = 3;
        cr_assert(shutdown(ends.fd, SHUT_WR) == 0);
        PUMP_UNTIL(&ends, ends.eofs == 1);
        cr_expect(ends.replace_left == 0 && ends.resets == 0, "%d", passing[i]);
        ends_close(&ends);
    }
}

Test(zcrx_ends, every_other_end_is_a_reset_that_says_why, .timeout = 120)
{
    static const int lasting[] = {-EFAULT,    -EPROTONOSUPPORT, -ENOTCONN, -ECONNRESET,
                                  -ETIMEDOUT, -EINVAL,          -EIO};
    for (size_t i = 0; i < ARRAY_COUNT(lasting); i++) {
        ends_open(&ends, 64, 64, 0);
        ends.total = 50000;
        ends_whole(&ends);
        ends.replace_end_by = lasting[i];
        ends.replace_left = 1;
        cr_assert(shutdown(ends.fd, SHUT_WR) == 0);
        PUMP_UNTIL(&ends, ends.resets == 1);
        cr_expect(ends.reset_error == lasting[i], "%d", ends.reset_error);
        cr_expect(ends.eofs == 0);
        cr_expect(ends.rx->stats.wrong_queue == (lasting[i] == -EFAULT));
        ends_close(&ends);
    }
}
