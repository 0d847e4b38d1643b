/* SPDX-License-Identifier: Apache-2.0 */
/* superblock: see superblock.h; FORMAT.md describes the bytes. */
#include "storage/superblock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "storage/extent.h"

static const char superblock_magic[8] = {'P', 'E', 'N', 'S', 'T', 'O', 'C', 'K'};

/* On disk, little-endian, byte arrays only: neither alignment nor the host's byte order can change it. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct superblock_disk {
    uint8_t magic[8];
    uint8_t version[4];
    uint8_t checksum[4]; /* CRC32C of all 4096 bytes with this field zero */
    uint8_t store_id[SUPERBLOCK_STORE_ID_BYTES];
    uint8_t sequence[8];
    uint8_t created_ns[8];
    uint8_t device_size[8];
    uint8_t log_offset[8];
    uint8_t log_size[8];
    uint8_t data_offset[8];
    uint8_t device_index[4];
    uint8_t device_count[4];
    uint8_t block_size[4];
    uint8_t checksum_block[4];
    uint8_t reserved[4000]; /* zeros; covered by the checksum */
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct superblock_disk) == SUPERBLOCK_SIZE, "a superblock is one block");
_Static_assert(offsetof(struct superblock_disk, store_id) == 16, "layout of FORMAT.md");
_Static_assert(offsetof(struct superblock_disk, device_index) == 80, "layout of FORMAT.md");
_Static_assert(SUPERBLOCK_COPY_OFFSET + SUPERBLOCK_SIZE <= SUPERBLOCK_LOG_OFFSET,
               "the copy lies before the log region");
_Static_assert(SUPERBLOCK_LOG_OFFSET + SUPERBLOCK_LOG_SIZE <= SUPERBLOCK_DATA_OFFSET,
               "the log lies before the extents");

static uint32_t superblock_checksum(const struct superblock_disk *disk)
{
    static const uint8_t none[4];
    const uint8_t *bytes = (const uint8_t *)disk;
    uint32_t field = offsetof(struct superblock_disk, checksum);
    uint32_t crc = crc32c_update(0, bytes, field);
    crc = crc32c_update(crc, none, sizeof(none));
    return crc32c_update(crc, bytes + field + sizeof(none), sizeof(*disk) - field - sizeof(none));
}

void superblock_encode(const struct superblock *in, uint8_t out[SUPERBLOCK_SIZE])
{
    struct superblock_disk disk;
    memset(&disk, 0, sizeof(disk));
    memcpy(disk.magic, superblock_magic, sizeof(disk.magic));
    bytes_put_le32(disk.version, in->version);
    memcpy(disk.store_id, in->store_id, sizeof(disk.store_id));
    bytes_put_le64(disk.sequence, in->sequence);
    bytes_put_le64(disk.created_ns, in->created_ns);
    bytes_put_le64(disk.device_size, in->device_size);
    bytes_put_le64(disk.log_offset, in->log_offset);
    bytes_put_le64(disk.log_size, in->log_size);
    bytes_put_le64(disk.data_offset, in->data_offset);
    bytes_put_le32(disk.device_index, in->device_index);
    bytes_put_le32(disk.device_count, in->device_count);
    bytes_put_le32(disk.block_size, in->block_size);
    bytes_put_le32(disk.checksum_block, in->checksum_block);
    bytes_put_le32(disk.checksum, superblock_checksum(&disk));
    memcpy(out, &disk, sizeof(disk));
}

static bool superblock_is_possible(const struct superblock *sb)
{
    return sb->block_size == EXTENT_BLOCK && sb->checksum_block == EXTENT_CHECKSUM_BLOCK &&
           sb->device_size % EXTENT_BLOCK == 0 && sb->data_offset % EXTENT_BLOCK == 0 &&
           sb->data_offset >= SUPERBLOCK_COPY_OFFSET + SUPERBLOCK_SIZE && sb->data_offset < sb->device_size &&
           sb->device_count >= 1 && sb->device_count <= STORE_DEVICES_MAX &&
           sb->device_index < sb->device_count;
}

int superblock_decode(const uint8_t in[SUPERBLOCK_SIZE], struct superblock *out)
{
    struct superblock_disk disk;
    struct superblock sb;
    memcpy(&disk, in, sizeof(disk));
    if (memcmp(disk.magic, superblock_magic, sizeof(disk.magic)) != 0) {
        return ERR_NOT_FORMATTED;
    }
    if (bytes_get_le32(disk.checksum) != superblock_checksum(&disk)) {
        return ERR_CORRUPT;
    }
    memset(&sb, 0, sizeof(sb));
    sb.version = bytes_get_le32(disk.version);
    if (sb.version > SUPERBLOCK_VERSION) {
        return ERR_VERSION;
    }
    memcpy(sb.store_id, disk.store_id, sizeof(sb.store_id));
    sb.sequence = bytes_get_le64(disk.sequence);
    sb.created_ns = bytes_get_le64(disk.created_ns);
    sb.device_size = bytes_get_le64(disk.device_size);
    sb.log_offset = bytes_get_le64(disk.log_offset);
    sb.log_size = bytes_get_le64(disk.log_size);
    sb.data_offset = bytes_get_le64(disk.data_offset);
    sb.device_index = bytes_get_le32(disk.device_index);
    sb.device_count = bytes_get_le32(disk.device_count);
    sb.block_size = bytes_get_le32(disk.block_size);
    sb.checksum_block = bytes_get_le32(disk.checksum_block);
    if (!superblock_is_possible(&sb)) {
        return ERR_CORRUPT;
    }
    *out = sb;
    return 0;
}

int superblock_choose(const int rc[2], const struct superblock sb[2])
{
    if (rc[0] == 0 && rc[1] == 0) {
        return sb[1].sequence > sb[0].sequence ? 1 : 0;
    }
    if (rc[0] == 0 || rc[1] == 0) {
        return rc[0] == 0 ? 0 : 1;
    }
    /* A newer format must never be mistaken for a blank device, nor a damaged superblock: formatting would destroy data. */
    if (rc[0] == ERR_VERSION || rc[1] == ERR_VERSION) {
        return ERR_VERSION;
    }
    if (rc[0] == ERR_NOT_FORMATTED && rc[1] == ERR_NOT_FORMATTED) {
        return ERR_NOT_FORMATTED;
    }
    return rc[0] == ERR_NOT_FORMATTED ? rc[1] : rc[0];
}

/* ---- I/O ------------------------------------------------------------------------------------------------------------- */

static int superblock_run(struct dev_queue *queue, enum dev_op op, uint64_t offset, void *data)
{
    struct iovec iov = {.iov_base = data, .iov_len = data == NULL ? 0 : SUPERBLOCK_SIZE};
    struct dev_io io = {.op = op,
                        .buf_index = -1,
                        .offset = offset,
                        .len = iov.iov_len,
                        .iov = &iov,
                        .iov_count = data == NULL ? 0 : 1};
    return dev_run(queue, &io);
}

int superblock_read(struct dev_queue *queue, struct superblock *out, struct err *err)
{
    static const uint64_t places[2] = {0, SUPERBLOCK_COPY_OFFSET};
    struct superblock sb[2];
    int rc[2];
    const char *path = queue->dev->path;
    if (queue->dev->info.size <= SUPERBLOCK_DATA_OFFSET) {
        return err_set(err, ERR_NOT_FORMATTED, "%s is smaller than 16 MiB: it is no penstock device", path);
    }
    uint8_t *block = aligned_alloc(SUPERBLOCK_SIZE, SUPERBLOCK_SIZE);
    if (block == NULL) {
        return err_set(err, -ENOMEM, "%s: out of memory", path);
    }
    memset(sb, 0, sizeof(sb));
    for (uint32_t i = 0; i < 2; i++) {
        rc[i] = superblock_run(queue, DEV_READ, places[i], block);
        rc[i] = rc[i] == 0 ? superblock_decode(block, &sb[i]) : rc[i];
    }
    free(block);
    int chosen = superblock_choose(rc, sb);
    if (chosen < 0) {
        return err_set(err, chosen, "%s: %s%s", path, err_text(chosen),
                       chosen == ERR_NOT_FORMATTED ? " (run 'penstock format')" : "");
    }
    *out = sb[chosen];
    return 0;
}

int superblock_write(struct dev_queue *queue, const struct superblock *sb, struct err *err)
{
    uint8_t *block = aligned_alloc(SUPERBLOCK_SIZE, SUPERBLOCK_SIZE);
    if (block == NULL) {
        return err_set(err, -ENOMEM, "%s: out of memory", queue->dev->path);
    }
    superblock_encode(sb, block);
    /* One copy at a time, each made durable before the other is touched: a power cut leaves one whole. */
    int rc = superblock_run(queue, DEV_WRITE, SUPERBLOCK_COPY_OFFSET, block);
    rc = rc == 0 ? superblock_run(queue, DEV_FLUSH, 0, NULL) : rc;
    rc = rc == 0 ? superblock_run(queue, DEV_WRITE, 0, block) : rc;
    rc = rc == 0 ? superblock_run(queue, DEV_FLUSH, 0, NULL) : rc;
    free(block);
    return rc == 0 ? 0 : err_set(err, rc, "%s: writing the superblock: %s", queue->dev->path, err_text(rc));
}

/* ---- what else may live on a device ------------------------------------------------------------------------------------ */

struct superblock_signature {
    uint64_t offset;
    const char *bytes;
    uint32_t len;
    const char *name;
};

static const struct superblock_signature superblock_signatures[] = {
    {1080, "\x53\xef", 2, "an ext2/3/4 file system"}, {0, "XFSB", 4, "an xfs file system"},
    {65600, "_BHRfS_M", 8, "a btrfs file system"},    {1024, "\x10\x20\xf5\xf2", 4, "an f2fs file system"},
    {3, "NTFS    ", 8, "an NTFS file system"},        {3, "EXFAT   ", 8, "an exFAT file system"},
    {82, "FAT32   ", 8, "a FAT32 file system"},       {54, "FAT16   ", 8, "a FAT16 file system"},
    {32769, "CD001", 5, "an ISO 9660 file system"},   {65536, "ReIsEr", 6, "a reiserfs file system"},
    {4086, "SWAPSPACE2", 10, "swap space"},           {512, "LABELONE", 8, "an LVM physical volume"},
    {0, "LUKS\xba\xbe", 6, "a LUKS volume"},          {4096, "\xfc\x4e\x2b\xa9", 4, "a Linux RAID member"},
    {512, "EFI PART", 8, "a GPT partition table"},    {510, "\x55\xaa", 2, "a partition table"},
};

const char *superblock_foreign(const uint8_t *head, uint64_t len)
{
    for (size_t i = 0; i < ARRAY_COUNT(superblock_signatures); i++) {
        const struct superblock_signature *sig = &superblock_signatures[i];
        if (sig->len > 0 && sig->offset + sig->len <= len &&
            memcmp(head + sig->offset, sig->bytes, sig->len) == 0) {
            return sig->name;
        }
    }
    return NULL;
}
