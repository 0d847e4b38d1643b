/* SPDX-License-Identifier: Apache-2.0 */
/* store_conf: what the configuration says about the store, in the form the store takes. Used by every subcommand. */
#ifndef SERVER_STORE_CONF_H
#define SERVER_STORE_CONF_H

#include "conf/conf.h"
#include "storage/store.h"

/* Fills `options` in place (it is a quarter of a megabyte: not for the stack). */
void store_conf_options(const struct conf *conf, struct store_options *options);

#endif
