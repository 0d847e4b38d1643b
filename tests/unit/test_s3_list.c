// SPDX-License-Identifier: Apache-2.0
//
// s3_list: parameters, tokens, and a walk over a sorted array that must give the same listing whatever the page size.

#include <criterion/criterion.h>
#include <stdio.h>

#include "server/s3_list.h"

static struct s3_target target;
static struct s3_list_params params;
static char scratch[8192];

static enum s3_error read_params(const char *raw)
{
    struct s3_target_input input = {.method = HTTP_METHOD_GET, .target = text_of_string(raw)};

    cr_assert_eq(s3_target_parse(&target, &input, scratch, sizeof(scratch)), S3_OK, "%s", raw);
    return s3_list_params_read(&params, &target);
}

Test(s3_list, parameters_of_v1_and_v2)
{
    cr_expect_eq(read_params("/bkt?prefix=a%2F&delimiter=%2F&max-keys=7&marker=a%2Fb"), S3_OK);
    cr_expect_not(params.is_v2);
    cr_expect(params.fetch_owner);
    cr_expect(text_is(params.prefix, "a/"));
    cr_expect_eq(params.max_keys, 7);
    cr_expect(text_is(params.after, "a/b"));
    cr_expect_not(params.after_is_prefix);

    cr_expect_eq(
        read_params("/bkt?list-type=2&encoding-type=url&fetch-owner=true&start-after=x&max-keys=5000"),
        S3_OK);
    cr_expect(params.is_v2 && params.encode_url && params.fetch_owner);
    cr_expect_eq(params.max_keys, S3_LIST_KEYS_MAX);
    cr_expect(text_is(params.after, "x"));

    cr_expect_eq(read_params("/bkt?list-type=2"), S3_OK);
    cr_expect_not(params.fetch_owner);
    cr_expect(text_is_absent(params.after));
    cr_expect_eq(read_params("/bkt?max-keys=0&delimiter="), S3_OK);
    cr_expect_eq(params.max_keys, 0);
    cr_expect_eq(params.delimiter.len, 0);
}

Test(s3_list, a_v1_marker_that_is_a_common_prefix_skips_what_was_folded_into_it)
{
    cr_expect_eq(read_params("/bkt?delimiter=%2F&marker=a%2F"), S3_OK);
    cr_expect(params.after_is_prefix);
    // The prefix itself as marker is a key, not something folded.
    cr_expect_eq(read_params("/bkt?prefix=a%2F&delimiter=%2F&marker=a%2F"), S3_OK);
    cr_expect_not(params.after_is_prefix);
    cr_expect_eq(read_params("/bkt?list-type=2&delimiter=%2F&start-after=a%2F"), S3_OK);
    cr_expect_not(params.after_is_prefix);
}

Test(s3_list, bad_parameters_are_refused)
{
    cr_expect_eq(read_params("/bkt?max-keys=-1"), S3_ERR_INVALID_MAX_KEYS);
    cr_expect_eq(read_params("/bkt?max-keys=1x"), S3_ERR_INVALID_MAX_KEYS);
    cr_expect_eq(read_params("/bkt?max-keys=99999999999"), S3_ERR_INVALID_MAX_KEYS);
    cr_expect_eq(read_params("/bkt?encoding-type=base64"), S3_ERR_INVALID_ENCODING_TYPE);
    cr_expect_eq(read_params("/bkt?list-type=2&continuation-token="), S3_ERR_INVALID_TOKEN);
    cr_expect_eq(read_params("/bkt?list-type=2&continuation-token=abc"), S3_ERR_INVALID_TOKEN);
}

Test(s3_list, tokens_come_back_and_damaged_ones_do_not)
{
    char key[S3_KEY_MAX], back[S3_KEY_MAX], token[S3_LIST_TOKEN_MAX];
    size_t len;
    bool is_prefix;

    for (size_t i = 0; i < sizeof(key); i++) {
        key[i] = (char)(i * 7);
    }
    for (size_t key_len = 0; key_len <= S3_KEY_MAX; key_len += key_len < 20 ? 1 : 251) {
        size_t token_len = s3_list_token_write(text_of(key, key_len), key_len % 2 == 1, token);

        cr_assert_leq(token_len, S3_LIST_TOKEN_MAX);
        cr_assert(s3_list_token_read(text_of(token, token_len), back, &len, &is_prefix));
        cr_expect_eq(len, key_len);
        cr_expect_eq(is_prefix, key_len % 2 == 1);
        cr_expect(memcmp(key, back, key_len) == 0);
        for (size_t i = 0; i < token_len; i++) {
            char saved = token[i];

            token[i] = saved == 'A' ? 'B' : 'A';
            cr_expect_not(s3_list_token_read(text_of(token, token_len), back, &len, &is_prefix), "byte %zu",
                          i);
            token[i] = saved;
        }
        cr_expect_not(s3_list_token_read(text_of(token, token_len - 1), back, &len, &is_prefix));
    }
}

// --- the walk

static const char *const keys[] = {"a",          "a/",      "a/b",     "a/b/c",   "a/b/d",    "a/c",
                                   "a0",         "b//c",    "b/c",     "photos/", "photos/1", "photos/2/x",
                                   "photos/2/y", "photos2", "z/z/z/z", "zz"};
#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

// Length of the common prefix that key falls under, or 0 when the key is listed itself.
static size_t fold(struct text key, struct text prefix, struct text delimiter)
{
    const char *hit;
    struct text rest;

    cr_assert(text_starts_with(key, prefix));
    if (delimiter.len == 0) {
        return 0;
    }
    rest = text_of(key.at + prefix.len, key.len - prefix.len);
    hit = memmem(rest.at, rest.len, delimiter.at, delimiter.len);
    return hit == NULL ? 0 : (size_t)(hit - key.at) + delimiter.len;
}

static bool is_skipped(struct text key)
{
    if (!text_starts_with(key, params.prefix)) {
        return true;
    }
    if (text_is_absent(params.after)) {
        return false;
    }
    if (params.after_is_prefix && text_starts_with(key, params.after)) {
        return true;
    }
    size_t shorter = key.len < params.after.len ? key.len : params.after.len;
    int order = memcmp(key.at, params.after.at, shorter);

    return order < 0 || (order == 0 && key.len <= params.after.len);
}

// One page as the caller of s3_list would produce it, appended to out. Returns true when there is more; *next is the last
// thing on the page.
static bool walk_page(char *out, struct text *next, bool *next_is_prefix)
{
    uint32_t count = 0;
    struct text skip = {0};

    for (size_t i = 0; i < KEY_COUNT; i++) {
        struct text key = text_of_string(keys[i]);

        if (is_skipped(key) || (!text_is_absent(skip) && text_starts_with(key, skip))) {
            continue;
        }
        if (count == params.max_keys) {
            return true;
        }
        size_t folded = fold(key, params.prefix, params.delimiter);

        *next_is_prefix = folded > 0;
        *next = folded > 0 ? text_of(key.at, folded) : key;
        skip = folded > 0 ? *next : (struct text){0};
        sprintf(out + strlen(out), "%s%.*s\n", folded > 0 ? "P " : "K ", (int)next->len, next->at);
        count++;
    }
    return false;
}

static void walk_all(const char *query, unsigned max_keys, bool is_v2, char *out)
{
    char raw[4096], token[S3_LIST_TOKEN_MAX + 1] = "";
    struct text next = {0};
    bool next_is_prefix = false, more = true;

    out[0] = '\0';
    for (unsigned page = 0; more && page < 100; page++) {
        if (page == 0) {
            sprintf(raw, "/bkt?max-keys=%u&%s%s", max_keys, is_v2 ? "list-type=2&" : "", query);
        } else if (is_v2) {
            token[s3_list_token_write(next, next_is_prefix, token)] = '\0';
            sprintf(raw, "/bkt?max-keys=%u&list-type=2&continuation-token=%s&%s", max_keys, token, query);
        } else {
            sprintf(raw, "/bkt?max-keys=%u&marker=%.*s&%s", max_keys, (int)next.len, next.at, query);
        }
        cr_assert_eq(read_params(raw), S3_OK, "%s", raw);
        more = walk_page(out, &next, &next_is_prefix);
    }
    cr_expect_not(more);
}

Test(s3_list, every_page_size_gives_the_same_listing)
{
    static const char *const queries[] = {"",
                                          "delimiter=/",
                                          "prefix=a/&delimiter=/",
                                          "prefix=photos/&delimiter=/",
                                          "prefix=photos&delimiter=/",
                                          "delimiter=b",
                                          "prefix=b/&delimiter=/",
                                          "delimiter=/b",
                                          "prefix=nothing"};
    static char whole[2048], paged[2048];

    for (size_t i = 0; i < sizeof(queries) / sizeof(queries[0]); i++) {
        walk_all(queries[i], 1000, true, whole);
        for (unsigned max_keys = 1; max_keys < 6; max_keys++) {
            walk_all(queries[i], max_keys, true, paged);
            cr_expect_str_eq(paged, whole, "V2 %s, pages of %u", queries[i], max_keys);
            walk_all(queries[i], max_keys, false, paged);
            cr_expect_str_eq(paged, whole, "V1 %s, pages of %u", queries[i], max_keys);
        }
    }
    walk_all("delimiter=/", 1000, true, whole);
    cr_expect_str_eq(whole, "K a\nP a/\nK a0\nP b/\nP photos/\nK photos2\nP z/\nK zz\n");
    walk_all("prefix=photos/&delimiter=/", 1000, true, whole);
    cr_expect_str_eq(whole, "K photos/\nK photos/1\nP photos/2/\n");
}
