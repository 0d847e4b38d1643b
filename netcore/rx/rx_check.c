/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_check: the checked wrappers of rx.h. They record, per connection, where it is in the contract and assert before
 * and after each call of a backend that caller and backend keep it. A violation is our bug and stops the process.
 *
 * State of a connection as the consumer may know it (the function that moves it in brackets):
 *
 *   absent --RX_OPEN[rx_poll]--> open --RX_EOF--> ended --.
 *                                 |  `--RX_RESET--------->| ended        rx_conn_close: closing
 *                                 `------- RX_CLOSED[rx_poll, only when closing] ---> absent
 */
#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "rx/rx_int.h"

enum check_state { CHECK_ABSENT, CHECK_OPEN, CHECK_ENDED };

struct check_conn {
    uint32_t generation; /* of the latest connection in this place */
    uint8_t state;       /* enum check_state */
    bool closing;        /* rx_conn_close was called */
    bool shut;           /* rx_shutdown was called */
    bool recalled;       /* rx_send_recall was called, RX_ROOM has not come */
    uint8_t sends;       /* accepted and not reported */
    void *user;
};

struct rx_check {
    uint32_t conns_max;
    struct check_conn conns[];
};

static void rx_op_dispatch(void *ctx, void *pointer, const struct io_uring_cqe *cqe)
{
    (void)ctx; /* Operations know their instance; the class as a whole has no state. */
    struct rx_op *op = pointer;
    op->done(op, cqe);
}

void rx_op_class_install(struct uring *uring)
{
    uring_handler_set(uring, URING_CLASS_RX, rx_op_dispatch, NULL);
}

int rx_check_open(struct rx *rx)
{
    struct rx_check *check = calloc(1, sizeof(*check) + sizeof(check->conns[0]) * rx->info.conns_max);
    if (check == NULL) {
        return -ENOMEM;
    }
    check->conns_max = rx->info.conns_max;
    rx->check = check;
    return 0;
}

void rx_check_close(struct rx *rx)
{
    free(rx->check);
    rx->check = NULL;
}

static struct check_conn *check_live(struct rx *rx, struct rx_id id)
{
    CHECK(rx->magic == RX_MAGIC);
    CHECK(id.index < rx->check->conns_max);
    struct check_conn *conn = &rx->check->conns[id.index];
    CHECK(conn->state != CHECK_ABSENT);
    CHECK(conn->generation == id.generation);
    return conn;
}

int rx_open(const struct rx_ops *ops, const struct rx_options *options, struct rx **out, struct err *err)
{
    CHECK(options->name != NULL);
    CHECK(options->uring != NULL);
    CHECK(options->arena != NULL);
    CHECK(options->conns_max > 0);
    struct rx *rx = NULL;
    int rc = ops->open(options, &rx, err);
    if (rc < 0) {
        return err_prefix(err, rc, "listener %s", options->name);
    }
    CHECK(rx->magic == RX_MAGIC);
    CHECK(rx->ops == ops);
    CHECK(rx->owner.release != NULL);
    rc = rx_check_open(rx);
    if (rc < 0) {
        ops->close(rx);
        return err_set(err, rc, "listener %s: out of memory for %u connections", options->name,
                       options->conns_max);
    }
    *out = rx;
    return 0;
}

void rx_close(struct rx *rx)
{
    CHECK(rx->magic == RX_MAGIC);
    rx_check_close(rx);
    rx->ops->close(rx);
}

static void check_event_open(struct rx *rx, const struct rx_event *event)
{
    CHECK(event->id.index < rx->check->conns_max);
    CHECK(event->id.generation != 0);
    struct check_conn *conn = &rx->check->conns[event->id.index];
    CHECK(conn->state == CHECK_ABSENT);
    CHECK(conn->generation != event->id.generation);
    CHECK(event->peer != NULL);
    CHECK(event->local != NULL);
    *conn = (struct check_conn){.generation = event->id.generation, .state = CHECK_OPEN};
}

static void check_event_data(const struct rx *rx, const struct check_conn *conn, const struct rx_event *event)
{
    CHECK(conn->state == CHECK_OPEN);
    CHECK(!conn->closing);
    CHECK(event->slice.len > 0);
    CHECK(event->slice.addr != NULL);
    CHECK(event->slice.owner == &rx->owner);
}

static void check_event_live(struct rx *rx, const struct rx_event *event)
{
    struct check_conn *conn = check_live(rx, event->id);
    CHECK(event->user == conn->user);
    switch (event->kind) {
    case RX_DATA:
        check_event_data(rx, conn, event);
        break;
    case RX_EOF:
    case RX_RESET:
        CHECK(conn->state == CHECK_OPEN || (event->kind == RX_RESET && conn->state == CHECK_ENDED));
        CHECK(event->kind == RX_EOF || event->error < 0);
        conn->state = CHECK_ENDED;
        break;
    case RX_SENT:
        CHECK(conn->sends > 0);
        CHECK(event->error <= 0);
        CHECK(event->error != -EAGAIN || conn->recalled);
        conn->sends--;
        break;
    case RX_ROOM:
        CHECK(conn->recalled);
        CHECK(conn->sends == 0);
        CHECK(!conn->closing);
        conn->recalled = false;
        break;
    case RX_CLOSED:
        CHECK(conn->closing);
        CHECK(conn->sends == 0);
        conn->state = CHECK_ABSENT;
        break;
    default:
        CHECK(!"known event kind");
    }
}

int rx_poll(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max)
{
    CHECK(rx->magic == RX_MAGIC);
    CHECK(max > 0);
    int count = rx->ops->poll(rx, now_ns, events, max);
    CHECK(count <= (int)max);
    for (int i = 0; i < count; i++) {
        if (events[i].kind == RX_OPEN) {
            check_event_open(rx, &events[i]);
        } else {
            check_event_live(rx, &events[i]);
        }
    }
    return count;
}

uint64_t rx_deadline(struct rx *rx)
{
    CHECK(rx->magic == RX_MAGIC);
    return rx->ops->deadline(rx);
}

void rx_user_set(struct rx *rx, struct rx_id id, void *user)
{
    check_live(rx, id)->user = user;
    rx->ops->user_set(rx, id, user);
}

void rx_pause(struct rx *rx, struct rx_id id)
{
    (void)check_live(rx, id); /* Called for its checks. */
    rx->ops->pause(rx, id);
}

void rx_resume(struct rx *rx, struct rx_id id)
{
    (void)check_live(rx, id); /* Called for its checks. */
    rx->ops->resume(rx, id);
}

int rx_send(struct rx *rx, struct rx_id id, const struct iovec *iov, uint32_t iov_count, uint64_t cookie)
{
    struct check_conn *conn = check_live(rx, id);
    CHECK(iov_count >= 1);
    CHECK(iov_count <= RX_SEND_IOV_MAX);
    for (uint32_t i = 0; i < iov_count; i++) {
        CHECK(iov[i].iov_len > 0);
    }
    CHECK(!conn->closing);
    CHECK(!conn->recalled);
    int rc = rx->ops->send(rx, id, iov, iov_count, cookie);
    CHECK(rc == 0 || rc == -EAGAIN || rc == -EPIPE);
    CHECK(rc != 0 || !conn->shut);
    if (rc == 0) {
        conn->sends++;
        CHECK(conn->sends <= RX_SENDS_MAX);
    }
    return rc;
}

int rx_send_recall(struct rx *rx, struct rx_id id)
{
    struct check_conn *conn = check_live(rx, id);
    CHECK(!conn->closing);
    if (rx->ops->send_recall == NULL) {
        return -EOPNOTSUPP;
    }
    int rc = rx->ops->send_recall(rx, id);
    CHECK(rc == 0 || rc == -EAGAIN);
    conn->recalled |= rc == 0;
    return rc;
}

uint64_t rx_acked(struct rx *rx, struct rx_id id)
{
    (void)check_live(rx, id); /* Called for its checks. */
    return rx->ops->acked == NULL ? 0 : rx->ops->acked(rx, id);
}

void rx_shutdown(struct rx *rx, struct rx_id id)
{
    struct check_conn *conn = check_live(rx, id);
    CHECK(!conn->closing);
    conn->shut = true;
    rx->ops->shutdown(rx, id);
}

void rx_conn_close(struct rx *rx, struct rx_id id, bool abortive)
{
    check_live(rx, id)->closing = true;
    rx->ops->conn_close(rx, id, abortive);
}

void rx_accept_stop(struct rx *rx)
{
    CHECK(rx->magic == RX_MAGIC);
    rx->ops->accept_stop(rx);
}
