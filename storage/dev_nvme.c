/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dev_nvme: an NVMe namespace by passthrough (/dev/ngXnY): Read, Write, Flush and Write Zeroes go to the drive as io_uring commands,
 * past the block layer. It owns the character device's descriptor and the claim on the sibling block device (/dev/nvmeXnY), which
 * keeps mounts and other processes out. Offsets are those of the block device: either opens the same store.
 *
 * What the block layer does elsewhere is done here: cutting what is too large for one command, and refusing (-EINVAL) fragments that
 * the drive cannot take, which the kernel would otherwise copy in silence. The store's self-test finds the refusal and stages those
 * pieces itself, counted. Commands need 128-byte SQEs and thus travel on the side ring of the queue's ring (base/uring.h).
 *
 *   submit -> start: one command -> (kernel) -> handler: recorded in `reaped` -> poll: finished, or the rest is started
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "storage/dev.h"
#include "storage/nvme.h"

#define ZERO_BUFFER_SIZE (128 * KIB)
#define FRAGMENTS_CAP 256U
#define CLAIM_ATTEMPTS 150U
#define CLAIM_PAUSE_US 20000U /* start-up only: 3 s in all */
#define AGAIN_MAX 10000U /* -EAGAIN never reached the drive; the bound turns a stuck kernel into an error */
#define PASSING_MAX 5U   /* as often as the kernel itself tries again */
#define SQE128_BYTES 128U
#define NAME_MAX_BYTES 64U
#define PATH_BYTES 256U

struct dev_nvme {
    struct dev base;
    int fd;
    int claim_fd; /* the sibling block device, opened exclusively; -1 when not asked for */
    struct nvme_geometry geometry;
    _Atomic bool zero_by_write; /* the drive has no Write Zeroes */
    uint8_t *zeros;             /* ZERO_BUFFER_SIZE, never written */
};

/* A command on its way. */
struct nvme_slot {
    struct dev_io *io;
    struct list node;
    uint64_t len;       /* bytes it transfers */
    uint32_t fragments; /* of the io's vector */
    uint64_t left_over; /* by how much the last of them is shortened meanwhile */
    int32_t res;
    bool is_fixed_vector;
    struct iovec zero_iov;
} __attribute__((aligned(16)));

struct dev_nvme_queue {
    struct dev_queue base;
    struct uring *side;
    struct nvme_slot *slots; /* depth */
    struct list free;
    struct list reaped;
    int file_slot;         /* in the side ring's file table, or -1 */
    bool has_vector_fixed; /* vectors in registered memory; Linux 6.15 */
};

static struct dev_nvme *dev_nvme_of(struct dev *dev)
{
    return (struct dev_nvme *)dev;
}

/* ---- what the kernel tells -------------------------------------------------------------------------------------------- */

/* "nvme0n1" for /dev/ng0n1, whatever the path was called: the kernel numbers both alike. */
static int dev_nvme_sibling(dev_t number, char *name, size_t size)
{
    char path[PATH_BYTES];
    char line[PATH_BYTES];
    int rc = -ENOENT;
    snprintf(path, sizeof(path), "/sys/dev/char/%u:%u/uevent", major(number), minor(number));
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return -errno;
    }
    while (rc != 0 && fgets(line, sizeof(line), file) != NULL) {
        unsigned controller;
        unsigned space;
        if (sscanf(line, "DEVNAME=ng%un%u", &controller, &space) == 2) {
            snprintf(name, size, "nvme%un%u", controller, space);
            rc = 0;
        }
    }
    fclose(file);
    return rc;
}

static bool dev_nvme_text(const char *sibling, const char *file_name, char *to, int size)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "/sys/class/block/%s/%s", sibling, file_name);
    FILE *file = fopen(path, "re");
    bool has = file != NULL && fgets(to, size, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    return has;
}

static uint64_t dev_nvme_number(const char *sibling, const char *file_name, uint64_t fallback)
{
    char text[32];
    return dev_nvme_text(sibling, file_name, text, sizeof(text)) ? strtoull(text, NULL, 10) : fallback;
}

/* The queue is the same for both devices, but only the block device's directory shows its limits. */
static int dev_nvme_limits(const char *path, const char *sibling, uint32_t lba_size, struct nvme_limits *out,
                           struct err *err)
{
    char zoned[32] = "none";
    memset(out, 0, sizeof(*out));
    out->transfer_max = dev_nvme_number(sibling, "queue/max_hw_sectors_kb", 0) * KIB;
    out->segments_max = (uint32_t)dev_nvme_number(sibling, "queue/max_segments", 0);
    if (out->transfer_max == 0 || out->segments_max == 0) {
        return err_set(
            err, -EOPNOTSUPP,
            "%s: the limits of its queue cannot be read (/sys/class/block/%s/queue); mount /sys, or "
            "name a namespace that also has a block device",
            path, sibling);
    }
    /* Kernels that do not tell get the strict reading. */
    out->dma_alignment = (uint32_t)dev_nvme_number(sibling, "queue/dma_alignment", lba_size - 1) + 1;
    out->boundary_mask = dev_nvme_number(sibling, "queue/virt_boundary_mask", NVME_PAGE - 1);
    out->write_zeroes_max = dev_nvme_number(sibling, "queue/write_zeroes_max_bytes", 0);
    if (dev_nvme_text(sibling, "queue/zoned", zoned, sizeof(zoned)) && strncmp(zoned, "none", 4) != 0) {
        return err_set(err, -EOPNOTSUPP,
                       "%s is a zoned namespace, which takes writes in order only: not supported", path);
    }
    return 0;
}

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

static int dev_nvme_open_file(const char *path, struct stat *st, struct err *err)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        int rc = -errno;
        return err_set(err, rc, "%s: %s; %s", path, err_text(rc),
                       rc == -EACCES || rc == -EPERM
                           ? "give the user of penstock read and write access (chown, or a udev rule for ng*)"
                           : "correct store.devices");
    }
    if (fstat(fd, st) != 0 || !S_ISCHR(st->st_mode) || ioctl(fd, NVME_IOCTL_ID) <= 0) {
        close(fd);
        return err_set(
            err, -EINVAL,
            "%s is a character device, but no NVMe namespace: passthrough needs /dev/ngXnY (not the "
            "controller /dev/nvmeX)",
            path);
    }
    return fd;
}

/* Whoever holds the block device or a partition of it exclusively (a mount, a volume manager, another node) keeps us out, and we
 * them. */
static int dev_nvme_claim(const char *path, const char *sibling, struct err *err)
{
    char node[NAME_MAX_BYTES + 8];
    char number[32] = "";
    char found[32];
    struct stat st;
    int fd = -1;
    int rc = -EBUSY;
    snprintf(node, sizeof(node), "/dev/%s", sibling);
    for (uint32_t i = 0; i < CLAIM_ATTEMPTS && fd < 0 && rc == -EBUSY; i++) {
        fd = open(node, O_RDONLY | O_EXCL | O_CLOEXEC);
        rc = fd < 0 ? -errno : 0;
        if (rc == -EBUSY) {
            usleep(CLAIM_PAUSE_US); /* lint: allow: start-up, the kernel gives no event for this */
        }
    }
    if (rc == -EBUSY) {
        return err_set(
            err, rc,
            "%s: its block device %s is in use (mounted, or held by another process); stop its user or "
            "name another device",
            path, node);
    }
    if (rc < 0) {
        return err_set(
            err, rc,
            "%s: its block device %s cannot be claimed (%s), so others could write to it unseen; give "
            "the user of penstock read access to it",
            path, node, err_text(rc));
    }
    bool is_known = fstat(fd, &st) == 0 && S_ISBLK(st.st_mode) && dev_nvme_text(sibling, "dev", number, 32);
    snprintf(found, sizeof(found), "%u:%u\n", major(st.st_rdev), minor(st.st_rdev));
    if (!is_known || strcmp(number, found) != 0) {
        close(fd);
        return err_set(err, -ENODEV, "%s: %s is not its block device; restart udev or correct /dev", path,
                       node);
    }
    /* Pages that the kernel still holds of it would be written over ours later, or read instead of ours. Not permitted to all; then
     * they are as old as their user's neglect. */
    (void)ioctl(fd, BLKFLSBUF, 0);
    return fd;
}

static int dev_nvme_identify(int fd, uint32_t nsid, uint32_t what, uint8_t *page, const char *path,
                             struct err *err)
{
    struct nvme_admin_cmd cmd;
    memset(&cmd, 0, sizeof(cmd));
    cmd.opcode = NVME_ADMIN_IDENTIFY;
    cmd.nsid = what == NVME_IDENTIFY_NAMESPACE ? nsid : 0;
    cmd.addr = (uintptr_t)page;
    cmd.data_len = NVME_IDENTIFY_BYTES;
    cmd.cdw10 = what;
    int rc = ioctl(fd, NVME_IOCTL_ADMIN_CMD, &cmd);
    rc = rc < 0 ? -errno : nvme_result_error(rc);
    if (rc < 0) {
        return err_set(err, rc, "%s: the drive does not identify itself: %s%s", path, err_text(rc),
                       rc == -EACCES ? "; before Linux 6.2 that needs CAP_SYS_ADMIN" : "");
    }
    return 0;
}

static void dev_nvme_note(struct dev_nvme *dev, const struct nvme_controller *controller)
{
    const struct nvme_limits *limits = &dev->geometry.limits;
    char size[BYTES_SIZE_TEXT_MAX];
    snprintf(dev->base.info.note, sizeof(dev->base.info.note),
             "NVMe passthrough: namespace %u, up to %s and %u segments a command, %s%s%s", dev->geometry.nsid,
             bytes_format_size(limits->transfer_max, size), limits->segments_max,
             controller->has_sgl ? "SGL" : "no SGL",
             limits->boundary_mask != 0 ? ", fragments must fill whole pages" : "",
             controller->has_write_cache ? ", volatile write cache" : "");
}

static int dev_nvme_describe(struct dev_nvme *dev, const char *sibling, struct err *err)
{
    struct dev_info *info = &dev->base.info;
    struct nvme_namespace space = {0, 0};
    struct nvme_controller controller = {0};
    struct nvme_limits limits = {0};
    const char *path = dev->base.path;
    uint32_t nsid = (uint32_t)ioctl(dev->fd, NVME_IOCTL_ID);
    uint8_t *page = aligned_alloc(NVME_PAGE, NVME_IDENTIFY_BYTES);
    if (page == NULL) {
        return err_set(err, -ENOMEM, "%s: out of memory", path);
    }
    int rc = dev_nvme_identify(dev->fd, nsid, NVME_IDENTIFY_NAMESPACE, page, path, err);
    rc = rc == 0 ? nvme_namespace_parse(page, path, &space, err) : rc;
    rc = rc == 0 ? dev_nvme_identify(dev->fd, nsid, NVME_IDENTIFY_CONTROLLER, page, path, err) : rc;
    if (rc == 0) {
        nvme_controller_parse(page, &controller);
        rc = dev_nvme_limits(path, sibling, space.lba_size, &limits, err);
    }
    free(page);
    if (rc < 0) {
        return rc;
    }
    rc = nvme_geometry_make(nsid, &space, &controller, &limits, &dev->geometry);
    if (rc < 0) {
        return err_set(
            err, rc, "%s: the limits of its queue (%llu bytes, %u segments, alignment %u) do not suffice",
            path, (unsigned long long)limits.transfer_max, limits.segments_max, limits.dma_alignment);
    }
    uint32_t fragments = nvme_fragments_max(&dev->geometry);
    info->type = "nvme";
    info->size = space.size;
    info->lba_size = space.lba_size;
    info->dma_alignment = limits.dma_alignment;
    info->fragments_max = fragments < FRAGMENTS_CAP ? fragments : FRAGMENTS_CAP;
    info->bytes_max = (uint32_t)dev->geometry.limits.transfer_max;
    info->direct = true;
    info->whole_pages = limits.boundary_mask != 0;
    dev->zero_by_write = dev->geometry.limits.write_zeroes_max == 0;
    dev_nvme_note(dev, &controller);
    return 0;
}

static void dev_nvme_close(struct dev *base)
{
    struct dev_nvme *dev = dev_nvme_of(base);
    if (dev->claim_fd >= 0) {
        close(dev->claim_fd);
    }
    close(dev->fd);
    munmap(dev->zeros, ZERO_BUFFER_SIZE);
    free(dev);
}

/* One block is read, so that what the kernel refuses is told now and in words. */
static int dev_nvme_try(struct dev_nvme *dev, struct err *err)
{
    struct uring ring;
    struct uring_options options = {.sq_entries = 4, .cq_entries = 8};
    struct dev_queue *queue = NULL;
    struct iovec iov = {.iov_base = dev->zeros, .iov_len = dev->base.info.lba_size};
    struct dev_io io = {
        .op = DEV_READ, .buf_index = -1, .len = dev->base.info.lba_size, .iov = &iov, .iov_count = 1};
    int rc = uring_open(&ring, &options, err);
    if (rc < 0) {
        return rc;
    }
    rc = dev_queue_open(&dev->base, &ring, 1, &queue, err);
    if (rc == 0) {
        rc = dev_run(queue, &io);
        dev_queue_close(queue);
        const char *hint =
            rc == -EACCES ? "; the drive lists no effects of this command: run with CAP_SYS_ADMIN"
            : rc == -EOPNOTSUPP || rc == -ENOTTY
                ? "; this kernel has no NVMe passthrough over io_uring (5.19): name the block device"
                : "";
        rc = rc == 0 ? 0
                     : err_set(err, rc, "%s: a first read failed: %s%s", dev->base.path, err_text(rc), hint);
    }
    uring_close(&ring);
    memset(dev->zeros, 0, dev->base.info.lba_size);
    memset(&dev->base.stats, 0, sizeof(dev->base.stats)); /* counters tell of payload */
    return rc;
}

static const struct dev_ops dev_nvme_ops;

int dev_nvme_open(const struct dev_uring_options *options, struct dev **out, struct err *err)
{
    char sibling[NAME_MAX_BYTES];
    struct stat st = {0};
    struct dev_nvme *dev = calloc(1, sizeof(*dev));
    if (dev == NULL) {
        return err_set(err, -ENOMEM, "%s: out of memory", options->path);
    }
    dev->base.ops = &dev_nvme_ops;
    dev->claim_fd = -1;
    snprintf(dev->base.path, sizeof(dev->base.path), "%s", options->path);
    dev->fd = dev_nvme_open_file(options->path, &st, err);
    int rc = dev->fd < 0 ? dev->fd : 0;
    if (rc < 0) {
        goto free_dev;
    }
    rc = dev_nvme_sibling(st.st_rdev, sibling, sizeof(sibling));
    if (rc < 0) {
        rc = err_set(err, rc, "%s: /sys does not name it (%s); mount /sys", options->path, err_text(rc));
        goto close_fd;
    }
    if (options->is_exclusive) {
        dev->claim_fd = dev_nvme_claim(options->path, sibling, err);
        rc = dev->claim_fd < 0 ? dev->claim_fd : 0;
    }
    rc = rc == 0 ? dev_nvme_describe(dev, sibling, err) : rc;
    if (rc < 0) {
        goto close_claim;
    }
    dev->zeros = mmap(NULL, ZERO_BUFFER_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (dev->zeros == MAP_FAILED) {
        rc = err_set(err, -ENOMEM, "%s: out of memory", options->path);
        goto close_claim;
    }
    dev->base.magic = DEV_MAGIC;
    rc = dev_nvme_try(dev, err);
    if (rc < 0) {
        goto unmap_zeros;
    }
    *out = &dev->base;
    return 0;

unmap_zeros:
    munmap(dev->zeros, ZERO_BUFFER_SIZE);
close_claim:
    if (dev->claim_fd >= 0) {
        close(dev->claim_fd);
    }
close_fd:
    close(dev->fd);
free_dev:
    free(dev);
    return rc;
}

int dev_open(const struct dev_uring_options *options, struct dev **out, struct err *err)
{
    struct stat st;
    bool is_character = stat(options->path, &st) == 0 && S_ISCHR(st.st_mode);
    return is_character ? dev_nvme_open(options, out, err) : dev_uring_open(options, out, err);
}

/* ---- queues ----------------------------------------------------------------------------------------------------------- */

static void dev_nvme_reap(void *ctx, void *op, const struct io_uring_cqe *cqe)
{
    (void)ctx; /* several devices share the side ring: the slot's io knows its queue */
    struct nvme_slot *slot = op;
    struct dev_nvme_queue *queue = (struct dev_nvme_queue *)slot->io->queue;
    slot->res = cqe->res;
    list_append(&queue->reaped, &slot->node);
}

static int dev_nvme_queue_open(struct dev *dev, struct uring *uring, uint32_t depth, struct dev_queue **out,
                               struct err *err)
{
    CHECK(uring != NULL);
    struct dev_nvme_queue *queue = calloc(1, sizeof(*queue));
    if (queue == NULL) {
        return err_set(err, -ENOMEM, "%s: out of memory", dev->path);
    }
    dev_queue_init(&queue->base, dev, uring, depth);
    list_init(&queue->free);
    list_init(&queue->reaped);
    queue->slots = aligned_alloc(16, depth * sizeof(*queue->slots));
    if (queue->slots == NULL) {
        free(queue);
        return err_set(err, -ENOMEM, "%s: out of memory", dev->path);
    }
    int rc = uring_side_take(uring, &queue->side, err);
    if (rc < 0) {
        free(queue->slots);
        free(queue);
        return rc;
    }
    memset(queue->slots, 0, depth * sizeof(*queue->slots));
    for (uint32_t i = 0; i < depth; i++) {
        list_init(&queue->slots[i].node);
        list_append(&queue->free, &queue->slots[i].node);
    }
    /* A table that is full costs a little per command, nothing else. */
    queue->file_slot = uring_file_register(queue->side, dev_nvme_of(dev)->fd);
    queue->has_vector_fixed = true; /* until the kernel refuses one */
    uring_handler_set(queue->side, URING_CLASS_DEV, dev_nvme_reap, NULL);
    *out = &queue->base;
    return 0;
}

static void dev_nvme_queue_close(struct dev_queue *base)
{
    struct dev_nvme_queue *queue = (struct dev_nvme_queue *)base;
    CHECK(list_is_empty(&queue->reaped));
    if (queue->file_slot >= 0) {
        uring_file_unregister(queue->side, queue->file_slot);
    }
    uring_side_give(base->uring);
    free(queue->slots);
    free(queue);
}

/* ---- commands --------------------------------------------------------------------------------------------------------- */

static struct nvme_uring_cmd *dev_nvme_prep(struct dev_nvme_queue *queue, struct nvme_slot *slot,
                                            bool is_vector, struct io_uring_sqe **out)
{
    struct io_uring_sqe *sqe = uring_sqe(queue->side);
    memset((uint8_t *)sqe, 0, SQE128_BYTES);
    sqe->opcode = IORING_OP_URING_CMD;
    sqe->fd = queue->file_slot >= 0 ? queue->file_slot : dev_nvme_of(queue->base.dev)->fd;
    sqe->flags = queue->file_slot >= 0 ? IOSQE_FIXED_FILE : 0;
    sqe->cmd_op = is_vector ? NVME_URING_CMD_IO_VEC : NVME_URING_CMD_IO;
    uring_sqe_bind(sqe, URING_CLASS_DEV, slot);
    *out = sqe;
    return (struct nvme_uring_cmd *)((uint8_t *)sqe + offsetof(struct io_uring_sqe, cmd));
}

/* The vector stays readable until the end: the kernel may come back to it from another thread. */
static void dev_nvme_send_vector(struct dev_nvme_queue *queue, struct nvme_slot *slot, uint8_t opcode,
                                 struct iovec *iov, uint32_t count, int32_t buf_index)
{
    const struct dev_io *io = slot->io;
    struct io_uring_sqe *sqe;
    bool is_vector = count > 1;
    bool is_fixed = buf_index >= 0 && (!is_vector || queue->has_vector_fixed) &&
                    uring_side_shares_buffers(queue->base.uring);
    struct nvme_uring_cmd *cmd = dev_nvme_prep(queue, slot, is_vector, &sqe);
    nvme_command_range(cmd, &dev_nvme_of(queue->base.dev)->geometry, opcode, io->offset + io->done,
                       slot->len);
    cmd->addr = is_vector ? (uintptr_t)iov : (uintptr_t)iov->iov_base;
    cmd->data_len = is_vector ? count : (uint32_t)slot->len;
    slot->is_fixed_vector = is_fixed && is_vector;
    if (is_fixed) {
        sqe->uring_cmd_flags = IORING_URING_CMD_FIXED;
        sqe->buf_index = (uint16_t)buf_index;
    }
}

static int dev_nvme_start_transfer(struct dev_nvme_queue *queue, struct nvme_slot *slot)
{
    const struct nvme_geometry *geometry = &dev_nvme_of(queue->base.dev)->geometry;
    struct dev_io *io = slot->io;
    struct nvme_cut cut = {0};
    int rc = io->done == 0 ? nvme_vector_check(&geometry->limits, io->iov, io->iov_count) : 0;
    rc = rc == 0 ? nvme_vector_cut(geometry, io->iov, io->iov_count, &cut) : rc;
    if (rc < 0) {
        return rc;
    }
    slot->len = cut.len;
    slot->fragments = cut.fragments;
    slot->left_over = cut.left_over;
    io->iov[cut.fragments - 1].iov_len -= cut.left_over;
    dev_nvme_send_vector(queue, slot, io->op == DEV_READ ? NVME_CMD_READ : NVME_CMD_WRITE, io->iov,
                         cut.fragments, io->buf_index);
    return 0;
}

static void dev_nvme_start_zero(struct dev_nvme_queue *queue, struct nvme_slot *slot)
{
    struct dev_nvme *dev = dev_nvme_of(queue->base.dev);
    const struct nvme_limits *limits = &dev->geometry.limits;
    struct io_uring_sqe *sqe;
    uint64_t left = slot->io->len - slot->io->done;
    if (!dev->zero_by_write) {
        slot->len = left < limits->write_zeroes_max ? left : limits->write_zeroes_max;
        nvme_command_range(dev_nvme_prep(queue, slot, false, &sqe), &dev->geometry, NVME_CMD_WRITE_ZEROES,
                           slot->io->offset + slot->io->done, slot->len);
        return;
    }
    slot->len = (uint64_t)limits->segments_max * NVME_PAGE;
    slot->len = slot->len < limits->transfer_max ? slot->len : limits->transfer_max;
    slot->len = slot->len < ZERO_BUFFER_SIZE ? slot->len : ZERO_BUFFER_SIZE;
    slot->len = slot->len < left ? slot->len : left;
    slot->zero_iov = (struct iovec){.iov_base = dev->zeros, .iov_len = slot->len};
    dev_nvme_send_vector(queue, slot, NVME_CMD_WRITE, &slot->zero_iov, 1, -1);
}

/* Sends the next command of the slot's io; -errno when there is none to send. */
static int dev_nvme_start(struct dev_nvme_queue *queue, struct nvme_slot *slot)
{
    struct io_uring_sqe *sqe;
    slot->len = 0;
    slot->fragments = 0;
    slot->left_over = 0;
    slot->is_fixed_vector = false;
    switch (slot->io->op) {
    case DEV_READ:
    case DEV_WRITE:
        return dev_nvme_start_transfer(queue, slot);
    case DEV_FLUSH:
        /* Also to a drive that states no volatile cache: it then has nothing to do, and it knows better than we. */
        nvme_command_flush(dev_nvme_prep(queue, slot, false, &sqe), &dev_nvme_of(queue->base.dev)->geometry);
        break;
    case DEV_ZERO:
        dev_nvme_start_zero(queue, slot);
        break;
    }
    return 0;
}

static void dev_nvme_end(struct dev_nvme_queue *queue, struct nvme_slot *slot, int result)
{
    struct dev_io *io = slot->io;
    list_append(&queue->free, &slot->node);
    dev_io_finish(io, result);
}

static void dev_nvme_submit(struct dev_queue *base, struct dev_io *io)
{
    struct dev_nvme_queue *queue = (struct dev_nvme_queue *)base;
    struct list *node = list_take_first(&queue->free);
    CHECK(node != NULL); /* never more than depth are with the device */
    struct nvme_slot *slot = CONTAINER_OF(node, struct nvme_slot, node);
    slot->io = io;
    int rc = dev_nvme_start(queue, slot);
    if (rc < 0) {
        dev_nvme_end(queue, slot, rc);
    }
}

/* May the same command be sent once more? A flush that reached the drive never is: the second may claim what the first has lost. */
static bool dev_nvme_again(struct dev_nvme_queue *queue, struct nvme_slot *slot)
{
    struct dev_nvme *dev = dev_nvme_of(queue->base.dev);
    struct dev_io *io = slot->io;
    if (slot->res == -EAGAIN) {
        return io->retries++ < AGAIN_MAX;
    }
    if (slot->res == -EINVAL && slot->is_fixed_vector) {
        queue->has_vector_fixed = false; /* kernels before 6.15 take no vector in registered memory */
        return true;
    }
    bool is_unknown = slot->res == -EACCES || nvme_result_is_unknown_command(slot->res);
    if (io->op == DEV_ZERO && slot->zero_iov.iov_len == 0 && is_unknown && !dev->zero_by_write) {
        dev->zero_by_write = true;
        return true;
    }
    return io->op != DEV_FLUSH && nvme_result_is_passing(slot->res) && io->retries++ < PASSING_MAX;
}

/* Decides what a result means: the end, or one more command. */
static void dev_nvme_continue(struct dev_nvme_queue *queue, struct nvme_slot *slot)
{
    struct dev_io *io = slot->io;
    if (slot->left_over > 0) {
        io->iov[slot->fragments - 1].iov_len += slot->left_over;
        slot->left_over = 0;
    }
    int rc = nvme_result_error(slot->res);
    if (rc == 0) {
        io->done += slot->len;
        if (io->done == io->len) {
            dev_nvme_end(queue, slot, 0);
            return;
        }
        if (io->op != DEV_ZERO) {
            dev_io_advance(io, slot->len);
        }
    } else if (!dev_nvme_again(queue, slot)) {
        dev_nvme_end(queue, slot, rc);
        return;
    }
    rc = dev_nvme_start(queue, slot);
    if (rc < 0) {
        dev_nvme_end(queue, slot, rc);
    }
}

static void dev_nvme_poll(struct dev_queue *base, uint64_t now_ns)
{
    (void)now_ns; /* the kernel keeps its own time */
    struct dev_nvme_queue *queue = (struct dev_nvme_queue *)base;
    struct list *node;
    while ((node = list_take_first(&queue->reaped)) != NULL) {
        dev_nvme_continue(queue, CONTAINER_OF(node, struct nvme_slot, node));
    }
}

static const struct dev_ops dev_nvme_ops = {
    .type = "nvme",
    .close = dev_nvme_close,
    .queue_open = dev_nvme_queue_open,
    .queue_close = dev_nvme_queue_close,
    .submit = dev_nvme_submit,
    .poll = dev_nvme_poll,
};
