/* SPDX-License-Identifier: Apache-2.0 */
/* nic_journal: see the header. Files are replaced whole (written beside, synced, renamed), so that a crash leaves the old or the new. */
#include "nic/nic_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/owner.h"

#define JOURNAL_SIZE_MAX (16L * 1024 * 1024)
#define JOURNAL_BOOT_MAX 40U
#define JOURNAL_HEAD "interface "

/* ---- files ----------------------------------------------------------------------------------------------------- */

int nic_journal_path(char to[NIC_JOURNAL_PATH_MAX], const char *directory, const char *interface,
                     const char *suffix)
{
    int len = snprintf(to, NIC_JOURNAL_PATH_MAX, "%s/nic-%s.%s", directory, interface, suffix);
    return len < 0 || (size_t)len >= NIC_JOURNAL_PATH_MAX - 8 ? -ENAMETOOLONG
                                                              : 0; /* room for .new and .bad */
}

int nic_journal_sync(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    int rc = fsync(fd) < 0 ? -errno : 0;
    close(fd);
    return rc;
}

/* The whole file with a NUL behind it, or NULL with *rc: 0 when there is none. */
static char *file_read(const char *path, int *rc)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        *rc = errno == ENOENT ? 0 : -errno;
        return NULL;
    }
    struct stat status;
    char *text = NULL;
    if (fstat(fd, &status) == 0 && status.st_size < JOURNAL_SIZE_MAX) {
        text = calloc(1, (size_t)status.st_size + 1);
    }
    *rc = text == NULL ? -EIO : 0;
    if (text != NULL && read(fd, text, (size_t)status.st_size) != status.st_size) {
        *rc = -EIO;
        free(text);
        text = NULL;
    }
    close(fd);
    return text;
}

int nic_journal_write(int fd, const char *line)
{
    size_t len = strlen(line);
    if (write(fd, line, len) != (ssize_t)len) {
        return -EIO;
    }
    return fdatasync(fd) < 0 ? -errno : 0;
}

static void boot_read(char boot[JOURNAL_BOOT_MAX])
{
    boot[0] = '\0';
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL || fscanf(file, "%39s", boot) != 1) {
        snprintf(boot, JOURNAL_BOOT_MAX, "unknown"); /* without /proc; then every boot looks like this one */
    }
    if (file != NULL) {
        fclose(file);
    }
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

/* The first line of an empty file; from a file that has lines, what a crash left of a last one goes. */
static int append_begin(int fd, const char *path, const char *interface)
{
    int rc = 0;
    char *text = file_read(path, &rc);
    if (text == NULL) {
        return rc < 0 ? rc : -ENOENT;
    }
    const char *newline = strrchr(text, '\n');
    off_t whole = newline == NULL ? 0 : newline - text + 1;
    rc = text[whole] != '\0' && ftruncate(fd, whole) < 0 ? -errno : 0;
    free(text);
    if (rc < 0 || whole > 0) {
        return rc;
    }
    char boot[JOURNAL_BOOT_MAX];
    char head[128];
    boot_read(boot);
    snprintf(head, sizeof(head), JOURNAL_HEAD "%u %s\n", if_nametoindex(interface), boot);
    return nic_journal_write(fd, head);
}

int nic_journal_append(const char *directory, const char *interface, off_t *end)
{
    char path[NIC_JOURNAL_PATH_MAX];
    int rc = nic_journal_path(path, directory, interface, "journal");
    if (rc < 0) {
        return rc;
    }
    int fd = owner_open(path, O_WRONLY | O_APPEND);
    if (fd < 0) {
        return fd;
    }
    rc = nic_journal_sync(directory);
    rc = rc == 0 ? append_begin(fd, path, interface) : rc;
    *end = lseek(fd, 0, SEEK_END);
    rc = rc == 0 && *end < 0 ? -errno : rc;
    if (rc < 0) {
        close(fd);
        return rc;
    }
    return fd;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* Whose settings these are: those of the card that had the index, whatever it is called now, in the same boot. A journal without a first
 * line of this kind is of an earlier version, and believed by its name. */
static void journal_identify(struct nic_journal *journal, const char *interface)
{
    unsigned index = 0;
    char boot[JOURNAL_BOOT_MAX];
    char now[JOURNAL_BOOT_MAX];
    char name[IFNAMSIZ];
    snprintf(journal->interface, IFNAMSIZ, "%s", interface);
    if (sscanf(journal->text, JOURNAL_HEAD "%u %39s", &index, boot) != 2) {
        if (if_nametoindex(interface) == 0) {
            journal->interface[0] = '\0';
            journal->gone_why = "the interface is gone";
        }
        return;
    }
    boot_read(now);
    if (strcmp(boot, now) != 0) {
        journal->interface[0] = '\0';
        journal->gone_why = "the machine was started anew since, and settings of a card end with that";
    } else if (if_indextoname(index, name) == NULL) {
        journal->interface[0] = '\0';
        journal->gone_why = "the interface is gone; one that has its name now is another";
    } else if (strcmp(name, interface) != 0) {
        LOG_INF("nic_renamed", "interface=%s now=%s", interface, name);
        snprintf(journal->interface, IFNAMSIZ, "%s", name);
    }
}

/* Cuts the text at newlines, oldest line first. What follows the last newline was never acted on. */
static int journal_split(struct nic_journal *journal)
{
    uint32_t most = 0;
    for (const char *at = journal->text + journal->from; (at = strchr(at, '\n')) != NULL; at++) {
        most++;
    }
    journal->lines = calloc(most + 1, sizeof(*journal->lines));
    journal->is_kept = calloc(most + 1, sizeof(*journal->is_kept));
    if (journal->lines == NULL || journal->is_kept == NULL) {
        return -ENOMEM;
    }
    char *at = journal->text + journal->from;
    for (char *end = strchr(at, '\n'); end != NULL; end = strchr(at, '\n')) {
        *end = '\0';
        journal->lines[journal->count++] = at;
        at = end + 1;
    }
    return 0;
}

static void journal_free(struct nic_journal *journal)
{
    free(journal->lines);
    free(journal->is_kept);
    free(journal->text);
    journal->text = NULL;
}

int nic_journal_read(struct nic_journal *journal, const char *directory, const char *interface, off_t from,
                     struct err *err)
{
    memset(journal, 0, sizeof(*journal));
    journal->directory = directory;
    int rc = nic_journal_path(journal->path, directory, interface, "journal");
    if (rc < 0) {
        return err_set(err, rc, "the journal of %s: the path is too long", interface);
    }
    journal->text = file_read(journal->path, &rc);
    if (journal->text == NULL) {
        return rc < 0 ? err_set(err, rc, "cannot read %s: %s", journal->path, err_text(rc)) : 0;
    }
    const char *newline = strchr(journal->text, '\n');
    if (newline != NULL && strncmp(journal->text, JOURNAL_HEAD, strlen(JOURNAL_HEAD)) == 0) {
        journal->head = (size_t)(newline - journal->text) + 1;
    }
    size_t len = strlen(journal->text);
    size_t begin = (size_t)from > journal->head ? (size_t)from : journal->head;
    journal->from = begin < len ? begin : len; /* less when somebody has shortened it meanwhile */
    journal_identify(journal, interface);
    rc = journal_split(journal);
    if (rc < 0) {
        journal_free(journal);
        return err_set(err, rc, "out of memory");
    }
    return 0;
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

/* What stays, written beside and put in the place of the old file. */
static int journal_replace(const struct nic_journal *journal)
{
    char path[NIC_JOURNAL_PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s.new", journal->path); /* nic_journal_path left room. */
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return -errno;
    }
    bool is_written = fwrite(journal->text, 1, journal->from, file) == journal->from;
    for (uint32_t i = 0; i < journal->count; i++) {
        is_written &= !journal->is_kept[i] || fprintf(file, "%s\n", journal->lines[i]) > 0;
    }
    is_written &= fflush(file) == 0 && fsync(fileno(file)) == 0;
    is_written &= fclose(file) == 0;
    if (!is_written) {
        return -EIO;
    }
    return rename(path, journal->path) < 0 ? -errno : 0;
}

static int journal_rewrite(const struct nic_journal *journal)
{
    bool is_any_kept = journal->from > journal->head;
    for (uint32_t i = 0; i < journal->count; i++) {
        is_any_kept |= journal->is_kept[i];
    }
    if (journal->is_copied) {
        char bad[NIC_JOURNAL_PATH_MAX + 8];
        snprintf(bad, sizeof(bad), "%s.bad", journal->path); /* nic_journal_path left room. */
        (void)unlink(bad);                                   /* an older one, or none */
        if (link(journal->path, bad) < 0) {
            return -errno;
        }
    }
    if (is_any_kept) {
        return journal_replace(journal);
    }
    return unlink(journal->path) < 0 && errno != ENOENT ? -errno : 0;
}

int nic_journal_end(struct nic_journal *journal, struct err *err)
{
    if (journal->text == NULL) {
        return 0;
    }
    int rc = journal_rewrite(journal);
    rc = rc == 0 ? nic_journal_sync(journal->directory) : rc;
    journal_free(journal);
    return rc < 0 ? err_set(err, rc, "cannot write %s: %s", journal->path, err_text(rc)) : 0;
}
