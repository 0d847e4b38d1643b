// SPDX-License-Identifier: Apache-2.0
//
// Signing keys of Signature Version 4 and their cache; the contract is in auth_sigv4.h.

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"
#include "server/auth_sigv4.h"

static void hmac(const void *key, size_t key_len, struct text data, uint8_t out[32])
{
    unsigned len = 32;

    CHECK(HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)data.at, data.len, out, &len) != NULL);
    CHECK(len == 32);
}

void auth_sigv4_signing_key(struct text secret, struct text date, struct text region, uint8_t key[32])
{
    char first[4 + AUTH_SECRET_MAX] = "AWS4";

    CHECK(secret.len <= AUTH_SECRET_MAX);
    memcpy(first + 4, secret.at, secret.len);
    hmac(first, 4 + secret.len, date, key);
    hmac(key, 32, region, key);
    hmac(key, 32, TEXT("s3"), key);
    hmac(key, 32, TEXT("aws4_request"), key);
    OPENSSL_cleanse(first, sizeof(first));
}

void auth_sigv4_cache_begin(struct auth_sigv4_cache *cache)
{
    memset(cache, 0, sizeof(*cache));
}

void auth_sigv4_cache_end(struct auth_sigv4_cache *cache)
{
    OPENSSL_cleanse(cache, sizeof(*cache));
}

// One fixed-size name for (access key, date, region). None of the three may hold a NUL, so the join is unambiguous.
static void entry_id(struct text access_key, struct text date, struct text region, uint8_t id[32])
{
    char name[AUTH_ACCESS_KEY_MAX + 16 + AUTH_REGION_MAX + 2];
    size_t len = 0;
    struct text parts[] = {access_key, date, region};

    CHECK(access_key.len <= AUTH_ACCESS_KEY_MAX && date.len <= 16 && region.len <= AUTH_REGION_MAX);
    for (unsigned i = 0; i < 3; i++) {
        memcpy(name + len, parts[i].at, parts[i].len);
        len += parts[i].len;
        if (i < 2) {
            name[len++] = '\0';
        }
    }
    CHECK(EVP_Digest(name, len, id, NULL, EVP_sha256(), NULL) == 1);
}

void auth_sigv4_cache_key(struct auth_sigv4_cache *cache, uint64_t generation, struct text access_key,
                          struct text secret, struct text date, struct text region, uint8_t key[32])
{
    struct auth_sigv4_cache_entry *oldest = &cache->entries[0];
    uint8_t id[32];

    if (cache->generation != generation) {
        OPENSSL_cleanse(cache->entries, sizeof(cache->entries));
        cache->generation = generation;
    }
    entry_id(access_key, date, region, id);
    cache->turn++;
    for (unsigned i = 0; i < AUTH_CACHE_ENTRIES; i++) {
        struct auth_sigv4_cache_entry *entry = &cache->entries[i];

        if (entry->used != 0 && memcmp(entry->id, id, sizeof(id)) == 0) {
            entry->used = cache->turn;
            cache->hits++;
            memcpy(key, entry->key, 32);
            return;
        }
        if (entry->used < oldest->used) {
            oldest = entry;
        }
    }
    cache->misses++;
    auth_sigv4_signing_key(secret, date, region, key);
    memcpy(oldest->id, id, sizeof(id));
    memcpy(oldest->key, key, 32);
    oldest->used = cache->turn;
}
