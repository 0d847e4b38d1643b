/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of rx.h, run against TLS over the socket backend with OpenSSL clients: the same cases, because nothing above
 * the receive interface may notice the difference. They are the other program's source, built with another default.
 */
#define RX_BACKEND_DEFAULT "tls"
#include "test_rx_contract.c"
