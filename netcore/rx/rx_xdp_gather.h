/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx_xdp_gather: makes of a jumbo frame's buffers what a device takes. Pure, but for the bytes that it moves.
 *
 * A jumbo frame lies in several buffers, and where its payload begins and ends in those behind the first has no alignment that a device
 * would take. Their bytes are moved to the beginning of their buffers, close together: all but the last are then full.
 */
#ifndef RX_RX_XDP_GATHER_H
#define RX_RX_XDP_GATHER_H

#include "tcp/tcp_wire.h"

/* `area` is that of the UMEM, a part's token its buffer. Adds to `moved` what was moved. Returns how many parts are left; buffers of the
 * others hold nothing any more. */
uint32_t xdp_gather(struct tcp_part *parts, uint32_t count, uint8_t *area, uint64_t *moved);

#endif
