/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang_device: linked into a copy of the program, puts a filter over each of its devices whose chosen operations hang while a file
 * exists: HANG_OPS in the environment is "flush" or "write", HANG_FILE the file's name. What hangs goes on, at the next turn of its
 * thread, when the file is removed. The linker's --wrap takes the program's call of dev_open; everything else is the program as it
 * ships. It must not decide what a test expects.
 */
#include <libgen.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/check.h"
#include "storage/dev.h"

int __real_dev_open(const struct dev_uring_options *options, struct dev **out, struct err *err);
int __wrap_dev_open(const struct dev_uring_options *options, struct dev **out, struct err *err);

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
    plan.ops = 1U << (strcmp(ops, "flush") == 0 ? DEV_FLUSH : DEV_WRITE);
    (void)snprintf(plan.trigger_file, sizeof(plan.trigger_file), "%s",
                   file); /* A cut name would never exist. */
    dev_fault_plan_set(*out, &plan);
    rc = pthread_create(&thread, NULL, hang_watch, *out);
    CHECK(rc == 0);
    return 0;
}
