/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dev_fault: a filter over any device that lets chosen operations go wrong: the nth, all from then on, or by seeded chance, and only
 * while a trigger file exists if one is named. What is not chosen passes unchanged.
 *
 * Each passing io is a shadow of the caller's: list node and bookkeeping of the inner queue need a place of their own.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/rng.h"
#include "storage/dev.h"

struct dev_fault {
    struct dev base;
    struct dev *inner;
    pthread_mutex_t lock; /* guards what follows; a leaf */
    struct rng rng;
    struct dev_fault_plan plan;
    uint64_t seen;
    uint64_t fired;
    uint64_t released; /* ever growing: hanging ios of an older number go on */
};

struct fault_shadow {
    struct dev_io io; /* the inner queue's */
    struct dev_io *outer;
    enum dev_fault_kind kind;
    int error;
    uint64_t hang_number;
    struct iovec first;    /* of the outer io, before it is advanced */
    struct iovec *own_iov; /* a shortened copy, or NULL */
    struct list node;      /* free or hung */
};

struct dev_fault_queue {
    struct dev_queue base;
    struct dev_queue *inner;
    struct list free;
    struct list hung;
    struct fault_shadow *shadows;
};

static struct dev_fault *dev_fault_of(struct dev *dev)
{
    return (struct dev_fault *)dev;
}

static void dev_fault_close(struct dev *base)
{
    struct dev_fault *dev = dev_fault_of(base);
    dev_close(dev->inner);
    pthread_mutex_destroy(&dev->lock);
    free(dev);
}

static int dev_fault_queue_open(struct dev *base, struct uring *uring, uint32_t depth, struct dev_queue **out,
                                struct err *err)
{
    struct dev_fault_queue *queue = calloc(1, sizeof(*queue));
    if (queue == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    dev_queue_init(&queue->base, base, uring, depth);
    list_init(&queue->free);
    list_init(&queue->hung);
    queue->shadows = aligned_alloc(64, bytes_round_up(depth * sizeof(*queue->shadows), 64));
    if (queue->shadows == NULL) {
        free(queue);
        return err_set(err, -ENOMEM, "out of memory");
    }
    int rc = dev_queue_open(dev_fault_of(base)->inner, uring, depth, &queue->inner, err);
    if (rc < 0) {
        free(queue->shadows);
        free(queue);
        return rc;
    }
    queue->base.uring = queue->inner->uring; /* none when the inner device needs none */
    for (uint32_t i = 0; i < depth; i++) {
        list_init(&queue->shadows[i].node);
        list_append(&queue->free, &queue->shadows[i].node);
    }
    *out = &queue->base;
    return 0;
}

static void dev_fault_queue_close(struct dev_queue *base)
{
    struct dev_fault_queue *queue = (struct dev_fault_queue *)base;
    CHECK(list_is_empty(&queue->hung));
    dev_queue_close(queue->inner);
    free(queue->shadows);
    free(queue);
}

/* ---- choosing ------------------------------------------------------------------------------------------------------ */

static bool dev_fault_matches(struct dev_fault *dev, const struct dev_io *io)
{
    const struct dev_fault_plan *plan = &dev->plan;
    if (plan->kind == DEV_FAULT_NONE || (plan->ops & (1U << io->op)) == 0) {
        return false;
    }
    if (plan->trigger_file[0] != '\0' && access(plan->trigger_file, F_OK) != 0) {
        return false;
    }
    dev->seen++;
    bool is_nth = plan->nth != 0 && (dev->seen == plan->nth || (plan->from_then_on && dev->seen > plan->nth));
    bool by_chance = plan->rate_ppm != 0 && rng_chance(&dev->rng, plan->rate_ppm, 1000000);
    dev->fired += is_nth || by_chance;
    return is_nth || by_chance;
}

static void dev_fault_choose(struct dev_fault *dev, struct fault_shadow *shadow)
{
    pthread_mutex_lock(&dev->lock);
    shadow->kind = dev_fault_matches(dev, shadow->outer) ? dev->plan.kind : DEV_FAULT_NONE;
    shadow->error = dev->plan.error != 0 ? dev->plan.error : -EIO;
    shadow->hang_number = dev->released;
    pthread_mutex_unlock(&dev->lock);
}

static uint64_t dev_fault_below(struct dev_fault *dev, uint64_t bound)
{
    pthread_mutex_lock(&dev->lock);
    uint64_t value = rng_below(&dev->rng, bound);
    pthread_mutex_unlock(&dev->lock);
    return value;
}

/* ---- faults -------------------------------------------------------------------------------------------------------- */

static void fault_end(struct dev_fault_queue *queue, struct fault_shadow *shadow, int result)
{
    free(shadow->own_iov);
    shadow->own_iov = NULL;
    list_append(&queue->free, &shadow->node);
    dev_io_finish(shadow->outer, result);
}

/* Another place of the same size. */
static uint64_t fault_elsewhere(struct dev_fault *dev, const struct dev_io *io)
{
    uint32_t lba = dev->base.info.lba_size;
    uint64_t places = (dev->base.info.size - io->len) / lba + 1;
    uint64_t place = dev_fault_below(dev, places) * lba;
    return place != io->offset ? place : (place + lba) % (places * lba);
}

/* Leaves only a prefix of whole LBAs in the shadow; false when nothing is left. */
static bool fault_shorten(struct dev_fault *dev, struct fault_shadow *shadow)
{
    uint32_t lba = dev->base.info.lba_size;
    uint64_t keep = dev_fault_below(dev, shadow->io.len / lba) * lba;
    if (keep == 0) {
        return false;
    }
    shadow->own_iov = malloc(shadow->io.iov_count * sizeof(struct iovec));
    CHECK(shadow->own_iov != NULL);
    uint64_t sum = 0;
    uint32_t count = 0;
    while (sum < keep) {
        shadow->own_iov[count] = shadow->io.iov[count];
        if (sum + shadow->own_iov[count].iov_len > keep) {
            shadow->own_iov[count].iov_len = keep - sum;
        }
        sum += shadow->own_iov[count++].iov_len;
    }
    shadow->io.iov = shadow->own_iov;
    shadow->io.iov_count = count;
    shadow->io.len = keep;
    return true;
}

static void fault_start(struct dev_fault_queue *queue, struct fault_shadow *shadow)
{
    struct dev_fault *dev = dev_fault_of(queue->base.dev);
    switch (shadow->kind) {
    case DEV_FAULT_ERROR:
        fault_end(queue, shadow, shadow->error);
        return;
    case DEV_FAULT_LOST:
        fault_end(queue, shadow, 0);
        return;
    case DEV_FAULT_TORN:
        if (shadow->io.op != DEV_WRITE || !fault_shorten(dev, shadow)) {
            fault_end(queue, shadow, shadow->error);
            return;
        }
        break;
    case DEV_FAULT_MISDIRECT:
        shadow->io.offset = shadow->io.op == DEV_FLUSH ? 0 : fault_elsewhere(dev, &shadow->io);
        break;
    case DEV_FAULT_HANG:
        list_append(&queue->hung, &shadow->node);
        return;
    case DEV_FAULT_CORRUPT:
    case DEV_FAULT_NONE:
        break;
    }
    dev_submit(queue->inner, &shadow->io);
}

static void dev_fault_submit(struct dev_queue *base, struct dev_io *io)
{
    struct dev_fault_queue *queue = (struct dev_fault_queue *)base;
    struct list *node = list_take_first(&queue->free);
    CHECK(node != NULL); /* as many as the depth */
    struct fault_shadow *shadow = CONTAINER_OF(node, struct fault_shadow, node);
    memset(&shadow->io, 0, sizeof(shadow->io));
    shadow->outer = io;
    shadow->own_iov = NULL;
    shadow->first = io->iov_count > 0 ? io->iov[0] : (struct iovec){NULL, 0};
    shadow->io.op = io->op;
    shadow->io.buf_index = io->buf_index;
    shadow->io.offset = io->offset;
    shadow->io.len = io->len;
    shadow->io.iov = io->iov;
    shadow->io.iov_count = io->iov_count;
    shadow->io.user = shadow;
    dev_fault_choose(dev_fault_of(base->dev), shadow);
    fault_start(queue, shadow);
}

static void fault_done(struct dev_fault_queue *queue, struct fault_shadow *shadow)
{
    struct dev_fault *dev = dev_fault_of(queue->base.dev);
    int result = shadow->io.result;
    if (shadow->kind == DEV_FAULT_CORRUPT && shadow->io.op == DEV_READ && result == 0) {
        uint64_t bit = dev_fault_below(dev, shadow->first.iov_len * 8);
        ((uint8_t *)shadow->first.iov_base)[bit / 8] ^= (uint8_t)(1U << (bit % 8));
    }
    if (shadow->kind == DEV_FAULT_TORN) {
        result = shadow->error;
    }
    fault_end(queue, shadow, result);
}

static void dev_fault_poll(struct dev_queue *base, uint64_t now_ns)
{
    struct dev_fault_queue *queue = (struct dev_fault_queue *)base;
    struct dev_fault *dev = dev_fault_of(base->dev);
    struct dev_io *finished[16];
    uint32_t count;
    pthread_mutex_lock(&dev->lock);
    uint64_t released = dev->released;
    pthread_mutex_unlock(&dev->lock);
    LIST_FOR_EACH_SAFE(node, &queue->hung)
    {
        struct fault_shadow *shadow = CONTAINER_OF(node, struct fault_shadow, node);
        if (shadow->hang_number < released) {
            list_remove(&shadow->node);
            shadow->kind = DEV_FAULT_NONE;
            dev_submit(queue->inner, &shadow->io);
        }
    }
    do {
        count = dev_poll(queue->inner, now_ns, finished, ARRAY_COUNT(finished));
        for (uint32_t i = 0; i < count; i++) {
            fault_done(queue, finished[i]->user);
        }
    } while (count == ARRAY_COUNT(finished));
}

static const struct dev_ops dev_fault_ops = {
    .type = "fault",
    .close = dev_fault_close,
    .queue_open = dev_fault_queue_open,
    .queue_close = dev_fault_queue_close,
    .submit = dev_fault_submit,
    .poll = dev_fault_poll,
};

int dev_fault_open(struct dev *inner, uint64_t seed, struct dev **out)
{
    struct dev_fault *dev = calloc(1, sizeof(*dev));
    if (dev == NULL) {
        return -ENOMEM;
    }
    dev->inner = inner;
    pthread_mutex_init(&dev->lock, NULL);
    rng_seed(&dev->rng, seed);
    dev->base.magic = DEV_MAGIC;
    dev->base.ops = &dev_fault_ops;
    memcpy(dev->base.path, inner->path, sizeof(dev->base.path));
    dev->base.info = inner->info;
    *out = &dev->base;
    return 0;
}

void dev_fault_plan_set(struct dev *base, const struct dev_fault_plan *plan)
{
    struct dev_fault *dev = dev_fault_of(base);
    pthread_mutex_lock(&dev->lock);
    dev->plan = *plan;
    dev->seen = 0;
    dev->fired = 0;
    pthread_mutex_unlock(&dev->lock);
}

uint64_t dev_fault_seen(struct dev *base)
{
    struct dev_fault *dev = dev_fault_of(base);
    pthread_mutex_lock(&dev->lock);
    uint64_t seen = dev->seen;
    pthread_mutex_unlock(&dev->lock);
    return seen;
}

uint64_t dev_fault_fired(struct dev *base)
{
    struct dev_fault *dev = dev_fault_of(base);
    pthread_mutex_lock(&dev->lock);
    uint64_t fired = dev->fired;
    pthread_mutex_unlock(&dev->lock);
    return fired;
}

void dev_fault_release(struct dev *base)
{
    struct dev_fault *dev = dev_fault_of(base);
    pthread_mutex_lock(&dev->lock);
    dev->released++;
    pthread_mutex_unlock(&dev->lock);
}
