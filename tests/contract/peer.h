/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer: the client side of the receive contract's connections: plain sockets, or TLS over them. The calls are those of
 * sockets, so a case is written once. Descriptors below PEER_FDS_MAX, non-blocking.
 */
#ifndef TESTS_CONTRACT_PEER_H
#define TESTS_CONTRACT_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PEER_FDS_MAX 1024

/* From here on the descriptor speaks TLS. */
void peer_tls_begin(int fd);
/* One step of the handshake; true when it is done. Asserts that it does not fail. */
bool peer_tls_is_ready(int fd);
/* Like send with MSG_NOSIGNAL; TLS takes all or nothing. */
ssize_t peer_send(int fd, const void *bytes, size_t len);
/* Like recv; 0 is FIN, or close_notify. */
ssize_t peer_recv(int fd, void *to, size_t len);
/* The end of our bytes: FIN, or close_notify and then FIN. False: not all is out yet, call again. */
bool peer_shutdown(int fd);
/* Moves what waits towards the sockets. */
void peer_flush_all(void);
int peer_close(int fd);

#endif
