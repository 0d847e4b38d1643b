/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xsk_rate: the two ends of a measurement of frames per second (tests/bench/run-xdp).
 *
 *   xsk_rate send INTERFACE SECONDS BYTES MAC   puts TCP frames for 10.79.0.1:9000 out of an interface as fast as one CPU can: live
 *                                               frames of BPF_PROG_TEST_RUN (Linux 5.18), so no packet is ever made of them
 *   xsk_rate drop INTERFACE SECONDS             receives them with the XDP program and AF_XDP socket of the server, and gives each
 *                                               frame back at once; prints frames per second. It begins to count with the first frame
 *   xsk_rate verdict INTERFACE [OUT]            attaches a program that drops, or redirects to OUT, what xdp-bench's do, for where that
 *                                               does not load; prints "ready" and lasts until standard input ends
 *
 * A measuring tool; it knows nothing of the TCP engine.
 */
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <linux/bpf.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "ring/xsk.h"
#include "ring/xsk_load.h"

#define PORT 9000U
#define FRAMES 4096U
#define CHUNK 4096ULL
#define BATCH 64U
#define SEND_RUN (1U << 17) /* frames of one system call */

static const uint8_t server[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [13] = 79, [14] = 0, [15] = 1};

static int failed(const char *what, int rc)
{
    fprintf(stderr, "xsk_rate: %s: %s\n", what, strerror(-rc));
    return 1;
}

static void frame_write(uint8_t *frame, uint32_t size, const char *mac)
{
    memset(frame, 0, size);
    for (uint32_t i = 0; i < 6; i++) {
        frame[i] = (uint8_t)strtoul(mac + (size_t)i * 3, NULL, 16);
    }
    frame[6] = 2;
    bytes_put_be16(frame + 12, 0x0800);
    frame[14] = 0x45;
    bytes_put_be16(frame + 16, (uint16_t)(size - 14));
    frame[22] = 64;
    frame[23] = IPPROTO_TCP;
    memcpy(frame + 26, (uint8_t[4]){10, 79, 0, 2}, 4);
    memcpy(frame + 30, server + 12, 4);
    bytes_put_be16(frame + 34, 1234);
    bytes_put_be16(frame + 36, PORT);
    frame[46] = 0x50;
}

/* A program of four instructions: out of this interface. */
static int redirect_load(uint32_t interface)
{
    struct bpf_insn code[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_1, .imm = (int)interface},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_2},
        {.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect},
        {.code = BPF_JMP | BPF_EXIT},
    };
    return bpf_prog_load(BPF_PROG_TYPE_XDP, "xsk_rate", "GPL", code, 4, NULL);
}

static int run_send(const char *name, uint64_t seconds, uint32_t size, const char *mac)
{
    static uint8_t frame[4096];
    int program = redirect_load(if_nametoindex(name));
    if (program < 0) {
        return failed("program", program);
    }
    if (size < 60 || size > 3000) {
        return failed("BYTES is 60 to 3000", -34);
    }
    frame_write(frame, size, mac);
    uint64_t until = clock_monotonic_ns() + seconds * NS_PER_S;
    while (clock_monotonic_ns() < until) {
        LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = frame, .data_size_in = size, .repeat = SEND_RUN,
                    .flags = BPF_F_TEST_XDP_LIVE_FRAMES, .batch_size = BATCH);
        int rc = bpf_prog_test_run_opts(program, &options);
        if (rc < 0) {
            return failed("sending", rc);
        }
    }
    return 0;
}

static uint64_t receive_all(struct xsk *xsk, uint64_t seconds, uint64_t *took_ns)
{
    struct xsk_part parts[BATCH];
    uint64_t start = 0;
    uint64_t now = clock_monotonic_ns();
    uint64_t give_up = now + 4 * seconds * NS_PER_S;
    uint64_t count = 0;
    while (now < give_up && (start == 0 || now - start < seconds * NS_PER_S)) {
        uint32_t got = xsk_receive(xsk, parts, BATCH);
        for (uint32_t i = 0; i < got; i++) {
            xsk_give(xsk, parts[i].frame);
        }
        xsk_refill(xsk);
        if (got == 0) {
            struct pollfd ready = {.fd = xsk->fd, .events = POLLIN};
            (void)poll(&ready, 1, 10); /* the loop looks for itself */
        }
        now = clock_monotonic_ns();
        start = start == 0 && got > 0 ? now : start;
        count += got;
    }
    *took_ns = start == 0 ? 0 : now - start;
    return count;
}

static int run_drop(const char *name, uint64_t seconds)
{
    static struct xsk xsk;
    struct xsk_program *program;
    struct err err = {""};
    uint8_t *area =
        mmap(NULL, FRAMES * CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct xsk_program_options load = {.interface = name, .queues = 1};
    struct xsk_options options = {
        .interface = name, .area = area, .area_size = FRAMES * CHUNK, .patience_ms = 2000};
    if (area == MAP_FAILED || xsk_program_open(&load, &program, &err) < 0 ||
        xsk_open(&xsk, &options, &err) < 0 || xsk_program_listen(program, server, PORT) < 0 ||
        xsk_program_socket_set(program, 0, xsk.fd) < 0) {
        fprintf(stderr, "xsk_rate: %s\n", err.text);
        return 1;
    }
    printf("ready %s\n", xsk_mode_text(xsk.mode));
    fflush(stdout);
    uint64_t took_ns;
    uint64_t count = receive_all(&xsk, seconds, &took_ns);
    printf("%.0f\n", took_ns == 0 ? 0.0 : (double)count * 1e9 / (double)took_ns);
    xsk_close(&xsk);
    xsk_program_close(program);
    return count == 0;
}

static int run_verdict(const char *name, const char *out)
{
    struct bpf_insn drop[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = XDP_DROP},
        {.code = BPF_JMP | BPF_EXIT},
    };
    int program = out != NULL ? redirect_load(if_nametoindex(out))
                              : bpf_prog_load(BPF_PROG_TYPE_XDP, "xsk_rate", "GPL", drop, 2, NULL);
    int link = program < 0 ? program : bpf_link_create(program, (int)if_nametoindex(name), BPF_XDP, NULL);
    if (link < 0) {
        return failed("attaching", link);
    }
    printf("ready\n");
    fflush(stdout);
    (void)getchar(); /* The end is what is waited for. */
    return 0;
}

int main(int argc, char **argv)
{
    if ((argc == 3 || argc == 4) && strcmp(argv[1], "verdict") == 0) {
        return run_verdict(argv[2], argv[3]); /* argv ends with NULL */
    }
    if (argc == 6 && strcmp(argv[1], "send") == 0) {
        return run_send(argv[2], strtoull(argv[3], NULL, 10), (uint32_t)strtoul(argv[4], NULL, 10), argv[5]);
    }
    if (argc == 4 && strcmp(argv[1], "drop") == 0) {
        return run_drop(argv[2], strtoull(argv[3], NULL, 10));
    }
    fprintf(stderr, "usage: xsk_rate send INTERFACE SECONDS BYTES MAC | drop INTERFACE SECONDS | verdict "
                    "INTERFACE [OUT]\n");
    return 2;
}
