/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of netcore/nic. Goal: plans are right for NICs as real drivers describe themselves, and answers are parsed from
 * real message layouts. Method: states written by hand in the shapes of bnxt, mlx5, gve, fbnic, ixgbe and virtio_net; netlink
 * messages built with libnl and handed to the parsers. No system call is made.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <linux/ethtool_netlink.h>
#include <linux/netdev.h>
#include <netlink/msg.h>
#include <stdlib.h>
#include <string.h>

#include "nic/nic_int.h"

static struct nic_state state;
static struct nic_plan plan;
static uint32_t table[64];

/* A NIC with 8 queues, everything off, ordinary RSS over all queues; a test changes what differs. */
static void state_template(const char *driver)
{
    memset(&state, 0, sizeof(state));
    memcpy(state.name, "eth0", 5);
    snprintf(state.driver, sizeof(state.driver), "%s", driver);
    state.up = true;
    state.carrier = true;
    state.rx_queues = 8;
    state.channels_combined = 8;
    state.channels_combined_max = 16;
    state.data_split = NIC_OFF;
    state.has_hds_thresh = true;
    state.hds_thresh = 1024;
    state.gro_hw = (struct nic_feature){NIC_OFF, true};
    state.ntuple = (struct nic_feature){NIC_ON, true};
    state.context_count = 1;
    state.contexts[0].size = 64;
    state.contexts[0].table = table;
    for (uint32_t i = 0; i < 64; i++) {
        table[i] = i % 8;
        state.contexts[0].uses[i % 8] = true;
    }
}

static struct nic_wish wish_template(void)
{
    return (struct nic_wish){
        .queue_first = 7, .queue_count = 1, .port = 9000, .want_ipv4 = true, .buffer_size = 0};
}

static const struct nic_step *find_step(enum nic_step_kind kind)
{
    for (uint32_t i = 0; i < plan.step_count; i++) {
        if (plan.steps[i].kind == kind) {
            return &plan.steps[i];
        }
    }
    return NULL;
}

static bool refused_with(const char *text)
{
    for (uint32_t i = 0; i < plan.refusal_count; i++) {
        if (strstr(plan.refusals[i], text) != NULL) {
            return true;
        }
    }
    return false;
}

Test(nic_plan, a_bnxt_gets_gro_split_rss_and_a_rule_in_that_order)
{
    struct nic_wish wish = wish_template();
    state_template("bnxt_en");
    nic_plan_zcrx(&state, &wish, &plan);
    cr_assert(plan.refusal_count == 0, "%s", plan.refusals[0]);
    static const char *const commands[] = {
        "ethtool -K eth0 rx-gro-hw on",
        "ethtool -G eth0 tcp-data-split on hds-thresh 0",
        "ethtool -X eth0 equal 7",
        "ethtool -N eth0 flow-type tcp4 dst-port 9000 action 7",
    };
    cr_assert(plan.step_count == 4, "%u", plan.step_count);
    for (uint32_t i = 0; i < 4; i++) {
        cr_expect(strcmp(plan.steps[i].command, commands[i]) == 0, "%s", plan.steps[i].command);
    }
}

Test(nic_plan, a_split_that_is_only_reported_is_set_all_the_same)
{
    struct nic_wish wish = wish_template();
    state_template("fbnic");
    state.data_split = NIC_ON; /* the driver's state, while the stored setting is unknown */
    state.hds_thresh = 0;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_assert(find_step(NIC_STEP_RINGS) != NULL);
    cr_expect(find_step(NIC_STEP_RINGS)->is_reported);
    state.hds_thresh = 1500;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(!find_step(NIC_STEP_RINGS)->is_reported, "a threshold lets small packets through unsplit");
}

Test(nic_plan, a_prepared_nic_needs_only_what_cannot_be_verified)
{
    struct nic_wish wish = wish_template();
    state_template("mlx5_core");
    state.gro_hw.state = NIC_ON;
    state.data_split = NIC_ON;
    state.has_hds_thresh = false;
    memset(state.contexts[0].uses, 0, sizeof(state.contexts[0].uses));
    state.contexts[0].uses[0] = true;
    nic_flow_rule(false, 9000, 0, 7, &state.rules[0].spec);
    state.rules[0].spec.location = 1023;
    state.rule_count = 1;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_assert(plan.refusal_count == 0, "%s", plan.refusals[0]);
    cr_expect(plan.step_count == 1 && plan.steps[0].kind == NIC_STEP_RINGS && plan.steps[0].is_reported);
    cr_expect(strcmp(plan.steps[0].command, "ethtool -G eth0 tcp-data-split on") == 0, "%s",
              plan.steps[0].command);
}

Test(nic_plan, buffers_above_the_drivers_largest_are_refused_with_the_largest)
{
    static const struct {
        const char *driver;
        uint32_t size;
        const char *text; /* NULL: accepted */
    } rows[] = {
        {"bnxt_en", 32768, NULL},
        {"bnxt_en", 65536, "rx_buffer_size 64KiB: driver bnxt_en takes at most 32KiB"},
        {"mlx5_core", 131072, NULL},
        {"mlx5_core", 262144, "at most 128KiB"},
        {"gve", 8192, "only its default (rx_buffer_size: 0)"},
        {"fbnic", 4096, "only its default"},
        {"netdevsim", 1048576, NULL},
        {"futurenic", 1048576, NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct nic_wish wish = wish_template();
        wish.buffer_size = rows[i].size;
        state_template(rows[i].driver);
        nic_plan_zcrx(&state, &wish, &plan);
        cr_expect((plan.refusal_count > 0) == (rows[i].text != NULL), "row %zu", i);
        cr_expect(rows[i].text == NULL || refused_with(rows[i].text), "row %zu: %s", i, plan.refusals[0]);
    }
}

Test(nic_plan, drivers_without_zero_copy_are_named)
{
    static const char *const drivers[] = {"ixgbe",      "i40e", "ice",  "igb",
                                          "virtio_net", "ena",  "veth", "vmxnet3"};
    for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++) {
        struct nic_wish wish = wish_template();
        state_template(drivers[i]);
        nic_plan_zcrx(&state, &wish, &plan);
        cr_expect(refused_with("has no zero-copy receive"), "%s", drivers[i]);
    }
}

Test(nic_plan, a_queue_that_others_use_is_refused_by_owner)
{
    struct nic_wish wish = wish_template();
    state_template("bnxt_en");
    state.queues[7].xsk = true;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("queue 7 belongs to an AF_XDP socket"), "%s", plan.refusals[0]);
    state_template("bnxt_en");
    state.queues[7].zcrx = true;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("queue 7 belongs to another zero-copy receiver"), "%s", plan.refusals[0]);
    state_template("bnxt_en");
    state.context_count = 2;
    state.contexts[1] = (struct nic_context){.id = 1, .size = 64, .table = table};
    state.contexts[1].uses[5] = true;
    state.contexts[1].uses[7] = true;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("RSS context 1 spreads other flows over our queues"), "%s", plan.refusals[0]);
    state_template("bnxt_en");
    nic_flow_rule(false, 22, 0, 7, &state.rules[0].spec);
    state.rule_count = 1;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("steers other packets to queue 7"), "%s", plan.refusals[0]);
}

Test(nic_plan, conditions_no_setting_can_change_are_refused)
{
    struct nic_wish wish = wish_template();
    state_template("bnxt_en");
    state.xdp_attached = true;
    state.up = false;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("an XDP program is attached"));
    cr_expect(refused_with("the interface is down"));
    state_template("gve");
    state.data_split = NIC_UNKNOWN;
    state.has_hds_thresh = false;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("has no header split"));
    state_template("bnxt_en");
    state.context_count = 0;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("does not show its RSS table"));
    state_template("bnxt_en");
    wish.queue_first = 0;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("queue 0 must stay with the system"));
}

Test(nic_plan, missing_queues_are_added_and_kept_out_of_the_table)
{
    struct nic_wish wish = wish_template();
    state_template("mlx5_core");
    wish.queue_first = 8;
    wish.queue_count = 2;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_assert(plan.refusal_count == 0, "%s", plan.refusals[0]);
    cr_expect(strcmp(find_step(NIC_STEP_CHANNELS)->command, "ethtool -L eth0 combined 10") == 0);
    cr_expect(strcmp(find_step(NIC_STEP_RSS)->command, "ethtool -X eth0 equal 8") == 0);
    wish.queue_first = 16;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("the NIC has at most 16"), "%s", plan.refusals[0]);
}

Test(nic_plan, rules_name_address_and_family)
{
    struct nic_wish wish = wish_template();
    state_template("bnxt_en");
    wish.address4 = inet_addr("10.1.2.3");
    wish.want_ipv6 = true;
    nic_plan_zcrx(&state, &wish, &plan);
    const struct nic_step *last = &plan.steps[plan.step_count - 1];
    cr_expect(strcmp(last[-1].command,
                     "ethtool -N eth0 flow-type tcp4 dst-ip 10.1.2.3 dst-port 9000 action 7") == 0);
    cr_expect(strcmp(last->command, "ethtool -N eth0 flow-type tcp6 dst-port 9000 action 7") == 0);
    cr_expect(last->rule.flow_type == TCP_V6_FLOW && last->rule.h_u.tcp_ip6_spec.pdst == htons(9000));
}

Test(nic_plan, several_queues_get_a_table_of_their_own_and_one_rule_into_it)
{
    struct nic_wish wish = wish_template();
    wish.queue_first = 6;
    wish.queue_count = 2;
    wish.want_ipv6 = true;
    state_template("mlx5_core");
    state.context_count = 2; /* somebody else's context, over other queues */
    state.contexts[1] = (struct nic_context){.id = 1, .size = 64, .table = table};
    state.contexts[1].uses[2] = true;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_assert(plan.refusal_count == 0, "%s", plan.refusals[0]);
    cr_assert(plan.step_count == 6, "%u", plan.step_count);
    cr_expect(strcmp(plan.steps[2].command, "ethtool -X eth0 equal 6") == 0, "%s", plan.steps[2].command);
    cr_expect(strcmp(plan.steps[3].command, "ethtool -X eth0 context new start 6 equal 2") == 0, "%s",
              plan.steps[3].command);
    cr_expect(strcmp(plan.steps[4].command, "ethtool -N eth0 flow-type tcp4 dst-port 9000 context 2") == 0,
              "%s", plan.steps[4].command);
    cr_expect(strcmp(plan.steps[5].command, "ethtool -N eth0 flow-type tcp6 dst-port 9000 context 2") == 0,
              "%s", plan.steps[5].command);
    cr_expect(plan.steps[3].kind == NIC_STEP_CONTEXT && plan.steps[3].value == 6 && plan.steps[3].count == 2);
    cr_expect(plan.steps[4].context == NIC_CONTEXT_NEW);
    cr_expect(plan.steps[4].rule.flow_type == (TCP_V4_FLOW | FLOW_RSS) &&
              plan.steps[4].rule.ring_cookie == 0);
}

/* Our queues 6 and 7 in context 3, and the rule into it. */
static void state_with_context(void)
{
    state_template("bnxt_en");
    for (uint32_t i = 6; i < 8; i++) {
        state.contexts[0].uses[i] = false;
    }
    state.context_count = 2;
    state.contexts[1] = (struct nic_context){.id = 3, .size = 64, .table = table};
    state.contexts[1].uses[6] = true;
    state.contexts[1].uses[7] = true;
    nic_flow_rule(false, 9000, 0, 0, &state.rules[0].spec);
    state.rules[0].spec.flow_type |= FLOW_RSS;
    state.rules[0].context = 3;
    state.rule_count = 1;
}

Test(nic_plan, a_context_that_is_there_is_used_only_if_it_is_ours_alone)
{
    struct nic_wish wish = wish_template();
    wish.queue_first = 6;
    wish.queue_count = 2;
    state_with_context();
    nic_plan_zcrx(&state, &wish, &plan);
    cr_assert(plan.refusal_count == 0, "%s", plan.refusals[0]);
    cr_expect(find_step(NIC_STEP_CONTEXT) == NULL && find_step(NIC_STEP_RULE) == NULL &&
              find_step(NIC_STEP_RSS) == NULL);
    state.rule_count = 0; /* the context alone: its rule is what is missing */
    nic_plan_zcrx(&state, &wish, &plan);
    cr_assert(find_step(NIC_STEP_RULE) != NULL);
    cr_expect(find_step(NIC_STEP_RULE)->context == 3 && find_step(NIC_STEP_CONTEXT) == NULL);
    state_with_context();
    nic_flow_rule(false, 22, 0, 0, &state.rules[1].spec); /* ssh into the same context */
    state.rules[1].spec.flow_type |= FLOW_RSS;
    state.rules[1].context = 3;
    state.rule_count = 2;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("RSS context 3 spreads other flows over our queues"), "%s", plan.refusals[0]);
    state_with_context();
    state.contexts[1].uses[5] = true; /* wider than our queues */
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("RSS context 3 spreads other flows over our queues"), "%s", plan.refusals[0]);
}

Test(nic_plan, without_contexts_bits_of_the_clients_port_choose_the_queue)
{
    struct nic_wish wish = wish_template();
    wish.queue_first = 4;
    wish.queue_count = 4;
    state_template("gve");
    nic_plan_zcrx(&state, &wish, &plan);
    cr_assert(plan.refusal_count == 0, "%s", plan.refusals[0]);
    cr_expect(find_step(NIC_STEP_CONTEXT) == NULL);
    const struct nic_step *last = &plan.steps[plan.step_count - 1];
    cr_expect(strcmp(last->command,
                     "ethtool -N eth0 flow-type tcp4 dst-port 9000 src-port 6 m 0xfff9 action 7") == 0,
              "%s", last->command);
    cr_expect(strstr(last->reason, "driver gve has no RSS contexts") != NULL);
    cr_expect(last->rule.h_u.tcp_ip4_spec.psrc == htons(6) && last->rule.m_u.tcp_ip4_spec.psrc == htons(6));
    cr_expect(last[-3].kind == NIC_STEP_RULE && last[-3].rule.ring_cookie == 4);
    for (uint32_t i = 0; i < 4; i++) { /* once they are there nothing is missing, on any driver */
        state.rules[i].spec = last[(int)i - 3].rule;
    }
    state.rule_count = 4;
    snprintf(state.driver, sizeof(state.driver), "bnxt_en");
    nic_plan_zcrx(&state, &wish, &plan);
    cr_assert(plan.refusal_count == 0, "%s", plan.refusals[0]);
    cr_expect(find_step(NIC_STEP_RULE) == NULL && find_step(NIC_STEP_CONTEXT) == NULL);
    wish.queue_count = 3;
    state_template("gve");
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("2, 4, 8, 16 or 32 queues instead, and 3 are wanted"), "%s", plan.refusals[0]);
}

Test(nic_plan, a_rule_that_leads_our_own_port_elsewhere_is_refused)
{
    struct nic_wish wish = wish_template();
    state_template("bnxt_en");
    nic_flow_rule(false, 9000, 0, 3, &state.rules[0].spec);
    state.rule_count = 1;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("steers port 9000 to queue 3 alone"), "%s", plan.refusals[0]);
    wish.address4 = inet_addr("10.1.2.3"); /* the rule names no address, so it takes ours too */
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("steers port 9000 to queue 3 alone"), "%s", plan.refusals[0]);
    wish.address4 = 0;
    state.rules[0].spec.ring_cookie = 6; /* one of ours, but of two */
    wish.queue_first = 6;
    wish.queue_count = 2;
    nic_plan_zcrx(&state, &wish, &plan);
    cr_expect(refused_with("steers port 9000 to queue 6 alone"), "%s", plan.refusals[0]);
}

/* ---- ordinary sockets ------------------------------------------------------------------------------------------ */

/* A NIC of a kernel with per-queue rx-buf-len: pages by default, 32 KiB at most. */
static void state_lengths(const char *driver)
{
    state_template(driver);
    state.index = 3;
    state.rx_buf_len = 4096;
    state.rx_buf_len_max = 32768;
    for (uint32_t i = 0; i < state.rx_queues; i++) {
        state.queues[i].buf_len = 4096;
    }
}

static void plan_lengths(uint32_t size, const uint32_t *queues, uint32_t count)
{
    struct nic_socket_wish wish = {.queues = queues, .queue_count = count, .buffer_size = size};
    nic_plan_socket(&state, &wish, &plan);
}

Test(nic_plan, a_socket_listener_gets_its_size_on_the_queues_it_names)
{
    static const uint32_t queues[] = {2, 5};
    state_lengths("bnxt_en");
    plan_lengths(32768, queues, 2);
    cr_assert(plan.refusal_count == 0, "%s", plan.refusals[0]);
    cr_assert(plan.step_count == 2, "%u", plan.step_count);
    cr_expect(plan.steps[1].kind == NIC_STEP_BUF_LEN && plan.steps[1].queue == 5 &&
              plan.steps[1].value == 32768);
    cr_expect(strcmp(plan.steps[0].command,
                     "ynl --family netdev --do queue-set --json '{\"ifindex\": 3, \"type\": \"rx\", "
                     "\"id\": 2, \"rx-buf-len\": 32768}'") == 0,
              "%s", plan.steps[0].command);
}

Test(nic_plan, a_socket_listener_without_queues_gets_all_that_hashing_uses_and_nobody_owns)
{
    state_lengths("bnxt_en");
    memset(state.contexts[0].uses, 0, sizeof(state.contexts[0].uses));
    state.contexts[0].uses[0] = state.contexts[0].uses[1] = state.contexts[0].uses[3] = true;
    state.queues[1].zcrx = true;
    state.queues[3].buf_len = 16384; /* somebody's setting for this queue */
    plan_lengths(32768, NULL, 0);
    cr_assert(plan.step_count == 2, "%u", plan.step_count);
    cr_expect(plan.steps[0].queue == 0 && plan.steps[0].found == 0, "the device's length comes back by 0");
    cr_expect(plan.steps[1].queue == 3 && plan.steps[1].found == 16384, "a queue's own length comes back");
    plan_lengths(16384, NULL, 0);
    cr_expect(plan.step_count == 1 && plan.steps[0].queue == 0, "what is so already needs no step");
}

Test(nic_plan, lengths_that_cannot_be_had_are_refused_with_the_reason)
{
    static const uint32_t queues[] = {1, 9};
    state_template("bnxt_en"); /* no kernel of the series: nothing is reported */
    plan_lengths(32768, NULL, 0);
    cr_expect(refused_with("this kernel or driver bnxt_en has no rx-buf-len per queue"), "%s",
              plan.refusals[0]);
    state_lengths("mlx5_core");
    state.rx_buf_len = state.rx_buf_len_max = 0;
    plan_lengths(32768, NULL, 0);
    cr_expect(refused_with("driver mlx5_core leaves it to zero-copy receivers"), "%s", plan.refusals[0]);
    state_lengths("bnxt_en");
    plan_lengths(65536, NULL, 0);
    cr_expect(refused_with("rx_buffer_size 64KiB: ordinary queues take at most 32KiB"), "%s",
              plan.refusals[0]);
    plan_lengths(32768, queues, 2);
    cr_expect(refused_with("queue 9 does not exist (there are 8)") && plan.step_count == 0, "%s",
              plan.refusals[0]);
    state.queues[1].zcrx = true;
    plan_lengths(32768, queues, 1);
    cr_expect(refused_with("queue 1 belongs to another receiver"), "%s", plan.refusals[0]);
}

Test(nic_plan, more_queues_than_a_plan_holds_are_refused_not_cut)
{
    state_lengths("bnxt_en");
    state.rx_queues = NIC_STEPS_MAX + 1;
    for (uint32_t i = 0; i < state.rx_queues; i++) {
        state.queues[i].buf_len = 4096;
        state.contexts[0].uses[i] = true;
    }
    plan_lengths(32768, NULL, 0);
    cr_expect(refused_with("queues; name those that count by `queues`") && plan.step_count == 0, "%s",
              plan.refusals[0]);
}

/* A later Linux may give the numbers of our patches to something else. */
Test(nic_plan, answers_that_make_no_sense_together_offer_nothing)
{
    state_lengths("bnxt_en");
    cr_expect(nic_has_buf_len(&state));
    state.rx_buf_len_max = 1;
    cr_expect(!nic_has_buf_len(&state), "a maximum below what is set");
    state.rx_buf_len_max = 30000;
    cr_expect(!nic_has_buf_len(&state), "no power of two");
    state_lengths("bnxt_en");
    for (uint32_t i = 0; i < state.rx_queues; i++) {
        state.queues[i].buf_len = 0;
    }
    cr_expect(!nic_has_buf_len(&state), "no queue reports one");
}

/* ---- parsing --------------------------------------------------------------------------------------------------- */

static void parse(struct nl_msg *message, void (*fn)(void *, const struct nlattr *, int))
{
    fn(&state, nlmsg_attrdata(nlmsg_hdr(message), 0), nlmsg_attrlen(nlmsg_hdr(message), 0));
    nlmsg_free(message);
}

static struct nl_msg *message_new(void)
{
    return nlmsg_inherit(&(struct nlmsghdr){.nlmsg_len = NLMSG_HDRLEN});
}

Test(nic_parse, rings_with_and_without_a_threshold)
{
    memset(&state, 0, sizeof(state));
    struct nl_msg *message = message_new();
    nla_put_u32(message, ETHTOOL_A_RINGS_RX, 511);
    nla_put_u32(message, ETHTOOL_A_RINGS_RX_MAX, 2047);
    nla_put_u8(message, ETHTOOL_A_RINGS_TCP_DATA_SPLIT, 2);
    nla_put_u32(message, ETHTOOL_A_RINGS_HDS_THRESH, 256);
    nla_put_u32(message, ETHTOOL_A_RINGS_HDS_THRESH_MAX, 1023);
    parse(message, nic_parse_rings);
    cr_expect(state.ring_rx == 511 && state.ring_rx_max == 2047);
    cr_expect(state.data_split == NIC_ON && state.has_hds_thresh && state.hds_thresh == 256);
    memset(&state, 0, sizeof(state));
    message = message_new();
    nla_put_u32(message, ETHTOOL_A_RINGS_RX, 256);
    parse(message, nic_parse_rings); /* virtio_net: nothing of the kind */
    cr_expect(state.data_split == NIC_UNKNOWN && !state.has_hds_thresh);
}

Test(nic_parse, lengths_that_headers_do_not_know_yet)
{
    memset(&state, 0, sizeof(state));
    struct nl_msg *message = message_new();
    nla_put_u32(message, ETHTOOL_A_RINGS_RX_BUF_LEN, 4096);
    nla_put_u32(message, NIC_ETHTOOL_A_RINGS_RX_BUF_LEN_MAX, 1048576);
    parse(message, nic_parse_rings);
    cr_expect(state.rx_buf_len == 4096 && state.rx_buf_len_max == 1048576);
    message = message_new();
    nla_put_u32(message, NETDEV_A_QUEUE_ID, 1);
    nla_put_u32(message, NETDEV_A_QUEUE_TYPE, NETDEV_QUEUE_TYPE_RX);
    nla_put_u32(message, NIC_NETDEV_A_QUEUE_RX_BUF_LEN, 32768);
    parse(message, nic_parse_queue);
    cr_expect(state.queues[1].buf_len == 32768);
    message = message_new();
    nla_put_u32(message, NETDEV_A_QUEUE_ID, 1);
    nla_put_u32(message, NETDEV_A_QUEUE_TYPE, NETDEV_QUEUE_TYPE_RX);
    nla_put_u8(message, NIC_NETDEV_A_QUEUE_RX_BUF_LEN, 1); /* something else by that number */
    parse(message, nic_parse_queue);
    cr_expect(state.queues[1].buf_len == 0);
}

static void put_bit(struct nl_msg *message, const char *name)
{
    struct nlattr *bit = nla_nest_start(message, ETHTOOL_A_BITSET_BITS_BIT | NLA_F_NESTED);
    nla_put_string(message, ETHTOOL_A_BITSET_BIT_NAME, name);
    nla_nest_end(message, bit);
}

static void put_bitset(struct nl_msg *message, int attribute, const char *first, const char *second)
{
    struct nlattr *set = nla_nest_start(message, attribute | NLA_F_NESTED);
    struct nlattr *bits = nla_nest_start(message, ETHTOOL_A_BITSET_BITS | NLA_F_NESTED);
    put_bit(message, first);
    put_bit(message, second);
    nla_nest_end(message, bits);
    nla_nest_end(message, set);
}

Test(nic_parse, features_that_are_on_changeable_or_absent)
{
    memset(&state, 0, sizeof(state));
    struct nl_msg *message = message_new();
    put_bitset(message, ETHTOOL_A_FEATURES_HW, "rx-gro-hw", "rx-lro");
    put_bitset(message, ETHTOOL_A_FEATURES_ACTIVE, "rx-gro-hw", "tx-checksum-ipv4");
    parse(message, nic_parse_features);
    cr_expect(state.gro_hw.state == NIC_ON && state.gro_hw.changeable);
    cr_expect(state.lro.state == NIC_OFF && state.lro.changeable);
    cr_expect(state.ntuple.state == NIC_UNKNOWN && !state.ntuple.changeable);
}

Test(nic_parse, queues_and_their_owners)
{
    memset(&state, 0, sizeof(state));
    struct nl_msg *message = message_new();
    nla_put_u32(message, NETDEV_A_QUEUE_ID, 3);
    nla_put_u32(message, NETDEV_A_QUEUE_TYPE, NETDEV_QUEUE_TYPE_RX);
    nla_put_u32(message, NETDEV_A_QUEUE_NAPI_ID, 8195);
    struct nlattr *ring = nla_nest_start(message, NETDEV_A_QUEUE_IO_URING | NLA_F_NESTED);
    nla_put_u32(message, NETDEV_A_IO_URING_PROVIDER_INFO_RX_BUF_LEN, 32768);
    nla_nest_end(message, ring);
    parse(message, nic_parse_queue);
    cr_expect(state.queues[3].zcrx && state.queues[3].zcrx_buf_len == 32768 &&
              state.queues[3].napi_id == 8195);
    message = message_new();
    nla_put_u32(message, NETDEV_A_QUEUE_ID, 4);
    nla_put_u32(message, NETDEV_A_QUEUE_TYPE, NETDEV_QUEUE_TYPE_TX);
    parse(message, nic_parse_queue);
    cr_expect(state.queue_count == 1, "a transmit queue is none of ours");
    message = message_new();
    nla_put_u32(message, NETDEV_A_QUEUE_ID, 1U << 30);
    nla_put_u32(message, NETDEV_A_QUEUE_TYPE, NETDEV_QUEUE_TYPE_RX);
    parse(message, nic_parse_queue); /* out of range: ignored, not written */
    cr_expect(state.queue_count == 1);
}

static void put_page_pool(struct nl_msg *message, uint32_t index, uint32_t napi, uint32_t size, bool detached)
{
    nla_put_u32(message, NETDEV_A_PAGE_POOL_IFINDEX, index);
    nla_put_u32(message, NETDEV_A_PAGE_POOL_NAPI_ID, napi);
    nla_put_u32(message, NETDEV_A_PAGE_POOL_INFLIGHT, 12); /* a kernel "uint": 4 bytes as long as it fits */
    if (detached) {
        nla_put_u32(message, NETDEV_A_PAGE_POOL_DETACH_TIME, 3);
    }
    struct nlattr *nest = nla_nest_start(message, NETDEV_A_PAGE_POOL_IO_URING);
    nla_put_u32(message, NETDEV_A_IO_URING_PROVIDER_INFO_RX_BUF_LEN, size);
    nla_nest_end(message, nest);
}

Test(nic_parse, page_pools_belong_to_the_queue_of_their_napi)
{
    static const struct {
        uint32_t index, napi, size;
        bool detached;
    } pools[] = {{4, 901, 32768, false}, {9, 902, 4096, false}, {4, 902, 65536, true}, {4, 903, 4096, false}};
    state_template("netdevsim");
    state.index = 4;
    state.queues[1] = (struct nic_queue){.napi_id = 901, .zcrx = true};
    state.queues[2] = (struct nic_queue){.napi_id = 902, .zcrx = true};
    state.queues[3] = (struct nic_queue){.napi_id = 903};
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
        struct nl_msg *message = message_new();
        put_page_pool(message, pools[i].index, pools[i].napi, pools[i].size, pools[i].detached);
        parse(message, nic_parse_page_pool);
    }
    cr_expect(state.queues[1].pool_buf_len == 32768 && state.queues[1].pool_inflight == 12);
    cr_expect(state.queues[2].pool_buf_len == 0, "another interface's, and one of an earlier registration");
    cr_expect(state.queues[3].pool_buf_len == 0, "not a queue of ours");
}

Test(nic_parse, rss_tables_of_this_interface_only)
{
    static const uint32_t entries[4] = {0, 1, 5, 0};
    memset(&state, 0, sizeof(state));
    state.index = 9;
    for (uint32_t index = 8; index <= 9; index++) {
        struct nl_msg *message = message_new();
        struct nlattr *header = nla_nest_start(message, ETHTOOL_A_RSS_HEADER | NLA_F_NESTED);
        nla_put_u32(message, ETHTOOL_A_HEADER_DEV_INDEX, index);
        nla_nest_end(message, header);
        nla_put(message, ETHTOOL_A_RSS_INDIR, sizeof(entries), entries);
        parse(message, nic_parse_rss);
    }
    cr_assert(state.context_count == 1);
    cr_expect(state.contexts[0].size == 4 && state.contexts[0].uses[5] && !state.contexts[0].uses[2]);
    nic_state_free(&state);
}
