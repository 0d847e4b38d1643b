/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_plan: from what a NIC is to what must change, as a list of steps. Pure: no system call, no allocation.
 *
 * Order matters and is the order of the steps: hardware GRO before data split (mlx5 refuses the other way round), data split
 * before the memory provider, channels before RSS (a table cannot name a queue that does not exist), RSS before the rule
 * (or foreign flows could land on our queue in between), the ntuple feature before its first rule (ixgbe resets the NIC
 * when it is switched, so it comes as early as the other features).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netdev.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "nic/nic_int.h"

struct driver_limits {
    const char *name;
    bool has_zcrx;
    bool has_contexts;
    uint32_t buffer_max; /* bytes; 0: only the default */
};

/* Linux 7.3's drivers. A driver that is not listed is asked by trying. */
static const struct driver_limits driver_table[] = {
    {"bnxt_en", true, true, 32 * 1024},
    {"mlx5_core", true, true, 128 * 1024},
    {"gve", true, false, 0},
    {"fbnic", true, true, 0},
    {"netdevsim", true, true, UINT32_MAX}, /* stock: no DMA device; ours: 1 MiB */
    {"ixgbe", false, false, 0},
    {"i40e", false, false, 0},
    {"ice", false, false, 0},
    {"igb", false, false, 0},
    {"igc", false, false, 0},
    {"virtio_net", false, false, 0},
    {"ena", false, false, 0},
    {"veth", false, false, 0},
    {"vmxnet3", false, false, 0},
    {"e1000e", false, false, 0},
};

static const struct driver_limits *driver_find(const char *driver)
{
    for (size_t i = 0; i < ARRAY_COUNT(driver_table); i++) {
        if (strcmp(driver_table[i].name, driver) == 0) {
            return &driver_table[i];
        }
    }
    return NULL;
}

uint32_t nic_driver_buffer_max(const char *driver)
{
    const struct driver_limits *limits = driver_find(driver);
    return limits != NULL ? limits->buffer_max : UINT32_MAX;
}

bool nic_driver_has_zcrx(const char *driver)
{
    const struct driver_limits *limits = driver_find(driver);
    return limits == NULL || limits->has_zcrx;
}

bool nic_driver_has_contexts(const char *driver)
{
    const struct driver_limits *limits = driver_find(driver);
    return limits == NULL || limits->has_contexts;
}

/* ---- building -------------------------------------------------------------------------------------------------- */

struct nic_step *nic_plan_step(struct nic_plan *plan, enum nic_step_kind kind)
{
    CHECK(plan->step_count < NIC_STEPS_MAX);
    struct nic_step *step = &plan->steps[plan->step_count++];
    memset(step, 0, sizeof(*step));
    step->kind = kind;
    return step;
}

void nic_plan_refuse(struct nic_plan *plan, const char *format, ...)
{
    if (plan->refusal_count == ARRAY_COUNT(plan->refusals)) {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(plan->refusals[plan->refusal_count++], NIC_TEXT_MAX, format, args);
    va_end(args);
}

static void plan_feature(const struct nic_state *state, struct nic_plan *plan,
                         const struct nic_feature *feature, const char *name, const char *reason)
{
    if (feature->state == NIC_ON) {
        return;
    }
    if (!feature->changeable) {
        nic_plan_refuse(plan, "%s: %s is off and cannot be switched on here; %s", state->name, name, reason);
        return;
    }
    struct nic_step *step = nic_plan_step(plan, NIC_STEP_FEATURE);
    snprintf(step->name, sizeof(step->name), "%s", name);
    step->value = 1;
    snprintf(step->command, sizeof(step->command), "ethtool -K %s %s on", state->name, name);
    snprintf(step->reason, sizeof(step->reason), "%s", reason);
}

static void plan_rings(const struct nic_state *state, struct nic_plan *plan)
{
    if (state->data_split == NIC_UNKNOWN && !state->has_hds_thresh) {
        nic_plan_refuse(plan,
                        "%s: driver %s has no header split (tcp-data-split), which zero-copy receive needs",
                        state->name, state->driver);
        return;
    }
    /* Always set, also when it is reported as on: bnxt and fbnic report the state, while registration checks the
     * stored setting, which is "unknown" until someone sets it. */
    struct nic_step *step = nic_plan_step(plan, NIC_STEP_RINGS);
    step->data_split = NIC_ON;
    step->is_reported = state->data_split == NIC_ON && (!state->has_hds_thresh || state->hds_thresh == 0);
    snprintf(step->command, sizeof(step->command), "ethtool -G %s tcp-data-split on%s", state->name,
             state->has_hds_thresh ? " hds-thresh 0" : "");
    snprintf(step->reason, sizeof(step->reason),
             "headers and payload must be split for every packet, set explicitly, without a size threshold");
}

static void plan_channels(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan)
{
    uint32_t need = wish->queue_first + wish->queue_count;
    if (wish->queue_first == 0) {
        nic_plan_refuse(
            plan,
            "%s: queue 0 must stay with the system: other traffic needs a queue of its own; choose queues "
            "from 1 on",
            state->name);
        return;
    }
    if (need <= state->rx_queues) {
        return;
    }
    if (state->channels_combined_max < need) {
        nic_plan_refuse(plan,
                        "%s: queues %u to %u are wanted and the NIC has at most %u; choose lower queues",
                        state->name, wish->queue_first, need - 1, state->channels_combined_max);
        return;
    }
    struct nic_step *step = nic_plan_step(plan, NIC_STEP_CHANNELS);
    step->value = need;
    snprintf(step->command, sizeof(step->command), "ethtool -L %s combined %u", state->name, need);
    snprintf(step->reason, sizeof(step->reason), "queue %u must exist (there are %u)", need - 1,
             state->rx_queues);
}

static void plan_queues_free(const struct nic_state *state, const struct nic_wish *wish,
                             struct nic_plan *plan)
{
    for (uint32_t i = 0; i < wish->queue_count && wish->queue_first + i < NIC_QUEUES_MAX; i++) {
        const struct nic_queue *queue = &state->queues[wish->queue_first + i];
        const char *owner = queue->zcrx     ? "another zero-copy receiver"
                            : queue->dmabuf ? "a device-memory receiver"
                            : queue->xsk    ? "an AF_XDP socket"
                            : queue->leased ? "a lease to a virtual device"
                                            : NULL;
        if (owner != NULL) {
            nic_plan_refuse(plan, "%s: queue %u belongs to %s; end it or choose another queue", state->name,
                            wish->queue_first + i, owner);
        }
    }
}

static void plan_conditions(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan)
{
    uint32_t largest = nic_driver_buffer_max(state->driver);
    char want[BYTES_SIZE_TEXT_MAX];
    char most[BYTES_SIZE_TEXT_MAX];
    if (!nic_driver_has_zcrx(state->driver)) {
        nic_plan_refuse(
            plan,
            "%s: driver %s has no zero-copy receive (bnxt_en, mlx5_core from ConnectX-7, gve and fbnic have)",
            state->name, state->driver);
        return;
    }
    if (wish->buffer_size != 0 && largest != UINT32_MAX && wish->buffer_size > largest) {
        nic_plan_refuse(plan, "%s: rx_buffer_size %s: driver %s takes %s%s", state->name,
                        bytes_format_size(wish->buffer_size, want), state->driver,
                        largest == 0 ? "only its default (rx_buffer_size: 0)" : "at most ",
                        largest == 0 ? "" : bytes_format_size(largest, most));
    }
    if (!state->up) {
        nic_plan_refuse(plan, "%s: the interface is down; ip link set dev %s up", state->name, state->name);
    }
    if (state->xdp_attached) {
        nic_plan_refuse(
            plan,
            "%s: an XDP program is attached, which excludes zero-copy receive; ip link set dev %s xdp off",
            state->name, state->name);
    }
    plan_queues_free(state, wish, plan);
}

void nic_plan_zcrx(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan)
{
    memset(plan, 0, sizeof(*plan));
    CHECK(wish->queue_count > 0);
    plan->queue_first = wish->queue_first;
    plan->queue_count = wish->queue_count;
    plan_conditions(state, wish, plan);
    plan_feature(state, plan, &state->gro_hw, "rx-gro-hw",
                 "without hardware GRO each packet is a completion of its own");
    plan_feature(state, plan, &state->ntuple, "rx-ntuple-filter",
                 "the listener's port is steered to its queue by a rule");
    plan_rings(state, plan);
    plan_channels(state, wish, plan);
    nic_plan_rss(state, wish, plan);
    nic_plan_steering(state, wish, plan);
}

/* ---- AF_XDP ---------------------------------------------------------------------------------------------------- */

#define XDP_MTU_IXGBE 3050U  /* one buffer of 3 KiB, and no frames of several */
#define XDP_MTU_SINGLE 3498U /* one page less what XDP keeps before and after a frame; measured on veth */
#define XDP_CPUS_IXGBE 128U

static void plan_feature_off(const struct nic_state *state, struct nic_plan *plan,
                             const struct nic_feature *feature, const char *name, const char *reason)
{
    if (feature->state != NIC_ON) {
        return;
    }
    if (!feature->changeable) {
        nic_plan_refuse(plan, "%s: %s is on and cannot be switched off here; %s", state->name, name, reason);
        return;
    }
    struct nic_step *step = nic_plan_step(plan, NIC_STEP_FEATURE);
    snprintf(step->name, sizeof(step->name), "%s", name);
    step->value = 0;
    snprintf(step->command, sizeof(step->command), "ethtool -K %s %s off", state->name, name);
    snprintf(step->reason, sizeof(step->reason), "%s", reason);
}

/* Linux's drivers/net/ethernet/intel/ixgbe, ixgbe_xdp_setup: each of these makes the attach fail, without a word. */
static void plan_ixgbe(const struct nic_state *state, const struct nic_xdp_host *host, struct nic_plan *plan)
{
    if (state->virtual_functions > 0) {
        nic_plan_refuse(plan,
                        "%s: SR-IOV is on (%u virtual functions), and ixgbe then has no XDP; echo 0 > "
                        "/sys/class/net/%s/device/sriov_numvfs",
                        state->name, state->virtual_functions, state->name);
    }
    if (state->dcb) {
        nic_plan_refuse(plan,
                        "%s: DCB is on, and ixgbe then has no XDP; dcbtool sc %s dcb off, or stop lldpad",
                        state->name, state->name);
    }
    if (host->cpus_possible > XDP_CPUS_IXGBE) {
        nic_plan_refuse(plan, "%s: %u possible CPUs, ixgbe has XDP queues for %u; boot with possible_cpus=%u",
                        state->name, host->cpus_possible, XDP_CPUS_IXGBE, XDP_CPUS_IXGBE);
    }
    if (state->driver_version[0] != '\0' && strcmp(state->driver_version, host->release) != 0) {
        nic_plan_refuse(
            plan,
            "%s: driver ixgbe %s is not the one of kernel %s; out-of-tree ones lack zero-copy: use the "
            "kernel's own",
            state->name, state->driver_version, host->release);
    }
}

/* Linux's drivers/net/veth.c, veth_set_xdp_features and veth_xdp_set: then it reports no XDP, and attaching is ENOSPC. */
static void plan_veth(const struct nic_state *state, struct nic_plan *plan)
{
    if (state->xdp_reported && (state->xdp_features & NETDEV_XDP_ACT_BASIC) == 0) {
        nic_plan_refuse(
            plan,
            "%s: a veth has XDP only when its peer has no more transmit queues than it has receive "
            "queues (%u); ethtool -L PEER tx %u at the peer",
            state->name, state->rx_queues, state->rx_queues);
    }
}

static void plan_xdp_mtu(const struct nic_state *state, struct nic_plan *plan)
{
    bool is_ixgbe = strcmp(state->driver, "ixgbe") == 0;
    uint32_t most = is_ixgbe                                            ? XDP_MTU_IXGBE
                    : (state->xdp_features & NETDEV_XDP_ACT_RX_SG) != 0 ? UINT32_MAX
                                                                        : XDP_MTU_SINGLE;
    if (state->mtu > most) {
        nic_plan_refuse(
            plan,
            "%s: MTU %u is above %u, which is what one 4 KiB frame holds with driver %s; ip link set %s mtu "
            "1500",
            state->name, state->mtu, most, state->driver, state->name);
    }
}

/* `ip link set dev X xdp off` is refused when a link holds the program, as with a penstock node's. */
static void plan_xdp_attached(const struct nic_state *state, struct nic_plan *plan)
{
    char which[96] = "";
    if (state->xdp_program != 0) {
        (void)snprintf(which, sizeof(which), " (number %u%s%s%s)", state->xdp_program,
                       state->xdp_name[0] != '\0' ? ", " : "", state->xdp_name,
                       nic_xdp_is_penstock(state) ? ": a penstock node" : "");
    }
    nic_plan_refuse(
        plan,
        "%s: another XDP program is attached%s; end who holds it: bpftool link shows the process, "
        "bpftool link detach id N takes it off; without a link, ip link set dev %s xdp off",
        state->name, which, state->name);
}

bool nic_xdp_is_penstock(const struct nic_state *state)
{
    return strncmp(state->xdp_name, "xsk_one", 15) == 0 || strncmp(state->xdp_name, "xsk_frags", 15) == 0;
}

void nic_plan_xdp(const struct nic_state *state, const struct nic_xdp_host *host, struct nic_plan *plan)
{
    memset(plan, 0, sizeof(*plan));
    if (!state->up) {
        nic_plan_refuse(plan, "%s: the interface is down; ip link set dev %s up", state->name, state->name);
    }
    if (state->xdp_attached) {
        plan_xdp_attached(state, plan);
    }
    for (uint32_t i = 0; i < state->queue_count && i < NIC_QUEUES_MAX; i++) {
        if (state->queues[i].zcrx || state->queues[i].dmabuf) {
            nic_plan_refuse(
                plan,
                "%s: queue %u is taken by zero-copy receive, and one such queue excludes XDP on the "
                "whole NIC",
                state->name, i);
            break;
        }
    }
    if (strcmp(state->driver, "ixgbe") == 0) {
        plan_ixgbe(state, host, plan);
    }
    if (strcmp(state->driver, "veth") == 0) {
        plan_veth(state, plan);
    }
    plan_xdp_mtu(state, plan);
    plan_feature_off(state, plan, &state->lro, "rx-lro",
                     "frames merged by the NIC are no frames of the wire");
    plan_feature_off(state, plan, &state->gro_hw, "rx-gro-hw",
                     "frames merged by the NIC are no frames of the wire");
    plan_feature_off(state, plan, &state->gro, "rx-gro",
                     "the kernel's merging of frames next to AF_XDP has corrupted them on some drivers");
    if (state->vlans > 0) {
        plan_feature_off(state, plan, &state->vlan_strip, "rx-vlan-hw-parse",
                         "a tag that the NIC strips is not seen by XDP, and answers would leave without it");
    }
}

/* A queue that a worker polls needs no interrupt. Without polls the timer polls in its place, and after this many of its runs that found
 * nothing the interrupt is switched on again: so an idle NIC is late once, by their sum. Documentation/networking/napi.rst. */
#define BUSY_POLL_DEFER 2U
#define BUSY_POLL_FLUSH_NS 200000U

void nic_plan_busy_poll(const struct nic_state *state, struct nic_plan *plan)
{
    if (!state->has_irq_defer || (state->irq_defer != 0 && state->flush_ns != 0)) {
        return;
    }
    struct nic_step *step = nic_plan_step(plan, NIC_STEP_DEFER);
    step->is_optional = true;
    step->value = state->irq_defer != 0 ? state->irq_defer : BUSY_POLL_DEFER;
    step->flush_ns = state->flush_ns != 0 ? state->flush_ns : BUSY_POLL_FLUSH_NS;
    snprintf(step->command, sizeof(step->command),
             "echo %u > /sys/class/net/%s/napi_defer_hard_irqs && echo %llu > "
             "/sys/class/net/%s/gro_flush_timeout",
             step->value, state->name, (unsigned long long)step->flush_ns, state->name);
    snprintf(step->reason, sizeof(step->reason), "interrupts stay away while a worker polls (busy_poll)");
}

static bool xdp_wish_has(const struct nic_xdp_wish *wish, uint64_t queue)
{
    for (uint32_t i = 0; i < wish->queue_count; i++) {
        if (wish->queues[i] == queue) {
            return true;
        }
    }
    return false;
}

/* The lowest queue over which hashing spreads and that nobody of ours serves; UINT32_MAX: none. A driver that shows no table may use
 * every queue. */
static uint32_t xdp_queue_missing(const struct nic_state *state, const struct nic_xdp_wish *wish)
{
    for (uint32_t queue = 0; queue < state->rx_queues && queue < NIC_QUEUES_MAX; queue++) {
        bool is_used = state->context_count == 0;
        for (uint32_t i = 0; i < state->context_count; i++) {
            is_used |= state->contexts[i].uses[queue];
        }
        if (is_used && !xdp_wish_has(wish, queue)) {
            return queue;
        }
    }
    return UINT32_MAX;
}

static bool xdp_rule_present(const struct nic_state *state, const struct nic_xdp_wish *wish,
                             const struct ethtool_rx_flow_spec *rule)
{
    for (uint32_t i = 0; i < state->rule_count; i++) {
        const struct ethtool_rx_flow_spec *have = &state->rules[i].spec;
        if (nic_flow_same_match(have, rule) && xdp_wish_has(wish, have->ring_cookie)) {
            return true;
        }
    }
    return false;
}

static void plan_xdp_rule(const struct nic_state *state, const struct nic_xdp_wish *wish, bool ipv6,
                          struct nic_plan *plan)
{
    struct ethtool_rx_flow_spec rule;
    nic_flow_rule(ipv6, wish->port, ipv6 ? 0 : wish->address4, wish->queues[0], &rule);
    if (xdp_rule_present(state, wish, &rule)) {
        return;
    }
    bool is_ixgbe = strcmp(state->driver, "ixgbe") == 0;
    if (is_ixgbe && ipv6) {
        nic_plan_refuse(plan,
                        "%s: ixgbe steers IPv4 only, so for IPv6 every queue must have a worker's socket; "
                        "leave `queues` out",
                        state->name);
        return;
    }
    for (uint32_t i = 0; is_ixgbe && i < state->rule_count; i++) {
        const struct ethtool_rx_flow_spec *have = &state->rules[i].spec;
        if (memcmp(&have->m_u, &rule.m_u, sizeof(rule.m_u)) != 0) {
            nic_plan_refuse(
                plan,
                "%s: ixgbe takes one mask for all steering rules, and rule %u has another; delete it "
                "(ethtool -N %s delete %u)",
                state->name, have->location, state->name, have->location);
            return;
        }
    }
    char address[INET_ADDRSTRLEN] = "";
    char clause[64] = "";
    struct nic_step *step = nic_plan_step(plan, NIC_STEP_RULE);
    step->rule = rule;
    if (!ipv6 && wish->address4 != 0) {
        inet_ntop(AF_INET, &wish->address4, address, sizeof(address));
        snprintf(clause, sizeof(clause), " dst-ip %s", address);
    }
    snprintf(step->command, sizeof(step->command), "ethtool -N %s flow-type %s%s dst-port %u action %u",
             state->name, ipv6 ? "tcp6" : "tcp4", clause, wish->port, wish->queues[0]);
    snprintf(step->reason, sizeof(step->reason),
             "packets of the listener must arrive on a queue that a worker serves");
}

/* Some have channels for both directions (combined), some, as veth, for each; what they cannot have is not advised. */
static void plan_xdp_queue_missing(const struct nic_state *state, uint32_t queue, struct nic_plan *plan)
{
    bool is_combined = state->channels_combined_max > queue;
    if (is_combined || state->channels_rx_max > queue) {
        nic_plan_refuse(plan, "%s: queue %u is wanted and there are %u; ethtool -L %s %s %u", state->name,
                        queue, state->rx_queues, state->name, is_combined ? "combined" : "rx", queue + 1U);
    } else {
        nic_plan_refuse(plan,
                        "%s: queue %u is wanted and there are %u, and the interface can have no more; name "
                        "others in `queues`, or leave it out",
                        state->name, queue, state->rx_queues);
    }
}

void nic_plan_xdp_queues(const struct nic_state *state, const struct nic_xdp_wish *wish,
                         struct nic_plan *plan)
{
    CHECK(wish->queue_count > 0);
    for (uint32_t i = 0; i < wish->queue_count; i++) {
        if (wish->queues[i] >= state->rx_queues) {
            plan_xdp_queue_missing(state, wish->queues[i], plan);
            return;
        }
    }
    uint32_t missing = xdp_queue_missing(state, wish);
    if (missing == UINT32_MAX) {
        return;
    }
    if (state->ntuple.state != NIC_ON && !state->ntuple.changeable) {
        nic_plan_refuse(
            plan,
            "%s: connections are spread over queue %u, which no worker serves, and driver %s cannot "
            "steer them; leave `queues` out, and all queues are served",
            state->name, missing, state->driver);
        return;
    }
    plan_feature(state, plan, &state->ntuple, "rx-ntuple-filter",
                 "the listener's port is steered to its queue by a rule");
    if (wish->want_ipv4) {
        plan_xdp_rule(state, wish, false, plan);
    }
    if (wish->want_ipv6) {
        plan_xdp_rule(state, wish, true, plan);
    }
}
