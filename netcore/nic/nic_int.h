/* SPDX-License-Identifier: Apache-2.0 */
/* nic_int: shared by the files of this folder and their tests: parsers of single netlink answers, ioctl, flow specs. */
#ifndef NIC_NIC_INT_H
#define NIC_NIC_INT_H

#include <netlink/attr.h>
#include <netlink/msg.h>

#include "nic/nic.h"

/* Each fills its part of the struct nic_state behind `ctx` from one answer. */
void nic_parse_rings(void *ctx, const struct nlattr *first, int len);
void nic_parse_channels(void *ctx, const struct nlattr *first, int len);
void nic_parse_features(void *ctx, const struct nlattr *first, int len);
void nic_parse_rss(void *ctx, const struct nlattr *first, int len);
void nic_parse_dev(void *ctx, const struct nlattr *first, int len);
void nic_parse_queue(void *ctx, const struct nlattr *first, int len);

/* SIOCETHTOOL with a command struct. 0 or -errno. */
int nic_ioctl(const char *interface, void *command);
/* The request header that names the interface. 0 or -ENOMEM. */
int nic_header_put(struct nl_msg *message, int attribute, uint32_t index);

/* Pure: the rule that steers TCP to `port` (and address, if not 0) into `queue`. */
void nic_flow_rule(bool ipv6, uint16_t port, uint32_t address4, uint32_t queue,
                   struct ethtool_rx_flow_spec *spec);
/* Pure: do two rules match the same packets? (Queue and location are not compared.) */
bool nic_flow_same_match(const struct ethtool_rx_flow_spec *a, const struct ethtool_rx_flow_spec *b);

#endif
