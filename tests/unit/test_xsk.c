/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the AF_XDP socket that need no kernel: who has which frame, ring sizes, and what refusals mean. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "ring/xsk.h"
#include "ring/xsk_load.h"

Test(xsk_frames, every_frame_is_taken_once_and_comes_back)
{
    struct xsk_frames frames;
    bool seen[5] = {false};
    uint32_t frame;
    cr_assert(xsk_frames_open(&frames, 5) == 0);
    for (int i = 0; i < 5; i++) {
        cr_assert(xsk_frames_take(&frames, XSK_FRAME_FILL, &frame));
        cr_assert(frame < 5 && !seen[frame]);
        seen[frame] = true;
    }
    cr_expect(!xsk_frames_take(&frames, XSK_FRAME_OURS, &frame));
    xsk_frames_move(&frames, 3, XSK_FRAME_FILL, XSK_FRAME_HELD);
    xsk_frames_move(&frames, 3, XSK_FRAME_HELD, XSK_FRAME_FREE);
    cr_expect(xsk_frames_take(&frames, XSK_FRAME_OURS, &frame));
    cr_expect_eq(frame, 3);
    xsk_frames_check(&frames);
    xsk_frames_close(&frames);
}

Test(xsk_frames, what_the_kernel_cannot_have_meant_changes_nothing)
{
    struct xsk_frames frames;
    uint32_t frame;
    cr_assert(xsk_frames_open(&frames, 4) == 0);
    cr_assert(xsk_frames_take(&frames, XSK_FRAME_FILL, &frame));
    cr_expect(!xsk_frames_move_if(&frames, frame, XSK_FRAME_SENT, XSK_FRAME_FREE));
    cr_expect(!xsk_frames_move_if(&frames, 4, XSK_FRAME_FILL, XSK_FRAME_HELD));
    cr_expect(!xsk_frames_move_if(&frames, UINT64_MAX, XSK_FRAME_FILL, XSK_FRAME_HELD));
    cr_expect(xsk_frames_move_if(&frames, frame, XSK_FRAME_FILL, XSK_FRAME_HELD));
    cr_expect(!xsk_frames_move_if(&frames, frame, XSK_FRAME_FILL, XSK_FRAME_HELD), "the same one twice");
    xsk_frames_check(&frames);
    xsk_frames_close(&frames);
}

/* A NIC may write into them until the kernel has taken the closed socket from its queue, whatever another queue does meanwhile. */
Test(xsk_frames, those_of_a_closed_socket_are_nobodys_until_its_queue_is_free)
{
    struct xsk_frames frames;
    uint32_t frame, of_first[3], of_second[2];
    cr_assert(xsk_frames_open(&frames, 6) == 0);
    for (int i = 0; i < 3; i++) {
        cr_assert(xsk_frames_take(&frames, i < 2 ? XSK_FRAME_FILL : XSK_FRAME_OURS, &of_first[i]));
        xsk_frames_tag(&frames, of_first[i], 0);
    }
    xsk_frames_move(&frames, of_first[2], XSK_FRAME_OURS, XSK_FRAME_SENT);
    for (int i = 0; i < 2; i++) {
        cr_assert(xsk_frames_take(&frames, XSK_FRAME_FILL, &of_second[i]));
        xsk_frames_tag(&frames, of_second[i], 1);
    }
    xsk_frames_move(&frames, of_second[1], XSK_FRAME_FILL, XSK_FRAME_HELD);
    cr_expect_eq(xsk_frames_bury(&frames, 1), 1);
    cr_expect_eq(xsk_frames_bury(&frames, 0), 3);
    cr_assert(xsk_frames_take(&frames, XSK_FRAME_HELD, &frame), "the one that was free all the time");
    cr_expect(!xsk_frames_take(&frames, XSK_FRAME_HELD, &of_first[0]), "the others are nobody's");
    xsk_frames_move(&frames, frame, XSK_FRAME_HELD, XSK_FRAME_FREE);
    cr_expect_eq(xsk_frames_reclaim(&frames, 0), 3);
    cr_expect_eq(frames.counts[XSK_FRAME_FREE], 4);
    cr_expect_eq(frames.counts[XSK_FRAME_GONE], 1, "the second's");
    xsk_frames_unclaim(&frames, 0); /* the queue was taken all the same */
    cr_expect(!xsk_frames_take(&frames, XSK_FRAME_HELD, &frame));
    cr_expect_eq(xsk_frames_reclaim(&frames, 0), 4);
    cr_expect_eq(xsk_frames_reclaim(&frames, 1), 1);
    xsk_frames_move(&frames, of_second[1], XSK_FRAME_HELD, XSK_FRAME_FREE);
    cr_expect_eq(frames.counts[XSK_FRAME_FREE], 6);
    xsk_frames_check(&frames);
    xsk_frames_close(&frames);
}

Test(xsk_frames, giving_back_twice_is_our_bug, .signal = SIGABRT)
{
    struct xsk_frames frames;
    uint32_t frame;
    cr_assert(xsk_frames_open(&frames, 2) == 0);
    cr_assert(xsk_frames_take(&frames, XSK_FRAME_OURS, &frame));
    xsk_frames_move(&frames, frame, XSK_FRAME_OURS, XSK_FRAME_FREE);
    xsk_frames_move(&frames, frame, XSK_FRAME_OURS, XSK_FRAME_FREE);
}

/* A long random walk over the allowed moves: the counts stay true and no frame is lost. */
Test(xsk_frames, a_random_life_leaks_nothing)
{
    static const struct {
        enum xsk_frame_state from, to;
    } moves[] = {{XSK_FRAME_FILL, XSK_FRAME_HELD},
                 {XSK_FRAME_HELD, XSK_FRAME_FREE},
                 {XSK_FRAME_OURS, XSK_FRAME_SENT},
                 {XSK_FRAME_OURS, XSK_FRAME_FREE},
                 {XSK_FRAME_SENT, XSK_FRAME_FREE}};
    struct xsk_frames frames;
    struct rng rng;
    rng_seed(&rng, 7);
    cr_assert(xsk_frames_open(&frames, 37) == 0);
    uint32_t frame;
    for (int turn = 0; turn < 200000; turn++) {
        uint64_t dice = rng_u64(&rng);
        if (dice % 3 == 0) {
            (void)xsk_frames_take(&frames, dice % 2 == 0 ? XSK_FRAME_FILL : XSK_FRAME_OURS, &frame);
        } else {
            size_t move = (dice >> 8) % ARRAY_COUNT(moves);
            (void)xsk_frames_move_if(&frames, (dice >> 16) % 37, moves[move].from, moves[move].to);
        }
        if (turn % 1000 == 0) {
            xsk_frames_check(&frames);
        }
    }
    for (uint32_t i = 0; i < 37; i++) {
        for (int state = XSK_FRAME_FILL; state < XSK_FRAME_STATES; state++) {
            (void)xsk_frames_move_if(&frames, i, (enum xsk_frame_state)state, XSK_FRAME_FREE);
        }
    }
    xsk_frames_check(&frames);
    cr_expect_eq(frames.counts[XSK_FRAME_FREE], 37);
    xsk_frames_close(&frames);
}

Test(xsk, rings_hold_what_the_nic_and_the_receive_ring_hold)
{
    struct xsk_sizes sizes;
    cr_assert(xsk_sizes(16384, 512, 0, &sizes));
    cr_expect_geq(sizes.fill, 512 + sizes.rx);
    cr_expect_eq(sizes.tx_frames, 512);
    cr_expect_geq(sizes.tx, sizes.tx_frames);
    cr_assert(xsk_sizes(600, 512, 0, &sizes));
    for (uint32_t *size = &sizes.fill; size <= &sizes.tx; size++) {
        cr_expect(bytes_is_power_of_two(*size));
    }
    cr_expect(!xsk_sizes(512, 512, 0, &sizes), "none left for sending");
    cr_expect(!xsk_sizes(8, 0, 8, &sizes), "none left for receiving");
    cr_assert(xsk_sizes(16, 0, 0, &sizes));
    cr_expect_eq(sizes.tx_frames, 4);
}

Test(xsk, an_area_too_small_for_the_ring_of_the_nic_is_refused_before_anything_is_opened)
{
    static uint8_t area[16 * 4096] __attribute__((aligned(4096)));
    struct xsk xsk;
    struct err err = {""};
    struct xsk_options options = {
        .interface = "eth1", .queue = 2, .area = area, .area_size = sizeof(area), .nic_ring = 4096};
    cr_expect_eq(xsk_open(&xsk, &options, &err), -EINVAL);
    cr_expect(strstr(err.text, "16 frames do not cover the NIC's ring of 4096") != NULL, "%s", err.text);
    options.chunk_size = 8192;
    cr_expect_eq(xsk_open(&xsk, &options, &err), -EINVAL);
    cr_expect(strstr(err.text, "2KiB or 4KiB, not 8192") != NULL, "%s", err.text);
}

Test(xsk, each_refusal_has_its_sentence)
{
    struct xsk_options options = {.interface = "eth1", .queue = 3};
    struct {
        int rc;
        const char *says;
    } cases[] = {
        {-EPERM, "CAP_NET_RAW"},        {-ENOBUFS, "RLIMIT_MEMLOCK"}, {-EBUSY, "ss --xdp"},
        {-EOPNOTSUPP, "out-of-tree"},   {-ENETDOWN, "bring it up"},   {-EINVAL, "iommu_platform"},
        {-EAFNOSUPPORT, "XDP_SOCKETS"}, {-ENODEV, "namespace"},       {-ENOMEM, "nr_cpus=128"},
        {-EIO, "Input/output error"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct err err = {""};
        cr_expect_eq(xsk_refused(cases[i].rc, &options, &err), cases[i].rc);
        cr_expect(strncmp(err.text, "AF_XDP on eth1 queue 3: ", 24) == 0, "%s", err.text);
        cr_expect(strstr(err.text, cases[i].says) != NULL, "%s", err.text);
    }
}

Test(xsk, loading_and_attaching_refuse_in_their_own_words)
{
    struct err err = {""};
    cr_expect_eq(xsk_program_refused(-EPERM, false, "eth1", "", &err), -EPERM);
    cr_expect(strstr(err.text, "CAP_BPF") != NULL, "%s", err.text);
    cr_expect_eq(xsk_program_refused(-EBUSY, true, "eth1", "", &err), -EBUSY);
    cr_expect_str_eq(err.text,
                     "XDP on eth1: another XDP program is attached; end who holds it: bpftool link shows the "
                     "process, bpftool link detach id N takes it off; without a link, ip link set "
                     "dev X xdp off");
    (void)xsk_program_refused(-EINVAL, true, "eth1", "", &err);
    cr_expect(strstr(err.text, "SR-IOV") != NULL, "%s", err.text);
    (void)xsk_program_refused(-EACCES, false, "eth1", "R1 pointer comparison prohibited", &err);
    cr_expect(strstr(err.text, "refuses the program: R1 pointer comparison prohibited; CAP_PERFMON") != NULL,
              "%s", err.text);
    (void)xsk_program_refused(-EINVAL, true, "eth1", "MTU too large", &err);
    cr_expect(strstr(err.text, "SR-IOV") != NULL &&
                  strstr(err.text, "(the kernel says: MTU too large)") != NULL,
              "%s", err.text);
}

Test(xsk, what_the_verifier_refuses_is_the_last_line_that_says_something)
{
    char line[XSK_SAYS_MAX];
    xsk_verifier_line("329: (15) if r1 == 0x0 goto pc+34\nR1 pointer comparison prohibited\n"
                      "verification time 90 usec\nstack depth 96\n"
                      "processed 382 insns (limit 1000000) max_states_per_insn 1\n",
                      line);
    cr_expect_str_eq(line, "R1 pointer comparison prohibited");
    xsk_verifier_line("cut off without an end", line);
    cr_expect_str_eq(line, "cut off without an end");
    xsk_verifier_line("\nprocessed 1 insns\n", line);
    cr_expect_str_eq(line, "");
    char longer[2 * XSK_SAYS_MAX];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    xsk_verifier_line(longer, line);
    cr_expect_eq(strlen(line), XSK_SAYS_MAX - 1);
}

Test(xsk, what_a_wakeup_answers)
{
    cr_expect_eq(xsk_wakeup_trouble(0), XSK_FINE);
    cr_expect_eq(xsk_wakeup_trouble(-EAGAIN), XSK_LATER);
    cr_expect_eq(xsk_wakeup_trouble(-EBUSY), XSK_LATER);
    cr_expect_eq(xsk_wakeup_trouble(-ENOBUFS), XSK_LATER);
    cr_expect_eq(xsk_wakeup_trouble(-ENETDOWN), XSK_PAUSED);
    cr_expect_eq(xsk_wakeup_trouble(-ENXIO), XSK_LOST);
    cr_expect_eq(xsk_wakeup_trouble(-EINVAL), XSK_LOST);
}

Test(xsk, every_reason_of_the_program_has_a_name_of_its_own)
{
    for (int a = 0; a < XSK_PROG_REASONS; a++) {
        for (int b = 0; b < a; b++) {
            cr_expect_str_neq(xsk_prog_reason_text((enum xsk_prog_reason)a),
                              xsk_prog_reason_text((enum xsk_prog_reason)b));
        }
    }
}
