// SPDX-License-Identifier: Apache-2.0
//
// Request heads: no crash, spans inside the input, and one verdict for two different splits. The first input byte chooses
// the split.

#include <stdlib.h>

#include "base/check.h"
#include "server/http_cond.h"
#include "server/http_head.h"
#include "server/s3_checksum.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_spans(const struct http_head *head, const char *buffer, size_t len)
{
    CHECK(head->head_size <= len);
    CHECK(head->head_size >= 4);
    CHECK(memcmp(buffer + head->head_size - 4, "\r\n\r\n", 4) == 0);
    CHECK(head->target.len > 0);
    CHECK(!(head->is_chunked && head->has_content_length));
    for (unsigned i = 0; i < head->header_count; i++) {
        CHECK(head->headers[i].name.len > 0);
        CHECK((size_t)head->headers[i].name.offset + head->headers[i].name.len < head->head_size);
        CHECK((size_t)head->headers[i].value.offset + head->headers[i].value.len < head->head_size);
    }
}

static void use_headers(const struct http_head *head, const char *buffer)
{
    struct http_cond cond;
    struct http_cond_object object = {.exists = true, .etag = TEXT("abc"), .modified_s = 784111777};
    struct s3_checksum_request request;
    struct text etag;

    http_cond_from_head(&cond, head, buffer, "");
    (void)http_cond_evaluate(&cond, &object, true, 0); // only that it returns matters here
    (void)http_cond_range_allowed(&cond, &object, 0);
    (void)http_cond_for_put(&cond, &etag);
    (void)s3_checksum_request_read(&request, head, buffer);
}

static void parse(struct http_head *head, const char *buffer, size_t len, size_t step)
{
    http_head_begin(head, HTTP_HEAD_LIMIT_MIN);
    for (size_t shown = step; shown < len; shown += step) {
        if (http_head_parse(head, buffer, shown) != HTTP_HEAD_NEED_MORE) {
            return;
        }
    }
    http_head_parse(head, buffer, len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct http_head whole, split;
    char *buffer;

    if (size < 1) {
        return 0;
    }
    buffer = malloc(size); // exactly sized for the sanitizer
    CHECK(buffer != NULL);
    memcpy(buffer, data + 1, size - 1);
    parse(&whole, buffer, size - 1, size);
    parse(&split, buffer, size - 1, data[0] % 64 + 1u);
    CHECK(whole.status == split.status);
    CHECK(whole.error == split.error);
    if (whole.status == HTTP_HEAD_DONE) {
        check_spans(&whole, buffer, size - 1);
        CHECK(whole.head_size == split.head_size);
        CHECK(whole.header_count == split.header_count);
        CHECK(memcmp(whole.headers, split.headers, whole.header_count * sizeof(whole.headers[0])) == 0);
        use_headers(&whole, buffer);
    }
    free(buffer);
    return 0;
}
