/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unit of server/hearing. Goal: a node is deaf when all its listeners are, and each that is is named with its interface and the reason.
 * Method: states laid out by hand; the look itself on interfaces that every host has or lacks (tests/root/run-xdp-deaf.sh does the rest).
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "server/hearing.h"

Test(hearing, one_that_hears_is_enough_and_the_others_are_named)
{
    struct err why = {"old"};
    struct hearing all[] = {{"bulk", "eth0", HEARING_DOWN}, {"pipe", "", HEARING_OK}};
    cr_expect_eq(hearing_judge(all, 2, &why), 0);
    cr_expect_str_eq(why.text, "listener bulk receives nothing: eth0 is down");
    all[0].state = HEARING_OK;
    cr_expect_eq(hearing_judge(all, 2, &why), 0);
    cr_expect_str_eq(why.text, "");
}

Test(hearing, a_node_without_ears_says_so_for_each)
{
    struct err why = {""};
    struct hearing all[] = {{"bulk", "eth0", HEARING_GONE}, {"pipe", "eth1", HEARING_NO_PROGRAM}};
    cr_expect_eq(hearing_judge(all, 2, &why), -ENETDOWN);
    cr_expect(strstr(why.text,
                     "listener bulk receives nothing: eth0 is gone; listener pipe receives nothing: "
                     "eth1 has not our XDP program") != NULL,
              "%s", why.text);
    cr_expect_eq(hearing_judge(all, 0, &why), 0);
}

Test(hearing, more_reasons_than_fit_are_cut)
{
    struct err why = {""};
    char name[400];
    struct hearing all[16];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    for (int i = 0; i < 16; i++) {
        all[i] = (struct hearing){name, "eth0", HEARING_DOWN};
    }
    cr_expect_eq(hearing_judge(all, 16, &why), -ENETDOWN);
    cr_expect_eq(strlen(why.text), sizeof(why.text) - 1);
}

Test(hearing, sockets_hear_and_an_interface_must_exist)
{
    struct hearing found;
    struct receive_plan plan = {.ops = &rx_socket_ops, .interface = "no-such-nic"};
    hearing_look("bulk", &plan, 0, &found);
    cr_expect_eq(found.state, HEARING_OK);
    plan.ops = &rx_zcrx_ops; /* device-less */
    hearing_look("bulk", &plan, 0, &found);
    cr_expect_eq(found.state, HEARING_OK);
    plan.has_device = true;
    hearing_look("bulk", &plan, 0, &found);
    cr_expect_eq(found.state, HEARING_GONE);
    uint32_t lo = if_nametoindex("lo");
    strcpy(plan.interface, "lo");
    hearing_look("bulk", &plan, lo + 1000, &found);
    cr_expect_eq(found.state, HEARING_REPLACED);
    strcpy(plan.interface, "no-such-nic"); /* renamed: found by its index */
    hearing_look("bulk", &plan, lo, &found);
    cr_expect(found.state == HEARING_OK || found.state == HEARING_DOWN); /* as lo is here */
}
