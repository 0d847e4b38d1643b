/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of nic_plan_xdp and of choosing af_xdp. Goal: each condition is found before anything is attached and is named, alone; and
 * `receive: auto` takes af_xdp only where the driver reports zero-copy. Method: states as ixgbe, ice and veth describe themselves, one
 * thing different at a time. No system call is made.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <linux/netdev.h>
#include <string.h>

#include "nic/nic_int.h"
#include "server/receive.h"

static struct nic_state state;
static struct nic_plan plan;
static struct nic_xdp_host host = {.release = "6.12.0", .cpus_possible = 32};

/* An ixgbe that has nothing against AF_XDP: 4 queues, hashing over all, offloads that merge frames off. */
static void template(const char *driver)
{
    memset(&state, 0, sizeof(state));
    memcpy(state.name, "eth0", 5);
    (void)snprintf(state.driver, sizeof(state.driver), "%s", driver);
    (void)snprintf(state.driver_version, sizeof(state.driver_version), "%s", host.release);
    state.up = true;
    state.mtu = 1500;
    state.rx_queues = 4;
    state.xdp_features = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT | NETDEV_XDP_ACT_XSK_ZEROCOPY;
    state.lro = state.gro = state.gro_hw = state.vlan_strip = (struct nic_feature){NIC_OFF, true};
    state.ntuple = (struct nic_feature){NIC_OFF, true};
    state.context_count = 1;
    for (uint32_t i = 0; i < 4; i++) {
        state.contexts[0].uses[i] = true;
    }
}

static void refused_alone(const char *text)
{
    nic_plan_xdp(&state, &host, &plan);
    cr_expect_eq(plan.refusal_count, 1, "%s: %u refusals", text, plan.refusal_count);
    cr_expect(strstr(plan.refusals[0], text) != NULL, "%s", plan.refusals[0]);
}

Test(nic_xdp, an_ixgbe_as_it_should_be_needs_nothing)
{
    template("ixgbe");
    nic_plan_xdp(&state, &host, &plan);
    cr_expect_eq(plan.refusal_count, 0, "%s", plan.refusals[0]);
    cr_expect_eq(plan.step_count, 0, "%s", plan.steps[0].command);
    state.mtu = 3050;
    nic_plan_xdp(&state, &host, &plan);
    cr_expect_eq(plan.refusal_count, 0, "%s", plan.refusals[0]);
}

/* Whoever has set either value keeps it. */
Test(nic_xdp, busy_polling_has_interrupts_held_back_unless_somebody_did)
{
    template("ice");
    memset(&plan, 0, sizeof(plan));
    nic_plan_busy_poll(&state, &plan);
    cr_expect_eq(plan.step_count, 0, "a kernel without it is asked for nothing");
    state.has_irq_defer = true;
    nic_plan_busy_poll(&state, &plan);
    cr_assert_eq(plan.step_count, 1);
    cr_expect(plan.steps[0].kind == NIC_STEP_DEFER && plan.steps[0].is_optional);
    cr_expect_str_eq(plan.steps[0].command,
                     "echo 2 > /sys/class/net/eth0/napi_defer_hard_irqs && echo 200000 > "
                     "/sys/class/net/eth0/gro_flush_timeout");
    memset(&plan, 0, sizeof(plan));
    state.flush_ns = 7000;
    nic_plan_busy_poll(&state, &plan);
    cr_assert_eq(plan.step_count, 1);
    cr_expect(plan.steps[0].value == 2 && plan.steps[0].flush_ns == 7000);
    memset(&plan, 0, sizeof(plan));
    state.irq_defer = 100;
    nic_plan_busy_poll(&state, &plan);
    cr_expect_eq(plan.step_count, 0);
}

Test(nic_xdp, each_condition_of_ixgbe_is_named_alone)
{
    template("ixgbe");
    state.virtual_functions = 7;
    refused_alone("SR-IOV is on (7 virtual functions)");
    template("ixgbe");
    state.dcb = true;
    refused_alone("DCB is on");
    template("ixgbe");
    state.mtu = 3051;
    refused_alone("MTU 3051 is above 3050");
    template("ixgbe");
    state.xdp_features |=
        NETDEV_XDP_ACT_RX_SG; /* Whatever a driver says: ixgbe has no frames of several buffers. */
    state.mtu = 9000;
    refused_alone("MTU 9000 is above 3050");
    template("ixgbe");
    memcpy(state.driver_version, "5.19.6", 7);
    refused_alone("driver ixgbe 5.19.6 is not the one of kernel 6.12.0");
    template("ixgbe");
    host.cpus_possible = 129;
    refused_alone("129 possible CPUs");
    host.cpus_possible = 128;
    nic_plan_xdp(&state, &host, &plan);
    cr_expect_eq(plan.refusal_count, 0);
    template("ixgbe");
    state.lro = (struct nic_feature){NIC_ON, false};
    refused_alone("rx-lro is on and cannot be switched off");
}

Test(nic_xdp, conditions_of_ixgbe_are_not_those_of_others)
{
    template("ice");
    state.virtual_functions = 7;
    state.dcb = true;
    state.xdp_features |= NETDEV_XDP_ACT_RX_SG;
    state.mtu = 9000;
    host.cpus_possible = 512;
    nic_plan_xdp(&state, &host, &plan);
    cr_expect_eq(plan.refusal_count, 0, "%s", plan.refusals[0]);
    state.xdp_features &= ~(uint64_t)NETDEV_XDP_ACT_RX_SG;
    refused_alone("MTU 9000 is above 3498");
}

Test(nic_xdp, conditions_of_every_driver_are_named_alone)
{
    template("ice");
    state.up = false;
    refused_alone("the interface is down");
    template("ice");
    state.xdp_attached = true;
    refused_alone("another XDP program is attached; end who holds it");
    state.xdp_program = 12;
    refused_alone("attached (number 12); end who");
    memcpy(state.xdp_name, "other", 6);
    refused_alone("attached (number 12, other); end who");
    memcpy(state.xdp_name, "xsk_one", 8);
    refused_alone("attached (number 12, xsk_one: a penstock node); end who");
    template("ice");
    state.queue_count = 4;
    state.queues[2].zcrx = true;
    refused_alone("queue 2 is taken by zero-copy receive");
    template("veth");
    state.xdp_reported = true;
    state.xdp_features = 0;
    refused_alone("no more transmit queues than it has receive queues (4); ethtool -L PEER tx 4 at the peer");
    state.xdp_reported = false; /* Before Linux 6.3 nobody knows. */
    nic_plan_xdp(&state, &host, &plan);
    cr_expect_eq(plan.refusal_count, 0, "%s", plan.refusals[0]);
}

Test(nic_xdp, what_merges_frames_or_hides_tags_is_switched_off)
{
    template("ixgbe");
    state.lro.state = state.gro.state = state.gro_hw.state = state.vlan_strip.state = NIC_ON;
    nic_plan_xdp(&state, &host, &plan);
    cr_expect_eq(plan.step_count, 3, "no VLAN, so stripping tags hides nothing");
    state.vlans = 1;
    nic_plan_xdp(&state, &host, &plan);
    cr_assert_eq(plan.step_count, 4);
    static const char *const features[] = {"rx-lro", "rx-gro-hw", "rx-gro", "rx-vlan-hw-parse"};
    for (uint32_t i = 0; i < 4; i++) {
        char command[64];
        (void)snprintf(command, sizeof(command), "ethtool -K eth0 %s off", features[i]);
        cr_expect_str_eq(plan.steps[i].command, command);
        cr_expect_eq(plan.steps[i].value, 0);
    }
}

/* ---- queues ---- */

static void plan_queues(const uint16_t *queues, uint32_t count)
{
    struct nic_xdp_wish wish = {.queues = queues,
                                .queue_count = count,
                                .port = 9000,
                                .want_ipv4 = true,
                                .address4 = htonl(0x0a000001)};
    memset(&plan, 0, sizeof(plan));
    nic_plan_xdp_queues(&state, &wish, &plan);
}

Test(nic_xdp, all_queues_need_no_rule)
{
    static const uint16_t all[] = {0, 1, 2, 3};
    template("ixgbe");
    plan_queues(all, 4);
    cr_expect_eq(plan.step_count + plan.refusal_count, 0);
    plan_queues(all + 1, 3);
    cr_expect_eq(plan.step_count, 2, "queue 0 is used by hashing");
    state.contexts[0].uses[0] = false;
    plan_queues(all + 1, 3);
    cr_expect_eq(plan.step_count + plan.refusal_count, 0, "hashing avoids queue 0");
    state.context_count = 0;
    plan_queues(all + 1, 3);
    cr_expect_eq(plan.step_count, 2, "a driver without a table may use every queue");
}

Test(nic_xdp, some_queues_need_a_rule_and_ntuple_first)
{
    static const uint16_t some[] = {2};
    template("ixgbe");
    plan_queues(some, 1);
    cr_assert_eq(plan.step_count, 2);
    cr_expect_str_eq(plan.steps[0].command, "ethtool -K eth0 rx-ntuple-filter on");
    cr_expect_str_eq(plan.steps[1].command,
                     "ethtool -N eth0 flow-type tcp4 dst-ip 10.0.0.1 dst-port 9000 action 2");
    state.ntuple.state = NIC_ON;
    state.rule_count = 1;
    state.rules[0].spec = plan.steps[1].rule;
    plan_queues(some, 1);
    cr_expect_eq(plan.step_count + plan.refusal_count, 0, "the rule is there");
    state.rules[0].spec.m_u.tcp_ip4_spec.psrc = 0xffff;
    plan_queues(some, 1);
    cr_expect_eq(plan.refusal_count, 1);
    cr_expect(strstr(plan.refusals[0], "ixgbe takes one mask") != NULL, "%s", plan.refusals[0]);
}

Test(nic_xdp, what_cannot_be_steered_is_refused)
{
    static const uint16_t some[] = {2}, beyond[] = {4};
    struct nic_xdp_wish wish = {.queues = some, .queue_count = 1, .port = 9000, .want_ipv6 = true};
    template("ixgbe");
    memset(&plan, 0, sizeof(plan));
    nic_plan_xdp_queues(&state, &wish, &plan);
    cr_expect(strstr(plan.refusals[0], "ixgbe steers IPv4 only") != NULL, "%s", plan.refusals[0]);
    template("veth");
    state.ntuple = (struct nic_feature){NIC_UNKNOWN, false};
    plan_queues(some, 1);
    cr_expect(strstr(plan.refusals[0], "cannot steer them") != NULL, "%s", plan.refusals[0]);
    plan_queues(beyond, 1);
    cr_expect(strstr(plan.refusals[0],
                     "queue 4 is wanted and there are 4, and the interface can have no more") != NULL,
              "%s", plan.refusals[0]);
}

/* ---- choosing ---- */

static struct err err;
static struct receive_plan chosen;

static int judge(const char *receive)
{
    struct conf *conf = NULL;
    char text[512];
    (void)snprintf(
        text, sizeof(text),
        "node: { name: n, data_dir: /d, workers: 2 }\nstore:\n  devices: [ { path: /d/s } ]\n"
        "listeners: [ { name: l, protocol: s3, address: \"10.0.0.1:9000\", allow_remote_anonymous: true, "
        "interface: eth0, %s } ]\nadmin: { address: \"127.0.0.1:1\" }\n",
        receive);
    int rc = conf_parse("t.yaml", text, strlen(text), &conf, &err);
    cr_assert(rc == 0, "%s", err.text);
    memset(&chosen, 0, sizeof(chosen));
    memcpy(chosen.interface, "eth0", 5);
    rc = receive_xdp_judge(conf, 0, &state, &host, &chosen, &plan, &err);
    conf_free(conf);
    return rc;
}

Test(receive_xdp, auto_takes_it_only_with_zero_copy_and_says_why_not)
{
    template("ixgbe");
    cr_expect_eq(judge("receive: auto"), 0, "%s", err.text);
    cr_expect_eq(chosen.queue_count, 4, "all queues of the NIC");
    cr_expect(chosen.has_device && !chosen.needs_nic);
    state.xdp_features &= ~(uint64_t)NETDEV_XDP_ACT_XSK_ZEROCOPY;
    cr_expect_eq(judge("receive: auto"), -ENOTSUP);
    cr_expect_str_eq(err.text, "driver ixgbe of eth0 reports no zero-copy AF_XDP");
    cr_expect_eq(judge("receive: af_xdp"), 0, "who names it gets it with one copy: %s", err.text);
    cr_expect_str_eq(chosen.mode, "", "nobody knows before Linux 6.3");
    cr_expect_not(chosen.is_slower);
    state.xdp_reported = true;
    cr_expect_eq(judge("receive: af_xdp"), 0);
    cr_expect(chosen.is_slower && strcmp(chosen.mode, "native XDP with one copy") == 0, "%s", chosen.mode);
    state.xdp_features = 0;
    cr_expect_eq(judge("receive: af_xdp"), 0);
    cr_expect(chosen.is_slower && strcmp(chosen.mode, "generic XDP") == 0, "%s", chosen.mode);
    state.xdp_features = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_XSK_ZEROCOPY;
    cr_expect_eq(judge("receive: af_xdp"), 0);
    cr_expect(!chosen.is_slower && strcmp(chosen.mode, "native XDP with zero-copy") == 0, "%s", chosen.mode);
}

Test(receive_xdp, a_nic_is_changed_only_with_leave)
{
    template("ixgbe");
    state.gro.state = NIC_ON;
    cr_expect_eq(judge("receive: auto"), -ENOTSUP);
    cr_expect_str_eq(err.text,
                     "eth0 is not prepared; run `ethtool -K eth0 rx-gro off`, or set manage_nic: true and "
                     "the node does and undoes it");
    cr_expect_eq(judge("receive: auto, manage_nic: true"), 0, "%s", err.text);
    cr_expect(chosen.needs_nic);
    state.dcb = true;
    cr_expect_eq(judge("receive: auto, manage_nic: true"), -ENOTSUP);
    cr_expect(strstr(err.text, "DCB is on") != NULL, "%s", err.text);
}

Test(receive_xdp, what_becomes_of_busy_polling_is_said_and_refuses_nothing)
{
    template("ice");
    cr_expect_eq(judge("receive: af_xdp, busy_poll: 1ms"), 0, "%s", err.text);
    cr_expect(strstr(chosen.note, "cannot hold the interrupts of eth0 back") != NULL, "%s", chosen.note);
    state.has_irq_defer = true;
    cr_expect_eq(judge("receive: af_xdp, busy_poll: 1ms"), 0, "%s", err.text);
    cr_expect(strstr(chosen.note, "interrupts go on meanwhile; run `echo 2 >") != NULL, "%s", chosen.note);
    cr_expect(!chosen.needs_nic);
    cr_expect_eq(judge("receive: af_xdp, busy_poll: 1ms, manage_nic: true"), 0, "%s", err.text);
    cr_expect(chosen.needs_nic && strstr(chosen.note, "the node runs `echo 2 >") != NULL, "%s", chosen.note);
    state.irq_defer = 100;
    state.flush_ns = 20000;
    cr_expect_eq(judge("receive: af_xdp, busy_poll: 1ms, manage_nic: true"), 0, "%s", err.text);
    cr_expect(!chosen.needs_nic);
    cr_expect_str_eq(
        chosen.note,
        "busy_poll: interrupts are held back (napi_defer_hard_irqs 100, gro_flush_timeout 20000)");
    cr_expect_eq(judge("receive: af_xdp"), 0, "%s", err.text);
    cr_expect_str_eq(chosen.note, "");
}

Test(receive_xdp, named_queues_are_taken_as_named)
{
    template("ice");
    state.ntuple.state = NIC_ON;
    cr_expect_eq(judge("receive: af_xdp, queues: \"1-2\", manage_nic: true"), 0, "%s", err.text);
    cr_assert_eq(chosen.queue_count, 2);
    cr_expect(chosen.queues[0] == 1 && chosen.queues[1] == 2);
    cr_expect(chosen.needs_nic, "a rule leads the port to them");
}
