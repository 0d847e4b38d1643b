// SPDX-License-Identifier: Apache-2.0
//
// s3_checksum: known answers, independence of the split, combination of CRCs, and what heads ask for.

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>

#include "server/s3_checksum.h"

struct answer {
    enum s3_checksum_kind kind;
    const char *hex; // of "123456789"
};

// CRC values are the "check" values of the CRC catalogue; the hashes are what coreutils print.
static const struct answer answers[] = {
    {S3_CHECKSUM_CRC32, "cbf43926"},
    {S3_CHECKSUM_CRC32C, "e3069283"},
    {S3_CHECKSUM_CRC64NVME, "ae8b14860a799888"},
    {S3_CHECKSUM_SHA1, "f7c3bc1d808e04732adf679965ccc34ca7ae3441"},
    {S3_CHECKSUM_SHA256, "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"},
    {S3_CHECKSUM_MD5, "25f9e794323b453885f5181f1b624d0b"},
};

Test(s3_checksum, known_answers_for_every_split)
{
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct s3_checksum checksum;
        uint8_t digest[S3_CHECKSUM_SIZE_MAX];
        char hex[S3_CHECKSUM_HEX_MAX];

        cr_assert_eq(s3_checksum_open(&checksum, answers[i].kind), 0);
        for (size_t cut = 0; cut <= 9; cut++) {
            s3_checksum_reset(&checksum);
            s3_checksum_update(&checksum, "123456789", cut);
            s3_checksum_update(&checksum, "123456789" + cut, 9 - cut);
            size_t size = s3_checksum_final(&checksum, digest);
            cr_expect_eq(size, s3_checksum_size(answers[i].kind));
            s3_hex_encode(digest, size, hex);
            cr_expect_str_eq(hex, answers[i].hex, "%s cut at %zu", s3_checksum_name(answers[i].kind), cut);
        }
        s3_checksum_close(&checksum);
    }
}

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// The bit-by-bit definition of a reflected CRC, independent of ISA-L.
static uint64_t slow_crc(uint64_t polynomial, unsigned width, const uint8_t *data, size_t len)
{
    uint64_t mask = width == 64 ? UINT64_MAX : (UINT64_C(1) << width) - 1;
    uint64_t crc = mask;

    for (size_t i = 0; i < len; i++) {
        crc ^= data[i];
        for (unsigned bit = 0; bit < 8; bit++) {
            crc = crc & 1 ? (crc >> 1) ^ polynomial : crc >> 1;
        }
    }
    return crc ^ mask;
}

Test(s3_checksum, crcs_agree_with_their_definition_and_combine)
{
    static const struct {
        enum s3_checksum_kind kind;
        uint64_t polynomial;
        unsigned width;
    } crcs[] = {{S3_CHECKSUM_CRC32, 0xedb88320, 32},
                {S3_CHECKSUM_CRC32C, 0x82f63b78, 32},
                {S3_CHECKSUM_CRC64NVME, 0x9a6c9329ac4bc9b5, 64}};
    static uint8_t data[5000];
    uint64_t state = 20240501;

    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)random_next(&state);
    }
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned turn = 0; turn < 60; turn++) {
            size_t len = random_next(&state) % sizeof(data), cut = random_next(&state) % (len + 1);
            uint64_t whole = s3_checksum_crc_update(crcs[i].kind, 0, data, len);
            uint64_t first = s3_checksum_crc_update(crcs[i].kind, 0, data, cut);
            uint64_t second = s3_checksum_crc_update(crcs[i].kind, 0, data + cut, len - cut);

            cr_assert_eq(whole, slow_crc(crcs[i].polynomial, crcs[i].width, data, len));
            cr_assert_eq(s3_checksum_crc_combine(crcs[i].kind, first, second, len - cut), whole, "%zu + %zu",
                         cut, len - cut);
        }
    }
}

// Lengths that cannot be computed byte by byte: appending a then b zeros is appending a + b.
Test(s3_checksum, combination_is_additive_for_huge_lengths)
{
    static const uint64_t lens[] = {1, 7, UINT64_C(5) << 30, UINT64_C(5) << 40, UINT64_C(1) << 62};

    for (enum s3_checksum_kind kind = S3_CHECKSUM_CRC32; kind <= S3_CHECKSUM_CRC64NVME; kind++) {
        for (size_t i = 0; i < 5; i++) {
            for (size_t j = 0; j < 5; j++) {
                uint64_t step = s3_checksum_crc_combine(
                    kind, s3_checksum_crc_combine(kind, 0x12345678, 0, lens[i]), 0, lens[j]);

                cr_expect_eq(step, s3_checksum_crc_combine(kind, 0x12345678, 0, lens[i] + lens[j]));
            }
        }
    }
}

Test(s3_checksum, base64_is_strict)
{
    static const char *const bad[] = {
        "A", "AA", "AAA", "A===", "====", "AB==", "AAB=", "AA=A", "AAAA=", "AA AA===", "AA-_", "AA=\n"};
    uint8_t out[64];
    char text[64];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_expect_eq(s3_base64_decode(text_of_string(bad[i]), out, sizeof(out)), -EINVAL, "%s", bad[i]);
    }
    cr_expect_eq(s3_base64_decode(TEXT("AAAAAAAA"), out, 5), -EINVAL);
    cr_expect_eq(s3_base64_decode(TEXT(""), out, 0), 0);
    for (size_t len = 0; len <= 40; len++) {
        uint8_t data[40];

        for (size_t i = 0; i < len; i++) {
            data[i] = (uint8_t)(i * 37 + len);
        }
        s3_base64_encode(data, len, text, sizeof(text));
        cr_expect_eq(s3_base64_decode(text_of_string(text), out, sizeof(out)), (long)len);
        cr_expect(memcmp(out, data, len) == 0);
    }
    cr_expect_eq(s3_base64_encode("\xfb\xff\xbf", 3, text, sizeof(text)), 4);
    cr_expect_str_eq(text, "+/+/");
}

static struct http_head head;
static char input[2048];

static enum s3_error read_request(struct s3_checksum_request *request, const char *headers)
{
    int len = snprintf(input, sizeof(input), "PUT /b/k HTTP/1.1\r\nHost: h\r\n%s\r\n", headers);

    http_head_begin(&head, HTTP_HEAD_LIMIT_DEFAULT);
    cr_assert_eq(http_head_parse(&head, input, (size_t)len), HTTP_HEAD_DONE, "%s", headers);
    return s3_checksum_request_read(request, &head, input);
}

Test(s3_checksum, requests_are_read_from_heads)
{
    struct s3_checksum_request request;

    cr_expect_eq(read_request(&request, ""), S3_OK);
    cr_expect_eq(request.algorithm, S3_CHECKSUM_NONE);
    cr_expect_eq(
        read_request(&request, "X-Amz-Checksum-CRC32: y/Q5Jg==\r\nx-amz-sdk-checksum-algorithm: CRC32\r\n"),
        S3_OK);
    cr_expect_eq(request.header.kind, S3_CHECKSUM_CRC32);
    cr_expect_eq(request.algorithm, S3_CHECKSUM_CRC32);
    cr_expect(s3_checksum_matches(&request.header, (const uint8_t *)"\xcb\xf4\x39\x26"));
    cr_expect_not(s3_checksum_matches(&request.header, (const uint8_t *)"\xcb\xf4\x39\x27"));
    cr_expect_eq(read_request(&request, "x-amz-trailer: x-other, x-amz-checksum-crc64nvme\r\n"), S3_OK);
    cr_expect_eq(request.trailer, S3_CHECKSUM_CRC64NVME);
    cr_expect_eq(request.algorithm, S3_CHECKSUM_CRC64NVME);
    cr_expect_eq(read_request(&request, "x-amz-checksum-algorithm: sha256\r\n"), S3_OK);
    cr_expect_eq(request.algorithm, S3_CHECKSUM_SHA256);
    cr_expect_eq(
        read_request(&request, "x-amz-checksum-mode: ENABLED\r\nx-amz-sdk-checksum-algorithm: FUTURE\r\n"),
        S3_OK);
    cr_expect_eq(request.algorithm, S3_CHECKSUM_NONE);
    cr_expect_eq(read_request(&request, "Content-MD5: JfnnlDI7RTiF9RgfG2JNCw==\r\n"), S3_OK);
    cr_expect_eq(request.md5.kind, S3_CHECKSUM_MD5);
}

Test(s3_checksum, contradicting_and_malformed_requests_are_refused)
{
    struct s3_checksum_request request;

    cr_expect_eq(
        read_request(&request, "x-amz-checksum-crc32: y/Q5Jg==\r\nx-amz-checksum-crc32c: y/Q5Jg==\r\n"),
        S3_ERR_CONFLICTING_CHECKSUMS);
    cr_expect_eq(
        read_request(&request, "x-amz-checksum-crc32: y/Q5Jg==\r\nx-amz-trailer: x-amz-checksum-crc32\r\n"),
        S3_ERR_CONFLICTING_CHECKSUMS);
    cr_expect_eq(read_request(&request, "x-amz-trailer: x-amz-checksum-crc32,x-amz-checksum-sha1\r\n"),
                 S3_ERR_CONFLICTING_CHECKSUMS);
    cr_expect_eq(read_request(&request, "x-amz-checksum-crc32: y/Q5\r\n"), S3_ERR_INVALID_CHECKSUM);
    cr_expect_eq(read_request(&request, "x-amz-checksum-crc32: cbf43926\r\n"), S3_ERR_INVALID_CHECKSUM);
    cr_expect_eq(read_request(&request, "x-amz-checksum-sha256: y/Q5Jg==\r\n"), S3_ERR_INVALID_CHECKSUM);
    cr_expect_eq(read_request(&request, "x-amz-checksum-algorithm: CRC99\r\n"), S3_ERR_INVALID_CHECKSUM);
    cr_expect_eq(read_request(&request, "Content-MD5: rubbish\r\n"), S3_ERR_INVALID_DIGEST);
    cr_expect_eq(read_request(&request, "Content-MD5:\r\n"), S3_ERR_INVALID_DIGEST);
}

Test(s3_checksum, text_form_of_plain_and_composite_checksums)
{
    char out[S3_CHECKSUM_TEXT_MAX];
    uint8_t digest[32] = {0xcb, 0xf4, 0x39, 0x26};

    cr_expect_eq(s3_checksum_text(S3_CHECKSUM_CRC32, digest, 0, out), 8);
    cr_expect_str_eq(out, "y/Q5Jg==");
    s3_checksum_text(S3_CHECKSUM_CRC32, digest, 10000, out);
    cr_expect_str_eq(out, "y/Q5Jg==-10000");
    cr_expect_eq(s3_checksum_text(S3_CHECKSUM_SHA256, digest, 10000, out), 50);
}
