/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dev_mem: a deterministic device in memory for simulations and tests. It keeps two images: what a reader sees now, and what is
 * durable. Writes that ended since the last flush are kept in a list; a power cut decides the fate of each from a seed.
 *
 * Chance comes from the seed only and time does not exist, so a run is replayed by its seed. One lock makes it usable from the
 * committer's and a worker's thread; order between threads is then theirs.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/rng.h"
#include "storage/dev.h"

#define SECTOR 512U /* the unit that a power cut tears at */

struct mem_write {
    struct mem_write *next;
    uint64_t offset;
    uint64_t len;
    uint64_t number; /* order of completion */
    uint8_t data[];
};

struct dev_mem {
    struct dev base;
    struct dev_mem_options options;
    pthread_mutex_t lock;
    struct rng rng;
    uint8_t *now;
    uint8_t *durable;
    struct mem_write *unflushed; /* oldest first */
    struct mem_write **unflushed_tail;
    uint64_t ended; /* writes that ended so far */
    uint64_t flushes;
    uint64_t die_at_flush; /* value of `flushes` at which it dies; 0: never */
    bool is_dead;
    struct list queues;
};

struct dev_mem_queue {
    struct dev_queue base;
    struct list node; /* dev_mem.queues */
    struct list delayed;
};

static struct dev_mem *dev_mem_of(struct dev *dev)
{
    return (struct dev_mem *)dev;
}

static void dev_mem_forget(struct dev_mem *dev)
{
    while (dev->unflushed != NULL) {
        struct mem_write *write = dev->unflushed;
        dev->unflushed = write->next;
        free(write);
    }
    dev->unflushed_tail = &dev->unflushed;
}

static void dev_mem_close(struct dev *base)
{
    struct dev_mem *dev = dev_mem_of(base);
    dev_mem_forget(dev);
    pthread_mutex_destroy(&dev->lock);
    free(dev->now);
    free(dev->durable);
    free(dev);
}

static int dev_mem_queue_open(struct dev *dev, struct uring *uring, uint32_t depth, struct dev_queue **out,
                              struct err *err)
{
    struct dev_mem_queue *queue = calloc(1, sizeof(*queue));
    if (queue == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    (void)uring; /* nothing here is the kernel's */
    dev_queue_init(&queue->base, dev, NULL, depth);
    list_init(&queue->delayed);
    list_init(&queue->node);
    pthread_mutex_lock(&dev_mem_of(dev)->lock);
    list_append(&dev_mem_of(dev)->queues, &queue->node);
    pthread_mutex_unlock(&dev_mem_of(dev)->lock);
    *out = &queue->base;
    return 0;
}

static void dev_mem_queue_close(struct dev_queue *base)
{
    struct dev_mem_queue *queue = (struct dev_mem_queue *)base;
    struct dev_mem *dev = dev_mem_of(base->dev);
    CHECK(list_is_empty(&queue->delayed));
    pthread_mutex_lock(&dev->lock);
    list_remove(&queue->node);
    pthread_mutex_unlock(&dev->lock);
    free(queue);
}

/* ---- transfers ----------------------------------------------------------------------------------------------------- */

static bool dev_mem_is_refused(const struct dev_mem *dev, const struct dev_io *io)
{
    if (!dev->options.refuse_unaligned || io->op == DEV_FLUSH || io->op == DEV_ZERO) {
        return false;
    }
    for (uint32_t i = 0; i < io->iov_count; i++) {
        uint64_t odd = (uintptr_t)io->iov[i].iov_base | io->iov[i].iov_len;
        if (odd % dev->options.dma_alignment != 0) {
            return true;
        }
        const uint8_t *begin = io->iov[i].iov_base;
        uint64_t inner = (i > 0 ? (uintptr_t)begin : 0) |
                         (i + 1 < io->iov_count ? (uintptr_t)begin + io->iov[i].iov_len : 0);
        if (dev->options.whole_pages && inner % 4096 != 0) {
            return true;
        }
    }
    return false;
}

static void dev_mem_gather(const struct dev_io *io, uint8_t *to)
{
    for (uint32_t i = 0; i < io->iov_count; i++) {
        memcpy(to, io->iov[i].iov_base, io->iov[i].iov_len);
        to += io->iov[i].iov_len;
    }
}

/* Puts a write on the list of those whose fate a power cut decides. */
static struct mem_write *dev_mem_remember(struct dev_mem *dev, const struct dev_io *io)
{
    struct mem_write *write = malloc(sizeof(*write) + io->len);
    if (write == NULL) {
        return NULL;
    }
    write->next = NULL;
    write->offset = io->offset;
    write->len = io->len;
    write->number = ++dev->ended;
    if (io->op == DEV_ZERO) {
        memset(write->data, 0, io->len);
    } else {
        dev_mem_gather(io, write->data);
    }
    *dev->unflushed_tail = write;
    dev->unflushed_tail = &write->next;
    return write;
}

static int dev_mem_write(struct dev_mem *dev, const struct dev_io *io)
{
    const struct mem_write *write = dev_mem_remember(dev, io);
    if (write == NULL) {
        return -ENOMEM;
    }
    memcpy(dev->now + io->offset, write->data, io->len);
    return 0;
}

static void dev_mem_die_locked(struct dev_mem *dev)
{
    if (dev->is_dead) {
        return;
    }
    dev->is_dead = true;
    LIST_FOR_EACH(queue, &dev->queues)
    {
        LIST_FOR_EACH(node, &CONTAINER_OF(queue, struct dev_mem_queue, node)->delayed)
        {
            const struct dev_io *io = CONTAINER_OF(node, struct dev_io, node);
            if (io->op == DEV_WRITE || io->op == DEV_ZERO) {
                const struct mem_write *write = dev_mem_remember(dev, io);
                CHECK(write != NULL);
            }
        }
    }
}

/* Makes durable what had ended when the flush was submitted (io->ticket), no more: later writes get no promise. */
static int dev_mem_flush(struct dev_mem *dev, const struct dev_io *io)
{
    dev->flushes++;
    if (dev->flushes == dev->die_at_flush) {
        dev_mem_die_locked(dev);
        return -EIO;
    }
    while (dev->unflushed != NULL && dev->unflushed->number <= io->ticket) {
        struct mem_write *write = dev->unflushed;
        memcpy(dev->durable + write->offset, write->data, write->len);
        dev->unflushed = write->next;
        free(write);
    }
    if (dev->unflushed == NULL) {
        dev->unflushed_tail = &dev->unflushed;
    }
    return 0;
}

static int dev_mem_read(struct dev_mem *dev, const struct dev_io *io)
{
    const uint8_t *from = dev->now + io->offset;
    for (uint32_t i = 0; i < io->iov_count; i++) {
        memcpy(io->iov[i].iov_base, from, io->iov[i].iov_len);
        from += io->iov[i].iov_len;
    }
    return 0;
}

static int dev_mem_transfer(struct dev_mem *dev, const struct dev_io *io)
{
    if (dev->is_dead) {
        return -EIO;
    }
    if (dev_mem_is_refused(dev, io)) {
        return -EINVAL;
    }
    switch (io->op) {
    case DEV_READ:
        return dev_mem_read(dev, io);
    case DEV_FLUSH:
        return dev_mem_flush(dev, io);
    case DEV_WRITE:
    case DEV_ZERO:
        return dev_mem_write(dev, io);
    }
    return -EINVAL;
}

static void dev_mem_submit(struct dev_queue *base, struct dev_io *io)
{
    struct dev_mem *dev = dev_mem_of(base->dev);
    pthread_mutex_lock(&dev->lock);
    io->ticket = dev->ended;
    io->retries = dev->options.delay_polls_max == 0
                      ? 0
                      : (uint32_t)rng_below(&dev->rng, dev->options.delay_polls_max + 1ULL);
    pthread_mutex_unlock(&dev->lock);
    list_append(&((struct dev_mem_queue *)base)->delayed, &io->node);
}

static void dev_mem_poll(struct dev_queue *base, uint64_t now_ns)
{
    (void)now_ns; /* delays count polls, so that a run does not depend on a clock */
    struct dev_mem *dev = dev_mem_of(base->dev);
    LIST_FOR_EACH_SAFE(node, &((struct dev_mem_queue *)base)->delayed)
    {
        struct dev_io *io = CONTAINER_OF(node, struct dev_io, node);
        if (io->retries > 0) {
            io->retries--;
            continue;
        }
        list_remove(&io->node);
        pthread_mutex_lock(&dev->lock);
        int rc = dev_mem_transfer(dev, io);
        pthread_mutex_unlock(&dev->lock);
        dev_io_finish(io, rc);
    }
}

static const struct dev_ops dev_mem_ops = {
    .type = "mem",
    .close = dev_mem_close,
    .queue_open = dev_mem_queue_open,
    .queue_close = dev_mem_queue_close,
    .submit = dev_mem_submit,
    .poll = dev_mem_poll,
};

int dev_mem_open(const struct dev_mem_options *options, struct dev **out)
{
    CHECK(options->size % options->lba_size == 0);
    CHECK(options->lba_size % SECTOR == 0);
    struct dev_mem *dev = calloc(1, sizeof(*dev));
    if (dev == NULL) {
        return -ENOMEM;
    }
    dev->options = *options;
    dev->now = calloc(1, options->size);
    dev->durable = calloc(1, options->size);
    if (dev->now == NULL || dev->durable == NULL) {
        free(dev->now);
        free(dev->durable);
        free(dev);
        return -ENOMEM;
    }
    pthread_mutex_init(&dev->lock, NULL);
    rng_seed(&dev->rng, options->seed);
    dev->unflushed_tail = &dev->unflushed;
    list_init(&dev->queues);
    dev->base.magic = DEV_MAGIC;
    dev->base.ops = &dev_mem_ops;
    memcpy(dev->base.path, "mem", sizeof("mem"));
    dev->base.info = (struct dev_info){.type = "mem",
                                       .size = options->size,
                                       .lba_size = options->lba_size,
                                       .dma_alignment = options->dma_alignment,
                                       .fragments_max = options->fragments_max,
                                       .bytes_max = options->bytes_max,
                                       .whole_pages = options->whole_pages,
                                       .direct = true};
    *out = &dev->base;
    return 0;
}

/* ---- power cuts -------------------------------------------------------------------------------------------------------- */

static void dev_mem_tear(struct dev_mem *dev, const struct mem_write *write, struct rng *rng)
{
    for (uint64_t at = 0; at < write->len; at += SECTOR) {
        if (rng_chance(rng, 1, 2)) {
            memcpy(dev->durable + write->offset + at, write->data + at, SECTOR);
        }
    }
}

static void dev_mem_scramble(struct dev_mem *dev, const struct mem_write *write, struct rng *rng)
{
    for (uint64_t at = 0; at < write->len; at += sizeof(uint64_t)) {
        uint64_t word = rng_u64(rng);
        memcpy(dev->durable + write->offset + at, &word, sizeof(word));
    }
}

void dev_mem_die(struct dev *base)
{
    struct dev_mem *dev = dev_mem_of(base);
    pthread_mutex_lock(&dev->lock);
    dev_mem_die_locked(dev);
    pthread_mutex_unlock(&dev->lock);
}

void dev_mem_die_at_flush(struct dev *base, uint64_t nth)
{
    struct dev_mem *dev = dev_mem_of(base);
    dev->die_at_flush = nth == 0 ? 0 : dev->flushes + nth;
}

bool dev_mem_is_dead(struct dev *dev)
{
    return dev_mem_of(dev)->is_dead;
}

void dev_mem_crash(struct dev *base, uint64_t seed)
{
    struct dev_mem *dev = dev_mem_of(base);
    struct rng rng;
    CHECK(list_is_empty(&dev->queues));
    rng_seed(&rng, seed);
    for (const struct mem_write *write = dev->unflushed; write != NULL; write = write->next) {
        switch (rng_below(&rng, 4)) {
        case 0: /* reached the medium after all */
            memcpy(dev->durable + write->offset, write->data, write->len);
            break;
        case 1: /* lost */
            break;
        case 2:
            dev_mem_tear(dev, write, &rng);
            break;
        default:
            dev_mem_scramble(dev, write, &rng);
            break;
        }
    }
    dev_mem_forget(dev);
    memcpy(dev->now, dev->durable, dev->options.size);
    dev->is_dead = false;
    dev->die_at_flush = 0;
    dev->base.state = STORE_DEVICE_OK; /* another process sees it now */
    dev->base.state_reason[0] = '\0';
    dev->base.write_errors_in_row = 0;
}

uint8_t *dev_mem_bytes(struct dev *dev)
{
    return dev_mem_of(dev)->now;
}
