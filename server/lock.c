/* SPDX-License-Identifier: Apache-2.0 */
/* lock: one flock per store. flock and not fcntl, so that no other close of the file in this process can drop it. */
#include "server/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/owner.h"

static pid_t holder_read(int fd)
{
    char text[24];
    ssize_t len = pread(fd, text, sizeof(text) - 1, 0);
    if (len <= 0) {
        return 0;
    }
    text[len] = '\0';
    return (pid_t)strtol(text, NULL, 10);
}

static int holder_write(int fd)
{
    char text[24];
    int len = snprintf(text, sizeof(text), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)len, 0) != len) {
        return errno == 0 ? -EIO : -errno;
    }
    return 0;
}

int lock_take(struct lock *lock, const char *data_dir, pid_t *holder, struct err *err)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s/lock", data_dir);
    int fd = owner_open(path, O_RDWR);
    if (fd < 0) {
        int rc = fd;
        return err_set(err, rc, "%s: %s; run penstock format first, as the user that runs the node", path,
                       err_text(rc));
    }
    int rc = 0;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        rc = errno == EWOULDBLOCK ? -EBUSY : -errno;
        *holder = rc == -EBUSY ? holder_read(fd) : 0;
        err_set(err, rc,
                rc == -EBUSY ? "%s is held by process %d, which uses this store; stop it first"
                             : "%s: cannot be locked (%d)",
                path, rc == -EBUSY ? (int)*holder : rc);
    } else {
        rc = holder_write(fd);
        if (rc != 0) {
            err_set(err, rc, "%s: cannot be written: %s", path, err_text(rc));
        }
    }
    if (rc != 0) {
        close(fd);
        return rc;
    }
    lock->fd = fd;
    return 0;
}

int lock_look(const char *data_dir, pid_t *holder)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s/lock", data_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    int rc = 0;
    /* Shared, so that two who look are not in each other's way; given up with the descriptor. */
    if (flock(fd, LOCK_SH | LOCK_NB) != 0) {
        rc = errno == EWOULDBLOCK ? -EBUSY : -errno;
        *holder = rc == -EBUSY ? holder_read(fd) : 0;
    }
    close(fd);
    return rc;
}

void lock_release(struct lock *lock)
{
    close(lock->fd);
    lock->fd = -1;
}
