// SPDX-License-Identifier: Apache-2.0
//
// AWS Signature Version 4 on request heads: Authorization header and presigned query.
//
// Three steps, so that key lookup stays with the caller: auth_sigv4_read() finds out who claims to sign and how;
// the caller looks the key up (auth_keys.h); auth_sigv4_verify() checks the signature in constant time.
// Must not read a clock (now is a parameter), allocate on its own account, or log anything: secrets and signatures never
// leave this file except in struct auth_sigv4_context.
//
// Canonicalisation: the path is tried exactly as received, then decoded and re-encoded, because curl signs the former and
// SDKs the latter; nothing is normalised. A query is tried the same two ways. Header values are used as received, trimmed
// and with inner white space collapsed.

#ifndef SERVER_AUTH_SIGV4_H
#define SERVER_AUTH_SIGV4_H

#include <stdbool.h>
#include <stdint.h>

#include "server/auth_payload.h"
#include "server/http_date.h"
#include "server/http_head.h"
#include "server/s3_error.h"
#include "server/s3_target.h"
#include "server/text.h"

#define AUTH_ACCESS_KEY_MAX 128u
#define AUTH_SECRET_MAX 128u
#define AUTH_REGION_MAX 64u
#define AUTH_SKEW_DEFAULT_S 900
#define AUTH_EXPIRES_MAX_S 604800u
#define AUTH_SIGNED_HEADERS_MAX 64u

enum auth_scheme {
    AUTH_SCHEME_NONE, // no credentials in the request: anonymous
    AUTH_SCHEME_HEADER,
    AUTH_SCHEME_QUERY,
};

struct auth_sigv4 {
    enum auth_scheme scheme;
    struct text access_key;
    struct text scope;      // "20130524/us-east-1/s3/aws4_request"
    struct text scope_date; // its first part
    struct text region;
    struct text signed_headers;
    struct text signature; // 64 hex digits
    struct text
        timestamp; // "20130524T000000Z", normalised into timestamp_text when it came from a Date header
    int64_t time_s;
    uint32_t expires_s; // presigned only
    char timestamp_text[HTTP_DATE_BASIC_SIZE];
};

// Finds and parses credentials. S3_OK with scheme NONE when there are none. target supplies the decoded parameters of a
// presigned query. region is what we call ourselves; absent accepts any.
// Errors: AUTH_V2, AUTH_UNSUPPORTED, AUTH_TWICE, AUTH_HEADER_MALFORMED, AUTH_QUERY_MALFORMED, MISSING_DATE; AUTH_HEADER_REGION and
// AUTH_QUERY_REGION when only the region is not ours.
// Texts point into buffer, into the scratch of target, or into *auth: do not copy the struct, and keep both alive.
enum s3_error auth_sigv4_read(struct auth_sigv4 *auth, const struct http_head *head, const char *buffer,
                              const struct s3_target *target, struct text region, int64_t now_s);

// The 32-byte signing key for one secret, date and region.
void auth_sigv4_signing_key(struct text secret, struct text date, struct text region, uint8_t key[32]);

// Cache of signing keys: deriving one takes four HMACs, and it changes once a day. One cache per worker, no locks.
// generation comes from the key store: when it moves, every entry is stale.
#define AUTH_CACHE_ENTRIES 64u
struct auth_sigv4_cache {
    uint64_t generation;
    uint64_t hits;
    uint64_t misses;
    struct auth_sigv4_cache_entry {
        uint8_t id[32]; // SHA-256 over access key, date and region
        uint8_t key[32];
        uint64_t used; // 0: free
    } entries[AUTH_CACHE_ENTRIES];
    uint64_t turn;
};
void auth_sigv4_cache_begin(struct auth_sigv4_cache *cache);
// As auth_sigv4_signing_key(), from the cache when it is there.
void auth_sigv4_cache_key(struct auth_sigv4_cache *cache, uint64_t generation, struct text access_key,
                          struct text secret, struct text date, struct text region, uint8_t key[32]);
// Wipes all keys.
void auth_sigv4_cache_end(struct auth_sigv4_cache *cache);

// What chunk signatures continue from (auth_chunked.h). A plain value: copy it freely, wipe it after use.
struct auth_sigv4_context {
    uint8_t signing_key[32];
    char seed_signature[64]; // lower-case hex, no NUL
    char timestamp[16];
    char scope[AUTH_REGION_MAX + 40];
    uint32_t scope_len;
};

struct auth_sigv4_check {
    int64_t now_s;
    uint32_t skew_s; // AUTH_SKEW_DEFAULT_S
    const uint8_t *signing_key;
    // Set on HEADERS_NOT_SIGNED: the first unsigned header, for the HeadersNotSigned element. Borrowed from buffer.
    struct text unsigned_header;
};

// Verifies. payload is what auth_payload_read() found. *context is set on success. Errors: SIGNATURE_MISMATCH,
// REQUEST_TIME_SKEWED, REQUEST_EXPIRED, REQUEST_NOT_YET_VALID, HEADERS_NOT_SIGNED, AUTH_HEADER_MALFORMED, CONTENT_SHA256_MISSING (header
// authentication, a body, and no x-amz-content-sha256).
enum s3_error auth_sigv4_verify(const struct auth_sigv4 *auth, const struct http_head *head,
                                const char *buffer, const struct s3_target *target,
                                struct auth_sigv4_check *check, struct auth_sigv4_context *context);

#endif
