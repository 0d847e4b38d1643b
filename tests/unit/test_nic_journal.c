/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of netcore/nic's journal. Goal: what a crash, an editor or a card that moved left in the file never leads to wrong settings and
 * never hides a line. Method: files in a folder of their own; `lo` is a card that exists, under whatever name the file is for. What lines
 * do to a card is in tests/vm (case 69).
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nic/nic.h"
#include "nic/nic_journal.h"

static char folder[] = "/tmp/nic-journal-XXXXXX";
static char boot[40];

static void set_up(void)
{
    cr_assert(mkdtemp(folder) != NULL);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    cr_assert(file != NULL && fscanf(file, "%39s", boot) == 1);
    fclose(file);
}

static void tear_down(void)
{
    DIR *dir = opendir(folder);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        (void)unlinkat(dirfd(dir), entry->d_name, 0); /* fails for . and .. */
    }
    closedir(dir);
    cr_expect(rmdir(folder) == 0);
}

TestSuite(nic_journal, .init = set_up, .fini = tear_down);

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void file_write(const char *name, const char *text)
{
    FILE *file = fopen(path_of(name), "w");
    cr_assert(file != NULL && fputs(text, file) >= 0);
    fclose(file);
}

static const char *file_read(const char *name)
{
    static char text[65536];
    FILE *file = fopen(path_of(name), "r");
    if (file == NULL) {
        return NULL;
    }
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    return text;
}

static struct nic_journal journal;

static void journal_open(const char *interface, off_t from)
{
    struct err err = {""};
    cr_assert(nic_journal_read(&journal, folder, interface, from, &err) == 0, "%s", err.text);
}

static void journal_end(void)
{
    struct err err = {""};
    cr_assert(nic_journal_end(&journal, &err) == 0, "%s", err.text);
}

Test(nic_journal, the_first_line_says_whose_it_is_and_in_which_boot)
{
    char want[128];
    off_t end = 0;
    int fd = nic_journal_append(folder, "lo", &end);
    cr_assert(fd >= 0);
    snprintf(want, sizeof(want), "interface 1 %s\n", boot);
    cr_expect(end == (off_t)strlen(want) && strcmp(file_read("nic-lo.journal"), want) == 0);
    cr_assert(nic_journal_write(fd, "one\n") == 0);
    close(fd);
    fd = nic_journal_append(folder, "lo", &end);
    cr_expect(end == (off_t)strlen(want) + 4, "only an empty file gets it");
    close(fd);
    journal_open("lo", 0);
    cr_expect(strcmp(journal.interface, "lo") == 0 && journal.count == 1 &&
              strcmp(journal.lines[0], "one") == 0);
    journal_end();
    cr_expect(file_read("nic-lo.journal") == NULL);
}

Test(nic_journal, a_card_that_was_renamed_is_found_by_its_index)
{
    char text[128];
    snprintf(text, sizeof(text), "interface 1 %s\nrss 1 0,\n", boot);
    file_write("nic-old0.journal", text);
    journal_open("old0", 0);
    cr_expect(strcmp(journal.interface, "lo") == 0, "'%s'", journal.interface);
    journal_end();
}

Test(nic_journal, a_card_that_is_gone_or_of_another_boot_is_left_alone)
{
    char text[128];
    file_write("nic-lo.journal", "interface 1 00000000-0000-0000-0000-000000000000\nchannels 1 2\n");
    journal_open("lo", 0);
    cr_expect(journal.interface[0] == '\0' && strstr(journal.gone_why, "anew") != NULL);
    journal_end();
    snprintf(text, sizeof(text), "interface 999999 %s\nchannels 1 2\n", boot);
    file_write("nic-lo.journal", text); /* its name is another card's now */
    journal_open("lo", 0);
    cr_expect(journal.interface[0] == '\0' && strstr(journal.gone_why, "gone") != NULL);
    journal_end();
    file_write("nic-gone0.journal", "channels 1 2\n"); /* of an earlier version */
    journal_open("gone0", 0);
    cr_expect(journal.interface[0] == '\0');
    journal_end();
}

Test(nic_journal, a_line_that_a_crash_cut_off_is_no_line_and_joins_no_other)
{
    off_t end = 0;
    file_write("nic-lo.journal", "channels 4 8\nrule 1 2 9000");
    journal_open("lo", 0);
    cr_expect(journal.count == 1 && strcmp(journal.lines[0], "channels 4 8") == 0);
    journal.is_kept[0] = true;
    journal_end();
    cr_expect(strcmp(file_read("nic-lo.journal"), "channels 4 8\n") == 0);
    file_write("nic-lo.journal", "channels 4 8\nrule 1 2 9000");
    int fd = nic_journal_append(folder, "lo", &end);
    cr_assert(fd >= 0 && nic_journal_write(fd, "feature x 0 1\n") == 0);
    close(fd);
    cr_expect(end == 13 && strcmp(file_read("nic-lo.journal"), "channels 4 8\nfeature x 0 1\n") == 0);
}

Test(nic_journal, only_what_was_not_undone_stays)
{
    file_write("nic-lo.journal", "a\nb\nc\nd\n");
    journal_open("lo", 2); /* `a` belongs to another listener */
    cr_assert(journal.count == 3);
    journal.is_kept[1] = true;
    journal_end();
    cr_expect(strcmp(file_read("nic-lo.journal"), "a\nc\n") == 0, "%s", file_read("nic-lo.journal"));
    journal_open("lo", 100); /* somebody has shortened it */
    cr_expect(journal.count == 0);
    journal_end();
    cr_expect(strcmp(file_read("nic-lo.journal"), "a\nc\n") == 0);
    journal_open("lo", 0);
    journal.is_copied = true;
    journal_end();
    cr_expect(file_read("nic-lo.journal") == NULL);
    cr_expect(strcmp(file_read("nic-lo.journal.bad"), "a\nc\n") == 0, "a person may look at it");
}

Test(nic_journal, no_number_of_lines_is_too_many)
{
    static char text[8 * 4000 + 1];
    for (unsigned i = 0; i < 4000; i++) {
        char line[16];
        snprintf(line, sizeof(line), "l %05u\n", i % 100000U);
        memcpy(text + (size_t)i * 8, line, 8);
    }
    file_write("nic-lo.journal", text);
    journal_open("lo", 0);
    cr_expect(journal.count == 4000 && strcmp(journal.lines[3999], "l 03999") == 0);
    journal_end();
}

Test(nic_journal, a_line_that_means_nothing_is_told_and_keeps_nothing_from_being_undone)
{
    struct err err = {""};
    file_write(
        "nic-lo.journal",
        "nonsense\nfeature\ntable 1 0 0,\ntable 2 1 1 0\ncontext x\nours 3\nours 4000000000 4000000000\n");
    cr_expect(nic_undo("lo", folder, &err) == 0, "%s", err.text);
    cr_expect(file_read("nic-lo.journal") == NULL && file_read("nic-lo.journal.bad") != NULL);
}

Test(nic_journal, one_card_that_cannot_be_put_back_keeps_no_other_from_it)
{
    struct err err = {""};
    char text[256];
    /* lo has no channels and no RSS table: what would set them is refused. */
    snprintf(text, sizeof(text), "interface 1 %s\nrss 2 0,0,\n", boot);
    file_write("nic-a.journal", text);
    file_write("nic-b.journal", text);
    file_write("nic-gone0.journal", "channels 1 2\n");
    cr_expect(nic_undo_all(folder, NIC_UNDO_NODE, &err) < 0);
    cr_expect(strstr(err.text, "rss 2 0,0,") != NULL, "%s", err.text);
    cr_expect(file_read("nic-gone0.journal") == NULL);
    cr_expect(file_read("nic-a.journal") != NULL && file_read("nic-b.journal") != NULL, "to be tried again");
}

Test(nic_journal, a_long_directory_is_no_short_one)
{
    char directory[NIC_JOURNAL_PATH_MAX];
    char path[NIC_JOURNAL_PATH_MAX];
    memset(directory, 'd', sizeof(directory));
    directory[4095] = '\0';
    cr_expect(nic_journal_path(path, directory, "fifteen-letters", "journal") == 0);
    cr_expect(strstr(path, "/nic-fifteen-letters.journal") != NULL);
    directory[4095] = 'd';
    directory[4350] = '\0';
    cr_expect(nic_journal_path(path, directory, "lo", "journal") == -ENAMETOOLONG);
}
