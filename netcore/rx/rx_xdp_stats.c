/* SPDX-License-Identifier: Apache-2.0 */
/* rx_xdp_stats: names and meanings of af_xdp's counters, those of engine and program included. Pure. */
#include "rx/rx_xdp_stats.h"

#include <stddef.h>

#include "base/bytes.h"
#include "ring/xsk_load.h"

#define NAME_OF(name, help) #name,
#define HELP_OF(name, help) help,

const char *rx_xdp_socket_name(uint32_t counter)
{
    static const char *const names[] = {RX_XDP_SOCKET_LIST(NAME_OF)};
    return counter < ARRAY_COUNT(names) ? names[counter] : NULL;
}

const char *rx_xdp_socket_help(uint32_t counter)
{
    static const char *const helps[] = {RX_XDP_SOCKET_LIST(HELP_OF)};
    return counter < ARRAY_COUNT(helps) ? helps[counter] : NULL;
}

const char *rx_xdp_state_name(uint32_t gauge)
{
    static const char *const names[] = {RX_XDP_STATE_LIST(NAME_OF)};
    return gauge < ARRAY_COUNT(names) ? names[gauge] : NULL;
}

const char *rx_xdp_state_help(uint32_t gauge)
{
    static const char *const helps[] = {RX_XDP_STATE_LIST(HELP_OF)};
    return gauge < ARRAY_COUNT(helps) ? helps[gauge] : NULL;
}

const char *rx_xdp_tcp_name(uint32_t counter)
{
    return tcp_counter_name((enum tcp_counter)counter);
}

const char *rx_xdp_tcp_help(uint32_t counter)
{
    return tcp_counter_help((enum tcp_counter)counter);
}

const char *rx_xdp_verdict_name(uint32_t verdict)
{
    return verdict < XSK_PROG_REASONS ? xsk_prog_reason_text((enum xsk_prog_reason)verdict) : NULL;
}

const char *rx_xdp_verdict_help(uint32_t verdict)
{
    return verdict < XSK_PROG_REASONS ? xsk_prog_reason_help((enum xsk_prog_reason)verdict) : NULL;
}
