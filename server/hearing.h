/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hearing: can anything reach the listeners now? One whose path has a NIC of its own (zcrx, af_xdp) is deaf while that is down, gone, or
 * has no XDP program of ours; one on socket never is, as peers may come through any interface. A node all of whose listeners are deaf is
 * not ready: whoever sends it work should not. It recovers with the interface.
 *
 * Only looks; a few system calls. Any thread.
 */
#ifndef SERVER_HEARING_H
#define SERVER_HEARING_H

#include <net/if.h>

#include "base/err.h"
#include "server/receive.h"

enum hearing_state {
    HEARING_OK,
    HEARING_DOWN,      /* set down, or without carrier */
    HEARING_GONE,      /* no such interface; af_xdp goes on when it is back */
    HEARING_REPLACED,  /* zcrx: the interface is another one than the listener was opened on */
    HEARING_NO_PROGRAM /* af_xdp: our XDP program is not attached, and cannot be for the moment */
};

struct hearing {
    const char *listener;
    char interface[IFNAMSIZ];
    enum hearing_state state;
};

/* Looks at one listener. `index`: of its interface when it was opened. */
void hearing_look(const char *listener, const struct receive_plan *plan, uint32_t index, struct hearing *out);
/* 0: somebody hears, and `why` names who does not ("": nobody); -ENETDOWN: nobody does, and it says why. Pure. */
int hearing_judge(const struct hearing *all, uint32_t count, struct err *why);

#endif
