/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storage/nvme: Identify data as drives answer it, vectors cut into commands, and what results mean. The drive itself is in the VM lane
 * (tests/vm/cases/22-passthrough.py).
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "storage/nvme.h"

static uint8_t page[NVME_IDENTIFY_BYTES];

/* A namespace of `blocks` blocks whose format `format` has 2^shift bytes and `metadata` bytes beside each. */
static void namespace_page(uint64_t blocks, uint32_t format, uint8_t shift, uint16_t metadata)
{
    memset(page, 0, sizeof(page));
    memcpy(page, &blocks, sizeof(blocks)); /* tests run on little-endian machines, as the drive speaks */
    page[26] = (uint8_t)((format & 0xf) | (format & 0x30) << 1);
    memcpy(page + 128 + 4 * format, &metadata, sizeof(metadata));
    page[128 + 4 * format + 2] = shift;
}

Test(nvme, a_namespace_tells_block_and_size)
{
    struct nvme_namespace space;
    namespace_page(1 << 20, 0, 9, 0);
    cr_assert_eq(nvme_namespace_parse(page, "d", &space, NULL), 0);
    cr_expect_eq(space.lba_size, 512);
    cr_expect_eq(space.size, 512ULL << 20);
    namespace_page(1000, 4, 12, 0);
    cr_assert_eq(nvme_namespace_parse(page, "d", &space, NULL), 0);
    cr_expect_eq(space.lba_size, 4096);
    cr_expect_eq(space.size, 4096000);
}

Test(nvme, the_format_index_uses_its_upper_bits)
{
    struct nvme_namespace space;
    namespace_page(10, 0x21, 12, 0); /* index 33 */
    page[128 + 4 * 1 + 2] = 9;       /* index 1, which the low bits alone would name */
    cr_assert_eq(nvme_namespace_parse(page, "d", &space, NULL), 0);
    cr_expect_eq(space.lba_size, 4096);
}

Test(nvme, metadata_protection_and_strange_blocks_are_refused_in_words)
{
    struct nvme_namespace space;
    struct err err = {""};
    namespace_page(1000, 1, 12, 8);
    cr_expect_eq(nvme_namespace_parse(page, "/dev/ng0n1", &space, &err), -EOPNOTSUPP);
    cr_expect(strstr(err.text, "/dev/ng0n1 is formatted with 8 bytes of metadata") == err.text, "%s",
              err.text);
    cr_expect_null(strstr(err.text, "protection"));
    page[29] = 1;
    nvme_namespace_parse(page, "/dev/ng0n1", &space, &err);
    cr_expect_not_null(strstr(err.text, "protection information"), "%s", err.text);
    namespace_page(1000, 1, 14, 0);
    cr_expect_eq(nvme_namespace_parse(page, "d", &space, NULL), -EOPNOTSUPP);
    namespace_page(1000, 1, 200, 0);
    cr_expect_eq(nvme_namespace_parse(page, "d", &space, NULL), -EOPNOTSUPP);
    namespace_page(0, 1, 9, 0);
    cr_expect_eq(nvme_namespace_parse(page, "d", &space, NULL), -EOPNOTSUPP);
    namespace_page(UINT64_MAX, 1, 9, 0);
    cr_expect_eq(nvme_namespace_parse(page, "d", &space, NULL), -EOPNOTSUPP);
}

Test(nvme, a_controller_tells_what_it_can)
{
    struct nvme_controller controller;
    memset(page, 0, sizeof(page));
    nvme_controller_parse(page, &controller);
    cr_expect_eq(controller.transfer_max, UINT64_MAX);
    cr_expect_not(controller.has_sgl || controller.has_write_cache || controller.has_write_zeroes);
    page[77] = 7;
    page[520] = 0x08;
    page[525] = 0x07;
    page[536] = 0x01;
    nvme_controller_parse(page, &controller);
    cr_expect_eq(controller.transfer_max, 512 * KIB);
    cr_expect(controller.has_sgl && controller.has_write_cache && controller.has_write_zeroes);
}

static struct nvme_geometry geometry_of(uint32_t lba_size, uint64_t transfer_max, uint32_t segments_max,
                                        uint64_t boundary_mask)
{
    struct nvme_geometry geometry;
    struct nvme_namespace space = {.size = GIB, .lba_size = lba_size};
    struct nvme_controller controller = {.transfer_max = UINT64_MAX};
    struct nvme_limits limits = {.transfer_max = transfer_max,
                                 .segments_max = segments_max,
                                 .dma_alignment = 4,
                                 .boundary_mask = boundary_mask};
    cr_assert_eq(nvme_geometry_make(1, &space, &controller, &limits, &geometry), 0);
    return geometry;
}

Test(nvme, the_tightest_limit_counts)
{
    struct nvme_geometry geometry;
    struct nvme_namespace space = {.size = GIB, .lba_size = 4096};
    struct nvme_controller controller = {.transfer_max = 256 * KIB, .has_write_zeroes = true};
    struct nvme_limits limits = {
        .transfer_max = 130 * KIB, .segments_max = 33, .dma_alignment = 4, .write_zeroes_max = UINT64_MAX};
    cr_assert_eq(nvme_geometry_make(1, &space, &controller, &limits, &geometry), 0);
    cr_expect_eq(geometry.limits.transfer_max, 128 * KIB, "whole blocks");
    cr_expect_eq(geometry.limits.write_zeroes_max, 256 * MIB, "the block count has 16 bits");
    controller.has_write_zeroes = false;
    limits.transfer_max = GIB;
    cr_assert_eq(nvme_geometry_make(1, &space, &controller, &limits, &geometry), 0);
    cr_expect_eq(geometry.limits.transfer_max, 256 * KIB);
    cr_expect_eq(geometry.limits.write_zeroes_max, 0);
    limits.transfer_max = 2048; /* less than a block */
    cr_expect_eq(nvme_geometry_make(1, &space, &controller, &limits, &geometry), -EOPNOTSUPP);
}

static struct iovec at(uint64_t addr, uint64_t len)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)addr, .iov_len = len};
}

Test(nvme, a_vector_that_the_kernel_would_copy_is_refused)
{
    struct nvme_limits sgl = {.dma_alignment = 4};
    struct nvme_limits prp = {.dma_alignment = 4, .boundary_mask = 4095};
    const struct iovec odd_address[] = {at(0x10002, 512)};
    const struct iovec odd_length[] = {at(0x10000, 514), at(0x20000, 510)};
    const struct iovec gaps[] = {at(0x10004, 508), at(0x20100, 516)};
    const struct iovec pages[] = {at(0x10e00, 512), at(0x20000, 8192), at(0x40000, 1024)};
    cr_expect_eq(nvme_vector_check(&sgl, odd_address, 1), -EINVAL);
    cr_expect_eq(nvme_vector_check(&sgl, odd_length, 2), -EINVAL);
    cr_expect_eq(nvme_vector_check(&sgl, gaps, 2), 0);
    cr_expect_eq(nvme_vector_check(&prp, gaps, 2), -EINVAL);
    cr_expect_eq(nvme_vector_check(&prp, gaps, 1), 0, "one piece has no inner ends");
    cr_expect_eq(nvme_vector_check(&prp, pages, 3), 0);
}

Test(nvme, a_vector_is_cut_at_the_transfer_limit_inside_a_fragment)
{
    struct nvme_geometry geometry = geometry_of(512, 64 * KIB, 1024, 0);
    const struct iovec iov[] = {at(0x100004, 40 * KIB + 4), at(0x200000, 60 * KIB - 4)};
    struct nvme_cut cut;
    cr_assert_eq(nvme_vector_cut(&geometry, iov, 2, &cut), 0);
    cr_expect_eq(cut.len, 64 * KIB);
    cr_expect_eq(cut.fragments, 2);
    cr_expect_eq(cut.left_over, 36 * KIB);
}

Test(nvme, a_vector_is_cut_at_the_segment_limit_down_to_whole_blocks)
{
    struct nvme_geometry geometry = geometry_of(512, GIB, 4, 0);
    /* 1 page, 1 page, then one that begins late in its page: two pages of it are 100 + 4096 bytes. */
    const struct iovec iov[] = {at(0x10000, 300), at(0x20000, 212), at(0x30f9c, 16384)};
    struct nvme_cut cut;
    cr_assert_eq(nvme_vector_cut(&geometry, iov, 3, &cut), 0);
    cr_expect_eq(cut.len, bytes_round_down(300 + 212 + 100 + 4096, 512));
    cr_expect_eq(cut.fragments, 3);
    cr_expect_eq(cut.left_over, 300 + 212 + 16384 - cut.len);
}

Test(nvme, a_block_in_too_many_pieces_is_refused)
{
    struct nvme_geometry geometry = geometry_of(4096, GIB, 8, 0);
    struct iovec iov[64];
    struct nvme_cut cut;
    for (uint32_t i = 0; i < ARRAY_COUNT(iov); i++) {
        iov[i] = at(0x10000 + i * 0x1000, 64);
    }
    cr_expect_eq(nvme_vector_cut(&geometry, iov, 64, &cut), -EINVAL);
}

/* Method: random vectors of the allowed number of fragments; the cuts must follow each other to the end, each within all limits. */
Test(nvme, random_vectors_are_cut_to_the_end_within_all_limits)
{
    struct rng rng;
    rng_seed(&rng, 1);
    for (uint32_t round = 0; round < 3000; round++) {
        uint32_t lba = rng_below(&rng, 2) == 0 ? 512 : 4096;
        struct nvme_geometry geometry =
            geometry_of(lba, lba * (1 + rng_below(&rng, 64)), 8 + (uint32_t)rng_below(&rng, 120), 0);
        struct iovec iov[64];
        uint32_t count = 1 + (uint32_t)rng_below(&rng, nvme_fragments_max(&geometry));
        uint64_t scale = rng_below(&rng, 2) == 0 ? 16 : 6000;
        uint64_t left = 0;
        for (uint32_t i = 0; i < count; i++) {
            iov[i] = at(0x1000000 * (i + 1) + 4 * rng_below(&rng, 2048), 4 * (1 + rng_below(&rng, scale)));
            left += iov[i].iov_len;
        }
        iov[count - 1].iov_len += bytes_round_up(left, lba) - left;
        left = bytes_round_up(left, lba);
        for (struct iovec *first = iov; left > 0;) {
            struct nvme_cut cut;
            uint32_t segments = 0;
            uint64_t sum = 0;
            cr_assert_eq(nvme_vector_cut(&geometry, first, count, &cut), 0);
            cr_assert(cut.len > 0 && cut.len % lba == 0 && cut.len <= geometry.limits.transfer_max);
            cr_assert_leq(cut.fragments, count);
            for (uint32_t i = 0; i < cut.fragments; i++) {
                uint64_t len = first[i].iov_len - (i + 1 == cut.fragments ? cut.left_over : 0);
                uint64_t addr = (uintptr_t)first[i].iov_base;
                cr_assert_gt(len, 0);
                segments += (uint32_t)((addr + len - 1) / NVME_PAGE - addr / NVME_PAGE + 1);
                sum += len;
            }
            cr_assert_eq(sum, cut.len);
            cr_assert_leq(segments, geometry.limits.segments_max);
            left -= cut.len;
            count -= cut.fragments;
            first += cut.fragments;
            if (cut.left_over > 0) { /* the last one goes on in the next command */
                first--;
                count++;
                first->iov_base = (uint8_t *)first->iov_base + first->iov_len - cut.left_over;
                first->iov_len = cut.left_over;
            }
        }
    }
}

Test(nvme, commands_count_blocks_from_zero)
{
    struct nvme_geometry geometry = geometry_of(512, GIB, 129, 0);
    struct nvme_uring_cmd cmd;
    nvme_command_range(&cmd, &geometry, NVME_CMD_WRITE, 512ULL * 0x123456789aULL, 32 * MIB);
    cr_expect_eq(cmd.opcode, 1);
    cr_expect_eq(cmd.nsid, 1);
    cr_expect_eq(cmd.cdw10, 0x3456789a);
    cr_expect_eq(cmd.cdw11, 0x12);
    cr_expect_eq(cmd.cdw12, 0xffff);
    nvme_command_flush(&cmd, &geometry);
    cr_expect_eq(cmd.opcode, 0);
    cr_expect_eq(cmd.nsid, 1);
    cr_expect_eq(cmd.cdw12, 0);
}

Test(nvme, results_are_zero_or_an_error_never_a_count)
{
    cr_expect_eq(nvme_result_error(0), 0);
    cr_expect_eq(nvme_result_error(-EACCES), -EACCES);
    cr_expect_eq(nvme_result_error(0x4081), -ENOSPC, "capacity exceeded, do not retry");
    cr_expect_eq(nvme_result_error(0x281), -EIO, "unrecovered read error");
    cr_expect_eq(nvme_result_error(0x4001), -EOPNOTSUPP);
    cr_expect_eq(nvme_result_error(4096), -EIO, "nothing positive is success");
    cr_expect(nvme_result_is_passing(0x82));
    cr_expect_not(nvme_result_is_passing(0x4082), "the drive says: do not retry");
    cr_expect(nvme_result_is_passing(-EINTR));
    cr_expect_not(nvme_result_is_passing(0x281));
    cr_expect(nvme_result_is_unknown_command(0x4001));
    cr_expect_not(nvme_result_is_unknown_command(-EINVAL));
}
