/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receive: which receive path a listener takes. `receive: auto` takes the best that works here and says, for each
 * better one, exactly why it was not taken; a listener that names a path gets it or an error with that reason.
 *
 * Choosing only looks (check and probe call it too). receive_prepare changes the NIC, when the listener's manage_nic allows
 * it, and receive_restore puts it back; both block and belong to start-up and shut-down.
 */
#ifndef SERVER_RECEIVE_H
#define SERVER_RECEIVE_H

#include <net/if.h>

#include "base/err.h"
#include "conf/conf.h"
#include "nic/nic.h"
#include "rx/rx.h"
#include "rx/rx_group.h"

#define RECEIVE_WHY_MAX 1024U

struct receive_plan {
    const struct rx_ops *ops;
    bool may_fall_back;       /* receive: auto: a path that fails to open is replaced by socket */
    bool has_device;          /* false: device-less zcrx (interface lo), in which the kernel copies */
    bool needs_nic;           /* the NIC must be changed before opening: receive_prepare */
    char interface[IFNAMSIZ]; /* zcrx, af_xdp, and socket when it changes the NIC; "" otherwise */
    uint32_t queue_first;     /* zcrx: worker i takes queue_first + i */
    uint32_t queue_count;     /* af_xdp: worker i takes queues[i], queues[i + workers], ... */
    uint16_t queues[RX_QUEUES_MAX];
    const char *
        mode; /* af_xdp: what the driver's report promises; "" when it reports nothing, and for other paths NULL */
    bool is_slower; /* af_xdp: in a mode that receive: auto does not take */
    char why[RECEIVE_WHY_MAX];
    char note[NIC_TEXT_MAX]; /* socket: what becomes of the NIC's own buffers; may be "" */
};

/* Looks at listener `index`. 0, or -ENOTSUP with the reason when the path it names does not work here. */
int receive_choose(const struct conf *conf, uint32_t index, struct receive_plan *plan, struct err *err);

/* Takes from `state` what the running node of this configuration has put there, should one run: its XDP program is in nobody's way. */
void receive_disown(const struct conf *conf, struct nic_state *state);

/* Why zero-copy receive does not work for this listener here; 0 and `plan` filled when it does. */
int receive_zcrx(const struct conf *conf, uint32_t index, struct receive_plan *plan, struct err *err);

/* Whether af_xdp works for this listener on a NIC like this. Pure: fills the rest of `plan` (`interface` is given) and `nic`. */
int receive_xdp_judge(const struct conf *conf, uint32_t index, const struct nic_state *state,
                      const struct nic_xdp_host *host, struct receive_plan *plan, struct nic_plan *nic,
                      struct err *err);

/* What must be set on the listener's NIC, and for which path; for `penstock nic`. With receive: auto that is af_xdp where the driver
 * has no zero-copy receive but zero-copy AF_XDP, and socket where it has neither. -EINVAL: the listener has no NIC. A socket listener without
 * rx_buffer_size asks for nothing: a plan without steps. */
int receive_nic_plan(const struct conf *conf, uint32_t index, struct nic_state *state, struct nic_plan *nic,
                     const char **path, struct err *err);

/* Applies what this listener needs. What an earlier run left behind is put back before (nic_undo_all). */
int receive_prepare(const struct conf *conf, uint32_t index, const struct receive_plan *plan,
                    struct err *err);
/* The NIC queue of a worker. */
uint32_t receive_queue(const struct conf_listener *listener, const struct receive_plan *plan,
                       uint32_t worker);
/* Several zcrx queues: what their workers share. `out` stays NULL where there is nothing to share. */
int receive_group_open(const struct conf *conf, uint32_t index, const struct receive_plan *plan,
                       struct rx_group **out, struct err *err);
/* Tells the group which queue has which NAPI instance now. True: other instances than before. Blocks on netlink. */
bool receive_group_look(const struct conf *conf, uint32_t index, const struct receive_plan *plan,
                        struct rx_group *group);
/* All workers have opened: looks, and starts the group. */
void receive_group_start(const struct conf *conf, uint32_t index, const struct receive_plan *plan,
                         struct rx_group *group);
/* Undoes receive_prepare. Trouble is logged. */
void receive_restore(const struct conf *conf, const struct receive_plan *plan);

#endif
