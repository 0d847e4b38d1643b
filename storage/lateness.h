/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lateness: whether a device has let its deadline pass, or we have. A process that stood still (a paused virtual machine, SIGSTOP) finds
 * on its next look that the deadline is over, although what it waits for may have come meanwhile or was not even handed on. So nobody is
 * late who was not looked at twice: when three quarters of the deadline had passed, and a quarter later. Pure.
 */
#ifndef STORAGE_LATENESS_H
#define STORAGE_LATENESS_H

#include <stdbool.h>
#include <stdint.h>

/* When to look next at what began at `began_ns`. `noticed_ns`: the first of the two looks, 0 before it; the owner keeps it and sets it
 * to 0 whenever there was an answer or a beginning. */
static inline uint64_t lateness_due_ns(uint64_t noticed_ns, uint64_t began_ns, uint64_t deadline_ns)
{
    uint64_t end_ns = began_ns + deadline_ns;
    uint64_t again_ns = noticed_ns + deadline_ns / 4;
    if (noticed_ns == 0) {
        return end_ns - deadline_ns / 4;
    }
    return again_ns > end_ns ? again_ns : end_ns;
}

/* Looks; true: it is late. A first look too long ago is none: what stood still may have done so between the two. */
static inline bool lateness_look(uint64_t *noticed_ns, uint64_t began_ns, uint64_t deadline_ns,
                                 uint64_t now_ns)
{
    if (lateness_due_ns(*noticed_ns, began_ns, deadline_ns) > now_ns) {
        return false;
    }
    if (*noticed_ns == 0 || now_ns - *noticed_ns > deadline_ns / 2) {
        *noticed_ns = now_ns;
        return false;
    }
    return true;
}

#endif
