/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_steer: how a listener's port reaches its queues and nobody else does. Pure: no system call, no allocation.
 *
 *   one queue                          one rule: port -> queue
 *   several, driver has RSS contexts   a context over the queues, one rule: port -> context
 *   several, it has none (gve)         a rule per queue on bits of the client's port; a power of two of queues
 *
 * The lowest bit of the client's port is not used: Linux clients that connect take even ports as long as there are any.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "nic/nic_int.h"

/* ---- rules ----------------------------------------------------------------------------------------------------- */

void nic_flow_rule(bool ipv6, uint16_t port, uint32_t address4, uint32_t queue,
                   struct ethtool_rx_flow_spec *spec)
{
    memset(spec, 0, sizeof(*spec));
    spec->ring_cookie = queue;
    spec->location = RX_CLS_LOC_ANY;
    if (ipv6) {
        spec->flow_type = TCP_V6_FLOW;
        spec->h_u.tcp_ip6_spec.pdst = htons(port);
        spec->m_u.tcp_ip6_spec.pdst = 0xffff;
        return;
    }
    spec->flow_type = TCP_V4_FLOW;
    spec->h_u.tcp_ip4_spec.pdst = htons(port);
    spec->m_u.tcp_ip4_spec.pdst = 0xffff;
    if (address4 != 0) {
        spec->h_u.tcp_ip4_spec.ip4dst = address4;
        spec->m_u.tcp_ip4_spec.ip4dst = 0xffffffff;
    }
}

static uint16_t split_mask(uint32_t parts)
{
    return (uint16_t)((parts - 1) << 1);
}

static uint16_t split_value(uint32_t part)
{
    return (uint16_t)(part << 1);
}

void nic_flow_split(struct ethtool_rx_flow_spec *spec, uint32_t part, uint32_t parts)
{
    CHECK(part < parts);
    CHECK((parts & (parts - 1)) == 0);
    if (spec->flow_type == TCP_V6_FLOW) {
        spec->h_u.tcp_ip6_spec.psrc = htons(split_value(part));
        spec->m_u.tcp_ip6_spec.psrc = htons(split_mask(parts));
    } else {
        spec->h_u.tcp_ip4_spec.psrc = htons(split_value(part));
        spec->m_u.tcp_ip4_spec.psrc = htons(split_mask(parts));
    }
}

bool nic_flow_same_match(const struct ethtool_rx_flow_spec *a, const struct ethtool_rx_flow_spec *b)
{
    return (a->flow_type & ~FLOW_RSS) == (b->flow_type & ~FLOW_RSS) &&
           memcmp(&a->h_u, &b->h_u, sizeof(a->h_u)) == 0 && memcmp(&a->m_u, &b->m_u, sizeof(a->m_u)) == 0;
}

static bool wish_has_queue(const struct nic_wish *wish, uint64_t queue)
{
    return queue >= wish->queue_first && queue < (uint64_t)wish->queue_first + wish->queue_count;
}

static void wish_rule(const struct nic_wish *wish, bool ipv6, struct ethtool_rx_flow_spec *rule)
{
    nic_flow_rule(ipv6, wish->port, ipv6 ? 0 : wish->address4, wish->queue_first, rule);
}

/* Is it a rule for the listener's port, whole or a part of it by the client's port? */
static bool rule_is_ours(const struct nic_wish *wish, const struct ethtool_rx_flow_spec *have)
{
    struct ethtool_rx_flow_spec ours;
    bool ipv6 = (have->flow_type & ~FLOW_RSS) == TCP_V6_FLOW;
    wish_rule(wish, ipv6, &ours);
    if (ipv6) {
        ours.h_u.tcp_ip6_spec.psrc = have->h_u.tcp_ip6_spec.psrc;
        ours.m_u.tcp_ip6_spec.psrc = have->m_u.tcp_ip6_spec.psrc;
    } else {
        ours.h_u.tcp_ip4_spec.psrc = have->h_u.tcp_ip4_spec.psrc;
        ours.m_u.tcp_ip4_spec.psrc = have->m_u.tcp_ip4_spec.psrc;
    }
    return nic_flow_same_match(have, &ours);
}

/* ---- RSS contexts ---------------------------------------------------------------------------------------------- */

bool nic_context_is_over(const struct nic_context *context, uint32_t first, uint32_t count)
{
    for (uint32_t queue = 0; queue < NIC_QUEUES_MAX; queue++) {
        if (context->uses[queue] != (queue >= first && queue < first + count)) {
            return false;
        }
    }
    return context->id != 0;
}

/* A context over exactly our queues that only our rules name. */
static bool context_is_ours(const struct nic_state *state, const struct nic_wish *wish,
                            const struct nic_context *context)
{
    if (!nic_context_is_over(context, wish->queue_first, wish->queue_count)) {
        return false;
    }
    for (uint32_t i = 0; i < state->rule_count; i++) {
        const struct nic_rule *rule = &state->rules[i];
        if ((rule->spec.flow_type & FLOW_RSS) != 0 && rule->context == context->id &&
            !rule_is_ours(wish, &rule->spec)) {
            return false;
        }
    }
    return true;
}

/* 0: there is none. */
static uint32_t context_find(const struct nic_state *state, const struct nic_wish *wish)
{
    for (uint32_t i = 0; i < state->context_count; i++) {
        if (context_is_ours(state, wish, &state->contexts[i])) {
            return state->contexts[i].id;
        }
    }
    return 0;
}

static bool context_uses(const struct nic_context *context, const struct nic_wish *wish)
{
    for (uint32_t i = 0; i < wish->queue_count; i++) {
        if (wish->queue_first + i < NIC_QUEUES_MAX && context->uses[wish->queue_first + i]) {
            return true;
        }
    }
    return false;
}

/* The id a person will see: the kernel gives the lowest free one. */
static uint32_t context_next(const struct nic_state *state)
{
    for (uint32_t id = 1;; id++) { /* Bounded by the contexts there are. */
        bool is_taken = false;
        for (uint32_t i = 0; i < state->context_count; i++) {
            is_taken |= state->contexts[i].id == id;
        }
        if (!is_taken) {
            return id;
        }
    }
}

static void plan_rss_table(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan)
{
    struct nic_step *step = nic_plan_step(plan, NIC_STEP_RSS);
    step->value = wish->queue_first;
    snprintf(step->command, sizeof(step->command), "ethtool -X %s equal %u", state->name, wish->queue_first);
    snprintf(step->reason, sizeof(step->reason),
             "a foreign flow on a zero-copy queue fails with EFAULT, ssh included: hashing must avoid queues "
             "%u to %u",
             wish->queue_first, wish->queue_first + wish->queue_count - 1);
}

void nic_plan_rss(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan)
{
    bool main_known = false;
    bool main_uses = false;
    for (uint32_t i = 0; i < state->context_count; i++) {
        const struct nic_context *context = &state->contexts[i];
        if (context->id == 0) {
            main_known = true;
            main_uses = context_uses(context, wish);
        } else if (context_uses(context, wish) && !context_is_ours(state, wish, context)) {
            nic_plan_refuse(
                plan,
                "%s: RSS context %u spreads other flows over our queues; remove it (ethtool -X %s context %u "
                "delete) or choose other queues",
                state->name, context->id, state->name, context->id);
        }
    }
    if (!main_known) {
        nic_plan_refuse(
            plan,
            "%s: the driver does not show its RSS table, so it cannot be known that no foreign flow lands on "
            "our queues",
            state->name);
        return;
    }
    /* New queues would join a default table. */
    if (main_uses || wish->queue_first + wish->queue_count > state->rx_queues) {
        plan_rss_table(state, wish, plan);
    }
}

/* ---- steering -------------------------------------------------------------------------------------------------- */

/* A rule of somebody else that sends packets to our queue breaks isolation just as RSS would. */
static void plan_foreign_rules(const struct nic_state *state, const struct nic_wish *wish,
                               struct nic_plan *plan)
{
    for (uint32_t i = 0; i < state->rule_count; i++) {
        const struct ethtool_rx_flow_spec *have = &state->rules[i].spec;
        if ((have->flow_type & FLOW_RSS) != 0 || !wish_has_queue(wish, have->ring_cookie) ||
            rule_is_ours(wish, have)) {
            continue;
        }
        nic_plan_refuse(
            plan,
            "%s: rule %u steers other packets to queue %u; delete it (ethtool -N %s delete %u) or choose "
            "another queue",
            state->name, have->location, (uint32_t)have->ring_cookie, state->name, have->location);
    }
}

/* Does the rule take all of our port's packets, or a part of them by the client's port? It may name no address where ours does. */
static bool rule_takes_ours(const struct nic_wish *wish, const struct ethtool_rx_flow_spec *have)
{
    struct ethtool_rx_flow_spec narrow = *have;
    if ((have->flow_type & ~FLOW_RSS) == TCP_V4_FLOW && have->m_u.tcp_ip4_spec.ip4dst == 0 &&
        wish->address4 != 0) {
        narrow.h_u.tcp_ip4_spec.ip4dst = wish->address4;
        narrow.m_u.tcp_ip4_spec.ip4dst = 0xffffffff;
    }
    return rule_is_ours(wish, &narrow);
}

/* A rule for our own port that leads elsewhere, or all of it to one of several queues: the NIC would follow it and not ours. */
static void plan_rival_rules(const struct nic_state *state, const struct nic_wish *wish,
                             struct nic_plan *plan)
{
    for (uint32_t i = 0; i < state->rule_count; i++) {
        const struct ethtool_rx_flow_spec *have = &state->rules[i].spec;
        bool is_ipv6 = (have->flow_type & ~FLOW_RSS) == TCP_V6_FLOW;
        bool is_part = (is_ipv6 ? have->m_u.tcp_ip6_spec.psrc : have->m_u.tcp_ip4_spec.psrc) != 0;
        bool is_right = wish_has_queue(wish, have->ring_cookie) && (is_part || wish->queue_count == 1);
        if ((have->flow_type & FLOW_RSS) != 0 || is_right || !rule_takes_ours(wish, have)) {
            continue;
        }
        nic_plan_refuse(plan,
                        "%s: rule %u steers port %u to queue %u alone; delete it (ethtool -N %s delete %u)",
                        state->name, have->location, wish->port, (uint32_t)have->ring_cookie, state->name,
                        have->location);
    }
}

/* context 0: the rule names a queue. */
static bool rule_present(const struct nic_state *state, const struct ethtool_rx_flow_spec *rule,
                         uint32_t context)
{
    for (uint32_t i = 0; i < state->rule_count; i++) {
        const struct nic_rule *have = &state->rules[i];
        bool has_context = (have->spec.flow_type & FLOW_RSS) != 0;
        bool same_target = context != 0 ? has_context && have->context == context
                                        : !has_context && have->spec.ring_cookie == rule->ring_cookie;
        if (same_target && nic_flow_same_match(&have->spec, rule)) {
            return true;
        }
    }
    return false;
}

/* With one queue any context over it serves as well as the queue itself. */
static bool whole_rule_present(const struct nic_state *state, const struct nic_wish *wish,
                               const struct ethtool_rx_flow_spec *rule)
{
    uint32_t context = context_find(state, wish);
    return (context != 0 && rule_present(state, rule, context)) ||
           (wish->queue_count == 1 && rule_present(state, rule, 0));
}

/* The beginning of the command a person would type; returns its length. */
static int rule_command(const struct nic_state *state, const struct nic_wish *wish, bool ipv6,
                        struct nic_step *step)
{
    char address[INET_ADDRSTRLEN] = "";
    char clause[64] = "";
    if (!ipv6 && wish->address4 != 0) {
        inet_ntop(AF_INET, &wish->address4, address, sizeof(address));
        snprintf(clause, sizeof(clause), " dst-ip %s", address);
    }
    return snprintf(step->command, sizeof(step->command), "ethtool -N %s flow-type %s%s dst-port %u",
                    state->name, ipv6 ? "tcp6" : "tcp4", clause, wish->port);
}

static void plan_rule_queue(const struct nic_state *state, const struct nic_wish *wish, bool ipv6,
                            struct nic_plan *plan)
{
    struct ethtool_rx_flow_spec rule;
    wish_rule(wish, ipv6, &rule);
    if (whole_rule_present(state, wish, &rule)) {
        return;
    }
    struct nic_step *step = nic_plan_step(plan, NIC_STEP_RULE);
    step->rule = rule;
    int len = rule_command(state, wish, ipv6, step);
    snprintf(step->command + len, sizeof(step->command) - (size_t)len, " action %u", wish->queue_first);
    snprintf(step->reason, sizeof(step->reason), "the listener's packets must arrive on queue %u",
             wish->queue_first);
}

static void plan_rule_context(const struct nic_state *state, const struct nic_wish *wish, bool ipv6,
                              uint32_t context, struct nic_plan *plan)
{
    struct ethtool_rx_flow_spec rule;
    wish_rule(wish, ipv6, &rule);
    if (context != NIC_CONTEXT_NEW && rule_present(state, &rule, context)) {
        return;
    }
    struct nic_step *step = nic_plan_step(plan, NIC_STEP_RULE);
    step->rule = rule;
    step->rule.flow_type |= FLOW_RSS;
    step->rule.ring_cookie = 0; /* It would be added to the table's entries. */
    step->context = context;
    int len = rule_command(state, wish, ipv6, step);
    snprintf(step->command + len, sizeof(step->command) - (size_t)len, " context %u",
             context == NIC_CONTEXT_NEW ? context_next(state) : context);
    snprintf(step->reason, sizeof(step->reason),
             "the listener's packets must be spread over queues %u to %u and no others", wish->queue_first,
             wish->queue_first + wish->queue_count - 1);
}

static void plan_context(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan)
{
    uint32_t context = context_find(state, wish);
    if (context == 0) {
        context = NIC_CONTEXT_NEW;
        struct nic_step *step = nic_plan_step(plan, NIC_STEP_CONTEXT);
        step->value = wish->queue_first;
        step->count = wish->queue_count;
        snprintf(step->command, sizeof(step->command), "ethtool -X %s context new start %u equal %u",
                 state->name, wish->queue_first, wish->queue_count);
        snprintf(step->reason, sizeof(step->reason),
                 "a table of their own spreads the listener's connections over its %u queues",
                 wish->queue_count);
    }
    if (wish->want_ipv4) {
        plan_rule_context(state, wish, false, context, plan);
    }
    if (wish->want_ipv6) {
        plan_rule_context(state, wish, true, context, plan);
    }
}

static void plan_rules_split(const struct nic_state *state, const struct nic_wish *wish, bool ipv6,
                             struct nic_plan *plan)
{
    uint32_t parts = wish->queue_count;
    for (uint32_t part = 0; part < parts; part++) {
        struct ethtool_rx_flow_spec rule;
        wish_rule(wish, ipv6, &rule);
        nic_flow_split(&rule, part, parts);
        rule.ring_cookie = wish->queue_first + part;
        if (rule_present(state, &rule, 0)) {
            continue;
        }
        struct nic_step *step = nic_plan_step(plan, NIC_STEP_RULE);
        step->rule = rule;
        int len = rule_command(state, wish, ipv6, step);
        /* ethtool's masks name the bits that do not matter. */
        snprintf(step->command + len, sizeof(step->command) - (size_t)len, " src-port %u m 0x%04x action %u",
                 split_value(part), (unsigned)(uint16_t)~split_mask(parts), wish->queue_first + part);
        snprintf(step->reason, sizeof(step->reason),
                 "driver %s has no RSS contexts, so bits of the client's port choose among queues %u to %u",
                 state->driver, wish->queue_first, wish->queue_first + parts - 1);
    }
}

static bool rules_split_present(const struct nic_state *state, const struct nic_wish *wish, bool ipv6)
{
    for (uint32_t part = 0; part < wish->queue_count; part++) {
        struct ethtool_rx_flow_spec rule;
        wish_rule(wish, ipv6, &rule);
        nic_flow_split(&rule, part, wish->queue_count);
        rule.ring_cookie = wish->queue_first + part;
        if (!rule_present(state, &rule, 0)) {
            return false;
        }
    }
    return true;
}

static void plan_split(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan)
{
    uint32_t parts = wish->queue_count;
    if ((parts & (parts - 1)) != 0 || parts > NIC_SPLIT_MAX) {
        nic_plan_refuse(
            plan,
            "%s: driver %s has no RSS contexts; rules on the client's port can feed 2, 4, 8, 16 or %u queues "
            "instead, and %u are wanted: set node.workers and `queues` to one of these numbers",
            state->name, state->driver, NIC_SPLIT_MAX, parts);
        return;
    }
    if (wish->want_ipv4) {
        plan_rules_split(state, wish, false, plan);
    }
    if (wish->want_ipv6) {
        plan_rules_split(state, wish, true, plan);
    }
}

void nic_plan_steering(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan)
{
    bool can_split = wish->queue_count > 1 && wish->queue_count <= NIC_SPLIT_MAX &&
                     (wish->queue_count & (wish->queue_count - 1)) == 0;
    /* What a person prepared by rules on the client's port serves on every driver. */
    bool is_split = can_split && (!wish->want_ipv4 || rules_split_present(state, wish, false)) &&
                    (!wish->want_ipv6 || rules_split_present(state, wish, true));
    plan_foreign_rules(state, wish, plan);
    plan_rival_rules(state, wish, plan);
    if (is_split) {
        return;
    }
    if (wish->queue_count > 1) {
        if (nic_driver_has_contexts(state->driver)) {
            plan_context(state, wish, plan);
        } else {
            plan_split(state, wish, plan);
        }
        return;
    }
    if (wish->want_ipv4) {
        plan_rule_queue(state, wish, false, plan);
    }
    if (wish->want_ipv6) {
        plan_rule_queue(state, wish, true, plan);
    }
}
