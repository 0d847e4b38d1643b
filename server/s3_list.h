// SPDX-License-Identifier: Apache-2.0
//
// The parts of a listing that are pure: reading its parameters, continuation tokens. The walk over keys is the index's
// (storage/index_list.c).

#ifndef SERVER_S3_LIST_H
#define SERVER_S3_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/s3_error.h"
#include "server/s3_target.h"
#include "server/text.h"

#define S3_LIST_KEYS_MAX 1000u

// A continuation token is base64url of {version, kind, key, CRC}: opaque to clients, self-checking for us.
#define S3_LIST_TOKEN_MAX ((S3_KEY_MAX + 6 + 2) / 3 * 4)

// Where a page starts. Everything up to and including `after` is skipped; with after_is_prefix everything that starts
// with `after` is skipped, too (the last thing on the page before was that common prefix).
struct s3_list_params {
    bool is_v2;
    bool encode_url;         // encoding-type=url was asked for
    bool fetch_owner;        // V2 only; V1 always has the owner
    uint32_t max_keys;       // 0..1000
    struct text prefix;      // empty when absent
    struct text delimiter;   // empty when absent
    struct text start_after; // V2 start-after or V1 marker, as sent; absent when not sent
    struct text token;       // V2 continuation-token, as sent; absent when not sent
    struct text after;       // the effective start; absent at the beginning
    bool after_is_prefix;
    char token_key[S3_KEY_MAX]; // storage behind `after` when it came from a token
};

// Reads the query of ListObjects (V1), ListObjectsV2 or, for its common part, ListObjectVersions (key-marker).
// Errors: INVALID_MAX_KEYS, INVALID_TOKEN, INVALID_ENCODING_TYPE, INVALID_ARGUMENT. Texts are borrowed from target.
// A V1 marker that ends in the delimiter counts as a common prefix, since V1 clients send NextMarker back.
enum s3_error s3_list_params_read(struct s3_list_params *params, const struct s3_target *target);

// Writes a token for "continue behind key (or behind the common prefix)". key.len <= S3_KEY_MAX (CHECKed).
size_t s3_list_token_write(struct text key, bool is_prefix, char out[S3_LIST_TOKEN_MAX]);

// Decodes into key[S3_KEY_MAX]; false when it is not one of ours.
bool s3_list_token_read(struct text token, char *key, size_t *key_len, bool *is_prefix);

#endif
