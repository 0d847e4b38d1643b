/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of rx/rx_group. Goal: connections reach another member's inbox whole, members leave together or, when the group never
 * started, wait for nobody, and the kernel takes the program that chooses a worker. Method: real sockets on loopback and real
 * threads; the NIC's side (queues, NAPI instances) is only in tests/vm.
 */
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/list.h"
#include "rx/rx_group.h"

static const uint32_t queues[2] = {4, 5};

static struct rx_group *group_open(bool is_joined)
{
    struct rx_group *group = NULL;
    struct err err = {""};
    cr_assert(rx_group_open(&group, queues, 2, &err) == 0, "%s", err.text);
    for (uint32_t i = 0; is_joined && i < 2; i++) {
        atomic_store(&rx_group_member(group, i)->has_joined, true);
    }
    return group;
}

static struct rx_group_hand *hand_take(struct rx_group *group, uint32_t member)
{
    struct mpsc_node *node = mpsc_take_all(&rx_group_member(group, member)->inbox);
    cr_assert(node != NULL && node->next == NULL);
    struct rx_group_message *message = CONTAINER_OF(node, struct rx_group_message, node);
    cr_assert(message->kind == RX_GROUP_HAND);
    return CONTAINER_OF(message, struct rx_group_hand, message);
}

Test(rx_group, a_connection_reaches_the_other_member_with_its_addresses)
{
    struct rx_group *group = group_open(true);
    struct sockaddr_storage peer = {.ss_family = AF_INET};
    struct sockaddr_storage local = {.ss_family = AF_INET6};
    cr_assert(rx_group_start(group));
    cr_assert(rx_group_hand(group, 0, 1, 123, &peer, &local));
    struct rx_group_hand *hand = hand_take(group, 1);
    cr_expect(hand->fd == 123 && hand->peer.ss_family == AF_INET && hand->local.ss_family == AF_INET6);
    rx_group_close(group);
}

Test(rx_group, a_member_with_all_nodes_under_way_keeps_the_connection)
{
    struct rx_group *group = group_open(true);
    struct sockaddr_storage any = {.ss_family = AF_INET};
    cr_assert(rx_group_start(group));
    for (uint32_t i = 0; i < RX_GROUP_HANDS; i++) {
        cr_assert(rx_group_hand(group, 0, 1, (int)i, &any, &any));
    }
    cr_expect(!rx_group_hand(group, 0, 1, 99, &any, &any));
    struct mpsc_node *first = mpsc_take_all(&rx_group_member(group, 1)->inbox);
    struct rx_group_hand *hand = CONTAINER_OF(first, struct rx_group_hand, message.node);
    cr_expect(hand->fd == 0, "in the order in which they were handed");
    atomic_store(&hand->is_busy, false);
    cr_expect(rx_group_hand(group, 0, 1, 99, &any, &any), "a node that came back is used again");
    cr_expect(hand_take(group, 1)->fd == 99);
    rx_group_close(group);
}

Test(rx_group, a_group_that_misses_a_member_does_not_start_and_nobody_waits)
{
    struct rx_group *group = group_open(false);
    atomic_store(&rx_group_member(group, 0)->has_joined, true);
    cr_expect(!rx_group_start(group));
    cr_expect(!rx_group_is_started(group));
    rx_group_leave(group, 0, NULL, NULL); /* Returns at once: there is no turn to call. */
    rx_group_close(group);
}

struct leaver {
    struct rx_group *group;
    uint32_t member;
    _Atomic bool *other_may_come;
    uint32_t turns;
    uint32_t taken;
};

static void leave_turn(void *ctx)
{
    struct leaver *leaver = ctx;
    leaver->turns++;
    struct mpsc_node *node = mpsc_take_all(&rx_group_member(leaver->group, leaver->member)->inbox);
    for (; node != NULL; node = node->next) {
        leaver->taken++;
    }
    atomic_store(leaver->other_may_come, true); /* Only a member that waits gets here. */
}

static void *leave_main(void *ctx)
{
    struct leaver *leaver = ctx;
    rx_group_leave(leaver->group, leaver->member, leave_turn, leaver);
    return NULL;
}

Test(rx_group, members_leave_together_and_what_was_pushed_last_is_taken, .timeout = 60)
{
    struct rx_group *group = group_open(true);
    struct sockaddr_storage any = {.ss_family = AF_INET};
    _Atomic bool may_come = false;
    struct leaver first = {.group = group, .member = 0, .other_may_come = &may_come};
    struct leaver second = {.group = group, .member = 1, .other_may_come = &may_come};
    pthread_t thread;
    cr_assert(rx_group_start(group));
    cr_assert(pthread_create(&thread, NULL, leave_main, &first) == 0);
    while (!atomic_load(&may_come)) { /* The first waits, and serves its inbox. */
        mpsc_wake(&rx_group_member(group, 0)->inbox);
    }
    cr_assert(rx_group_hand(group, 1, 0, 5, &any, &any)); /* the second is still at work */
    rx_group_leave(group, 1, leave_turn, &second);
    cr_assert(pthread_join(thread, NULL) == 0);
    cr_expect(first.taken == 1, "%u", first.taken);
    cr_expect(second.turns > 0);
    rx_group_close(group); /* checks that both inboxes are empty */
}

Test(rx_group, the_kernel_takes_the_program_and_falls_back_where_no_queue_is_recorded)
{
    struct rx_group *group = group_open(true);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) == 0);
    cr_assert(bind(fd, (struct sockaddr *)&addr, len) == 0 && listen(fd, 4) == 0);
    cr_assert(getsockname(fd, (struct sockaddr *)&addr, &len) == 0);
    cr_assert(rx_group_select(group, fd) == 0);
    cr_assert(rx_group_start(group));
    int client = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(connect(client, (struct sockaddr *)&addr, len) == 0);
    int accepted = accept(fd, NULL, NULL);
    cr_expect(accepted >= 0);
    cr_expect(rx_group_member_of_socket(group, accepted) == RX_GROUP_UNKNOWN,
              "loopback has no NAPI instance");
    close(accepted);
    close(client);
    close(fd);
    rx_group_close(group);
}

/* ---- NAPI instances -------------------------------------------------------------------------------------------- */

static const struct rx_group_napi napis_before[3] = {{10, RX_GROUP_NOBODY}, {11, 0}, {12, 1}};

Test(rx_group, a_table_that_is_replaced_answers_by_the_new_instances_only)
{
    static const struct rx_group_napi after[3] = {{0, RX_GROUP_NOBODY}, {12, 0}, {13, 1}};
    struct rx_group *group = group_open(true);
    cr_expect(rx_group_napis_set(group, napis_before, 3, 0));
    cr_assert(rx_group_start(group));
    cr_expect(rx_group_member_of_napi(group, 10) == RX_GROUP_NOBODY);
    cr_expect(rx_group_member_of_napi(group, 11) == 0 && rx_group_member_of_napi(group, 12) == 1);
    cr_expect(!rx_group_napis_set(group, napis_before, 3, 0), "nothing is new");
    cr_expect(rx_group_napis_set(group, after, 3, 0));
    cr_expect(rx_group_member_of_napi(group, 12) == 0, "the number went to another queue");
    cr_expect(rx_group_member_of_napi(group, 13) == 1);
    cr_expect(rx_group_member_of_napi(group, 10) == RX_GROUP_UNKNOWN);
    cr_expect(rx_group_member_of_napi(group, 11) == RX_GROUP_UNKNOWN);
    cr_expect(rx_group_member_of_napi(group, 0) == RX_GROUP_UNKNOWN);
    rx_group_close(group);
}

Test(rx_group, an_unknown_instance_makes_a_look_due_and_useless_looks_become_rare)
{
    struct rx_group *group = group_open(true);
    uint64_t now_ns = 100 * NS_PER_S;
    rx_group_napis_set(group, napis_before, 3, now_ns);
    cr_assert(rx_group_start(group));
    (void)rx_group_member_of_napi(group, 11);
    (void)rx_group_member_of_napi(group, 0); /* loopback */
    cr_expect(!rx_group_napis_are_due(group, now_ns + 3600 * NS_PER_S, false), "all were known");
    (void)rx_group_member_of_napi(group, 77);
    cr_expect(!rx_group_napis_are_due(group, now_ns + NS_PER_S - 1, false), "too soon");
    cr_expect(rx_group_napis_are_due(group, now_ns + NS_PER_S, false), "the wish is remembered");
    cr_expect(!rx_group_napis_are_due(group, now_ns + NS_PER_S, false), "and told once");
    uint32_t looks = 0;
    for (uint64_t second = 0; second < 600; second++) { /* another interface's traffic, all the time */
        now_ns += NS_PER_S;
        (void)rx_group_member_of_napi(group, 77);
        if (rx_group_napis_are_due(group, now_ns, false)) {
            cr_expect(!rx_group_napis_set(group, napis_before, 3, now_ns));
            looks++;
        }
    }
    cr_expect(looks >= 600 / 64 && looks < 20, "%u looks in ten minutes", looks);
    cr_expect(rx_group_napis_are_due(group, now_ns + NS_PER_S, true), "news of the NIC end the patience");
    rx_group_close(group);
}
