/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme: what NVMe passthrough has to know and the kernel does not do for it: reading Identify data, building commands, cutting a
 * vector into commands, and judging status. Pure: it opens nothing and calls nobody.
 *
 * The kernel takes a passthrough command as it is. It never splits one that is too large (-EINVAL), and it copies a vector that the
 * device cannot take without saying so. Both are therefore decided here, before a command is sent.
 */
#ifndef STORAGE_NVME_H
#define STORAGE_NVME_H

#include <linux/nvme_ioctl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"

#define NVME_IDENTIFY_BYTES 4096U
/* no memory page is smaller: a fragment never has more segments than pages of this size */
#define NVME_PAGE 4096U
#define NVME_BLOCKS_MAX 65536U /* the count is 16 bits, minus one */

/* Opcodes (NVM command set and admin) that are sent. */
#define NVME_CMD_FLUSH 0x00U
#define NVME_CMD_WRITE 0x01U
#define NVME_CMD_READ 0x02U
#define NVME_CMD_WRITE_ZEROES 0x08U
#define NVME_ADMIN_IDENTIFY 0x06U
#define NVME_IDENTIFY_NAMESPACE 0x00U
#define NVME_IDENTIFY_CONTROLLER 0x01U

struct nvme_namespace {
    uint64_t size;     /* bytes */
    uint32_t lba_size; /* bytes */
};

struct nvme_controller {
    uint64_t transfer_max; /* bytes, by MDTS; UINT64_MAX: no limit */
    bool has_sgl;
    bool has_write_cache;
    bool has_write_zeroes;
};

/* As the kernel states them for the namespace's queue. */
struct nvme_limits {
    uint64_t transfer_max;  /* bytes of one command */
    uint32_t segments_max;  /* pieces of memory of one command */
    uint32_t dma_alignment; /* bytes: address and length of a fragment are multiples of it */
    /* inner ends and beginnings of fragments lie on multiples of it + 1; 0: anywhere */
    uint64_t boundary_mask;
    uint64_t write_zeroes_max; /* bytes of one Write Zeroes, 0: not offered */
};

/* All that a command depends on. */
struct nvme_geometry {
    uint32_t nsid;
    uint32_t lba_size;
    struct nvme_limits limits; /* bytes are multiples of the LBA and at most NVME_BLOCKS_MAX of them */
};

/* What one command takes from the front of a vector. */
struct nvme_cut {
    uint64_t len;       /* bytes, whole LBAs */
    uint32_t fragments; /* how many of the vector take part */
    uint64_t left_over; /* bytes of the last one that do not */
};

/* `page`: NVME_IDENTIFY_BYTES as the drive answered. -EOPNOTSUPP for formats with metadata or protection information and for LBA sizes
 * beyond 4096, with a sentence in `err` that begins with `path`. */
int nvme_namespace_parse(const uint8_t *page, const char *path, struct nvme_namespace *out, struct err *err);
void nvme_controller_parse(const uint8_t *page, struct nvme_controller *out);
/* Fits the kernel's limits to the drive's and to whole LBAs. -EOPNOTSUPP when not even one LBA fits a command. */
int nvme_geometry_make(uint32_t nsid, const struct nvme_namespace *space,
                       const struct nvme_controller *controller, const struct nvme_limits *limits,
                       struct nvme_geometry *out);

/* Would the device take the vector as it lies? 0, or -EINVAL for one that the kernel would copy. */
int nvme_vector_check(const struct nvme_limits *limits, const struct iovec *iov, uint32_t count);
/* The longest front of a checked vector that one command carries. -EINVAL: one LBA lies in too many pieces. */
int nvme_vector_cut(const struct nvme_geometry *geometry, const struct iovec *iov, uint32_t count,
                    struct nvme_cut *out);
/* Iovecs of a vector in which every LBA fits a command, however the pieces lie. */
uint32_t nvme_fragments_max(const struct nvme_geometry *geometry);

/* Read, write or write zeroes; the caller adds the data pointer. `offset` and `len` in bytes, whole LBAs within the limits. */
void nvme_command_range(struct nvme_uring_cmd *cmd, const struct nvme_geometry *geometry, uint8_t opcode,
                        uint64_t offset, uint64_t len);
void nvme_command_flush(struct nvme_uring_cmd *cmd, const struct nvme_geometry *geometry);

/* A completion's result: 0 is success (never a byte count), negative is -errno of the kernel, positive an NVMe status. */
int nvme_result_error(int32_t res);       /* 0 or -errno */
bool nvme_result_is_passing(int32_t res); /* the same command may succeed soon */
/* The drive does not know the command or its parameters. */
bool nvme_result_is_unknown_command(int32_t res);

#endif
