// SPDX-License-Identifier: Apache-2.0
//
// The aws-chunked body encoding: payload runs out of "hex[;chunk-signature=...]\r\n payload \r\n", chunk signatures, the
// trailer checksum and the trailer signature.
//
// Sits behind http_chunked when the body is also Transfer-Encoding: chunked: feed it the runs found there. Payload is
// never copied; runs point into the input. Signed chunks are hashed as they pass, and their signature is known to be good
// only when the chunk has ended: nothing may become visible before AUTH_CHUNKED_DONE.
// The same bytes give the same runs and the same verdict however they are split.

#ifndef SERVER_AUTH_CHUNKED_H
#define SERVER_AUTH_CHUNKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/auth_sigv4.h"
#include "server/http_chunked.h"
#include "server/s3_checksum.h"
#include "server/s3_error.h"

#define AUTH_CHUNKED_LINE_MAX 512u   // a size line with its signature, or one trailer line
#define AUTH_CHUNKED_TRAILERS_MAX 8u // trailer lines
#define AUTH_CHUNKED_SIZE_MIN                                                                                \
    8192u // chunks but the last must not be smaller when they are signed, as S3 demands

enum auth_chunked_status {
    AUTH_CHUNKED_MORE, // the whole input is consumed
    AUTH_CHUNKED_RUN,  // a payload run; call again behind it
    AUTH_CHUNKED_DONE, // complete and every signature was good; further input may only be the one CRLF that some clients
                       // send behind their trailers, which another step takes
    AUTH_CHUNKED_BAD, // `error` is the S3 error
};

struct auth_chunked {
    // Results.
    enum s3_error error;
    uint64_t payload_bytes; // handed out so far
    struct s3_checksum_expected
        trailer; // after DONE: the checksum from the trailer; kind NONE when none came

    // Private to auth_chunked.c.
    struct auth_payload_info info;
    struct auth_sigv4_context context;
    struct s3_checksum hash; // SHA-256 of the current chunk
    bool is_verified;        // false: signatures are parsed but not checked (anonymous listener)
    bool has_trailer_signature;
    bool had_short_chunk;
    bool had_empty_line;
    bool had_bare_lf;
    uint8_t state;
    uint32_t line_len;
    uint32_t trailer_count;
    uint32_t trailer_text_len;
    uint64_t remaining;
    char signature[64]; // the current chunk's, as received
    char line[AUTH_CHUNKED_LINE_MAX];
    char trailer_text
        [AUTH_CHUNKED_LINE_MAX]; // canonical "name:value\n" of the trailers, for the trailer signature
};

// context may be NULL: then chunk signatures are not verified (only where the listener authenticates nobody). info must
// be a streaming form (CHECKed). 0 or -ENOMEM; afterwards the caller owes one auth_chunked_end().
int auth_chunked_begin(struct auth_chunked *chunked, const struct auth_payload_info *info,
                       const struct auth_sigv4_context *context);

// As http_chunked_step(): skip framing, then a run of payload.
// Errors: SIGNATURE_MISMATCH, INVALID_CHUNK_SIZE, INCOMPLETE_BODY (bad syntax, or more or fewer bytes than
// x-amz-decoded-content-length), MALFORMED_TRAILER, INVALID_CHECKSUM.
enum auth_chunked_status auth_chunked_step(struct auth_chunked *chunked, const void *in, size_t len,
                                           struct http_chunked_span *span);

// The body has ended (its Content-Length is used up, or the HTTP chunks are done). S3_OK only after DONE, else
// INCOMPLETE_BODY or the error before.
enum s3_error auth_chunked_finish(const struct auth_chunked *chunked);

// Wipes the signing key and frees the hash.
void auth_chunked_end(struct auth_chunked *chunked);

#endif
