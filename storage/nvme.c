/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme: see nvme.h. Offsets of fields are those of the NVMe base specification 2.0 (figures of Identify Controller and Identify
 * Namespace) and status codes those of its completion queue entry, without the phase bit.
 */
#include "storage/nvme.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"

#define LBA_SIZE_MAX 4096U /* extents start at 4 KiB */

/* Status field: code in bits 0-7, type in bits 8-10, "do not retry" in bit 14. */
#define STATUS(type, code) ((type) << 8 | (code))
#define STATUS_MASK 0x7ff
#define STATUS_DO_NOT_RETRY 0x4000
#define STATUS_INVALID_OPCODE STATUS(0, 0x01)
#define STATUS_INVALID_FIELD STATUS(0, 0x02)
#define STATUS_ABORT_REQUESTED STATUS(0, 0x07)
#define STATUS_INVALID_NAMESPACE STATUS(0, 0x0b)
#define STATUS_INTERRUPTED STATUS(0, 0x21)
#define STATUS_TRANSIENT STATUS(0, 0x22)
#define STATUS_WRITE_PROTECTED STATUS(0, 0x20)
#define STATUS_CAPACITY STATUS(0, 0x81)
#define STATUS_NOT_READY STATUS(0, 0x82)
#define STATUS_RESERVED STATUS(0, 0x83)
#define STATUS_ACCESS_DENIED STATUS(2, 0x86)

/* ---- Identify --------------------------------------------------------------------------------------------------------- */

static uint64_t nvme_le(const uint8_t *at, uint32_t bytes)
{
    uint64_t value = 0;
    for (uint32_t i = bytes; i > 0; i--) {
        value = value << 8 | at[i - 1];
    }
    return value;
}

int nvme_namespace_parse(const uint8_t *page, const char *path, struct nvme_namespace *out, struct err *err)
{
    uint64_t blocks = nvme_le(page, 8);
    uint8_t flbas = page[26];
    /* Drives with more than 16 formats keep the upper bits of the index in bits 5 and 6. */
    uint32_t format = (flbas & 0x0fU) | (flbas & 0x60U) >> 1;
    const uint8_t *lbaf = page + 128 + (size_t)format * 4;
    uint64_t metadata = nvme_le(lbaf, 2);
    uint32_t shift = lbaf[2];
    uint32_t protection = page[29] & 0x7U;
    if (metadata != 0 || protection != 0) {
        return err_set(
            err, -EOPNOTSUPP,
            "%s is formatted with %llu bytes of metadata per block%s, which passthrough does not fill in; "
            "format it without (nvme format --ms=0) or name its block device",
            path, (unsigned long long)metadata, protection != 0 ? " and protection information" : "");
    }
    if (shift < 9 || (1ULL << (shift < 63 ? shift : 63)) > LBA_SIZE_MAX) {
        return err_set(err, -EOPNOTSUPP,
                       "%s has blocks of 2^%u bytes; 512 to 4096 are supported: format it anew (nvme format)",
                       path, shift);
    }
    if (blocks == 0 || blocks > UINT64_MAX >> shift) {
        return err_set(err, -EOPNOTSUPP, "%s states an impossible size of %llu blocks", path,
                       (unsigned long long)blocks);
    }
    out->lba_size = 1U << shift;
    out->size = blocks << shift;
    return 0;
}

void nvme_controller_parse(const uint8_t *page, struct nvme_controller *out)
{
    uint32_t mdts = page[77];
    /* In units of the controller's smallest page, which user space cannot read; 4 KiB is the smallest there is. The kernel knows
     * better, and its own limit counts as well. */
    out->transfer_max = mdts == 0 || mdts > 40 ? UINT64_MAX : (uint64_t)NVME_PAGE << mdts;
    out->has_write_zeroes = (nvme_le(page + 520, 2) & 0x8U) != 0;
    out->has_write_cache = (page[525] & 0x1U) != 0;
    out->has_sgl = (nvme_le(page + 536, 4) & 0x3U) != 0;
}

static uint64_t nvme_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int nvme_geometry_make(uint32_t nsid, const struct nvme_namespace *space,
                       const struct nvme_controller *controller, const struct nvme_limits *limits,
                       struct nvme_geometry *out)
{
    uint64_t blocks_max = (uint64_t)NVME_BLOCKS_MAX * space->lba_size;
    uint64_t transfer = nvme_min(nvme_min(limits->transfer_max, controller->transfer_max), blocks_max);
    uint64_t zeroes = controller->has_write_zeroes ? nvme_min(limits->write_zeroes_max, blocks_max) : 0;
    memset(out, 0, sizeof(*out));
    out->nsid = nsid;
    out->lba_size = space->lba_size;
    out->limits = *limits;
    out->limits.transfer_max = bytes_round_down(transfer, space->lba_size);
    out->limits.write_zeroes_max = bytes_round_down(zeroes, space->lba_size);
    bool is_usable = out->limits.transfer_max > 0 && limits->segments_max >= 4 && limits->dma_alignment > 0 &&
                     limits->dma_alignment <= space->lba_size;
    return is_usable ? 0 : -EOPNOTSUPP;
}

/* ---- vectors ---------------------------------------------------------------------------------------------------------- */

int nvme_vector_check(const struct nvme_limits *limits, const struct iovec *iov, uint32_t count)
{
    uint64_t misaligned = 0;
    uint64_t gaps = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t addr = (uintptr_t)iov[i].iov_base;
        misaligned |= (addr | iov[i].iov_len) & (limits->dma_alignment - 1);
        gaps |= i > 0 ? addr : 0;
        gaps |= i + 1 < count ? addr + iov[i].iov_len : 0;
    }
    return misaligned == 0 && (gaps & limits->boundary_mask) == 0 ? 0 : -EINVAL;
}

/* Bytes of [addr, addr + len) that `segments` pages cover. */
static uint64_t nvme_bytes_in_pages(uint64_t addr, uint64_t len, uint32_t segments)
{
    uint64_t covered = (uint64_t)segments * NVME_PAGE;
    uint64_t skipped = addr % NVME_PAGE;
    uint64_t room = covered > skipped ? covered - skipped : 0;
    return nvme_min(room, len);
}

int nvme_vector_cut(const struct nvme_geometry *geometry, const struct iovec *iov, uint32_t count,
                    struct nvme_cut *out)
{
    uint32_t segments = geometry->limits.segments_max;
    uint64_t total = 0;
    for (uint32_t i = 0; i < count && segments > 0; i++) {
        uint64_t addr = (uintptr_t)iov[i].iov_base;
        uint64_t takes = nvme_bytes_in_pages(addr, iov[i].iov_len, segments);
        total += takes;
        if (takes < iov[i].iov_len || total >= geometry->limits.transfer_max) {
            break;
        }
        segments -= (uint32_t)((addr + takes - 1) / NVME_PAGE - addr / NVME_PAGE + 1);
    }
    total = bytes_round_down(nvme_min(total, geometry->limits.transfer_max), geometry->lba_size);
    if (total == 0) {
        return -EINVAL;
    }
    out->len = total;
    out->fragments = 0;
    uint64_t sum = 0;
    while (sum < total) {
        CHECK(out->fragments < count);
        sum += iov[out->fragments++].iov_len;
    }
    out->left_over = sum - total;
    return 0;
}

uint32_t nvme_fragments_max(const struct nvme_geometry *geometry)
{
    /* A fragment shorter than a page lies in two at most, and those of one LBA are all shorter or alone. */
    return geometry->limits.segments_max / 2;
}

/* ---- commands --------------------------------------------------------------------------------------------------------- */

void nvme_command_range(struct nvme_uring_cmd *cmd, const struct nvme_geometry *geometry, uint8_t opcode,
                        uint64_t offset, uint64_t len)
{
    uint64_t lba = offset / geometry->lba_size;
    uint64_t blocks = len / geometry->lba_size;
    CHECK(blocks >= 1);
    CHECK(blocks <= NVME_BLOCKS_MAX);
    CHECK(offset % geometry->lba_size == 0);
    CHECK(len % geometry->lba_size == 0);
    memset(cmd, 0, sizeof(*cmd));
    cmd->opcode = opcode;
    cmd->nsid = geometry->nsid;
    cmd->cdw10 = (uint32_t)lba;
    cmd->cdw11 = (uint32_t)(lba >> 32);
    cmd->cdw12 = (uint32_t)blocks - 1;
}

void nvme_command_flush(struct nvme_uring_cmd *cmd, const struct nvme_geometry *geometry)
{
    memset(cmd, 0, sizeof(*cmd));
    cmd->opcode = NVME_CMD_FLUSH;
    cmd->nsid = geometry->nsid;
}

/* ---- results ---------------------------------------------------------------------------------------------------------- */

int nvme_result_error(int32_t res)
{
    if (res <= 0) {
        return res;
    }
    switch (res & STATUS_MASK) {
    case STATUS_INVALID_OPCODE:
        return -EOPNOTSUPP;
    case STATUS_INVALID_FIELD:
    case STATUS_INVALID_NAMESPACE:
        return -EINVAL;
    case STATUS_CAPACITY:
        return -ENOSPC;
    case STATUS_WRITE_PROTECTED:
        return -EROFS;
    case STATUS_RESERVED:
        return -EBUSY;
    case STATUS_ACCESS_DENIED:
        return -EACCES;
    default:
        return -EIO;
    }
}

bool nvme_result_is_passing(int32_t res)
{
    if (res == -EINTR) {
        return true; /* cancelled by a controller reset */
    }
    if (res <= 0 || (res & STATUS_DO_NOT_RETRY) != 0) {
        return false;
    }
    int status = res & STATUS_MASK;
    return status == STATUS_ABORT_REQUESTED || status == STATUS_INTERRUPTED || status == STATUS_TRANSIENT ||
           status == STATUS_NOT_READY;
}

bool nvme_result_is_unknown_command(int32_t res)
{
    int status = res > 0 ? res & STATUS_MASK : 0;
    return status == STATUS_INVALID_OPCODE || status == STATUS_INVALID_FIELD;
}
