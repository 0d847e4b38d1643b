/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw: one connection is one object. Bytes from connect to FIN are the payload; after the durable commit one line is
 * answered and the connection ends:
 *
 *     key=captures-2026/a%20b size=1234 crc32c=0a1b2c3d
 *     error=RequestTimeout ...
 *
 * FIN is the only sign of completeness that TCP gives, and a dying sender's kernel may send one, too. So a first line
 *     PENSTOCK/1 [key=K] [size=N] [crc32c=8 hex digits]
 * (single spaces, K percent-encoded, in any order, ended by LF) makes it checkable: what does not match is not stored.
 * A connection that ends before its first byte stores nothing. RST or a timeout before FIN stores nothing.
 */
#ifndef SERVER_RAW_H
#define SERVER_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/conn.h"
#include "server/text.h"
#include "storage/store.h"

extern const struct conn_protocol raw_protocol;

/* What a preamble said. */
struct raw_preamble {
    bool has_key;
    bool has_crc32c;
    uint64_t size; /* UINT64_MAX: not said */
    uint32_t crc32c;
    struct store_name key;
};

#define RAW_PREAMBLE "PENSTOCK/1"

/* Parses a line without its LF (a CR before it is dropped). NULL, or what is wrong with it. Pure. */
const char *raw_preamble_parse(struct text line, struct raw_preamble *preamble);

struct raw_name {
    const char *node;
    const char *listener;
    uint64_t wall_ns;
    const struct sockaddr_storage *peer;
    uint64_t sequence;
};
/* Fills a key template in. Pure. False when the key would be empty or longer than STORE_KEY_MAX. */
bool raw_key_format(const char *template, const struct raw_name *name, struct store_name *key);

#endif
