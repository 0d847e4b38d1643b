/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format: makes a store: files filled with zeros, an empty index, superblocks. Superblocks come last and tie the rest together by
 * the store id, so an interrupted format leaves devices that are not ours.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/owner.h"
#include "storage/extent.h"
#include "storage/store_int.h"

#define DEVICE_SIZE_MIN (SUPERBLOCK_DATA_OFFSET + 16 * MIB)

struct format {
    const struct store_build *build;
    bool force;
    struct uring ring;
    bool ring_is_open;
    struct dev *devices[STORE_DEVICES_MAX];
    struct dev_queue *queues[STORE_DEVICES_MAX];
    uint64_t sizes[STORE_DEVICES_MAX];
    uint8_t store_id[SUPERBLOCK_STORE_ID_BYTES];
};

/* mkdir -p. The index syncs its own directory; what holds a device file is synced when the file is made. */
static int format_directory(const char *path, const char *what, struct err *err)
{
    char part[PATH_MAX];
    size_t len = strlen(path);
    CHECK(len < sizeof(part));
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0') {
            continue;
        }
        memcpy(part, path, i);
        part[i] = '\0';
        bool is_made = mkdir(part, 0700) == 0;
        if (!is_made && errno != EEXIST) {
            return err_set(err, -errno, "%s: directory %s cannot be made: %s", what, path, err_text(-errno));
        }
        int fd = is_made ? open(part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        if (fd >= 0) {
            owner_give(fd, part);
            close(fd);
        }
    }
    return 0;
}

/* The directory of a device file that is to be made. */
static int format_device_directory(const char *path, struct err *err)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof(copy), "%s", path);
    char *slash = strrchr(copy, '/');
    if (slash == NULL || slash == copy) {
        return 0;
    }
    *slash = '\0';
    return format_directory(copy, "store.devices", err);
}

static int format_device_open(struct format *format, uint32_t i, struct err *err)
{
    const struct store_device_options *options = &format->build->options->devices[i];
    struct uring *uring = NULL;
    if (format->build->devices[i] != NULL) {
        format->devices[i] = format->build->devices[i];
    } else {
        struct dev_uring_options open = {.path = options->path,
                                         .is_exclusive = true,
                                         .create = options->size > 0,
                                         .want_direct = true,
                                         .create_size = bytes_round_down(options->size, EXTENT_BLOCK)};
        int rc = open.create ? format_device_directory(options->path, err) : 0;
        rc = rc == 0 ? dev_open(&open, &format->devices[i], err) : rc;
        if (rc < 0) {
            return rc;
        }
    }
    uring = format->ring_is_open ? &format->ring : NULL;
    uint64_t size = format->devices[i]->info.size;
    uint64_t wanted = options->size == 0 ? size : options->size;
    char text[2][BYTES_SIZE_TEXT_MAX];
    if (wanted > size || wanted < DEVICE_SIZE_MIN) {
        return err_set(
            err, -EINVAL, "%s: a size of %s is not possible: the device has %s, at least 32MiB are needed",
            format->devices[i]->path, bytes_format_size(wanted, text[0]), bytes_format_size(size, text[1]));
    }
    format->sizes[i] = bytes_round_down(wanted, EXTENT_BLOCK);
    return dev_queue_open(format->devices[i], uring, 8, &format->queues[i], err);
}

/* What is there now must not be destroyed unasked. */
static int format_device_check(struct dev_queue *queue, struct err *err)
{
    struct superblock sb;
    const char *path = queue->dev->path;
    int rc = superblock_read(queue, &sb, NULL);
    if (rc != ERR_NOT_FORMATTED) {
        return err_set(err, -EEXIST,
                       "%s belongs to a penstock store already; formatting destroys it: use --force to do so",
                       path);
    }
    uint8_t *head = aligned_alloc(EXTENT_BLOCK, SUPERBLOCK_FOREIGN_BYTES);
    if (head == NULL) {
        return err_set(err, -ENOMEM, "%s: out of memory", path);
    }
    struct iovec iov = {.iov_base = head, .iov_len = SUPERBLOCK_FOREIGN_BYTES};
    struct dev_io io = {
        .op = DEV_READ, .buf_index = -1, .len = SUPERBLOCK_FOREIGN_BYTES, .iov = &iov, .iov_count = 1};
    rc = dev_run(queue, &io);
    const char *foreign = rc == 0 ? superblock_foreign(head, SUPERBLOCK_FOREIGN_BYTES) : NULL;
    free(head);
    if (rc < 0) {
        return err_set(err, rc, "%s: reading: %s", path, err_text(rc));
    }
    if (foreign != NULL) {
        return err_set(err, -EEXIST, "%s carries %s; formatting destroys it: use --force to do so", path,
                       foreign);
    }
    return 0;
}

/* Unwritten parts of a file are slow at their first write and drag the file system's journal along, so a file is written through
 * once. A block device has no such parts: only what a former owner left in the head is cleared. */
static int format_device_zero(struct dev_queue *queue, uint64_t size, struct err *err)
{
    bool is_file = strcmp(queue->dev->info.type, "file") == 0;
    struct dev_io io = {.op = DEV_ZERO, .buf_index = -1, .len = is_file ? size : SUPERBLOCK_DATA_OFFSET};
    int rc = dev_run(queue, &io);
    if (rc == 0) {
        struct dev_io flush = {.op = DEV_FLUSH, .buf_index = -1};
        rc = dev_run(queue, &flush);
    }
    return rc == 0 ? 0 : err_set(err, rc, "%s: filling with zeros: %s", queue->dev->path, err_text(rc));
}

static int format_device_write(struct format *format, uint32_t i, uint64_t now_ns, struct err *err)
{
    struct superblock sb = {
        .sequence = 1,
        .created_ns = now_ns,
        .device_size = format->sizes[i],
        .log_offset = SUPERBLOCK_LOG_OFFSET,
        .log_size = SUPERBLOCK_LOG_SIZE,
        .data_offset = SUPERBLOCK_DATA_OFFSET,
        .device_index = i,
        .device_count = format->build->options->device_count,
        .block_size = EXTENT_BLOCK,
        .checksum_block = EXTENT_CHECKSUM_BLOCK,
        .version = SUPERBLOCK_VERSION,
    };
    memcpy(sb.store_id, format->store_id, sizeof(sb.store_id));
    return superblock_write(format->queues[i], &sb, err);
}

static int format_index(struct format *format, struct err *err)
{
    const struct store_options *options = format->build->options;
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/index.db", options->data_dir);
    if (format->build->vfs == NULL) {
        int rc = format_directory(options->data_dir, "node.data_dir", err);
        if (rc < 0) {
            return rc;
        }
        if (!format->force && access(path, F_OK) == 0) {
            return err_set(err, -EEXIST, "%s exists already; formatting destroys it: use --force to do so",
                           path);
        }
    }
    struct index_options index = {
        .dir = options->data_dir, .vfs = format->build->vfs, .skip_sync = format->build->skip_sync};
    memcpy(index.store_id, format->store_id, sizeof(index.store_id));
    return index_create(&index, err);
}

static int format_run(struct format *format, struct err *err)
{
    uint32_t count = format->build->options->device_count;
    uint64_t now_ns = clock_realtime_ns();
    int rc = 0;
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        rc = format_device_open(format, i, err);
        if (rc == 0 && !format->force) {
            rc = format_device_check(format->queues[i], err);
        }
    }
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        rc = format_device_zero(format->queues[i], format->sizes[i], err);
    }
    rc = rc == 0 ? format_index(format, err) : rc;
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        rc = format_device_write(format, i, now_ns, err);
    }
    return rc;
}

int store_build_format(const struct store_build *build, bool force, struct err *err)
{
    struct format format = {.build = build, .force = force};
    uint32_t count = build->options->device_count;
    CHECK(count >= 1);
    CHECK(count <= STORE_DEVICES_MAX);
    if (build->id_seed != 0) {
        memcpy(format.store_id, &build->id_seed, sizeof(build->id_seed));
    } else if (getrandom(format.store_id, sizeof(format.store_id), 0) != (ssize_t)sizeof(format.store_id)) {
        return err_set(err, -EIO, "the system's random generator does not answer");
    }
    int rc = 0;
    if (build->devices[0] == NULL) {
        struct uring_options ring = {.sq_entries = 64, .cq_entries = 128};
        rc = uring_open(&format.ring, &ring, err);
        format.ring_is_open = rc == 0;
    }
    rc = rc == 0 ? format_run(&format, err) : rc;
    for (uint32_t i = 0; i < count; i++) {
        if (format.queues[i] != NULL) {
            dev_queue_close(format.queues[i]);
        }
        if (format.devices[i] != NULL && build->devices[i] == NULL) {
            dev_close(format.devices[i]);
        }
    }
    if (format.ring_is_open) {
        uring_close(&format.ring);
    }
    return rc;
}

int store_format(const struct store_options *options, bool force, struct err *err)
{
    struct store_build build = {.options = options};
    return store_build_format(&build, force, err);
}

int store_index_look(const char *data_dir)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/" INDEX_FILE, data_dir);
    return access(path, F_OK) == 0 ? 0 : -errno;
}
