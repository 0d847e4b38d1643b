// SPDX-License-Identifier: Apache-2.0
//
// Reading the credentials file: the only part of auth_keys that touches the system. Start and SIGHUP only.

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "server/auth_keys.h"

// Asked of the open descriptor, so that the file cannot be exchanged between the question and the reading.
static int check_file(int fd, const char *path, struct err *err)
{
    struct stat stat;

    if (fstat(fd, &stat) == -1) {
        return err_set(err, -errno, "%s: %s", path, err_text(-errno));
    }
    if (!S_ISREG(stat.st_mode)) {
        return err_set(err, -EPERM, "%s: must be a regular file", path);
    }
    if (stat.st_uid != geteuid() && stat.st_uid != 0) {
        return err_set(err, -EPERM, "%s: must belong to the user that runs the server, or to root", path);
    }
    if ((stat.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return err_set(err, -EPERM, "%s: must not be accessible to group or others; chmod 600 it", path);
    }
    return stat.st_size > (off_t)AUTH_KEYS_FILE_MAX
               ? err_set(err, -EFBIG, "%s: has more than %u bytes", path, AUTH_KEYS_FILE_MAX)
               : 0;
}

static int read_all(int fd, char *buffer, size_t size, size_t *len)
{
    *len = 0;
    while (*len < size) {
        ssize_t got = read(fd, buffer + *len, size - *len);

        if (got == 0) {
            return 0;
        }
        if (got == -1 && errno != EINTR) {
            return -errno;
        }
        *len += got > 0 ? (size_t)got : 0;
    }
    return -EFBIG;
}

static int load_open(struct auth_keys **keys, int fd, const char *path, uint64_t generation, struct err *err)
{
    size_t size = AUTH_KEYS_FILE_MAX + 1, len = 0;
    struct auth_keys_error problem = {0};
    char *buffer = malloc(size);

    if (buffer == NULL) {
        return err_set(err, -ENOMEM, "%s: out of memory", path);
    }
    int status = read_all(fd, buffer, size, &len);
    if (status != 0) {
        err_set(err, status, "%s: %s", path, err_text(status));
    } else {
        status = auth_keys_parse(keys, text_of(buffer, len), generation, &problem);
        if (status == -EINVAL && problem.line != 0) {
            err_set(err, status, "%s:%u: %s", path, problem.line, problem.message);
        } else if (status != 0) {
            err_set(err, status, "%s: %s", path, status == -EINVAL ? problem.message : err_text(status));
        }
    }
    OPENSSL_cleanse(buffer, size);
    free(buffer);
    return status;
}

int auth_keys_load(struct auth_keys **keys, const char *path, uint64_t generation, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); // not to hang on a fifo

    if (fd == -1) {
        return err_set(err, -errno, "%s: %s", path, err_text(-errno));
    }
    int status = check_file(fd, path, err);
    if (status == 0) {
        status = load_open(keys, fd, path, generation, err);
    }
    (void)close(fd); // read only: nothing can be lost
    return status;
}
