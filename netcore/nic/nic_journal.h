/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_journal: the file in which nic_apply writes what it finds before it changes it, and from which nic_undo takes it back. One text
 * line per change; what lines mean is nic_apply's. It owns the file, and knows whose it is: the first line says which interface it
 * was (`interface INDEX BOOT-ID`), because names move from card to card while settings stay with the card and end with the boot.
 *
 * A crash may cut the last line off, which was then never acted on; people may have edited any other.
 */
#ifndef NIC_NIC_JOURNAL_H
#define NIC_NIC_JOURNAL_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define NIC_JOURNAL_PATH_MAX 4352U /* the longest data_dir and the file's name */

/* Opens for appending, made and with its first line if it was not there; `end` is where the next line goes. A cut-off last line is
 * removed. The descriptor, or -errno. */
int nic_journal_append(const char *directory, const char *interface, off_t *end);
/* Writes a line, newline included, and waits until it is on disk. 0 or -errno. */
int nic_journal_write(int fd, const char *line);

/* What is to be undone, read into memory. */
struct nic_journal {
    char path[NIC_JOURNAL_PATH_MAX];
    const char *directory;
    char interface[IFNAMSIZ]; /* whose it is now; empty: it is gone, and its settings with it */
    const char *gone_why;
    char *text;  /* NULL: there is no journal */
    size_t from; /* bytes before it stay in the file as they are; the first line is among them */
    size_t head; /* bytes of the first line */
    char **lines;
    bool *is_kept; /* of each line: it could not be undone yet, and stays */
    uint32_t count;
    bool is_copied; /* some line was not understood: the file is kept beside, as FILE.bad */
};

/* Reads the lines from byte `from` on. 0 also when there is no journal; -errno with a sentence. */
int nic_journal_read(struct nic_journal *journal, const char *directory, const char *interface, off_t from,
                     struct err *err);
/* Takes out of the file all lines that are not kept, and the file with the last of them; frees. 0 or -errno. One that comes back
 * after a crash is harmless: undo is idempotent. */
int nic_journal_end(struct nic_journal *journal, struct err *err);

/* directory/nic-NAME.SUFFIX; -ENAMETOOLONG. */
int nic_journal_path(char to[NIC_JOURNAL_PATH_MAX], const char *directory, const char *interface,
                     const char *suffix);
int nic_journal_sync(const char *directory);

#endif
