/* SPDX-License-Identifier: Apache-2.0 */
/* mpsc: a stack that the consumer takes whole and turns round; correct because only one thread ever takes. */
#include "base/mpsc.h"

#include <errno.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"

int mpsc_open(struct mpsc *queue)
{
    atomic_init(&queue->head, NULL);
    queue->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return queue->event_fd < 0 ? -errno : 0;
}

void mpsc_close(struct mpsc *queue)
{
    CHECK(atomic_load(&queue->head) == NULL);
    if (queue->event_fd >= 0) {
        close(queue->event_fd);
    }
    queue->event_fd = -1;
}

void mpsc_push(struct mpsc *queue, struct mpsc_node *node)
{
    struct mpsc_node *old = atomic_load_explicit(&queue->head, memory_order_relaxed);
    do {
        node->next = old;
    } while (!atomic_compare_exchange_weak_explicit(&queue->head, &old, node, memory_order_release,
                                                    memory_order_relaxed));
    if (old == NULL) {
        mpsc_wake(queue);
    }
}

struct mpsc_node *mpsc_take_all(struct mpsc *queue)
{
    struct mpsc_node *newest = atomic_exchange_explicit(&queue->head, NULL, memory_order_acquire);
    struct mpsc_node *oldest = NULL;
    while (newest != NULL) {
        struct mpsc_node *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

struct mpsc_node *mpsc_collect(struct mpsc *queue)
{
    if (atomic_load_explicit(&queue->head, memory_order_relaxed) == NULL) {
        return NULL; /* Whoever pushes now finds it empty and signals. */
    }
    /* Before the take: a push after it signals anew, and clearing that would leave its node without a wake-up. */
    mpsc_clear(queue);
    return mpsc_take_all(queue);
}

void mpsc_wake(struct mpsc *queue)
{
    uint64_t one = 1;
    ssize_t rc = write(queue->event_fd, &one, sizeof(one));
    /* EAGAIN: the counter is full, so a wake-up is pending anyway. */
    CHECK(rc == sizeof(one) || errno == EAGAIN);
}

void mpsc_clear(struct mpsc *queue)
{
    uint64_t count;
    ssize_t rc = read(queue->event_fd, &count, sizeof(count));
    CHECK(rc == sizeof(count) || errno == EAGAIN);
}
