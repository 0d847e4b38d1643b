/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic: what a network interface can do, what it must be set to for a listener's queues, and doing or undoing that.
 *
 * Start-up and shut-down only: everything here blocks on netlink or ioctl and is never called from a worker's loop.
 * Three steps, each usable alone:
 *   nic_read   asks the kernel (netlink `ethtool` and `netdev` families; ioctl where netlink has no message)
 *   nic_plan   compares state with wish; pure: no system call, so real drivers' answers are unit-tested
 *   nic_apply  carries a plan out, writing each value *found* to a journal before it changes it; nic_undo plays the
 *              journal backwards: on exit, on the next start after a crash, or by `penstock nic undo`
 *
 * Sources: Linux Documentation/netlink/specs/{ethtool,netdev}.yaml, Documentation/networking/iou-zcrx.rst,
 * io_uring/zcrx.c, net/core/netdev_rx_queue.c.
 */
#ifndef NIC_NIC_H
#define NIC_NIC_H

#include <linux/ethtool.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/err.h"

#define NIC_QUEUES_MAX 512U
#define NIC_RULES_MAX 256U
#define NIC_CONTEXTS_MAX 16U
#define NIC_STEPS_MAX                                                                                        \
    80U /* at most NIC_SPLIT_MAX rules for each address family, and what comes before them */
#define NIC_SPLIT_MAX 32U /* queues that rules on the client's port can feed */
#define NIC_TEXT_MAX 384U

enum nic_switch { NIC_UNKNOWN, NIC_OFF, NIC_ON }; /* also the values of ETHTOOL_TCP_DATA_SPLIT_* */

struct nic_feature {
    enum nic_switch state; /* UNKNOWN: the kernel does not name it */
    bool changeable;
};

struct nic_queue {
    uint32_t napi_id;       /* 0: not reported */
    bool zcrx;              /* an io_uring memory provider owns it */
    uint32_t zcrx_buf_len;  /* bytes, as the kernel reports; 0: not reported */
    uint32_t pool_buf_len;  /* the same of the page pool that feeds the queue; 0: not reported */
    uint64_t pool_inflight; /* buffers of that pool which the NIC or a socket or we hold */
    bool dmabuf;            /* a devmem memory provider owns it */
    bool xsk;               /* an AF_XDP socket owns it */
    bool leased;
    uint32_t
        buf_len; /* bytes of its receive buffers, in force now; 0: this kernel or driver does not report it */
};

/* One RSS table: context 0 is the main one. */
struct nic_context {
    uint32_t id;
    uint32_t size; /* entries */
    bool uses[NIC_QUEUES_MAX];
    uint32_t *table; /* `size` entries; owned by the state */
};

struct nic_rule {
    struct ethtool_rx_flow_spec spec;
    uint32_t context; /* with FLOW_RSS */
};

struct nic_state {
    char name[IFNAMSIZ];
    uint32_t index;
    char driver[32];
    char driver_version[32];
    bool up;
    bool carrier;
    uint32_t mtu;
    int numa_node; /* -1: none */
    uint32_t virtual_functions;
    bool dcb;           /* data centre bridging is on */
    uint32_t rx_queues; /* real receive queues */
    uint32_t channels_combined, channels_combined_max, channels_rx, channels_rx_max;
    uint32_t ring_rx, ring_rx_max;
    enum nic_switch data_split; /* as reported; drivers may report ON while the setting is unknown */
    bool has_hds_thresh;
    uint32_t hds_thresh, hds_thresh_max;
    uint32_t rx_buf_len, rx_buf_len_max; /* device-wide, where the kernel has it; 0: not offered */
    struct nic_feature gro_hw, ntuple, lro, gro, vlan_strip;
    bool has_irq_defer;    /* the kernel lets interrupts be held back for who polls */
    uint32_t irq_defer;    /* napi_defer_hard_irqs */
    uint64_t flush_ns;     /* gro_flush_timeout */
    uint32_t vlans;        /* VLAN interfaces on it */
    uint64_t xdp_features; /* NETDEV_XDP_ACT_*; 0 also when not reported */
    bool xdp_reported;     /* the kernel says what XDP the driver has (Linux 6.3) */
    bool xdp_attached;
    uint32_t xdp_program; /* its number; 0: not known */
    char xdp_name[16];    /* "" also when only CAP_SYS_ADMIN could learn it */
    uint32_t queue_count; /* entries of `queues` that the kernel described */
    struct nic_queue queues[NIC_QUEUES_MAX];
    uint32_t context_count;
    struct nic_context contexts[NIC_CONTEXTS_MAX];
    uint32_t rule_count;
    struct nic_rule rules[NIC_RULES_MAX];
};

/* Fills `state` (large: allocate it). What a kernel or driver does not answer stays unknown, which is no error;
 * -ENODEV: no such interface here. nic_state_free frees the tables. */
int nic_read(const char *interface, struct nic_state *state, struct err *err);
void nic_state_free(struct nic_state *state);

/* ---- planning -------------------------------------------------------------------------------------------------- */

/* What a listener wants of a NIC. */
struct nic_wish {
    uint32_t queue_first; /* its queues follow each other */
    uint32_t queue_count;
    uint16_t port; /* TCP destination port, host order */
    bool want_ipv4, want_ipv6;
    uint32_t address4;    /* network order; 0: any */
    uint32_t buffer_size; /* bytes; 0: the driver's default */
};

enum nic_step_kind {
    NIC_STEP_FEATURE,  /* name, on */
    NIC_STEP_RINGS,    /* data_split, hds_thresh */
    NIC_STEP_CHANNELS, /* combined */
    NIC_STEP_RSS,      /* main table: equal over the first `value` queues */
    NIC_STEP_CONTEXT,  /* an RSS context of its own: equal over `count` queues from `value` on */
    NIC_STEP_DEFER,    /* value: interrupts held back, flush_ns */
    NIC_STEP_BUF_LEN,  /* queue, value; found: what undoing sets, 0 for the device's own */
    NIC_STEP_RULE      /* rule */
};

#define NIC_CONTEXT_NEW UINT32_MAX /* the context that an earlier step of the same plan makes */

struct nic_step {
    enum nic_step_kind kind;
    char name[32];
    uint32_t value;
    uint32_t count;
    uint32_t queue;
    uint32_t found;
    enum nic_switch data_split;
    struct ethtool_rx_flow_spec rule;
    uint64_t flush_ns;
    uint32_t context; /* of a rule with FLOW_RSS */
    bool is_optional; /* it works without, less well */
    bool is_reported; /* the kernel reports this state already, but a report is no proof that it was set */
    char command[NIC_TEXT_MAX]; /* what a person would type */
    char reason[NIC_TEXT_MAX];
};

struct nic_plan {
    uint32_t queue_first; /* zcrx: the queues that it is for */
    uint32_t queue_count;
    uint32_t step_count;
    struct nic_step steps[NIC_STEPS_MAX];
    uint32_t refusal_count; /* conditions no setting of ours can change */
    char refusals[8][NIC_TEXT_MAX];
};

/* Plans zero-copy receive. Steps come in the order in which they must be applied. A NIC that needs nothing gives a plan
 * without steps. */
void nic_plan_zcrx(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan);

/* What AF_XDP needs beyond the NIC's own report. */
struct nic_xdp_host {
    const char *release;    /* of the kernel; drivers of its own tree report it as their version */
    uint32_t cpus_possible; /* ixgbe has an XDP queue for each and 128 queues */
};

/* Whether the program that is attached is, by its name, of a penstock node. */
bool nic_xdp_is_penstock(const struct nic_state *state);
/* Plans AF_XDP with native XDP on an interface, whole. Refusals and steps as for zero-copy receive: each condition by name. That the
 * driver has XDP and zero-copy is its report, xdp_features, and not judged here. */
void nic_plan_xdp(const struct nic_state *state, const struct nic_xdp_host *host, struct nic_plan *plan);

/* What a listener on ordinary sockets asks of a NIC. */
struct nic_socket_wish {
    const uint32_t *queues;
    uint32_t queue_count; /* 0: every queue that RSS spreads connections over */
    uint32_t buffer_size; /* bytes, not 0 */
};

/* Plans receive buffers of that size for ordinary queues, which kernels with the patches 2xx of kernel/ offer. A refusal says why it
 * cannot be had here; the listener works all the same. */
void nic_plan_socket(const struct nic_state *state, const struct nic_socket_wish *wish,
                     struct nic_plan *plan);
/* Does this kernel let users set the length of a queue's receive buffers on this NIC? */
bool nic_has_buf_len(const struct nic_state *state);

/* What a listener wants of the queues. */
struct nic_xdp_wish {
    const uint16_t *queues; /* that workers serve */
    uint32_t queue_count;
    uint16_t port; /* TCP destination port, host order */
    bool want_ipv4, want_ipv6;
    uint32_t address4; /* network order; 0: any */
};

/* Adds to a plan what makes all packets of the port arrive on the wished queues: nothing if hashing uses no other, else a steering rule.
 * Frames on a queue that no worker serves would be dropped. */
void nic_plan_xdp_queues(const struct nic_state *state, const struct nic_xdp_wish *wish,
                         struct nic_plan *plan);

/* Adds to a plan what busy polling needs so that interrupts stay away while a worker polls: nothing if somebody has set it, or the
 * kernel does not have it. The step is optional. */
void nic_plan_busy_poll(const struct nic_state *state, struct nic_plan *plan);

/* The largest receive buffer the driver is known to take, bytes; 0: only its default; UINT32_MAX: not known. */
uint32_t nic_driver_buffer_max(const char *driver);
/* Does the driver have what zcrx needs (queue management and a DMA device), as far as known? */
bool nic_driver_has_zcrx(const char *driver);
/* Does it have RSS contexts beside the main table, as far as known? Without them several queues are fed by rules on bits of the
 * client's port. */
bool nic_driver_has_contexts(const char *driver);

/* ---- applying -------------------------------------------------------------------------------------------------- */

/* Carries the plan out; the journal of this interface (directory/nic-NAME.journal) gets each found value first and is synced.
 * On failure what this call has done is undone (earlier plans of the interface stay) and `err` names the step, the kernel's words and the
 * command. */
int nic_apply(const struct nic_state *state, const struct nic_plan *plan, const char *directory,
              struct err *err);
/* Plays the journal backwards and removes it. 0 also when there is none. Steps whose value has been changed by somebody else
 * since are left alone and named in the log. */
int nic_undo(const char *interface, const char *directory, struct err *err);

/* Keeps what was applied for nodes to find: each journal becomes directory/nic-NAME.kept, which only NIC_UNDO_ALL plays back. */
int nic_keep_all(const char *directory, struct err *err);

enum nic_undo_scope {
    NIC_UNDO_NODE,
    NIC_UNDO_ALL
}; /* journals that a run left behind; those and what is kept */
/* Undoes the journals in the directory. */
int nic_undo_all(const char *directory, enum nic_undo_scope scope, struct err *err);

/* What the kernel reports of a queue. 0, or -errno when the interface cannot be read. */
int nic_queue_read(const char *interface, uint32_t queue, struct nic_queue *out, struct err *err);

#endif
