// SPDX-License-Identifier: Apache-2.0
//
// Access keys and their policies: parsing and asking; the format is in auth_keys.h.
//
// A store is three allocations: the text (to which ids, secrets and prefixes point), the keys sorted by id, the rules.

#include "server/auth_keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <openssl/crypto.h>

#include "base/bytes.h"
#include "base/check.h"
#include "server/auth_sigv4.h"

#define SECRET_LEN_MIN 8u
#define ID_LEN_MIN 3u

struct rule {
    unsigned permissions;
    bool is_any_bucket;
    struct text bucket;
    struct text prefix; // empty: the whole bucket
};

struct auth_key {
    struct text id;
    struct text secret;
    struct rule *rules;
    uint32_t rule_count;
};

struct auth_keys {
    uint64_t generation;
    size_t text_len;
    char *text;
    struct auth_key *keys;
    size_t key_count;
    struct rule *rules;
    size_t rule_count;
};

// --- parsing

struct parser {
    struct auth_keys *keys;
    struct auth_keys_error *error;
    uint32_t line;
};

static int parse_fail(struct parser *parser, const char *message)
{
    parser->error->line = parser->line;
    snprintf(parser->error->message, sizeof(parser->error->message), "%s", message);
    return -EINVAL;
}

// The next word of a line; empty at its end.
static struct text take_word(struct text *rest)
{
    struct text text = text_trim(*rest);
    size_t len = 0;

    while (len < text.len && text.at[len] != ' ' && text.at[len] != '\t') {
        len++;
    }
    *rest = text_of(text.at + len, text.len - len);
    return text_of(text.at, len);
}

static bool id_is_valid(struct text id)
{
    for (size_t i = 0; i < id.len; i++) {
        char c = text_lower_char(id.at[i]);

        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '.' && c != '_' && c != '-') {
            return false;
        }
    }
    return id.len >= ID_LEN_MIN && id.len <= AUTH_ACCESS_KEY_MAX;
}

static bool secret_is_valid(struct text secret)
{
    for (size_t i = 0; i < secret.len; i++) {
        if (secret.at[i] <= ' ' || secret.at[i] > '~') {
            return false;
        }
    }
    return secret.len >= SECRET_LEN_MIN && secret.len <= AUTH_SECRET_MAX;
}

static int parse_key(struct parser *parser, struct text rest)
{
    struct auth_keys *keys = parser->keys;
    struct auth_key key = {0};

    key.id = take_word(&rest);
    key.secret = take_word(&rest);
    if (!id_is_valid(key.id)) {
        return parse_fail(parser, "a key id has 3 to 128 letters, digits, '.', '_' or '-'");
    }
    if (!secret_is_valid(key.secret)) {
        return parse_fail(parser, "a secret has 8 to 128 printable characters without spaces");
    }
    if (text_trim(rest).len > 0) {
        return parse_fail(parser, "expected: key ID SECRET");
    }
    if (keys->key_count == AUTH_KEYS_MAX) {
        return parse_fail(parser, "too many keys");
    }
    key.rules = keys->rules + keys->rule_count;
    keys->keys[keys->key_count++] = key;
    return 0;
}

static int parse_permissions(struct parser *parser, struct text list, unsigned *permissions)
{
    static const struct {
        const char *name;
        unsigned bits;
    } names[] = {
        {"read", S3_PERMISSION_READ},
        {"write", S3_PERMISSION_WRITE},
        {"list", S3_PERMISSION_LIST},
        {"delete", S3_PERMISSION_DELETE},
        {"all", S3_PERMISSION_READ | S3_PERMISSION_WRITE | S3_PERMISSION_LIST | S3_PERMISSION_DELETE},
    };

    while (!text_is_absent(list)) {
        struct text word = text_take_until(&list, ',');
        unsigned bits = 0;

        for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
            bits |= text_is(word, names[i].name) ? names[i].bits : 0;
        }
        if (bits == 0) {
            return parse_fail(parser,
                              "permissions are read, write, list, delete or all, with ',' between them");
        }
        *permissions |= bits;
    }
    return 0;
}

static int parse_allow(struct parser *parser, struct text rest)
{
    struct auth_keys *keys = parser->keys;
    struct auth_key *key;
    struct rule rule = {0};
    struct text permissions = take_word(&rest);
    struct text scope = text_trim(rest); // a prefix may hold spaces
    int status;

    if (keys->key_count == 0) {
        return parse_fail(parser, "an allow line belongs below a key line");
    }
    key = &keys->keys[keys->key_count - 1];
    if (key->rule_count == AUTH_RULES_MAX) {
        return parse_fail(parser, "too many allow lines for this key");
    }
    status = parse_permissions(parser, permissions, &rule.permissions);
    if (status != 0) {
        return status;
    }
    rule.is_any_bucket = text_is(scope, "*");
    if (!rule.is_any_bucket) {
        rule.prefix = scope;
        rule.bucket = text_take_until(&rule.prefix, '/');
        if (!s3_bucket_name_is_valid(rule.bucket)) {
            return parse_fail(parser, "expected: allow PERMISSIONS *, BUCKET or BUCKET/PREFIX");
        }
        /* Taken to the letter it would allow next to nothing, which is never what was meant. */
        if (rule.prefix.len > 0 && rule.prefix.at[rule.prefix.len - 1] == '*') {
            return parse_fail(parser,
                              "a prefix covers all keys that begin with it: leave out the * at its end");
        }
    }
    keys->rules[keys->rule_count++] = rule;
    key->rule_count++;
    return 0;
}

static int parse_line(struct parser *parser, struct text line)
{
    struct text rest = line;
    struct text word;

    if (line.len > 0 && line.at[line.len - 1] == '\r') {
        rest.len--;
    }
    word = take_word(&rest);
    if (word.len == 0 || word.at[0] == '#') {
        return 0;
    }
    if (text_is(word, "key")) {
        return parse_key(parser, rest);
    }
    if (text_is(word, "allow")) {
        return parse_allow(parser, rest);
    }
    return parse_fail(parser, "a line begins with key, allow or #");
}

static int compare_text(struct text a, struct text b)
{
    size_t shorter = a.len < b.len ? a.len : b.len;
    int order = memcmp(a.at, b.at, shorter);

    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

static int compare_keys(const void *a, const void *b)
{
    return compare_text(((const struct auth_key *)a)->id, ((const struct auth_key *)b)->id);
}

static int parse_all(struct parser *parser)
{
    struct auth_keys *keys = parser->keys;
    struct text rest = text_of(keys->text, keys->text_len);

    while (!text_is_absent(rest)) {
        int status;

        parser->line++;
        status = parse_line(parser, text_take_until(&rest, '\n'));
        if (status != 0) {
            return status;
        }
    }
    qsort(keys->keys, keys->key_count, sizeof(keys->keys[0]), compare_keys);
    for (size_t i = 1; i < keys->key_count; i++) {
        if (text_equal(keys->keys[i - 1].id, keys->keys[i].id)) {
            parser->line = 0;
            return parse_fail(parser, "a key id occurs twice");
        }
    }
    return 0;
}

static int store_allocate(struct auth_keys **out, struct text text)
{
    struct auth_keys *keys = calloc(1, sizeof(*keys));
    size_t lines = 1;

    if (keys == NULL) {
        return -ENOMEM;
    }
    for (size_t i = 0; i < text.len; i++) {
        lines += text.at[i] == '\n';
    }
    // Each line makes at most one key or one rule.
    keys->text = malloc(text.len + 1);
    keys->keys = calloc(lines < AUTH_KEYS_MAX ? lines : AUTH_KEYS_MAX, sizeof(keys->keys[0]));
    keys->rules = calloc(lines, sizeof(keys->rules[0]));
    if (keys->text == NULL || keys->keys == NULL || keys->rules == NULL) {
        auth_keys_free(keys);
        return -ENOMEM;
    }
    if (text.len > 0) {
        memcpy(keys->text, text.at, text.len);
    }
    keys->text_len = text.len;
    *out = keys;
    return 0;
}

int auth_keys_parse(struct auth_keys **keys, struct text text, uint64_t generation,
                    struct auth_keys_error *error)
{
    struct parser parser = {.error = error};
    int status;

    *error = (struct auth_keys_error){0};
    if (text.len > AUTH_KEYS_FILE_MAX) {
        return -EFBIG;
    }
    status = store_allocate(&parser.keys, text);
    if (status != 0) {
        return status;
    }
    parser.keys->generation = generation;
    status = parse_all(&parser);
    if (status != 0) {
        auth_keys_free(parser.keys);
        return status;
    }
    *keys = parser.keys;
    return 0;
}

void auth_keys_free(struct auth_keys *keys)
{
    if (keys == NULL) {
        return;
    }
    if (keys->text != NULL) {
        OPENSSL_cleanse(keys->text, keys->text_len);
    }
    free(keys->text);
    free(keys->keys);
    free(keys->rules);
    free(keys);
}

// --- asking

size_t auth_keys_count(const struct auth_keys *keys)
{
    return keys->key_count;
}

uint64_t auth_keys_generation(const struct auth_keys *keys)
{
    return keys->generation;
}

const struct auth_key *auth_keys_find(const struct auth_keys *keys, struct text access_key)
{
    struct auth_key wanted = {.id = access_key};

    if (access_key.len == 0) {
        return NULL;
    }
    return bsearch(&wanted, keys->keys, keys->key_count, sizeof(keys->keys[0]), compare_keys);
}

struct text auth_key_id(const struct auth_key *key)
{
    return key->id;
}

struct text auth_key_secret(const struct auth_key *key)
{
    return key->secret;
}

static bool rule_covers(const struct rule *rule, enum s3_permission permission, struct text bucket,
                        struct text name)
{
    if ((rule->permissions & permission) == 0) {
        return false;
    }
    if (rule->is_any_bucket) {
        return true;
    }
    if (!text_equal(rule->bucket, bucket)) {
        return false;
    }
    if (rule->prefix.len == 0) {
        return true;
    }
    // On the bucket itself only looking is possible with a right to some of its keys.
    if (text_is_absent(name)) {
        return permission == S3_PERMISSION_LIST;
    }
    return text_starts_with(name, rule->prefix);
}

bool auth_key_may(const struct auth_key *key, enum s3_permission permission, struct text bucket,
                  struct text name)
{
    for (uint32_t i = 0; i < key->rule_count; i++) {
        const struct rule *rule = &key->rules[i];

        if (text_is_absent(bucket) ? (rule->permissions & permission) != 0
                                   : rule_covers(rule, permission, bucket, name)) {
            return true;
        }
    }
    return false;
}

bool auth_key_may_see_bucket(const struct auth_key *key, struct text bucket)
{
    for (uint32_t i = 0; i < key->rule_count; i++) {
        if (key->rules[i].is_any_bucket || text_equal(key->rules[i].bucket, bucket)) {
            return true;
        }
    }
    return false;
}
