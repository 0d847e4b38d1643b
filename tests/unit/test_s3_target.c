// SPDX-License-Identifier: Apache-2.0
//
// s3_target: bucket, key and operation from every spelling clients were seen to send, and refusal of what is not legal.

#include <criterion/criterion.h>
#include <stdio.h>

#include "server/s3_target.h"

static const struct text domains[] = {{"s3.example.org", 14}, {"example.net", 11}};
static struct s3_target target;
static char scratch[16384];

static enum s3_error parse_at(enum http_method method, const char *raw, const char *host, bool copy)
{
    struct s3_target_input input = {
        .method = method,
        .target = text_of_string(raw),
        .host = host != NULL ? text_of_string(host) : (struct text){0},
        .domains = domains,
        .domain_count = 2,
        .has_copy_source = copy,
    };

    return s3_target_parse(&target, &input, scratch, strlen(raw));
}

static enum s3_error parse(enum http_method method, const char *raw)
{
    return parse_at(method, raw, "127.0.0.1:9000", false);
}

struct op_case {
    enum http_method method;
    const char *raw;
    enum s3_op op;
};

#define GET HTTP_METHOD_GET
#define PUT HTTP_METHOD_PUT
#define POST HTTP_METHOD_POST
#define DELETE HTTP_METHOD_DELETE
#define HEAD HTTP_METHOD_HEAD

static const struct op_case op_cases[] = {
    {GET, "/", S3_OP_LIST_BUCKETS},
    {GET, "/?x-id=ListBuckets", S3_OP_LIST_BUCKETS},
    {PUT, "/bkt", S3_OP_CREATE_BUCKET},
    {PUT, "/bkt/", S3_OP_CREATE_BUCKET},
    {HEAD, "/bkt/", S3_OP_HEAD_BUCKET},
    {DELETE, "/bkt", S3_OP_DELETE_BUCKET},
    {GET, "/bkt", S3_OP_LIST_OBJECTS},
    {GET, "/bkt/?prefix=&delimiter=%2F&max-keys=1000", S3_OP_LIST_OBJECTS},
    {GET, "/bkt?list-type=2&prefix=a&encoding-type=url&fetch-owner=true", S3_OP_LIST_OBJECTS_V2},
    {GET, "/bkt?list-type=2&continuation-token=", S3_OP_LIST_OBJECTS_V2},
    {GET, "/bkt?versions", S3_OP_LIST_OBJECT_VERSIONS},
    {GET, "/bkt?versions=&encoding-type=url", S3_OP_LIST_OBJECT_VERSIONS},
    {GET, "/bkt/?location", S3_OP_GET_BUCKET_LOCATION},
    {GET, "/bkt/?location=", S3_OP_GET_BUCKET_LOCATION},
    {GET, "/bkt?object-lock=", S3_OP_GET_OBJECT_LOCK},
    {GET, "/bkt?versioning", S3_OP_GET_BUCKET_VERSIONING},
    {GET, "/bkt?uploads&delimiter=&max-uploads=1000&prefix=", S3_OP_LIST_MULTIPART_UPLOADS},
    {POST, "/bkt?delete", S3_OP_DELETE_OBJECTS},
    {POST, "/bkt/?delete=", S3_OP_DELETE_OBJECTS},
    {POST, "/bkt/", S3_OP_POST_OBJECT},
    {GET, "/bkt?policy", S3_OP_GET_BUCKET_CONFIG},
    {PUT, "/bkt?lifecycle", S3_OP_PUT_BUCKET_CONFIG},
    {DELETE, "/bkt?cors", S3_OP_DELETE_BUCKET_CONFIG},
    {PUT, "/bkt/key", S3_OP_PUT_OBJECT},
    {PUT, "/bkt/key?x-id=PutObject", S3_OP_PUT_OBJECT},
    {GET, "/bkt/key", S3_OP_GET_OBJECT},
    {GET, "/bkt/key?partNumber=3", S3_OP_GET_OBJECT},
    {GET, "/bkt/key?versionId=null", S3_OP_GET_OBJECT},
    {GET, "/bkt/key?response-content-type=a%2Fb", S3_OP_GET_OBJECT},
    {GET, "/bkt/key?X-Amz-Signature=00&X-Amz-Expires=1", S3_OP_GET_OBJECT},
    {GET, "/bkt/key?cachebuster=123", S3_OP_GET_OBJECT},
    {HEAD, "/bkt/key", S3_OP_HEAD_OBJECT},
    {DELETE, "/bkt/key", S3_OP_DELETE_OBJECT},
    {POST, "/bkt/key?uploads", S3_OP_CREATE_MULTIPART_UPLOAD},
    {POST, "/bkt/key?uploads=", S3_OP_CREATE_MULTIPART_UPLOAD},
    {PUT, "/bkt/key?uploadId=abc&partNumber=1", S3_OP_UPLOAD_PART},
    {PUT, "/bkt/key?partNumber=10000&uploadId=abc&x-id=UploadPart", S3_OP_UPLOAD_PART},
    {GET, "/bkt/key?uploadId=abc&max-parts=", S3_OP_LIST_PARTS},
    {POST, "/bkt/key?uploadId=abc", S3_OP_COMPLETE_MULTIPART_UPLOAD},
    {DELETE, "/bkt/key?uploadId=abc", S3_OP_ABORT_MULTIPART_UPLOAD},
    {GET, "/bkt/key?attributes", S3_OP_GET_OBJECT_ATTRIBUTES},
    {GET, "/bkt/key?acl", S3_OP_GET_OBJECT_ACL},
    {PUT, "/bkt/key?tagging", S3_OP_PUT_OBJECT_TAGGING},
    {HTTP_METHOD_OPTIONS, "/bkt/key", S3_OP_PREFLIGHT},
    {HTTP_METHOD_OPTIONS, "*", S3_OP_PREFLIGHT},
    // What nobody here can do must never fall through to the plain operation.
    {PUT, "/bkt/key?newfeature", S3_OP_UNSUPPORTED},
    {PUT, "/bkt/key?newfeature=", S3_OP_UNSUPPORTED},
    {DELETE, "/bkt/key?lifecycle", S3_OP_UNSUPPORTED},
    {DELETE, "/bkt?attributes", S3_OP_UNSUPPORTED},
    {DELETE, "/bkt?uploadId=abc", S3_OP_UNSUPPORTED},
    {PUT, "/bkt/key?retention", S3_OP_UNSUPPORTED},
    {POST, "/bkt/key?select&select-type=2", S3_OP_UNSUPPORTED},
    {GET, "/bkt/key?torrent", S3_OP_UNSUPPORTED},
    {GET, "/?newfeature", S3_OP_UNSUPPORTED},
};

Test(s3_target, requests_of_real_clients_are_classified)
{
    for (size_t i = 0; i < sizeof(op_cases) / sizeof(op_cases[0]); i++) {
        enum s3_error error = parse(op_cases[i].method, op_cases[i].raw);

        cr_expect_eq(error, S3_OK, "%s: error %d", op_cases[i].raw, error);
        cr_expect_eq(target.op, op_cases[i].op, "%s: %s", op_cases[i].raw, s3_op_name(target.op));
    }
    cr_expect_eq(parse_at(PUT, "/bkt/key", "h", true), S3_OK);
    cr_expect_eq(target.op, S3_OP_COPY_OBJECT);
    cr_expect_eq(parse_at(PUT, "/bkt/key?uploadId=a&partNumber=2", "h", true), S3_OK);
    cr_expect_eq(target.op, S3_OP_UPLOAD_PART_COPY);
    cr_expect_eq(target.part_number, 2);
}

struct error_case {
    enum http_method method;
    const char *raw;
    enum s3_error error;
};

static const struct error_case error_cases[] = {
    {POST, "/bkt/key", S3_ERR_METHOD_NOT_ALLOWED},
    {PUT, "/", S3_ERR_METHOD_NOT_ALLOWED},
    {HEAD, "/", S3_ERR_METHOD_NOT_ALLOWED},
    {PUT, "/bkt?location", S3_ERR_METHOD_NOT_ALLOWED},
    {HEAD, "/bkt/key?acl", S3_ERR_METHOD_NOT_ALLOWED},
    {HTTP_METHOD_OTHER, "/bkt/key", S3_ERR_METHOD_NOT_ALLOWED},
    {GET, "/bkt?acl&policy", S3_ERR_INVALID_REQUEST},
    {PUT, "/bkt/key?partNumber=1", S3_ERR_INVALID_ARGUMENT},
    {PUT, "/bkt/key?uploadId=a", S3_ERR_INVALID_ARGUMENT},
    {PUT, "/bkt/key?uploadId=a&partNumber=0", S3_ERR_INVALID_PART_NUMBER},
    {PUT, "/bkt/key?uploadId=a&partNumber=10001", S3_ERR_INVALID_PART_NUMBER},
    {PUT, "/bkt/key?uploadId=a&partNumber=", S3_ERR_INVALID_PART_NUMBER},
    {PUT, "/bkt/key?uploadId=a&partNumber=1x", S3_ERR_INVALID_PART_NUMBER},
    {GET, "/bkt/key?versionId=abc", S3_ERR_NOT_FOUND_VERSION},
    {GET, "/bkt?list-type=3", S3_ERR_INVALID_ARGUMENT},
    {GET, "/BKT/key", S3_ERR_INVALID_BUCKET_NAME},
    {GET, "//key", S3_ERR_INVALID_BUCKET_NAME},
    {GET, "/bk/key", S3_ERR_INVALID_BUCKET_NAME},
    {GET, "/bkt/%", S3_ERR_INVALID_URI},
    {GET, "/bkt/%4", S3_ERR_INVALID_URI},
    {GET, "/bkt/%4g", S3_ERR_INVALID_URI},
    {GET, "/bkt/%ff", S3_ERR_INVALID_URI},
    {GET, "/bkt/%ed%a0%80", S3_ERR_INVALID_URI},
    {GET, "/bkt/%c0%af", S3_ERR_INVALID_URI},
    {GET, "/bkt/key?prefix=%zz", S3_ERR_INVALID_URI},
    {GET, "/bkt/key?%=1", S3_ERR_INVALID_URI},
    {GET, "/bkt/key#fragment", S3_ERR_INVALID_URI},
    {GET, "bkt/key", S3_ERR_INVALID_URI},
    {GET, "*", S3_ERR_INVALID_URI},
    {GET, "", S3_ERR_INVALID_URI},
};

Test(s3_target, illegal_targets_are_refused)
{
    for (size_t i = 0; i < sizeof(error_cases) / sizeof(error_cases[0]); i++) {
        enum s3_error error = parse(error_cases[i].method, error_cases[i].raw);

        cr_expect_eq(error, error_cases[i].error, "%s: error %d", error_cases[i].raw, error);
    }
}

struct key_case {
    const char *raw;
    const char *key;
};

Test(s3_target, keys_are_exact_bytes)
{
    static const struct key_case cases[] = {
        {"/bkt/a+b", "a+b"},
        {"/bkt/a%2Bb", "a+b"},
        {"/bkt/a%20b", "a b"},
        {"/bkt/a%2Fb", "a/b"},
        {"/bkt//a", "/a"},
        {"/bkt/a//b/", "a//b/"},
        {"/bkt/.", "."},
        {"/bkt/../etc/passwd", "../etc/passwd"},
        {"/bkt/a/./b", "a/./b"},
        {"/bkt/a=b:c@d(e)!$&',;*", "a=b:c@d(e)!$&',;*"},
        {"/bkt/%C3%A4%E2%82%AC", "\xc3\xa4\xe2\x82\xac"},
        {"/bkt/%3F%23%25", "?#%"},
        {"/%62kt/k", "k"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_expect_eq(parse(GET, cases[i].raw), S3_OK, "%s", cases[i].raw);
        cr_expect(text_is(target.bucket, "bkt"), "%s", cases[i].raw);
        cr_expect(text_is(target.key, cases[i].key), "%s gave %.*s", cases[i].raw, (int)target.key.len,
                  target.key.at);
    }
}

Test(s3_target, every_byte_value_survives_percent_encoding)
{
    char raw[16], bytes[2];

    for (unsigned byte = 0; byte < 0x80; byte++) {
        snprintf(raw, sizeof(raw), "/bkt/%%%02x", byte);
        bytes[0] = (char)byte;
        cr_expect_eq(parse(GET, raw), S3_OK);
        cr_expect(text_equal(target.key, text_of(bytes, 1)), "byte %u", byte);
    }
}

Test(s3_target, keys_may_have_1024_bytes_after_decoding_and_no_more)
{
    static char raw[8192];

    strcpy(raw, "/bkt/");
    for (unsigned i = 0; i < S3_KEY_MAX; i++) {
        strcat(raw, "%41");
    }
    cr_expect_eq(parse(PUT, raw), S3_OK);
    cr_expect_eq(target.key.len, S3_KEY_MAX);
    strcat(raw, "a");
    cr_expect_eq(parse(PUT, raw), S3_ERR_KEY_TOO_LONG);
}

Test(s3_target, virtual_host_and_absolute_form)
{
    cr_expect_eq(parse_at(GET, "/a/b", "bkt.S3.example.org:9000", false), S3_OK);
    cr_expect(target.is_virtual_host);
    cr_expect(text_is(target.bucket, "bkt"));
    cr_expect(text_is(target.key, "a/b"));

    cr_expect_eq(parse_at(GET, "/", "my.dotted.bucket.example.net.", false), S3_OK);
    cr_expect(text_is(target.bucket, "my.dotted.bucket"));
    cr_expect_eq(target.op, S3_OP_LIST_OBJECTS);

    // The domain itself, another domain, a lookalike: path style.
    static const char *const plain[] = {"s3.example.org", "other.org",  "s3xexample.org",
                                        ".example.net",   "[::1]:9000", ""};
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        cr_expect_eq(parse_at(GET, "/bkt/key", plain[i], false), S3_OK, "%s", plain[i]);
        cr_expect_not(target.is_virtual_host, "%s", plain[i]);
        cr_expect(text_is(target.bucket, "bkt"), "%s", plain[i]);
    }

    cr_expect_eq(parse_at(GET, "http://bkt.example.net/k?acl", "ignored", false), S3_OK);
    cr_expect(text_is(target.host, "bkt.example.net"));
    cr_expect(text_is(target.path, "/k"));
    cr_expect_eq(target.op, S3_OP_GET_OBJECT_ACL);
    cr_expect_eq(parse_at(GET, "HTTPS://h:1?x-id=ListBuckets", "ignored", false), S3_OK);
    cr_expect_eq(target.op, S3_OP_LIST_BUCKETS);
    cr_expect(text_is(target.path, "/"));
}

Test(s3_target, parameters_are_decoded_and_counted)
{
    static char raw[4096];

    cr_expect_eq(parse(GET, "/bkt?prefix=a%2Bb+c%00&&delimiter=&marker"), S3_OK);
    cr_expect(text_equal(s3_target_param(&target, "prefix"), text_of("a+b c\0", 6)));
    cr_expect(text_is(s3_target_param(&target, "delimiter"), ""));
    cr_expect(s3_target_has_param(&target, "marker"));
    cr_expect_not(s3_target_has_param(&target, "Marker"));
    cr_expect(text_is_absent(target.params[2].value));
    cr_expect_eq(target.param_count, 3);

    strcpy(raw, "/bkt?");
    for (unsigned i = 0; i < S3_PARAMS_MAX; i++) {
        strcat(raw, "prefix=x&");
    }
    cr_expect_eq(parse(GET, raw), S3_OK);
    strcat(raw, "prefix=x");
    cr_expect_eq(parse(GET, raw), S3_ERR_INVALID_URI);
}

Test(s3_target, bucket_names)
{
    static const char *const good[] = {"abc",
                                       "a-b",
                                       "a.b",
                                       "a1.b2-c3",
                                       "123",
                                       "0a0",
                                       "a2345678901234567890123456789012345678901234567890123456789012x" + 1};
    static const char *const bad[] = {"",
                                      "a",
                                      "ab",
                                      "-ab",
                                      "ab-",
                                      ".ab",
                                      "ab.",
                                      "a..b",
                                      "a.-b",
                                      "a-.b",
                                      "aB1",
                                      "a_b",
                                      "a b",
                                      "192.168.1.1",
                                      "xn--abc",
                                      "sthree-x",
                                      "abc-s3alias",
                                      "abc--ol-s3",
                                      "a/b",
                                      "a23456789012345678901234567890123456789012345678901234567890123x"};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        cr_expect(s3_bucket_name_is_valid(text_of_string(good[i])), "%s", good[i]);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_expect_not(s3_bucket_name_is_valid(text_of_string(bad[i])), "%s", bad[i]);
    }
}

Test(s3_target, copy_sources)
{
    struct s3_copy_source source;
    char buffer[64];

    cr_expect_eq(s3_target_parse_copy_source(&source, TEXT("/bkt/a%20b/c+d"), buffer, 64), S3_OK);
    cr_expect(text_is(source.bucket, "bkt"));
    cr_expect(text_is(source.key, "a b/c+d"));
    cr_expect_eq(s3_target_parse_copy_source(&source, TEXT("bkt/k?versionId=null"), buffer, 64), S3_OK);
    cr_expect(text_is(source.key, "k"));
    cr_expect_eq(s3_target_parse_copy_source(&source, TEXT("%2Fbkt%2Fk"), buffer, 64), S3_OK);
    cr_expect_eq(s3_target_parse_copy_source(&source, TEXT("bkt/k?versionId=x"), buffer, 64),
                 S3_ERR_NOT_FOUND_VERSION);
    cr_expect_eq(s3_target_parse_copy_source(&source, TEXT("bkt"), buffer, 64), S3_ERR_COPY_SOURCE_INVALID);
    cr_expect_eq(s3_target_parse_copy_source(&source, TEXT("bkt/"), buffer, 64), S3_ERR_COPY_SOURCE_INVALID);
    cr_expect_eq(s3_target_parse_copy_source(&source, TEXT("/"), buffer, 64), S3_ERR_COPY_SOURCE_INVALID);
    cr_expect_eq(s3_target_parse_copy_source(&source, TEXT("bkt/%x"), buffer, 64),
                 S3_ERR_COPY_SOURCE_INVALID);
}
