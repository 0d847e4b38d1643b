/* SPDX-License-Identifier: Apache-2.0 */
/* nic_int: shared by the files of this folder and their tests: parsers of single netlink answers, ioctl, flow specs. */
#ifndef NIC_NIC_INT_H
#define NIC_NIC_INT_H

#include <netlink/attr.h>
#include <netlink/msg.h>

#include "nic/nic.h"

/* Numbers of the kernel patches 201 and 203 (kernel/README.md). No released Linux has them, and a later one may give them to
 * something else: nic_has_buf_len therefore wants all of the answers to make sense together before a request is sent. */
#define NIC_NETDEV_CMD_QUEUE_SET 17
#define NIC_NETDEV_A_QUEUE_RX_BUF_LEN 9
#define NIC_ETHTOOL_A_RINGS_RX_BUF_LEN_MAX 19

/* Each fills its part of the struct nic_state behind `ctx` from one answer. */
void nic_parse_rings(void *ctx, const struct nlattr *first, int len);
void nic_parse_channels(void *ctx, const struct nlattr *first, int len);
void nic_parse_features(void *ctx, const struct nlattr *first, int len);
void nic_parse_rss(void *ctx, const struct nlattr *first, int len);
void nic_parse_dev(void *ctx, const struct nlattr *first, int len);
void nic_parse_queue(void *ctx, const struct nlattr *first, int len);
/* Page pools belong to a queue by its NAPI instance, so queues are parsed before them. */
void nic_parse_page_pool(void *ctx, const struct nlattr *first, int len);

/* SIOCETHTOOL with a command struct. 0 or -errno. */
int nic_ioctl(const char *interface, void *command);
/* The request header that names the interface. 0 or -ENOMEM. */
int nic_header_put(struct nl_msg *message, int attribute, uint32_t index);

/* Pure: the rule that steers TCP to `port` (and address, if not 0) into `queue`. */
void nic_flow_rule(bool ipv6, uint16_t port, uint32_t address4, uint32_t queue,
                   struct ethtool_rx_flow_spec *spec);
/* Pure: narrows a rule to part `part` of `parts` (a power of two), by bits of the client's port. */
void nic_flow_split(struct ethtool_rx_flow_spec *spec, uint32_t part, uint32_t parts);
/* Pure: do two rules match the same packets? (Queue, location and RSS context are not compared.) */
bool nic_flow_same_match(const struct ethtool_rx_flow_spec *a, const struct ethtool_rx_flow_spec *b);

/* Pure: does the context spread over these queues, all of them and no other? */
bool nic_context_is_over(const struct nic_context *context, uint32_t first, uint32_t count);

/* nic_plan.c */
struct nic_step *nic_plan_step(struct nic_plan *plan, enum nic_step_kind kind);
__attribute__((format(printf, 2, 3))) void nic_plan_refuse(struct nic_plan *plan, const char *format, ...);
/* nic_steer.c: who else reaches our queues, and what leads our port to them. */
void nic_plan_rss(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan);
void nic_plan_steering(const struct nic_state *state, const struct nic_wish *wish, struct nic_plan *plan);

#endif
