/* SPDX-License-Identifier: Apache-2.0 */
/* xsk_prog: what the XDP program (xsk_prog.bpf.c) and its loader share: the key of a listener and why a frame went where it went. */
#ifndef RING_XSK_PROG_H
#define RING_XSK_PROG_H

#include <linux/types.h>

/* Whole bytes only and no padding: the kernel hashes and compares it as memory. */
struct xsk_prog_key {
    __u8 addr[16]; /* v4-mapped for IPv4 */
    __u16 port;    /* network order; 0: "some listener has this address" */
    __u16 zero;
};

struct xsk_prog_settings {
    __u8 mac[6]; /* of the interface; frames for our ports to another one are dropped */
    __u16 zero;
};

/* Each frame is counted once. The texts are those of xsk_prog_reason_text. */
enum xsk_prog_reason {
    XSK_PROG_TAKEN,       /* given to the socket of its queue */
    XSK_PROG_NO_SOCKET,   /* ours, but no socket on this queue: dropped, so that the kernel does not answer */
    XSK_PROG_FRAGMENT,    /* first fragment for one of our ports: dropped */
    XSK_PROG_UNCLEAR,     /* TCP for an address of ours whose port cannot be found: dropped */
    XSK_PROG_FOREIGN_MAC, /* for our address and port, but another station's frame: dropped */
    XSK_PROG_PASS_NOT_IP, /* ARP, LLDP, ...: the kernel's */
    XSK_PROG_PASS_NOT_TCP,  /* ICMP, ND, UDP, ... */
    XSK_PROG_PASS_NOT_OURS, /* TCP to other addresses or ports, later fragments */
    XSK_PROG_REASONS
};

#endif
