/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe: what each receive path would need on this host. Gathering (probe.c) asks the kernel and changes nothing; deciding (below) is
 * pure, so that every reason is tested on states of hosts and NICs that are not here.
 */
#ifndef SERVER_PROBE_H
#define SERVER_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nic/nic.h"

#define PROBE_TEXT_MAX 1024U

/* What the host can do, apart from its NICs. */
struct probe_host {
    char release[80];
    uint32_t version;       /* major * 1000 + minor */
    int ring_error;         /* 0: io_uring works; otherwise -errno */
    bool recv_zc;           /* the kernel knows the operation */
    bool has_query;         /* the kernel answers io_uring's query, 6.18 */
    bool zcrx_large;        /* receive buffers above a page */
    bool zcrx_nodev;        /* device-less mode, which copies */
    int xsk_error;          /* 0: AF_XDP sockets can be made; otherwise -errno */
    bool net_admin;         /* CAP_NET_ADMIN */
    bool bpf;               /* CAP_BPF or CAP_SYS_ADMIN */
    uint32_t cpus_possible; /* ixgbe has no XDP queues beyond 128 */
};

/* Is the capability (CAP_...) effective for this process? */
bool probe_has_capability(unsigned capability);

/* Why the path cannot work on this host whatever the NIC; NULL when it can. `to` holds the sentence. */
const char *probe_host_zcrx(const struct probe_host *host, char to[PROBE_TEXT_MAX]);
const char *probe_host_xdp(const struct probe_host *host, char to[PROBE_TEXT_MAX]);
/* One sentence per NIC: works, works after settings, or why not. */
void probe_nic_zcrx(const struct probe_host *host, const struct nic_state *nic, uint32_t buffer_size,
                    uint16_t port, char to[PROBE_TEXT_MAX]);
/* Can ordinary sockets have larger buffers on this NIC? */
void probe_nic_socket(const struct nic_state *nic, char to[PROBE_TEXT_MAX]);
void probe_nic_xdp(const struct probe_host *host, const struct nic_state *nic, char to[PROBE_TEXT_MAX]);

#endif
