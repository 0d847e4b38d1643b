/* SPDX-License-Identifier: Apache-2.0 */
/* receive: see receive.h. The paths stand in a table, best first; each says whether it works for a listener. */
#include "server/receive.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"

struct receive_path {
    enum conf_receive receive;
    const struct rx_ops *ops;
    /* NULL when the path works for this listener, otherwise why it does not. */
    const char *(*refusal)(const struct conf_listener *conf);
};

static const char *receive_refuses_tls(const struct conf_listener *conf)
{
    return conf->tls.certificate[0] == '\0'
               ? "this binary has no such backend"
               : "TLS needs every byte to be touched, so only socket can serve it";
}

/* Never serve in the clear what was configured to be encrypted. */
static const char *receive_refuses_socket(const struct conf_listener *conf)
{
    return conf->tls.certificate[0] == '\0' ? NULL : "this binary does not speak TLS yet";
}

static const struct receive_path receive_paths[] = {
    {CONF_RECEIVE_ZCRX, NULL, receive_refuses_tls},
    {CONF_RECEIVE_AF_XDP, NULL, receive_refuses_tls},
    {CONF_RECEIVE_SOCKET, &rx_socket_ops, receive_refuses_socket},
};

int receive_choose(const struct conf_listener *conf, struct receive_plan *plan, struct err *err)
{
    size_t used = 0;
    plan->why[0] = '\0';
    for (size_t i = 0; i < ARRAY_COUNT(receive_paths); i++) {
        const struct receive_path *path = &receive_paths[i];
        if (conf->receive != CONF_RECEIVE_AUTO && conf->receive != path->receive) {
            continue;
        }
        const char *refusal = path->refusal(conf);
        if (refusal == NULL) {
            plan->ops = path->ops;
            if (used == 0) {
                (void)snprintf(plan->why, sizeof(plan->why), "%s",
                               conf->receive == CONF_RECEIVE_AUTO ? "best path"
                                                                  : "as configured"); /* Short. */
            }
            return 0;
        }
        int len = snprintf(plan->why + used, sizeof(plan->why) - used, "%s%s: %s", used == 0 ? "" : "; ",
                           conf_receive_text(path->receive), refusal);
        used =
            len < 0 || (size_t)len >= sizeof(plan->why) - used ? sizeof(plan->why) - 1 : used + (size_t)len;
    }
    return err_set(err, -ENOTSUP, "listener %s: receive: %s", conf->name, plan->why);
}
