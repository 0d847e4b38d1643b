// SPDX-License-Identifier: Apache-2.0
//
// auth_sigv4 and auth_payload: requests signed by others verify, every change to them fails with its exact S3 code.
//
// Where the signatures come from: the examples of the S3 documentation (recomputed), botocore 1.43, curl 7.88.

#include <criterion/criterion.h>
#include <stdio.h>

#include "server/auth_sigv4.h"

#define SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define ACCESS_KEY "AKIAIOSFODNN7EXAMPLE"

static struct http_head head;
static struct s3_target target;
static struct auth_sigv4 auth;
static struct auth_sigv4_context context;
static struct auth_sigv4_check check;
static struct auth_payload_info info;
static char input[16384];
static char scratch[16384];

static const struct text domains[] = {{"s3.amazonaws.com", 16}};

// Parses and verifies as a server would. now_s 0 means the time of the request itself.
static enum s3_error verify_with(const char *request, const char *secret, int64_t now_s)
{
    struct s3_target_input target_input = {.domains = domains, .domain_count = 1};
    uint8_t key[32];
    enum s3_error error;

    strcpy(input, request);
    http_head_begin(&head, HTTP_HEAD_LIMIT_DEFAULT);
    cr_assert_eq(http_head_parse(&head, input, strlen(input)), HTTP_HEAD_DONE, "%s", request);
    target_input.method = head.method;
    target_input.target = http_head_text(input, head.target);
    target_input.host = http_head_find(&head, input, "host");
    cr_assert_eq(s3_target_parse(&target, &target_input, scratch, sizeof(scratch)), S3_OK, "%s", request);
    error = auth_payload_read(&info, &head, input, &target);
    if (error != S3_OK) {
        return error;
    }
    error = auth_sigv4_read(&auth, &head, input, &target, (struct text){0}, now_s);
    if (error != S3_OK) {
        return error;
    }
    if (auth.scheme == AUTH_SCHEME_NONE) {
        return S3_ERR_ACCESS_DENIED;
    }
    cr_expect(text_is(auth.access_key, ACCESS_KEY));
    auth_sigv4_signing_key(text_of_string(secret), auth.scope_date, auth.region, key);
    check = (struct auth_sigv4_check){
        .now_s = now_s != 0 ? now_s : auth.time_s, .skew_s = AUTH_SKEW_DEFAULT_S, .signing_key = key};
    return auth_sigv4_verify(&auth, &head, input, &target, &check, &context);
}

static enum s3_error verify(const char *request)
{
    return verify_with(request, SECRET, 0);
}

struct vector {
    const char *name;
    const char *request;
};

#define DOC_AUTH(headers, signature)                                                                         \
    "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"    \
    "SignedHeaders=" headers ",Signature=" signature "\r\nx-amz-date: 20130524T000000Z\r\n"
#define EMPTY_HASH                                                                                           \
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\r\n"
#define DOC_HOST "Host: examplebucket.s3.amazonaws.com\r\n"

#define DOC_GET                                                                                              \
    "GET /test.txt HTTP/1.1\r\n" DOC_HOST "Range: bytes=0-9\r\n" EMPTY_HASH DOC_AUTH(                        \
        "host;range;x-amz-content-sha256;x-amz-date",                                                        \
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41") "\r\n"

#define DOC_PRESIGNED_QUERY                                                                                  \
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%"    \
    "2Faws4_request"                                                                                         \
    "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"                              \
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"

#define DOC_STREAMING                                                                                        \
    "PUT /examplebucket/chunkObject.txt HTTP/1.1\r\nHost: s3.amazonaws.com\r\n"                              \
    "x-amz-storage-class: REDUCED_REDUNDANCY\r\nContent-Encoding: aws-chunked\r\nContent-Length: 66824\r\n"  \
    "x-amz-decoded-content-length: 66560\r\nx-amz-content-sha256: "                                          \
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\n" DOC_AUTH(                                                       \
        "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;" \
        "x-amz-storage-class",                                                                               \
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9") "\r\n"

static const struct vector vectors[] = {
    {"documentation: GET with a range", DOC_GET},
    {"documentation: PUT with an escaped path",
     "PUT /test%24file.text HTTP/1.1\r\n" DOC_HOST
     "Date: Fri, 24 May 2013 00:00:00 GMT\r\nContent-Length: 21\r\n"
     "x-amz-content-sha256: 44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072\r\n"
     "x-amz-storage-class: REDUCED_REDUNDANCY\r\n" DOC_AUTH(
         "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
         "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd") "\r\n"},
    {"documentation: sub-resource",
     "GET /?lifecycle HTTP/1.1\r\n" DOC_HOST EMPTY_HASH DOC_AUTH(
         "host;x-amz-content-sha256;x-amz-date",
         "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543") "\r\n"},
    {"documentation: list", "GET /?max-keys=2&prefix=J HTTP/1.1\r\n" DOC_HOST EMPTY_HASH DOC_AUTH(
                                "host;x-amz-content-sha256;x-amz-date",
                                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7") "\r\n"},
    {"documentation: presigned GET", "GET /test.txt?" DOC_PRESIGNED_QUERY " HTTP/1.1\r\n" DOC_HOST "\r\n"},
    {"documentation: signed chunks", DOC_STREAMING},
    {"documentation: signed trailer",
     "PUT /examplebucket/chunkObject.txt HTTP/1.1\r\nHost: s3.amazonaws.com\r\n"
     "x-amz-storage-class: REDUCED_REDUNDANCY\r\nContent-Encoding: aws-chunked\r\nTransfer-Encoding: "
     "chunked\r\n"
     "x-amz-decoded-content-length: 66560\r\nx-amz-trailer: x-amz-checksum-crc32c\r\n"
     "x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER\r\n" DOC_AUTH(
         "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-"
         "class;"
         "x-amz-trailer",
         "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e") "\r\n"},
    // curl signs the path as it sends it, and knows no x-amz-content-sha256 header unless told.
    {"curl: path with characters SDKs would escape",
     "GET /bkt/a+b~(1) HTTP/1.1\r\nHost: 127.0.0.1:57595\r\nAuthorization: AWS4-HMAC-SHA256 "
     "Credential=AKIAIOSFODNN7EXAMPLE/20261130/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, "
     "Signature=07818a81602a0da2f8a77930433439dad3204dffa18382ba8dd1cd70afe8d7e9\r\n"
     "X-Amz-Date: 20261130T111351Z\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n"},
    {"curl: unsigned payload by header",
     "GET /bkt/k?prefix=x HTTP/1.1\r\nHost: 127.0.0.1:57595\r\nAuthorization: AWS4-HMAC-SHA256 "
     "Credential=AKIAIOSFODNN7EXAMPLE/20261130/us-east-1/s3/aws4_request, "
     "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
     "Signature=880f8e486a5be5545a09fd1165ef33cfd85c5bde12fa9d2bf3226647ea2919bd\r\n"
     "X-Amz-Date: 20261130T111351Z\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n"
     "x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n\r\n"},
    // botocore.
    {"list with many parameters",
     "GET /bkt?list-type=2&prefix=a%2Fb%20c%2Bd&delimiter=%2F&encoding-type=url&max-keys=5 HTTP/1.1\r\n"
     "Host: 127.0.0.1:9000\r\n"
     "X-Amz-Date: 20240501T120000Z\r\n"
     "X-Amz-Content-SHA256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\r\n"
     "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20240501/eu-west-1/s3/aws4_request, "
     "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
     "Signature=f9bf6dbba9b107f5b7e25264432d3427fe8f592e41a129ec7e59112ded4ec095\r\n"
     "\r\n"},
    {"upload part",
     "PUT /bkt/dir/k%20%C3%A4%2B%28x%29?uploadId=aB_-.1&partNumber=10 HTTP/1.1\r\n"
     "Host: 127.0.0.1:9000\r\n"
     "Content-MD5: JfnnlDI7RTiF9RgfG2JNCw==\r\n"
     "Expect: 100-continue\r\n"
     "X-Amz-Date: 20240501T120000Z\r\n"
     "X-Amz-Content-SHA256: 15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225\r\n"
     "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20240501/eu-west-1/s3/aws4_request, "
     "SignedHeaders=content-md5;host;x-amz-content-sha256;x-amz-date, "
     "Signature=75a7a2dc74c307220d864e2e7a8e7756a366468da8bbafc3dcbdc3dfe577f349\r\n"
     "\r\n"},
    {"subresource without value",
     "POST /bkt/key?uploads HTTP/1.1\r\n"
     "Host: 127.0.0.1:9000\r\n"
     "x-amz-meta-note:   two   inner  spaces \r\n"
     "X-Amz-Date: 20240501T120000Z\r\n"
     "X-Amz-Content-SHA256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\r\n"
     "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20240501/eu-west-1/s3/aws4_request, "
     "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-meta-note, "
     "Signature=7e2f34c3da898e74cd56ccb109ce0fa92eb86fc919d1a93495f09353ca3bccfc\r\n"
     "\r\n"},
    {"unnormalised path",
     "GET /bkt//a/./b/../c HTTP/1.1\r\n"
     "Host: 127.0.0.1:9000\r\n"
     "X-Amz-Date: 20240501T120000Z\r\n"
     "X-Amz-Content-SHA256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\r\n"
     "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20240501/eu-west-1/s3/aws4_request, "
     "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
     "Signature=d7d960a4ca48edd4916bf512408fdf317c22e2148bd44493ac9f39b3748f8d52\r\n"
     "\r\n"},
    {"presigned get", "GET "
                      "/bkt/"
                      "k%20y?response-content-type=text%2Fplain&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-"
                      "Credential=AKIAIOSFODNN7EXAMPLE%2F20240501%2Feu-west-1%2Fs3%2Faws4_request&X-Amz-Date="
                      "20240501T120000Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Signature="
                      "1210c1130f4646daf7e470e136d09806bcfc9c1e3794133a26377b6fa97905c9 HTTP/1.1\r\n"
                      "Host: 127.0.0.1:9000\r\n"
                      "\r\n"},
    {"presigned put",
     "PUT "
     "/bkt/"
     "key?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20240501%2Feu-west-1%2Fs3%"
     "2Faws4_request&X-Amz-Date=20240501T120000Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host%3Bx-amz-meta-a&"
     "X-Amz-Signature=5573ec0def00eaae026fd581a92a8c3dd843eaaefd6c9d12f611a5bc363b3dc6 HTTP/1.1\r\n"
     "Host: 127.0.0.1:9000\r\n"
     "x-amz-meta-a: b\r\n"
     "\r\n"},
};

Test(auth_sigv4, requests_signed_by_others_verify)
{
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        enum s3_error error = verify(vectors[i].request);

        cr_expect_eq(error, S3_OK, "%s: error %d", vectors[i].name, error);
    }
}

Test(auth_sigv4, the_wrong_secret_fails)
{
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        cr_expect_eq(verify_with(vectors[i].request, "another", 0), S3_ERR_SIGNATURE_MISMATCH, "%s",
                     vectors[i].name);
    }
}

// Replaces the first `from` of the request by `to` and verifies.
static enum s3_error verify_changed(const char *request, const char *from, const char *to)
{
    static char changed[16384];
    const char *hit = strstr(request, from);

    cr_assert_not_null(hit, "no %s", from);
    snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(hit - request), request, to, hit + strlen(from));
    return verify(changed);
}

Test(auth_sigv4, any_change_to_what_is_signed_fails)
{
    cr_expect_eq(verify_changed(DOC_GET, "GET ", "PUT "), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(verify_changed(DOC_GET, "/test.txt", "/test.txu"), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(verify_changed(DOC_GET, "/test.txt", "/test.txt?x-id=GetObject"), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(verify_changed(DOC_GET, "bytes=0-9", "bytes=0-8"), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(verify_changed(DOC_GET, "Host: examplebucket", "Host: otherbucket00"),
                 S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(verify_changed(DOC_GET, "us-east-1", "eu-east-1"), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(verify_changed(DOC_GET, "bdb41", "bdb42"), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(verify_changed(DOC_GET, "e3b0c", "e3b0d"), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(verify_changed(DOC_GET, "host;range;", "host;"), S3_ERR_SIGNATURE_MISMATCH);
}

Test(auth_sigv4, harmless_differences_of_spelling_verify)
{
    cr_expect_eq(verify_changed(DOC_GET, "Range: bytes=0-9", "rAnGe: \t bytes=0-9  "), S3_OK);
    cr_expect_eq(verify_changed(DOC_GET, ",SignedHeaders=", ", SignedHeaders="), S3_OK);
    cr_expect_eq(verify_changed(DOC_GET, "bdb41", "BDB41"), S3_OK);
    cr_expect_eq(verify_changed(DOC_GET, EMPTY_HASH, EMPTY_HASH "Accept: */*\r\n"), S3_OK);
    // The first form of the path is what was sent, the second re-encodes it: both "$" and "%24" fit.
    cr_expect_eq(verify_changed(vectors[1].request, "%24", "$"), S3_OK);
    // Order of parameters, and '=' behind a name without value.
    cr_expect_eq(verify_changed(vectors[3].request, "max-keys=2&prefix=J", "prefix=J&max-keys=2"), S3_OK);
    cr_expect_eq(verify_changed(vectors[3].request, "max-keys=2&prefix=J", "prefix=%4a&&max-keys=2"), S3_OK);
    cr_expect_eq(verify_changed(vectors[2].request, "?lifecycle", "?lifecycle="), S3_OK);
}

Test(auth_sigv4, unsigned_amz_headers_are_refused_by_name)
{
    cr_expect_eq(verify_changed(DOC_GET, EMPTY_HASH, EMPTY_HASH "X-Amz-Acl: public-read\r\n"),
                 S3_ERR_HEADERS_NOT_SIGNED);
    cr_expect(text_is(check.unsigned_header, "X-Amz-Acl"));
    cr_expect_eq(verify_changed(DOC_GET, "SignedHeaders=host;", "SignedHeaders="), S3_ERR_HEADERS_NOT_SIGNED);
    cr_expect(text_is(check.unsigned_header, "host"));
}

Test(auth_sigv4, time_limits)
{
    const int64_t may_2013 = 1369353600;
    const char *presigned = vectors[4].request;

    cr_expect_eq(verify_with(DOC_GET, SECRET, may_2013 + 900), S3_OK);
    cr_expect_eq(verify_with(DOC_GET, SECRET, may_2013 - 900), S3_OK);
    cr_expect_eq(verify_with(DOC_GET, SECRET, may_2013 + 901), S3_ERR_REQUEST_TIME_SKEWED);
    cr_expect_eq(verify_with(DOC_GET, SECRET, may_2013 - 901), S3_ERR_REQUEST_TIME_SKEWED);
    cr_expect_eq(verify_with(presigned, SECRET, may_2013 + 86400), S3_OK);
    cr_expect_eq(verify_with(presigned, SECRET, may_2013 + 86401), S3_ERR_REQUEST_EXPIRED);
    cr_expect_eq(verify_with(presigned, SECRET, may_2013 - 900), S3_OK);
    cr_expect_eq(verify_with(presigned, SECRET, may_2013 - 901), S3_ERR_REQUEST_NOT_YET_VALID);
}

Test(auth_sigv4, malformed_authorization_headers)
{
    static const char *const changes[][2] = {
        {"Credential=AKIAIOSFODNN7EXAMPLE/20130524", "Credential=20130524"},
        {"/20130524/", "/2013052/"},
        {"/20130524/", "/20130525/"},
        {"/s3/", "/ec2/"},
        {"aws4_request", "aws5_request"},
        {"us-east-1", ""},
        {"Credential=", "Cred="},
        {"Credential=", "Credential=x,Credential="},
        {",Signature=f0", ",Signature=f"},
        {",Signature=f0", ",Signature=g0"},
        {",Signature=f0", ",f0"},
        {"SignedHeaders=host;range;", "SignedHeaders=host;;range;"},
        {"SignedHeaders=host;range;", "SignedHeaders=Host;range;"},
        {"SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,", "SignedHeaders=,"},
        {"SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,", ""},
    };

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        cr_expect_eq(verify_changed(DOC_GET, changes[i][0], changes[i][1]), S3_ERR_AUTH_HEADER_MALFORMED,
                     "%s -> %s", changes[i][0], changes[i][1]);
    }
    cr_expect_eq(verify_changed(DOC_GET, "x-amz-date: 20130524T000000Z\r\n", ""), S3_ERR_MISSING_DATE);
    cr_expect_eq(verify_changed(DOC_GET, "x-amz-date: 20130524T000000Z", "x-amz-date: yesterday"),
                 S3_ERR_MISSING_DATE);
    cr_expect_eq(verify_changed(DOC_GET, "Authorization: AWS4-HMAC-SHA256 ", "Authorization: Bearer "),
                 S3_ERR_AUTH_UNSUPPORTED);
    cr_expect_eq(verify_changed(DOC_GET, "AWS4-HMAC-SHA256 ", "AWS4-ECDSA-P256-SHA256 "),
                 S3_ERR_NOT_IMPLEMENTED);
    cr_expect_eq(verify_changed(DOC_GET, "/test.txt", "/test.txt?" DOC_PRESIGNED_QUERY), S3_ERR_AUTH_TWICE);
}

Test(auth_sigv4, malformed_presigned_queries)
{
    static const char *const changes[][2] = {
        {"X-Amz-Algorithm=AWS4-HMAC-SHA256&", ""},
        {"AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"},
        {"X-Amz-Date=20130524T000000Z&", ""},
        {"X-Amz-Expires=86400&", ""},
        {"X-Amz-Expires=86400", "X-Amz-Expires=604801"},
        {"X-Amz-Expires=86400", "X-Amz-Expires=0"},
        {"X-Amz-Expires=86400", "X-Amz-Expires=-1"},
        {"&X-Amz-SignedHeaders=host", ""},
        {"&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404", ""},
        {"%2F20130524%2F", "%2F20130523%2F"},
    };

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        cr_expect_eq(verify_changed(vectors[4].request, changes[i][0], changes[i][1]),
                     S3_ERR_AUTH_QUERY_MALFORMED, "%s -> %s", changes[i][0], changes[i][1]);
    }
    cr_expect_eq(verify_changed(vectors[4].request, "Expires=86400", "Expires=86401"),
                 S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(verify_changed(vectors[4].request, "X-Amz-Signature=", "versionId=null&X-Amz-Signature="),
                 S3_ERR_SIGNATURE_MISMATCH);
}

Test(auth_sigv4, signature_v2_is_recognised_in_header_and_query)
{
    cr_expect_eq(verify("GET /bkt/k HTTP/1.1\r\nHost: h\r\nAuthorization: AWS AKID:c2ln\r\n\r\n"),
                 S3_ERR_AUTH_V2);
    cr_expect_eq(
        verify("GET /bkt/k?AWSAccessKeyId=AKID&Signature=c2ln&Expires=1 HTTP/1.1\r\nHost: h\r\n\r\n"),
        S3_ERR_AUTH_V2);
    cr_expect(strstr(s3_error_message(S3_ERR_AUTH_V2), "AWS4-HMAC-SHA256") != NULL);
}

Test(auth_sigv4, no_credentials_is_no_error)
{
    cr_expect_eq(verify("GET /bkt/k HTTP/1.1\r\nHost: h\r\n\r\n"), S3_ERR_ACCESS_DENIED);
    cr_expect_eq(auth.scheme, AUTH_SCHEME_NONE);
}

Test(auth_sigv4, a_body_without_content_hash_is_refused)
{
    // curl's request above with a body: the signature alone would still fit.
    cr_expect_eq(verify_changed(vectors[7].request, "User-Agent", "Content-Length: 1\r\nUser-Agent"),
                 S3_ERR_CONTENT_SHA256_MISSING);
}

Test(auth_sigv4, another_region_is_named_as_such_when_one_is_configured)
{
    cr_assert_eq(verify(DOC_GET), S3_OK);
    cr_expect_eq(auth_sigv4_read(&auth, &head, input, &target, TEXT("us-east-1"), 0), S3_OK);
    cr_expect_eq(auth_sigv4_read(&auth, &head, input, &target, TEXT("eu-west-1"), 0),
                 S3_ERR_AUTH_HEADER_REGION);
}

Test(auth_sigv4, the_context_continues_into_chunk_signatures)
{
    cr_assert_eq(verify(DOC_STREAMING), S3_OK);
    cr_expect(memcmp(context.seed_signature,
                     "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9", 64) == 0);
    cr_expect(memcmp(context.timestamp, "20130524T000000Z", 16) == 0);
    cr_expect(text_is(text_of(context.scope, context.scope_len), "20130524/us-east-1/s3/aws4_request"));
    cr_expect_eq(info.payload, AUTH_PAYLOAD_SIGNED_CHUNKS);
    cr_expect_eq(info.decoded_length, 66560);
}

Test(auth_sigv4, cached_keys_equal_derived_ones_and_follow_the_generation)
{
    static struct auth_sigv4_cache cache;
    uint8_t key[32], wanted[32];
    char id[32];

    auth_sigv4_cache_begin(&cache);
    auth_sigv4_signing_key(TEXT(SECRET), TEXT("20130524"), TEXT("us-east-1"), wanted);
    for (unsigned i = 0; i < 3; i++) {
        auth_sigv4_cache_key(&cache, 1, TEXT(ACCESS_KEY), TEXT(SECRET), TEXT("20130524"), TEXT("us-east-1"),
                             key);
        cr_expect(memcmp(key, wanted, 32) == 0);
    }
    cr_expect_eq(cache.hits, 2);
    cr_expect_eq(cache.misses, 1);
    // Another date, region, key id or generation is another key.
    auth_sigv4_cache_key(&cache, 1, TEXT(ACCESS_KEY), TEXT(SECRET), TEXT("20130525"), TEXT("us-east-1"), key);
    cr_expect(memcmp(key, wanted, 32) != 0);
    auth_sigv4_cache_key(&cache, 2, TEXT(ACCESS_KEY), TEXT("changed"), TEXT("20130524"), TEXT("us-east-1"),
                         key);
    cr_expect(memcmp(key, wanted, 32) != 0);
    // More keys than entries: the oldest go, answers stay right.
    for (unsigned i = 0; i < AUTH_CACHE_ENTRIES * 3; i++) {
        size_t len = (size_t)snprintf(id, sizeof(id), "key%u", i % (AUTH_CACHE_ENTRIES + 1));

        auth_sigv4_cache_key(&cache, 2, text_of(id, len), TEXT(SECRET), TEXT("20130524"), TEXT("us-east-1"),
                             key);
        cr_expect(memcmp(key, wanted, 32) == 0);
    }
    auth_sigv4_cache_end(&cache);
}

struct payload_case {
    const char *headers;
    enum s3_error error;
    enum auth_payload payload;
    enum s3_checksum_kind trailer;
};

#define DECODED "x-amz-decoded-content-length: 5\r\n"

Test(auth_payload, forms_and_contradictions)
{
    static const struct payload_case cases[] = {
        {"", S3_OK, AUTH_PAYLOAD_UNSIGNED, 0},
        {"x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n", S3_OK, AUTH_PAYLOAD_UNSIGNED, 0},
        {EMPTY_HASH, S3_OK, AUTH_PAYLOAD_SHA256, 0},
        {"x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\n" DECODED, S3_OK,
         AUTH_PAYLOAD_SIGNED_CHUNKS, 0},
        {"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nx-amz-trailer: "
         "x-amz-checksum-crc32\r\n" DECODED,
         S3_OK, AUTH_PAYLOAD_UNSIGNED_TRAILER, S3_CHECKSUM_CRC32},
        {"x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER\r\nx-amz-trailer: a, "
         "X-Amz-Checksum-SHA1\r\n" DECODED,
         S3_OK, AUTH_PAYLOAD_SIGNED_TRAILER, S3_CHECKSUM_SHA1},
        {"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n" DECODED, S3_OK,
         AUTH_PAYLOAD_UNSIGNED_TRAILER, 0},
        {"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n", S3_ERR_MISSING_DECODED_LENGTH, 0, 0},
        {"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nx-amz-decoded-content-length: x\r\n",
         S3_ERR_INVALID_ARGUMENT, 0, 0},
        {"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nx-amz-trailer: "
         "x-amz-checksum-crc99\r\n" DECODED,
         S3_ERR_INVALID_CHECKSUM, 0, 0},
        {"x-amz-content-sha256: STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD\r\n" DECODED, S3_ERR_NOT_IMPLEMENTED,
         0, 0},
        {"x-amz-content-sha256: STREAMING-FUTURE\r\n" DECODED, S3_ERR_CONTENT_SHA256_INVALID, 0, 0},
        {"x-amz-content-sha256: \r\n", S3_ERR_CONTENT_SHA256_INVALID, 0, 0},
        {"x-amz-content-sha256: e3b0\r\n", S3_ERR_CONTENT_SHA256_INVALID, 0, 0},
        {EMPTY_HASH EMPTY_HASH, S3_ERR_CONTENT_SHA256_INVALID, 0, 0},
        {"x-amz-content-sha256: UNSIGNED-PAYLOAD\r\nContent-Encoding: gzip, aws-chunked\r\n",
         S3_ERR_CONTENT_SHA256_INVALID, 0, 0},
        {"Content-Encoding: aws-chunked\r\n", S3_ERR_CONTENT_SHA256_INVALID, 0, 0},
        {"Content-Encoding: gzip\r\n", S3_OK, AUTH_PAYLOAD_UNSIGNED, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(input, sizeof(input), "PUT /b/k HTTP/1.1\r\nHost: h\r\n%s\r\n", cases[i].headers);
        http_head_begin(&head, HTTP_HEAD_LIMIT_DEFAULT);
        cr_assert_eq(http_head_parse(&head, input, strlen(input)), HTTP_HEAD_DONE);
        enum s3_error error = auth_payload_read(&info, &head, input, NULL);
        cr_expect_eq(error, cases[i].error, "%s: %d", cases[i].headers, error);
        if (error == S3_OK) {
            cr_expect_eq(info.payload, cases[i].payload, "%s", cases[i].headers);
            cr_expect_eq(info.trailer, cases[i].trailer, "%s", cases[i].headers);
        }
    }
}

Test(auth_payload, aws_chunked_is_taken_out_of_the_content_encoding)
{
    static const char *const cases[][2] = {
        {"aws-chunked", ""},
        {"gzip", "gzip"},
        {"aws-chunked,gzip", "gzip"},
        {"gzip, AWS-Chunked", "gzip"},
        {"gzip , br,aws-chunked,", "gzip,br"},
        {"", ""},
    };
    char out[64];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t len = auth_content_encoding_strip(text_of_string(cases[i][0]), out, sizeof(out));

        cr_expect(text_is(text_of(out, len), cases[i][1]), "%s", cases[i][0]);
    }
}
