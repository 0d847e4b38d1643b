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

/* Raises this process's soft limit of open files to the hard one: shells start processes with 1,024, and each connection is a file. The
 * node does it at start, "check" before it compares. */
void preflight_raise_files(void);

#endif
