/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe: the command that says which receive path works here. See probe.h. Reasons follow the kernel's own checks: io_uring/zcrx.c,
 * net/xdp/xsk.c, drivers/net/ethernet/intel/ixgbe/ixgbe_xsk.c, Documentation/networking/iou-zcrx.rst.
 */
#include "server/probe.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/io_uring/query.h>
#include <linux/netdev.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/uring.h"
#include "server/cli.h"
#include "server/receive.h"

#define KERNEL(major, minor) ((major)*1000U + (minor))
#define BUFFER_DEFAULT (128U * 1024U) /* asked about when no configuration says what is wanted */
#define PORT_DEFAULT 9000U

/* ---- deciding: pure ---------------------------------------------------------------------------------------------------- */

const char *probe_host_zcrx(const struct probe_host *host, char to[PROBE_TEXT_MAX])
{
    if (host->ring_error != 0) {
        snprintf(to, PROBE_TEXT_MAX, "io_uring does not open: %s", err_text(host->ring_error));
    } else if (!host->recv_zc) {
        snprintf(to, PROBE_TEXT_MAX, "kernel %s has no zero-copy receive (Linux 6.15, CONFIG_IO_URING_ZCRX)",
                 host->release);
    } else if (!host->net_admin) {
        snprintf(to, PROBE_TEXT_MAX, "registering a queue needs CAP_NET_ADMIN in the host's user namespace");
    } else {
        return NULL;
    }
    return to;
}

const char *probe_host_xdp(const struct probe_host *host, char to[PROBE_TEXT_MAX])
{
    if (host->xsk_error == -EAFNOSUPPORT) {
        snprintf(to, PROBE_TEXT_MAX, "kernel %s has no AF_XDP sockets (CONFIG_XDP_SOCKETS)", host->release);
    } else if (host->xsk_error != 0 && host->xsk_error != -EPERM) {
        snprintf(to, PROBE_TEXT_MAX, "no AF_XDP socket: %s", err_text(host->xsk_error));
    } else if (host->xsk_error != 0 || !host->net_admin || !host->bpf) {
        snprintf(to, PROBE_TEXT_MAX, "this user lacks%s%s%s", host->net_admin ? "" : " CAP_NET_ADMIN",
                 host->xsk_error == 0 ? "" : " CAP_NET_RAW", host->bpf ? "" : " CAP_BPF");
    } else {
        return NULL;
    }
    return to;
}

/* What a NIC that could do it is still missing: refusals, or the commands of the plan. */
static bool plan_write(const struct nic_plan *plan, char to[PROBE_TEXT_MAX])
{
    size_t used = 0;
    const char *head = plan->refusal_count > 0 ? "no: " : "after: ";
    uint32_t count = plan->refusal_count > 0 ? plan->refusal_count : plan->step_count;
    for (uint32_t i = 0; i < count && used < PROBE_TEXT_MAX; i++) {
        const char *text = plan->refusal_count > 0 ? plan->refusals[i] : plan->steps[i].command;
        int len = snprintf(to + used, PROBE_TEXT_MAX - used, "%s%s", i == 0 ? head : "; ", text);
        used += len < 0 ? 0 : (size_t)len;
    }
    return count > 0;
}

void probe_nic_zcrx(const struct probe_host *host, const struct nic_state *nic, uint32_t buffer_size,
                    uint16_t port, char to[PROBE_TEXT_MAX])
{
    char reason[PROBE_TEXT_MAX];
    if (probe_host_zcrx(host, reason) != NULL) {
        snprintf(to, PROBE_TEXT_MAX, "no: the host cannot (above)");
        return;
    }
    if (!nic_driver_has_zcrx(nic->driver)) {
        snprintf(to, PROBE_TEXT_MAX,
                 "no: driver %s has no queue management or no DMA device (bnxt, mlx5, gve and fbnic have)",
                 nic->driver[0] == '\0' ? "(none)" : nic->driver);
        return;
    }
    if (buffer_size > 4096 && host->has_query && !host->zcrx_large) {
        snprintf(to, PROBE_TEXT_MAX,
                 "no: kernel %s takes only page-sized receive buffers (Linux 7.0 takes larger ones); use "
                 "rx_buffer_size: 0",
                 host->release);
        return;
    }
    struct nic_plan *plan = calloc(1, sizeof(*plan));
    if (plan == NULL) {
        snprintf(to, PROBE_TEXT_MAX, "unknown: out of memory");
        return;
    }
    struct nic_wish wish = {.queue_first = nic->rx_queues > 0 ? nic->rx_queues - 1 : 0,
                            .queue_count = 1,
                            .port = port,
                            .want_ipv4 = true,
                            .buffer_size = buffer_size};
    nic_plan_zcrx(nic, &wish, plan);
    if (!plan_write(plan, to)) {
        snprintf(to, PROBE_TEXT_MAX, "yes: the NIC is set up as it must be");
    }
    free(plan);
}

void probe_nic_socket(const struct nic_state *nic, char to[PROBE_TEXT_MAX])
{
    char now[BYTES_SIZE_TEXT_MAX];
    char most[BYTES_SIZE_TEXT_MAX];
    if (nic_has_buf_len(nic)) {
        snprintf(to, PROBE_TEXT_MAX,
                 "yes: rx-buf-len is %s and can be set per queue, up to %s; with manage_nic: true "
                 "rx_buffer_size is set",
                 bytes_format_size(nic->rx_buf_len, now), bytes_format_size(nic->rx_buf_len_max, most));
        return;
    }
    snprintf(to, PROBE_TEXT_MAX,
             "yes, in the driver's own buffers: this kernel or driver %s does not let users set rx-buf-len "
             "per queue",
             nic->driver[0] == '\0' ? "(none)" : nic->driver);
}

/* What a NIC with zero-copy AF_XDP is still missing; false when that is nothing. */
static bool xdp_plan_write(const struct probe_host *host, const struct nic_state *nic,
                           char to[PROBE_TEXT_MAX])
{
    struct nic_plan *plan = calloc(1, sizeof(*plan));
    if (plan == NULL) {
        snprintf(to, PROBE_TEXT_MAX, "unknown: out of memory");
        return true;
    }
    struct nic_xdp_host xdp_host = {.release = host->release, .cpus_possible = host->cpus_possible};
    nic_plan_xdp(nic, &xdp_host, plan);
    bool is_missing = plan_write(plan, to);
    free(plan);
    return is_missing;
}

void probe_nic_xdp(const struct probe_host *host, const struct nic_state *nic, char to[PROBE_TEXT_MAX])
{
    char reason[PROBE_TEXT_MAX];
    if (probe_host_xdp(host, reason) != NULL) {
        snprintf(to, PROBE_TEXT_MAX, "no: the host cannot (above)");
    } else if ((nic->xdp_features & NETDEV_XDP_ACT_BASIC) == 0 &&
               (strcmp(nic->driver, "veth") != 0 || !xdp_plan_write(host, nic, to))) {
        snprintf(to, PROBE_TEXT_MAX,
                 "no: driver %s reports no XDP; the generic mode would copy each frame and gain nothing over "
                 "socket",
                 nic->driver[0] == '\0' ? "(none)" : nic->driver);
    } else if ((nic->xdp_features & NETDEV_XDP_ACT_BASIC) != 0 &&
               (nic->xdp_features & NETDEV_XDP_ACT_XSK_ZEROCOPY) == 0) {
        snprintf(to, PROBE_TEXT_MAX,
                 "with one copy: driver %s has XDP but reports no zero-copy AF_XDP; receive: af_xdp can be "
                 "asked for, auto does not take it",
                 nic->driver);
    } else if (!xdp_plan_write(host, nic, to)) {
        snprintf(to, PROBE_TEXT_MAX,
                 "yes: driver %s reports zero-copy AF_XDP%s; attaching bounces the link of some drivers",
                 nic->driver,
                 (nic->xdp_features & NETDEV_XDP_ACT_RX_SG) != 0 ? ", jumbo frames too"
                                                                 : ", frames of one buffer only");
    }
}

/* ---- gathering ---------------------------------------------------------------------------------------------------------- */

bool probe_has_capability(unsigned capability)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0, 0, 0}, {0, 0, 0}};
    if (syscall(SYS_capget, &header, data) != 0) {
        return false;
    }
    return (data[capability / 32].effective >> (capability % 32) & 1U) != 0;
}

/* The query needs no ring. Kernels without it answer -EINVAL, which is no error: then nothing is known beyond the operation. */
static void gather_query(struct probe_host *host)
{
    struct io_uring_query_zcrx zcrx;
    struct io_uring_query_hdr header;
    memset(&zcrx, 0, sizeof(zcrx));
    memset(&header, 0, sizeof(header));
    header.query_data = (uint64_t)(uintptr_t)&zcrx;
    header.query_op = IO_URING_QUERY_ZCRX;
    header.size = sizeof(zcrx);
    if (syscall(SYS_io_uring_register, -1, IORING_REGISTER_QUERY, &header, 0) != 0 || header.result < 0) {
        return;
    }
    host->has_query = true;
    host->zcrx_large = (zcrx.features & ZCRX_FEATURE_RX_PAGE_SIZE) != 0;
    host->zcrx_nodev = (zcrx.register_flags & ZCRX_REG_NODEV) != 0;
}

static void gather_ring(struct probe_host *host)
{
    struct uring_options options = {.sq_entries = 8, .cq_entries = 16, .want_cqe32 = true};
    struct uring uring;
    host->ring_error = uring_open(&uring, &options, NULL);
    if (host->ring_error != 0) {
        return;
    }
    struct io_uring_probe *probe = io_uring_get_probe_ring(&uring.ring);
    host->recv_zc = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_RECV_ZC) != 0;
    io_uring_free_probe(probe);
    uring_close(&uring);
    gather_query(host);
}

static void gather_host(struct probe_host *host)
{
    struct utsname name;
    unsigned major = 0;
    unsigned minor = 0;
    memset(host, 0, sizeof(*host));
    if (uname(&name) == 0 && sscanf(name.release, "%u.%u", &major, &minor) == 2) {
        host->version = KERNEL(major, minor);
        snprintf(host->release, sizeof(host->release), "%.79s", name.release);
    }
    gather_ring(host);
    int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
    host->xsk_error = fd < 0 ? -errno : 0;
    if (fd >= 0) {
        close(fd);
    }
    host->net_admin = probe_has_capability(CAP_NET_ADMIN);
    host->bpf = probe_has_capability(CAP_BPF) || probe_has_capability(CAP_SYS_ADMIN);
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    host->cpus_possible = cpus < 0 ? 0 : (uint32_t)cpus;
}

/* ---- printing ----------------------------------------------------------------------------------------------------------- */

/* A feature as the kernel's answer has it; where it does not answer, an older version is a no and a newer one is not known. */
static const char *answer_text(const struct probe_host *host, bool has, uint32_t since,
                               const char *since_text)
{
    static _Thread_local char texts[2][48];
    static _Thread_local unsigned next;
    char *text = texts[next++ % ARRAY_COUNT(texts)];
    if (has) {
        return "yes";
    }
    if (host->has_query || host->version < since) {
        snprintf(text, sizeof(texts[0]), "no (Linux %s has it)", since_text);
        return text;
    }
    return "not known, the kernel does not answer io_uring's query";
}

static void host_print(const struct probe_host *host)
{
    char reason[PROBE_TEXT_MAX];
    printf("kernel   %s\n", host->release);
    printf("socket   %s%s\n", host->ring_error == 0 ? "yes: " : "no: io_uring does not open: ",
           host->ring_error == 0 ? "io_uring receives into staging memory, one copy in the kernel"
                                 : err_text(host->ring_error));
    const char *refusal = probe_host_zcrx(host, reason);
    printf("zcrx     %s%s\n",
           refusal == NULL ? "the host can; per NIC below" : "no: ", refusal == NULL ? "" : refusal);
    if (host->recv_zc) {
        printf(
            "         receive buffers above 4KiB: %s; device-less mode for development on lo (copies): %s\n",
            answer_text(host, host->zcrx_large, KERNEL(7, 0), "7.0"),
            answer_text(host, host->zcrx_nodev, KERNEL(7, 1), "7.1"));
    }
    refusal = probe_host_xdp(host, reason);
    printf("af_xdp   %s%s\n",
           refusal == NULL ? "the host can; per NIC below" : "no: ", refusal == NULL ? "" : refusal);
}

/* Queues in use for zero-copy receive, ours or another process's, with what was granted. */
static void queues_print(const struct nic_state *nic)
{
    for (uint32_t i = 0; i < NIC_QUEUES_MAX; i++) {
        const struct nic_queue *queue = &nic->queues[i];
        char size[BYTES_SIZE_TEXT_MAX];
        char pool[BYTES_SIZE_TEXT_MAX];
        if (!queue->zcrx) {
            continue;
        }
        bool is_reported = queue->zcrx_buf_len != 0 && queue->pool_buf_len != 0;
        printf("  queue %u receives by zcrx: buffers of %s, its page pool of %s, %llu in flight\n", i,
               is_reported ? bytes_format_size(queue->zcrx_buf_len, size) : "a size not reported",
               is_reported ? bytes_format_size(queue->pool_buf_len, pool) : "a size not reported",
               (unsigned long long)queue->pool_inflight);
    }
}

static void nic_print(const struct probe_host *host, const struct conf *conf, const char *interface,
                      uint32_t buffer_size, uint16_t port)
{
    struct nic_state *nic = calloc(1, sizeof(*nic));
    struct err err = {""};
    char text[PROBE_TEXT_MAX];
    int rc = nic == NULL ? -ENOMEM : nic_read(interface, nic, &err);
    if (rc != 0) {
        printf("\n%s: cannot be read: %s\n", interface, err.text[0] == '\0' ? err_text(rc) : err.text);
        free(nic);
        return;
    }
    printf("\n%s: driver %s%s%s, %u receive queue%s, MTU %u, %s%s\n", interface,
           nic->driver[0] == '\0' ? "(none)" : nic->driver, nic->driver_version[0] == '\0' ? "" : " ",
           nic->driver_version, nic->rx_queues, nic->rx_queues == 1 ? "" : "s", nic->mtu,
           nic->up ? "up" : "down", nic->carrier ? "" : ", no carrier");
    if (conf != NULL) {
        receive_disown(conf, nic);
    }
    probe_nic_zcrx(host, nic, buffer_size, port, text);
    printf("  zcrx   %s\n", text);
    probe_nic_xdp(host, nic, text);
    printf("  af_xdp %s\n", text);
    probe_nic_socket(nic, text);
    printf("  socket %s\n", text);
    if (nic->has_irq_defer && (nic->xdp_features & NETDEV_XDP_ACT_BASIC) != 0) {
        printf("  busy_poll: napi_defer_hard_irqs %u, gro_flush_timeout %llu: interrupts %s while a worker "
               "polls\n",
               nic->irq_defer, (unsigned long long)nic->flush_ns,
               nic->irq_defer != 0 && nic->flush_ns != 0 ? "stay away" : "go on");
    }
    queues_print(nic);
    nic_state_free(nic);
    free(nic);
}

static void nics_print(const struct probe_host *host, const struct conf *conf, uint32_t buffer_size,
                       uint16_t port)
{
    struct if_nameindex *all = if_nameindex();
    if (all == NULL) {
        printf("\ninterfaces cannot be listed: %s\n", err_text(-errno));
        return;
    }
    for (const struct if_nameindex *one = all; one->if_index != 0; one++) {
        if (strcmp(one->if_name, "lo") != 0) {
            nic_print(host, conf, one->if_name, buffer_size, port);
        }
    }
    if_freenameindex(all);
}

static void listeners_print(const struct conf *conf)
{
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        struct receive_plan plan;
        struct err err = {""};
        const struct conf_listener *listener = &conf->listeners[i];
        if (receive_choose(conf, i, &plan, &err) == 0) {
            const char *mode = plan.mode != NULL ? plan.mode : "";
            printf("%slistener %s (%s): receive: %s takes %s%s%s: %s\n", i == 0 ? "\n" : "", listener->name,
                   listener->address.text, conf_receive_text(listener->receive), plan.ops->path,
                   mode[0] != '\0' ? ", " : "", mode, plan.why);
        } else {
            printf("%slistener %s (%s): does not start: %s\n", i == 0 ? "\n" : "", listener->name,
                   listener->address.text, err.text);
        }
    }
}

int cli_probe(const struct cli *cli)
{
    struct probe_host host;
    struct conf *conf = NULL;
    /* Without a configuration the host can still be looked at; one that was named must be there. */
    if (strcmp(cli->config, CONF_PATH_DEFAULT) != 0 || access(cli->config, F_OK) == 0) {
        conf = cli_load(cli);
        if (conf == NULL) {
            return CLI_CONFIG;
        }
    }
    uint32_t buffer_size = conf == NULL ? BUFFER_DEFAULT : (uint32_t)conf->listeners[0].rx_buffer_size;
    uint16_t port = PORT_DEFAULT;
    if (conf != NULL) {
        /* Both families have the port at the same place. */
        port = ntohs(((const struct sockaddr_in *)&conf->listeners[0].address.addr)->sin_port);
    }
    gather_host(&host);
    host_print(&host);
    nics_print(&host, conf, buffer_size, port);
    if (conf != NULL) {
        listeners_print(conf);
        conf_free(conf);
    }
    return CLI_OK;
}
