/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preflight: "penstock check": for each thing the configuration needs of this host, one line: ok, warn or fail, what was found and
 * what to do. It changes nothing on the host: devices are opened for reading, ports are bound and given back.
 */
#ifndef SERVER_PREFLIGHT_H
#define SERVER_PREFLIGHT_H

#include <stdbool.h>
#include <stdio.h>

#include "conf/conf.h"

/* Prints the lines and a summary. False when one of them is fail: a node would not start, or not as configured. */
bool preflight_run(const struct conf *conf, FILE *to);

#endif
