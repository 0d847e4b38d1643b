/* SPDX-License-Identifier: Apache-2.0 */
/* owner: see owner.h. */
#include "base/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int owner_open(const char *path, int flags)
{
    int fd = open(path, flags | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
        owner_give(fd, path);
        return fd;
    }
    if (errno != EEXIST) {
        return -errno;
    }
    fd = open(path, flags | O_CREAT | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

void owner_give(int fd, const char *path)
{
    char copy[PATH_MAX];
    struct stat st;
    int len = snprintf(copy, sizeof(copy), "%s", path);
    if (geteuid() != 0 || len < 0 || (size_t)len >= sizeof(copy) || stat(dirname(copy), &st) != 0) {
        return;
    }
    if (st.st_uid != 0 && fchown(fd, st.st_uid, st.st_gid) != 0) {
        /* A root without CAP_CHOWN, or a file system that has no owners: the file works for who has made it. */
        return;
    }
}
