/* SPDX-License-Identifier: Apache-2.0 */
/* cpus: turns "cpus: auto" into the CPUs of the NUMA node that the listener's interface hangs on. At start only. */
#ifndef SERVER_CPUS_H
#define SERVER_CPUS_H

#include "conf/conf.h"

/* Replaces each "auto" by a list. An interface without a NUMA node (loopback, virtual) gives every CPU this process may use. */
void cpus_resolve(struct conf *conf);
/* Reads a list as the kernel writes it ("0-3,8") into `out`; what does not fit is left out. False when it is no such list. */
bool cpus_list_read(const char *text, struct conf_numbers *out);

#endif
