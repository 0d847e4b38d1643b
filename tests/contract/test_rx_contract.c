/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of rx.h, run against every backend that this host offers. Goal: what the consumer may rely on (order,
 * ownership, flow control, ends of life) is the same whichever path the bytes take. Method: a listener of the backend
 * under test on loopback (af_xdp: on a veth pair, in the root lane), clients on plain sockets in the same thread, and a pump that
 * polls the backend until a stated condition holds. RX_BACKEND names the backend: socket
 * (default), tls (test_rx_contract_tls.c) or zcrx: device-less, or on RX_INTERFACE with clients in the namespace RX_NETNS. Those run in the VM lane.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/rng.h"
#include "nic/nic.h"
#include "rx/rx.h"
#include "server/tls_rx.h"
#include "tests/contract/peer.h"
#include "tests/lib/tls_pair.h"

#ifndef RX_BACKEND_DEFAULT
#define RX_BACKEND_DEFAULT "socket"
#endif
#define CONNS_MAX 8U
#define PATIENCE_NS (30 * NS_PER_S)
#define HELD_MAX 65536U

struct seen {
    bool open, eof, reset, closed;
    int reset_error;
    int eof_error;
    uint64_t bytes;      /* received */
    uint64_t mismatches; /* bytes that were not the expected pattern */
    uint32_t sent_ok, sent_failed;
    uint64_t last_cookie;
    uint64_t cut;  /* bytes of recalled sends that TCP has */
    uint32_t cuts; /* recalled sends */
    bool room;
    struct rx_id id;
    uint8_t *end;      /* one past the last byte received */
    bool place_broken; /* a slice neither adjacent nor congruent to the one before it */
};

struct bench {
    struct uring uring;
    struct arena arena;
    struct rx *rx;
    struct tls_context *tls; /* NULL: plain */
    uint32_t buffers;        /* as granted; a device-less zcrx area has buffers of one page */
    uint32_t buffer_size;    /* as asked */
    uint64_t area_size;
    uint32_t address; /* network order */
    uint16_t port;
    struct seen seen[CONNS_MAX];
    bool hold; /* keep slices instead of releasing them */
    struct slice held[HELD_MAX];
    uint32_t held_count;
};

/* Byte `offset` of a client's stream. Prime-sized period, so that swapped or repeated runs show. */
static uint8_t pattern(uint64_t offset)
{
    return (uint8_t)((offset * 31 + offset / 251) & 0xff);
}

static const char *from_env(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value != NULL ? value : otherwise;
}

static bool backend_is(const char *name)
{
    return strcmp(from_env("RX_BACKEND", RX_BACKEND_DEFAULT), name) == 0;
}

static uint64_t bench_handshake_ns = PATIENCE_NS;

static void bench_tls(struct bench *bench)
{
    static struct conf_listener conf = {.name = "test"};
    struct err err = {""};
    mkdir("build/scratch", 0700);
    snprintf(conf.tls.certificate, sizeof(conf.tls.certificate), "build/scratch/contract-%d.crt",
             (int)getpid());
    snprintf(conf.tls.key, sizeof(conf.tls.key), "build/scratch/contract-%d.key", (int)getpid());
    tls_pair_write(&(struct tls_pair){.certificate = conf.tls.certificate,
                                      .key = conf.tls.key,
                                      .name = "test",
                                      .to_s = 86400,
                                      .key_mode = 0600});
    cr_assert(tls_context_open(&conf, &bench->tls, NULL, &err) == 0, "%s", err.text);
    unlink(conf.tls.certificate);
    unlink(conf.tls.key);
}

/* With RX_INTERFACE the NIC is prepared as a node with manage_nic prepares it: queue RX_QUEUE, one rule for the port. */
static void bench_prepare_nic(const struct bench *bench)
{
    const char *interface = getenv("RX_INTERFACE");
    if (interface == NULL || backend_is("af_xdp")) {
        return;
    }
    static struct nic_state state;
    static struct nic_plan plan;
    struct err err = {""};
    struct nic_wish wish = {.queue_first = (uint32_t)atoi(from_env("RX_QUEUE", "1")),
                            .queue_count = 1,
                            .port = bench->port,
                            .want_ipv4 = true,
                            .buffer_size = bench->buffer_size};
    cr_assert(nic_undo(interface, "/tmp", &err) == 0, "%s", err.text);
    cr_assert(nic_read(interface, &state, &err) == 0, "%s", err.text);
    nic_plan_zcrx(&state, &wish, &plan);
    cr_assert(plan.refusal_count == 0, "%s", plan.refusals[0]);
    cr_assert(nic_apply(&state, &plan, "/tmp", &err) == 0, "%s", err.text);
    nic_state_free(&state);
}

static void bench_memory(struct bench *bench, uint32_t buffers)
{
    struct err err = {""};
    bench->buffer_size = (uint32_t)atoi(from_env("RX_BUFFER_SIZE", "8192"));
    struct uring_options uring_options = {
        .sq_entries = 64, .cq_entries = 1024, .buffers_max = 4, .want_cqe32 = true};
    cr_assert(uring_open(&bench->uring, &uring_options, &err) == 0, "%s", err.text);
    bool huge = getenv("RX_INTERFACE") != NULL;
    buffers = huge ? 256 : buffers; /* a NIC queue keeps tens of buffers to itself */
    if (backend_is("tls")) {
        buffers +=
            buffers / 3 > 2 ? (buffers + 2) / 3 : 2; /* the quarter of the whole that holds ciphertext */
    }
    struct arena_options arena_options = {.staging_size = 4096,
                                          .area_size = (uint64_t)buffers * bench->buffer_size,
                                          .pages = huge && !backend_is("af_xdp") ? ARENA_PAGES_2MIB
                                                                                 : ARENA_PAGES_NORMAL,
                                          .numa_node = -1};
    cr_assert(arena_open(&bench->arena, &arena_options, &err) == 0, "%s", err.text);
    int rc = uring_buffer_register(&bench->uring, 0, bench->arena.base, bench->arena.size, &err);
    cr_assert(rc == 0, "%s", err.text);
    bench->arena.buf_index = 0;
    bench->area_size = (uint64_t)buffers * bench->buffer_size;
}

static void bench_open(struct bench *bench, uint32_t buffers, uint32_t conn_buffers_max)
{
    struct err err = {""};
    memset(bench, 0, sizeof(*bench));
    bench_memory(bench, buffers);
    struct rx_options options = {.name = "test",
                                 .address_len = sizeof(struct sockaddr_in),
                                 .uring = &bench->uring,
                                 .arena = &bench->arena,
                                 .area_offset = bench->arena.staging_size,
                                 .area_size = bench->area_size,
                                 .buffer_size = bench->buffer_size,
                                 .conns_max = CONNS_MAX,
                                 .conn_buffers_max = conn_buffers_max,
                                 .workers = 1,
                                 .interface = getenv("RX_INTERFACE"),
                                 .queue = (uint32_t)atoi(from_env("RX_QUEUE", "1"))};
    struct sockaddr_in *in = (struct sockaddr_in *)&options.address;
    int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bench->address = inet_addr(from_env("RX_ADDRESS", "127.0.0.1"));
    *in = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = bench->address};
    socklen_t len = sizeof(*in);
    cr_assert(bind(probe, (struct sockaddr *)in, sizeof(*in)) == 0);
    cr_assert(getsockname(probe, (struct sockaddr *)in, &len) == 0);
    close(probe);
    bench->port = ntohs(in->sin_port);
    bench_prepare_nic(bench);
    struct tls_rx_options tls = {.handshake_timeout_ns = bench_handshake_ns};
    if (backend_is("tls")) {
        bench_tls(bench);
        tls.context = bench->tls;
        options.filter = &tls;
    }
    const struct rx_ops *ops = backend_is("zcrx")     ? &rx_zcrx_ops
                               : backend_is("af_xdp") ? &rx_xdp_ops
                               : backend_is("tls")    ? &tls_rx_ops
                                                      : &rx_socket_ops;
    cr_assert(rx_open(ops, &options, &bench->rx, &err) == 0, "%s", err.text);
    bench->buffers = bench->rx->info.buffers_total;
}

static void bench_release_all(struct bench *bench)
{
    while (bench->held_count > 0) { /* Newest first: the contract allows any order. */
        slice_release(&bench->held[--bench->held_count]);
    }
}

static void bench_close(struct bench *bench)
{
    bench_release_all(bench);
    rx_close(bench->rx);
    tls_context_close(bench->tls);
    if (getenv("RX_INTERFACE") != NULL) {
        struct err err = {""};
        uring_close(&bench->uring); /* Ends the registration; the NIC's setting cannot change before. */
        arena_close(&bench->arena);
        cr_assert(nic_undo(getenv("RX_INTERFACE"), "/tmp", &err) == 0, "%s", err.text);
        return;
    }
    uring_close(&bench->uring);
    arena_close(&bench->arena);
}

static void take_data(struct bench *bench, struct seen *seen, const struct slice *slice)
{
    for (uint32_t i = 0; i < slice->len; i++) {
        seen->mismatches += slice->addr[i] != pattern(seen->bytes + i);
    }
    if (bench->rx->info.flow == RX_FLOW_READ && seen->end != NULL && seen->end != slice->addr &&
        ((uintptr_t)seen->end & 4095U) != ((uintptr_t)slice->addr & 4095U)) {
        seen->place_broken = true;
    }
    seen->end = slice->addr + slice->len;
    seen->bytes += slice->len;
    if (bench->hold) {
        cr_assert(bench->held_count < HELD_MAX);
        bench->held[bench->held_count++] = *slice;
    } else {
        slice_release(slice);
    }
}

static void take_event(struct bench *bench, const struct rx_event *event)
{
    struct seen *seen = &bench->seen[event->id.index];
    switch (event->kind) {
    case RX_OPEN:
        *seen = (struct seen){.open = true, .id = event->id};
        rx_user_set(bench->rx, event->id, seen);
        break;
    case RX_DATA:
        cr_assert(event->user == seen);
        take_data(bench, seen, &event->slice);
        break;
    case RX_EOF:
        seen->eof = true;
        seen->eof_error = event->error;
        break;
    case RX_RESET:
        seen->reset = true;
        seen->reset_error = event->error;
        break;
    case RX_SENT:
        cr_assert(event->cookie > seen->last_cookie, "sends are reported in order");
        seen->last_cookie = event->cookie;
        seen->sent_ok += event->error == 0;
        seen->sent_failed += event->error != 0 && event->error != -EAGAIN;
        seen->cuts += event->error == -EAGAIN;
        seen->cut += event->error == -EAGAIN ? event->sent : 0;
        break;
    case RX_ROOM:
        seen->room = true;
        break;
    case RX_CLOSED:
        seen->closed = true;
        break;
    }
}

/* One turn of a worker's loop. */
static void turn(struct bench *bench, uint64_t wait_ns)
{
    struct rx_event events[16];
    int count = rx_poll(bench->rx, clock_monotonic_ns(), events, ARRAY_COUNT(events));
    cr_assert(count >= 0);
    for (int i = 0; i < count; i++) {
        take_event(bench, &events[i]);
    }
    peer_flush_all();
    bool now = count > 0 || rx_deadline(bench->rx) == 0;
    cr_assert(uring_submit_and_wait(&bench->uring, now ? 0 : wait_ns) == 0);
    uring_reap(&bench->uring, 256);
}

#define PUMP_UNTIL(bench, condition)                                                                         \
    do {                                                                                                     \
        uint64_t pump_end = clock_monotonic_ns() + PATIENCE_NS;                                              \
        while (!(condition)) {                                                                               \
            cr_assert(clock_monotonic_ns() < pump_end, "timed out waiting for %s", #condition);              \
            turn((bench), NS_PER_MS);                                                                        \
        }                                                                                                    \
    } while (0)

/* Turns until the loop has nothing more to do for 20 ms: then "nothing came" is a statement. */
static void settle(struct bench *bench)
{
    for (uint64_t end = clock_monotonic_ns() + 20 * NS_PER_MS; clock_monotonic_ns() < end;) {
        turn(bench, NS_PER_MS);
    }
}

/* A socket in the client's network namespace (RX_NETNS), which is this one by default. */
static int client_socket(void)
{
    const char *name = getenv("RX_NETNS");
    if (name == NULL) {
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    char path[256];
    snprintf(path, sizeof(path), "/run/netns/%s", name);
    int here = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int there = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert(here >= 0 && there >= 0 && setns(there, CLONE_NEWNET) == 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(setns(here, CLONE_NEWNET) == 0);
    close(here);
    close(there);
    return fd;
}

/* Does not wait for the answer, which with af_xdp only this thread can give. Refusals show when the socket is used. */
static int client_connect(struct bench *bench)
{
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_addr.s_addr = bench->address, .sin_port = htons(bench->port)};
    int fd = client_socket();
    cr_assert(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    cr_assert(connect(fd, (struct sockaddr *)&in, sizeof(in)) == 0 || errno == EINPROGRESS, "%s",
              strerror(errno));
    return fd;
}

/* Opens a client and waits for its RX_OPEN. `place` gets the connection's index. */
static int client_open(struct bench *bench, uint32_t *place)
{
    uint64_t opened = bench->rx->stats.conns_opened;
    int fd = client_connect(bench);
    PUMP_UNTIL(bench, bench->rx->stats.conns_opened > opened);
    if (bench->tls != NULL) {
        peer_tls_begin(fd);
        PUMP_UNTIL(bench, peer_tls_is_ready(fd));
    }
    for (uint32_t i = 0; i < CONNS_MAX; i++) {
        if (bench->seen[i].open && !bench->seen[i].closed) {
            *place =
                i; /* The latest is found because tests open in order and look at the highest first use. */
        }
    }
    return fd;
}

/* Sends pattern bytes [*offset, end) while pumping. */
static void client_send(struct bench *bench, int fd, uint64_t *offset, uint64_t end, uint32_t piece)
{
    uint8_t buf[65536];
    uint64_t deadline = clock_monotonic_ns() + PATIENCE_NS;
    while (*offset < end) {
        uint32_t want = (uint32_t)(end - *offset < piece ? end - *offset : piece);
        for (uint32_t i = 0; i < want; i++) {
            buf[i] = pattern(*offset + i);
        }
        ssize_t sent = peer_send(fd, buf, want);
        cr_assert(sent > 0 || errno == EAGAIN);
        *offset += sent > 0 ? (uint64_t)sent : 0;
        cr_assert(clock_monotonic_ns() < deadline, "the receiver does not take bytes");
        turn(bench, sent > 0 ? 0 : NS_PER_MS);
    }
}

static void close_conn(struct bench *bench, uint32_t place, bool abortive)
{
    rx_conn_close(bench->rx, bench->seen[place].id, abortive);
    PUMP_UNTIL(bench, bench->seen[place].closed);
}

Test(rx_contract, a_stream_arrives_whole_in_order_and_ends_with_eof)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t sent = 0;
    bench_open(&bench, 16, 0);
    int fd = client_open(&bench, &place);
    client_send(&bench, fd, &sent, 1000003, 7001);
    PUMP_UNTIL(&bench, peer_shutdown(fd));
    PUMP_UNTIL(&bench, bench.seen[place].eof);
    cr_expect(bench.seen[place].bytes == 1000003);
    cr_expect(bench.seen[place].mismatches == 0);
    cr_expect(!bench.seen[place].place_broken);
    close_conn(&bench, place, false);
    peer_close(fd);
    cr_expect(bench.rx->stats.buffers_free == bench.buffers, "every buffer is back");
    bench_close(&bench);
}

/* Bytes may be there before the consumer has seen RX_OPEN, and with it had a chance to give its pointer. */
Test(rx_contract, bytes_that_come_with_the_connection_carry_the_consumers_pointer)
{
    static struct bench bench;
    uint8_t bytes[100];
    bench_open(&bench, 4, 0);
    for (uint32_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = pattern(i);
    }
    if (bench.tls == NULL) { /* With TLS none can be there before the handshake. */
        struct pollfd writable = {.fd = client_connect(&bench), .events = POLLOUT};
        PUMP_UNTIL(&bench, poll(&writable, 1, 0) == 1);
        cr_assert(peer_send(writable.fd, bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes));
        PUMP_UNTIL(&bench, bench.seen[0].bytes == sizeof(bytes)); /* take_event asserts the pointer */
        close_conn(&bench, 0, true);
        peer_close(writable.fd);
    }
    bench_close(&bench);
}

/* One-byte segments are the worst case for buffers: they must be gathered in one buffer, not one each. */
Test(rx_contract, one_byte_segments_share_a_buffer)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t sent = 0;
    bench_open(&bench, 4, 0);
    bench.hold = bench.rx->info.flow == RX_FLOW_READ;
    int fd = client_open(&bench, &place);
    client_send(&bench, fd, &sent, 1000, 1);
    PUMP_UNTIL(&bench, bench.seen[place].bytes == 1000);
    if (bench.rx->info.flow ==
        RX_FLOW_READ) { /* zcrx places what arrives; the connection's bound is the defence there */
        cr_expect(bench.rx->stats.buffers_free == 3, "free %lu", (unsigned long)bench.rx->stats.buffers_free);
    }
    cr_expect(bench.seen[place].mismatches == 0);
    close_conn(&bench, place, true);
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_contract, an_idle_connection_holds_no_buffer)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t sent = 0;
    bench_open(&bench, 4, 0);
    int fd = client_open(&bench, &place);
    settle(&bench);
    cr_expect(bench.rx->stats.buffers_free == bench.buffers);
    client_send(&bench, fd, &sent, 100, 100);
    PUMP_UNTIL(&bench, bench.seen[place].bytes == 100);
    settle(&bench);
    cr_expect(bench.rx->stats.buffers_free == bench.buffers, "bytes were released, so the buffer is back");
    close_conn(&bench, place, false);
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_contract, when_all_buffers_are_held_nothing_is_lost_and_release_resumes)
{
    static struct bench bench;
    uint32_t place = 0;
    bench_open(&bench, 4, 100);
    bench.hold = true;
    int fd = client_open(&bench, &place);
    uint8_t buf[4096];
    uint64_t offset = 0;
    uint64_t total = (uint64_t)bench.buffers * bench.rx->info.buffer_size * 3 / 2;
    /* Sends until nothing has moved for a while: every buffer is held then, and the peer's window is shut. */
    for (uint64_t moved = clock_monotonic_ns();
         offset < total && clock_monotonic_ns() < moved + 300 * NS_PER_MS;) {
        for (uint32_t i = 0; i < sizeof(buf); i++) {
            buf[i] = pattern(offset + i);
        }
        uint64_t left = total - offset;
        ssize_t sent = peer_send(fd, buf, left < sizeof(buf) ? left : sizeof(buf));
        if (sent > 0) {
            offset += (uint64_t)sent;
            moved = clock_monotonic_ns();
        }
        turn(&bench, sent > 0 ? 0 : NS_PER_MS);
    }
    /* A NIC queue keeps some to itself and drops instead of telling us. */
    bool holds_all = getenv("RX_INTERFACE") == NULL;
    if (holds_all) {
        PUMP_UNTIL(&bench, bench.rx->stats.buffers_free == 0 && bench.rx->stats.starved > 0);
    }
    settle(&bench);
    uint64_t room = (uint64_t)bench.buffers * bench.rx->info.buffer_size;
    if (bench.rx->info.flow == RX_FLOW_READ) {
        cr_expect(bench.seen[place].bytes == room, "%lu", (unsigned long)bench.seen[place].bytes);
    }
    cr_expect(bench.seen[place].bytes <= room);
    cr_expect(!holds_all || bench.rx->stats.buffers_free == 0);
    cr_expect(bench.seen[place].bytes < total);
    bench.hold = false;
    bench_release_all(&bench);
    client_send(&bench, fd, &offset, total, 4096);
    PUMP_UNTIL(&bench, bench.seen[place].bytes == total);
    cr_expect(bench.seen[place].mismatches == 0);
    close_conn(&bench, place, true);
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_contract, one_connection_never_holds_more_than_its_bound_and_others_go_on)
{
    static struct bench bench;
    uint32_t greedy = 0;
    uint32_t other = 0;
    bench_open(&bench, 8, 2);
    bench.hold = true;
    int fd = client_open(&bench, &greedy);
    uint8_t junk[40960];
    for (uint32_t i = 0; i < sizeof(junk); i++) {
        junk[i] = pattern(i);
    }
    /* A new connection of Linux may take less than all; in af_xdp a frame carries one segment, elsewhere a buffer is filled. */
    ssize_t put = peer_send(fd, junk, sizeof(junk));
    cr_assert(put > 16000, "%zd", put);
    PUMP_UNTIL(&bench, bench.seen[greedy].bytes > (bench.rx->info.flow == RX_FLOW_WINDOW ? 1000U : 4096U));
    for (int i = 0; i < 10; i++) {
        settle(&bench);
    }
    /* zcrx may overshoot by what the kernel had queued already; from then on it must be still. */
    uint64_t before = bench.seen[greedy].bytes;
    cr_expect(before < (uint64_t)put || bench.rx->info.flow == RX_FLOW_SHARED, "%lu", (unsigned long)before);
    ssize_t more = peer_send(fd, junk, 1000);
    settle(&bench);
    cr_expect(bench.seen[greedy].bytes == before);
    int fd2 = client_open(&bench, &other);
    cr_assert(other != greedy);
    cr_assert(peer_send(fd2, junk, 100) == 100);
    PUMP_UNTIL(&bench, bench.seen[other].bytes == 100);
    bench.hold = false;
    bench_release_all(&bench);
    if (bench.rx->info.flow ==
        RX_FLOW_READ) { /* Nothing else may ever wake the loop: the peer waits for us. */
        cr_expect(rx_deadline(bench.rx) == 0, "a connection that waited for its own buffers is tried again");
    }
    uint64_t sent = (uint64_t)put;
    PUMP_UNTIL(&bench, bench.seen[greedy].bytes >= sent);
    PUMP_UNTIL(&bench, bench.seen[greedy].bytes == sent + (more > 0 ? (uint64_t)more : 0));
    close_conn(&bench, greedy, true);
    close_conn(&bench, other, true);
    peer_close(fd);
    peer_close(fd2);
    bench_close(&bench);
}

/* Gives back all that is held of one buffer. */
static void bench_release_buffer(struct bench *bench, uint64_t token)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < bench->held_count; i++) {
        if (bench->held[i].token == token) {
            slice_release(&bench->held[i]);
        } else {
            bench->held[kept++] = bench->held[i];
        }
    }
    bench->held_count = kept;
}

/* One that waits for its own buffers gave one back, and somebody else took it: the next that comes free wakes it all the same. */
Test(rx_contract, a_buffer_that_another_took_does_not_leave_a_bounded_connection_asleep)
{
    static struct bench bench;
    uint32_t greedy = 0;
    uint32_t full = 0;
    uint32_t late = 0;
    uint64_t offsets[3] = {0};
    bench_open(&bench, 3, 2);
    if (!backend_is("socket")) { /* The others have no such list, or no buffers of a fixed number. */
        bench_close(&bench);
        return;
    }
    bench.hold = true;
    uint32_t size = bench.rx->info.buffer_size;
    int fds[3];
    fds[0] = client_open(&bench, &greedy);
    client_send(&bench, fds[0], &offsets[0], 4 * size, 4096);
    PUMP_UNTIL(&bench, bench.seen[greedy].bytes == 2 * size);
    uint64_t first = bench.held[0].token;
    fds[1] = client_open(&bench, &full);
    client_send(&bench, fds[1], &offsets[1], size, 4096);
    PUMP_UNTIL(&bench, bench.seen[full].bytes == size);
    uint64_t third = bench.held[bench.held_count - 1].token;
    fds[2] = client_open(&bench, &late);
    client_send(&bench, fds[2], &offsets[2], 100, 100);
    PUMP_UNTIL(&bench, bench.rx->stats.starved > 0);
    settle(&bench);
    bench_release_buffer(&bench, first);
    PUMP_UNTIL(&bench, bench.seen[late].bytes == 100);
    settle(&bench);
    cr_assert_eq(bench.seen[greedy].bytes, 2 * size);
    bench_release_buffer(&bench, third);
    cr_expect(rx_deadline(bench.rx) == 0, "nothing else may ever wake the loop");
    bench.hold = false;
    bench_release_all(&bench);
    PUMP_UNTIL(&bench, bench.seen[greedy].bytes == offsets[0]);
    close_conn(&bench, greedy, true);
    close_conn(&bench, full, true);
    close_conn(&bench, late, true);
    for (uint32_t i = 0; i < ARRAY_COUNT(fds); i++) {
        peer_close(fds[i]);
    }
    bench_close(&bench);
}

Test(rx_contract, pause_stops_delivery_and_resume_continues)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t sent = 0;
    bench_open(&bench, 8, 0);
    int fd = client_open(&bench, &place);
    client_send(&bench, fd, &sent, 100, 100);
    PUMP_UNTIL(&bench, bench.seen[place].bytes == 100);
    rx_pause(bench.rx, bench.seen[place].id);
    uint64_t room = bench.rx->info.flow == RX_FLOW_READ ? 2ULL * bench.rx->info.buffer_size : 150000;
    client_send(&bench, fd, &sent, 200000, 4096);
    settle(&bench);
    cr_expect(bench.seen[place].bytes <= 100 + room, "a bounded number of slices was under way");
    rx_resume(bench.rx, bench.seen[place].id);
    PUMP_UNTIL(&bench, bench.seen[place].bytes == 200000);
    cr_expect(bench.seen[place].mismatches == 0);
    close_conn(&bench, place, false);
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_contract, slices_outlive_their_connection)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t sent = 0;
    bench_open(&bench, 4, 0);
    bench.hold = true;
    int fd = client_open(&bench, &place);
    client_send(&bench, fd, &sent, 5000, 5000);
    PUMP_UNTIL(&bench, bench.seen[place].bytes == 5000);
    close_conn(&bench, place, true);
    uint64_t offset = 0;
    for (uint32_t i = 0; i < bench.held_count; i++) {
        for (uint32_t j = 0; j < bench.held[i].len; j++, offset++) {
            cr_assert(bench.held[i].addr[j] == pattern(offset));
        }
    }
    cr_expect(bench.rx->stats.buffers_free < bench.buffers);
    bench_release_all(&bench);
    cr_expect(bench.rx->stats.buffers_free == bench.buffers);
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_contract, a_retained_slice_needs_its_second_release)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t sent = 0;
    bench_open(&bench, 4, 0);
    bench.hold = true;
    int fd = client_open(&bench, &place);
    client_send(&bench, fd, &sent, 4000, 4000);
    PUMP_UNTIL(&bench, bench.seen[place].bytes == 4000);
    struct slice head;
    slice_cut_head(&bench.held[0], 10, &head);
    bench_release_all(&bench);
    settle(&bench);
    cr_expect(bench.rx->stats.buffers_free < bench.buffers);
    slice_release(&head);
    cr_expect(bench.rx->stats.buffers_free == bench.buffers);
    close_conn(&bench, place, true);
    peer_close(fd);
    bench_close(&bench);
}

/* Reads what the server sent until `want` bytes are there; verifies the pattern from `start` on. */
static void client_expect_from(struct bench *bench, int fd, uint64_t start, uint64_t want)
{
    uint8_t buf[65536];
    uint64_t got = 0;
    for (uint64_t end = clock_monotonic_ns() + PATIENCE_NS; got < want;) {
        cr_assert(clock_monotonic_ns() < end, "got %lu of %lu", (unsigned long)got, (unsigned long)want);
        ssize_t n = peer_recv(fd, buf, sizeof(buf));
        cr_assert(n > 0 || (n < 0 && errno == EAGAIN));
        for (ssize_t i = 0; i < n; i++) {
            cr_assert(buf[i] == pattern(start + got + (uint64_t)i));
        }
        got += n > 0 ? (uint64_t)n : 0;
        turn(bench, n > 0 ? 0 : NS_PER_MS);
    }
}

static void client_expect(struct bench *bench, int fd, uint64_t want)
{
    client_expect_from(bench, fd, 0, want);
}

static uint8_t big[4 * 1024 * 1024];

static void fill_big(void)
{
    for (uint64_t i = 0; i < sizeof(big); i++) {
        big[i] = pattern(i);
    }
}

Test(rx_contract, sends_arrive_in_order_also_from_several_fragments)
{
    static struct bench bench;
    uint32_t place = 0;
    bench_open(&bench, 4, 0);
    fill_big();
    int fd = client_open(&bench, &place);
    struct rx_id id = bench.seen[place].id;
    struct iovec first[3] = {{big, 1}, {big + 1, 2 * MIB}, {big + 1 + 2 * MIB, 10}};
    struct iovec second = {big + 11 + 2 * MIB, 1 * MIB};
    cr_assert(rx_send(bench.rx, id, first, 3, 1) == 0);
    cr_assert(rx_send(bench.rx, id, &second, 1, 2) == 0);
    client_expect(&bench, fd, 11 + 3 * MIB);
    PUMP_UNTIL(&bench, bench.seen[place].sent_ok == 2);
    close_conn(&bench, place, false);
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_contract, too_many_sends_are_refused_and_a_close_waits_for_those_taken)
{
    static struct bench bench;
    uint32_t place = 0;
    bench_open(&bench, 4, 0);
    fill_big();
    int fd = client_open(&bench, &place);
    struct rx_id id = bench.seen[place].id;
    for (uint32_t i = 0; i < RX_SENDS_MAX; i++) {
        struct iovec iov = {big + (size_t)i * MIB, MIB};
        cr_assert(rx_send(bench.rx, id, &iov, 1, i + 1) == 0);
    }
    struct iovec more = {big, 1};
    cr_expect(rx_send(bench.rx, id, &more, 1, 99) == -EAGAIN);
    rx_conn_close(bench.rx, id, false);
    settle(&bench);
    cr_expect(!bench.seen[place].closed, "the reader has not read yet");
    client_expect(&bench, fd, (uint64_t)RX_SENDS_MAX * MIB);
    PUMP_UNTIL(&bench, bench.seen[place].closed);
    cr_expect(bench.seen[place].sent_ok == RX_SENDS_MAX);
    peer_close(fd);
    bench_close(&bench);
}

/* A backend may need what is on the way to the peer until it has arrived. */
static void recall(struct bench *bench, struct rx_id id)
{
    int rc = rx_send_recall(bench->rx, id);
    PUMP_UNTIL(bench, rc == 0 || (rc = rx_send_recall(bench->rx, id)) == 0);
}

/* A peer that reads nothing gives the memory of the sends back when they are recalled; what TCP has of them and what is sent again
 * from there on is the stream. Over and over, because the recall meets a send in every state that way. */
Test(rx_contract, recalled_sends_come_back_and_the_stream_goes_on_where_it_stopped)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t at = 0;
    uint64_t cookie = 0;
    bench_open(&bench, 4, 0);
    fill_big();
    int fd = client_open(&bench, &place);
    struct seen *seen = &bench.seen[place];
    if (bench.rx->ops->send_recall == NULL) {
        cr_expect(rx_send_recall(bench.rx, seen->id) == -EOPNOTSUPP);
        close_conn(&bench, place, false);
        peer_close(fd);
        bench_close(&bench);
        return; /* A backend that recalls no sends says so, which is all there is to test. */
    }
    for (uint32_t round = 0; round < 40 && at < sizeof(big); round++) {
        seen->cut = 0;
        seen->room = false;
        uint32_t done = seen->sent_ok + seen->cuts;
        uint64_t start = at;
        uint32_t ok = seen->sent_ok;
        uint64_t half = (sizeof(big) - at + 1) / 2;
        struct iovec first[2] = {{big + at, 1}, {big + at + 1, half - 1}};
        struct iovec second = {big + at + half, sizeof(big) - at - half};
        uint32_t sends = 1;
        cr_assert(rx_send(bench.rx, seen->id, first, half > 1 ? 2 : 1, ++cookie) == 0);
        if (second.iov_len > 0) {
            cr_assert(rx_send(bench.rx, seen->id, &second, 1, ++cookie) == 0);
            sends = 2;
        }
        for (uint32_t i = 0; i < round % 4; i++) {
            turn(&bench, 0);
        }
        recall(&bench, seen->id);
        PUMP_UNTIL(&bench, seen->sent_ok + seen->cuts == done + sends);
        uint32_t whole = seen->sent_ok - ok;
        at += (whole >= 1 ? half : 0) + (whole == 2 ? second.iov_len : 0) + seen->cut;
        if (round % 2 == 0) { /* Otherwise the peer is found reading when room is waited for. */
            settle(&bench);
        }
        client_expect_from(&bench, fd, start, at - start);
        PUMP_UNTIL(&bench, seen->room);
    }
    cr_expect(seen->cuts > 0, "not one send was cut: nothing was tested");
    cr_expect(seen->sent_failed == 0);
    seen->room = false;
    recall(&bench, seen->id); /* Without a send only the room is told. */
    PUMP_UNTIL(&bench, seen->room);
    struct iovec last = {big, 10};
    cr_assert(rx_send(bench.rx, seen->id, &last, 1, ++cookie) == 0);
    recall(&bench, seen->id);
    close_conn(&bench, place, true); /* Also while room is waited for. */
    peer_close(fd);
    bench_close(&bench);
}

/* The sends are longer than what the kernel's buffers hold, so the last of them stays in flight while the peer reads some. */
Test(rx_contract, what_the_peer_has_taken_is_seen_before_a_send_ends)
{
    static struct bench bench;
    uint32_t place = 0;
    bench_open(&bench, 4, 0);
    fill_big();
    int fd = client_open(&bench, &place);
    struct rx_id id = bench.seen[place].id;
    if (bench.rx->ops->acked == NULL) {
        cr_expect(rx_acked(bench.rx, id) == 0);
        close_conn(&bench, place, true);
        peer_close(fd);
        bench_close(&bench);
        return; /* A backend that tells by RX_SENT alone says so, which is all there is to test. */
    }
    for (uint32_t i = 0; i < RX_SENDS_MAX; i++) {
        struct iovec iov = {big, sizeof(big)};
        cr_assert(rx_send(bench.rx, id, &iov, 1, i + 1) == 0);
    }
    settle(&bench);
    uint64_t before = rx_acked(bench.rx, id);
    client_expect(&bench, fd, MIB);
    PUMP_UNTIL(&bench, rx_acked(bench.rx, id) > before);
    cr_expect(bench.seen[place].sent_ok < RX_SENDS_MAX, "every send has ended: nothing was tested");
    close_conn(&bench, place, true);
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_contract, an_abortive_close_drops_sends_and_resets_the_peer)
{
    static struct bench bench;
    uint32_t place = 0;
    bench_open(&bench, 4, 0);
    fill_big();
    int fd = client_open(&bench, &place);
    struct rx_id id = bench.seen[place].id;
    for (uint32_t i = 0; i < RX_SENDS_MAX; i++) {
        struct iovec iov = {big, sizeof(big)};
        cr_assert(rx_send(bench.rx, id, &iov, 1, i + 1) == 0);
    }
    settle(&bench);
    close_conn(&bench, place, true);
    cr_expect(bench.seen[place].sent_ok + bench.seen[place].sent_failed == RX_SENDS_MAX);
    cr_expect(bench.seen[place].sent_failed >= RX_SENDS_MAX - 1);
    ssize_t n = 1;
    for (uint64_t end = clock_monotonic_ns() + PATIENCE_NS; n > 0 || (n < 0 && errno == EAGAIN);) {
        cr_assert(clock_monotonic_ns() < end);
        n = peer_recv(fd, big, sizeof(big));
        turn(&bench, NS_PER_MS / 10);
    }
    cr_expect(n < 0 && errno == ECONNRESET, "%zd %s", n, strerror(errno));
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_contract, after_shutdown_the_peer_sees_eof_and_its_bytes_still_arrive)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t sent = 0;
    uint8_t buf[16];
    bench_open(&bench, 4, 0);
    fill_big();
    int fd = client_open(&bench, &place);
    struct iovec iov = {big, 5};
    cr_assert(rx_send(bench.rx, bench.seen[place].id, &iov, 1, 1) == 0);
    rx_shutdown(bench.rx, bench.seen[place].id);
    client_expect(&bench, fd, 5);
    settle(&bench);
    cr_expect(peer_recv(fd, buf, sizeof(buf)) == 0, "FIN came after the bytes");
    cr_expect(rx_send(bench.rx, bench.seen[place].id, &iov, 1, 2) == -EPIPE);
    client_send(&bench, fd, &sent, 50000, 5000);
    PUMP_UNTIL(&bench, bench.seen[place].bytes == 50000);
    close_conn(&bench, place, false);
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_contract, a_reset_by_the_peer_is_an_event_of_that_connection_only)
{
    static struct bench bench;
    uint32_t victim = 0;
    uint32_t other = 0;
    uint64_t sent = 0;
    bench_open(&bench, 8, 0);
    int fd = client_open(&bench, &victim);
    int fd2 = client_open(&bench, &other);
    client_send(&bench, fd, &sent, 100, 100);
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    peer_close(fd);
    PUMP_UNTIL(&bench, bench.seen[victim].reset);
    cr_expect(bench.seen[victim].reset_error == -ECONNRESET);
    close_conn(&bench, victim, false);
    sent = 0;
    client_send(&bench, fd2, &sent, 5000, 1000);
    PUMP_UNTIL(&bench, bench.seen[other].bytes == 5000);
    close_conn(&bench, other, false);
    peer_close(fd2);
    cr_expect(bench.rx->stats.buffers_free == bench.buffers);
    bench_close(&bench);
}

Test(rx_contract, connections_over_the_limit_are_closed_at_once_and_counted)
{
    static struct bench bench;
    uint32_t place = 0;
    int fds[CONNS_MAX];
    bench_open(&bench, 4, 0);
    for (uint32_t i = 0; i < CONNS_MAX; i++) {
        fds[i] = client_open(&bench, &place);
    }
    int extra = client_connect(&bench);
    PUMP_UNTIL(&bench, bench.rx->stats.conns_refused == 1);
    uint8_t byte;
    bool is_told =
        bench.rx->info.flow != RX_FLOW_WINDOW; /* af_xdp leaves a SYN unanswered: the peer tries again */
    ssize_t n = is_told ? -1 : 0;
    errno = EAGAIN;
    for (uint64_t end = clock_monotonic_ns() + PATIENCE_NS; n < 0 && errno == EAGAIN;) {
        cr_assert(clock_monotonic_ns() < end);
        turn(&bench, NS_PER_MS);
        n = peer_recv(extra, &byte, 1);
    }
    cr_expect(n == 0 || (n < 0 && errno == ECONNRESET));
    peer_close(extra);
    close_conn(&bench, 3, false);
    peer_close(fds[3]);
    fds[3] = client_open(&bench, &place);
    for (uint32_t i = 0; i < CONNS_MAX; i++) {
        peer_close(fds[i]);
    }
    bench_close(&bench);
}

Test(rx_contract, accept_stop_refuses_new_connections_and_keeps_old_ones)
{
    static struct bench bench;
    uint32_t place = 0;
    uint64_t sent = 0;
    bench_open(&bench, 4, 0);
    int fd = client_open(&bench, &place);
    rx_accept_stop(bench.rx);
    settle(&bench);
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_addr.s_addr = bench.address, .sin_port = htons(bench.port)};
    int late = client_socket();
    cr_assert(fcntl(late, F_SETFL, O_NONBLOCK) == 0);
    cr_expect(connect(late, (struct sockaddr *)&in, sizeof(in)) < 0);
    struct pollfd refused = {.fd = late, .events = POLLOUT};
    PUMP_UNTIL(&bench, poll(&refused, 1, 0) == 1); /* With af_xdp this thread is the one that refuses. */
    cr_expect((refused.revents & POLLERR) != 0);
    peer_close(late);
    client_send(&bench, fd, &sent, 5000, 1000);
    PUMP_UNTIL(&bench, bench.seen[place].bytes == 5000);
    close_conn(&bench, place, false);
    peer_close(fd);
    bench_close(&bench);
}

Test(rx_contract, a_port_in_use_is_refused_by_name_also_for_groups_of_workers)
{
    static struct bench bench;
    bench_open(&bench, 4, 0);
    for (uint32_t workers = 1; workers <= 2; workers++) {
        struct rx_options options = {.name = "second",
                                     .address_len = sizeof(struct sockaddr_in),
                                     .uring = &bench.uring,
                                     .arena = &bench.arena,
                                     .area_offset = bench.arena.staging_size,
                                     .area_size = arena_area_size(&bench.arena),
                                     .buffer_size = bench.buffer_size,
                                     .conns_max = 1,
                                     .workers = workers};
        struct sockaddr_in *in = (struct sockaddr_in *)&options.address;
        *in = (struct sockaddr_in){
            .sin_family = AF_INET, .sin_addr.s_addr = bench.address, .sin_port = htons(bench.port)};
        struct rx *rx = NULL;
        struct err err = {""};
        cr_expect(rx_open(&rx_socket_ops, &options, &rx, &err) == -EADDRINUSE);
        cr_expect(strstr(err.text, "listener second: cannot listen on [") == err.text, "%s", err.text);
        cr_expect(strstr(err.text, "another process listens there") != NULL, "%s", err.text);
    }
    bench_close(&bench);
}

/* Random connects, sends of random sizes, holds, releases, pauses, closes of both sides: no byte altered, every buffer
 * back at the end. The seed is printed and may be given by SEED. */
Test(rx_contract, random_life_of_many_connections_loses_nothing)
{
    static struct bench bench;
    struct rng rng;
    const char *given = getenv("SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : 20261130;
    rng_seed(&rng, seed);
    bench_open(&bench, 16, 6);
    int fds[CONNS_MAX];
    uint64_t offsets[CONNS_MAX];
    for (uint32_t i = 0; i < CONNS_MAX; i++) {
        uint32_t place = 0;
        fds[i] = client_open(&bench, &place);
        offsets[i] = 0;
    }
    for (uint32_t step = (uint32_t)atoi(from_env("RX_STEPS", "20000")); step > 0; step--) {
        uint32_t i = (uint32_t)rng_below(&rng, CONNS_MAX);
        uint8_t buf[20000];
        uint32_t len = (uint32_t)rng_below(&rng, rng_chance(&rng, 1, 2) ? 100 : sizeof(buf)) + 1;
        for (uint32_t j = 0; j < len; j++) {
            buf[j] = pattern(offsets[i] + j);
        }
        ssize_t sent = peer_send(fds[i], buf, len);
        offsets[i] += sent > 0 ? (uint64_t)sent : 0;
        if (rng_chance(&rng, 1, 10)) {
            rx_pause(bench.rx, bench.seen[i].id);
        } else if (rng_chance(&rng, 1, 5)) {
            rx_resume(bench.rx, bench.seen[i].id);
        }
        bench.hold = rng_chance(&rng, 1, 2);
        if (bench.held_count > 0 && rng_chance(&rng, 1, 3)) {
            uint32_t which = (uint32_t)rng_below(&rng, bench.held_count);
            slice_release(&bench.held[which]);
            bench.held[which] = bench.held[--bench.held_count];
        }
        if (bench.held_count > 200) {
            bench_release_all(&bench);
        }
        turn(&bench, 0);
    }
    bench.hold = false;
    bench_release_all(&bench);
    for (uint32_t i = 0; i < CONNS_MAX; i++) {
        rx_resume(bench.rx, bench.seen[i].id);
        PUMP_UNTIL(&bench, bench.seen[i].bytes == offsets[i]);
        cr_expect(bench.seen[i].mismatches == 0, "seed %lu connection %u", (unsigned long)seed, i);
        cr_expect(!bench.seen[i].place_broken, "seed %lu connection %u", (unsigned long)seed, i);
        close_conn(&bench, i, rng_chance(&rng, 1, 2));
        peer_close(fds[i]);
    }
    cr_expect(bench.rx->stats.buffers_free == bench.buffers);
    bench_close(&bench);
}
