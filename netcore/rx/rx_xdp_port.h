/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_xdp_port: what the af_xdp instances of one process share: per interface one XDP program, attached by the first and detached by
 * the last, and the addresses and ports that it takes for them. Only for files of this folder. Start-up and shut-down, and then a few
 * system calls now and then (xdp_port_watch); blocks.
 */
#ifndef RX_RX_XDP_PORT_H
#define RX_RX_XDP_PORT_H

#include "ring/xsk_load.h"
#include "rx/rx.h"

/* With an MTU above, drivers want a program that knows frames of several buffers. */
#define XDP_MTU_ONE_FRAME 3498U

struct xdp_port;

struct xdp_interface {
    uint32_t mtu;
    uint32_t nic_ring; /* descriptors of a receive ring; 0: the driver does not say */
};

/* Asks the kernel. */
int xdp_interface_read(const char *name, struct xdp_interface *interface, struct err *err);
bool xdp_interface_is_running(const char *name);
/* 0: there is no such interface. */
uint32_t xdp_interface_mtu(const char *name);
/* Receive queues it has now. 0: the driver does not say. */
uint32_t xdp_interface_queues(const char *name);
/* Says in the log what is odd about an address on an interface: another interface has it, or routes lead elsewhere. */
void xdp_interface_advise(const char *name, const struct sockaddr_storage *address);

int xdp_port_take(const char *interface, bool want_multi, struct xdp_port **out, struct err *err);
void xdp_port_give(struct xdp_port *port, const void *user);
struct xsk_program *xdp_port_program(struct xdp_port *port);

/* The listener's address; for "any" all that the host has now. Each is counted, so that every worker may ask. */
int xdp_port_listen(struct xdp_port *port, const struct sockaddr_storage *address, struct err *err);
void xdp_port_unlisten(struct xdp_port *port, const struct sockaddr_storage *address);

/* Attaches the program again if somebody has detached it, or if the interface has got queues on which its driver does not run it.
 * True: it is attached. */
bool xdp_port_watch(struct xdp_port *port, uint64_t now_ns);
/* Grows when the program was attached again, or the host has other interfaces than before. Any thread. */
uint64_t xdp_port_generation(const struct xdp_port *port);
/* Of one user only, so that sums over workers are right: the program's counters and how often it was attached again. False: of another. */
bool xdp_port_counters(struct xdp_port *port, const void *user, uint64_t reasons[XSK_PROG_REASONS],
                       uint64_t *reattached);

/* Strays: a segment may arrive at a queue of a worker that does not know its connection, because hashing was changed (ethtool -X) or is
 * not by address and port. It is handed from worker to worker, as a copy, until one knows it or all were asked. */
struct xdp_stray {
    uint32_t len;
    uint32_t hops; /* workers asked so far */
    uint8_t *frame;
};
/* A place for this worker's strays of up to `frame_max` bytes each; `event_fd` is the port's, readable when one has come. Returns the
 * place, or -errno. */
int xdp_port_strays_open(struct xdp_port *port, uint32_t frame_max, int *event_fd);
void xdp_port_strays_close(struct xdp_port *port, int place);
/* How many workers may know a segment. */
uint32_t xdp_port_strays_count(const struct xdp_port *port);
/* Gives a copy to the next place after `place`. False: there is none, or it is full. */
bool xdp_port_stray_pass(struct xdp_port *port, int place, const struct xdp_stray *stray);
/* The oldest stray of a place, copied into stray->frame (frame_max bytes). False: there is none. */
bool xdp_port_stray_take(struct xdp_port *port, int place, struct xdp_stray *stray);

/* v4-mapped; all zeros for either "any". */
void xdp_address_bytes(const struct sockaddr_storage *address, uint8_t bytes[16], uint16_t *port);

#endif
