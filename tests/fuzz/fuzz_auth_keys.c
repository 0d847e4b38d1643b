// SPDX-License-Identifier: Apache-2.0
//
// The credentials file: no crash on any text, and an error never repeats more than its own words.

#include "base/check.h"
#include "server/auth_keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct auth_keys *keys;
    struct auth_keys_error error;

    if (auth_keys_parse(&keys, text_of((const char *)data, size), 1, &error) != 0) {
        CHECK(strlen(error.message) < sizeof(error.message));
        return 0;
    }
    const struct auth_key *key = auth_keys_find(keys, TEXT("abc"));
    if (key != NULL) {
        CHECK(text_is(auth_key_id(key), "abc"));
        CHECK(auth_key_secret(key).len > 0);
        (void)auth_key_may(key, S3_PERMISSION_READ, TEXT("bkt"), TEXT("x")); // any answer will do
    }
    auth_keys_free(keys);
    return 0;
}
