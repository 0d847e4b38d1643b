/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls: the certificate and key of one listener, checked, and the OpenSSL context that is made from them.
 *
 * A context is shared by all workers. Its files may be read again while connections are open: those keep what they
 * began with, new ones get the new certificate, and files that are not good leave everything as it was. It must not
 * touch connections; tls_rx does.
 */
#ifndef SERVER_TLS_H
#define SERVER_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "conf/conf.h"

/* Bytes of plaintext in the largest record of TLS 1.2 and 1.3. */
#define TLS_RECORD_MAX 16384U
/* A certificate that ends sooner than this is worth a warning. */
#define TLS_EXPIRY_WARN_DAYS 14

struct tls_context;

/* What a person wants to know of the certificate in use. */
struct tls_certificate {
    char subject[256];
    char not_after[32]; /* as OpenSSL prints times */
    int days_left;
};

/* Looks at the files of a listener as opening them would: readable, the key its owner's only, certificate valid today,
 * key and certificate a pair. `out` may be NULL. 0, or ERR_INVALID_CONFIG or -errno with the file and the remedy. */
int tls_files_check(const struct conf_listener *conf, struct tls_certificate *out, struct err *err);

/* Opens the context of a listener that has tls.certificate. `conf` must outlive it. Not from a worker's loop. */
int tls_context_open(const struct conf_listener *conf, struct tls_context **out,
                     struct tls_certificate *about, struct err *err);
/* Reads the files again. On failure the old certificate stays in use. Any thread. */
int tls_context_reload(struct tls_context *context, struct tls_certificate *about, struct err *err);
/* Connections that still use it keep what they need. NULL does nothing. */
void tls_context_close(struct tls_context *context);

/* A server-side connection by the certificate now in use, without BIOs; NULL without memory. Any thread. */
SSL *tls_context_ssl(struct tls_context *context);

#endif
