// SPDX-License-Identifier: Apache-2.0
//
// Chunked framing: progress on every step, spans inside the input, and the same payload and verdict for two splits.

#include <stdlib.h>

#include "base/check.h"
#include "server/http_chunked.h"
#include "server/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct result {
    enum http_chunked_status status;
    uint64_t payload_bytes;
    uint64_t payload_sum; // depends on order and content
    uint64_t consumed;
};

static void take(struct result *result, const uint8_t *run, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        result->payload_sum = result->payload_sum * 1099511628211u + run[i] + 1;
    }
    result->payload_bytes += len;
}

static bool feed(struct http_chunked *chunked, const uint8_t *in, size_t len, struct result *result)
{
    struct http_chunked_span span;

    while (len > 0) {
        result->status = http_chunked_step(chunked, in, len, &span);
        CHECK(span.skip + span.run <= len);
        CHECK(span.skip + span.run > 0 || result->status >= HTTP_CHUNKED_DONE);
        CHECK(span.run == 0 || result->status == HTTP_CHUNKED_RUN);
        take(result, in + span.skip, span.run);
        result->consumed += span.skip + span.run;
        in += span.skip + span.run;
        len -= span.skip + span.run;
        if (result->status >= HTTP_CHUNKED_DONE) {
            return false;
        }
        CHECK(result->status == HTTP_CHUNKED_RUN || len == 0);
    }
    return true;
}

static struct result decode(const uint8_t *data, size_t size, size_t step)
{
    struct http_chunked chunked;
    struct result result = {0};

    http_chunked_begin(&chunked);
    for (size_t at = 0; at < size; at += step) {
        if (!feed(&chunked, data + at, size - at < step ? size - at : step, &result)) {
            break;
        }
    }
    CHECK(chunked.payload_bytes == result.payload_bytes);
    if (result.status == HTTP_CHUNKED_RUN) {
        result.status = HTTP_CHUNKED_MORE;
    }
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct result whole, split;

    if (size < 2) {
        return 0;
    }
    whole = decode(data + 1, size - 1, size);
    split = decode(data + 1, size - 1, data[0] % 32 + 1u);
    CHECK(whole.status == split.status);
    CHECK(whole.payload_bytes == split.payload_bytes);
    CHECK(whole.payload_sum == split.payload_sum);
    CHECK(whole.consumed == split.consumed);
    return 0;
}
