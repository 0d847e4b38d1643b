/* SPDX-License-Identifier: Apache-2.0 */
/* store_conf: what the configuration says about the store, in the form the store takes. Used by every subcommand. */
#ifndef SERVER_STORE_CONF_H
#define SERVER_STORE_CONF_H

#include "conf/conf.h"
#include "storage/store.h"

/* Fills `options` in place (it is a quarter of a megabyte: not for the stack). */
void store_conf_options(const struct conf *conf, struct store_options *options);

/* Uploads that a worker's port has room for: those of all listeners, and some whose peer has gone and whose writes have not ended. */
uint32_t store_conf_puts_max(const struct conf *conf);

/* 0 when a device of the configuration is there, or format could make it; otherwise -ENOENT, and `err` points at the line of the
 * file, as it does for other mistakes in it. Other troubles of a device are found when it is opened. */
int store_conf_device_missing(const struct conf *conf, uint32_t index, bool is_format, struct err *err);
/* The same for the first device that is missing. */
int store_conf_missing(const struct conf *conf, bool is_format, struct err *err);

#endif
