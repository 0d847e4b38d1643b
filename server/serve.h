/* SPDX-License-Identifier: Apache-2.0 */
/* serve: runs a node. Owns the store, the workers, the admin thread and the signals from start to exit. */
#ifndef SERVER_SERVE_H
#define SERVER_SERVE_H

#include "conf/conf.h"

/* Runs until SIGTERM, SIGINT or a drain request has been carried out. Returns 0 after a clean end; otherwise -errno or a
 * project code, after the reason was logged. */
int serve_run(const struct conf *conf);

#endif
