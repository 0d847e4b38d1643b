// SPDX-License-Identifier: Apache-2.0
//
// auth_chunked: the documentation's signed bodies, the framings clients were seen to send, every change refused with its
// code, alone and inside HTTP chunks, for every split.

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/auth_chunked.h"

#define BODY_MAX (80 * 1024)

static char body[BODY_MAX];
static size_t body_len;
static char payload[BODY_MAX];
static size_t payload_len;
static struct auth_chunked chunked;

static void add(const char *text)
{
    memcpy(body + body_len, text, strlen(text));
    body_len += strlen(text);
}

static void add_fill(char c, size_t len)
{
    memset(body + body_len, c, len);
    body_len += len;
}

static void take(const char *run, size_t len)
{
    cr_assert_leq(payload_len + len, sizeof(payload));
    memcpy(payload + payload_len, run, len);
    payload_len += len;
}

static struct auth_sigv4_context doc_context(const char *seed)
{
    struct auth_sigv4_context context = {.scope_len = 38};

    auth_sigv4_signing_key(TEXT("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"), TEXT("20130524"),
                           TEXT("us-east-1"), context.signing_key);
    memcpy(context.seed_signature, seed, 64);
    memcpy(context.timestamp, "20130524T000000Z", 16);
    context.scope_len = (uint32_t)strlen("20130524/us-east-1/s3/aws4_request");
    memcpy(context.scope, "20130524/us-east-1/s3/aws4_request", context.scope_len);
    return context;
}

// Decodes the body in pieces and returns the final error; leftover input behind the end counts as INVALID_REQUEST.
static enum s3_error decode(const struct auth_payload_info *info, const struct auth_sigv4_context *context,
                            size_t step)
{
    enum auth_chunked_status status = AUTH_CHUNKED_MORE;
    size_t at = 0;
    bool is_stuck = false;

    payload_len = 0;
    cr_assert_eq(auth_chunked_begin(&chunked, info, context), 0);
    while (at < body_len && status != AUTH_CHUNKED_BAD && !is_stuck) {
        size_t len = body_len - at < step ? body_len - at : step;
        struct http_chunked_span span;

        status = auth_chunked_step(&chunked, body + at, len, &span);
        cr_assert(span.skip + span.run <= len);
        cr_assert(span.skip + span.run > 0 || status == AUTH_CHUNKED_BAD || status == AUTH_CHUNKED_DONE);
        take(body + at + span.skip, span.run);
        at += span.skip + span.run;
        is_stuck = status == AUTH_CHUNKED_DONE && span.skip == 0; // it is complete and wants no more
    }
    enum s3_error error = auth_chunked_finish(&chunked);
    if (error == S3_OK && at < body_len) {
        error = S3_ERR_INVALID_REQUEST;
    }
    auth_chunked_end(&chunked);
    return error;
}

// --- signed

#define SEED "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
#define TRAILER_SEED "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"

static void doc_body(void)
{
    body_len = 0;
    add("10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n");
    add_fill('a', 65536);
    add("\r\n400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n");
    add_fill('a', 1024);
    add("\r\n0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n");
}

static void doc_trailer_body(const char *line_end)
{
    body_len = 0;
    add("10000;chunk-signature=b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2\r\n");
    add_fill('a', 65536);
    add("\r\n400;chunk-signature=1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7\r\n");
    add_fill('a', 1024);
    add("\r\n0;chunk-signature=2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\n");
    add("x-amz-checksum-crc32c:sOO8/Q==");
    add(line_end);
    add("x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n");
}

static const struct auth_payload_info signed_info = {.payload = AUTH_PAYLOAD_SIGNED_CHUNKS,
                                                     .decoded_length = 66560};
static const struct auth_payload_info trailer_info = {
    .payload = AUTH_PAYLOAD_SIGNED_TRAILER, .decoded_length = 66560, .trailer = S3_CHECKSUM_CRC32C};

Test(auth_chunked, signed_body_of_the_documentation)
{
    static const size_t steps[] = {1, 2, 3, 85, 1000, 65535, 65536, 65537, BODY_MAX};
    struct auth_sigv4_context context = doc_context(SEED);

    doc_body();
    cr_expect_eq(body_len, 66824); // the Content-Length of the example
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        cr_expect_eq(decode(&signed_info, &context, steps[i]), S3_OK, "step %zu", steps[i]);
        cr_expect_eq(payload_len, 66560);
        cr_expect(payload[0] == 'a' && memcmp(payload, payload + 1, payload_len - 1) == 0);
    }
}

Test(auth_chunked, signed_trailer_of_the_documentation_with_either_line_end)
{
    static const char *const ends[] = {"\r\n", "\n\r\n"};
    struct auth_sigv4_context context = doc_context(TRAILER_SEED);

    for (unsigned i = 0; i < 2; i++) {
        for (size_t step = 1; step < BODY_MAX; step = step * 3 + 1) {
            doc_trailer_body(ends[i]);
            cr_expect_eq(decode(&trailer_info, &context, step), S3_OK, "step %zu: %d", step, chunked.error);
            cr_expect_eq(payload_len, 66560);
            cr_expect_eq(chunked.trailer.kind, S3_CHECKSUM_CRC32C);
            uint64_t crc = s3_checksum_crc_update(S3_CHECKSUM_CRC32C, 0, payload, payload_len);
            cr_expect_eq(s3_checksum_crc_from_digest(S3_CHECKSUM_CRC32C, chunked.trailer.digest), crc);
        }
    }
}

// Changes one byte and decodes.
static enum s3_error decode_changed(const struct auth_payload_info *info, const char *seed, size_t at,
                                    char to)
{
    struct auth_sigv4_context context = doc_context(seed);
    char saved = body[at];

    body[at] = to;
    enum s3_error error = decode(info, &context, 4096);
    body[at] = saved;
    return error;
}

Test(auth_chunked, a_changed_byte_anywhere_is_found)
{
    doc_body();
    cr_expect_eq(decode_changed(&signed_info, SEED, 100, 'b'), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(decode_changed(&signed_info, SEED, 87 + 65535, 'b'), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(decode_changed(&signed_info, SEED, 30, 'f'), S3_ERR_SIGNATURE_MISMATCH);
    // The last chunk is empty; its signature must fit, too.
    cr_expect_eq(decode_changed(&signed_info, SEED, body_len - 10, '0'), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(decode_changed(&signed_info, TRAILER_SEED, 0, '1'), S3_ERR_SIGNATURE_MISMATCH);

    doc_trailer_body("\r\n");
    size_t trailer_at = (size_t)((char *)memmem(body, body_len, "sOO8", 4) - body);
    cr_expect_eq(decode_changed(&trailer_info, TRAILER_SEED, trailer_at, 't'), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(decode_changed(&trailer_info, TRAILER_SEED, body_len - 10, '0'), S3_ERR_SIGNATURE_MISMATCH);
}

Test(auth_chunked, a_chunk_with_a_bad_signature_is_not_handed_out_when_it_came_in_one_piece)
{
    struct auth_sigv4_context context = doc_context(SEED);

    doc_body();
    body[100] = 'b';
    cr_expect_eq(decode(&signed_info, &context, BODY_MAX), S3_ERR_SIGNATURE_MISMATCH);
    cr_expect_eq(payload_len, 0);
}

Test(auth_chunked, without_a_context_signatures_are_parsed_but_not_checked)
{
    doc_body();
    body[100] = 'b';
    cr_expect_eq(decode(&signed_info, NULL, 1000), S3_OK);
    cr_expect_eq(payload_len, 66560);
    doc_trailer_body("\r\n");
    cr_expect_eq(decode(&trailer_info, NULL, 1000), S3_OK);
}

Test(auth_chunked, a_truncated_body_is_incomplete_at_every_length)
{
    struct auth_sigv4_context context = doc_context(TRAILER_SEED);

    doc_trailer_body("\r\n");
    size_t full = body_len;
    for (size_t cut = 1; cut<full; cut += cut> 200 && cut < full - 300 ? 7777 : 1) {
        body_len = full - cut;
        cr_expect_eq(decode(&trailer_info, &context, BODY_MAX), S3_ERR_INCOMPLETE_BODY, "cut %zu", cut);
    }
}

Test(auth_chunked, an_unsigned_trailer_signature_is_missed)
{
    struct auth_sigv4_context context = doc_context(TRAILER_SEED);

    doc_trailer_body("\r\n");
    body_len = (size_t)((char *)memmem(body, body_len, "x-amz-trailer-signature", 23) - body);
    add("\r\n");
    cr_expect_eq(decode(&trailer_info, &context, 1000), S3_ERR_INCOMPLETE_BODY);
    add("\r\n");
    cr_expect_eq(decode(&trailer_info, &context, 1000), S3_ERR_MALFORMED_TRAILER);
}

// --- unsigned with a trailer

struct unsigned_case {
    const char *body;
    const char *payload;
    uint64_t decoded_length;
    enum s3_checksum_kind trailer;
    enum s3_error error;
};

#define TRAILER "x-amz-checksum-crc32:y/Q5Jg==\r\n"
#define TRAILER_LF                                                                                           \
    "x-amz-checksum-crc32:y/Q5Jg==\n" // as minio-go 7.0.89 ends it, with two empty lines behind

static const struct unsigned_case unsigned_cases[] = {
    {"9\r\n123456789\r\n0\r\n" TRAILER "\r\n", "123456789", 9, S3_CHECKSUM_CRC32, S3_OK},
    {"5\r\n12345\r\n4\r\n6789\r\n0\r\nX-Amz-Checksum-CRC32: y/Q5Jg== \r\n\r\n", "123456789", 9,
     S3_CHECKSUM_CRC32, S3_OK},
    {"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n", "", 0, S3_CHECKSUM_CRC32, S3_OK},
    {"0\r\n\r\n", "", 0, S3_CHECKSUM_NONE, S3_OK},
    {"00000009\r\n123456789\r\n000\r\nother: x\r\n" TRAILER "\r\n", "123456789", 9, S3_CHECKSUM_CRC32, S3_OK},
    {"9\r\n123456789\r\n0\r\n" TRAILER "\r\n", "123456789", 10, S3_CHECKSUM_CRC32, S3_ERR_INCOMPLETE_BODY},
    {"9\r\n123456789\r\n0\r\n" TRAILER "\r\n", "", 8, S3_CHECKSUM_CRC32, S3_ERR_INCOMPLETE_BODY},
    {"9\r\n123456789\r\n0\r\n" TRAILER "\r\nx", "123456789", 9, S3_CHECKSUM_CRC32, S3_ERR_INVALID_REQUEST},
    {"9\r\n123456789\r\n0\r\n\r\n", "123456789", 9, S3_CHECKSUM_CRC32, S3_ERR_MALFORMED_TRAILER},
    {"9\r\n123456789\r\n0\r\n" TRAILER TRAILER "\r\n", "123456789", 9, S3_CHECKSUM_CRC32,
     S3_ERR_MALFORMED_TRAILER},
    {"9\r\n123456789\r\n0\r\nx-amz-checksum-sha1:x\r\n\r\n", "123456789", 9, S3_CHECKSUM_CRC32,
     S3_ERR_MALFORMED_TRAILER},
    {"9\r\n123456789\r\n0\r\n" TRAILER "\r\n", "123456789", 9, S3_CHECKSUM_NONE, S3_ERR_MALFORMED_TRAILER},
    {"9\r\n123456789\r\n0\r\nx-amz-checksum-crc32:y/Q5J\r\n\r\n", "123456789", 9, S3_CHECKSUM_CRC32,
     S3_ERR_INVALID_CHECKSUM},
    {"9\r\n123456789\r\n0\r\nno colon\r\n\r\n", "123456789", 9, S3_CHECKSUM_CRC32, S3_ERR_MALFORMED_TRAILER},
    {"9\r\n123456789\r\n0\r\n:v\r\n\r\n", "123456789", 9, S3_CHECKSUM_CRC32, S3_ERR_MALFORMED_TRAILER},
    {"9\r\n123456789\r\n0\r\nx-amz-trailer-signature:00\r\n\r\n", "123456789", 9, S3_CHECKSUM_CRC32,
     S3_ERR_MALFORMED_TRAILER},
    {"9\r\n123456789\r\n0\r\n" TRAILER_LF "\r\n\r\n", "123456789", 9, S3_CHECKSUM_CRC32, S3_OK},
    {"9\r\n123456789\r\n0\r\n" TRAILER_LF "\r\n", "123456789", 9, S3_CHECKSUM_CRC32, S3_OK},
    {"9\r\n123456789\r\n0\r\n" TRAILER_LF "\r\n\r", "123456789", 9, S3_CHECKSUM_CRC32,
     S3_ERR_INCOMPLETE_BODY},
    {"9\r\n123456789\r\n0\r\n" TRAILER_LF "\r\nx\n", "123456789", 9, S3_CHECKSUM_CRC32,
     S3_ERR_INCOMPLETE_BODY},
    {"9\r\n123456789\r\n0\r\n" TRAILER_LF "\r\n\n", "123456789", 9, S3_CHECKSUM_CRC32,
     S3_ERR_INCOMPLETE_BODY},
    {"9\r\n123456789\r\n0\r\n" TRAILER_LF "\r\n\r\n\r\n", "123456789", 9, S3_CHECKSUM_CRC32,
     S3_ERR_INVALID_REQUEST},
    {"9\r\n123456789\r\n0\r\n" TRAILER "\r\n\r\n", "123456789", 9, S3_CHECKSUM_CRC32, S3_ERR_INVALID_REQUEST},
    {"9\r\n123456789X\n0\r\n\r\n", "123456789", 9, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
    {"9\r\n123456789\n0\r\n\r\n", "123456789", 9, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
    {"9\n123456789\r\n0\r\n\r\n", "", 9, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
    {"\r\n", "", 0, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
    {"0x9\r\n123456789", "", 9, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
    {"-1\r\n", "", 9, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
    {"ffffffffffffffff\r\n", "", 9, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
    {"10000000000000009\r\n", "", 9, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
    {"9;chunk-signature=00\r\n", "", 9, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
    {"123456789", "", 9, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
    {"", "", 0, S3_CHECKSUM_NONE, S3_ERR_INCOMPLETE_BODY},
};

Test(auth_chunked, unsigned_bodies_for_every_split)
{
    for (size_t i = 0; i < sizeof(unsigned_cases) / sizeof(unsigned_cases[0]); i++) {
        const struct unsigned_case *c = &unsigned_cases[i];
        struct auth_payload_info info = {.payload = AUTH_PAYLOAD_UNSIGNED_TRAILER,
                                         .decoded_length = c->decoded_length,
                                         .trailer = c->trailer};

        body_len = 0;
        add(c->body);
        for (size_t step = 1; step <= body_len + 1; step++) {
            enum s3_error error = decode(&info, NULL, step);

            cr_expect_eq(error, c->error, "case %zu step %zu: %d", i, step, error);
            cr_expect(text_is(text_of(payload, payload_len), c->payload), "case %zu step %zu", i, step);
        }
    }
}

Test(auth_chunked, lines_and_trailers_are_bounded)
{
    struct auth_payload_info info = {.payload = AUTH_PAYLOAD_UNSIGNED_TRAILER};

    body_len = 0;
    add_fill('0', AUTH_CHUNKED_LINE_MAX + 1);
    cr_expect_eq(decode(&info, NULL, 100), S3_ERR_INCOMPLETE_BODY);
    body_len = 0;
    add("0\r\nname:");
    add_fill('x', AUTH_CHUNKED_LINE_MAX);
    cr_expect_eq(decode(&info, NULL, 100), S3_ERR_MALFORMED_TRAILER);
    body_len = 0;
    add("0\r\n");
    for (unsigned i = 0; i <= AUTH_CHUNKED_TRAILERS_MAX; i++) {
        add("a:b\r\n");
    }
    cr_expect_eq(decode(&info, NULL, 100), S3_ERR_MALFORMED_TRAILER);
}

Test(auth_chunked, small_signed_chunks_are_only_allowed_at_the_end)
{
    struct auth_payload_info info = {.payload = AUTH_PAYLOAD_SIGNED_CHUNKS, .decoded_length = 10};
    const char *signature =
        ";chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n";

    body_len = 0;
    for (unsigned i = 0; i < 2; i++) {
        add("5");
        add(signature);
        add("12345\r\n");
    }
    cr_expect_eq(decode(&info, NULL, 1000), S3_ERR_INVALID_CHUNK_SIZE);
}

// --- inside HTTP chunks: botocore over TLS sends the encoded stream in chunks of its own

static enum s3_error decode_nested(const char *in, size_t in_len, size_t step,
                                   const struct auth_payload_info *info)
{
    struct http_chunked outer;
    struct http_chunked_span outer_span, inner_span;
    enum http_chunked_status outer_status = HTTP_CHUNKED_MORE;
    size_t at = 0;

    payload_len = 0;
    http_chunked_begin(&outer);
    cr_assert_eq(auth_chunked_begin(&chunked, info, NULL), 0);
    while (at < in_len && outer_status < HTTP_CHUNKED_DONE) {
        size_t len = in_len - at < step ? in_len - at : step;

        outer_status = http_chunked_step(&outer, in + at, len, &outer_span);
        const char *run = in + at + outer_span.skip;
        size_t run_len = outer_span.run;

        while (run_len > 0) {
            enum auth_chunked_status status = auth_chunked_step(&chunked, run, run_len, &inner_span);

            take(run + inner_span.skip, inner_span.run);
            run += inner_span.skip + inner_span.run;
            run_len -= inner_span.skip + inner_span.run;
            if (status == AUTH_CHUNKED_BAD || status == AUTH_CHUNKED_DONE) {
                break;
            }
        }
        at += outer_span.skip + outer_span.run;
    }
    cr_expect_eq(outer_status, HTTP_CHUNKED_DONE);
    enum s3_error error = auth_chunked_finish(&chunked);
    auth_chunked_end(&chunked);
    return error;
}

Test(auth_chunked, inside_http_chunks_of_every_size)
{
    const char *inner = "5\r\n12345\r\n4\r\n6789\r\n0\r\n" TRAILER "\r\n";
    struct auth_payload_info info = {
        .payload = AUTH_PAYLOAD_UNSIGNED_TRAILER, .decoded_length = 9, .trailer = S3_CHECKSUM_CRC32};

    for (size_t piece = 1; piece <= strlen(inner); piece++) {
        static char outer[4096];
        size_t len = 0;

        for (size_t at = 0; at < strlen(inner); at += piece) {
            size_t n = strlen(inner) - at < piece ? strlen(inner) - at : piece;

            len += (size_t)sprintf(outer + len, "%zx\r\n%.*s\r\n", n, (int)n, inner + at);
        }
        len += (size_t)sprintf(outer + len, "0\r\n\r\n");
        for (size_t step = 1; step < 20; step += 3) {
            cr_expect_eq(decode_nested(outer, len, step, &info), S3_OK, "piece %zu step %zu", piece, step);
            cr_expect(text_is(text_of(payload, payload_len), "123456789"));
        }
    }
}
