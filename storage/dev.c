/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dev: the checked wrappers: ranges, alignment, queue depth, poisoned devices, counters. Whatever an implementation does, these
 * rules hold. It does no I/O itself.
 */
#include "storage/dev.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"

#define DEV_RUN_TIMEOUT_NS (600 * NS_PER_S)
#define WRITE_ERRORS_MAX 16U

void dev_queue_init(struct dev_queue *queue, struct dev *dev, struct uring *uring, uint32_t depth)
{
    queue->magic = DEV_QUEUE_MAGIC;
    queue->dev = dev;
    queue->uring = uring;
    queue->depth = depth;
    queue->in_flight = 0;
    queue->now_ns = 0;
    list_init(&queue->waiting);
    list_init(&queue->finished);
}

void dev_close(struct dev *dev)
{
    CHECK(dev->magic == DEV_MAGIC);
    dev->magic = 0;
    dev->ops->close(dev);
}

int dev_queue_open(struct dev *dev, struct uring *uring, uint32_t depth, struct dev_queue **out,
                   struct err *err)
{
    CHECK(dev->magic == DEV_MAGIC);
    CHECK(depth > 0);
    return dev->ops->queue_open(dev, uring, depth, out, err);
}

void dev_queue_close(struct dev_queue *queue)
{
    CHECK(queue->magic == DEV_QUEUE_MAGIC);
    CHECK(queue->in_flight == 0);
    CHECK(list_is_empty(&queue->waiting));
    CHECK(list_is_empty(&queue->finished));
    queue->magic = 0;
    queue->dev->ops->queue_close(queue);
}

static void dev_io_check(const struct dev_io *io, const struct dev_info *info)
{
    if (io->op == DEV_FLUSH) {
        CHECK(io->offset == 0);
        CHECK(io->len == 0);
        return;
    }
    CHECK(io->len > 0);
    CHECK(io->offset % info->lba_size == 0);
    CHECK(io->len % info->lba_size == 0);
    CHECK(io->offset <= info->size);
    CHECK(io->len <= info->size - io->offset);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < io->iov_count; i++) {
        CHECK(io->iov[i].iov_len > 0);
        sum += io->iov[i].iov_len;
    }
    CHECK(io->op == DEV_ZERO || sum == io->len);
}

static void dev_start(struct dev_queue *queue, struct dev_io *io)
{
    queue->in_flight++;
    /* A poisoned device is asked nothing that could look like success; reads go on. */
    if (io->op != DEV_READ && queue->dev->state == STORE_DEVICE_FAILED) {
        dev_io_finish(io, ERR_DEVICE_FAILED);
        return;
    }
    queue->dev->ops->submit(queue, io);
}

void dev_submit(struct dev_queue *queue, struct dev_io *io)
{
    CHECK(queue->magic == DEV_QUEUE_MAGIC);
    CHECK((uint32_t)io->op < DEV_OPS);
    dev_io_check(io, &queue->dev->info);
    list_init(&io->node);
    io->queue = queue;
    io->submitted_ns = queue->now_ns;
    io->result = 0;
    io->done = 0;
    io->retries = 0;
    if (io->op == DEV_WRITE) {
        queue->dev->stats.write_fragments += io->iov_count;
        queue->dev->stats.writes_in_flight++;
    }
    if (queue->in_flight >= queue->depth) {
        list_append(&queue->waiting, &io->node);
        return;
    }
    dev_start(queue, io);
}

void dev_io_advance(struct dev_io *io, uint64_t bytes)
{
    while (bytes > 0) {
        CHECK(io->iov_count > 0);
        if (bytes < io->iov[0].iov_len) {
            io->iov[0].iov_base = (uint8_t *)io->iov[0].iov_base + bytes;
            io->iov[0].iov_len -= bytes;
            return;
        }
        bytes -= io->iov[0].iov_len;
        io->iov++;
        io->iov_count--;
    }
}

/* One failed write fails its upload. A device on which nothing succeeds any more would fail every upload that comes its way. */
static void dev_writes_watch(struct dev *dev, int result)
{
    if (result == 0) {
        dev->write_errors_in_row = 0;
    } else if (++dev->write_errors_in_row == WRITE_ERRORS_MAX) {
        dev_fail(dev, "16 writes in a row failed");
    }
}

static void dev_count(struct dev *dev, const struct dev_io *io)
{
    static const enum store_latency kinds[DEV_OPS] = {STORE_LATENCY_READ, STORE_LATENCY_WRITE,
                                                      STORE_LATENCY_FLUSH, STORE_LATENCY_WRITE};
    dev->stats.ops[io->op]++;
    if (io->op == DEV_WRITE) {
        dev->stats.writes_in_flight--;
    }
    if (io->op == DEV_WRITE) {
        dev_writes_watch(dev, io->result);
    }
    if (io->result != 0) {
        dev->stats.errors[io->op]++;
        return;
    }
    dev->stats.bytes[io->op] += io->len;
    if (io->op == DEV_ZERO || io->submitted_ns == 0) {
        return;
    }
    struct store_histogram *histogram = &dev->stats.latency[kinds[io->op]];
    uint64_t us = io->latency_ns / NS_PER_US;
    uint32_t bucket = us == 0 ? 0 : 63U - (uint32_t)__builtin_clzll(us);
    histogram->buckets[bucket < 31 ? bucket : 31]++;
    histogram->count++;
    histogram->sum_us += us;
}

void dev_io_finish(struct dev_io *io, int result)
{
    struct dev_queue *queue = io->queue;
    CHECK(queue->in_flight > 0);
    CHECK(!list_is_linked(&io->node));
    io->result = result;
    if (result != 0 && io->op == DEV_FLUSH) {
        /* What the kernel or the device dropped is unknown, and a second flush may claim success over it: never again. */
        dev_fail(queue->dev, "a flush failed");
    }
    list_append(&queue->finished, &io->node);
}

uint32_t dev_poll(struct dev_queue *queue, uint64_t now_ns, struct dev_io **finished, uint32_t max)
{
    CHECK(queue->magic == DEV_QUEUE_MAGIC);
    queue->now_ns = now_ns;
    queue->dev->ops->poll(queue, now_ns);
    uint32_t count = 0;
    while (count < max && !list_is_empty(&queue->finished)) {
        struct dev_io *io = CONTAINER_OF(list_take_first(&queue->finished), struct dev_io, node);
        queue->in_flight--;
        io->latency_ns = now_ns > io->submitted_ns ? now_ns - io->submitted_ns : 0;
        dev_count(queue->dev, io);
        finished[count++] = io;
    }
    while (queue->in_flight < queue->depth && !list_is_empty(&queue->waiting)) {
        dev_start(queue, CONTAINER_OF(list_take_first(&queue->waiting), struct dev_io, node));
    }
    return count;
}

uint32_t dev_queue_pending(const struct dev_queue *queue)
{
    uint32_t count = queue->in_flight;
    LIST_FOR_EACH(node, &queue->waiting)
    {
        count++;
    }
    return count;
}

int dev_run(struct dev_queue *queue, struct dev_io *io)
{
    uint64_t deadline_ns = clock_monotonic_ns() + DEV_RUN_TIMEOUT_NS;
    dev_submit(queue, io);
    for (;;) {
        struct dev_io *finished = NULL;
        uint64_t now_ns = clock_monotonic_ns();
        if (dev_poll(queue, now_ns, &finished, 1) == 1) {
            CHECK(finished == io); /* start-up code runs one io at a time */
            return io->result;
        }
        if (now_ns > deadline_ns) {
            return -ETIMEDOUT;
        }
        if (queue->uring != NULL) {
            int rc = uring_submit_and_wait(queue->uring, NS_PER_S);
            if (rc < 0) {
                return rc;
            }
            uring_reap(queue->uring, UINT32_MAX);
        }
    }
}

void dev_suspect_set(struct dev *dev, bool is_suspect)
{
    int expected = is_suspect ? STORE_DEVICE_OK : STORE_DEVICE_SUSPECT;
    atomic_compare_exchange_strong(&dev->state, &expected,
                                   is_suspect ? STORE_DEVICE_SUSPECT : STORE_DEVICE_OK);
}

void dev_fail(struct dev *dev, const char *reason)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER; /* a leaf; devices fail rarely */
    pthread_mutex_lock(&once);
    if (dev->state != STORE_DEVICE_FAILED) {
        snprintf(dev->state_reason, sizeof(dev->state_reason), "%s", reason);
        dev->state = STORE_DEVICE_FAILED;
    }
    pthread_mutex_unlock(&once);
}
