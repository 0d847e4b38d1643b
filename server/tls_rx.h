/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls_rx: TLS over the socket backend, as a receive backend: it meets the contract of rx.h, so nothing above it knows
 * whether a connection is encrypted. Ciphertext arrives in buffers of an inner rx_socket; plaintext is decrypted into
 * buffers of this filter's own part of the listener's receive area, laid out by the same placement rule, so that the
 * writer takes it as it lies. That one copy is counted with reason `tls`.
 *
 * What differs from plain TCP, as the consumer sees it:
 *  - RX_OPEN comes when the connection was accepted; the handshake follows and has a deadline (RX_RESET, -ETIMEDOUT).
 *  - RX_EOF is the peer's close_notify. A FIN without it may be an attacker cutting the stream: RX_RESET, -ECONNABORTED.
 *  - a protocol error is RX_RESET, -EPROTO.
 *
 * Private-key operations run on a thread of the instance's own, so a storm of handshakes does not stall the worker.
 */
#ifndef SERVER_TLS_RX_H
#define SERVER_TLS_RX_H

#include "rx/rx.h"
#include "server/metrics.h"
#include "server/tls.h"

/* struct rx_options.filter of tls_rx_ops; copied by rx_open. */
struct tls_rx_options {
    struct tls_context *context; /* outlives the instance */
    uint64_t handshake_timeout_ns;
    struct store_port *port;        /* counts copies; NULL: nobody counts */
    struct metrics_listener *cells; /* of this worker; NULL: nobody counts */
};

extern const struct rx_ops tls_rx_ops;

#endif
