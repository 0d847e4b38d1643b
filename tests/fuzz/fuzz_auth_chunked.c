// SPDX-License-Identifier: Apache-2.0
//
// aws-chunked bodies. Input: form, split, two bytes of declared length, then the body. Progress on every step, spans inside
// the input, never more payload than declared, and one verdict for two splits.

#include <stdlib.h>

#include "base/check.h"
#include "server/auth_chunked.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct result {
    enum s3_error error;
    uint64_t payload_sum;
    size_t consumed;
};

// Returns false when the body is over, one way or the other.
static bool feed(struct auth_chunked *chunked, const uint8_t *in, size_t len, struct result *result)
{
    struct http_chunked_span span;

    while (len > 0) {
        enum auth_chunked_status status = auth_chunked_step(chunked, in, len, &span);

        CHECK(span.skip + span.run <= len);
        CHECK(span.run == 0 || status == AUTH_CHUNKED_RUN);
        for (size_t i = 0; i < span.run; i++) {
            result->payload_sum = result->payload_sum * 1099511628211u + in[span.skip + i] + 1;
        }
        result->consumed += span.skip + span.run;
        in += span.skip + span.run;
        len -= span.skip + span.run;
        if (status == AUTH_CHUNKED_DONE || status == AUTH_CHUNKED_BAD) {
            return false;
        }
        CHECK(span.skip + span.run > 0);
        CHECK(status == AUTH_CHUNKED_RUN || len == 0);
    }
    return true;
}

static struct result decode(const struct auth_payload_info *info, bool is_verified, const uint8_t *data,
                            size_t size, size_t step)
{
    static const struct auth_sigv4_context context = {.scope_len = 34};
    static struct auth_chunked chunked;
    struct result result = {0};

    CHECK(auth_chunked_begin(&chunked, info, is_verified ? &context : NULL) == 0);
    for (size_t at = 0; at < size; at += step) {
        if (!feed(&chunked, data + at, size - at < step ? size - at : step, &result)) {
            break;
        }
    }
    CHECK(chunked.payload_bytes <= info->decoded_length);
    result.error = auth_chunked_finish(&chunked);
    CHECK(result.error != S3_OK || chunked.payload_bytes == info->decoded_length);
    CHECK(result.error != S3_OK || chunked.trailer.kind == info->trailer);
    auth_chunked_end(&chunked);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct auth_payload_info info = {0};
    struct result whole, split;

    if (size < 4) {
        return 0;
    }
    info.payload = AUTH_PAYLOAD_SIGNED_CHUNKS + data[0] % 3;
    info.trailer =
        info.payload == AUTH_PAYLOAD_SIGNED_CHUNKS ? S3_CHECKSUM_NONE : (data[0] >> 2) % S3_CHECKSUM_MD5;
    info.decoded_length = (uint64_t)data[2] << 8 | data[3];
    whole = decode(&info, data[0] >= 128, data + 4, size - 4, size);
    split = decode(&info, data[0] >= 128, data + 4, size - 4, data[1] % 64 + 1u);
    CHECK(whole.error == split.error);
    if (whole.error == S3_OK) {
        CHECK(whole.payload_sum == split.payload_sum);
        CHECK(whole.consumed == split.consumed);
    }
    return 0;
}
