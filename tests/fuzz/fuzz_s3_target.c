// SPDX-License-Identifier: Apache-2.0
//
// Request targets: method in the first byte, then the host up to a line feed, then the target. What is accepted obeys the
// limits, and parameters of listings, copy sources and ranges are tried on the same bytes.

#include <stdlib.h>

#include "base/check.h"
#include "server/http_date.h"
#include "server/http_range.h"
#include "server/s3_list.h"
#include "server/s3_target.h"
#include "server/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct text domains[] = {{"s3.test", 7}, {"t", 1}};

static void check_target(const struct s3_target *target)
{
    CHECK(target->op < S3_OP_COUNT);
    CHECK((target->scope == S3_SCOPE_SERVICE) == text_is_absent(target->bucket));
    CHECK(target->scope == S3_SCOPE_SERVICE || s3_bucket_name_is_valid(target->bucket));
    if (target->scope == S3_SCOPE_OBJECT) {
        CHECK(target->key.len >= 1);
        CHECK(target->key.len <= S3_KEY_MAX);
        CHECK(utf8_is_valid(target->key));
    }
    CHECK(target->part_number <= S3_PART_NUMBER_MAX);
    CHECK(target->param_count <= S3_PARAMS_MAX);
}

static void try_list(const struct s3_target *target)
{
    static struct s3_list_params params;
    char out[S3_LIST_TOKEN_MAX];

    if (s3_list_params_read(&params, target) == S3_OK) {
        CHECK(params.max_keys <= S3_LIST_KEYS_MAX);
        CHECK(params.after.len <= S3_KEY_MAX);
        CHECK(s3_list_token_write(params.after, params.after_is_prefix, out) <= sizeof(out));
    }
}

static void try_values(struct text value)
{
    struct http_range range;
    int64_t seconds;

    if (http_range_parse(value, 1000, &range) != HTTP_RANGE_UNSATISFIABLE) {
        CHECK(range.first + range.len <= 1000);
    }
    (void)http_range_parse_copy(value, 1000, &range); // only that they return matters
    (void)http_date_parse(value, 0, &seconds);
    (void)http_date_parse_basic(value, &seconds);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct s3_target target;
    struct s3_copy_source source;
    struct s3_target_input input = {.domains = domains, .domain_count = 2};
    struct text rest;
    char *scratch;

    if (size < 1) {
        return 0;
    }
    rest = text_of((const char *)data + 1, size - 1);
    input.method = (enum http_method)(data[0] % (HTTP_METHOD_OPTIONS + 1));
    input.has_copy_source = data[0] >= 128;
    input.host = text_take_until(&rest, '\n');
    input.target = rest;
    scratch = malloc(rest.len > 0 ? rest.len : 1); // no more than the contract asks for
    CHECK(scratch != NULL);
    if (s3_target_parse(&target, &input, scratch, rest.len) == S3_OK) {
        check_target(&target);
        try_list(&target);
    }
    if (s3_target_parse_copy_source(&source, rest, scratch, rest.len) == S3_OK) {
        CHECK(source.key.len >= 1);
        CHECK(source.key.len <= S3_KEY_MAX);
        CHECK(s3_bucket_name_is_valid(source.bucket));
    }
    try_values(rest);
    free(scratch);
    return 0;
}
