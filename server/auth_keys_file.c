// SPDX-License-Identifier: Apache-2.0
//
// Reading the credentials file: the only part of auth_keys that touches the system. Start and SIGHUP only.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "server/auth_keys.h"

static int refuse(struct auth_keys_error *error, int status, const char *message)
{
    snprintf(error->message, sizeof(error->message), "%s", message);
    return status;
}

// Asked of the open descriptor, so that the file cannot be exchanged between the question and the reading.
static int check_file(int fd, struct auth_keys_error *error)
{
    struct stat stat;

    if (fstat(fd, &stat) == -1) {
        return refuse(error, -errno, "cannot be examined");
    }
    if (!S_ISREG(stat.st_mode)) {
        return refuse(error, -EPERM, "must be a regular file");
    }
    if (stat.st_uid != geteuid() && stat.st_uid != 0) {
        return refuse(error, -EPERM, "must belong to the user that runs the server, or to root");
    }
    if ((stat.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return refuse(error, -EPERM, "must not be accessible to group or others (chmod 600)");
    }
    return stat.st_size > (off_t)AUTH_KEYS_FILE_MAX ? refuse(error, -EFBIG, "is too large") : 0;
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

static int load_open(struct auth_keys **keys, int fd, uint64_t generation, struct auth_keys_error *error)
{
    size_t size = AUTH_KEYS_FILE_MAX + 1, len = 0;
    char *buffer;
    int status = check_file(fd, error);

    if (status != 0) {
        return status;
    }
    buffer = malloc(size);
    if (buffer == NULL) {
        return -ENOMEM;
    }
    status = read_all(fd, buffer, size, &len);
    if (status == 0) {
        status = auth_keys_parse(keys, text_of(buffer, len), generation, error);
    } else {
        status = refuse(error, status, "cannot be read");
    }
    OPENSSL_cleanse(buffer, size);
    free(buffer);
    return status;
}

int auth_keys_load(struct auth_keys **keys, const char *path, uint64_t generation,
                   struct auth_keys_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); // not to hang on a fifo
    int status;

    *error = (struct auth_keys_error){0};
    if (fd == -1) {
        return refuse(error, -errno, "cannot be opened");
    }
    status = load_open(keys, fd, generation, error);
    (void)close(fd); // read only: nothing can be lost
    return status;
}
