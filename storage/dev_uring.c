/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dev_uring: a regular file or a block device through io_uring, O_DIRECT where it is to be had. It owns the descriptor and its
 * lock. One io is one request to the kernel at a time; what is too large, or came back short, goes on from where it stopped.
 *
 *   submit -> (kernel) -> handler: recorded in `reaped` -> poll: finished, or the rest is submitted again
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/owner.h"
#include "storage/dev.h"

#define ZERO_BUFFER_SIZE (4 * MIB)
#define FRAGMENTS_CAP 256U /* more per request buys nothing measurable and costs memory in every write */
#define TRANSFER_MAX (1U << 30)
#define ALIGNMENT_MAX 4096U /* LBA and memory alignment at most: extents start at 4 KiB */
#define LOCK_ATTEMPTS 150U
#define LOCK_PAUSE_US 20000U /* start-up only: 3 s in all */
/* -EAGAIN is answered by trying again; the bound turns a stuck kernel into an error */
#define RETRIES_MAX 10000U

struct dev_uring {
    struct dev base;
    int fd;
    bool is_block;
    bool zero_by_write; /* the device refused to zero a range itself */
    uint8_t *zeros;     /* ZERO_BUFFER_SIZE, never written */
};

struct dev_uring_queue {
    struct dev_queue base;
    struct list reaped;    /* completions not yet looked at; io->result is the raw result */
    int slot;              /* in the ring's file table, or -1 */
    bool has_vector_fixed; /* WRITEV_FIXED and READV_FIXED, Linux 6.15 */
    struct iovec zero_iov;
};

static struct dev_uring *dev_uring_of(struct dev *dev)
{
    return (struct dev_uring *)dev;
}

/* ---- opening ------------------------------------------------------------------------------------------------------- */

/* The rings of a process that has just ended hold its files for some milliseconds more (the kernel takes rings down later), so a
 * restart must not be refused at once. */
static int dev_uring_open_patiently(const char *path, int flags)
{
    int fd = -1;
    for (uint32_t i = 0; i < LOCK_ATTEMPTS && fd < 0; i++) {
        fd = open(path, flags, 0600);
        if (fd >= 0 || errno != EBUSY) {
            break;
        }
        usleep(LOCK_PAUSE_US); /* lint: allow: start-up, the kernel gives no event for this */
        errno = EBUSY;
    }
    return fd;
}

static int dev_uring_open_file(const struct dev_uring_options *options, bool *direct, bool *created,
                               struct err *err)
{
    struct stat st;
    int flags = O_RDWR | O_CLOEXEC;
    bool exists = stat(options->path, &st) == 0;
    *created = !exists && options->create;
    if (*created) {
        flags |= O_CREAT | O_EXCL;
    }
    if (exists && S_ISBLK(st.st_mode) && options->is_exclusive) {
        flags |= O_EXCL; /* the kernel then refuses while it is mounted or held by another */
    }
    *direct = options->want_direct;
    int fd = dev_uring_open_patiently(options->path, flags | (*direct ? O_DIRECT : 0));
    if (fd < 0 && errno == EINVAL && *direct) {
        *direct = false;
        if (*created) {
            /* The refused file stays behind. It is made anew: only what O_EXCL has made may change hands. */
            (void)unlink(options->path);
        }
        fd = open(options->path, flags, 0600);
    }
    if (fd >= 0 && *created) {
        owner_give(fd, options->path);
    }
    if (fd >= 0) {
        return fd;
    }
    int rc = -errno;
    if (rc == -EBUSY) {
        return err_set(
            err, rc,
            "%s is in use (mounted, or held by another process); stop its user or name another device",
            options->path);
    }
    if (rc == -EACCES || rc == -EPERM) {
        return err_set(
            err, rc,
            "%s: no permission to read and write; give the user of penstock access (group disk, or chown)",
            options->path);
    }
    if (rc == -ENOENT) {
        return err_set(err, rc,
                       "%s does not exist; create it with 'penstock format' or correct store.devices",
                       options->path);
    }
    return err_set(err, rc, "%s: %s", options->path, err_text(rc));
}

static int dev_uring_sync_directory(const char *path)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof(copy), "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    int rc = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return rc;
}

/* Allocates the file's space now, so that a full file system is found at format and not under load. */
static int dev_uring_reserve(int fd, const struct dev_uring_options *options, struct err *err)
{
    int rc = fallocate(fd, 0, 0, (off_t)options->create_size) == 0 ? 0 : -errno;
    if (rc == -EOPNOTSUPP) {
        rc = ftruncate(fd, (off_t)options->create_size) == 0 ? 0 : -errno;
    }
    if (rc == 0) {
        rc = fsync(fd) == 0 ? dev_uring_sync_directory(options->path) : -errno;
    }
    if (rc < 0) {
        char size[BYTES_SIZE_TEXT_MAX];
        return err_set(err, rc, "%s: cannot get %s of space: %s", options->path,
                       bytes_format_size(options->create_size, size), err_text(rc));
    }
    return 0;
}

static uint64_t dev_uring_queue_limit(const struct stat *st, const char *name, uint64_t fallback)
{
    char path[256];
    dev_t number = S_ISBLK(st->st_mode) ? st->st_rdev : st->st_dev;
    /* A partition has no queue of its own: its disk's lies one directory up. */
    static const char *const places[] = {"queue", "../queue"};
    for (size_t i = 0; i < ARRAY_COUNT(places); i++) {
        snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s/%s", major(number), minor(number), places[i],
                 name);
        FILE *file = fopen(path, "re");
        if (file == NULL) {
            continue;
        }
        unsigned long long value = 0;
        int got = fscanf(file, "%llu", &value);
        fclose(file);
        if (got == 1) {
            return value;
        }
    }
    return fallback;
}

static int dev_uring_size(struct dev_uring *dev, const struct stat *st, struct err *err)
{
    struct dev_info *info = &dev->base.info;
    if (!dev->is_block) {
        info->type = "file";
        info->size = (uint64_t)st->st_size;
        info->lba_size = 512;
    } else {
        uint64_t size = 0;
        int lba = 0;
        if (ioctl(dev->fd, BLKGETSIZE64, &size) != 0 || ioctl(dev->fd, BLKSSZGET, &lba) != 0 || lba <= 0) {
            return err_set(err, -EIO, "%s: the device does not tell its size: %s", dev->base.path,
                           err_text(-errno));
        }
        info->type = "block";
        info->size = size;
        info->lba_size = (uint32_t)lba;
    }
    return 0;
}

/* What alignment direct I/O needs here; asked per file, because it differs by device, file system and even file. */
static int dev_uring_alignment(struct dev_uring *dev, struct err *err)
{
    struct dev_info *info = &dev->base.info;
    struct statx stx;
    memset(&stx, 0, sizeof(stx));
    info->dma_alignment = info->lba_size;
    if (!info->direct) {
        info->dma_alignment = 1;
        return 0;
    }
    if (statx(dev->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) != 0 ||
        (stx.stx_mask & STATX_DIOALIGN) == 0) {
        info->lba_size = ALIGNMENT_MAX;
        info->dma_alignment = ALIGNMENT_MAX;
        snprintf(info->note, sizeof(info->note),
                 "the kernel does not tell the alignment of direct I/O here: 4096 is used");
        return 0;
    }
    if (stx.stx_dio_offset_align == 0 || stx.stx_dio_mem_align == 0) {
        return err_set(err, -EOPNOTSUPP,
                       "%s: direct I/O is not supported on this file (encrypted, compressed or "
                       "data-journalled?); put the store on another file system",
                       dev->base.path);
    }
    info->lba_size = stx.stx_dio_offset_align > info->lba_size ? stx.stx_dio_offset_align : info->lba_size;
    info->dma_alignment = stx.stx_dio_mem_align;
    if (info->lba_size > ALIGNMENT_MAX || info->dma_alignment > info->lba_size) {
        return err_set(err, -EOPNOTSUPP,
                       "%s: needs %u-byte aligned I/O (memory: %u); at most 4096 is supported",
                       dev->base.path, info->lba_size, info->dma_alignment);
    }
    return 0;
}

static void dev_uring_note_file_system(struct dev_uring *dev)
{
    struct dev_info *info = &dev->base.info;
    struct statfs fs;
    if (!info->direct) {
        snprintf(info->note, sizeof(info->note),
                 "the file system refuses O_DIRECT: every byte passes the page cache");
    } else if (!dev->is_block && fstatfs(dev->fd, &fs) == 0 && fs.f_type == BTRFS_SUPER_MAGIC) {
        info->direct = false;
        snprintf(info->note, sizeof(info->note),
                 "btrfs with checksums makes direct writes buffered ones (one more copy); use ext4, xfs or a "
                 "block device");
    }
}

static int dev_uring_describe(struct dev_uring *dev, struct err *err)
{
    struct dev_info *info = &dev->base.info;
    struct stat st;
    if (fstat(dev->fd, &st) != 0) {
        return err_set(err, -errno, "%s: %s", dev->base.path, err_text(-errno));
    }
    dev->is_block = S_ISBLK(st.st_mode);
    if (!dev->is_block && !S_ISREG(st.st_mode)) {
        return err_set(err, -EINVAL, "%s is neither a regular file nor a block device", dev->base.path);
    }
    int rc = dev_uring_size(dev, &st, err);
    rc = rc == 0 ? dev_uring_alignment(dev, err) : rc;
    if (rc < 0) {
        return rc;
    }
    info->size = bytes_round_down(info->size, info->lba_size);
    uint64_t segments = dev_uring_queue_limit(&st, "max_segments", 128);
    segments = segments < 16 ? 16 : segments;
    info->fragments_max = (uint32_t)(segments < FRAGMENTS_CAP ? segments : FRAGMENTS_CAP);
    info->bytes_max = TRANSFER_MAX;
    info->whole_pages = dev_uring_queue_limit(&st, "virt_boundary_mask", 0) != 0;
    dev_uring_note_file_system(dev);
    return 0;
}

/* Patient for the same reason. */
static int dev_uring_lock(struct dev_uring *dev, struct err *err)
{
    int rc = -EWOULDBLOCK;
    for (uint32_t i = 0; i < LOCK_ATTEMPTS && rc == -EWOULDBLOCK; i++) {
        rc = flock(dev->fd, LOCK_EX | LOCK_NB) == 0 ? 0 : -errno;
        if (rc == -EWOULDBLOCK) {
            usleep(LOCK_PAUSE_US); /* lint: allow: start-up, the kernel gives no event for this */
        }
    }
    if (rc == 0) {
        return 0;
    }
    return err_set(
        err, rc,
        "%s is locked by another process: a store belongs to one penstock at a time (is one running?)",
        dev->base.path);
}

static void dev_uring_close(struct dev *base)
{
    struct dev_uring *dev = dev_uring_of(base);
    close(dev->fd); /* nothing was written through this descriptor that a flush did not report on */
    munmap(dev->zeros, ZERO_BUFFER_SIZE);
    free(dev);
}

static const struct dev_ops dev_uring_ops;

int dev_uring_open(const struct dev_uring_options *options, struct dev **out, struct err *err)
{
    struct dev_uring *dev = calloc(1, sizeof(*dev));
    bool created = false;
    int rc;
    if (dev == NULL) {
        return err_set(err, -ENOMEM, "%s: out of memory", options->path);
    }
    dev->base.ops = &dev_uring_ops;
    snprintf(dev->base.path, sizeof(dev->base.path), "%s", options->path);
    dev->fd = dev_uring_open_file(options, &dev->base.info.direct, &created, err);
    if (dev->fd < 0) {
        rc = dev->fd;
        goto free_dev;
    }
    struct stat st;
    bool is_short =
        fstat(dev->fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size < options->create_size;
    rc = options->is_exclusive ? dev_uring_lock(dev, err) : 0;
    if (rc == 0 && options->create && is_short) {
        rc = dev_uring_reserve(dev->fd, options, err);
    }
    rc = rc == 0 ? dev_uring_describe(dev, err) : rc;
    if (rc < 0) {
        goto close_fd;
    }
    dev->zeros = mmap(NULL, ZERO_BUFFER_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (dev->zeros == MAP_FAILED) {
        rc = err_set(err, -ENOMEM, "%s: out of memory", options->path);
        goto close_fd;
    }
    dev->base.magic = DEV_MAGIC;
    *out = &dev->base;
    return 0;

close_fd:
    if (created) {
        unlink(options->path); /* made by this call; nobody else can have used it */
    }
    close(dev->fd);
free_dev:
    free(dev);
    return rc;
}

/* ---- queues ---------------------------------------------------------------------------------------------------------- */

static void dev_uring_reap(void *ctx, void *op, const struct io_uring_cqe *cqe)
{
    (void)ctx; /* several devices share the class: the io knows its queue */
    struct dev_io *io = op;
    io->complete(io, cqe->res);
}

static void dev_uring_complete(struct dev_io *io, int32_t res)
{
    struct dev_uring_queue *queue = (struct dev_uring_queue *)io->queue;
    io->result = res;
    list_append(&queue->reaped, &io->node);
}

static bool dev_uring_has_vector_fixed(struct uring *uring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(&uring->ring);
    if (probe == NULL) {
        return false;
    }
    bool has = io_uring_opcode_supported(probe, IORING_OP_WRITEV_FIXED) != 0 &&
               io_uring_opcode_supported(probe, IORING_OP_READV_FIXED) != 0;
    io_uring_free_probe(probe);
    return has;
}

static int dev_uring_queue_open(struct dev *dev, struct uring *uring, uint32_t depth, struct dev_queue **out,
                                struct err *err)
{
    CHECK(uring != NULL);
    struct dev_uring_queue *queue = calloc(1, sizeof(*queue));
    if (queue == NULL) {
        return err_set(err, -ENOMEM, "%s: out of memory", dev->path);
    }
    dev_queue_init(&queue->base, dev, uring, depth);
    list_init(&queue->reaped);
    /* A table that is full or absent costs a little per request, nothing else. */
    queue->slot = uring->files_max > 0 ? uring_file_register(uring, dev_uring_of(dev)->fd) : -1;
    queue->has_vector_fixed = dev_uring_has_vector_fixed(uring);
    uring_handler_set(uring, URING_CLASS_DEV, dev_uring_reap, NULL);
    *out = &queue->base;
    return 0;
}

static void dev_uring_queue_close(struct dev_queue *base)
{
    struct dev_uring_queue *queue = (struct dev_uring_queue *)base;
    CHECK(list_is_empty(&queue->reaped));
    if (queue->slot >= 0) {
        uring_file_unregister(base->uring, queue->slot);
    }
    free(queue);
}

/* ---- requests -------------------------------------------------------------------------------------------------------- */

static void dev_uring_prep_write(struct dev_uring_queue *queue, struct io_uring_sqe *sqe, int fd,
                                 const struct dev_io *io, uint32_t count)
{
    uint64_t at = io->offset + io->done;
    if (io->buf_index >= 0 && count == 1) {
        io_uring_prep_write_fixed(sqe, fd, io->iov[0].iov_base, (unsigned)io->iov[0].iov_len, at,
                                  io->buf_index);
    } else if (io->buf_index >= 0 && queue->has_vector_fixed) {
        io_uring_prep_writev_fixed(sqe, fd, io->iov, count, at, 0, (unsigned)io->buf_index);
    } else {
        io_uring_prep_writev(sqe, fd, io->iov, count, at);
    }
}

static void dev_uring_prep_read(struct dev_uring_queue *queue, struct io_uring_sqe *sqe, int fd,
                                const struct dev_io *io, uint32_t count)
{
    uint64_t at = io->offset + io->done;
    if (io->buf_index >= 0 && count == 1) {
        io_uring_prep_read_fixed(sqe, fd, io->iov[0].iov_base, (unsigned)io->iov[0].iov_len, at,
                                 io->buf_index);
    } else if (io->buf_index >= 0 && queue->has_vector_fixed) {
        io_uring_prep_readv_fixed(sqe, fd, io->iov, count, at, 0, (unsigned)io->buf_index);
    } else {
        io_uring_prep_readv(sqe, fd, io->iov, count, at);
    }
}

static void dev_uring_prep_zero(struct dev_uring *dev, struct dev_uring_queue *queue,
                                struct io_uring_sqe *sqe, int fd, const struct dev_io *io)
{
    uint64_t left = io->len - io->done;
    if (dev->is_block && !dev->zero_by_write) {
        /* The whole rest in one request; a device without the command writes zeros in the kernel. */
        io_uring_prep_fallocate(sqe, fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, io->offset + io->done,
                                left);
        return;
    }
    queue->zero_iov.iov_base = dev->zeros;
    queue->zero_iov.iov_len = left < ZERO_BUFFER_SIZE ? left : ZERO_BUFFER_SIZE;
    io_uring_prep_write(sqe, fd, dev->zeros, (unsigned)queue->zero_iov.iov_len, io->offset + io->done);
}

/* Fragments of the next request: within the kernel's bounds, and a whole number of LBAs. */
static uint32_t dev_uring_fragments(const struct dev_io *io)
{
    return io->iov_count < IOV_MAX ? io->iov_count : IOV_MAX;
}

static void dev_uring_submit(struct dev_queue *base, struct dev_io *io)
{
    struct dev_uring_queue *queue = (struct dev_uring_queue *)base;
    struct dev_uring *dev = dev_uring_of(base->dev);
    struct io_uring_sqe *sqe = uring_sqe(base->uring);
    int fd = queue->slot >= 0 ? queue->slot : dev->fd;
    io->complete = dev_uring_complete;
    switch (io->op) {
    case DEV_READ:
        dev_uring_prep_read(queue, sqe, fd, io, dev_uring_fragments(io));
        break;
    case DEV_WRITE:
        dev_uring_prep_write(queue, sqe, fd, io, dev_uring_fragments(io));
        break;
    case DEV_FLUSH:
        io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
        break;
    case DEV_ZERO:
        dev_uring_prep_zero(dev, queue, sqe, fd, io);
        break;
    }
    if (queue->slot >= 0) {
        sqe->flags |= IOSQE_FIXED_FILE;
    }
    uring_sqe_bind(sqe, URING_CLASS_DEV, io);
}

/* Decides what a raw result means: the end, or one more request. */
static void dev_uring_continue(struct dev_uring *dev, struct dev_queue *queue, struct dev_io *io)
{
    int res = io->result;
    if ((res == -EAGAIN || res == -EINTR) && io->retries++ < RETRIES_MAX) {
        dev_uring_submit(queue, io);
        return;
    }
    if (io->op == DEV_FLUSH) {
        dev_io_finish(io, res < 0 ? res : 0);
        return;
    }
    if (io->op == DEV_ZERO && dev->is_block && !dev->zero_by_write) {
        if (res == -EOPNOTSUPP || res == -EINVAL) {
            dev->zero_by_write = true;
            dev_uring_submit(queue, io);
            return;
        }
        dev_io_finish(io, res < 0 ? res : 0);
        return;
    }
    /* 0 bytes is the end of a file that shrank under us; a part of an LBA is no place to go on from. */
    if (res <= 0 || (uint64_t)res > io->len - io->done || (uint32_t)res % dev->base.info.lba_size != 0) {
        dev_io_finish(io, res < 0 ? res : -EIO);
        return;
    }
    io->done += (uint32_t)res;
    if (io->done == io->len) {
        dev_io_finish(io, 0);
        return;
    }
    if (io->op != DEV_ZERO) {
        dev_io_advance(io, (uint32_t)res);
    }
    dev_uring_submit(queue, io);
}

static void dev_uring_poll(struct dev_queue *base, uint64_t now_ns)
{
    (void)now_ns; /* the kernel keeps its own time */
    struct dev_uring_queue *queue = (struct dev_uring_queue *)base;
    struct list *node;
    while ((node = list_take_first(&queue->reaped)) != NULL) {
        dev_uring_continue(dev_uring_of(base->dev), base, CONTAINER_OF(node, struct dev_io, node));
    }
}

static const struct dev_ops dev_uring_ops = {
    .type = "uring",
    .close = dev_uring_close,
    .queue_open = dev_uring_queue_open,
    .queue_close = dev_uring_queue_close,
    .submit = dev_uring_submit,
    .poll = dev_uring_poll,
};
