/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of ring/zcrx_area. Goal: references, refill entries and refusals are right without a NIC. Method: a stand-in
 * for io_uring_register_ifq that lays out the refill region as the kernel does (or refuses), and a "kernel" that moves
 * the ring's head.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "ring/zcrx_area.h"

#define TOKEN (3ULL << IORING_ZCRX_AREA_SHIFT)
#define BUFFER 4096U
#define BUFFERS 64U

static int register_rc;
static uint32_t register_granted;
static uint32_t register_calls;

static int register_fake(struct io_uring *ring, void *arg)
{
    struct io_uring_zcrx_ifq_reg *reg = arg;
    (void)ring;
    register_calls++;
    if (register_rc < 0) {
        return register_rc;
    }
    struct io_uring_zcrx_area_reg *area = (struct io_uring_zcrx_area_reg *)(uintptr_t)reg->area_ptr;
    area->rq_area_token = TOKEN;
    reg->zcrx_id = 5;
    reg->rx_buf_len = register_granted;
    reg->rq_entries = 64;
    reg->offsets = (struct io_uring_zcrx_offsets){.head = 0, .tail = 4, .rqes = 4096};
    return 0;
}

static uint8_t memory[BUFFERS * BUFFER] __attribute__((aligned(32768)));

static void area_open(struct zcrx_area *area)
{
    static struct uring uring; /* never used: registration is replaced */
    struct zcrx_area_options options = {.uring = &uring,
                                        .addr = memory,
                                        .len = sizeof(memory),
                                        .buffer_size = BUFFER,
                                        .register_fn = register_fake};
    struct err err = {""};
    register_rc = 0;
    register_granted = BUFFER;
    cr_assert(zcrx_area_open(area, &options, &err) == 0, "%s", err.text);
    cr_assert(area->buffer_count == BUFFERS && area->entry_count == 64 && area->id == 5);
}

Test(zcrx_area, each_completion_is_answered_by_one_entry_after_the_last_release)
{
    struct zcrx_area area;
    uint8_t *addr = NULL;
    area_open(&area);
    for (int i = 0; i < 3; i++) {
        uint32_t index = zcrx_area_take(&area, TOKEN | (7 * BUFFER + (uint64_t)i * 1000), 1000, &addr);
        cr_expect(index == 7);
        cr_expect(addr == memory + 7 * BUFFER + i * 1000);
    }
    cr_expect(area.held_count == 1);
    cr_expect(!zcrx_area_release(&area, 7));
    cr_expect(!zcrx_area_release(&area, 7));
    cr_expect(*area.ring_tail == 0, "the buffer is still held");
    cr_expect(zcrx_area_release(&area, 7));
    cr_expect(*area.ring_tail == 3);
    cr_expect(area.held_count == 0);
    for (int i = 0; i < 3; i++) {
        cr_expect(area.entries[i].off == (TOKEN | 7 * BUFFER));
        cr_expect(area.entries[i].__pad == 0);
    }
    zcrx_area_close(&area);
}

Test(zcrx_area, a_full_refill_ring_loses_nothing)
{
    struct zcrx_area area;
    uint8_t *addr = NULL;
    area_open(&area);
    for (uint32_t i = 0; i < 200; i++) { /* 200 fragments of 20 buffers, a ring of 64 entries */
        zcrx_area_take(&area, (uint64_t)(i % 20) * BUFFER + i / 20 * 100, 100, &addr);
    }
    for (uint32_t i = 0; i < 200; i++) {
        zcrx_area_release(&area, i % 20);
    }
    cr_expect(*area.ring_tail == 64, "the ring is full and was not overrun");
    cr_expect(area.refill_full > 0);
    for (uint32_t consumed = 0; consumed < 200;) { /* the kernel takes a few at a time */
        uint32_t step = *area.ring_tail - *area.ring_head < 7 ? *area.ring_tail - *area.ring_head : 7;
        __atomic_store_n(area.ring_head, *area.ring_head + step, __ATOMIC_RELEASE);
        consumed += step;
        zcrx_area_refill_late(&area);
        cr_assert(*area.ring_tail - *area.ring_head <= 64);
        cr_assert(step > 0);
    }
    cr_expect(*area.ring_tail == 200, "every completion was answered");
    cr_expect(area.held_count == 0);
    zcrx_area_close(&area);
}

/* Random takes, cuts and releases against plain counters; the seed is fixed. */
Test(zcrx_area, random_use_answers_every_completion_exactly_once)
{
    struct zcrx_area area;
    struct rng rng;
    uint32_t taken[BUFFERS] = {0};
    uint32_t answered[BUFFERS] = {0};
    uint32_t refs[BUFFERS] = {0};
    uint32_t head = 0;
    uint8_t *addr = NULL;
    area_open(&area);
    rng_seed(&rng, 42);
    for (int step = 0; step < 200000; step++) {
        uint32_t b = (uint32_t)rng_below(&rng, BUFFERS);
        if (step < 190000 && rng_chance(&rng, 1, 2)) {
            if (refs[b] > 0 && rng_chance(&rng, 1, 4)) {
                zcrx_area_retain(&area, b);
            } else {
                zcrx_area_take(&area, (uint64_t)b * BUFFER, 1, &addr);
                taken[b]++;
            }
            refs[b]++;
        } else if (refs[b] > 0) {
            refs[b]--;
            cr_assert(zcrx_area_release(&area, b) == (refs[b] == 0));
        }
        if (rng_chance(&rng, 1, 3)) {
            uint32_t available = *area.ring_tail - head;
            for (uint32_t i = (uint32_t)rng_below(&rng, available + 1); i > 0; i--) {
                uint64_t off = area.entries[head++ & 63].off;
                answered[(off & ~IORING_ZCRX_AREA_MASK) / BUFFER]++;
            }
            __atomic_store_n(area.ring_head, head, __ATOMIC_RELEASE);
            zcrx_area_refill_late(&area);
        }
        cr_assert(answered[b] <= taken[b]);
    }
    for (uint32_t b = 0; b < BUFFERS; b++) {
        for (; refs[b] > 0; refs[b]--) {
            zcrx_area_release(&area, b);
        }
    }
    for (int turn = 0; turn < 100000 && !list_is_empty(&area.late); turn++) {
        while (head != *area.ring_tail) {
            answered[(area.entries[head++ & 63].off & ~IORING_ZCRX_AREA_MASK) / BUFFER]++;
        }
        __atomic_store_n(area.ring_head, head, __ATOMIC_RELEASE);
        zcrx_area_refill_late(&area);
    }
    while (head != *area.ring_tail) {
        answered[(area.entries[head++ & 63].off & ~IORING_ZCRX_AREA_MASK) / BUFFER]++;
    }
    cr_expect(area.held_count == 0);
    cr_expect(memcmp(taken, answered, sizeof(taken)) == 0);
    zcrx_area_close(&area);
}

/* A registration ends with the ring only, so that a listener which takes another path in the same ring would leave the queue to nobody. */
Test(zcrx_area, an_area_whose_books_do_not_fit_is_refused_before_it_is_registered)
{
    static struct uring uring;
    static const uint64_t lengths[] = {1ULL << 44 /* 2^32 buffers */, BUFFER - 1};
    for (size_t i = 0; i < ARRAY_COUNT(lengths); i++) {
        struct zcrx_area area;
        struct zcrx_area_options options = {.uring = &uring,
                                            .addr = memory,
                                            .len = lengths[i],
                                            .buffer_size = BUFFER,
                                            .register_fn = register_fake};
        struct err err = {""};
        register_rc = 0;
        register_granted = BUFFER;
        register_calls = 0;
        cr_expect(zcrx_area_open(&area, &options, &err) == -EINVAL, "%zu", i);
        cr_expect(register_calls == 0);
        cr_expect(strstr(err.text, "rx_area_size") != NULL, "%s", err.text);
    }
}

/* Every errno of facts about registration gets a sentence of its own that says what to do. */
/* ---- borrowing ------------------------------------------------------------------------------------------------- */

static int import_fake(struct io_uring *ring, void *arg)
{
    struct io_uring_zcrx_ifq_reg *reg = arg;
    (void)ring;
    cr_expect(reg->flags == ZCRX_REG_IMPORT && reg->if_idx == 77);
    reg->zcrx_id = 9;
    return 0;
}

struct borrowing {
    struct zcrx_area owner;
    struct zcrx_area borrower;
    struct mpsc inbox;
};

static void borrowing_open(struct borrowing *both)
{
    static struct uring uring; /* never used: registration is replaced */
    area_open(&both->owner);
    cr_assert(mpsc_open(&both->inbox) == 0);
    struct zcrx_lender lender = {.fd = 77,
                                 .addr = memory,
                                 .len = sizeof(memory),
                                 .token = TOKEN,
                                 .buffer_size = BUFFER,
                                 .buffer_count = BUFFERS,
                                 .inbox = &both->inbox,
                                 .register_fn = import_fake};
    cr_assert(zcrx_area_borrow(&both->borrower, &lender, &uring, 3) == 0);
    cr_assert(both->borrower.id == 9 && zcrx_area_is_borrowed(&both->borrower));
}

/* The owner's turn: takes what was posted. Returns how many messages there were. */
static uint32_t borrowing_deliver(struct borrowing *both)
{
    uint32_t count = 0;
    struct mpsc_node *node = mpsc_take_all(&both->inbox);
    while (node != NULL) {
        struct mpsc_node *next = node->next;
        struct zcrx_return *message = CONTAINER_OF(node, struct zcrx_return, node);
        cr_expect(message->kind == 3);
        zcrx_area_returned(&both->owner, message);
        node = next;
        count++;
    }
    return count;
}

static void borrowing_close(struct borrowing *both)
{
    zcrx_area_close(&both->borrower);
    zcrx_area_close(&both->owner);
    mpsc_close(&both->inbox);
}

Test(zcrx_area, a_borrowed_buffer_goes_home_through_its_owner)
{
    struct borrowing both;
    uint8_t *addr = NULL;
    borrowing_open(&both);
    for (int i = 0; i < 3; i++) {
        cr_expect(zcrx_area_take(&both.borrower, TOKEN | 7 * BUFFER, 100, &addr) == 7);
    }
    cr_expect(addr == memory + 7 * BUFFER);
    zcrx_area_take(&both.owner, TOKEN | 7 * BUFFER, 100, &addr); /* both hold pieces of one buffer */
    for (int i = 0; i < 3; i++) {
        zcrx_area_release(&both.borrower, 7);
    }
    cr_expect(*both.owner.ring_tail == 0, "only the owner writes the refill ring");
    cr_expect(borrowing_deliver(&both) == 1, "one message for the buffer");
    cr_expect(*both.owner.ring_tail == 0, "the owner holds a piece itself");
    zcrx_area_release(&both.owner, 7);
    cr_expect(*both.owner.ring_tail == 4, "its own completion and the three of the borrower");
    borrowing_close(&both);
}

Test(zcrx_area, a_buffer_borrowed_again_before_its_message_arrived_is_posted_later)
{
    struct borrowing both;
    uint8_t *addr = NULL;
    borrowing_open(&both);
    zcrx_area_take(&both.borrower, 5 * BUFFER, 1, &addr);
    zcrx_area_release(&both.borrower, 5);
    zcrx_area_take(&both.borrower, 5 * BUFFER, 1, &addr); /* its message is still under way */
    zcrx_area_release(&both.borrower, 5);
    cr_expect(!list_is_empty(&both.borrower.late));
    zcrx_area_refill_late(&both.borrower);
    cr_expect(!list_is_empty(&both.borrower.late), "the node is the owner's");
    cr_expect(borrowing_deliver(&both) == 1 && *both.owner.ring_tail == 1);
    zcrx_area_refill_late(&both.borrower);
    cr_expect(list_is_empty(&both.borrower.late));
    cr_expect(borrowing_deliver(&both) == 1 && *both.owner.ring_tail == 2, "nothing is lost");
    borrowing_close(&both);
}

Test(zcrx_area, a_kernel_that_cannot_share_an_area_leaves_nothing_behind)
{
    static struct uring uring;
    struct zcrx_area borrower;
    struct zcrx_lender lender = {.fd = -1, .buffer_count = BUFFERS, .buffer_size = BUFFER};
    cr_expect(zcrx_area_borrow(&borrower, &lender, &uring, 0) == -EOPNOTSUPP);
    cr_expect(!zcrx_area_is_borrowed(&borrower));
}

Test(zcrx_area, each_refusal_names_its_cause_and_remedy)
{
    static const struct {
        int rc;
        const char *must_say;
    } rows[] = {
        {-EPERM, "CAP_NET_ADMIN"},          {-EINVAL, "tcp-data-split"}, {-ENODEV, "does not exist"},
        {-ENETDOWN, "bring it up"},         {-EAGAIN, "bring it up"},    {-EOPNOTSUPP, "bnxt, mlx5"},
        {-ERANGE, "queue does not exist"},  {-EEXIST, "XDP program"},    {-EBUSY, "AF_XDP"},
        {-ENODATA, "header split"},         {-ENOMEM, "RLIMIT_MEMLOCK"}, {-EFAULT, "pinned"},
        {-E2BIG, "Argument list too long"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct zcrx_area area;
        static struct uring uring;
        struct zcrx_area_options options = {.uring = &uring,
                                            .addr = memory,
                                            .len = sizeof(memory),
                                            .buffer_size = 32768,
                                            .interface = "eth7",
                                            .queue = 3,
                                            .register_fn = register_fake};
        struct err err = {""};
        register_rc = rows[i].rc;
        cr_expect(zcrx_area_open(&area, &options, &err) == rows[i].rc);
        cr_expect(strstr(err.text, "on eth7 queue 3 with buffers of 32KiB: ") != NULL, "%s", err.text);
        cr_expect(strstr(err.text, rows[i].must_say) != NULL, "%d: %s", rows[i].rc, err.text);
    }
}

/* A driver with a largest size: what is above is refused as `register_above`. */
static uint32_t register_largest;
static int register_above;

static int register_limited(struct io_uring *ring, void *arg)
{
    const struct io_uring_zcrx_ifq_reg *reg = arg;
    register_rc = reg->rx_buf_len > register_largest ? register_above : 0;
    return register_fake(ring, arg);
}

Test(zcrx_area, a_refused_size_names_who_refused_and_what_is_accepted)
{
    static const struct {
        uint32_t size;
        uint32_t largest; /* 0: only the default */
        int rc;
        uint64_t page_size;
        uint64_t len;
        const char *must_say;
    } rows[] = {
        {1 << 20, 32 << 10, -ERANGE, 2 << 20, 8 << 20, "driver: it accepts buffers up to 32KiB"},   /* bnxt */
        {1 << 20, 128 << 10, -ERANGE, 2 << 20, 8 << 20, "driver: it accepts buffers up to 128KiB"}, /* mlx5 */
        {32 << 10, 0, -EOPNOTSUPP, 2 << 20, 8 << 20, "only the default size is accepted"},          /* gve */
        {32 << 10, 0, -EINVAL, 2 << 20, 8 << 20, "only the default size is accepted"}, /* Linux 6.15 */
        {32 << 10, 0, -ERANGE, 4 << 10, 8 << 20,
         "huge pages: the area's memory is contiguous in units of 4KiB"},
        {32 << 10, 0, -ERANGE, 2 << 20, (8 << 20) + 4096, "alignment"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct zcrx_area area;
        static struct uring uring;
        struct zcrx_area_options options = {.uring = &uring,
                                            .addr = (uint8_t *)(uintptr_t)(64 << 20), /* never touched */
                                            .len = rows[i].len,
                                            .buffer_size = rows[i].size,
                                            .page_size = rows[i].page_size,
                                            .interface = "eth7",
                                            .register_fn = register_limited};
        struct err err = {""};
        register_largest = rows[i].largest;
        register_above = rows[i].rc;
        cr_expect(zcrx_area_open(&area, &options, &err) == rows[i].rc, "row %zu", i);
        cr_expect(strstr(err.text, rows[i].must_say) != NULL, "row %zu: %s", i, err.text);
    }
}
