// SPDX-License-Identifier: Apache-2.0
//
// Payload forms; the contract is in auth_payload.h.

#include "server/auth_payload.h"

#include "base/bytes.h"
#include "base/check.h"

struct text auth_payload_literal(const struct http_head *head, const char *buffer,
                                 const struct s3_target *target)
{
    if (target != NULL && s3_target_has_param(target, "X-Amz-Signature") &&
        s3_target_has_param(target, "X-Amz-Content-Sha256")) {
        return s3_target_param(target, "X-Amz-Content-Sha256");
    }
    return http_head_find(head, buffer, "x-amz-content-sha256");
}

static enum s3_error read_form(struct auth_payload_info *info, struct text value)
{
    static const struct {
        const char *name;
        enum auth_payload payload;
    } streaming[] = {
        {"STREAMING-AWS4-HMAC-SHA256-PAYLOAD", AUTH_PAYLOAD_SIGNED_CHUNKS},
        {"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", AUTH_PAYLOAD_SIGNED_TRAILER},
        {"STREAMING-UNSIGNED-PAYLOAD-TRAILER", AUTH_PAYLOAD_UNSIGNED_TRAILER},
    };

    if (text_is_absent(value) || text_is(value, "UNSIGNED-PAYLOAD")) {
        info->payload = AUTH_PAYLOAD_UNSIGNED;
        return S3_OK;
    }
    for (size_t i = 0; i < ARRAY_COUNT(streaming); i++) {
        if (text_is(value, streaming[i].name)) {
            info->payload = streaming[i].payload;
            return S3_OK;
        }
    }
    // Asymmetric signatures need a public key on file, which nobody here has.
    if (text_starts_with(value, TEXT("STREAMING-AWS4-ECDSA-"))) {
        return S3_ERR_NOT_IMPLEMENTED;
    }
    if (value.len != 64 || s3_hex_decode(value, info->sha256, sizeof(info->sha256)) != 32) {
        return S3_ERR_CONTENT_SHA256_INVALID;
    }
    info->payload = AUTH_PAYLOAD_SHA256;
    return S3_OK;
}

// The announced checksum trailer. A trailer with another name is ignored; a checksum nobody can verify is not.
static enum s3_error read_trailer(struct auth_payload_info *info, struct text list)
{
    while (!text_is_absent(list)) {
        struct text name = text_trim(text_take_until(&list, ','));
        enum s3_checksum_kind kind = s3_checksum_from_header(name);

        if (kind == S3_CHECKSUM_NONE) {
            if (text_starts_with_nocase(name, TEXT("x-amz-checksum-"))) {
                return S3_ERR_INVALID_CHECKSUM;
            }
            continue;
        }
        if (info->trailer != S3_CHECKSUM_NONE && info->trailer != kind) {
            return S3_ERR_CONFLICTING_CHECKSUMS;
        }
        info->trailer = kind;
    }
    return S3_OK;
}

enum s3_error auth_payload_read(struct auth_payload_info *info, const struct http_head *head,
                                const char *buffer, const struct s3_target *target)
{
    struct text decoded_length = http_head_find(head, buffer, "x-amz-decoded-content-length");
    enum s3_error error;

    *info = (struct auth_payload_info){0};
    if (http_head_count(head, buffer, "x-amz-content-sha256") > 1) {
        return S3_ERR_CONTENT_SHA256_INVALID;
    }
    error = read_form(info, auth_payload_literal(head, buffer, target));
    if (error != S3_OK) {
        return error;
    }
    if (!auth_payload_is_streaming(info->payload)) {
        // aws-chunked framing without a STREAMING value: storing it would store the framing with the data.
        return http_head_has_token(head, buffer, "content-encoding", "aws-chunked")
                   ? S3_ERR_CONTENT_SHA256_INVALID
                   : S3_OK;
    }
    if (text_is_absent(decoded_length)) {
        return S3_ERR_MISSING_DECODED_LENGTH;
    }
    if (!text_parse_u64(decoded_length, &info->decoded_length)) {
        return S3_ERR_INVALID_ARGUMENT;
    }
    if (info->payload == AUTH_PAYLOAD_SIGNED_CHUNKS) {
        return S3_OK; // this form has no trailers
    }
    return read_trailer(info, http_head_find(head, buffer, "x-amz-trailer"));
}

size_t auth_content_encoding_strip(struct text value, char *out, size_t size)
{
    size_t len = 0;

    CHECK(size >= value.len);
    while (!text_is_absent(value)) {
        struct text token = text_trim(text_take_until(&value, ','));

        if (token.len == 0 || text_is_nocase(token, "aws-chunked")) {
            continue;
        }
        if (len > 0) {
            out[len++] = ',';
        }
        memcpy(out + len, token.at, token.len);
        len += token.len;
    }
    return len;
}
