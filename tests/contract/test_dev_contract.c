/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of storage/dev.h, run against every device: a regular file and a loop block device through io_uring, the
 * memory device, the fault filter over memory and over a file, and an NVMe namespace by passthrough where DEV_NVME names one of 8 MiB
 * whose contents may go (the VM lane has some). Each case is written once.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/rng.h"
#include "storage/dev.h"

#define DEVICE_SIZE (8 * MIB)
#define TIMEOUT_NS (60 * NS_PER_S)

enum kind { KIND_FILE, KIND_LOOP, KIND_MEM, KIND_FAULT_MEM, KIND_FAULT_FILE, KIND_NVME, KINDS };
static const char *const kind_names[KINDS] = {"file", "loop", "mem", "fault over mem", "fault over file",
                                              "nvme"};

struct bench {
    enum kind kind;
    char path[128];
    int loop_fd;
    struct uring ring;
    struct arena arena;
    struct dev *dev;
    struct dev_queue *queue;
};

/* ---- scenes -------------------------------------------------------------------------------------------------------- */

static bool loop_attach(struct bench *bench)
{
    char loop_path[64];
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) {
        return false;
    }
    int number = ioctl(control, LOOP_CTL_GET_FREE);
    close(control);
    snprintf(loop_path, sizeof(loop_path), "/dev/loop%d", number);
    int backing = open(bench->path, O_RDWR | O_CLOEXEC);
    bench->loop_fd = number < 0 ? -1 : open(loop_path, O_RDWR | O_CLOEXEC);
    bool works = backing >= 0 && bench->loop_fd >= 0 && ioctl(bench->loop_fd, LOOP_SET_FD, backing) == 0;
    if (backing >= 0) {
        close(backing);
    }
    snprintf(bench->path, sizeof(bench->path), "%s", loop_path);
    return works;
}

static struct dev *file_device(const char *path)
{
    struct err err = {""};
    struct dev *dev = NULL;
    struct dev_uring_options options = {.path = path,
                                        .is_exclusive = strncmp(path, "/dev/", 5) != 0,
                                        .create = true,
                                        .want_direct = true,
                                        .create_size = DEVICE_SIZE};
    cr_assert_eq(dev_uring_open(&options, &dev, &err), 0, "%s", err.text);
    return dev;
}

static struct dev *nvme_device(void)
{
    struct err err = {""};
    struct dev *dev = NULL;
    struct dev_uring_options options = {.path = getenv("DEV_NVME"), .is_exclusive = true};
    if (options.path == NULL) {
        cr_skip_test("host: no NVMe namespace to write to (DEV_NVME is not set; the VM lane has one)");
    }
    cr_assert_eq(dev_open(&options, &dev, &err), 0, "%s", err.text);
    cr_assert_str_eq(dev->info.type, "nvme");
    return dev;
}

static struct dev *memory_device(void)
{
    struct dev *dev = NULL;
    struct dev_mem_options options = {.size = DEVICE_SIZE,
                                      .seed = 1,
                                      .lba_size = 512,
                                      .dma_alignment = 4,
                                      .fragments_max = 64,
                                      .bytes_max = 1U << 30,
                                      .delay_polls_max = 7};
    cr_assert_eq(dev_mem_open(&options, &dev), 0);
    return dev;
}

static void bench_device(struct bench *bench)
{
    struct dev *inner = NULL;
    switch (bench->kind) {
    case KIND_FILE:
        bench->dev = file_device(bench->path);
        break;
    case KIND_LOOP: {
        struct dev *file = file_device(bench->path);
        dev_close(file);
        if (!loop_attach(bench)) {
            cr_skip_test("no loop device can be set up here (needs root and /dev/loop-control)");
        }
        bench->dev = file_device(bench->path);
        break;
    }
    case KIND_MEM:
        bench->dev = memory_device();
        break;
    case KIND_FAULT_MEM:
    case KIND_FAULT_FILE:
        inner = bench->kind == KIND_FAULT_MEM ? memory_device() : file_device(bench->path);
        cr_assert_eq(dev_fault_open(inner, 1, &bench->dev), 0);
        break;
    case KIND_NVME:
        bench->dev = nvme_device();
        break;
    case KINDS:
        cr_assert_fail("no such kind");
    }
}

static void bench_open(struct bench *bench, enum kind kind, uint32_t depth)
{
    struct err err = {""};
    memset(bench, 0, sizeof(*bench));
    bench->kind = kind;
    bench->loop_fd = -1;
    mkdir("build/scratch", 0700);
    snprintf(bench->path, sizeof(bench->path), "build/scratch/dev-%d.img", (int)getpid());
    unlink(bench->path);
    struct uring_options ring = {.sq_entries = 64, .cq_entries = 256, .buffers_max = 1, .files_max = 4};
    cr_assert_eq(uring_open(&bench->ring, &ring, &err), 0, "%s", err.text);
    struct arena_options arena = {.staging_size = 16 * MIB, .numa_node = -1};
    cr_assert_eq(arena_open(&bench->arena, &arena, &err), 0, "%s", err.text);
    cr_assert_eq(uring_buffer_register(&bench->ring, 0, bench->arena.base, bench->arena.size, &err), 0, "%s",
                 err.text);
    bench_device(bench);
    cr_assert_eq(dev_queue_open(bench->dev, &bench->ring, depth, &bench->queue, &err), 0, "%s", err.text);
}

static void bench_close(struct bench *bench)
{
    char path[128];
    dev_queue_close(bench->queue);
    dev_close(bench->dev);
    if (bench->loop_fd >= 0) {
        ioctl(bench->loop_fd, LOOP_CLR_FD);
        close(bench->loop_fd);
    }
    uring_close(&bench->ring);
    arena_close(&bench->arena);
    snprintf(path, sizeof(path), "build/scratch/dev-%d.img", (int)getpid());
    unlink(path);
}

static void io_fill(struct dev_io *io, enum dev_op op, uint64_t offset, struct iovec *iov, uint32_t count)
{
    memset(io, 0, sizeof(*io));
    io->op = op;
    io->buf_index = -1;
    io->offset = offset;
    io->iov = iov;
    io->iov_count = count;
    for (uint32_t i = 0; i < count; i++) {
        io->len += iov[i].iov_len;
    }
}

/* Turns ring and queue until `count` ios are back. */
static void wait_for(struct bench *bench, uint32_t count, struct dev_io **back)
{
    uint64_t deadline_ns = clock_monotonic_ns() + TIMEOUT_NS;
    uint32_t got = 0;
    while (got < count) {
        uint64_t now_ns = clock_monotonic_ns();
        cr_assert_lt(now_ns, deadline_ns, "%s: an io never came back", kind_names[bench->kind]);
        uring_submit_and_wait(&bench->ring, 100 * NS_PER_US);
        uring_reap(&bench->ring, UINT32_MAX);
        got += dev_poll(bench->queue, now_ns, back + got, count - got);
    }
}

static void fill(uint8_t *bytes, uint64_t len, uint64_t seed)
{
    struct rng rng;
    rng_seed(&rng, seed);
    for (uint64_t i = 0; i < len; i++) {
        bytes[i] = (uint8_t)rng_u64(&rng);
    }
}

/* ---- the cases ----------------------------------------------------------------------------------------------------- */

static void case_written_bytes_are_read_back(struct bench *bench)
{
    uint8_t *memory = bench->arena.base;
    struct iovec iov = {.iov_base = memory, .iov_len = MIB};
    struct dev_io io;
    fill(memory, MIB, 1);
    io_fill(&io, DEV_WRITE, 64 * KIB, &iov, 1);
    io.buf_index = 0;
    cr_assert_eq(dev_run(bench->queue, &io), 0);
    iov = (struct iovec){.iov_base = memory + 2 * MIB, .iov_len = MIB};
    io_fill(&io, DEV_READ, 64 * KIB, &iov, 1);
    cr_assert_eq(dev_run(bench->queue, &io), 0);
    cr_assert_eq(memcmp(memory, memory + 2 * MIB, MIB), 0);
    io = (struct dev_io){.op = DEV_FLUSH, .buf_index = -1};
    cr_assert_eq(dev_run(bench->queue, &io), 0);
}

static void case_fragments_land_in_order(struct bench *bench)
{
    uint8_t *memory = bench->arena.base;
    struct iovec iov[16];
    struct dev_io io;
    uint64_t place = 0;
    uint32_t step = bench->dev->info.lba_size;
    fill(memory, 2 * MIB, 2);
    for (int32_t buf_index = -1; buf_index <= 0; buf_index++) {
        for (uint32_t i = 0; i < ARRAY_COUNT(iov); i++) {
            place = (uint64_t)(15 - i) * 64 * KIB;
            iov[i] = (struct iovec){.iov_base = memory + place, .iov_len = (1 + i % 3) * (uint64_t)step};
        }
        io_fill(&io, DEV_WRITE, 0, iov, ARRAY_COUNT(iov));
        io.buf_index = buf_index;
        uint64_t len = io.len;
        cr_assert_eq(dev_run(bench->queue, &io), 0);
        struct iovec whole = {.iov_base = memory + 4 * MIB, .iov_len = len};
        io_fill(&io, DEV_READ, 0, &whole, 1);
        cr_assert_eq(dev_run(bench->queue, &io), 0);
        const uint8_t *at = memory + 4 * MIB;
        for (uint32_t i = 0; i < ARRAY_COUNT(iov); i++) {
            cr_assert_eq(memcmp(at, memory + (uint64_t)(15 - i) * 64 * KIB, (1 + i % 3) * (uint64_t)step), 0);
            at += (1 + i % 3) * (uint64_t)step;
        }
    }
}

static void case_more_ios_than_depth_all_come_back_once(struct bench *bench)
{
    struct dev_io ios[32];
    struct dev_io *back[32];
    struct iovec iov[32];
    bool seen[32] = {false};
    for (uint32_t i = 0; i < 32; i++) {
        uint8_t *at = bench->arena.base + i * 8 * KIB;
        memset(at, (int)i + 1, 8 * KIB);
        iov[i] = (struct iovec){.iov_base = at, .iov_len = 8 * KIB};
        io_fill(&ios[i], DEV_WRITE, i * 8 * KIB, &iov[i], 1);
        ios[i].user = &ios[i];
        dev_submit(bench->queue, &ios[i]);
    }
    cr_assert_eq(dev_queue_pending(bench->queue), 32);
    cr_assert_leq(bench->queue->in_flight, 4);
    wait_for(bench, 32, back);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t index = (uint32_t)(back[i] - ios);
        cr_assert_eq(back[i]->result, 0);
        cr_assert_eq(back[i]->user, back[i]);
        cr_assert_not(seen[index]);
        seen[index] = true;
    }
    cr_assert_eq(dev_queue_pending(bench->queue), 0);
}

static void case_zeroed_range_reads_as_zeros(struct bench *bench)
{
    uint8_t *memory = bench->arena.base;
    struct iovec iov = {.iov_base = memory, .iov_len = 256 * KIB};
    struct dev_io io;
    fill(memory, 256 * KIB, 3);
    io_fill(&io, DEV_WRITE, MIB, &iov, 1);
    cr_assert_eq(dev_run(bench->queue, &io), 0);
    io = (struct dev_io){.op = DEV_ZERO, .buf_index = -1, .offset = MIB + 64 * KIB, .len = 64 * KIB};
    cr_assert_eq(dev_run(bench->queue, &io), 0);
    memset(memory + 64 * KIB, 0, 64 * KIB);
    iov = (struct iovec){.iov_base = memory + MIB, .iov_len = 256 * KIB};
    io_fill(&io, DEV_READ, MIB, &iov, 1);
    cr_assert_eq(dev_run(bench->queue, &io), 0);
    cr_assert_eq(memcmp(memory, memory + MIB, 256 * KIB), 0);
}

static void case_last_block_is_usable(struct bench *bench)
{
    uint64_t size = bench->dev->info.size;
    struct iovec iov = {.iov_base = bench->arena.base, .iov_len = 4096};
    struct dev_io io;
    cr_assert_eq(size, DEVICE_SIZE);
    io_fill(&io, DEV_WRITE, size - 4096, &iov, 1);
    cr_assert_eq(dev_run(bench->queue, &io), 0);
}

static void case_failed_device_takes_no_writes_but_reads(struct bench *bench)
{
    struct iovec iov = {.iov_base = bench->arena.base, .iov_len = 4096};
    struct dev_io io;
    dev_fail(bench->dev, "the test says so");
    io_fill(&io, DEV_WRITE, 0, &iov, 1);
    cr_assert_eq(dev_run(bench->queue, &io), ERR_DEVICE_FAILED);
    io = (struct dev_io){.op = DEV_FLUSH, .buf_index = -1};
    cr_assert_eq(dev_run(bench->queue, &io), ERR_DEVICE_FAILED);
    iov = (struct iovec){.iov_base = bench->arena.base, .iov_len = 4096};
    io_fill(&io, DEV_READ, 0, &iov, 1);
    cr_assert_eq(dev_run(bench->queue, &io), 0);
    cr_assert_str_eq(bench->dev->state_reason, "the test says so");
}

static void case_counters_tell_what_was_done(struct bench *bench)
{
    struct iovec iov[2] = {{bench->arena.base, 4096}, {bench->arena.base + 8192, 4096}};
    struct dev_io io;
    io_fill(&io, DEV_WRITE, 0, iov, 2);
    cr_assert_eq(dev_run(bench->queue, &io), 0);
    cr_assert_eq(bench->dev->stats.ops[DEV_WRITE], 1);
    cr_assert_eq(bench->dev->stats.bytes[DEV_WRITE], 8192);
    cr_assert_eq(bench->dev->stats.write_fragments, 2);
    cr_assert_eq(bench->dev->stats.writes_in_flight, 0);
    cr_assert_eq(bench->dev->stats.errors[DEV_WRITE], 0);
}

/* More than one command of any device, in fragments off every page, so that it is cut and goes on. */
static void case_large_vector_arrives_whole(struct bench *bench)
{
    uint8_t *memory = bench->arena.base;
    struct iovec iov[24];
    struct dev_io io;
    uint32_t step = bench->dev->info.dma_alignment;
    uint64_t sum = 0;
    fill(memory, 4 * MIB, 5);
    for (int32_t buf_index = -1; buf_index <= 0; buf_index++) {
        sum = 0;
        for (uint32_t i = 0; i < ARRAY_COUNT(iov); i++) {
            iov[i] = (struct iovec){.iov_base = memory + (uint64_t)i * 160 * KIB + step,
                                    .iov_len = 120 * KIB + (uint64_t)(i % 5) * step};
            sum += iov[i].iov_len;
        }
        iov[23].iov_len += bytes_round_up(sum, 4096) - sum;
        struct iovec given[ARRAY_COUNT(iov)];
        memcpy(given, iov, sizeof(iov));
        io_fill(&io, DEV_WRITE, MIB, iov, ARRAY_COUNT(iov));
        io.buf_index = buf_index;
        uint64_t len = io.len;
        cr_assert_eq(dev_run(bench->queue, &io), 0);
        struct iovec whole = {.iov_base = memory + 8 * MIB, .iov_len = len};
        memset(memory + 8 * MIB, 0, len);
        io_fill(&io, DEV_READ, MIB, &whole, 1);
        io.buf_index = buf_index;
        cr_assert_eq(dev_run(bench->queue, &io), 0);
        const uint8_t *at = memory + 8 * MIB;
        for (uint32_t i = 0; i < ARRAY_COUNT(iov); i++) {
            cr_assert_eq(memcmp(at, given[i].iov_base, given[i].iov_len), 0, "fragment %u", i);
            at += given[i].iov_len;
        }
    }
}

/* Refused or written as given, but never anything else. */
static void case_misaligned_fragments_are_refused_or_right(struct bench *bench)
{
    uint8_t *memory = bench->arena.base;
    struct iovec iov[2] = {{memory + 1, 4095}, {memory + 8193, 4097}};
    struct dev_io io;
    fill(memory, 16 * KIB, 6);
    io_fill(&io, DEV_WRITE, 0, iov, 2);
    int rc = dev_run(bench->queue, &io);
    cr_assert(rc == 0 || rc == -EINVAL, "%d", rc);
    if (bench->kind == KIND_NVME) {
        cr_assert_eq(rc, -EINVAL, "the kernel would have copied it in silence");
    }
    if (rc == 0) {
        struct iovec whole = {.iov_base = memory + MIB, .iov_len = 8192};
        io_fill(&io, DEV_READ, 0, &whole, 1);
        cr_assert_eq(dev_run(bench->queue, &io), 0);
        cr_assert_eq(memcmp(memory + MIB, memory + 1, 4095), 0);
        cr_assert_eq(memcmp(memory + MIB + 4095, memory + 8193, 4097), 0);
    }
}

struct contract_case {
    const char *name;
    void (*run)(struct bench *bench);
};
static const struct contract_case cases[] = {
    {"written bytes are read back", case_written_bytes_are_read_back},
    {"fragments land in order", case_fragments_land_in_order},
    {"more ios than depth all come back once", case_more_ios_than_depth_all_come_back_once},
    {"a zeroed range reads as zeros", case_zeroed_range_reads_as_zeros},
    {"the last block is usable", case_last_block_is_usable},
    {"a failed device takes no writes but reads", case_failed_device_takes_no_writes_but_reads},
    {"counters tell what was done", case_counters_tell_what_was_done},
    {"a large vector arrives whole", case_large_vector_arrives_whole},
    {"misaligned fragments are refused or right", case_misaligned_fragments_are_refused_or_right},
};

static void run_all(enum kind kind)
{
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct bench bench;
        cr_log_info("%s: %s", kind_names[kind], cases[i].name);
        bench_open(&bench, kind, 4);
        cases[i].run(&bench);
        bench_close(&bench);
    }
}

Test(dev_contract, file)
{
    run_all(KIND_FILE);
}

Test(dev_contract, loop_block_device)
{
    run_all(KIND_LOOP);
}

Test(dev_contract, memory)
{
    run_all(KIND_MEM);
}

Test(dev_contract, fault_filter_over_memory)
{
    run_all(KIND_FAULT_MEM);
}

Test(dev_contract, fault_filter_over_file)
{
    run_all(KIND_FAULT_FILE);
}

Test(dev_contract, nvme_passthrough)
{
    run_all(KIND_NVME);
}

/* ---- what only the fault filter does -------------------------------------------------------------------------------- */

static int write_once(struct bench *bench, uint8_t value, uint64_t offset)
{
    struct iovec iov = {.iov_base = bench->arena.base, .iov_len = 8192};
    struct dev_io io;
    memset(bench->arena.base, value, 8192);
    io_fill(&io, DEV_WRITE, offset, &iov, 1);
    return dev_run(bench->queue, &io);
}

static const uint8_t *read_once(struct bench *bench, uint64_t offset)
{
    uint8_t *to = bench->arena.base + MIB;
    struct iovec iov = {.iov_base = to, .iov_len = 8192};
    struct dev_io io;
    io_fill(&io, DEV_READ, offset, &iov, 1);
    cr_assert_eq(dev_run(bench->queue, &io), 0);
    return to;
}

Test(dev_fault, the_nth_write_fails_and_the_next_works)
{
    struct bench bench;
    bench_open(&bench, KIND_FAULT_MEM, 4);
    dev_fault_plan_set(
        bench.dev,
        &(struct dev_fault_plan){.kind = DEV_FAULT_ERROR, .ops = 1U << DEV_WRITE, .error = -EIO, .nth = 2});
    cr_assert_eq(write_once(&bench, 1, 0), 0);
    cr_assert_eq(write_once(&bench, 2, 0), -EIO);
    cr_assert_eq(write_once(&bench, 3, 0), 0);
    cr_assert_eq(dev_fault_seen(bench.dev), 3);
    cr_assert_eq(dev_fault_fired(bench.dev), 1);
    cr_assert_eq(read_once(&bench, 0)[0], 3);
    bench_close(&bench);
}

Test(dev_fault, a_failed_flush_poisons_for_good)
{
    struct bench bench;
    bench_open(&bench, KIND_FAULT_MEM, 4);
    dev_fault_plan_set(
        bench.dev,
        &(struct dev_fault_plan){.kind = DEV_FAULT_ERROR, .ops = 1U << DEV_FLUSH, .error = -EIO, .nth = 1});
    struct dev_io io = {.op = DEV_FLUSH, .buf_index = -1};
    cr_assert_eq(dev_run(bench.queue, &io), -EIO);
    io = (struct dev_io){.op = DEV_FLUSH, .buf_index = -1};
    cr_assert_eq(dev_run(bench.queue, &io), ERR_DEVICE_FAILED, "the filter would have let it pass");
    cr_assert_eq(write_once(&bench, 1, 0), ERR_DEVICE_FAILED);
    bench_close(&bench);
}

Test(dev_fault, a_device_on_which_no_write_succeeds_is_failed)
{
    struct bench bench;
    bench_open(&bench, KIND_FAULT_MEM, 4);
    dev_fault_plan_set(
        bench.dev,
        &(struct dev_fault_plan){
            .kind = DEV_FAULT_ERROR, .ops = 1U << DEV_WRITE, .error = -EIO, .nth = 1, .from_then_on = true});
    for (uint32_t i = 0; i < 16; i++) {
        cr_assert_eq(bench.dev->state, STORE_DEVICE_OK);
        cr_assert_eq(write_once(&bench, 1, 0), -EIO);
    }
    cr_assert_eq(bench.dev->state, STORE_DEVICE_FAILED);
    cr_assert_eq(write_once(&bench, 1, 0), ERR_DEVICE_FAILED);
    bench_close(&bench);
}

Test(dev_fault, a_hanging_flush_goes_on_when_released)
{
    struct bench bench;
    struct dev_io *back[1];
    bench_open(&bench, KIND_FAULT_MEM, 4);
    dev_fault_plan_set(bench.dev,
                       &(struct dev_fault_plan){.kind = DEV_FAULT_HANG, .ops = 1U << DEV_FLUSH, .nth = 1});
    struct dev_io io = {.op = DEV_FLUSH, .buf_index = -1};
    dev_submit(bench.queue, &io);
    for (uint32_t i = 0; i < 1000; i++) {
        cr_assert_eq(dev_poll(bench.queue, i, back, 1), 0);
    }
    dev_fault_release(bench.dev);
    wait_for(&bench, 1, back);
    cr_assert_eq(io.result, 0);
    bench_close(&bench);
}

Test(dev_fault, lost_misdirected_corrupt_and_torn_do_what_they_say)
{
    struct bench bench;
    bench_open(&bench, KIND_FAULT_MEM, 4);
    cr_assert_eq(write_once(&bench, 1, 64 * KIB), 0);
    dev_fault_plan_set(bench.dev,
                       &(struct dev_fault_plan){.kind = DEV_FAULT_LOST, .ops = 1U << DEV_WRITE, .nth = 1});
    cr_assert_eq(write_once(&bench, 2, 64 * KIB), 0);
    cr_assert_eq(read_once(&bench, 64 * KIB)[0], 1);
    dev_fault_plan_set(
        bench.dev, &(struct dev_fault_plan){.kind = DEV_FAULT_MISDIRECT, .ops = 1U << DEV_WRITE, .nth = 1});
    cr_assert_eq(write_once(&bench, 3, 64 * KIB), 0);
    cr_assert_neq(read_once(&bench, 64 * KIB)[0], 3);
    dev_fault_plan_set(bench.dev,
                       &(struct dev_fault_plan){.kind = DEV_FAULT_CORRUPT, .ops = 1U << DEV_READ, .nth = 1});
    const uint8_t *got = read_once(&bench, 64 * KIB);
    uint32_t different = 0;
    for (uint32_t i = 0; i < 8192; i++) {
        different += got[i] != 1;
    }
    cr_assert_eq(different, 1);
    dev_fault_plan_set(
        bench.dev,
        &(struct dev_fault_plan){
            .kind = DEV_FAULT_TORN, .ops = 1U << DEV_WRITE, .error = -EIO, .nth = 1, .from_then_on = true});
    bool partly = false;
    for (uint32_t i = 0; i < 40 && !partly; i++) {
        cr_assert_eq(write_once(&bench, (uint8_t)(10 + i), 64 * KIB), -EIO);
        got = read_once(&bench, 64 * KIB);
        partly = got[0] == 10 + i && got[8191] != 10 + i;
    }
    cr_assert(partly);
    bench_close(&bench);
}

Test(dev_fault, a_trigger_file_switches_it_on)
{
    struct bench bench;
    struct dev_fault_plan plan = {
        .kind = DEV_FAULT_ERROR, .ops = 1U << DEV_WRITE, .nth = 1, .from_then_on = true};
    snprintf(plan.trigger_file, sizeof(plan.trigger_file), "build/scratch/trigger-%d", (int)getpid());
    bench_open(&bench, KIND_FAULT_MEM, 4);
    dev_fault_plan_set(bench.dev, &plan);
    cr_assert_eq(write_once(&bench, 1, 0), 0);
    close(open(plan.trigger_file, O_CREAT | O_WRONLY, 0600));
    cr_assert_eq(write_once(&bench, 1, 0), -EIO);
    unlink(plan.trigger_file);
    cr_assert_eq(write_once(&bench, 1, 0), 0);
    bench_close(&bench);
}

/* ---- what only the memory device does -------------------------------------------------------------------------------- */

static void memory_write(struct bench *bench, uint8_t value, uint64_t offset)
{
    cr_assert_eq(write_once(bench, value, offset), 0);
}

Test(dev_mem, a_power_cut_keeps_what_was_flushed_and_nothing_else_for_sure)
{
    uint32_t applied = 0;
    uint32_t lost = 0;
    uint32_t mixed = 0;
    struct bench bench;
    bench_open(&bench, KIND_MEM, 4);
    for (uint64_t seed = 0; seed < 64; seed++) {
        struct dev_io flush = {.op = DEV_FLUSH, .buf_index = -1};
        memory_write(&bench, 1, 0);
        memory_write(&bench, 2, 64 * KIB);
        cr_assert_eq(dev_run(bench.queue, &flush), 0);
        memory_write(&bench, 3, 64 * KIB);
        dev_queue_close(bench.queue);
        dev_mem_crash(bench.dev, seed);
        cr_assert_eq(dev_queue_open(bench.dev, &bench.ring, 4, &bench.queue, NULL), 0);
        cr_assert_eq(read_once(&bench, 0)[0], 1);
        cr_assert_eq(read_once(&bench, 0)[8191], 1);
        const uint8_t *got = read_once(&bench, 64 * KIB);
        uint32_t threes = 0;
        uint32_t twos = 0;
        for (uint32_t i = 0; i < 8192; i++) {
            threes += got[i] == 3;
            twos += got[i] == 2;
        }
        applied += threes == 8192;
        lost += twos == 8192;
        mixed += threes != 8192 && twos != 8192;
    }
    cr_assert_gt(applied, 0);
    cr_assert_gt(lost, 0);
    cr_assert_gt(mixed, 0);
    bench_close(&bench);
}

Test(dev_mem, a_dead_device_changes_nothing_and_what_was_in_flight_is_a_matter_of_chance)
{
    uint32_t arrived = 0;
    struct bench bench;
    bench_open(&bench, KIND_MEM, 4);
    for (uint64_t seed = 0; seed < 32; seed++) {
        struct dev_io flush = {.op = DEV_FLUSH, .buf_index = -1};
        struct dev_io io;
        struct dev_io *back[1];
        struct iovec iov = {.iov_base = bench.arena.base, .iov_len = 8192};
        memory_write(&bench, 1, 0);
        cr_assert_eq(dev_run(bench.queue, &flush), 0);
        memset(bench.arena.base, 7, 8192);
        io_fill(&io, DEV_WRITE, 0, &iov, 1);
        dev_submit(bench.queue, &io);
        dev_mem_die(bench.dev);
        wait_for(&bench, 1, back);
        cr_assert_eq(io.result, -EIO);
        dev_queue_close(bench.queue);
        dev_mem_crash(bench.dev, seed);
        cr_assert_eq(dev_queue_open(bench.dev, &bench.ring, 4, &bench.queue, NULL), 0);
        arrived += read_once(&bench, 0)[0] == 7;
    }
    cr_assert_gt(arrived, 0);
    cr_assert_lt(arrived, 32);
    bench_close(&bench);
}
