/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin: the HTTP server of the admin address, on a thread of its own: /metrics, /healthz, /readyz, POST /drain,
 * POST /log-level and a status page at /. It reads metrics and calls the hooks; it must never touch the data path.
 */
#ifndef SERVER_ADMIN_H
#define SERVER_ADMIN_H

#include "conf/conf.h"
#include "server/metrics.h"

/* Called on the admin thread; each must be safe against the workers and must not block for long. */
struct admin_hooks {
    void *ctx;
    /* 0 when the node takes requests; otherwise negative, and `why` says what is missing. */
    int (*ready)(void *ctx, struct err *why);
    /* 0 when the process works (a failed device alone does not make it unhealthy); otherwise negative with `why`. */
    int (*healthy)(void *ctx, struct err *why);
    /* Starts a drain, as SIGTERM does. Returns at once; calling it twice is harmless. */
    void (*drain)(void *ctx);
};

struct admin;

/* Binds conf->admin.address and starts the thread. With no admin address in the configuration *out is NULL and the
 * result 0. On failure nothing is left running and `err` names the address and the remedy. */
int admin_open(const struct conf *conf, struct metrics *metrics, const struct admin_hooks *hooks,
               struct admin **out, struct err *err);
/* Answers what is in flight and ends the thread. NULL is fine. */
void admin_close(struct admin *admin);

#endif
