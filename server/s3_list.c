// SPDX-License-Identifier: Apache-2.0
//
// Listing parameters, folding and tokens; the contract is in s3_list.h.

#include "server/s3_list.h"

#include "base/bytes.h"
#include "base/check.h"
#include "server/s3_checksum.h"

// --- tokens: base64url without padding of {version, kind, key bytes, CRC32C of all before}

#define TOKEN_VERSION 1
#define TOKEN_OVERHEAD 6 // version, kind, four bytes of CRC

_Static_assert(((S3_KEY_MAX + TOKEN_OVERHEAD + 2) / 3 * 4) <= S3_LIST_TOKEN_MAX,
               "the longest key fits a token");

static const char url_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static size_t url64_encode(const uint8_t *in, size_t len, char *out)
{
    size_t at = 0;
    uint32_t bits = 0;
    unsigned count = 0;

    for (size_t i = 0; i < len; i++) {
        bits = bits << 8 | in[i];
        for (count += 8; count >= 6; count -= 6) {
            out[at++] = url_digits[bits >> (count - 6) & 63];
        }
    }
    if (count > 0) {
        out[at++] = url_digits[bits << (6 - count) & 63];
    }
    return at;
}

static bool url64_decode(struct text in, uint8_t *out, size_t size, size_t *len)
{
    uint32_t bits = 0;
    unsigned count = 0;

    *len = 0;
    for (size_t i = 0; i < in.len; i++) {
        const char *hit = in.at[i] != '\0' ? strchr(url_digits, in.at[i]) : NULL;

        if (hit == NULL) {
            return false;
        }
        bits = bits << 6 | (uint32_t)(hit - url_digits);
        count += 6;
        if (count >= 8) {
            count -= 8;
            if (*len == size) {
                return false;
            }
            out[(*len)++] = (uint8_t)(bits >> count);
        }
    }
    return count < 6 && (bits & ((1u << count) - 1)) == 0;
}

static uint32_t token_crc(const uint8_t *bytes, size_t len)
{
    return (uint32_t)s3_checksum_crc_update(S3_CHECKSUM_CRC32C, 0, bytes, len);
}

size_t s3_list_token_write(struct text key, bool is_prefix, char out[S3_LIST_TOKEN_MAX])
{
    uint8_t bytes[S3_KEY_MAX + TOKEN_OVERHEAD];

    CHECK(key.len <= S3_KEY_MAX);
    bytes[0] = TOKEN_VERSION;
    bytes[1] = is_prefix;
    if (key.len > 0) {
        memcpy(bytes + 2, key.at, key.len);
    }
    bytes_put_be32(bytes + 2 + key.len, token_crc(bytes, key.len + 2));
    return url64_encode(bytes, key.len + TOKEN_OVERHEAD, out);
}

bool s3_list_token_read(struct text token, char *key, size_t *key_len, bool *is_prefix)
{
    uint8_t bytes[S3_KEY_MAX + TOKEN_OVERHEAD];
    size_t len;

    if (!url64_decode(token, bytes, sizeof(bytes), &len) || len < TOKEN_OVERHEAD ||
        bytes[0] != TOKEN_VERSION || bytes[1] > 1 ||
        bytes_get_be32(bytes + len - 4) != token_crc(bytes, len - 4)) {
        return false;
    }
    *is_prefix = bytes[1] != 0;
    *key_len = len - TOKEN_OVERHEAD;
    memcpy(key, bytes + 2, *key_len);
    return true;
}

// --- parameters

static struct text param_or_empty(const struct s3_target *target, const char *name)
{
    struct text value = s3_target_param(target, name);

    return text_is_absent(value) ? TEXT("") : value;
}

static bool ends_with(struct text text, struct text suffix)
{
    return text.len >= suffix.len && text_equal(text_of(text.at + text.len - suffix.len, suffix.len), suffix);
}

static enum s3_error read_start(struct s3_list_params *params, const struct s3_target *target)
{
    const char *name = target->op == S3_OP_LIST_OBJECTS_V2        ? "start-after"
                       : target->op == S3_OP_LIST_OBJECT_VERSIONS ? "key-marker"
                                                                  : "marker";
    size_t len;

    params->start_after = s3_target_param(target, name);
    params->token = params->is_v2 ? s3_target_param(target, "continuation-token") : (struct text){0};
    if (!text_is_absent(params->token) && params->token.len > 0) {
        if (!s3_list_token_read(params->token, params->token_key, &len, &params->after_is_prefix)) {
            return S3_ERR_INVALID_TOKEN;
        }
        params->after = text_of(params->token_key, len);
        return S3_OK;
    }
    if (!text_is_absent(params->token)) {
        return S3_ERR_INVALID_TOKEN; // S3 refuses an empty token, too
    }
    if (params->start_after.len == 0) {
        return S3_OK;
    }
    params->after = params->start_after;
    // A V1 client continues from NextMarker, which may be a common prefix: its keys were already folded into it.
    params->after_is_prefix = !params->is_v2 && params->delimiter.len > 0 &&
                              params->after.len > params->prefix.len &&
                              ends_with(params->after, params->delimiter);
    return S3_OK;
}

enum s3_error s3_list_params_read(struct s3_list_params *params, const struct s3_target *target)
{
    struct text encoding = s3_target_param(target, "encoding-type");
    struct text max_keys = s3_target_param(target, "max-keys");
    uint64_t max = S3_LIST_KEYS_MAX;

    memset(params, 0, offsetof(struct s3_list_params, token_key));
    params->is_v2 = target->op == S3_OP_LIST_OBJECTS_V2;
    params->prefix = param_or_empty(target, "prefix");
    params->delimiter = param_or_empty(target, "delimiter");
    params->fetch_owner = !params->is_v2 || text_is(s3_target_param(target, "fetch-owner"), "true");
    if (encoding.len > 0) {
        if (!text_is(encoding, "url")) {
            return S3_ERR_INVALID_ENCODING_TYPE;
        }
        params->encode_url = true;
    }
    if (max_keys.len > 0 && (!text_parse_u64(max_keys, &max) || max > INT32_MAX)) {
        return S3_ERR_INVALID_MAX_KEYS;
    }
    params->max_keys = max < S3_LIST_KEYS_MAX ? (uint32_t)max : S3_LIST_KEYS_MAX;
    if (params->prefix.len > S3_KEY_MAX || params->delimiter.len > S3_KEY_MAX) {
        return S3_ERR_INVALID_ARGUMENT;
    }
    enum s3_error error = read_start(params, target);
    if (error == S3_OK && params->after.len > S3_KEY_MAX) {
        error = S3_ERR_INVALID_ARGUMENT;
    }
    return error;
}
