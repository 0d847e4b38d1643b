/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_watch: see the header. Two netlink sockets: rtnetlink's link group, and the `page-pool` group of the netdev family
 * (Linux 6.8), in which a new pool with an io_uring provider on a watched interface means that its queue was restarted.
 *
 *   up --flags lost[link_changed]--> down --flags back--> up;  any --RTM_DELLINK--> removed --a new one has its name--> up or down
 *
 * A lost notification (ENOBUFS) loses a line in the log and no more: the next message tells the present state.
 */
#include "nic/nic_watch.h"

#include <errno.h>
#include <linux/genetlink.h>
#include <linux/netdev.h>
#include <linux/rtnetlink.h>
#include <netlink/genl/ctrl.h>
#include <netlink/genl/genl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "nic/nic_genl.h"

#define WATCH_BUFFER 32768U
#define WATCH_READS_MAX 64U /* datagrams per call; the descriptor stays readable for the rest */

void nic_watch_init(struct nic_watch *watch)
{
    memset(watch, 0, sizeof(*watch));
    watch->fd = -1;
    watch->page_pool_fd = -1;
}

bool nic_watch_add(struct nic_watch *watch, const char *name)
{
    for (uint32_t i = 0; i < watch->count; i++) {
        if (strcmp(watch->nics[i].name, name) == 0) {
            return true;
        }
    }
    uint32_t index = if_nametoindex(name);
    if (watch->count == NIC_WATCH_MAX || index == 0) {
        return false;
    }
    struct nic_watched *nic = &watch->nics[watch->count++];
    snprintf(nic->name, sizeof(nic->name), "%s", name); /* An interface's name fits. */
    nic->index = index;
    nic->is_up = true;
    return true;
}

/* ---- sockets --------------------------------------------------------------------------------------------------- */

static int watch_socket(int protocol, uint32_t group)
{
    struct sockaddr_nl local = {.nl_family = AF_NETLINK};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
    if (fd < 0) {
        return -errno;
    }
    if (bind(fd, (struct sockaddr *)&local, sizeof(local)) < 0 ||
        setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)) < 0) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

/* Older kernels have no such group; then restarts of queues go unreported. */
static void watch_open_page_pools(struct nic_watch *watch)
{
    struct nic_genl genl;
    struct err unused = {""};
    if (nic_genl_open(&genl, NETDEV_FAMILY_NAME, &unused) < 0) {
        return;
    }
    int group = genl_ctrl_resolve_grp(genl.sock, NETDEV_FAMILY_NAME, NETDEV_MCGRP_PAGE_POOL);
    if (group >= 0) {
        watch->page_pool_fd = watch_socket(NETLINK_GENERIC, (uint32_t)group);
        watch->netdev_family = watch->page_pool_fd >= 0 ? (uint16_t)genl.family : 0;
    }
    nic_genl_close(&genl);
}

static void watch_open_stats(struct nic_watch *watch)
{
    struct err unused = {""};
    watch->stats = calloc(1, sizeof(*watch->stats));
    if (watch->stats != NULL && nic_genl_open(watch->stats, NETDEV_FAMILY_NAME, &unused) < 0) {
        free(watch->stats);
        watch->stats = NULL;
    }
}

int nic_watch_open(struct nic_watch *watch, struct err *err)
{
    if (watch->count == 0) {
        return 0;
    }
    watch->fd = watch_socket(NETLINK_ROUTE, RTNLGRP_LINK);
    if (watch->fd < 0) {
        int rc = watch->fd;
        watch->fd = -1;
        return err_set(err, rc, "cannot watch interfaces: %s", err_text(rc));
    }
    watch_open_page_pools(watch);
    watch_open_stats(watch);
    nic_watch_ask(watch); /* What they count from now on is news. */
    return 0;
}

void nic_watch_close(struct nic_watch *watch)
{
    int fds[] = {watch->fd, watch->page_pool_fd};
    for (size_t i = 0; i < 2; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    watch->fd = -1;
    watch->page_pool_fd = -1;
    if (watch->stats != NULL) {
        nic_genl_close(watch->stats);
        free(watch->stats);
        watch->stats = NULL;
    }
}

/* ---- the drivers' counters ------------------------------------------------------------------------------------- */

void nic_watch_no_buffers(struct nic_watch *watch, uint32_t at, uint64_t count)
{
    struct nic_watched *nic = &watch->nics[at];
    uint64_t fresh = count - nic->no_buffers;
    bool is_news = nic->is_based && count > nic->no_buffers; /* A driver that was loaded anew starts again. */
    nic->is_based = true;
    nic->no_buffers = count;
    if (is_news) {
        watch->no_buffers += fresh;
        LOG_WRN(
            "nic_no_buffers", "interface=%s failed=%llu remedy=%s", nic->name, (unsigned long long)fresh,
            LOG_Q("the driver got no receive buffer and dropped; a larger rx_area_size or more free memory"));
    }
}

static void watch_stats_answer(void *ctx, const struct nlattr *attrs, int len)
{
    uint64_t *count = ctx;
    const struct nlattr *fails = nla_find(attrs, len, NETDEV_A_QSTATS_RX_ALLOC_FAIL);
    /* A "uint" of the specification: four or eight bytes. */
    if (fails != NULL) {
        *count += nla_len(fails) >= 8 ? nla_get_u64(fails) : nla_get_u32(fails);
    }
}

void nic_watch_ask(struct nic_watch *watch)
{
    for (uint32_t i = 0; watch->stats != NULL && i < watch->count; i++) {
        uint64_t count = 0;
        if (watch->nics[i].is_removed) {
            continue;
        }
        struct nl_msg *message = nic_genl_message(watch->stats, NETDEV_CMD_QSTATS_GET, NLM_F_DUMP);
        if (message != NULL && nla_put_u32(message, NETDEV_A_QSTATS_IFINDEX, watch->nics[i].index) < 0) {
            nlmsg_free(message);
            message = NULL;
        }
        /* Drivers without these counters refuse; they are asked in vain. */
        if (nic_genl_call(watch->stats, message, watch_stats_answer, &count) == 0) {
            nic_watch_no_buffers(watch, i, count);
        }
    }
}

/* ---- messages -------------------------------------------------------------------------------------------------- */

static struct nic_watched *watch_find(struct nic_watch *watch, uint32_t index)
{
    for (uint32_t i = 0; i < watch->count; i++) {
        if (watch->nics[i].index == index && !watch->nics[i].is_removed) {
            return &watch->nics[i];
        }
    }
    return NULL;
}

static bool is_up(const struct ifinfomsg *info)
{
    return (info->ifi_flags & IFF_UP) != 0 && (info->ifi_flags & IFF_RUNNING) != 0;
}

/* The kernel ends it by a zero; whatever stands behind that is no part of it. */
static bool is_named(const struct nlattr *attr, const char *name)
{
    size_t len = strlen(name) + 1;
    return nla_len(attr) >= (int)len && memcmp(nla_data(attr), name, len) == 0;
}

/* One that was removed is the same one again when another has its name: af_xdp goes on there, by name. */
static void watch_back(struct nic_watch *watch, const struct nlmsghdr *message)
{
    const struct ifinfomsg *info = NLMSG_DATA(message);
    const struct nlattr *name =
        nla_find(nlmsg_attrdata(message, sizeof(*info)), nlmsg_attrlen(message, sizeof(*info)), IFLA_IFNAME);
    for (uint32_t i = 0; name != NULL && i < watch->count; i++) {
        struct nic_watched *nic = &watch->nics[i];
        if (nic->is_removed && is_named(name, nic->name)) {
            nic->index = (uint32_t)info->ifi_index;
            nic->is_removed = false;
            nic->is_based = false; /* Its driver counts anew. */
            nic->is_up = is_up(info);
            watch->renewals++;
            LOG_INF("nic_back", "interface=%s is_up=%d", nic->name, nic->is_up);
        }
    }
}

static void watch_link(struct nic_watch *watch, const struct nlmsghdr *message)
{
    if (message->nlmsg_len < NLMSG_LENGTH(sizeof(struct ifinfomsg))) {
        return;
    }
    const struct ifinfomsg *info = NLMSG_DATA(message);
    struct nic_watched *nic = watch_find(watch, (uint32_t)info->ifi_index);
    if (nic == NULL && info->ifi_family == AF_UNSPEC && message->nlmsg_type == RTM_NEWLINK) {
        watch_back(watch, message);
    }
    /* Bridges announce their ports in messages of their own family, a leaving port by a deletion. */
    if (nic == NULL || info->ifi_family != AF_UNSPEC) {
        return;
    }
    if (message->nlmsg_type == RTM_DELLINK) {
        nic->is_removed = true;
        watch->removals++;
        LOG_ERR("nic_removed", "interface=%s remedy=%s", nic->name,
                LOG_Q("zcrx listeners receive nothing before the node starts again; af_xdp goes on when it "
                      "is back"));
        return;
    }
    if (is_up(info) == nic->is_up) {
        return;
    }
    nic->is_up = is_up(info);
    if (nic->is_up) {
        watch->renewals++;
        LOG_INF("nic_up", "interface=%s", nic->name);
    } else {
        watch->downs++;
        LOG_WRN("nic_down", "interface=%s why=%s", nic->name,
                LOG_Q((info->ifi_flags & IFF_UP) != 0 ? "no carrier" : "it was set down"));
    }
}

static void watch_page_pool(struct nic_watch *watch, const struct nlmsghdr *message)
{
    if (message->nlmsg_len < NLMSG_LENGTH(GENL_HDRLEN)) {
        return;
    }
    const struct genlmsghdr *header = NLMSG_DATA(message);
    const struct nlattr *attrs = genlmsg_attrdata(header, 0);
    int len = (int)(message->nlmsg_len - NLMSG_LENGTH(GENL_HDRLEN));
    const struct nlattr *index = nla_find(attrs, len, NETDEV_A_PAGE_POOL_IFINDEX);
    if (header->cmd != NETDEV_CMD_PAGE_POOL_ADD_NTF || index == NULL || nla_len(index) < 4 ||
        nla_find(attrs, len, NETDEV_A_PAGE_POOL_IO_URING) == NULL) {
        return;
    }
    const struct nic_watched *nic = watch_find(watch, nla_get_u32(index));
    if (nic != NULL) {
        watch->queue_restarts++;
        watch->renewals++;
        LOG_INF("nic_queue_restarted", "interface=%s what=%s", nic->name,
                LOG_Q("the driver gave a zero-copy queue a new page pool; what was in its ring is sent again "
                      "by TCP"));
    }
}

void nic_watch_message(struct nic_watch *watch, const struct nlmsghdr *message)
{
    if (message->nlmsg_type == RTM_NEWLINK || message->nlmsg_type == RTM_DELLINK) {
        watch_link(watch, message);
    } else if (watch->netdev_family != 0 && message->nlmsg_type == watch->netdev_family) {
        watch_page_pool(watch, message);
    }
}

static void watch_read(struct nic_watch *watch, int fd)
{
    static _Alignas(struct nlmsghdr) uint8_t buffer[WATCH_BUFFER]; /* one reading thread per process */
    for (uint32_t reads = 0; fd >= 0 && reads < WATCH_READS_MAX; reads++) {
        struct sockaddr_nl from = {.nl_pid = UINT32_MAX};
        socklen_t from_len = sizeof(from);
        ssize_t got = recvfrom(fd, buffer, sizeof(buffer), 0, (struct sockaddr *)&from, &from_len);
        if (got < 0 && errno == ENOBUFS) {
            watch->renewals++; /* Some were lost, perhaps one of these; what follows is newer. */
            continue;
        }
        if (got <= 0) {
            return;
        }
        if (from.nl_pid != 0) {
            continue; /* Only the kernel is believed. */
        }
        int left = (int)got;
        for (struct nlmsghdr *one = (struct nlmsghdr *)buffer; nlmsg_ok(one, left);
             one = nlmsg_next(one, &left)) {
            nic_watch_message(watch, one);
        }
    }
}

void nic_watch_read(struct nic_watch *watch)
{
    watch_read(watch, watch->fd);
    watch_read(watch, watch->page_pool_fd);
}
