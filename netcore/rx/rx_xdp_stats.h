/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_xdp_stats: what is counted below the byte streams of af_xdp: by the TCP engine, the XDP program and the AF_XDP sockets. One struct
 * per worker and interface, written by the worker now and then (RX_XDP_STATS_NS), read by whoever shows metrics.
 */
#ifndef RX_RX_XDP_STATS_H
#define RX_RX_XDP_STATS_H

#include <stdint.h>

#include "ring/xsk_prog.h"
#include "tcp/tcp_counters.h"

#define RX_XDP_SOCKET_LIST(X)                                                                                \
    X(received, "packets taken from AF_XDP sockets")                                                         \
    X(sent, "packets handed to the driver")                                                                  \
    X(completed, "packets that the driver has sent")                                                         \
    X(wakeups, "system calls that woke the driver")                                                          \
    X(busy_polls, "system calls that had the driver work in the worker's own time")                          \
    X(busy_stopped, "times busy polling made no progress, so that interrupts took over")                     \
    X(tx_busy, "times the driver asked to be woken again")                                                   \
    X(tx_no_room, "times a packet had to wait for a frame or a place in the ring")                           \
    X(tx_lost, "packets that were lost with a socket that was renewed")                                      \
    X(link_down, "outages in which a socket had something to send")                                          \
    X(wrong, "descriptors that cannot be: kernel or driver is broken")                                       \
    X(rx_dropped, "frames that the kernel dropped for other reasons than those below")                       \
    X(rx_ring_full, "frames dropped because the worker did not take them in time")                           \
    X(fill_ring_empty, "times the driver found no free frame")                                               \
    X(invalid, "descriptors of ours that the kernel refused")                                                \
    X(lost, "times the sockets of an interface were of no use any more")                                     \
    X(renewed, "times they were opened again")                                                               \
    X(reattached, "times the XDP program was attached again: somebody had detached it, or veth got queues")  \
    X(stuck, "times nothing that was sent had been completed within the deadline")                           \
    X(strayed,                                                                                               \
      "segments that arrived at another worker's queue than their connection's, and were carried over")      \
    X(strays_lost, "such segments that were dropped because too many were under way")                        \
    X(too_big, "ICMP too-big messages looked at")

#define RX_XDP_STATE_LIST(X)                                                                                 \
    X(frames_free, "frames that nobody has")                                                                 \
    X(frames_fill, "frames that wait to be filled")                                                          \
    X(frames_held, "frames that engine and consumers hold")                                                  \
    X(frames_sending, "frames being sent")                                                                   \
    X(frames_out_of_order, "frames held because something before them is missing")                           \
    X(conns, "connections")                                                                                  \
    X(syns, "half-open connections")                                                                         \
    X(time_waits, "connections in TIME-WAIT")                                                                \
    X(queues_zero_copy, "receive queues served by native XDP with zero-copy")                                \
    X(queues_one_copy, "receive queues served by native XDP with one copy")                                  \
    X(queues_generic, "receive queues served by generic XDP")                                                \
    X(queues_unserved, "receive queues without a socket, new or being renewed: they drop")

#define RX_XDP_SOCKET_ENUM(name, help) RX_XDP_SOCKET_##name,
#define RX_XDP_STATE_ENUM(name, help) RX_XDP_STATE_##name,
enum rx_xdp_socket_counter { RX_XDP_SOCKET_LIST(RX_XDP_SOCKET_ENUM) RX_XDP_SOCKETS };
enum rx_xdp_state_gauge { RX_XDP_STATE_LIST(RX_XDP_STATE_ENUM) RX_XDP_STATES };
#undef RX_XDP_SOCKET_ENUM
#undef RX_XDP_STATE_ENUM

struct rx_xdp_stats {
    _Atomic uint64_t tcp[TCP_COUNTERS];
    _Atomic uint64_t
        program[XSK_PROG_REASONS]; /* of the interface: kept by one of its workers, zero at the others */
    _Atomic uint64_t sockets[RX_XDP_SOCKETS];
    _Atomic uint64_t states[RX_XDP_STATES];
};

/* NULL past the end. */
const char *rx_xdp_socket_name(uint32_t counter);
const char *rx_xdp_socket_help(uint32_t counter);
const char *rx_xdp_state_name(uint32_t gauge);
const char *rx_xdp_state_help(uint32_t gauge);
const char *rx_xdp_tcp_name(uint32_t counter);
const char *rx_xdp_tcp_help(uint32_t counter);
const char *rx_xdp_verdict_name(uint32_t verdict);
const char *rx_xdp_verdict_help(uint32_t verdict);

#endif
