/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang_device: linked into a copy of the program, lets chosen operations hang while a file exists. HANG_OPS in the environment is
 * "flush" or "write" for the store's devices (a filter lies over each of them), "index-sync" or "index-read" for the index, whose
 * calls of the C library are replaced; HANG_FILE is the file's name. What hangs goes on when the file is removed. The linker's --wrap
 * takes the program's call of dev_open; everything else is the program as it ships. It must not decide what a test expects.
 */
#include <libgen.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "storage/dev.h"

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_moved = PTHREAD_COND_INITIALIZER;

int __real_dev_open(const struct dev_uring_options *options, struct dev **out, struct err *err);
int __wrap_dev_open(const struct dev_uring_options *options, struct dev **out, struct err *err);

static bool hang_is_on(const char *op)
{
    const char *ops = getenv("HANG_OPS");
    const char *file = getenv("HANG_FILE");
    return ops != NULL && file != NULL && strcmp(ops, op) == 0 && access(file, F_OK) == 0;
}

/* ---- the index ---------------------------------------------------------------------------------------------------------- */

static bool is_of_index(int fd)
{
    char link[64];
    char path[4096];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd); /* It always fits. */
    ssize_t len = readlink(link, path, sizeof(path) - 1);
    path[len < 0 ? 0 : len] = '\0';
    return strstr(path, "/index.db") != NULL;
}

static void gate_pass(const char *op, int fd)
{
    if (!hang_is_on(op) || !is_of_index(fd)) {
        return;
    }
    pthread_mutex_lock(&gate_lock);
    while (hang_is_on(op)) {
        pthread_cond_wait(&gate_moved, &gate_lock);
    }
    pthread_mutex_unlock(&gate_lock);
}

int fdatasync(int fd)
{
    gate_pass("index-sync", fd);
    return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    gate_pass("index-sync", fd);
    return (int)syscall(SYS_fsync, fd);
}

ssize_t pread64(int fd, void *buffer, size_t size, off64_t offset)
{
    gate_pass("index-read", fd);
    return syscall(SYS_pread64, fd, buffer, size, offset);
}

/* ---- the devices -------------------------------------------------------------------------------------------------------- */

/* Lives as long as the process, like the one device that it was started for. */
static void *hang_watch(void *argument)
{
    struct dev *dev = argument;
    char folder[256];
    char events[4096];
    (void)snprintf(folder, sizeof(folder), "%s", getenv("HANG_FILE"));
    int fd = inotify_init1(IN_CLOEXEC);
    CHECK(fd >= 0);
    int watch = inotify_add_watch(fd, dirname(folder), IN_DELETE);
    CHECK(watch >= 0);
    while (read(fd, events, sizeof(events)) > 0) {
        dev_fault_release(dev);
        pthread_mutex_lock(&gate_lock);
        pthread_cond_broadcast(&gate_moved);
        pthread_mutex_unlock(&gate_lock);
    }
    return NULL;
}

int __wrap_dev_open(const struct dev_uring_options *options, struct dev **out, struct err *err)
{
    pthread_t thread;
    const char *ops = getenv("HANG_OPS");
    const char *file = getenv("HANG_FILE");
    struct dev *inner = NULL;
    int rc = __real_dev_open(options, &inner, err);
    if (rc != 0 || ops == NULL || file == NULL) {
        *out = inner;
        return rc;
    }
    rc = dev_fault_open(inner, 1, out);
    CHECK(rc == 0);
    struct dev_fault_plan plan = {.kind = DEV_FAULT_HANG, .nth = 1, .from_then_on = true};
    plan.ops = strcmp(ops, "flush") == 0 ? 1U << DEV_FLUSH : strcmp(ops, "write") == 0 ? 1U << DEV_WRITE : 0;
    (void)snprintf(plan.trigger_file, sizeof(plan.trigger_file), "%s",
                   file); /* A cut name would never exist. */
    dev_fault_plan_set(*out, &plan);
    rc = pthread_create(&thread, NULL, hang_watch, *out);
    CHECK(rc == 0);
    return 0;
}
