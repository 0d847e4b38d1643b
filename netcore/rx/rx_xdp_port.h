/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_xdp_port: what the af_xdp instances of one process share: per interface one XDP program, attached by the first and detached by
 * the last, and the addresses and ports that it takes for them. Only for files of this folder. Start-up and shut-down; blocks.
 */
#ifndef RX_RX_XDP_PORT_H
#define RX_RX_XDP_PORT_H

#include "ring/xsk_load.h"
#include "rx/rx.h"

struct xdp_port;

struct xdp_interface {
    uint32_t mtu;
    uint32_t nic_ring; /* descriptors of a receive ring; 0: the driver does not say */
};

/* Asks the kernel. */
int xdp_interface_read(const char *name, struct xdp_interface *interface, struct err *err);

int xdp_port_take(const char *interface, bool want_multi, struct xdp_port **out, struct err *err);
void xdp_port_give(struct xdp_port *port);
struct xsk_program *xdp_port_program(struct xdp_port *port);

/* The listener's address; for "any" all that the host has now. Each is counted, so that every worker may ask. */
int xdp_port_listen(struct xdp_port *port, const struct sockaddr_storage *address, struct err *err);
void xdp_port_unlisten(struct xdp_port *port, const struct sockaddr_storage *address);

/* v4-mapped; all zeros for either "any". */
void xdp_address_bytes(const struct sockaddr_storage *address, uint8_t bytes[16], uint16_t *port);

#endif
