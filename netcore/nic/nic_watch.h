/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_watch: what happens to the listeners' NICs while the node runs, from the kernel's notifications: an interface goes
 * down, comes up, is removed, or a zero-copy queue is restarted. Nothing is decided from it - TCP and the rings tell their
 * own tale - but without it nobody could say why uploads stood still.
 *
 * For one thread that may wait on a descriptor; never for a worker's loop.
 */
#ifndef NIC_NIC_WATCH_H
#define NIC_NIC_WATCH_H

#include <linux/netlink.h>
#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct nic_genl;

#define NIC_WATCH_MAX 16U

struct nic_watched {
    char name[IFNAMSIZ];
    uint32_t index;
    bool is_up; /* administratively up and with carrier */
    bool is_removed;
    bool is_based;       /* `no_buffers` holds the driver's count */
    uint64_t no_buffers; /* the driver's count of failed buffer allocations when it was last asked */
};

/* Counts since the start; read by the thread that calls nic_watch_read. */
struct nic_watch {
    int fd; /* -1: not open, nothing is watched */
    int page_pool_fd;
    uint16_t netdev_family; /* 0: this kernel does not report page pools */
    uint32_t count;
    struct nic_watched nics[NIC_WATCH_MAX];
    uint64_t downs;
    uint64_t removals;
    uint64_t queue_restarts;
    uint64_t
        renewals; /* times after which queues may have other NAPI instances: an interface came up, a queue restarted */
    uint64_t no_buffers;    /* allocations of receive buffers that the drivers report as failed */
    struct nic_genl *stats; /* NULL: the kernel has no queue statistics (Linux 6.10) */
};

/* Fds become -1 and nothing is watched yet. */
void nic_watch_init(struct nic_watch *watch);
/* Adds an interface (a second time: nothing happens); false: there are NIC_WATCH_MAX already, or it does not exist. */
bool nic_watch_add(struct nic_watch *watch, const char *name);
/* Begins to listen; call it when the queues are registered, so that their own page pools are not news. 0 or -errno. */
int nic_watch_open(struct nic_watch *watch, struct err *err);
/* Takes what has arrived, counts and logs it. Does not block. */
void nic_watch_read(struct nic_watch *watch);
/* Asks the drivers whether they failed to get receive buffers since the last time; call it every few seconds. Blocks for as long
 * as the kernel takes to answer. */
void nic_watch_ask(struct nic_watch *watch);
void nic_watch_close(struct nic_watch *watch);

/* The driver of nics[at] reports this many failed allocations since it was loaded; for nic_watch_ask and tests. */
void nic_watch_no_buffers(struct nic_watch *watch, uint32_t at, uint64_t count);
/* One message of either socket; for nic_watch_read and tests. */
void nic_watch_message(struct nic_watch *watch, const struct nlmsghdr *message);

#endif
