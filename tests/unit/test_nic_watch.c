/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unit of netcore/nic/nic_watch. Goal: what the kernel announces about a watched interface is counted once, and nothing else
 * is. Method: messages laid out by hand as rtnetlink and the netdev family send them; one test listens to the real kernel.
 */
#include <criterion/criterion.h>
#include <linux/genetlink.h>
#include <linux/netdev.h>
#include <linux/rtnetlink.h>
#include <string.h>

#include "nic/nic_watch.h"

#define FAMILY 31

static struct nic_watch watch;
static uint32_t lo;

static void set_up(void)
{
    nic_watch_init(&watch);
    cr_assert(nic_watch_add(&watch, "lo"));
    lo = if_nametoindex("lo");
    watch.netdev_family = FAMILY;
}

static void link_say(uint16_t type, uint32_t index, uint8_t family, unsigned flags)
{
    struct {
        struct nlmsghdr header;
        struct ifinfomsg info;
    } message = {.header = {.nlmsg_len = sizeof(message), .nlmsg_type = type},
                 .info = {.ifi_family = family, .ifi_index = (int)index, .ifi_flags = flags}};
    nic_watch_message(&watch, &message.header);
}

static void pool_say(uint8_t command, uint32_t index, bool is_zero_copy)
{
    struct {
        struct nlmsghdr header;
        struct genlmsghdr genl;
        struct nlattr index_head;
        uint32_t index;
        struct nlattr provider_head;
    } message = {.header = {.nlmsg_len = sizeof(message), .nlmsg_type = FAMILY},
                 .genl = {.cmd = command},
                 .index_head = {.nla_len = 8, .nla_type = NETDEV_A_PAGE_POOL_IFINDEX},
                 .index = index,
                 .provider_head = {.nla_len = 4, .nla_type = NETDEV_A_PAGE_POOL_IO_URING}};
    message.header.nlmsg_len -= is_zero_copy ? 0 : (uint32_t)sizeof(struct nlattr);
    nic_watch_message(&watch, &message.header);
}

Test(nic_watch, down_and_up_are_counted_when_they_change, .init = set_up)
{
    link_say(RTM_NEWLINK, lo, AF_UNSPEC, IFF_UP | IFF_RUNNING);
    cr_assert_eq(watch.downs, 0);
    link_say(RTM_NEWLINK, lo, AF_UNSPEC, IFF_UP); /* the carrier is lost */
    link_say(RTM_NEWLINK, lo, AF_UNSPEC, 0);
    cr_assert_eq(watch.downs, 1);
    link_say(RTM_NEWLINK, lo, AF_UNSPEC, IFF_UP | IFF_RUNNING);
    link_say(RTM_NEWLINK, lo, AF_UNSPEC, 0);
    cr_assert_eq(watch.downs, 2);
    cr_assert_eq(watch.renewals, 1); /* it came up once */
    cr_assert_eq(watch.removals, 0);
}

Test(nic_watch, a_removal_is_the_end_of_an_interface, .init = set_up)
{
    link_say(RTM_DELLINK, lo, AF_BRIDGE, 0); /* It leaves a bridge and is still there. */
    cr_assert_eq(watch.removals, 0);
    link_say(RTM_DELLINK, lo, AF_UNSPEC, 0);
    link_say(RTM_DELLINK, lo, AF_UNSPEC, 0);
    link_say(RTM_NEWLINK, lo, AF_UNSPEC, 0); /* Another interface may get its index. */
    cr_assert_eq(watch.removals, 1);
    cr_assert_eq(watch.downs, 0);
}

static void named_say(uint32_t index, uint8_t family, const char *name, unsigned flags)
{
    struct {
        struct nlmsghdr header;
        struct ifinfomsg info;
        struct nlattr head;
        char name[IFNAMSIZ];
    } message = {.header = {.nlmsg_len = sizeof(message), .nlmsg_type = RTM_NEWLINK},
                 .info = {.ifi_family = family, .ifi_index = (int)index, .ifi_flags = flags},
                 .head = {.nla_len = sizeof(struct nlattr) + IFNAMSIZ, .nla_type = IFLA_IFNAME}};
    cr_assert_lt(strlen(name), sizeof(message.name));
    memcpy(message.name, name, strlen(name));
    nic_watch_message(&watch, &message.header);
}

Test(nic_watch, an_interface_made_anew_under_the_name_is_watched_again, .init = set_up)
{
    uint32_t back = lo + 1000;
    named_say(back, AF_UNSPEC, "lo",
              IFF_UP | IFF_RUNNING); /* The watched one is still there: another namespace's. */
    link_say(RTM_NEWLINK, back, AF_UNSPEC, 0);
    cr_assert_eq(watch.downs, 0);
    link_say(RTM_DELLINK, lo, AF_UNSPEC, 0);
    named_say(back, AF_UNSPEC, "lo0", 0); /* another name */
    named_say(back, AF_BRIDGE, "lo", 0);  /* a port of a bridge */
    link_say(RTM_NEWLINK, back, AF_UNSPEC, IFF_UP | IFF_RUNNING);
    cr_assert_eq(watch.renewals, 0);
    named_say(back, AF_UNSPEC, "lo", 0); /* It is made, and set up later. */
    link_say(RTM_NEWLINK, back, AF_UNSPEC, IFF_UP | IFF_RUNNING);
    cr_assert_eq(watch.renewals, 2);
    link_say(RTM_NEWLINK, back, AF_UNSPEC, 0);
    cr_assert_eq(watch.downs, 1);
    link_say(RTM_NEWLINK, lo, AF_UNSPEC, 0); /* its old index */
    cr_assert_eq(watch.downs, 1);
    link_say(RTM_DELLINK, back, AF_UNSPEC, 0);
    cr_assert_eq(watch.removals, 2);
}

Test(nic_watch, other_interfaces_and_short_messages_are_no_news, .init = set_up)
{
    struct nlmsghdr stub = {.nlmsg_len = sizeof(stub), .nlmsg_type = RTM_NEWLINK};
    link_say(RTM_NEWLINK, lo + 1000, AF_UNSPEC, 0);
    link_say(RTM_DELLINK, lo + 1000, AF_UNSPEC, 0);
    pool_say(NETDEV_CMD_PAGE_POOL_ADD_NTF, lo + 1000, true);
    nic_watch_message(&watch, &stub);
    stub.nlmsg_type = FAMILY;
    nic_watch_message(&watch, &stub);
    cr_assert_eq(watch.downs + watch.removals + watch.queue_restarts, 0);
}

Test(nic_watch, a_new_zero_copy_pool_is_a_restarted_queue, .init = set_up)
{
    pool_say(NETDEV_CMD_PAGE_POOL_ADD_NTF, lo, false);
    pool_say(NETDEV_CMD_PAGE_POOL_DEL_NTF, lo, true);
    cr_assert_eq(watch.queue_restarts, 0);
    pool_say(NETDEV_CMD_PAGE_POOL_ADD_NTF, lo, true);
    cr_assert_eq(watch.queue_restarts, 1);
    cr_assert_eq(watch.renewals, 1);
    watch.netdev_family = 0; /* a kernel that has no such group: the number may be another family's */
    pool_say(NETDEV_CMD_PAGE_POOL_ADD_NTF, lo, true);
    cr_assert_eq(watch.queue_restarts, 1);
}

Test(nic_watch, failed_allocations_count_from_the_start_of_the_watch, .init = set_up)
{
    nic_watch_no_buffers(&watch, 0, 40);
    nic_watch_no_buffers(&watch, 0, 40);
    cr_assert_eq(watch.no_buffers, 0);
    nic_watch_no_buffers(&watch, 0, 42);
    cr_assert_eq(watch.no_buffers, 2);
    nic_watch_no_buffers(&watch, 0, 1); /* The driver was loaded anew. */
    nic_watch_no_buffers(&watch, 0, 4);
    cr_assert_eq(watch.no_buffers, 5);
}

Test(nic_watch, the_kernel_lets_itself_be_listened_to, .init = set_up)
{
    struct err err = {""};
    cr_assert_eq(nic_watch_open(&watch, &err), 0, "%s", err.text);
    cr_assert_geq(watch.fd, 0);
    nic_watch_read(&watch); /* does not block */
    nic_watch_ask(&watch);  /* lo has no such counters, older kernels no such question */
    cr_assert_eq(watch.no_buffers, 0);
    nic_watch_close(&watch);
    cr_assert_eq(watch.fd, -1);
}

Test(nic_watch, an_interface_is_watched_once_and_must_exist, .init = set_up)
{
    cr_assert(nic_watch_add(&watch, "lo"));
    cr_assert_not(nic_watch_add(&watch, "no-such-nic"));
    cr_assert_eq(watch.count, 1);
}
