/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_ktcp: listening, accepting, sending and closing on kernel TCP through io_uring.
 *
 * Accepting: a fixed number of one-shot accepts, so that a flood of connections is taken in at the pace of the loop.
 * Sending: one operation of a connection in flight at a time keeps order; a short send continues where it stopped.
 * Recalling: the send under way is cancelled, what it had done so far is its result, those behind it are given back unsent; then a
 * poll waits until the socket takes bytes.
 * Closing: sends end first (or are dropped), then the receive operation is cancelled, then the descriptor is closed and
 * RX_CLOSED told:
 *
 *   open --ktcp_conn_close--> closing --conn_step: sends reported, receive cancelled, no operation left--> free
 */
#include "rx/rx_ktcp.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#define ACCEPT_BACKLOG 4096
#define IGNORED_MAX 64U                   /* an interface and the VLANs on it */
#define ACCEPT_PAUSE_NS (100 * NS_PER_MS) /* after running out of descriptors */
#define CLOSE_WAIT_NS (100 * NS_PER_MS)   /* one wait in ktcp_close */
#define CLOSE_WAITS_MAX 600
/* As in our own engine (tcp.h). The system's, 75 seconds nine times, would keep what a dead peer holds for another eleven minutes. */
#define KTCP_KEEPALIVE_INTERVAL_S 10
#define KTCP_KEEPALIVE_PROBES 6

enum ktcp_op_kind { KTCP_OP_ACCEPT, KTCP_OP_RECV, KTCP_OP_SEND, KTCP_OP_RECALL, KTCP_OP_OWN };

/* ---- operations ------------------------------------------------------------------------------------------------ */

void ktcp_op_end(struct ktcp *ktcp, struct rx_op *op)
{
    CHECK(op->in_flight);
    op->in_flight = false;
    ktcp->ops_in_flight--;
}

static void ktcp_op_done(struct rx_op *op, const struct io_uring_cqe *cqe)
{
    struct ktcp *ktcp = op->instance;
    op->res = cqe->res;
    op->flags = cqe->flags;
    ktcp_op_end(ktcp, op);
    list_append(&ktcp->done, &op->node);
}

static void ktcp_op_init(struct ktcp *ktcp, struct rx_op *op, enum ktcp_op_kind kind, void *subject)
{
    *op = (struct rx_op){.done = ktcp_op_done, .instance = ktcp, .subject = subject, .kind = (uint8_t)kind};
    list_init(&op->node);
}

void ktcp_op_own(struct ktcp *ktcp, struct rx_op *op,
                 void (*done)(struct rx_op *op, const struct io_uring_cqe *cqe))
{
    ktcp_op_init(ktcp, op, KTCP_OP_OWN, NULL);
    op->done = done;
}

void ktcp_op_submit(struct ktcp *ktcp, struct rx_op *op, struct io_uring_sqe *sqe)
{
    CHECK(!op->in_flight);
    CHECK(!list_is_linked(&op->node));
    op->in_flight = true;
    ktcp->ops_in_flight++;
    uring_sqe_bind(sqe, URING_CLASS_RX, op);
}

void ktcp_op_cancel(struct ktcp *ktcp, const struct rx_op *op)
{
    if (op->in_flight) {
        struct io_uring_sqe *sqe = uring_sqe(ktcp->uring);
        io_uring_prep_cancel64(sqe, (uint64_t)(uintptr_t)op | URING_CLASS_RX, 0);
        uring_sqe_bind(sqe, URING_CLASS_NONE, NULL);
    }
}

/* An operation is busy until its completion was acted on, not only until it arrived. */
static bool ktcp_op_busy(const struct rx_op *op)
{
    return op->in_flight || list_is_linked(&op->node);
}

struct ktcp_conn *ktcp_conn_at(struct ktcp *ktcp, uint32_t index)
{
    return pool_item(&ktcp->pool, index);
}

static struct ktcp_conn *ktcp_conn_live(struct rx *rx, struct rx_id id)
{
    struct ktcp_conn *conn = ktcp_conn_at((struct ktcp *)rx, id.index);
    CHECK(conn->generation == id.generation);
    CHECK(conn->fd >= 0);
    return conn;
}

void ktcp_mark_dirty(struct ktcp *ktcp, struct ktcp_conn *conn)
{
    if (!list_is_linked(&conn->dirty_node)) {
        list_append(&ktcp->dirty, &conn->dirty_node);
    }
}

void ktcp_event_init(struct rx_event *event, enum rx_event_kind kind, const struct ktcp_conn *conn)
{
    memset(event, 0, sizeof(*event));
    event->kind = kind;
    event->id = (struct rx_id){.index = conn->index, .generation = conn->generation};
    event->user = conn->user;
}

/* ---- listening ------------------------------------------------------------------------------------------------- */

static int ktcp_bind_refused(int rc, const struct rx_options *options, struct err *err)
{
    char host[INET6_ADDRSTRLEN] = "?";
    unsigned port = 0;
    if (options->address.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&options->address;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        port = ntohs(in6->sin6_port);
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&options->address;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        port = ntohs(in->sin_port);
    }
    const char *hint = rc == -EADDRINUSE      ? "another process listens there (ss -ltnp shows which)"
                       : rc == -EACCES        ? "ports below 1024 need CAP_NET_BIND_SERVICE"
                       : rc == -EADDRNOTAVAIL ? "no interface has this address"
                                              : "check address and port";
    return err_set(err, rc, "cannot listen on [%s]:%u: %s; %s", host, port, err_text(rc), hint);
}

/* The interface and what is stacked on it. */
static uint32_t ignored_indices(const char *interface, uint32_t *indices, uint32_t max)
{
    char path[64];
    uint32_t count = 0;
    uint32_t own = if_nametoindex(interface);
    if (own != 0) {
        indices[count++] = own;
    }
    (void)snprintf(path, sizeof(path), "/sys/class/net/%.15s", interface); /* It fits. */
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return count;
    }
    for (const struct dirent *entry = readdir(dir); entry != NULL && count < max; entry = readdir(dir)) {
        if (strncmp(entry->d_name, "upper_", 6) == 0) {
            indices[count] = if_nametoindex(entry->d_name + 6);
            count += indices[count] != 0;
        }
    }
    closedir(dir);
    return count;
}

static uint32_t index_max(void)
{
    uint32_t max = 0;
    struct if_nameindex *all = if_nameindex();
    for (const struct if_nameindex *one = all; one != NULL && one->if_index != 0; one++) {
        max = one->if_index > max ? one->if_index : max;
    }
    if (all != NULL) {
        if_freenameindex(all);
    }
    return max;
}

/* A listening socket that drops a segment keeps the kernel from answering it with RST: tcp_v4_rcv asks the filter of the socket that it
 * found, and a stray segment for our port finds the listening one. An interface that did not exist when the filter was made may be
 * the ignored one made anew, so that it is ignored too until ktcp_ignore looks again. */
static int ignore_set(int fd, const char *interface)
{
    uint32_t indices[IGNORED_MAX];
    struct sock_filter code[IGNORED_MAX + 4];
    uint32_t count = ignored_indices(interface, indices, IGNORED_MAX);
    uint16_t len = 0;
    code[len++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_IFINDEX));
    /* Each jumps to the last instruction. */
    code[len++] =
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, index_max(), (uint8_t)(count + 1), 0);
    for (uint32_t i = 0; i < count; i++) {
        code[len++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, indices[i], (uint8_t)(count - i), 0);
    }
    code[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
    code[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {.len = len, .filter = code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) < 0 ? -errno : 0;
}

int ktcp_ignore(struct ktcp *ktcp, const char *interface)
{
    return ktcp->listen_fd >= 0 ? ignore_set(ktcp->listen_fd, interface) : 0;
}

/* Accepted sockets inherit the receive buffer of the listening one. */
static int ktcp_listen_socket(const struct rx_options *options, bool share, uint32_t receive_buffer)
{
    int one = 1;
    int half = (int)(receive_buffer / 2); /* The kernel doubles what it is given. */
    int fd = socket(options->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -errno;
    }
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        (half > 0 && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &half, sizeof(half)) < 0) ||
        (share && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) < 0) ||
        (options->ignore_interface != NULL && ignore_set(fd, options->ignore_interface) < 0) ||
        bind(fd, (const struct sockaddr *)&options->address, options->address_len) < 0 ||
        listen(fd, ACCEPT_BACKLOG) < 0) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

static int ktcp_listen(struct ktcp *ktcp, const struct rx_options *options, struct err *err)
{
    /* SO_REUSEPORT would let a second node of the same user bind the port and take half of the connections without a
     * word, so the first worker tries without it before the group is formed. */
    if (options->workers > 1 && options->worker_index == 0) {
        int probe = ktcp_listen_socket(options, false, 0);
        if (probe < 0) {
            return ktcp_bind_refused(probe, options, err);
        }
        close(probe);
    }
    ktcp->listen_fd = ktcp_listen_socket(options, options->workers > 1, ktcp->receive_buffer_max);
    return ktcp->listen_fd < 0 ? ktcp_bind_refused(ktcp->listen_fd, options, err) : 0;
}

int ktcp_open(struct ktcp *ktcp, const struct rx_options *options, const struct ktcp_receive *receive,
              struct err *err)
{
    ktcp->receive = receive;
    ktcp->uring = options->uring;
    ktcp->keepalive_s = options->keepalive_s;
    ktcp->user_timeout_ms = options->user_timeout_ms;
    list_init(&ktcp->done);
    list_init(&ktcp->dirty);
    int rc = pool_open(&ktcp->pool, sizeof(struct ktcp_conn), options->conns_max);
    if (rc < 0) {
        return err_set(err, rc, "no memory for %u connections; lower connections_max", options->conns_max);
    }
    for (uint32_t i = 0; i < options->conns_max; i++) {
        struct ktcp_conn *conn = pool_item(&ktcp->pool, i);
        conn->index = i;
        conn->fd = -1;
    }
    rc = ktcp_listen(ktcp, options, err);
    if (rc < 0) {
        pool_close(&ktcp->pool);
        return rc;
    }
    for (uint32_t i = 0; i < KTCP_ACCEPTS; i++) {
        ktcp_op_init(ktcp, &ktcp->accepts[i].op, KTCP_OP_ACCEPT, &ktcp->accepts[i]);
    }
    ktcp->accepting = true;
    ktcp->accept_rearm = true;
    rx_op_class_install(ktcp->uring);
    return 0;
}

/* ---- accepting ------------------------------------------------------------------------------------------------- */

static void ktcp_accept_arm(struct ktcp *ktcp, uint64_t now_ns)
{
    if (!ktcp->accept_rearm || !ktcp->accepting || now_ns < ktcp->accept_after_ns) {
        return;
    }
    for (uint32_t i = 0; i < KTCP_ACCEPTS; i++) {
        struct ktcp_accept *accept = &ktcp->accepts[i];
        if (ktcp_op_busy(&accept->op)) {
            continue;
        }
        accept->peer_len = sizeof(accept->peer);
        struct io_uring_sqe *sqe = uring_sqe(ktcp->uring);
        io_uring_prep_accept(sqe, ktcp->listen_fd, (struct sockaddr *)&accept->peer, &accept->peer_len,
                             SOCK_CLOEXEC);
        ktcp_op_submit(ktcp, &accept->op, sqe);
    }
    ktcp->accept_rearm = false;
}

/* Refusals of an option leave a connection that works, so they are no errors. */
static void ktcp_conn_tune(const struct ktcp *ktcp, int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (ktcp->keepalive_s > 0) {
        int idle = (int)ktcp->keepalive_s;
        int interval = idle < KTCP_KEEPALIVE_INTERVAL_S ? idle : KTCP_KEEPALIVE_INTERVAL_S;
        int probes = KTCP_KEEPALIVE_PROBES;
        (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    }
    if (ktcp->user_timeout_ms > 0) {
        unsigned timeout = ktcp->user_timeout_ms;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
    }
}

static struct ktcp_conn *ktcp_conn_take(struct ktcp *ktcp, int fd)
{
    struct ktcp_conn *conn = pool_take(&ktcp->pool);
    if (conn == NULL) {
        return NULL;
    }
    uint32_t generation = conn->generation + 1 == 0 ? 1 : conn->generation + 1;
    uint32_t index = conn->index;
    memset(conn, 0, sizeof(*conn));
    conn->index = index;
    conn->generation = generation;
    conn->fd = fd;
    conn->buffer = -1;
    list_init(&conn->dirty_node);
    list_init(&conn->wait_node);
    ktcp_op_init(ktcp, &conn->recv_op, KTCP_OP_RECV, conn);
    ktcp_op_init(ktcp, &conn->send_op, KTCP_OP_SEND, conn);
    ktcp_op_init(ktcp, &conn->recall_op, KTCP_OP_RECALL, conn);
    if (ktcp->receive->record != NULL) {
        conn->recv_op.done = ktcp->receive->record;
    }
    return conn;
}

static void ktcp_accept_failed(struct ktcp *ktcp, int error, uint64_t now_ns)
{
    if (!ktcp->accepting || error == -ECANCELED) {
        return;
    }
    ktcp_count(&ktcp->rx.stats.accept_errors, 1);
    if (error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -ENOBUFS) {
        ktcp->accept_after_ns = now_ns + ACCEPT_PAUSE_NS;
        LOG_WRN("accept_paused", "error=%s remedy=%s", LOG_Q(err_text(error)),
                LOG_Q("raise LimitNOFILE or lower connections_max"));
    }
}

bool ktcp_adopt(struct ktcp *ktcp, int fd, const struct sockaddr_storage *peer,
                const struct sockaddr_storage *local, struct rx_event *event)
{
    struct ktcp_conn *conn = ktcp->accepting ? ktcp_conn_take(ktcp, fd) : NULL;
    if (conn == NULL) {
        close(fd);
        ktcp_count(&ktcp->rx.stats.conns_refused, 1);
        return false;
    }
    ktcp_conn_tune(ktcp, fd);
    ktcp_event_init(event, RX_OPEN, conn);
    event->peer = peer;
    event->local = local;
    ktcp_count(&ktcp->rx.stats.conns_opened, 1);
    ktcp_gauge(&ktcp->rx.stats.conns_open, pool_used(&ktcp->pool));
    ktcp->receive->start(ktcp, conn);
    return true;
}

static bool ktcp_accept_done(struct ktcp *ktcp, struct ktcp_accept *accept, uint64_t now_ns,
                             struct rx_event *event)
{
    ktcp->accept_rearm = true;
    int fd = accept->op.res;
    if (fd < 0) {
        ktcp_accept_failed(ktcp, fd, now_ns);
        return false;
    }
    socklen_t local_len = sizeof(accept->local);
    if (getsockname(fd, (struct sockaddr *)&accept->local, &local_len) < 0) {
        memset(&accept->local, 0,
               sizeof(accept->local)); /* Only shown to people; the peer may be gone already. */
    }
    if (ktcp->accepting && ktcp->receive->accepted != NULL && ktcp->receive->accepted(ktcp, fd, accept)) {
        return false;
    }
    return ktcp_adopt(ktcp, fd, &accept->peer, &accept->local, event);
}

/* ---- sending --------------------------------------------------------------------------------------------------- */

static struct ktcp_send *ktcp_send_head(struct ktcp_conn *conn)
{
    return &conn->sends[conn->send_head % RX_SENDS_MAX];
}

static void ktcp_send_start(struct ktcp *ktcp, struct ktcp_conn *conn)
{
    if (conn->send_count == 0 || conn->send_dead || conn->recalled || ktcp_op_busy(&conn->send_op)) {
        return;
    }
    struct ktcp_send *send = ktcp_send_head(conn);
    struct io_uring_sqe *sqe = uring_sqe(ktcp->uring);
    uint32_t left = send->iov_count - send->iov_at;
    /* MSG_WAITALL makes io_uring continue a short send itself. */
    if (left == 1) {
        const struct iovec *iov = &send->iov[send->iov_at];
        io_uring_prep_send(sqe, conn->fd, iov->iov_base, iov->iov_len, MSG_NOSIGNAL | MSG_WAITALL);
    } else {
        memset(&conn->message, 0, sizeof(conn->message));
        conn->message.msg_iov = &send->iov[send->iov_at];
        conn->message.msg_iovlen = left;
        io_uring_prep_sendmsg(sqe, conn->fd, &conn->message, MSG_NOSIGNAL | MSG_WAITALL);
    }
    ktcp_op_submit(ktcp, &conn->send_op, sqe);
}

/* Moves past `sent` bytes; true when the send is complete. */
static bool ktcp_send_advance(struct ktcp_send *send, uint64_t sent)
{
    while (send->iov_at < send->iov_count && sent >= send->iov[send->iov_at].iov_len) {
        sent -= send->iov[send->iov_at].iov_len;
        send->iov_at++;
    }
    if (send->iov_at < send->iov_count) {
        send->iov[send->iov_at].iov_base = (uint8_t *)send->iov[send->iov_at].iov_base + sent;
        send->iov[send->iov_at].iov_len -= sent;
        return false;
    }
    CHECK(sent == 0);
    return true;
}

static void ktcp_send_report(struct ktcp_conn *conn, int error, struct rx_event *event)
{
    ktcp_event_init(event, RX_SENT, conn);
    event->cookie = ktcp_send_head(conn)->cookie;
    event->error = error;
    event->sent = ktcp_send_head(conn)->sent;
    conn->send_head++;
    conn->send_count--;
}

/* FIN goes out when the last queued send did. */
static void ktcp_send_finish(struct ktcp_conn *conn)
{
    if (conn->fin_wanted && conn->send_count == 0 && !conn->send_dead) {
        conn->send_dead = true;
        conn->send_error = -EPIPE;
        (void)shutdown(conn->fd,
                       SHUT_WR); /* Fails only when the peer is gone already; the receive side tells that. */
    }
}

static bool ktcp_send_done(struct ktcp *ktcp, struct ktcp_conn *conn, struct rx_event *event)
{
    int res = conn->send_op.res;
    bool is_cut = res == -EINTR || res == -EAGAIN || (res == -ECANCELED && conn->recalled && !conn->abortive);
    if (res >= 0) {
        ktcp_count(&ktcp->rx.stats.sent_bytes, (uint64_t)res);
        ktcp_send_head(conn)->sent += (uint64_t)res;
        is_cut = !ktcp_send_advance(ktcp_send_head(conn), (uint64_t)res);
    }
    if (is_cut) {
        ktcp_send_start(ktcp, conn);
        if (conn->recalled) {
            ktcp_mark_dirty(ktcp, conn); /* conn_step gives it back. */
        }
        return false;
    }
    if (res >= 0) {
        ktcp_send_report(conn, 0, event);
        ktcp_send_start(ktcp, conn);
        ktcp_send_finish(conn);
    } else {
        conn->send_dead = true;
        conn->send_error = res;
        ktcp_send_report(conn, res, event);
    }
    ktcp_mark_dirty(ktcp, conn); /* Sends behind a failed one, or the end of closing, come from conn_step. */
    return true;
}

int ktcp_send(struct rx *rx, struct rx_id id, const struct iovec *iov, uint32_t iov_count, uint64_t cookie)
{
    struct ktcp_conn *conn = ktcp_conn_live(rx, id);
    if (conn->send_dead || conn->fin_wanted) {
        return -EPIPE;
    }
    if (conn->send_count == RX_SENDS_MAX) {
        return -EAGAIN;
    }
    struct ktcp_send *send = &conn->sends[(conn->send_head + conn->send_count) % RX_SENDS_MAX];
    *send = (struct ktcp_send){.iov_count = iov_count, .cookie = cookie};
    memcpy(send->iov, iov, sizeof(*iov) * iov_count);
    conn->send_count++;
    ktcp_send_start((struct ktcp *)rx, conn);
    return 0;
}

/* Cancels the send under way, again whenever a cancellation is done and the send is not: a send that the kernel has just taken in hand, to
 * go on with it, is not found (-ENOENT, -EALREADY), and would then wait for its peer without anybody to cut it. */
static void ktcp_recall(struct ktcp *ktcp, struct ktcp_conn *conn)
{
    if (!conn->recalled || conn->polling || !conn->send_op.in_flight || ktcp_op_busy(&conn->recall_op)) {
        return;
    }
    struct io_uring_sqe *sqe = uring_sqe(ktcp->uring);
    io_uring_prep_cancel64(sqe, (uint64_t)(uintptr_t)&conn->send_op | URING_CLASS_RX, 0);
    ktcp_op_submit(ktcp, &conn->recall_op, sqe);
}

int ktcp_send_recall(struct rx *rx, struct rx_id id)
{
    struct ktcp *ktcp = (struct ktcp *)rx;
    struct ktcp_conn *conn = ktcp_conn_live(rx, id);
    conn->recalled = true;
    ktcp_recall(ktcp, conn);
    ktcp_mark_dirty(ktcp, conn);
    return 0;
}

uint64_t ktcp_acked(struct rx *rx, struct rx_id id)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    const struct ktcp_conn *conn = ktcp_conn_live(rx, id);
    return getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ? 0 : info.tcpi_bytes_acked;
}

static void ktcp_room_wait(struct ktcp *ktcp, struct ktcp_conn *conn)
{
    struct io_uring_sqe *sqe = uring_sqe(ktcp->uring);
    io_uring_prep_poll_add(sqe, conn->fd, POLLOUT);
    conn->polling = true;
    ktcp_op_submit(ktcp, &conn->send_op, sqe);
}

/* The poll for room has completed. Trouble with the socket is room, too: the next send finds it. */
static bool ktcp_room_done(struct ktcp *ktcp, struct ktcp_conn *conn, struct rx_event *event)
{
    conn->polling = false;
    if (conn->closing || conn->send_dead || !conn->recalled) {
        ktcp_mark_dirty(ktcp, conn);
        return false;
    }
    conn->recalled = false;
    ktcp_event_init(event, RX_ROOM, conn);
    return true;
}

void ktcp_shutdown(struct rx *rx, struct rx_id id)
{
    struct ktcp_conn *conn = ktcp_conn_live(rx, id);
    conn->fin_wanted = true;
    ktcp_send_finish(conn);
}

/* ---- closing --------------------------------------------------------------------------------------------------- */

void ktcp_conn_close(struct rx *rx, struct rx_id id, bool abortive)
{
    struct ktcp *ktcp = (struct ktcp *)rx;
    struct ktcp_conn *conn = ktcp_conn_live(rx, id);
    conn->closing = true;
    if (abortive && !conn->abortive) {
        struct linger reset = {.l_onoff = 1, .l_linger = 0};
        conn->abortive = true;
        (void)setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)); /* Then close sends RST. */
        ktcp_op_cancel(ktcp, &conn->send_op);
        if (!conn->send_dead) {
            conn->send_dead = true;
            conn->send_error = -ECANCELED;
        }
    }
    ktcp_mark_dirty(ktcp, conn);
}

static void ktcp_conn_free(struct ktcp *ktcp, struct ktcp_conn *conn)
{
    ktcp->receive->end(ktcp, conn);
    list_remove(&conn->wait_node);
    int rc = close(conn->fd);
    CHECK(rc == 0 || errno != EBADF);
    conn->fd = -1;
    pool_give(&ktcp->pool, conn);
    ktcp_gauge(&ktcp->rx.stats.conns_open, pool_used(&ktcp->pool));
}

/* One step of a connection that has something to say without a completion. True: `event` is filled. */
static bool ktcp_conn_step(struct ktcp *ktcp, struct ktcp_conn *conn, struct rx_event *event)
{
    if (conn->send_dead && conn->send_count > 0 && !ktcp_op_busy(&conn->send_op)) {
        ktcp_send_report(conn, conn->send_error, event);
        ktcp_mark_dirty(ktcp, conn);
        return true;
    }
    if (conn->recalled && conn->send_count > 0 && !ktcp_op_busy(&conn->send_op)) {
        ktcp_send_report(conn, -EAGAIN, event);
        ktcp_mark_dirty(ktcp, conn);
        return true;
    }
    if (conn->recalled && !conn->closing && !conn->send_dead && !ktcp_op_busy(&conn->send_op)) {
        ktcp_room_wait(ktcp, conn);
    }
    if (!conn->closing || conn->send_count > 0) {
        return false;
    }
    if (conn->polling) {
        ktcp_op_cancel(ktcp, &conn->send_op);
    }
    if (conn->recv_op.in_flight && !conn->cancelled) {
        conn->cancelled = true;
        ktcp_op_cancel(ktcp, &conn->recv_op);
    }
    if (ktcp_op_busy(&conn->recv_op) || conn->records > 0 || ktcp_op_busy(&conn->send_op) ||
        ktcp_op_busy(&conn->recall_op)) {
        return false; /* Its completion marks the connection dirty again. */
    }
    ktcp_event_init(event, RX_CLOSED, conn);
    ktcp_conn_free(ktcp, conn);
    return true;
}

void ktcp_accept_stop(struct rx *rx)
{
    struct ktcp *ktcp = (struct ktcp *)rx;
    if (!ktcp->accepting) {
        return;
    }
    ktcp->accepting = false;
    for (uint32_t i = 0; i < KTCP_ACCEPTS; i++) {
        ktcp_op_cancel(ktcp, &ktcp->accepts[i].op);
    }
    /* shutdown resets what waits in the backlog and ends listening at once, whatever the ring still references. */
    (void)shutdown(ktcp->listen_fd, SHUT_RDWR);
    close(ktcp->listen_fd);
    ktcp->listen_fd = -1;
}

static void ktcp_drop(struct ktcp *ktcp)
{
    if (ktcp->receive->drop != NULL) {
        ktcp->receive->drop(ktcp);
    }
}

void ktcp_close(struct ktcp *ktcp)
{
    ktcp_accept_stop(&ktcp->rx);
    for (uint32_t i = 0; i < ktcp->pool.count; i++) {
        struct ktcp_conn *conn = ktcp_conn_at(ktcp, i);
        if (conn->fd >= 0) {
            struct rx_id id = {.index = i, .generation = conn->generation};
            ktcp_conn_close(&ktcp->rx, id, true);
            ktcp_op_cancel(ktcp, &conn->recv_op);
        }
    }
    for (int i = 0; ktcp->ops_in_flight > 0 && i < CLOSE_WAITS_MAX; i++) {
        CHECK(uring_submit_and_wait(ktcp->uring, CLOSE_WAIT_NS) == 0);
        uring_reap(ktcp->uring, UINT32_MAX);
        ktcp_drop(ktcp);
    }
    CHECK(ktcp->ops_in_flight == 0);
    ktcp_drop(ktcp);
    for (struct list *node = list_take_first(&ktcp->done); node != NULL;
         node = list_take_first(&ktcp->done)) {
        struct rx_op *op = CONTAINER_OF(node, struct rx_op, node);
        if (op->kind == KTCP_OP_ACCEPT && op->res >= 0) {
            close(op->res);
        }
    }
    for (uint32_t i = 0; i < ktcp->pool.count; i++) {
        struct ktcp_conn *conn = ktcp_conn_at(ktcp, i);
        if (conn->fd >= 0) {
            ktcp_conn_free(ktcp, conn);
        }
    }
    pool_close(&ktcp->pool);
}

/* ---- the loop's face ------------------------------------------------------------------------------------------- */

static bool ktcp_op_handle(struct ktcp *ktcp, struct rx_op *op, uint64_t now_ns, struct rx_event *event)
{
    if (op->kind == KTCP_OP_ACCEPT) {
        return ktcp_accept_done(ktcp, op->subject, now_ns, event);
    }
    struct ktcp_conn *conn = op->subject;
    bool told = false;
    if (op->kind == KTCP_OP_RECALL) {
        ktcp_recall(ktcp, conn);
    } else if (op->kind == KTCP_OP_SEND) {
        told = conn->polling ? ktcp_room_done(ktcp, conn, event) : ktcp_send_done(ktcp, conn, event);
    } else {
        told = ktcp->receive->done(ktcp, conn, event);
    }
    if (conn->closing) {
        ktcp_mark_dirty(ktcp, conn);
    }
    return told;
}

int ktcp_poll(struct rx *rx, uint64_t now_ns, struct rx_event *events, uint32_t max)
{
    struct ktcp *ktcp = (struct ktcp *)rx;
    uint32_t count = 0;
    ktcp_accept_arm(ktcp, now_ns);
    while (count < max && !list_is_empty(&ktcp->done)) {
        struct rx_op *op = CONTAINER_OF(list_take_first(&ktcp->done), struct rx_op, node);
        count += ktcp_op_handle(ktcp, op, now_ns, &events[count]) ? 1 : 0;
    }
    while (count < max && !list_is_empty(&ktcp->dirty)) {
        struct ktcp_conn *conn = CONTAINER_OF(list_take_first(&ktcp->dirty), struct ktcp_conn, dirty_node);
        count += ktcp_conn_step(ktcp, conn, &events[count]) ? 1 : 0;
    }
    return (int)count;
}

uint64_t ktcp_deadline(struct rx *rx)
{
    const struct ktcp *ktcp = (const struct ktcp *)rx;
    if (!list_is_empty(&ktcp->done) || !list_is_empty(&ktcp->dirty)) {
        return 0;
    }
    return ktcp->accept_rearm && ktcp->accepting ? ktcp->accept_after_ns : TIME_NEVER;
}

void ktcp_user_set(struct rx *rx, struct rx_id id, void *user)
{
    ktcp_conn_live(rx, id)->user = user;
}

void ktcp_pause(struct rx *rx, struct rx_id id)
{
    ktcp_conn_live(rx, id)->paused = true;
}

void ktcp_resume(struct rx *rx, struct rx_id id)
{
    struct ktcp_conn *conn = ktcp_conn_live(rx, id);
    conn->paused = false;
    if (!conn->ended && !conn->closing) {
        ((struct ktcp *)rx)->receive->start((struct ktcp *)rx, conn);
    }
}
