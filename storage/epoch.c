/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epoch: see epoch.h. Pins are counted in a ring of epochs; freed space waits in a growing FIFO, tagged in ascending order.
 *
 * Invariants: oldest <= current; current - oldest < EPOCH_RING; pins[e] counts live pins of epoch e in that window; tags in the
 * FIFO never fall. When the window is full (a pin held through EPOCH_RING commits) the epoch stays where it is: later
 * readers then pin an epoch that also holds space freed before them, which delays reuse and breaks nothing.
 */
#include "storage/epoch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define EPOCH_RING 4096U
#define EPOCH_FIFO_FIRST 256U

struct epoch_held {
    struct object_space space;
    uint64_t tag;
};

struct epoch {
    pthread_mutex_t lock;
    uint64_t current;
    uint64_t oldest; /* no pins are older */
    uint64_t pins[EPOCH_RING];
    struct epoch_held *fifo; /* ring of `capacity` (power of two) */
    uint64_t head;           /* oldest entry, ever growing */
    uint64_t tail;
    uint64_t capacity;
    uint64_t held_bytes;
};

int epoch_open(struct epoch **out)
{
    struct epoch *epoch = calloc(1, sizeof(*epoch));
    if (epoch == NULL) {
        return -ENOMEM;
    }
    epoch->current = 1; /* 0 means "no pin" to others */
    epoch->oldest = 1;
    int rc = pthread_mutex_init(&epoch->lock, NULL);
    CHECK(rc == 0);
    *out = epoch;
    return 0;
}

void epoch_close(struct epoch *epoch)
{
    for (uint32_t i = 0; i < EPOCH_RING; i++) {
        CHECK(epoch->pins[i] == 0);
    }
    pthread_mutex_destroy(&epoch->lock);
    free(epoch->fifo);
    free(epoch);
}

uint64_t epoch_pin(struct epoch *epoch)
{
    pthread_mutex_lock(&epoch->lock);
    uint64_t pinned = epoch->current;
    epoch->pins[pinned % EPOCH_RING]++;
    pthread_mutex_unlock(&epoch->lock);
    return pinned;
}

/* Moves `oldest` over epochs without pins; amortised over the epochs that were opened. */
static void epoch_settle(struct epoch *epoch)
{
    while (epoch->oldest < epoch->current && epoch->pins[epoch->oldest % EPOCH_RING] == 0) {
        epoch->oldest++;
    }
}

void epoch_unpin(struct epoch *epoch, uint64_t pinned)
{
    pthread_mutex_lock(&epoch->lock);
    CHECK(pinned >= epoch->oldest);
    CHECK(pinned <= epoch->current);
    CHECK(epoch->pins[pinned % EPOCH_RING] > 0);
    epoch->pins[pinned % EPOCH_RING]--;
    epoch_settle(epoch);
    pthread_mutex_unlock(&epoch->lock);
}

static int epoch_grow(struct epoch *epoch, uint64_t more)
{
    uint64_t used = epoch->tail - epoch->head;
    uint64_t capacity = epoch->capacity == 0 ? EPOCH_FIFO_FIRST : epoch->capacity;
    while (capacity < used + more) {
        capacity *= 2;
    }
    if (capacity == epoch->capacity) {
        return 0;
    }
    struct epoch_held *fifo = malloc(capacity * sizeof(*fifo));
    if (fifo == NULL) {
        return -ENOMEM;
    }
    for (uint64_t i = 0; i < used; i++) {
        fifo[i] = epoch->fifo[(epoch->head + i) & (epoch->capacity - 1)];
    }
    free(epoch->fifo);
    epoch->fifo = fifo;
    epoch->capacity = capacity;
    epoch->head = 0;
    epoch->tail = used;
    return 0;
}

int epoch_free(struct epoch *epoch, const struct object_space *spaces, uint64_t count)
{
    pthread_mutex_lock(&epoch->lock);
    int rc = count == 0 ? 0 : epoch_grow(epoch, count);
    if (rc == 0 && count > 0) {
        for (uint64_t i = 0; i < count; i++) {
            epoch->fifo[epoch->tail++ & (epoch->capacity - 1)] =
                (struct epoch_held){.space = spaces[i], .tag = epoch->current};
            epoch->held_bytes += spaces[i].length;
        }
        if (epoch->current - epoch->oldest + 1 < EPOCH_RING) {
            epoch->current++;
            epoch_settle(epoch);
        }
    }
    pthread_mutex_unlock(&epoch->lock);
    return rc;
}

uint32_t epoch_reclaim(struct epoch *epoch, struct object_space *spaces, uint32_t max)
{
    uint32_t count = 0;
    pthread_mutex_lock(&epoch->lock);
    /* `oldest` has no pins when it is the current epoch without any; then everything is free. */
    uint64_t limit = epoch->oldest == epoch->current && epoch->pins[epoch->oldest % EPOCH_RING] == 0
                         ? UINT64_MAX
                         : epoch->oldest;
    while (count < max && epoch->head != epoch->tail) {
        const struct epoch_held *held = &epoch->fifo[epoch->head & (epoch->capacity - 1)];
        if (held->tag >= limit) {
            break;
        }
        spaces[count++] = held->space;
        epoch->held_bytes -= held->space.length;
        epoch->head++;
    }
    pthread_mutex_unlock(&epoch->lock);
    return count;
}

uint64_t epoch_held_bytes(struct epoch *epoch)
{
    pthread_mutex_lock(&epoch->lock);
    uint64_t held = epoch->held_bytes;
    pthread_mutex_unlock(&epoch->lock);
    return held;
}
