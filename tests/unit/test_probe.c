/* SPDX-License-Identifier: Apache-2.0 */
/* What probe says about hosts and NICs that are not here: one state each, the exact sentence. And the CPU lists of sysfs. */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/netdev.h>
#include <string.h>

#include "base/bytes.h"
#include "server/cpus.h"
#include "server/probe.h"

static struct probe_host host;
static struct nic_state nic;
static char text[PROBE_TEXT_MAX];

/* A host that can everything, and an ixgbe that reports zero-copy. */
static void setup(void)
{
    host = (struct probe_host){.release = "7.3.4",
                               .version = 7003,
                               .recv_zc = true,
                               .has_query = true,
                               .zcrx_large = true,
                               .net_admin = true,
                               .bpf = true,
                               .cpus_possible = 64};
    memset(&nic, 0, sizeof(nic));
    strcpy(nic.name, "eth1");
    strcpy(nic.driver, "ixgbe");
    nic.up = true;
    nic.carrier = true;
    nic.mtu = 1500;
    nic.rx_queues = 8;
    nic.xdp_features = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT | NETDEV_XDP_ACT_XSK_ZEROCOPY;
}

TestSuite(probe, .init = setup);

Test(probe, host_without_zero_copy_receive)
{
    cr_expect_null(probe_host_zcrx(&host, text));
    host.recv_zc = false;
    cr_expect_str_eq(probe_host_zcrx(&host, text),
                     "kernel 7.3.4 has no zero-copy receive (Linux 6.15, CONFIG_IO_URING_ZCRX)");
    host.recv_zc = true;
    host.net_admin = false;
    cr_expect_str_eq(probe_host_zcrx(&host, text),
                     "registering a queue needs CAP_NET_ADMIN in the host's user namespace");
    host.ring_error = -EPERM;
    cr_expect_str_eq(probe_host_zcrx(&host, text), "io_uring does not open: Operation not permitted");
    probe_nic_zcrx(&host, &nic, 0, 9000, text);
    cr_expect_str_eq(text, "no: the host cannot (above)");
}

Test(probe, host_without_af_xdp)
{
    cr_expect_null(probe_host_xdp(&host, text));
    host.xsk_error = -EAFNOSUPPORT;
    cr_expect_str_eq(probe_host_xdp(&host, text), "kernel 7.3.4 has no AF_XDP sockets (CONFIG_XDP_SOCKETS)");
    host.xsk_error = -EPERM;
    cr_expect_str_eq(probe_host_xdp(&host, text), "this user lacks CAP_NET_RAW");
    host.net_admin = host.bpf = false;
    cr_expect_str_eq(probe_host_xdp(&host, text), "this user lacks CAP_NET_ADMIN CAP_NET_RAW CAP_BPF");
    host.net_admin = true;
    host.xsk_error = 0;
    host.bpf = false;
    cr_expect_str_eq(probe_host_xdp(&host, text), "this user lacks CAP_BPF");
    probe_nic_xdp(&host, &nic, text);
    cr_expect_str_eq(text, "no: the host cannot (above)");
}

Test(probe, a_driver_without_queue_management_cannot_do_zcrx)
{
    probe_nic_zcrx(&host, &nic, 0, 9000, text);
    cr_expect_str_eq(
        text, "no: driver ixgbe has no queue management or no DMA device (bnxt, mlx5, gve and fbnic have)");
}

Test(probe, a_kernel_that_takes_only_page_sized_buffers_says_so)
{
    strcpy(nic.driver, "bnxt_en");
    host.zcrx_large = false;
    probe_nic_zcrx(&host, &nic, 32 * 1024, 9000, text);
    cr_expect_str_eq(
        text, "no: kernel 7.3.4 takes only page-sized receive buffers (Linux 7.0 takes larger ones); use "
              "rx_buffer_size: 0");
}

Test(probe, a_buffer_above_the_driver_is_refused_by_the_plan)
{
    strcpy(nic.driver, "bnxt_en");
    probe_nic_zcrx(&host, &nic, 128 * 1024, 9000, text);
    cr_expect(strncmp(text, "no: ", 4) == 0, "%s", text);
    cr_expect_not_null(strstr(text, "rx_buffer_size 128KiB: driver bnxt_en takes at most 32KiB"), "%s", text);
}

Test(probe, af_xdp_on_drivers_with_and_without_zero_copy)
{
    probe_nic_xdp(&host, &nic, text);
    cr_expect_str_eq(text, "yes: driver ixgbe reports zero-copy AF_XDP, frames of one buffer only; attaching "
                           "bounces the link of "
                           "some drivers");
    nic.xdp_features = NETDEV_XDP_ACT_BASIC;
    probe_nic_xdp(&host, &nic, text);
    cr_expect_str_eq(
        text,
        "with one copy: driver ixgbe has XDP but reports no zero-copy AF_XDP; receive: af_xdp can be asked "
        "for, auto does not take it");
    nic.xdp_features = 0;
    probe_nic_xdp(&host, &nic, text);
    cr_expect_str_eq(
        text, "no: driver ixgbe reports no XDP; the generic mode would copy each frame and gain nothing over "
              "socket");
    snprintf(nic.driver, sizeof(nic.driver), "veth");
    nic.xdp_reported = true;
    probe_nic_xdp(&host, &nic, text);
    cr_expect(strncmp(text, "no: eth1: a veth has XDP only when its peer", 43) == 0, "%s", text);
}

Test(probe, sockets_say_whether_the_nic_can_have_larger_buffers)
{
    probe_nic_socket(&nic, text);
    cr_expect_str_eq(text, "yes, in the driver's own buffers: this kernel or driver ixgbe does not let users "
                           "set rx-buf-len per queue");
    nic.rx_queues = 1;
    nic.rx_buf_len = nic.queues[0].buf_len = 4096;
    nic.rx_buf_len_max = 32768;
    probe_nic_socket(&nic, text);
    cr_expect_str_eq(text,
                     "yes: rx-buf-len is 4KiB and can be set per queue, up to 32KiB; with manage_nic: true "
                     "rx_buffer_size is set");
}

static void expect_xdp(const char *sentence)
{
    probe_nic_xdp(&host, &nic, text);
    cr_expect_str_eq(text, sentence);
    setup();
}

Test(probe, each_condition_of_ixgbe_is_named)
{
    nic.mtu = 9000;
    expect_xdp(
        "no: eth1: MTU 9000 is above 3050, which is what one 4 KiB frame holds with driver ixgbe; ip link "
        "set eth1 mtu 1500");
    nic.lro = (struct nic_feature){.state = NIC_ON};
    expect_xdp(
        "no: eth1: rx-lro is on and cannot be switched off here; frames merged by the NIC are no frames of "
        "the wire");
    nic.virtual_functions = 4;
    expect_xdp("no: eth1: SR-IOV is on (4 virtual functions), and ixgbe then has no XDP; echo 0 > "
               "/sys/class/net/eth1/device/sriov_numvfs");
    nic.dcb = true;
    expect_xdp("no: eth1: DCB is on, and ixgbe then has no XDP; dcbtool sc eth1 dcb off, or stop lldpad");
    host.cpus_possible = 256;
    expect_xdp("no: eth1: 256 possible CPUs, ixgbe has XDP queues for 128; boot with possible_cpus=128");
    strcpy(nic.driver_version, "5.19.6");
    expect_xdp(
        "no: eth1: driver ixgbe 5.19.6 is not the one of kernel 7.3.4; out-of-tree ones lack zero-copy: use "
        "the kernel's own");
    nic.up = false;
    expect_xdp("no: eth1: the interface is down; ip link set dev eth1 up");
}

Test(probe, all_conditions_of_ixgbe_are_named_at_once)
{
    nic.virtual_functions = 1;
    nic.dcb = true;
    nic.mtu = 4000;
    host.cpus_possible = 129;
    probe_nic_xdp(&host, &nic, text);
    cr_expect(strstr(text, "SR-IOV") && strstr(text, "DCB") && strstr(text, "MTU 4000") &&
                  strstr(text, "129"),
              "%s", text);
}

Test(probe, the_limits_of_ixgbe_are_its_own)
{
    nic.mtu = 3050;
    strcpy(nic.driver_version, "7.3.4");
    host.cpus_possible = 128;
    probe_nic_xdp(&host, &nic, text);
    cr_expect(strncmp(text, "yes: ", 5) == 0, "%s", text);
    strcpy(nic.driver, "i40e");
    nic.virtual_functions = 4;
    nic.dcb = true;
    host.cpus_possible = 256;
    nic.mtu = 9000;
    nic.xdp_features |= NETDEV_XDP_ACT_RX_SG;
    probe_nic_xdp(&host, &nic, text);
    cr_expect(strncmp(text, "yes: ", 5) == 0, "%s", text);
    nic.xdp_features &= ~(uint64_t)NETDEV_XDP_ACT_RX_SG;
    probe_nic_xdp(&host, &nic, text);
    cr_expect(strncmp(text, "no: eth1: MTU 9000 is above 3498", 32) == 0, "%s", text);
}

Test(probe, what_merges_frames_is_switched_off)
{
    nic.lro = nic.gro_hw = nic.gro = (struct nic_feature){.state = NIC_ON, .changeable = true};
    expect_xdp(
        "after: ethtool -K eth1 rx-lro off; ethtool -K eth1 rx-gro-hw off; ethtool -K eth1 rx-gro off");
}

Test(probe, a_queue_of_zero_copy_receive_excludes_xdp)
{
    nic.queue_count = 8;
    nic.queues[7].zcrx = true;
    expect_xdp(
        "no: eth1: queue 7 is taken by zero-copy receive, and one such queue excludes XDP on the whole NIC");
    nic.xdp_attached = true;
    expect_xdp("no: eth1: another XDP program is attached; end who holds it: bpftool link shows the process, "
               "bpftool link detach id N takes it off; without a link, ip link set dev eth1 xdp off");
}

Test(cpus, lists_of_sysfs)
{
    struct conf_numbers numbers;
    cr_assert(cpus_list_read("0-3,8,10-11\n", &numbers));
    static const uint32_t expected[] = {0, 1, 2, 3, 8, 10, 11};
    cr_assert_eq(numbers.count, ARRAY_COUNT(expected));
    cr_expect_arr_eq(numbers.values, expected, sizeof(expected));
    cr_expect(cpus_list_read("5", &numbers) && numbers.count == 1 && numbers.values[0] == 5);
    cr_assert(cpus_list_read("0-255\n", &numbers));
    cr_expect_eq(numbers.count, CONF_NUMBERS_MAX, "what does not fit is left out");
    static const char *const bad[] = {"", "\n", "x", "3-1", "1,,2", "1 2", "-3"};
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        cr_expect_not(cpus_list_read(bad[i], &numbers), "%s", bad[i]);
    }
}
