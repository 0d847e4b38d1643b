// SPDX-License-Identifier: Apache-2.0
//
// auth_keys: the credentials file is read strictly, kept private, and says who may do what.

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/auth_keys.h"

static struct auth_keys *keys;
static struct auth_keys_error error;
static struct err load_error;

static int parse(const char *text)
{
    keys = NULL;
    return auth_keys_parse(&keys, text_of_string(text), 1, &error);
}

static const char example[] = "# comment\n"
                              "key reader secret-one\n"
                              "  allow read,list captures/2024-\n"
                              "  allow list public\r\n"
                              "\n"
                              "key Admin.1 secret-two\n"
                              "\tallow all *\n"
                              "key nothing secret-three\n"
                              "key writer secret-four\n"
                              "allow write captures/my folder/\n"
                              "allow delete,write scratch/\n";

static bool may(const char *id, enum s3_permission permission, const char *bucket, const char *name)
{
    const struct auth_key *key = auth_keys_find(keys, text_of_string(id));

    cr_assert_not_null(key, "%s", id);
    return auth_key_may(key, permission, bucket != NULL ? text_of_string(bucket) : (struct text){0},
                        name != NULL ? text_of_string(name) : (struct text){0});
}

Test(auth_keys, keys_are_found_with_their_secrets)
{
    cr_assert_eq(parse(example), 0, "%u %s", error.line, error.message);
    cr_expect_eq(auth_keys_count(keys), 4);
    cr_expect_eq(auth_keys_generation(keys), 1);
    cr_expect(text_is(auth_key_secret(auth_keys_find(keys, TEXT("reader"))), "secret-one"));
    cr_expect(text_is(auth_key_id(auth_keys_find(keys, TEXT("Admin.1"))), "Admin.1"));
    cr_expect_null(auth_keys_find(keys, TEXT("admin.1")));
    cr_expect_null(auth_keys_find(keys, TEXT("read")));
    cr_expect_null(auth_keys_find(keys, TEXT("readers")));
    cr_expect_null(auth_keys_find(keys, TEXT("")));
    auth_keys_free(keys);
}

Test(auth_keys, policies)
{
    cr_assert_eq(parse(example), 0);
    cr_expect(may("reader", S3_PERMISSION_READ, "captures", "2024-05/a"));
    cr_expect_not(may("reader", S3_PERMISSION_READ, "captures", "2023-05/a"));
    cr_expect_not(may("reader", S3_PERMISSION_READ, "captures", "2024"));
    cr_expect_not(may("reader", S3_PERMISSION_WRITE, "captures", "2024-05/a"));
    cr_expect_not(may("reader", S3_PERMISSION_READ, "other", "2024-05/a"));
    cr_expect(may("reader", S3_PERMISSION_LIST, "captures", "2024-0"));
    cr_expect_not(may("reader", S3_PERMISSION_LIST, "captures", ""));
    cr_expect(may("reader", S3_PERMISSION_LIST, "captures", NULL));
    cr_expect(may("reader", S3_PERMISSION_LIST, "public", ""));
    cr_expect_not(may("reader", S3_PERMISSION_READ, "public", "x"));
    cr_expect(may("reader", S3_PERMISSION_LIST, NULL, NULL));

    cr_expect(may("Admin.1", S3_PERMISSION_DELETE, "any", NULL));
    cr_expect(may("Admin.1", S3_PERMISSION_WRITE, "any", "x"));
    cr_expect_not(may("nothing", S3_PERMISSION_READ, "captures", "2024-05/a"));
    cr_expect_not(may("nothing", S3_PERMISSION_LIST, NULL, NULL));

    cr_expect(may("writer", S3_PERMISSION_WRITE, "captures", "my folder/x"));
    cr_expect_not(may("writer", S3_PERMISSION_WRITE, "captures", NULL)); // may not create the bucket
    cr_expect(may("writer", S3_PERMISSION_WRITE, "scratch", NULL));
    cr_expect(may("writer", S3_PERMISSION_DELETE, "scratch", "x"));
    cr_expect_not(may("writer", S3_PERMISSION_READ, "scratch", "x"));
    cr_expect_not(may("writer", S3_PERMISSION_LIST, NULL, NULL));
    auth_keys_free(keys);
}

Test(auth_keys, bucket_listings_show_only_buckets_with_a_rule)
{
    cr_assert_eq(parse(example), 0);
    cr_expect(auth_key_may_see_bucket(auth_keys_find(keys, TEXT("reader")), TEXT("captures")));
    cr_expect_not(auth_key_may_see_bucket(auth_keys_find(keys, TEXT("reader")), TEXT("scratch")));
    cr_expect(auth_key_may_see_bucket(auth_keys_find(keys, TEXT("Admin.1")), TEXT("scratch")));
    auth_keys_free(keys);
}

Test(auth_keys, bad_lines_are_named_and_secrets_never_are)
{
    static const struct {
        const char *text;
        uint32_t line;
    } cases[] = {
        {"allow read *\n", 1},
        {"key ab secret-one\n", 1},
        {"key a/b secret-one\n", 1},
        {"# x\nkey abc short\n", 2},
        {"key abc\n", 1},
        {"key abc secret-one more\n", 1},
        {"key abc secret-one\nallow fly *\n", 2},
        {"key abc secret-one\nallow read,,list *\n", 2},
        {"key abc secret-one\nallow\n", 2},
        {"key abc secret-one\nallow read\n", 2},
        {"key abc secret-one\nallow read BAD\n", 2},
        {"key abc secret-one\nallow read *x\n", 2},
        {"key abc secret-one\nallow read bucket/*\n", 2}, // a prefix needs no star
        {"secret secret-one\n", 1},
        {"key abc secret-one\nkey abc secret-two\n", 0},
        {"key abc secret\x01one\n", 1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_expect_eq(parse(cases[i].text), -EINVAL, "%s", cases[i].text);
        cr_expect_eq(error.line, cases[i].line, "%s: line %u", cases[i].text, error.line);
        cr_expect(strlen(error.message) > 0);
        cr_expect(strstr(error.message, "secret-one") == NULL);
    }
    cr_expect_eq(parse(""), 0);
    cr_expect_eq(auth_keys_count(keys), 0);
    auth_keys_free(keys);
}

// A file with these permissions and the example in it.
static int load_with_mode(mode_t mode)
{
    char path[] = "/tmp/penstock-keys-XXXXXX";
    int fd = mkstemp(path);

    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, example, sizeof(example) - 1), (ssize_t)sizeof(example) - 1);
    cr_assert_eq(fchmod(fd, mode), 0);
    close(fd);
    int status = auth_keys_load(&keys, path, 7, &load_error);
    unlink(path);
    return status;
}

Test(auth_keys, only_files_of_the_owner_alone_are_read)
{
    cr_expect_eq(load_with_mode(0600), 0);
    cr_expect_eq(auth_keys_count(keys), 4);
    auth_keys_free(keys);
    cr_expect_eq(load_with_mode(0640), -EPERM);
    cr_expect(strstr(load_error.text, "chmod 600") != NULL);
    cr_expect_eq(load_with_mode(0604), -EPERM);
    cr_expect_eq(load_with_mode(0610), -EPERM);
    cr_expect_eq(auth_keys_load(&keys, "/nonexistent/keys", 1, &load_error), -ENOENT);
    cr_expect_str_eq(load_error.text, "/nonexistent/keys: No such file or directory");
    cr_expect_eq(auth_keys_load(&keys, "/tmp", 1, &load_error), -EPERM);
}
