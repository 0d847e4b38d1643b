/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock: who uses a store. The file "lock" in data_dir is locked for as long as a process has the store open, and names its process
 * id, so that the next one can say who is in the way. The kernel drops the lock with the process, however that ends.
 */
#ifndef SERVER_LOCK_H
#define SERVER_LOCK_H

#include <sys/types.h>

#include "base/err.h"

struct lock {
    int fd;
};

/* 0; -EBUSY when another process holds it, whose id is then in *holder (0: unknown); otherwise -errno. data_dir must exist. */
int lock_take(struct lock *lock, const char *data_dir, pid_t *holder, struct err *err);
/* Looks without taking it or making the file. 0 when nobody holds it; otherwise as lock_take. */
int lock_look(const char *data_dir, pid_t *holder);
void lock_release(struct lock *lock);

#endif
