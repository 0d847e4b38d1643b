/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest: what fragments does a device take without a copy by us? Kernels, drivers and controllers differ and versions lie, so
 * it is tried: odd-sized fragments from odd places go to the scratch region and are read back. The finest alignment that works
 * is used: what the system states, else whole LBAs, else whole pages.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/rng.h"
#include "storage/extent.h"
#include "storage/store_int.h"

#define TEST_MEMORY (4 * MIB) /* the first half is written from, the second read into */
#define TEST_BYTES_MAX (512 * KIB)
#define TEST_FRAGMENTS_MAX 64U
#define TEST_ROUNDS 4U

struct selftest {
    struct store_device *device;
    struct dev_queue *queue;
    uint8_t *memory;
    int32_t buf_index;
    struct rng rng;
};

/* Fragments of odd multiples of the alignment with gaps between them, so that nothing can merge them; whole LBAs in sum. */
static uint64_t selftest_fragments(struct selftest *test, uint32_t alignment, struct iovec *fragments,
                                   uint32_t *count)
{
    const struct dev_info *info = &test->device->dev->info;
    uint32_t max = info->fragments_max < TEST_FRAGMENTS_MAX ? info->fragments_max : TEST_FRAGMENTS_MAX;
    uint64_t factor_max = TEST_BYTES_MAX / TEST_FRAGMENTS_MAX / alignment;
    uint64_t place = alignment * (1 + rng_below(&test->rng, 7));
    uint64_t sum = 0;
    *count = 0;
    while (*count + 1 < max) {
        uint64_t len = alignment * (1 + rng_below(&test->rng, factor_max < 400 ? factor_max : 400));
        fragments[(*count)++] = (struct iovec){.iov_base = test->memory + place, .iov_len = len};
        sum += len;
        place += len + alignment * (1 + rng_below(&test->rng, 3));
    }
    uint64_t rest = bytes_round_up(sum + alignment, info->lba_size) - sum;
    fragments[(*count)++] = (struct iovec){.iov_base = test->memory + place, .iov_len = rest};
    CHECK(place + rest <= TEST_MEMORY / 2);
    return sum + rest;
}

static int selftest_io(struct selftest *test, enum dev_op op, struct iovec *iov, uint32_t count, uint64_t len,
                       int32_t buf_index)
{
    struct dev_io io;
    memset(&io, 0, sizeof(io));
    io.op = op;
    io.buf_index = buf_index;
    io.offset = SUPERBLOCK_SCRATCH_OFFSET;
    io.len = len;
    io.iov = iov;
    io.iov_count = count;
    return dev_run(test->queue, &io);
}

/* 0: works. -EINVAL, -EIO, ...: refused. ERR_CORRUPT: accepted, and other bytes came back. */
static int selftest_round(struct selftest *test, uint32_t alignment, int32_t buf_index)
{
    struct iovec fragments[TEST_FRAGMENTS_MAX];
    struct iovec as_given[TEST_FRAGMENTS_MAX];
    uint32_t count;
    uint8_t *back = test->memory + TEST_MEMORY / 2;
    for (uint64_t i = 0; i < TEST_MEMORY / 2; i += sizeof(uint64_t)) {
        uint64_t word = rng_u64(&test->rng);
        memcpy(test->memory + i, &word, sizeof(word));
    }
    uint64_t len = selftest_fragments(test, alignment, fragments, &count);
    memcpy(as_given, fragments, count * sizeof(fragments[0]));
    int rc = selftest_io(test, DEV_WRITE, fragments, count, len, buf_index);
    if (rc < 0) {
        return rc;
    }
    struct iovec whole = {.iov_base = back, .iov_len = len};
    memset(back, 0, len);
    rc = selftest_io(test, DEV_READ, &whole, 1, len, buf_index);
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        rc = memcmp(back, as_given[i].iov_base, as_given[i].iov_len) == 0 ? 0 : ERR_CORRUPT;
        back += as_given[i].iov_len;
    }
    return rc;
}

static int selftest_alignment(struct selftest *test, uint32_t alignment)
{
    int rc = 0;
    for (uint32_t round = 0; round < TEST_ROUNDS && rc == 0; round++) {
        rc = selftest_round(test, alignment, -1);
        if (rc == 0 && test->buf_index >= 0) {
            rc = selftest_round(test, alignment, test->buf_index);
        }
    }
    return rc;
}

static int selftest_decide(struct selftest *test, struct err *err)
{
    struct store_device *device = test->device;
    const struct dev_info *info = &device->dev->info;
    const uint32_t candidates[] = {info->dma_alignment, info->lba_size, EXTENT_BLOCK};
    int first_rc = 0;
    int rc = -EINVAL;
    for (uint32_t i = 0; i < ARRAY_COUNT(candidates); i++) {
        if (i > 0 && candidates[i] <= candidates[i - 1]) {
            continue;
        }
        rc = selftest_alignment(test, candidates[i]);
        if (rc == 0) {
            device->fragment_alignment = candidates[i];
            device->head_alignment = info->dma_alignment;
            device->fragments_ok = i == 0;
            snprintf(device->note, sizeof(device->note), "%s", info->note);
            if (i > 0) {
                snprintf(device->note, sizeof(device->note),
                         "fragments of %u bytes alignment are refused (%s): payload is written in pieces of "
                         "%u bytes alignment",
                         info->dma_alignment,
                         info->whole_pages ? "the controller has no SGL" : err_text(first_rc), candidates[i]);
            }
            return 0;
        }
        first_rc = i == 0 ? rc : first_rc;
        if (rc == ERR_CORRUPT) {
            break; /* a device that returns other bytes is no device for us */
        }
    }
    return err_set(err, rc, "%s: the start-up self-test failed: %s; check the kernel log for the device",
                   device->dev->path, err_text(rc));
}

int store_selftest(struct store_device *device, struct uring *uring, struct err *err)
{
    struct selftest test = {.device = device, .buf_index = -1};
    rng_seed(&test.rng, 1);
    int rc = dev_queue_open(device->dev, uring, 1, &test.queue, err);
    if (rc < 0) {
        return rc;
    }
    test.memory = mmap(NULL, TEST_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (test.memory == MAP_FAILED) {
        rc = err_set(err, -ENOMEM, "%s: out of memory for the self-test", device->dev->path);
        goto close_queue;
    }
    /* Registered memory takes another way through the kernel, so it is tried as well where it can be had. */
    if (uring != NULL && uring->buffers_max > 0 &&
        uring_buffer_register(uring, 0, test.memory, TEST_MEMORY, NULL) == 0) {
        test.buf_index = 0;
    }
    rc = selftest_decide(&test, err);
    if (test.buf_index >= 0) {
        struct iovec none = {NULL, 0};
        int cleared = io_uring_register_buffers_update_tag(&uring->ring, 0, &none, NULL, 1);
        CHECK(cleared == 1);
    }
    /* counters tell of payload; nobody else uses the device yet */
    memset(&device->dev->stats, 0, sizeof(device->dev->stats));
    munmap(test.memory, TEST_MEMORY);
close_queue:
    dev_queue_close(test.queue);
    return rc;
}
