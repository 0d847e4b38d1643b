/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The XDP program and the AF_XDP socket against the kernel. Goal: only TCP to our addresses and ports comes to us, nothing of it
 * reaches the kernel, and no frame is ever lost. Method: frames by BPF_PROG_TEST_RUN with their verdicts, then a veth pair in a
 * network namespace of the test's own (it goes with the process): frames are put in at one end and taken out at the other.
 */
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "nic/nic.h"
#include "ring/xsk.h"
#include "ring/xsk_load.h"

#define FRAMES 64U
#define PORT 9000U
#define PATIENCE_NS (5 * NS_PER_S)

static const uint8_t our_mac[6] = {2, 0, 0, 0, 0, 1};
static const uint8_t peer_mac[6] = {2, 0, 0, 0, 0, 2};
static const uint8_t our_ip4[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [13] = 0, [14] = 0, [15] = 1};
static const uint8_t our_ip6[16] = {0xfd, 0, [15] = 1};

static struct xsk_program *program;
static struct xsk xsk;
static uint8_t *area;
static int wire = -1; /* packet socket on the far end */

/* ---- a rig -------------------------------------------------------------------------------------------------------- */

static void run(const char *command)
{
    cr_assert(system(command) == 0, "%s", command);
}

static void rig_link(uint32_t mtu)
{
    char command[512];
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0) {
        cr_skip_test("host: no network namespaces (%s)", strerror(errno));
    }
    snprintf(command, sizeof(command),
             "ip link add v0 mtu %u address 02:00:00:00:00:01 type veth "
             "peer name v1 mtu %u address 02:00:00:00:00:02 && "
             "sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 && "
             "ip link set lo up && ip link set v0 up && ip link set v1 up",
             mtu, mtu);
    run(command);
}

static void rig_wire(void)
{
    struct sockaddr_ll at = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex("v1")};
    wire = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL));
    cr_assert(wire >= 0 && bind(wire, (struct sockaddr *)&at, sizeof(at)) == 0);
}

static void rig_program(bool want_multi)
{
    struct err err = {""};
    struct xsk_program_options options = {.interface = "v0", .queues = 4, .want_multi = want_multi};
    cr_assert(xsk_program_open(&options, &program, &err) == 0, "%s", err.text);
    cr_assert(!xsk_program_is_generic(program));
    cr_assert(xsk_program_listen(program, our_ip4, PORT) == 0);
    cr_assert(xsk_program_listen(program, our_ip6, PORT) == 0);
}

static struct xsk_options socket_options(bool want_multi)
{
    return (struct xsk_options){.interface = "v0",
                                .area = area,
                                .area_size = FRAMES * 4096ULL,
                                .want_multi = want_multi,
                                .patience_ms = 2000};
}

static void rig_socket(bool want_multi)
{
    struct err err = {""};
    if (area == NULL) {
        area = mmap(NULL, FRAMES * 4096ULL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        cr_assert(area != MAP_FAILED);
    }
    struct xsk_options options = socket_options(want_multi);
    cr_assert(xsk_open(&xsk, &options, &err) == 0, "%s", err.text);
    cr_assert(xsk_program_socket_set(program, 0, xsk.fd) == 0);
}

static void rig_open(void)
{
    rig_link(1500);
    rig_wire();
    rig_program(false);
    rig_socket(false);
}

static void rig_close(void)
{
    xsk_close(&xsk);
    xsk_program_close(program);
}

/* ---- frames ------------------------------------------------------------------------------------------------------- */

struct frame {
    uint8_t bytes[9000];
    uint32_t len;
};

static void put(struct frame *frame, const void *bytes, uint32_t len)
{
    memcpy(frame->bytes + frame->len, bytes, len);
    frame->len += len;
}

static void put_ethernet(struct frame *frame, const uint8_t *to, uint16_t type)
{
    uint8_t be[2];
    frame->len = 0;
    put(frame, to, 6);
    put(frame, peer_mac, 6);
    bytes_put_be16(be, type);
    put(frame, be, 2);
}

static void put_tag(struct frame *frame, uint16_t id, uint16_t type)
{
    uint8_t be[4];
    bytes_put_be16(be, id);
    bytes_put_be16(be + 2, type);
    put(frame, be, 4);
}

/* The header of an IPv4 packet with `words` of options, and what `fragment` says. */
static void put_ip4(struct frame *frame, uint8_t protocol, uint16_t fragment, uint8_t words, uint16_t payload)
{
    uint8_t ip[60] = {
        (uint8_t)(0x45 + words), 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1};
    memset(ip + 20, 1, words * 4U); /* no-operation options */
    bytes_put_be16(ip + 2, (uint16_t)(20 + words * 4U + payload));
    bytes_put_be16(ip + 6, fragment);
    put(frame, ip, 20 + words * 4U);
}

static void put_ip6(struct frame *frame, uint8_t next)
{
    uint8_t ip[40] = {0x60, 0, 0, 0, 0, 60, next, 64, 0xfd, [23] = 2};
    memcpy(ip + 24, our_ip6, 16);
    put(frame, ip, 40);
}

static void put_tcp(struct frame *frame, uint16_t port, uint32_t payload)
{
    uint8_t tcp[32] = {0xc0, 1, 0, 0, [12] = 0x80, [13] = 0x10, [20] = 1, [21] = 1, [22] = 8, [23] = 10};
    bytes_put_be16(tcp + 2, port);
    put(frame, tcp, sizeof(tcp));
    for (uint32_t i = 0; i < payload; i++) {
        frame->bytes[frame->len++] = (uint8_t)(i * 7);
    }
}

static void tcp4(struct frame *frame, uint16_t port, uint32_t payload)
{
    put_ethernet(frame, our_mac, ETH_P_IP);
    put_ip4(frame, IPPROTO_TCP, 0, 0, (uint16_t)(32 + payload));
    put_tcp(frame, port, payload);
}

static void inject(const struct frame *frame)
{
    cr_assert(send(wire, frame->bytes, frame->len, 0) == (ssize_t)frame->len, "%s", strerror(errno));
}

/* Parts that came within patience; gives up early only when `want` are there. */
static uint32_t collect(struct xsk_part *parts, uint32_t want)
{
    uint64_t until = clock_monotonic_ns() + PATIENCE_NS;
    uint32_t have = 0;
    while (have < want && clock_monotonic_ns() < until) {
        struct pollfd ready = {.fd = xsk.fd, .events = POLLIN};
        (void)poll(&ready, 1, 50); /* the loop looks for itself */
        have += xsk_receive(&xsk, parts + have, want - have);
    }
    return have;
}

static uint64_t reason_count(enum xsk_prog_reason reason)
{
    uint64_t counts[XSK_PROG_REASONS];
    cr_assert(xsk_program_reasons(program, counts) == 0);
    return counts[reason];
}

/* ---- the program's verdicts ------------------------------------------------------------------------------------------ */

static void verdict(const char *what, const struct frame *frame, uint32_t want, enum xsk_prog_reason reason)
{
    uint64_t before = reason_count(reason);
    LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = frame->bytes, .data_size_in = frame->len, .repeat = 1);
    int rc = bpf_prog_test_run_opts(xsk_program_fd(program), &opts);
    cr_assert(rc == 0, "%s: %s", what, strerror(-rc));
    cr_expect(opts.retval == want, "%s: verdict %u, not %u", what, opts.retval, want);
    cr_expect(reason_count(reason) == before + 1, "%s: not counted as %s", what,
              xsk_prog_reason_text(reason));
}

Test(xsk_prog, tcp_to_our_address_and_port_is_taken)
{
    struct frame frame;
    rig_open();
    tcp4(&frame, PORT, 0);
    verdict("plain IPv4", &frame, XDP_REDIRECT, XSK_PROG_TAKEN);
    put_ethernet(&frame, our_mac, ETH_P_IP);
    put_ip4(&frame, IPPROTO_TCP, 0x4000, 10, 32);
    put_tcp(&frame, PORT, 0);
    verdict("IPv4 with 40 bytes of options, don't fragment", &frame, XDP_REDIRECT, XSK_PROG_TAKEN);
    put_ethernet(&frame, our_mac, ETH_P_8021AD);
    put_tag(&frame, 7, ETH_P_8021Q);
    put_tag(&frame, 5, ETH_P_IP);
    put_ip4(&frame, IPPROTO_TCP, 0, 0, 32);
    put_tcp(&frame, PORT, 0);
    verdict("two VLAN tags", &frame, XDP_REDIRECT, XSK_PROG_TAKEN);
    put_ethernet(&frame, our_mac, ETH_P_IPV6);
    put_ip6(&frame, IPPROTO_TCP);
    put_tcp(&frame, PORT, 0);
    verdict("IPv6", &frame, XDP_REDIRECT, XSK_PROG_TAKEN);
    put_ethernet(&frame, our_mac, ETH_P_IPV6);
    put_ip6(&frame, IPPROTO_HOPOPTS);
    put(&frame, (uint8_t[16]){IPPROTO_DSTOPTS, 1, 1, 12}, 16);
    put(&frame, (uint8_t[8]){IPPROTO_TCP, 0, 1, 4}, 8);
    put_tcp(&frame, PORT, 0);
    verdict("IPv6 with two extension headers", &frame, XDP_REDIRECT, XSK_PROG_TAKEN);
    rig_close();
}

Test(xsk_prog, everything_else_is_the_kernels)
{
    struct frame frame;
    rig_open();
    tcp4(&frame, 22, 0);
    verdict("ssh", &frame, XDP_PASS, XSK_PROG_PASS_NOT_OURS);
    tcp4(&frame, 0, 0);
    verdict("port 0, which nobody listens on", &frame, XDP_PASS, XSK_PROG_PASS_NOT_OURS);
    tcp4(&frame, PORT, 0);
    frame.bytes[33] = 77; /* last byte of the destination address */
    verdict("our port at another address", &frame, XDP_PASS, XSK_PROG_PASS_NOT_OURS);
    put_ethernet(&frame, (const uint8_t[6]){255, 255, 255, 255, 255, 255}, ETH_P_ARP);
    put(&frame, (uint8_t[28]){0, 1, 8, 0, 6, 4, 0, 1}, 28);
    verdict("ARP", &frame, XDP_PASS, XSK_PROG_PASS_NOT_IP);
    put_ethernet(&frame, our_mac, ETH_P_IP);
    put_ip4(&frame, IPPROTO_ICMP, 0, 0, 32);
    put_tcp(&frame, PORT, 0);
    verdict("ICMP", &frame, XDP_PASS, XSK_PROG_PASS_NOT_TCP);
    put_ethernet(&frame, our_mac, ETH_P_IPV6);
    put_ip6(&frame, IPPROTO_ICMPV6);
    put_tcp(&frame, PORT, 0);
    verdict("neighbour discovery", &frame, XDP_PASS, XSK_PROG_PASS_NOT_TCP);
    put_ethernet(&frame, our_mac, ETH_P_IP);
    put_ip4(&frame, IPPROTO_TCP, 100, 0, 32);
    put_tcp(&frame, PORT, 0);
    verdict("a later fragment", &frame, XDP_PASS, XSK_PROG_PASS_NOT_OURS);
    put_ethernet(&frame, our_mac, ETH_P_IPV6);
    put_ip6(&frame, IPPROTO_FRAGMENT);
    put(&frame, (uint8_t[8]){IPPROTO_TCP, 0, 0, 0x08}, 8); /* what looks like ports is not */
    put_tcp(&frame, PORT, 0);
    verdict("a later IPv6 fragment", &frame, XDP_PASS, XSK_PROG_PASS_NOT_OURS);
    cr_assert(xsk_program_unlisten(program, our_ip4, PORT) == 0);
    tcp4(&frame, PORT, 0);
    verdict("no longer listening", &frame, XDP_PASS, XSK_PROG_PASS_NOT_OURS);
    rig_close();
}

Test(xsk_prog, what_is_ours_and_cannot_be_taken_is_dropped)
{
    struct frame frame;
    rig_open();
    put_ethernet(&frame, our_mac, ETH_P_IP);
    put_ip4(&frame, IPPROTO_TCP, 0x2000, 0, 32);
    put_tcp(&frame, PORT, 0);
    verdict("first fragment", &frame, XDP_DROP, XSK_PROG_FRAGMENT);
    put_ethernet(&frame, our_mac, ETH_P_IPV6);
    put_ip6(&frame, IPPROTO_FRAGMENT);
    put(&frame, (uint8_t[8]){IPPROTO_TCP, 0, 0, 0}, 8);
    put_tcp(&frame, PORT, 0);
    verdict("atomic IPv6 fragment", &frame, XDP_DROP, XSK_PROG_FRAGMENT);
    put_ethernet(&frame, our_mac, ETH_P_IPV6);
    put_ip6(&frame, IPPROTO_FRAGMENT);
    put(&frame, (uint8_t[8]){IPPROTO_TCP, 3, 0, 1}, 8); /* the reserved byte is no length */
    put_tcp(&frame, PORT, 0);
    verdict("first IPv6 fragment", &frame, XDP_DROP, XSK_PROG_FRAGMENT);
    put_ethernet(&frame, our_mac, ETH_P_IPV6);
    put_ip6(&frame, IPPROTO_DSTOPTS);
    for (int i = 0; i < 9; i++) {
        put(&frame, (uint8_t[8]){IPPROTO_DSTOPTS, 0, 1, 4}, 8);
    }
    put_tcp(&frame, PORT, 0);
    verdict("a chain of headers without end", &frame, XDP_DROP, XSK_PROG_UNCLEAR);
    put_ethernet(&frame, our_mac, ETH_P_IP);
    put_ip4(&frame, IPPROTO_TCP, 0, 10, 2);
    put(&frame, (uint8_t[2]){0, 1}, 2);
    verdict("cut before the ports", &frame, XDP_DROP, XSK_PROG_UNCLEAR);
    tcp4(&frame, PORT, 0);
    memcpy(frame.bytes, peer_mac, 6);
    verdict("another station's", &frame, XDP_DROP, XSK_PROG_FOREIGN_MAC);
    cr_assert(xsk_program_socket_clear(program, 0) == 0);
    tcp4(&frame, PORT, 0);
    verdict("no socket on the queue", &frame, XDP_DROP, XSK_PROG_NO_SOCKET);
    rig_close();
}

/* No frame cut short anywhere may make the program look beyond it (the verifier's promise) or take what is not ours. */
/* Bonding and administrators change it while the program runs, or while it is taken off. */
Test(xsk_prog, another_mac_of_the_interface_is_learned)
{
    static const uint8_t macs[2][6] = {{2, 0, 0, 0, 0, 9}, {2, 0, 0, 0, 0, 10}};
    struct frame frame;
    rig_open();
    tcp4(&frame, PORT, 0);
    run("ip link set v0 address 02:00:00:00:00:09");
    verdict("not known yet", &frame, XDP_REDIRECT, XSK_PROG_TAKEN);
    cr_assert(xsk_program_refresh(program) == 0);
    verdict("to the old one", &frame, XDP_DROP, XSK_PROG_FOREIGN_MAC);
    memcpy(frame.bytes, macs[0], 6);
    verdict("to the new one", &frame, XDP_REDIRECT, XSK_PROG_TAKEN);
    run("ip link set v0 address 02:00:00:00:00:0a");
    cr_assert(xsk_program_reattach(program) == 0);
    memcpy(frame.bytes, macs[1], 6);
    verdict("to the one it has when it is attached again", &frame, XDP_REDIRECT, XSK_PROG_TAKEN);
    rig_close();
}

Test(xsk_prog, a_frame_cut_anywhere_is_never_taken_without_its_ports)
{
    struct frame frame;
    rig_open();
    put_ethernet(&frame, our_mac, ETH_P_8021Q);
    put_tag(&frame, 5, ETH_P_IPV6);
    put_ip6(&frame, IPPROTO_HOPOPTS);
    put(&frame, (uint8_t[8]){IPPROTO_TCP, 0, 1, 4}, 8);
    uint32_t ports_end = frame.len + 4;
    put_tcp(&frame, PORT, 0);
    for (uint32_t len = frame.len; len >= 14; len--) { /* The kernel's test run takes no less. */
        LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = frame.bytes, .data_size_in = len, .repeat = 1);
        cr_assert(bpf_prog_test_run_opts(xsk_program_fd(program), &opts) == 0);
        cr_expect((opts.retval == XDP_REDIRECT) == (len >= ports_end), "%u bytes: verdict %u", len,
                  opts.retval);
    }
    rig_close();
}

Test(xsk_prog, an_address_is_ours_as_long_as_one_port_of_it_is)
{
    struct frame frame;
    rig_open();
    cr_expect_eq(xsk_program_listen(program, our_ip4, PORT), -EEXIST);
    cr_assert(xsk_program_listen(program, our_ip4, 9001) == 0);
    cr_assert(xsk_program_unlisten(program, our_ip4, PORT) == 0);
    put_ethernet(&frame, our_mac, ETH_P_IP);
    put_ip4(&frame, IPPROTO_TCP, 0, 0, 2);
    verdict("unclear, 9001 is left", &frame, XDP_DROP, XSK_PROG_UNCLEAR);
    cr_assert(xsk_program_unlisten(program, our_ip4, 9001) == 0);
    verdict("unclear, none is left", &frame, XDP_PASS, XSK_PROG_PASS_NOT_OURS);
    cr_expect_eq(xsk_program_unlisten(program, our_ip4, 9001), -ENOENT);
    rig_close();
}

/* ---- the socket on veth ----------------------------------------------------------------------------------------------- */

Test(xsk_veth, frames_arrive_whole_and_their_payload_is_dword_aligned)
{
    struct frame frame;
    struct xsk_part parts[8];
    rig_open();
    cr_expect_eq(xsk.mode, XSK_MODE_COPY, "veth has no zero-copy: the mode is read back");
    cr_expect(strstr(xsk.refused, "zero-copy: ") == xsk.refused, "%s", xsk.refused);
    tcp4(&frame, PORT, 1448);
    for (int i = 0; i < 8; i++) {
        inject(&frame);
    }
    cr_assert(collect(parts, 8) == 8);
    for (int i = 0; i < 8; i++) {
        cr_expect(parts[i].len == frame.len && memcmp(parts[i].addr, frame.bytes, frame.len) == 0);
        cr_expect_eq(((uintptr_t)parts[i].addr + 66) % 4, 0);
        cr_expect(!parts[i].more);
        xsk_give(&xsk, parts[i].frame);
    }
    cr_expect_eq(reason_count(XSK_PROG_TAKEN), 8);
    cr_expect_eq(xsk.frames.counts[XSK_FRAME_HELD], 0);
    rig_close();
}

/* What passes is seen by a packet socket on our end; what is ours is not, whether or not it was taken. */
Test(xsk_veth, the_kernel_sees_the_rest_and_nothing_of_ours)
{
    struct frame ours, other;
    uint8_t seen[2048];
    rig_open();
    struct sockaddr_ll at = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_ifindex = (int)if_nametoindex("v0")};
    int kernel = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_IP));
    cr_assert(kernel >= 0 && bind(kernel, (struct sockaddr *)&at, sizeof(at)) == 0);
    tcp4(&ours, PORT, 100);
    tcp4(&other, 22, 100);
    inject(&ours);
    cr_assert(xsk_program_socket_clear(program, 0) == 0);
    inject(&ours);
    inject(&other); /* Comes last, so that ours would have been seen before it. */
    struct pollfd ready = {.fd = kernel, .events = POLLIN};
    cr_assert(poll(&ready, 1, 5000) == 1);
    cr_assert(recv(kernel, seen, sizeof(seen), 0) == (ssize_t)other.len);
    cr_expect(memcmp(seen, other.bytes, other.len) == 0);
    cr_expect(recv(kernel, seen, sizeof(seen), MSG_DONTWAIT) < 0);
    cr_expect_eq(reason_count(XSK_PROG_TAKEN) + reason_count(XSK_PROG_NO_SOCKET), 2);
    close(kernel);
    rig_close();
}

/* A consumer that holds everything stops the flow; when it gives back, the flow goes on: no frame is lost on the way. */
Test(xsk_veth, a_stalled_reader_loses_no_frame_and_traffic_resumes)
{
    struct frame frame;
    struct xsk_part parts[FRAMES + 64];
    struct xdp_statistics stats;
    rig_open();
    tcp4(&frame, PORT, 500);
    uint32_t usable = FRAMES - xsk.tx_frames;
    for (int round = 0; round < 20; round++) {
        uint32_t got = 0;
        for (uint32_t i = 0; i < usable + 40; i++) {
            inject(&frame);
        }
        got = collect(parts, usable);
        cr_assert(got == usable, "round %d: %u of %u", round, got, usable);
        cr_expect_eq(xsk_receive(&xsk, parts + got, 64), 0);
        cr_expect_eq(xsk.frames.counts[XSK_FRAME_HELD], usable);
        for (uint32_t i = 0; i < got; i++) {
            xsk_give(&xsk, parts[(i * 7 + 3) % got].frame); /* any order; 7 is no divisor of their number */
        }
        xsk_refill(&xsk);
        xsk_frames_check(&xsk.frames);
        cr_expect_eq(xsk.frames.counts[XSK_FRAME_FILL], usable);
    }
    cr_assert(xsk_kernel_stats(&xsk, &stats) == 0);
    cr_expect_geq(stats.rx_dropped + stats.rx_fill_ring_empty_descs, 20 * 40);
    rig_close();
}

Test(xsk_veth, what_is_sent_arrives_and_every_frame_comes_back)
{
    struct frame frame;
    rig_open();
    tcp4(&frame, 1234, 900);
    memcpy(frame.bytes, peer_mac, 6);
    memcpy(frame.bytes + 6, our_mac, 6);
    uint32_t arrived = 0;
    for (uint32_t i = 0; i < 500; i++) {
        uint64_t until = clock_monotonic_ns() + PATIENCE_NS;
        uint8_t got[2048];
        uint32_t index;
        uint8_t *to = xsk_send_take(&xsk, &index);
        while (to == NULL && clock_monotonic_ns() < until) {
            (void)xsk_flush(&xsk, clock_monotonic_ns()); /* seen by the next take */
            to = xsk_send_take(&xsk, &index);
        }
        cr_assert(to != NULL, "no frame came back");
        bytes_put_be32(frame.bytes + 38, i); /* the sequence number */
        memcpy(to, frame.bytes, frame.len);
        xsk_send_put(&xsk, index, frame.len);
        cr_assert(xsk_flush(&xsk, clock_monotonic_ns()) <= XSK_LATER);
        struct pollfd ready = {.fd = wire, .events = POLLIN};
        cr_assert(poll(&ready, 1, 5000) == 1);
        ssize_t len = recv(wire, got, sizeof(got), 0);
        arrived += len == (ssize_t)frame.len && memcmp(got, frame.bytes, frame.len) == 0;
    }
    cr_expect_eq(arrived, 500);
    uint64_t until = clock_monotonic_ns() + PATIENCE_NS;
    while (xsk_unsent(&xsk) > 0 && clock_monotonic_ns() < until) {
        (void)xsk_flush(&xsk, clock_monotonic_ns()); /* the loop's condition is what counts */
    }
    cr_expect_eq(xsk_unsent(&xsk), 0);
    cr_expect_eq(xsk.stats.completed, 500);
    cr_expect(!xsk_is_stuck(&xsk, clock_monotonic_ns() + PATIENCE_NS, NS_PER_S));
    rig_close();
}

Test(xsk_veth, a_frame_begun_and_dropped_is_free_again)
{
    uint32_t index;
    rig_open();
    uint32_t before = xsk.frames.counts[XSK_FRAME_FREE];
    cr_assert(xsk_send_take(&xsk, &index) != NULL);
    cr_expect_eq(xsk.frames.counts[XSK_FRAME_FREE], before - 1);
    xsk_send_cancel(&xsk, index);
    cr_expect_eq(xsk.frames.counts[XSK_FRAME_FREE], before);
    rig_close();
}

Test(xsk_veth, a_queue_is_one_sockets_and_is_free_again_after_it)
{
    struct err err = {""};
    struct xsk second;
    rig_open();
    struct xsk_options options = socket_options(false);
    options.area = mmap(NULL, options.area_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    options.patience_ms = 0;
    cr_expect_eq(xsk_open(&second, &options, &err), -EBUSY);
    cr_expect(strstr(err.text, "AF_XDP on v0 queue 0: the queue has an AF_XDP socket already") != NULL, "%s",
              err.text);
    options.mode = XSK_MODE_ZERO_COPY;
    options.queue = 0;
    for (int i = 0; i < 5; i++) { /* Teardown is asynchronous: opening at once is what has to work. */
        xsk_close(&xsk);
        rig_socket(false);
    }
    cr_expect_neq(xsk_open(&second, &options, &err), 0, "veth has no zero-copy");
    options.queue = 99;
    options.mode = XSK_MODE_COPY;
    cr_expect_eq(xsk_open(&second, &options, &err), -EINVAL);
    cr_expect(strstr(err.text, "the queue does not exist") != NULL, "%s", err.text);
    rig_close();
}

/* Where it copies, the kernel takes 32 frames a call. Left to the next wake-up, what is beyond waits for a millisecond. */
Test(xsk_veth, one_flush_sends_more_than_the_kernel_takes_at_once)
{
    struct frame frame;
    struct err err = {""};
    uint32_t arrived = 0;
    rig_open();
    xsk_close(&xsk);
    struct xsk_options options = socket_options(false);
    options.tx_frames = 40;
    cr_assert(xsk_open(&xsk, &options, &err) == 0, "%s", err.text);
    tcp4(&frame, 1234, 100);
    for (uint32_t i = 0; i < options.tx_frames; i++) {
        uint32_t index;
        uint8_t *to = xsk_send_take(&xsk, &index);
        cr_assert(to != NULL);
        memcpy(to, frame.bytes, frame.len);
        xsk_send_put(&xsk, index, frame.len);
    }
    cr_expect_eq(xsk_flush(&xsk, 1), XSK_FINE);
    for (uint32_t i = 0; i < options.tx_frames; i++) {
        uint8_t got[2048];
        struct pollfd ready = {.fd = wire, .events = POLLIN};
        cr_assert(poll(&ready, 1, 5000) == 1, "%u came", arrived);
        arrived += recv(wire, got, sizeof(got), 0) == (ssize_t)frame.len;
    }
    cr_expect_eq(arrived, options.tx_frames);
    rig_close();
}

/* The interface goes with everything on it and comes back under its name. Frames that somebody holds stay held through it, what lay in
 * rings is free again, and both program and socket work on. */
Test(xsk_veth, a_lost_interface_is_seen_and_socket_and_program_are_renewed_over_the_same_frames)
{
    struct frame frame;
    struct xsk_part held, part;
    struct err err = {""};
    uint32_t index;
    rig_open();
    tcp4(&frame, PORT, 1000);
    inject(&frame);
    cr_assert(collect(&held, 1) == 1);
    cr_expect_eq(xsk_health(&xsk), XSK_FINE);
    cr_expect(xsk_program_is_attached(program));
    run("ip link del v0");
    cr_expect_eq(xsk_health(&xsk), XSK_LOST);
    cr_expect(!xsk_program_is_attached(program));
    cr_assert(xsk_send_take(&xsk, &index) != NULL);
    xsk_send_put(&xsk, index, 100);
    cr_expect_eq(xsk_flush(&xsk, 1), XSK_LOST);
    xsk_drop(&xsk);
    cr_expect_eq(xsk.frames.counts[XSK_FRAME_HELD], 1);
    cr_expect_eq(xsk.frames.counts[XSK_FRAME_FREE] + xsk.frames.counts[XSK_FRAME_GONE], FRAMES - 1);
    cr_expect_eq(xsk.stats.tx_lost, 1);
    struct xsk_options options = socket_options(false);
    cr_expect_neq(xsk_renew(&xsk, &options, &err), 0, "there is no interface");
    cr_expect_eq(xsk.frames.counts[XSK_FRAME_GONE], FRAMES - 1,
                 "none is used before the queue was bound again");
    cr_expect_eq(xsk_program_reattach(program), -ENODEV);
    close(wire);
    rig_link(1500); /* in a namespace of its own: the process has moved there, and so does the name */
    rig_wire();
    cr_assert(xsk_program_reattach(program) == 0);
    cr_expect(xsk_program_is_attached(program));
    cr_assert(xsk_renew(&xsk, &options, &err) == 0, "%s", err.text);
    cr_expect_eq(xsk.frames.counts[XSK_FRAME_GONE], 0);
    cr_assert(xsk_program_socket_set(program, 0, xsk.fd) == 0);
    inject(&frame);
    cr_assert(collect(&part, 1) == 1);
    cr_expect_neq(part.frame, held.frame);
    cr_expect(memcmp(held.addr, frame.bytes, frame.len) == 0, "what is held is not written over");
    /* A socket that was just made is not stuck, however late it is. */
    cr_assert(xsk_send_take(&xsk, &index) != NULL);
    xsk_send_put(&xsk, index, 100);
    cr_expect(!xsk_is_stuck(&xsk, 3600 * NS_PER_S, 10 * NS_PER_S));
    cr_expect_neq(xsk_flush(&xsk, 3600 * NS_PER_S), XSK_LOST);
    cr_expect(!xsk_is_stuck(&xsk, 3600 * NS_PER_S, 10 * NS_PER_S));
    xsk_give(&xsk, part.frame);
    xsk_give(&xsk, held.frame);
    xsk_frames_check(&xsk.frames);
    rig_close();
}

/* Two queues over one UMEM: neither takes all frames, and both are dropped and renewed together. */
Test(xsk_veth, sockets_of_two_queues_share_the_frames)
{
    struct err err = {""};
    struct xsk second;
    rig_link(1500);
    run("ip link del v0 && ip link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1 numrxqueues 2 "
        "numtxqueues 2 && ip link set v0 up && ip link set v1 up");
    rig_wire();
    rig_program(false);
    area = mmap(NULL, FRAMES * 4096ULL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct xsk_options options = socket_options(false);
    options.sockets = 2;
    cr_assert(xsk_open(&xsk, &options, &err) == 0, "%s", err.text);
    struct xsk_options other = options;
    other.queue = 1;
    other.place = 1;
    other.base = &xsk;
    cr_assert(xsk_open(&second, &other, &err) == 0, "%s", err.text);
    for (int round = 0; round < 2; round++) {
        cr_expect_eq(xsk.filled, (FRAMES - xsk.tx_frames) / 2);
        cr_expect_eq(second.filled, xsk.filled);
        cr_expect_eq(xsk.frames.counts[XSK_FRAME_FILL], xsk.filled + second.filled);
        cr_assert(xsk_program_socket_set(program, 0, xsk.fd) == 0);
        cr_assert(xsk_program_socket_set(program, 1, second.fd) == 0);
        xsk_frames_check(&xsk.frames);
        uint32_t of_second = second.filled, filled = xsk.filled + second.filled;
        xsk_drop(&second);
        xsk_drop(&xsk);
        cr_expect_eq(xsk.frames.counts[XSK_FRAME_GONE], filled);
        cr_expect_eq(xsk.frames.counts[XSK_FRAME_FREE], FRAMES - filled);
        int rc = -EBUSY; /* Teardown is asynchronous, and a renewal does not wait for it. */
        for (uint64_t until = clock_monotonic_ns() + PATIENCE_NS;
             rc == -EBUSY && clock_monotonic_ns() < until;) {
            rc = xsk_renew(&xsk, &options, &err);
        }
        cr_assert(rc == 0, "%s", err.text);
        cr_expect_eq(xsk.frames.counts[XSK_FRAME_GONE], of_second,
                     "the other queue may still write into them");
        other.patience_ms = 2000;
        cr_assert(xsk_renew(&second, &other, &err) == 0, "%s", err.text);
        cr_expect_eq(xsk.frames.counts[XSK_FRAME_GONE], 0);
    }
    xsk_close(&second);
    rig_close();
}

Test(xsk_veth, a_link_that_goes_down_pauses_and_comes_back)
{
    struct frame frame;
    struct xsk_part part;
    uint32_t index;
    rig_open();
    run("ip link set v0 down");
    uint8_t *to = xsk_send_take(&xsk, &index);
    cr_assert(to != NULL);
    tcp4(&frame, 1234, 100);
    memcpy(to, frame.bytes, frame.len);
    xsk_send_put(&xsk, index, frame.len);
    cr_expect_eq(xsk_flush(&xsk, 1), XSK_PAUSED);
    cr_expect_eq(xsk.stats.link_resets, 1);
    cr_expect_eq(xsk_flush(&xsk, 2), XSK_PAUSED);
    cr_expect_eq(xsk.stats.link_resets, 1, "one outage, however often it is met");
    run("ip link set v0 up");
    uint64_t until = clock_monotonic_ns() + PATIENCE_NS;
    while (xsk_unsent(&xsk) > 0 && clock_monotonic_ns() < until) {
        (void)xsk_flush(&xsk, clock_monotonic_ns()); /* the loop's condition is what counts */
    }
    cr_expect_eq(xsk_unsent(&xsk), 0);
    tcp4(&frame, PORT, 100);
    inject(&frame);
    cr_assert(collect(&part, 1) == 1, "receives again");
    xsk_give(&xsk, part.frame);
    run("ip link set v0 down");
    to = xsk_send_take(&xsk, &index);
    cr_assert(to != NULL);
    memcpy(to, frame.bytes, frame.len);
    xsk_send_put(&xsk, index, frame.len);
    cr_expect_eq(xsk_flush(&xsk, 3), XSK_PAUSED);
    cr_expect_eq(xsk.stats.link_resets, 2, "another one");
    rig_close();
}

/* ---- attaching -------------------------------------------------------------------------------------------------------- */

static bool is_attached(void)
{
    static struct nic_state state;
    struct err err = {""};
    cr_assert(nic_read("v0", &state, &err) == 0, "%s", err.text);
    nic_state_free(&state);
    return state.xdp_attached;
}

Test(xsk_attach, a_dead_process_leaves_no_program_behind)
{
    int ready[2];
    char byte;
    rig_link(1500);
    cr_assert(pipe2(ready, O_CLOEXEC) == 0);
    pid_t child = fork();
    if (child == 0) {
        rig_program(false);
        if (write(ready[1], "x", 1) == 1) {
            (void)pause(); /* until it is killed */
        }
        _exit(1);
    }
    cr_assert(read(ready[0], &byte, 1) == 1);
    cr_expect(is_attached());
    cr_assert(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    uint64_t until = clock_monotonic_ns() + PATIENCE_NS;
    while (is_attached() && clock_monotonic_ns() < until) {
        (void)sched_yield(); /* the kernel frees the link after the last descriptor has gone */
    }
    cr_expect(!is_attached());
}

Test(xsk_attach, a_second_program_is_refused_by_name)
{
    struct err err = {""};
    struct xsk_program *second;
    struct xsk_program_options options = {.interface = "v0", .queues = 1};
    rig_link(1500);
    rig_program(false);
    cr_expect_eq(xsk_program_open(&options, &second, &err), -EBUSY);
    cr_expect(strstr(err.text, "another XDP program is attached") != NULL, "%s", err.text);
    xsk_program_close(program);
    cr_expect(!is_attached());
    options.interface = "nosuch";
    cr_expect_eq(xsk_program_open(&options, &second, &err), -ENODEV);
}

Test(xsk_attach, a_veth_whose_peer_has_more_queues_says_so_in_the_kernels_words)
{
    struct err err = {""};
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0) {
        cr_skip_test("host: no network namespaces (%s)", strerror(errno));
    }
    run("ip link add v0 numrxqueues 1 numtxqueues 1 type veth peer name v1 numrxqueues 2 numtxqueues 2 && "
        "ip link set v0 up && ip link set v1 up");
    struct xsk_program_options options = {.interface = "v0", .queues = 1};
    cr_expect_eq(xsk_program_open(&options, &program, &err), -ENOSPC);
    cr_expect(strstr(err.text, "on veth the peer has more transmit queues") != NULL, "%s", err.text);
    cr_expect(strstr(err.text, "(the kernel says: ") != NULL, "%s", err.text);
    struct nic_state *state = calloc(1, sizeof(*state));
    cr_assert(state != NULL && nic_read("v0", state, &err) == 0);
    cr_expect(state->xdp_reported || state->xdp_features == 0);
    cr_expect_not(state->xdp_attached, "asking left nothing behind");
    if (state->xdp_reported) {
        cr_expect_eq(state->xdp_features, 0, "so that it is known before");
    }
    nic_state_free(state);
    free(state);
}

Test(xsk_attach, jumbo_frames_need_frames_of_several_buffers)
{
    struct err err = {""};
    struct frame frame;
    struct xsk_part parts[2];
    struct xsk_program_options options = {.interface = "v0", .queues = 1};
    rig_link(9000);
    rig_wire();
    cr_expect_eq(xsk_program_open(&options, &program, &err), -ERANGE);
    cr_expect(strstr(err.text, "MTU is too large") != NULL, "%s", err.text);
    rig_program(true);
    rig_socket(true);
    tcp4(&frame, PORT, 6000);
    inject(&frame);
    cr_assert(collect(parts, 2) == 2);
    cr_expect(parts[0].more && !parts[1].more);
    cr_expect_eq(parts[0].len + parts[1].len, frame.len);
    cr_expect(memcmp(parts[0].addr, frame.bytes, parts[0].len) == 0);
    cr_expect(memcmp(parts[1].addr, frame.bytes + parts[0].len, parts[1].len) == 0);
    xsk_give(&xsk, parts[0].frame);
    xsk_give(&xsk, parts[1].frame);
    rig_close();
}

Test(xsk_attach, a_driver_without_xdp_is_attached_behind_only_if_that_was_allowed)
{
    struct err err = {""};
    struct xsk_program_options options = {.interface = "lo", .queues = 1};
    rig_link(1500);
    cr_expect_eq(xsk_program_open(&options, &program, &err), -EOPNOTSUPP);
    options.allow_generic = true;
    cr_assert(xsk_program_open(&options, &program, &err) == 0, "%s", err.text);
    cr_expect(xsk_program_is_generic(program));
    xsk_program_close(program);
}
