/* SPDX-License-Identifier: Apache-2.0 */
/* rx_group: see rx_group.h. Shared between workers: every field that more than one of them writes is atomic. */
#include "rx/rx_group.h"

#include <errno.h>
#include <linux/filter.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

#define GROUP_WAIT_MS 100          /* one wait for the others; a wake-up ends it early */
#define GROUP_LOOK_MIN_NS NS_PER_S /* between two looks at the NIC's instances */
#define GROUP_LOOK_MAX_NS (64 * NS_PER_S)
#define GROUP_SELECT_MAX (2U * RX_GROUP_NAPIS + 3U)

/* An instance and its member as one word, so that a reader never sees one with the other's: id << 32 | member. */
static uint64_t napi_word(const struct rx_group_napi *napi)
{
    return (uint64_t)napi->id << 32 | (uint32_t)napi->member;
}

struct rx_group {
    uint32_t member_count;
    _Atomic bool is_started;
    _Atomic bool napi_missed;
    /* Of the thread that keeps the table. */
    bool is_look_wanted;
    uint64_t looked_ns;
    uint64_t look_delay_ns;
    _Atomic uint32_t leaving; /* members that push nothing any more */
    _Atomic uint32_t left;    /* members whose inbox is empty for good */
    _Atomic uint32_t napi_count;
    _Atomic uint64_t napis[RX_GROUP_NAPIS];
    struct rx_group_member members[];
};

/* ---- life ------------------------------------------------------------------------------------------------------ */

int rx_group_open(struct rx_group **out, const uint32_t *queues, uint32_t member_count, struct err *err)
{
    size_t size = sizeof(struct rx_group) + member_count * sizeof(struct rx_group_member);
    struct rx_group *group = calloc(1, size);
    if (group == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < member_count; i++) {
        struct rx_group_member *member = &group->members[i];
        int rc = mpsc_open(&member->inbox);
        if (rc < 0) {
            rx_group_close(group);
            return err_set(err, rc, "eventfd: %s; raise RLIMIT_NOFILE", err_text(rc));
        }
        group->member_count++; /* Those that close has to undo. */
        member->queue = queues[i];
        member->lender.fd = -1;
        for (uint32_t j = 0; j < RX_GROUP_HANDS; j++) {
            member->hands[j].message.kind = RX_GROUP_HAND;
        }
    }
    *out = group;
    return 0;
}

void rx_group_close(struct rx_group *group)
{
    for (uint32_t i = 0; group != NULL && i < group->member_count; i++) {
        mpsc_close(&group->members[i].inbox);
    }
    free(group);
}

bool rx_group_napis_set(struct rx_group *group, const struct rx_group_napi *napis, uint32_t count,
                        uint64_t now_ns)
{
    uint32_t used = 0;
    bool is_new = false;
    for (uint32_t i = 0; i < count && used < RX_GROUP_NAPIS; i++) {
        if (napis[i].id != 0) {
            uint64_t word = napi_word(&napis[i]);
            is_new |= atomic_exchange_explicit(&group->napis[used++], word, memory_order_relaxed) != word;
        }
    }
    /* What lies behind the new count may still be looked at by a reader that took the old one; it is old, not wrong. */
    is_new |= atomic_exchange_explicit(&group->napi_count, used, memory_order_release) != used;
    uint64_t delay_ns =
        group->look_delay_ns * 2 < GROUP_LOOK_MAX_NS ? group->look_delay_ns * 2 : GROUP_LOOK_MAX_NS;
    group->look_delay_ns = is_new ? GROUP_LOOK_MIN_NS : delay_ns;
    group->looked_ns = now_ns;
    return is_new;
}

bool rx_group_napis_are_due(struct rx_group *group, uint64_t now_ns, bool is_suspect)
{
    if (is_suspect) {
        group->is_look_wanted = true;
        group->look_delay_ns = GROUP_LOOK_MIN_NS;
    }
    group->is_look_wanted |= atomic_exchange_explicit(&group->napi_missed, false, memory_order_relaxed);
    if (!group->is_look_wanted || now_ns < group->looked_ns + group->look_delay_ns) {
        return false;
    }
    group->is_look_wanted = false;
    return true;
}

bool rx_group_start(struct rx_group *group)
{
    for (uint32_t i = 0; i < group->member_count; i++) {
        if (!atomic_load(&group->members[i].has_joined)) {
            return false;
        }
    }
    atomic_store(&group->is_started, true); /* Releases what was written before, the NAPI table too. */
    return true;
}

bool rx_group_is_started(const struct rx_group *group)
{
    return atomic_load(&group->is_started);
}

/* ---- members --------------------------------------------------------------------------------------------------- */

uint32_t rx_group_member_count(const struct rx_group *group)
{
    return group->member_count;
}

struct rx_group_member *rx_group_member(struct rx_group *group, uint32_t index)
{
    CHECK(index < group->member_count);
    return &group->members[index];
}

int rx_group_member_of_napi(struct rx_group *group, uint32_t id)
{
    uint32_t count = atomic_load_explicit(&group->napi_count, memory_order_acquire);
    for (uint32_t i = 0; id != 0 && i < count; i++) {
        uint64_t word = atomic_load_explicit(&group->napis[i], memory_order_relaxed);
        if ((uint32_t)(word >> 32) == id) {
            return (int)(uint32_t)word;
        }
    }
    if (id != 0) { /* 0: it came over an interface without instances, loopback for one. */
        atomic_store_explicit(&group->napi_missed, true, memory_order_relaxed);
    }
    return RX_GROUP_UNKNOWN;
}

int rx_group_member_of_socket(struct rx_group *group, int fd)
{
    uint32_t id = 0;
    socklen_t len = sizeof(id);
    if (!rx_group_is_started(group) || getsockopt(fd, SOL_SOCKET, SO_INCOMING_NAPI_ID, &id, &len) < 0) {
        return RX_GROUP_UNKNOWN; /* Kernels without busy polling do not keep it. */
    }
    return rx_group_member_of_napi(group, id);
}

/* The classic program reads skb->queue_mapping, in which a driver's receive queue is recorded as its number plus one. Its
 * result is a place in the group of listening sockets, which is the order in which they began to listen: the members'. A
 * result that is no place makes the kernel choose by hash. */
int rx_group_select(const struct rx_group *group, int listen_fd)
{
    struct sock_filter code[GROUP_SELECT_MAX];
    uint16_t len = 0;
    code[len++] = (struct sock_filter){BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)(SKF_AD_OFF + SKF_AD_QUEUE)};
    for (uint32_t i = 0; i < group->member_count && i < RX_GROUP_NAPIS; i++) {
        code[len++] = (struct sock_filter){BPF_JMP | BPF_JEQ | BPF_K, 0, 1, group->members[i].queue + 1};
        code[len++] = (struct sock_filter){BPF_RET | BPF_K, 0, 0, i};
    }
    code[len++] = (struct sock_filter){BPF_RET | BPF_K, 0, 0, UINT32_MAX};
    struct sock_fprog program = {.len = len, .filter = code};
    int rc = setsockopt(listen_fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof(program));
    return rc < 0 ? -errno : 0;
}

bool rx_group_hand(struct rx_group *group, uint32_t from, uint32_t to, int fd,
                   const struct sockaddr_storage *peer, const struct sockaddr_storage *local)
{
    struct rx_group_member *member = rx_group_member(group, from);
    for (uint32_t i = 0; i < RX_GROUP_HANDS; i++) {
        struct rx_group_hand *hand = &member->hands[i];
        if (atomic_load_explicit(&hand->is_busy, memory_order_acquire)) {
            continue;
        }
        hand->fd = fd;
        hand->peer = *peer;
        hand->local = *local;
        atomic_store_explicit(&hand->is_busy, true, memory_order_relaxed); /* The push releases it. */
        mpsc_push(&rx_group_member(group, to)->inbox, &hand->message.node);
        return true;
    }
    return false;
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

static void group_wake_all(struct rx_group *group)
{
    for (uint32_t i = 0; i < group->member_count; i++) {
        mpsc_wake(&group->members[i].inbox);
    }
}

static void group_wait(struct rx_group *group, struct rx_group_member *member, _Atomic uint32_t *arrived,
                       void (*turn)(void *ctx), void *ctx)
{
    atomic_fetch_add(arrived, 1);
    group_wake_all(group);
    while (atomic_load(arrived) < group->member_count) { /* Bounded by the node's own time to end. */
        struct pollfd wait = {.fd = member->inbox.event_fd, .events = POLLIN};
        int rc = poll(&wait, 1, GROUP_WAIT_MS);
        CHECK(rc >= 0 || errno == EINTR);
        mpsc_clear(&member->inbox);
        turn(ctx);
    }
}

void rx_group_leave(struct rx_group *group, uint32_t index, void (*turn)(void *ctx), void *ctx)
{
    struct rx_group_member *member = rx_group_member(group, index);
    if (!rx_group_is_started(group)) {
        return;
    }
    group_wait(group, member, &group->leaving, turn, ctx);
    turn(ctx); /* What was pushed by those that came last. */
    group_wait(group, member, &group->left, turn, ctx);
}
