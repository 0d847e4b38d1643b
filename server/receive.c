/* SPDX-License-Identifier: Apache-2.0 */
/* receive: see receive.h. The paths stand in a table, best first; each says whether it works for a listener. */
#include "server/receive.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/capability.h>
#include <linux/netdev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/lock.h"
#include "server/probe.h"
#include "server/tls_rx.h"

/* ---- the listener's NIC ---------------------------------------------------------------------------------------- */

static bool address_same(const struct sockaddr *a, const struct sockaddr_storage *b)
{
    if (a == NULL || a->sa_family != b->ss_family) {
        return false;
    }
    if (a->sa_family == AF_INET) {
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    }
    return a->sa_family == AF_INET6 && memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                                              &((const struct sockaddr_in6 *)b)->sin6_addr, 16) == 0;
}

static bool address_is_any(const struct sockaddr_storage *addr)
{
    return addr->ss_family == AF_INET
               ? ((const struct sockaddr_in *)addr)->sin_addr.s_addr == htonl(INADDR_ANY)
               : IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)addr)->sin6_addr) != 0;
}

static int interface_of(const struct conf_listener *conf, char out[IFNAMSIZ], struct err *err)
{
    if (conf->interface[0] != '\0') {
        (void)snprintf(out, IFNAMSIZ, "%s", conf->interface); /* The configuration bounds it. */
        return 0;
    }
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) < 0) {
        return err_set(err, -errno, "cannot list interfaces: %s", err_text(-errno));
    }
    out[0] = '\0';
    for (const struct ifaddrs *one = all; one != NULL && out[0] == '\0'; one = one->ifa_next) {
        if (address_same(one->ifa_addr, &conf->address.addr)) {
            (void)snprintf(out, IFNAMSIZ, "%s", one->ifa_name); /* The kernel bounds it. */
        }
    }
    freeifaddrs(all);
    if (out[0] == '\0' && address_is_any(&conf->address.addr)) {
        return err_set(err, -EINVAL, "%s is every address of this host; name the NIC by `interface`",
                       conf->address.text);
    }
    if (out[0] == '\0') {
        return err_set(err, -EINVAL, "no interface has the address %s; name one by `interface`",
                       conf->address.text);
    }
    return 0;
}

static void wish_of(const struct conf *conf, const struct conf_listener *listener, struct nic_wish *wish)
{
    const struct sockaddr_storage *addr = &listener->address.addr;
    memset(wish, 0, sizeof(*wish));
    wish->queue_count = conf->node.workers;
    wish->queue_first = listener->queues.count > 0 ? listener->queues.values[0] : 0;
    wish->buffer_size = (uint32_t)listener->rx_buffer_size;
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
        wish->want_ipv4 = true;
        wish->address4 = in->sin_addr.s_addr;
        wish->port = ntohs(in->sin_port);
    } else {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;
        wish->want_ipv6 = true;
        wish->want_ipv4 = IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr);
        wish->port = ntohs(in6->sin6_port);
    }
}

/* Without `queues` the last ones are taken: low queues are where drivers put what must not move. */
static void wish_default_queues(const struct conf_listener *listener, const struct nic_state *state,
                                struct nic_wish *wish)
{
    if (listener->queues.count == 0 && state->rx_queues > wish->queue_count) {
        wish->queue_first = state->rx_queues - wish->queue_count;
    }
}

static int nic_plan_of(const struct conf *conf, uint32_t index, struct receive_plan *plan,
                       struct nic_state *state, struct nic_plan *nic, struct err *err)
{
    const struct conf_listener *listener = &conf->listeners[index];
    struct nic_wish wish;
    int rc = interface_of(listener, plan->interface, err);
    if (rc < 0) {
        return rc;
    }
    if (strcmp(plan->interface, "lo") == 0) {
        return err_set(err, -EINVAL, "lo is no NIC");
    }
    rc = nic_read(plan->interface, state, err);
    if (rc < 0) {
        return rc;
    }
    wish_of(conf, listener, &wish);
    wish_default_queues(listener, state, &wish);
    nic_plan_zcrx(state, &wish, nic);
    plan->queue_first = wish.queue_first;
    return 0;
}

/* ---- socket: the NIC's own buffers ------------------------------------------------------------------------------ */

static void socket_nic_wish(const struct conf_listener *listener, const struct nic_state *state,
                            struct nic_plan *nic)
{
    const struct nic_socket_wish wish = {.queues = listener->queues.values,
                                         .queue_count = listener->queues.count,
                                         .buffer_size = (uint32_t)listener->rx_buffer_size};
    memset(nic, 0, sizeof(*nic));
    if (listener->rx_buffer_size != 0) {
        nic_plan_socket(state, &wish, nic);
    }
}

static int socket_nic_plan(const struct conf_listener *listener, char interface[IFNAMSIZ],
                           struct nic_state *state, struct nic_plan *nic, struct err *err)
{
    memset(nic, 0, sizeof(*nic));
    int rc = interface_of(listener, interface, err);
    if (rc < 0) {
        return rc;
    }
    if (strcmp(interface, "lo") == 0) {
        return err_set(err, -EINVAL, "lo is no NIC");
    }
    rc = nic_read(interface, state, err);
    if (rc == 0) {
        socket_nic_wish(listener, state, nic);
    }
    return rc;
}

static void socket_judge(const struct conf_listener *listener, const struct nic_plan *nic,
                         struct receive_plan *plan, const char *interface)
{
    char size[BYTES_SIZE_TEXT_MAX];
    bytes_format_size(listener->rx_buffer_size, size);
    if (nic->refusal_count > 0) {
        /* Nobody asked for it: then a kernel without it is not worth a word. */
        (void)snprintf(plan->note, sizeof(plan->note), "%s", listener->manage_nic ? nic->refusals[0] : "");
        return;
    }
    if (nic->step_count == 0) {
        (void)snprintf(plan->note, sizeof(plan->note), "%s has rx-buf-len %s", interface, size);
    } else if (listener->manage_nic) {
        (void)snprintf(plan->note, sizeof(plan->note), "rx-buf-len %s is set on %u queues of %s", size,
                       nic->step_count, interface);
    } else {
        (void)snprintf(plan->note, sizeof(plan->note),
                       "%s could have rx-buf-len %s: manage_nic: true sets it (penstock nic plan)", interface,
                       size);
    }
    /* Also without a step: what is set now may be a crashed run's, which is undone before it is prepared. */
    plan->needs_nic = listener->manage_nic;
    if (plan->needs_nic) {
        (void)snprintf(plan->interface, sizeof(plan->interface), "%s", interface);
    }
}

/* Looks whether the NIC's queues can have the listener's buffer size too. It never keeps a listener from starting. */
static void socket_nic(const struct conf_listener *listener, struct receive_plan *plan)
{
    char interface[IFNAMSIZ];
    struct err err = {""};
    struct nic_state *state = calloc(1, sizeof(*state));
    struct nic_plan *nic = calloc(1, sizeof(*nic));
    if (listener->rx_buffer_size != 0 && state != NULL && nic != NULL) {
        if (socket_nic_plan(listener, interface, state, nic, &err) == 0) {
            socket_judge(listener, nic, plan, interface);
            nic_state_free(state);
        } else if (listener->manage_nic) {
            (void)snprintf(plan->note, sizeof(plan->note), "manage_nic: %.300s", err.text);
        }
    }
    free(state);
    free(nic);
}

/* ---- zcrx ------------------------------------------------------------------------------------------------------ */

static int zcrx_kernel(struct err *err)
{
    struct io_uring_probe *probe = io_uring_get_probe();
    if (probe == NULL) {
        return err_set(err, -ENOSYS, "io_uring is not available");
    }
    bool has = io_uring_opcode_supported(probe, IORING_OP_RECV_ZC) != 0;
    io_uring_free_probe(probe);
    return has ? 0
               : err_set(err, -ENOTSUP,
                         "this kernel has no zero-copy receive (Linux 6.15 with "
                         "CONFIG_IO_URING_ZCRX; 7.0 for buffers above a page)");
}

/* The steps that are still to be made, as commands a person can run. */
static uint32_t steps_open(const struct nic_plan *nic, char *text, size_t size)
{
    uint32_t count = 0;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < nic->step_count; i++) {
        if (nic->steps[i].is_reported || nic->steps[i].is_optional) {
            continue;
        }
        int len = snprintf(text + used, size - used, "%s%s", count == 0 ? "" : " && ", nic->steps[i].command);
        used = len < 0 || (size_t)len >= size - used ? size - 1 : used + (size_t)len;
        count++;
    }
    return count;
}

static int zcrx_nic(const struct conf *conf, uint32_t index, struct receive_plan *plan, struct err *err)
{
    const struct conf_listener *listener = &conf->listeners[index];
    struct nic_state *state = calloc(1, sizeof(*state));
    struct nic_plan *nic = calloc(1, sizeof(*nic));
    char commands[768];
    if (state == NULL || nic == NULL) {
        free(state);
        free(nic);
        return err_set(err, -ENOMEM, "out of memory");
    }
    int rc = nic_plan_of(conf, index, plan, state, nic, err);
    if (rc == 0) {
        plan->has_device = true;
        plan->needs_nic = listener->manage_nic && nic->step_count > 0;
        if (nic->refusal_count > 0) {
            rc = err_set(err, -ENOTSUP, "%s", nic->refusals[0]);
        } else if (!listener->manage_nic && steps_open(nic, commands, sizeof(commands)) > 0) {
            rc = err_set(
                err, -ENOTSUP,
                "%s is not prepared; run `%s`, or set manage_nic: true and the node does and undoes it",
                plan->interface, commands);
        }
    }
    nic_state_free(state);
    free(state);
    free(nic);
    return rc;
}

/* Huge pages are what makes memory contiguous in units above a page. */
static int zcrx_memory(const struct conf_listener *listener, struct err *err)
{
    char size[BYTES_SIZE_TEXT_MAX];
    if (listener->rx_buffer_size > 4096 && listener->hugepages == ARENA_PAGES_NORMAL) {
        return err_set(err, -ENOTSUP, "rx_buffer_size %s needs contiguous memory; set hugepages: 2MiB",
                       bytes_format_size(listener->rx_buffer_size, size));
    }
    return 0;
}

int receive_zcrx(const struct conf *conf, uint32_t index, struct receive_plan *plan, struct err *err)
{
    const struct conf_listener *listener = &conf->listeners[index];
    memset(plan, 0, sizeof(*plan));
    plan->ops = &rx_zcrx_ops;
    if (listener->tls.certificate[0] != '\0') {
        return err_set(err, -ENOTSUP, "TLS needs every byte to be touched, so only socket can serve it");
    }
    int rc = zcrx_kernel(err);
    if (rc == 0) {
        rc = interface_of(listener, plan->interface, err);
    }
    if (rc < 0) {
        return rc;
    }
    if (strcmp(plan->interface, "lo") == 0) {
        if (listener->receive == CONF_RECEIVE_AUTO) {
            return err_set(err, -ENOTSUP,
                           "lo has no device: the kernel would copy every byte (receive: zcrx "
                           "on lo asks for that, for development)");
        }
        (void)snprintf(plan->why, sizeof(plan->why),
                       "device-less: the kernel copies every byte; development only");
        return 0;
    }
    if (listener->queues.count > 0 && listener->queues.count < conf->node.workers) {
        return err_set(err, -ENOTSUP, "%u workers need %u queues and `queues` names %u", conf->node.workers,
                       conf->node.workers, listener->queues.count);
    }
    for (uint32_t i = 1; i < listener->queues.count; i++) {
        if (listener->queues.values[i] != listener->queues.values[0] + i) {
            return err_set(err, -ENOTSUP,
                           "`queues` must follow each other, because one RSS table spreads connections over "
                           "all of them: %u comes where %u should",
                           listener->queues.values[i], listener->queues.values[0] + i);
        }
    }
    rc = zcrx_nic(conf, index, plan, err);
    return rc < 0 ? rc : zcrx_memory(listener, err);
}

/* ---- af_xdp ---------------------------------------------------------------------------------------------------- */

/* Without `queues` all of the interface: so no connection arrives where nobody listens, however the NIC spreads them. */
static void xdp_queues(const struct conf_listener *listener, const struct nic_state *state,
                       struct receive_plan *plan)
{
    uint32_t count = listener->queues.count > 0 ? listener->queues.count : state->rx_queues;
    plan->queue_count = count < RX_QUEUES_MAX ? count : RX_QUEUES_MAX;
    for (uint32_t i = 0; i < plan->queue_count; i++) {
        plan->queues[i] = (uint16_t)(listener->queues.count > 0 ? listener->queues.values[i] : i);
    }
}

static void xdp_nic_plan(const struct conf *conf, uint32_t index, const struct nic_state *state,
                         const struct nic_xdp_host *host, struct receive_plan *plan, struct nic_plan *nic)
{
    struct nic_wish of_listener;
    wish_of(conf, &conf->listeners[index], &of_listener);
    xdp_queues(&conf->listeners[index], state, plan);
    struct nic_xdp_wish wish = {.queues = plan->queues,
                                .queue_count = plan->queue_count,
                                .port = of_listener.port,
                                .want_ipv4 = of_listener.want_ipv4,
                                .want_ipv6 = of_listener.want_ipv6,
                                .address4 = of_listener.address4};
    nic_plan_xdp(state, host, nic);
    if (conf->listeners[index].busy_poll_ns != 0) {
        nic_plan_busy_poll(state, nic);
    }
    if (wish.queue_count > 0) {
        nic_plan_xdp_queues(state, &wish, nic);
    }
}

/* What becomes of busy polling, for the line that says which path was taken. */
static void busy_note(const struct conf_listener *listener, const struct nic_state *state,
                      const struct nic_plan *nic, struct receive_plan *plan)
{
    const struct nic_step *step = NULL;
    for (uint32_t i = 0; i < nic->step_count; i++) {
        step = nic->steps[i].kind == NIC_STEP_DEFER ? &nic->steps[i] : step;
    }
    if (listener->busy_poll_ns == 0) {
        return;
    }
    if (!state->has_irq_defer) {
        (void)snprintf(plan->note, sizeof(plan->note),
                       "busy_poll: this kernel cannot hold the interrupts of %s back meanwhile", state->name);
    } else if (step == NULL) {
        (void)snprintf(
            plan->note, sizeof(plan->note),
            "busy_poll: interrupts are held back (napi_defer_hard_irqs %u, gro_flush_timeout %llu)",
            state->irq_defer, (unsigned long long)state->flush_ns);
    } else if (listener->manage_nic) {
        (void)snprintf(plan->note, sizeof(plan->note), "busy_poll: the node runs `%.300s`", step->command);
    } else {
        (void)snprintf(plan->note, sizeof(plan->note),
                       "busy_poll: interrupts go on meanwhile; run `%.200s`, or set manage_nic: true",
                       step->command);
    }
}

/* In the words of the log's xdp_open, which says what it came to. */
static void mode_note(const struct nic_state *state, struct receive_plan *plan)
{
    bool is_zero = (state->xdp_features & NETDEV_XDP_ACT_XSK_ZEROCOPY) != 0;
    plan->is_slower = state->xdp_reported && !is_zero;
    plan->mode = !state->xdp_reported                                ? ""
                 : is_zero                                           ? "native XDP with zero-copy"
                 : (state->xdp_features & NETDEV_XDP_ACT_BASIC) != 0 ? "native XDP with one copy"
                                                                     : "generic XDP";
}

int receive_xdp_judge(const struct conf *conf, uint32_t index, const struct nic_state *state,
                      const struct nic_xdp_host *host, struct receive_plan *plan, struct nic_plan *nic,
                      struct err *err)
{
    const struct conf_listener *listener = &conf->listeners[index];
    char commands[768];
    if (listener->receive == CONF_RECEIVE_AUTO && (state->xdp_features & NETDEV_XDP_ACT_XSK_ZEROCOPY) == 0) {
        return err_set(err, -ENOTSUP, "driver %s of %s reports no zero-copy AF_XDP", state->driver,
                       plan->interface);
    }
    xdp_nic_plan(conf, index, state, host, plan, nic);
    plan->has_device = true;
    plan->needs_nic = listener->manage_nic && nic->step_count > 0;
    if (nic->refusal_count > 0) {
        return err_set(err, -ENOTSUP, "%s", nic->refusals[0]);
    }
    if (!listener->manage_nic && steps_open(nic, commands, sizeof(commands)) > 0) {
        return err_set(
            err, -ENOTSUP,
            "%s is not prepared; run `%s`, or set manage_nic: true and the node does and undoes it",
            plan->interface, commands);
    }
    busy_note(listener, state, nic, plan);
    mode_note(state, plan);
    return 0;
}

static void xdp_host_read(struct utsname *name, struct nic_xdp_host *host)
{
    memset(name, 0, sizeof(*name));
    (void)uname(name); /* It cannot fail on memory of ours. */
    *host = (struct nic_xdp_host){.release = name->release,
                                  .cpus_possible = (uint32_t)sysconf(_SC_NPROCESSORS_CONF)};
}

/* A name that this user may not learn is taken for ours: the node's ports and devices are, too. */
void receive_disown(const struct conf *conf, struct nic_state *state)
{
    pid_t holder = 0;
    if (state->xdp_attached && (state->xdp_name[0] == '\0' || nic_xdp_is_penstock(state)) &&
        lock_look(conf->node.data_dir, &holder) == -EBUSY && holder != getpid()) {
        state->xdp_attached = false;
    }
}

/* Which path's needs to show or to prepare. */
static bool is_xdp_wanted(const struct conf_listener *listener, const struct nic_state *state)
{
    return listener->receive == CONF_RECEIVE_AF_XDP ||
           (listener->receive == CONF_RECEIVE_AUTO && listener->tls.certificate[0] == '\0' &&
            !nic_driver_has_zcrx(state->driver) && (state->xdp_features & NETDEV_XDP_ACT_XSK_ZEROCOPY) != 0);
}

/* What auto takes when nothing that could be set brings another path. */
static bool is_socket_left(const struct conf_listener *listener, const struct nic_state *state)
{
    return listener->receive == CONF_RECEIVE_AUTO &&
           (listener->tls.certificate[0] != '\0' || !nic_driver_has_zcrx(state->driver));
}

int receive_nic_plan(const struct conf *conf, uint32_t index, struct nic_state *state, struct nic_plan *nic,
                     const char **path, struct err *err)
{
    struct receive_plan plan;
    memset(&plan, 0, sizeof(plan));
    if (conf->listeners[index].receive == CONF_RECEIVE_SOCKET) {
        *path = conf_receive_text(CONF_RECEIVE_SOCKET);
        return socket_nic_plan(&conf->listeners[index], plan.interface, state, nic, err);
    }
    *path = conf_receive_text(CONF_RECEIVE_ZCRX);
    int rc = nic_plan_of(conf, index, &plan, state, nic, err);
    if (rc == 0 && is_xdp_wanted(&conf->listeners[index], state)) {
        struct utsname name;
        struct nic_xdp_host host;
        xdp_host_read(&name, &host);
        *path = conf_receive_text(CONF_RECEIVE_AF_XDP);
        receive_disown(conf, state);
        xdp_nic_plan(conf, index, state, &host, &plan, nic);
    } else if (rc == 0 && is_socket_left(&conf->listeners[index], state)) {
        *path = conf_receive_text(CONF_RECEIVE_SOCKET);
        socket_nic_wish(&conf->listeners[index], state, nic);
        /* Nobody asked for what it cannot have. */
        nic->refusal_count = conf->listeners[index].manage_nic ? nic->refusal_count : 0;
    }
    return rc;
}

/* All that are missing, in one sentence: else each start would name the next. */
static int xdp_allowed(struct err *err)
{
    bool has_admin = probe_has_capability(CAP_NET_ADMIN);
    bool has_raw = probe_has_capability(CAP_NET_RAW);
    bool has_bpf = probe_has_capability(CAP_BPF) || probe_has_capability(CAP_SYS_ADMIN);
    if (has_admin && has_raw && has_bpf) {
        return 0;
    }
    return err_set(
        err, -EPERM,
        "it needs%s%s%s; run as root, or let AmbientCapabilities= in the unit grant what is missing",
        has_admin ? "" : " CAP_NET_ADMIN", has_raw ? "" : " CAP_NET_RAW", has_bpf ? "" : " CAP_BPF");
}

static int receive_af_xdp(const struct conf *conf, uint32_t index, struct receive_plan *plan, struct err *err)
{
    const struct conf_listener *listener = &conf->listeners[index];
    memset(plan, 0, sizeof(*plan));
    plan->ops = &rx_xdp_ops;
    if (listener->tls.certificate[0] != '\0') {
        return err_set(err, -ENOTSUP, "TLS needs every byte to be touched, so only socket can serve it");
    }
    int rc = interface_of(listener, plan->interface, err);
    if (rc == 0 && strcmp(plan->interface, "lo") == 0) {
        rc = err_set(err, -ENOTSUP, "lo has no device, so af_xdp does not work on it%s",
                     listener->receive == CONF_RECEIVE_AF_XDP
                         ? "; let `interface` name the NIC that peers come through"
                         : "");
    }
    rc = rc == 0 ? xdp_allowed(err) : rc;
    if (rc < 0) {
        return rc;
    }
    struct nic_state *state = calloc(1, sizeof(*state));
    struct nic_plan *nic = calloc(1, sizeof(*nic));
    if (state == NULL || nic == NULL) {
        free(state);
        free(nic);
        return err_set(err, -ENOMEM, "out of memory");
    }
    rc = nic_read(plan->interface, state, err);
    if (rc == 0) {
        struct utsname name;
        struct nic_xdp_host host;
        xdp_host_read(&name, &host);
        receive_disown(conf, state);
        rc = receive_xdp_judge(conf, index, state, &host, plan, nic, err);
        rc = rc == 0 ? rx_xdp_try(plan->interface, err) : rc;
        nic_state_free(state);
    }
    free(state);
    free(nic);
    return rc;
}

/* ---- socket ---------------------------------------------------------------------------------------------------- */

static int receive_socket(const struct conf *conf, uint32_t index, struct receive_plan *plan, struct err *err)
{
    (void)err; /* It works everywhere. */
    memset(plan, 0, sizeof(*plan));
    plan->ops = conf->listeners[index].tls.certificate[0] == '\0' ? &rx_socket_ops : &tls_rx_ops;
    socket_nic(&conf->listeners[index], plan);
    return 0;
}

/* ---- choosing -------------------------------------------------------------------------------------------------- */

struct receive_path {
    enum conf_receive receive;
    int (*look)(const struct conf *conf, uint32_t index, struct receive_plan *plan, struct err *err);
};

static const struct receive_path receive_paths[] = {
    {CONF_RECEIVE_ZCRX, receive_zcrx},
    {CONF_RECEIVE_AF_XDP, receive_af_xdp},
    {CONF_RECEIVE_SOCKET, receive_socket},
};

int receive_choose(const struct conf *conf, uint32_t index, struct receive_plan *plan, struct err *err)
{
    const struct conf_listener *listener = &conf->listeners[index];
    bool is_auto = listener->receive == CONF_RECEIVE_AUTO;
    char why[RECEIVE_WHY_MAX] = "";
    size_t used = 0;
    for (size_t i = 0; i < ARRAY_COUNT(receive_paths); i++) {
        const struct receive_path *path = &receive_paths[i];
        struct err reason = {""};
        if (!is_auto && listener->receive != path->receive) {
            continue;
        }
        if (path->look(conf, index, plan, &reason) == 0) {
            plan->may_fall_back = is_auto && path->receive != CONF_RECEIVE_SOCKET;
            if (plan->why[0] == '\0') {
                (void)snprintf(plan->why, sizeof(plan->why), "%.600s%s%.400s",
                               used > 0  ? why
                               : is_auto ? "best path"
                                         : "as configured",
                               plan->note[0] != '\0' ? "; " : "",
                               plan->note); /* Both fit; a long why is cut. */
            }
            return 0;
        }
        int len = snprintf(why + used, sizeof(why) - used, "%s%s: %s", used == 0 ? "" : "; ",
                           conf_receive_text(path->receive), reason.text);
        used = len < 0 || (size_t)len >= sizeof(why) - used ? sizeof(why) - 1 : used + (size_t)len;
    }
    return err_set(err, -ENOTSUP, "listener %s: receive: %.900s", listener->name, why);
}

/* ---- several queues -------------------------------------------------------------------------------------------- */

uint32_t receive_queue(const struct conf_listener *listener, const struct receive_plan *plan, uint32_t worker)
{
    return listener->queues.count > 0 ? listener->queues.values[worker % listener->queues.count]
                                      : plan->queue_first + worker;
}

int receive_group_open(const struct conf *conf, uint32_t index, const struct receive_plan *plan,
                       struct rx_group **out, struct err *err)
{
    uint32_t queues[CONF_NUMBERS_MAX];
    uint32_t workers = conf->node.workers;
    if (plan->ops != &rx_zcrx_ops || !plan->has_device || workers < 2 || workers > CONF_NUMBERS_MAX) {
        return 0;
    }
    for (uint32_t i = 0; i < workers; i++) {
        queues[i] = receive_queue(&conf->listeners[index], plan, i);
    }
    return rx_group_open(out, queues, workers, err);
}

bool receive_group_look(const struct conf *conf, uint32_t index, const struct receive_plan *plan,
                        struct rx_group *group)
{
    struct rx_group_napi napis[RX_GROUP_NAPIS];
    uint32_t count = 0;
    struct err err = {""};
    struct nic_state *state = calloc(1, sizeof(*state));
    if (state == NULL || nic_read(plan->interface, state, &err) < 0) {
        free(state); /* What is known of queues stays as it is. */
        LOG_WRN("zcrx_napi_unknown", "name=%s error=%s", conf->listeners[index].name, LOG_Q(err.text));
        return false;
    }
    for (uint32_t queue = 0; queue < state->rx_queues && queue < NIC_QUEUES_MAX && count < RX_GROUP_NAPIS;
         queue++) {
        int owner = RX_GROUP_NOBODY;
        for (uint32_t i = 0; i < conf->node.workers; i++) {
            owner = receive_queue(&conf->listeners[index], plan, i) == queue ? (int)i : owner;
        }
        napis[count++] = (struct rx_group_napi){.id = state->queues[queue].napi_id, .member = owner};
    }
    nic_state_free(state);
    free(state);
    return rx_group_napis_set(group, napis, count, clock_monotonic_ns());
}

void receive_group_start(const struct conf *conf, uint32_t index, const struct receive_plan *plan,
                         struct rx_group *group)
{
    /* Without it, receives find the right area by trying. */
    (void)receive_group_look(conf, index, plan, group);
    if (!rx_group_start(group)) {
        LOG_WRN("zcrx_not_shared", "name=%s why=%s", conf->listeners[index].name,
                LOG_Q("not every worker has a zero-copy queue"));
    }
}

/* ---- changing the NIC ------------------------------------------------------------------------------------------ */

int receive_prepare(const struct conf *conf, uint32_t index, const struct receive_plan *plan, struct err *err)
{
    struct nic_state *state = calloc(1, sizeof(*state));
    struct nic_plan *nic = calloc(1, sizeof(*nic));
    if (state == NULL || nic == NULL) {
        free(state);
        free(nic);
        return err_set(err, -ENOMEM, "out of memory");
    }
    /* What an earlier run left is undone by now; undoing here would take back what another listener of this NIC needs. */
    int rc = 0;
    struct receive_plan unused = *plan;
    if (plan->ops == &rx_xdp_ops) {
        struct utsname name;
        struct nic_xdp_host host;
        xdp_host_read(&name, &host);
        rc = nic_read(plan->interface, state, err);
        if (rc == 0) {
            xdp_nic_plan(conf, index, state, &host, &unused, nic);
        }
    } else if (plan->ops == &rx_zcrx_ops) {
        rc = nic_plan_of(conf, index, &unused, state, nic, err);
    } else {
        rc = socket_nic_plan(&conf->listeners[index], unused.interface, state, nic, err);
    }
    if (rc == 0) {
        rc = nic_apply(state, nic, conf->node.data_dir, err);
    }
    nic_state_free(state);
    free(state);
    free(nic);
    return rc < 0 ? err_prefix(err, rc, "listener %s", conf->listeners[index].name) : 0;
}

void receive_restore(const struct conf *conf, const struct receive_plan *plan)
{
    struct err err = {""};
    if (nic_undo(plan->interface, conf->node.data_dir, &err) < 0) {
        LOG_ERR("nic_not_restored", "interface=%s error=%s remedy=%s", plan->interface, LOG_Q(err.text),
                LOG_Q("penstock nic undo"));
    }
}
