/* SPDX-License-Identifier: Apache-2.0 */
/* extent: see extent.h. Pure arithmetic on places, and the checksums of blocks. */
#include "storage/extent.h"

#include "base/bytes.h"
#include "base/check.h"

void extent_read_span(const struct object_extent *extent, uint64_t at, uint64_t len, uint64_t len_max,
                      uint32_t lba_size, struct extent_span *out)
{
    CHECK(len > 0);
    CHECK(at < extent->length);
    CHECK(len_max >= EXTENT_CHECKSUM_BLOCK);
    uint64_t end_of_payload = extent->phase + extent->length;
    uint64_t from = extent->phase + at; /* places are relative to the extent's first device byte */
    uint64_t to = from + len < end_of_payload ? from + len : end_of_payload;
    uint64_t first = bytes_round_down(from, EXTENT_CHECKSUM_BLOCK);
    uint64_t last = bytes_round_up(to, EXTENT_CHECKSUM_BLOCK);
    if (last - first > len_max) {
        last = first + bytes_round_down(len_max, EXTENT_CHECKSUM_BLOCK);
        to = last;
    }
    if (last > end_of_payload) {
        /* the last block ends with the payload, padded to an LBA */
        last = bytes_round_up(end_of_payload, lba_size);
    }
    out->read_offset = extent->offset + first;
    out->read_len = last - first;
    out->first_block = (uint32_t)(first / EXTENT_CHECKSUM_BLOCK);
    out->block_count = (uint32_t)((last - first + EXTENT_CHECKSUM_BLOCK - 1) / EXTENT_CHECKSUM_BLOCK);
    out->payload_skip = from - first;
    out->payload_len = to - from;
}

int64_t extent_verify(const struct object_extent *extent, const struct extent_span *span, const uint8_t *data)
{
    uint64_t end_of_payload = extent->phase + extent->length;
    for (uint32_t i = 0; i < span->block_count; i++) {
        uint64_t block = span->first_block + i;
        uint64_t from = block * EXTENT_CHECKSUM_BLOCK;
        uint64_t to =
            from + EXTENT_CHECKSUM_BLOCK < end_of_payload ? from + EXTENT_CHECKSUM_BLOCK : end_of_payload;
        uint64_t skip = block == 0 ? extent->phase : 0;
        const uint8_t *at = data + (uint64_t)i * EXTENT_CHECKSUM_BLOCK + skip;
        if (block >= extent->checksum_count ||
            crc32c_update(0, at, to - from - skip) != extent->checksums[block]) {
            return (int64_t)block;
        }
    }
    return -1;
}

void extent_sum_begin(struct extent_sum *sum, uint32_t *checksums, uint32_t capacity, uint32_t phase)
{
    sum->checksums = checksums;
    sum->capacity = capacity;
    sum->position = phase;
    sum->checksums[0] = 0;
}

void extent_sum_add(struct extent_sum *sum, const uint8_t *data, uint64_t len)
{
    while (len > 0) {
        uint64_t block = sum->position / EXTENT_CHECKSUM_BLOCK;
        uint64_t inside = sum->position % EXTENT_CHECKSUM_BLOCK;
        uint64_t room = EXTENT_CHECKSUM_BLOCK - inside;
        uint64_t step = len < room ? len : room;
        CHECK(block < sum->capacity);
        sum->checksums[block] = crc32c_update(inside == 0 ? 0 : sum->checksums[block], data, step);
        sum->position += step;
        data += step;
        len -= step;
    }
}

bool extent_is_possible(const struct object_extent *extent, uint64_t data_offset, uint64_t device_end)
{
    if (extent->length == 0 || extent->phase >= EXTENT_BLOCK ||
        extent->length > EXTENT_BYTES_MAX - extent->phase) {
        return false;
    }
    uint64_t space = object_space_length(extent->phase, extent->length);
    return extent->offset % EXTENT_BLOCK == 0 && extent->offset >= data_offset &&
           extent->offset <= device_end && space <= device_end - extent->offset &&
           extent->checksum_count == extent_checksum_count(extent->phase, extent->length);
}
