/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receive: which receive path a listener takes. `receive: auto` takes the best that works here and says, for each
 * better one, exactly why it was not taken; a listener that names a path gets it or an error with that reason.
 */
#ifndef SERVER_RECEIVE_H
#define SERVER_RECEIVE_H

#include "base/err.h"
#include "conf/conf.h"
#include "rx/rx.h"

struct receive_plan {
    const struct rx_ops *ops;
    char why[512];
};

int receive_choose(const struct conf_listener *conf, struct receive_plan *plan, struct err *err);

#endif
