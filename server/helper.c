/* SPDX-License-Identifier: Apache-2.0 */
/* helper: the thread's loop, and its two queues. */
#include "server/helper.h"

#include <errno.h>
#include <poll.h>

#include "base/check.h"

static void wait_readable(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    int rc = poll(&wait, 1, -1);
    CHECK(rc >= 0 || errno == EINTR);
}

static void *helper_main(void *argument)
{
    struct helper *helper = argument;
    bool is_stopping = false;
    while (!is_stopping) {
        struct mpsc_node *node = mpsc_take_all(&helper->to_thread);
        if (node == NULL) {
            wait_readable(helper->to_thread.event_fd);
            mpsc_clear(&helper->to_thread);
        }
        while (node != NULL) {
            struct mpsc_node *job = node;
            node = node->next;
            if (job == &helper->stop) {
                is_stopping = true;
            } else {
                helper->work(helper->user, job);
                mpsc_push(&helper->to_worker, job);
            }
        }
    }
    return NULL;
}

int helper_open(struct helper *helper, const char *name, void (*work)(void *user, struct mpsc_node *job),
                void *user)
{
    helper->is_open = false;
    helper->work = work;
    helper->user = user;
    int rc = mpsc_open(&helper->to_thread);
    if (rc < 0) {
        return rc;
    }
    rc = mpsc_open(&helper->to_worker);
    if (rc < 0) {
        goto close_to_thread;
    }
    rc = -pthread_create(&helper->thread, NULL, helper_main, helper);
    if (rc < 0) {
        goto close_to_worker;
    }
    (void)pthread_setname_np(helper->thread, name); /* Only for people: a refusal changes nothing. */
    helper->is_open = true;
    return 0;

close_to_worker:
    mpsc_close(&helper->to_worker);
close_to_thread:
    mpsc_close(&helper->to_thread);
    return rc;
}

struct mpsc_node *helper_close(struct helper *helper)
{
    if (!helper->is_open) {
        return NULL;
    }
    mpsc_push(&helper->to_thread, &helper->stop);
    int rc = pthread_join(helper->thread, NULL);
    CHECK(rc == 0);
    struct mpsc_node *left = mpsc_take_all(&helper->to_worker);
    mpsc_close(&helper->to_worker);
    mpsc_close(&helper->to_thread);
    helper->is_open = false;
    return left;
}

void helper_submit(struct helper *helper, struct mpsc_node *job)
{
    CHECK(helper->is_open);
    mpsc_push(&helper->to_thread, job);
}

struct mpsc_node *helper_collect(struct helper *helper)
{
    return mpsc_collect(&helper->to_worker);
}

void helper_wait(struct helper *helper)
{
    wait_readable(helper->to_worker.event_fd);
    mpsc_clear(&helper->to_worker); /* A signal left over beside an empty queue would end every wait. */
}

int helper_event_fd(const struct helper *helper)
{
    return helper->is_open ? helper->to_worker.event_fd : -1;
}
