/* SPDX-License-Identifier: Apache-2.0 */
/* Places, spans and checksums of an extent, and CRC32C with its combination; all against the plain definition. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "storage/extent.h"

Test(crc32c, known_answers)
{
    uint8_t zeros[32] = {0};
    cr_assert_eq(crc32c_update(0, "123456789", 9), 0xe3069283U);
    cr_assert_eq(crc32c_update(0, zeros, 32), 0x8a9136aaU); /* RFC 3720, B.4 */
    cr_assert_eq(crc32c_update(0, "", 0), 0);
    cr_assert_eq(crc32c_update(crc32c_update(0, "1234", 4), "56789", 5), 0xe3069283U);
}

Test(crc32c, combination_equals_the_whole)
{
    uint8_t bytes[3000];
    struct rng rng;
    rng_seed(&rng, 1);
    for (uint32_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)rng_u64(&rng);
    }
    for (uint32_t i = 0; i < 200; i++) {
        uint64_t len = rng_below(&rng, sizeof(bytes) + 1);
        uint64_t cut = rng_below(&rng, len + 1);
        uint32_t a = crc32c_update(0, bytes, cut);
        uint32_t b = crc32c_update(0, bytes + cut, len - cut);
        cr_assert_eq(crc32c_combine(a, b, len - cut), crc32c_update(0, bytes, len));
    }
}

/* Method: shifting by a length twice is shifting by the double; the shortest one is held against data above. */
Test(crc32c, combining_is_right_for_every_length)
{
    for (uint32_t i = 0; i < 63; i++) {
        uint64_t len = 1ULL << i;
        uint32_t twice = crc32c_combine(crc32c_combine(0x12345678, 0, len), 0, len);
        cr_expect_eq(crc32c_combine(0x12345678, 0, 2 * len), twice, "2^%u", i);
        cr_expect_eq(crc32c_combine(crc32c_combine(0x12345678, 0, len), 0, 262144),
                     crc32c_combine(0x12345678, 0, len + 262144), "2^%u", i);
    }
}

/* The device image of an extent: zeros of the phase, payload, zeros. */
struct image {
    struct object_extent extent;
    uint32_t checksums[16];
    uint8_t *bytes;
};

static void image_make(struct image *image, uint32_t phase, uint64_t length, uint64_t seed)
{
    struct rng rng;
    struct extent_sum sum;
    uint64_t space = object_space_length(phase, length);
    rng_seed(&rng, seed);
    image->bytes = calloc(1, space);
    cr_assert_not_null(image->bytes);
    for (uint64_t i = 0; i < length; i++) {
        image->bytes[phase + i] = (uint8_t)rng_u64(&rng);
    }
    extent_sum_begin(&sum, image->checksums, ARRAY_COUNT(image->checksums), phase);
    for (uint64_t at = 0; at < length;) { /* in pieces of any size */
        uint64_t part = 1 + rng_below(&rng, 100000);
        part = part < length - at ? part : length - at;
        extent_sum_add(&sum, image->bytes + phase + at, part);
        at += part;
    }
    image->extent = (struct object_extent){.offset = 1 * MIB,
                                           .phase = phase,
                                           .length = length,
                                           .checksum_count = extent_checksum_count(phase, length),
                                           .checksums = image->checksums};
}

Test(extent, spans_cover_what_was_asked_and_verify)
{
    const uint32_t phases[] = {0, 1, 3, 511, 4095};
    const uint64_t lengths[] = {1, 4096, 262143, 262144, 262145, 1048576 + 77};
    struct rng rng;
    rng_seed(&rng, 3);
    for (uint32_t p = 0; p < ARRAY_COUNT(phases); p++) {
        for (uint32_t l = 0; l < ARRAY_COUNT(lengths); l++) {
            struct image image;
            image_make(&image, phases[p], lengths[l], 5);
            for (uint32_t i = 0; i < 30; i++) {
                struct extent_span span;
                uint64_t at = rng_below(&rng, lengths[l]);
                uint64_t len = 1 + rng_below(&rng, lengths[l] - at);
                extent_read_span(&image.extent, at, len, 512 * KIB, 512, &span);
                const uint8_t *device = image.bytes + (span.read_offset - image.extent.offset);
                cr_assert_gt(span.payload_len, 0);
                cr_assert_leq(span.payload_len, len);
                cr_assert_leq(span.read_len, 512 * KIB);
                cr_assert_eq(span.read_len % 512, 0);
                cr_assert_leq(span.payload_skip + span.payload_len, span.read_len);
                cr_assert_eq(device + span.payload_skip, image.bytes + phases[p] + at,
                             "the span begins with the byte asked for");
                cr_assert_eq(extent_verify(&image.extent, &span, device), -1);
            }
            free(image.bytes);
        }
    }
}

Test(extent, a_changed_payload_byte_is_found_in_its_block)
{
    struct image image;
    struct extent_span span;
    image_make(&image, 3, 600000, 7);
    extent_read_span(&image.extent, 0, 600000, MIB, 512, &span);
    for (uint64_t at = 3; at < 600003; at += 9973) {
        image.bytes[at] ^= 0x10;
        cr_assert_eq(extent_verify(&image.extent, &span, image.bytes), (int64_t)(at / EXTENT_CHECKSUM_BLOCK));
        image.bytes[at] ^= 0x10;
    }
    cr_assert_eq(extent_verify(&image.extent, &span, image.bytes), -1);
    free(image.bytes);
}

Test(extent, impossible_descriptions_are_refused)
{
    struct object_extent good = {.offset = 16 * MIB, .phase = 3, .length = 5000, .checksum_count = 1};
    struct object_extent bad = good;
    cr_assert(extent_is_possible(&good, 16 * MIB, 32 * MIB));
    bad.offset = 4096;
    cr_assert_not(extent_is_possible(&bad, 16 * MIB, 32 * MIB), "before the extents");
    bad = good;
    bad.offset += 512;
    cr_assert_not(extent_is_possible(&bad, 16 * MIB, 32 * MIB), "odd place");
    bad = good;
    bad.length = UINT64_MAX - 2;
    cr_assert_not(extent_is_possible(&bad, 16 * MIB, 32 * MIB), "overflow");
    bad = good;
    bad.checksum_count = 2;
    cr_assert_not(extent_is_possible(&bad, 16 * MIB, 32 * MIB));
    bad = good;
    bad.offset = 32 * MIB - 4096;
    cr_assert_not(extent_is_possible(&bad, 16 * MIB, 32 * MIB), "beyond the end");
}
