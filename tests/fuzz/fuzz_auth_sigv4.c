// SPDX-License-Identifier: Apache-2.0
//
// Credentials in heads: the Authorization header and the presigned query. The input is a request head; whatever it claims is
// read and verified with a key that signed nothing, so success would be a forgery.

#include <stdlib.h>

#include "base/check.h"
#include "server/auth_keys.h"
#include "server/auth_sigv4.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct http_head head;
static struct s3_target target;

static void try_verify(const struct auth_sigv4 *auth, const char *buffer)
{
    static const uint8_t key[32] = {1, 2, 3};
    struct auth_sigv4_check check = {
        .now_s = auth->time_s, .skew_s = AUTH_SKEW_DEFAULT_S, .signing_key = key};
    struct auth_sigv4_context context;

    CHECK(auth->access_key.len >= 1 && auth->access_key.len <= AUTH_ACCESS_KEY_MAX);
    CHECK(auth->signature.len == 64);
    CHECK(auth_sigv4_verify(auth, &head, buffer, &target, &check, &context) != S3_OK);
}

static void try_head(const char *buffer)
{
    struct s3_target_input input = {.method = head.method,
                                    .target = http_head_text(buffer, head.target),
                                    .host = http_head_find(&head, buffer, "host")};
    struct auth_payload_info info;
    struct auth_sigv4 auth;
    char *scratch = malloc(input.target.len > 0 ? input.target.len : 1);

    CHECK(scratch != NULL);
    if (s3_target_parse(&target, &input, scratch, input.target.len) == S3_OK) {
        (void)auth_payload_read(&info, &head, buffer, &target); // any answer will do
        if (auth_sigv4_read(&auth, &head, buffer, &target, (struct text){0}, 0) == S3_OK &&
            auth.scheme != AUTH_SCHEME_NONE) {
            try_verify(&auth, buffer);
        }
    }
    free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *buffer = malloc(size > 0 ? size : 1);

    CHECK(buffer != NULL);
    if (size > 0) {
        memcpy(buffer, data, size);
    }
    http_head_begin(&head, HTTP_HEAD_LIMIT_DEFAULT);
    if (http_head_parse(&head, buffer, size) == HTTP_HEAD_DONE) {
        try_head(buffer);
    }
    free(buffer);
    return 0;
}
