// SPDX-License-Identifier: Apache-2.0
//
// How a request says its body is protected and framed: x-amz-content-sha256 and what belongs to it.
//
// A pure reading of the head. The literal value of the header takes part in the signature (auth_sigv4.c); what it demands
// of the body is checked by whoever reads the body.

#ifndef SERVER_AUTH_PAYLOAD_H
#define SERVER_AUTH_PAYLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "server/http_head.h"
#include "server/s3_checksum.h"
#include "server/s3_error.h"
#include "server/s3_target.h"
#include "server/text.h"

// How the body is protected, from x-amz-content-sha256.
enum auth_payload {
    AUTH_PAYLOAD_UNSIGNED,         // UNSIGNED-PAYLOAD, or nothing said in an anonymous or presigned request
    AUTH_PAYLOAD_SHA256,           // hex digest of the whole body: verify against `sha256`
    AUTH_PAYLOAD_SIGNED_CHUNKS,    // STREAMING-AWS4-HMAC-SHA256-PAYLOAD
    AUTH_PAYLOAD_SIGNED_TRAILER,   // STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER
    AUTH_PAYLOAD_UNSIGNED_TRAILER, // STREAMING-UNSIGNED-PAYLOAD-TRAILER
};

static inline bool auth_payload_is_streaming(enum auth_payload payload)
{
    return payload >= AUTH_PAYLOAD_SIGNED_CHUNKS;
}

// What the head says about its body.
struct auth_payload_info {
    enum auth_payload payload;
    uint8_t sha256[32];            // for AUTH_PAYLOAD_SHA256
    uint64_t decoded_length;       // x-amz-decoded-content-length; streaming forms only
    enum s3_checksum_kind trailer; // announced checksum trailer, NONE without
};

// Reads x-amz-content-sha256 (in a presigned request it may be a query parameter: target, which may be NULL),
// Content-Encoding, x-amz-decoded-content-length and x-amz-trailer. Needed for anonymous requests, too: a STREAMING body
// is framed whoever sends it. Errors: CONTENT_SHA256_INVALID (also for aws-chunked
// without a STREAMING value), MISSING_DECODED_LENGTH, INVALID_CHECKSUM (unknown trailer), NOT_IMPLEMENTED (ECDSA forms).
enum s3_error auth_payload_read(struct auth_payload_info *info, const struct http_head *head,
                                const char *buffer, const struct s3_target *target);

// Content-Encoding with the aws-chunked token taken out: what to store. Returns the length written to out (size >= the
// header's length, CHECKed); 0 when nothing is left.
size_t auth_content_encoding_strip(struct text value, char *out, size_t size);

// The literal x-amz-content-sha256 value that was read (header, or query of a presigned request); absent without.
struct text auth_payload_literal(const struct http_head *head, const char *buffer,
                                 const struct s3_target *target);

#endif
