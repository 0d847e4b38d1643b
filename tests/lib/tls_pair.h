/* SPDX-License-Identifier: Apache-2.0 */
/* tls_pair: writes a self-signed certificate and its key, so that a test needs no file from anywhere. */
#ifndef TESTS_LIB_TLS_PAIR_H
#define TESTS_LIB_TLS_PAIR_H

#include <sys/stat.h>

struct tls_pair {
    const char *certificate; /* path, or NULL: not written */
    const char *key;         /* path, or NULL: not written */
    const char *name;        /* common name */
    long from_s;             /* valid from and to, in seconds from now */
    long to_s;
    mode_t key_mode;
    const char *password; /* of the key file, or NULL */
};

/* Asserts that it worked. */
void tls_pair_write(const struct tls_pair *pair);

#endif
