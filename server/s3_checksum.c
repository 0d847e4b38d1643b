// SPDX-License-Identifier: Apache-2.0
//
// Checksum families over ISA-L and OpenSSL; the contract is in s3_checksum.h.

#include "server/s3_checksum.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>

#include <isa-l/crc.h>
#include <isa-l/crc64.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "base/bytes.h"
#include "base/check.h"

static const struct {
    const char *name;
    const char *header;
    size_t size;
    uint64_t polynomial; // reflected; 0 for the hashes
} kind_table[S3_CHECKSUM_COUNT] = {
    [S3_CHECKSUM_NONE] = {"", "", 0, 0},
    [S3_CHECKSUM_CRC32] = {"CRC32", "x-amz-checksum-crc32", 4, 0xedb88320},
    [S3_CHECKSUM_CRC32C] = {"CRC32C", "x-amz-checksum-crc32c", 4, 0x82f63b78},
    [S3_CHECKSUM_CRC64NVME] = {"CRC64NVME", "x-amz-checksum-crc64nvme", 8, 0x9a6c9329ac4bc9b5},
    [S3_CHECKSUM_SHA1] = {"SHA1", "x-amz-checksum-sha1", 20, 0},
    [S3_CHECKSUM_SHA256] = {"SHA256", "x-amz-checksum-sha256", 32, 0},
    [S3_CHECKSUM_MD5] = {"MD5", "content-md5", 16, 0},
};

static void check_kind(enum s3_checksum_kind kind)
{
    CHECK(kind > S3_CHECKSUM_NONE);
    CHECK(kind < S3_CHECKSUM_COUNT);
}

const char *s3_checksum_name(enum s3_checksum_kind kind)
{
    check_kind(kind);
    return kind_table[kind].name;
}

const char *s3_checksum_header(enum s3_checksum_kind kind)
{
    check_kind(kind);
    return kind_table[kind].header;
}

size_t s3_checksum_size(enum s3_checksum_kind kind)
{
    check_kind(kind);
    return kind_table[kind].size;
}

bool s3_checksum_is_crc(enum s3_checksum_kind kind)
{
    return kind > S3_CHECKSUM_NONE && kind < S3_CHECKSUM_COUNT && kind_table[kind].polynomial != 0;
}

enum s3_checksum_kind s3_checksum_from_name(struct text name)
{
    for (enum s3_checksum_kind kind = S3_CHECKSUM_CRC32; kind < S3_CHECKSUM_MD5; kind++) {
        if (text_is_nocase(name, kind_table[kind].name)) {
            return kind;
        }
    }
    return S3_CHECKSUM_NONE;
}

enum s3_checksum_kind s3_checksum_from_header(struct text name)
{
    for (enum s3_checksum_kind kind = S3_CHECKSUM_CRC32; kind < S3_CHECKSUM_MD5; kind++) {
        if (text_is_nocase(name, kind_table[kind].header)) {
            return kind;
        }
    }
    return S3_CHECKSUM_NONE;
}

// --- states

static const EVP_MD *hash_of(enum s3_checksum_kind kind)
{
    switch (kind) {
    case S3_CHECKSUM_SHA1:
        return EVP_sha1();
    case S3_CHECKSUM_SHA256:
        return EVP_sha256();
    default:
        return EVP_md5();
    }
}

int s3_checksum_open(struct s3_checksum *checksum, enum s3_checksum_kind kind)
{
    check_kind(kind);
    *checksum = (struct s3_checksum){.kind = kind};
    if (s3_checksum_is_crc(kind)) {
        return 0;
    }
    checksum->hash = EVP_MD_CTX_new();
    if (checksum->hash == NULL) {
        return -ENOMEM;
    }
    if (EVP_DigestInit_ex(checksum->hash, hash_of(kind), NULL) != 1) {
        s3_checksum_close(checksum);
        return -ENOTSUP; // e.g. MD5 under a policy that forbids it
    }
    return 0;
}

void s3_checksum_reset(struct s3_checksum *checksum)
{
    check_kind(checksum->kind);
    checksum->crc = 0;
    // Without a digest argument OpenSSL keeps the one it has fetched: no lookup, no lock.
    CHECK(checksum->hash == NULL || EVP_DigestInit_ex(checksum->hash, NULL, NULL) == 1);
}

void s3_checksum_update(struct s3_checksum *checksum, const void *data, size_t len)
{
    check_kind(checksum->kind);
    if (checksum->hash == NULL) {
        checksum->crc = s3_checksum_crc_update(checksum->kind, checksum->crc, data, len);
    } else {
        CHECK(EVP_DigestUpdate(checksum->hash, data, len) == 1);
    }
}

size_t s3_checksum_final(struct s3_checksum *checksum, uint8_t digest[S3_CHECKSUM_SIZE_MAX])
{
    check_kind(checksum->kind);
    if (checksum->hash == NULL) {
        s3_checksum_crc_to_digest(checksum->kind, checksum->crc, digest);
    } else {
        CHECK(EVP_DigestFinal_ex(checksum->hash, digest, NULL) == 1);
    }
    return kind_table[checksum->kind].size;
}

void s3_checksum_close(struct s3_checksum *checksum)
{
    EVP_MD_CTX_free(checksum->hash);
    *checksum = (struct s3_checksum){0};
}

// --- CRCs

static uint32_t crc32c_update(uint32_t crc, const unsigned char *data, size_t len)
{
    crc = ~crc;
    while (len > 0) { // ISA-L takes an int here
        int piece = len > (size_t)INT_MAX ? INT_MAX : (int)len;

        crc = crc32_iscsi((unsigned char *)data, piece, crc);
        data += piece;
        len -= (size_t)piece;
    }
    return ~crc;
}

uint64_t s3_checksum_crc_update(enum s3_checksum_kind kind, uint64_t crc, const void *data, size_t len)
{
    if (len == 0) {
        return crc;
    }
    switch (kind) {
    case S3_CHECKSUM_CRC32:
        return crc32_gzip_refl((uint32_t)crc, data, len);
    case S3_CHECKSUM_CRC32C:
        return crc32c_update((uint32_t)crc, data, len);
    default:
        CHECK(kind == S3_CHECKSUM_CRC64NVME);
        return crc64_rocksoft_refl(crc, data, len);
    }
}

// a * b modulo the polynomial, bits reflected (the highest bit is the power zero). Bounded by the width.
static uint64_t multiply(uint64_t a, uint64_t b, uint64_t polynomial, unsigned width)
{
    uint64_t product = 0;

    for (uint64_t bit = UINT64_C(1) << (width - 1); bit != 0; bit >>= 1) {
        if (a & bit) {
            product ^= b;
        }
        b = b & 1 ? (b >> 1) ^ polynomial : b >> 1;
    }
    return product;
}

uint64_t s3_checksum_crc_combine(enum s3_checksum_kind kind, uint64_t first, uint64_t second,
                                 uint64_t second_len)
{
    CHECK(s3_checksum_is_crc(kind));
    uint64_t polynomial = kind_table[kind].polynomial;
    unsigned width = (unsigned)kind_table[kind].size * 8;
    uint64_t power = UINT64_C(1) << (width - 1 - 8); // x^8: one byte of zeros

    // Appending n zero bytes multiplies by x^(8n); pre- and post-inversion cancel out, as in zlib's crc32_combine.
    for (uint64_t n = second_len; n != 0; n >>= 1) {
        if (n & 1) {
            first = multiply(first, power, polynomial, width);
        }
        power = multiply(power, power, polynomial, width);
    }
    return first ^ second;
}

uint64_t s3_checksum_crc_from_digest(enum s3_checksum_kind kind, const uint8_t *digest)
{
    CHECK(s3_checksum_is_crc(kind));
    return kind_table[kind].size == 8 ? bytes_get_be64(digest) : bytes_get_be32(digest);
}

void s3_checksum_crc_to_digest(enum s3_checksum_kind kind, uint64_t crc, uint8_t *digest)
{
    CHECK(s3_checksum_is_crc(kind));
    if (kind_table[kind].size == 8) {
        bytes_put_be64(digest, crc);
    } else {
        bytes_put_be32(digest, (uint32_t)crc);
    }
}

// --- base64 and hex

static const char base64_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t s3_base64_encode(const void *data, size_t len, char *out, size_t size)
{
    const uint8_t *in = data;
    size_t at = 0;

    CHECK(size > (len + 2) / 3 * 4);
    for (size_t i = 0; i < len; i += 3) {
        size_t left = len - i;
        uint32_t group =
            (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) | (left > 2 ? in[i + 2] : 0);

        out[at++] = base64_digits[group >> 18];
        out[at++] = base64_digits[group >> 12 & 63];
        out[at++] = left > 1 ? base64_digits[group >> 6 & 63] : '=';
        out[at++] = left > 2 ? base64_digits[group & 63] : '=';
    }
    out[at] = '\0';
    return at;
}

static int base64_value(char c)
{
    const char *hit = c != '\0' ? strchr(base64_digits, c) : NULL;

    return hit != NULL ? (int)(hit - base64_digits) : -1;
}

long s3_base64_decode(struct text in, uint8_t *out, size_t size)
{
    size_t padding = 0, len;

    if (in.len % 4 != 0) {
        return -EINVAL;
    }
    while (padding < 2 && padding < in.len && in.at[in.len - 1 - padding] == '=') {
        padding++;
    }
    len = in.len / 4 * 3 - padding;
    if (len > size) {
        return -EINVAL;
    }
    for (size_t i = 0, at = 0; i < in.len; i += 4) {
        uint32_t group = 0;

        for (size_t j = 0; j < 4; j++) {
            bool is_padding = i + j >= in.len - padding;
            int value = is_padding ? 0 : base64_value(in.at[i + j]);

            if (value < 0) {
                return -EINVAL;
            }
            group = group << 6 | (uint32_t)value;
        }
        for (unsigned j = 0; j < 3; j++) {
            uint8_t byte = (uint8_t)(group >> (16 - 8 * j));

            if (at < len) {
                out[at++] = byte;
            } else if (byte != 0) {
                return -EINVAL; // spare bits that encode nothing: two texts for one value
            }
        }
    }
    return (long)len;
}

void s3_hex_encode(const void *data, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *in = data;

    for (size_t i = 0; i < len; i++) {
        out[2 * i] = digits[in[i] >> 4];
        out[2 * i + 1] = digits[in[i] & 15];
    }
    out[2 * len] = '\0';
}

long s3_hex_decode(struct text in, uint8_t *out, size_t size)
{
    if (in.len % 2 != 0 || in.len / 2 > size) {
        return -EINVAL;
    }
    for (size_t i = 0; i < in.len; i += 2) {
        int high = text_hex_digit(in.at[i]), low = text_hex_digit(in.at[i + 1]);

        if (high < 0 || low < 0) {
            return -EINVAL;
        }
        out[i / 2] = (uint8_t)(high << 4 | low);
    }
    return (long)(in.len / 2);
}

// --- what clients state

bool s3_checksum_expect(struct s3_checksum_expected *expected, enum s3_checksum_kind kind, struct text base64)
{
    uint8_t digest[S3_CHECKSUM_SIZE_MAX];

    check_kind(kind);
    if (s3_base64_decode(base64, digest, sizeof(digest)) != (long)kind_table[kind].size) {
        return false;
    }
    expected->kind = kind;
    memcpy(expected->digest, digest, kind_table[kind].size);
    return true;
}

bool s3_checksum_matches(const struct s3_checksum_expected *expected, const uint8_t *digest)
{
    check_kind(expected->kind);
    return CRYPTO_memcmp(expected->digest, digest, kind_table[expected->kind].size) == 0;
}

static enum s3_error read_checksum_header(struct s3_checksum_request *request, const struct http_head *head,
                                          const char *buffer)
{
    for (unsigned i = 0; i < head->header_count; i++) {
        enum s3_checksum_kind kind = s3_checksum_from_header(http_head_text(buffer, head->headers[i].name));

        if (kind == S3_CHECKSUM_NONE) {
            continue;
        }
        if (request->header.kind != S3_CHECKSUM_NONE) {
            return S3_ERR_CONFLICTING_CHECKSUMS;
        }
        if (!s3_checksum_expect(&request->header, kind, http_head_text(buffer, head->headers[i].value))) {
            return S3_ERR_INVALID_CHECKSUM;
        }
    }
    return S3_OK;
}

// The checksum among the announced trailers; other trailers are allowed and ignored.
static enum s3_error read_trailer_name(struct s3_checksum_request *request, struct text list)
{
    while (!text_is_absent(list)) {
        enum s3_checksum_kind kind = s3_checksum_from_header(text_trim(text_take_until(&list, ',')));

        if (kind == S3_CHECKSUM_NONE) {
            continue;
        }
        if (request->trailer != S3_CHECKSUM_NONE && request->trailer != kind) {
            return S3_ERR_CONFLICTING_CHECKSUMS;
        }
        request->trailer = kind;
    }
    return S3_OK;
}

static enum s3_error read_algorithm(struct s3_checksum_request *request, const struct http_head *head,
                                    const char *buffer)
{
    struct text name = http_head_find(head, buffer, "x-amz-checksum-algorithm");

    if (request->header.kind != S3_CHECKSUM_NONE) {
        request->algorithm = request->header.kind;
    } else if (request->trailer != S3_CHECKSUM_NONE) {
        request->algorithm = request->trailer;
    } else if (!text_is_absent(name)) {
        request->algorithm = s3_checksum_from_name(name);
        return request->algorithm == S3_CHECKSUM_NONE ? S3_ERR_INVALID_CHECKSUM : S3_OK;
    } else {
        // What the SDK would use; a name from a newer SDK is no reason to refuse the upload.
        request->algorithm =
            s3_checksum_from_name(http_head_find(head, buffer, "x-amz-sdk-checksum-algorithm"));
    }
    return S3_OK;
}

enum s3_error s3_checksum_request_read(struct s3_checksum_request *request, const struct http_head *head,
                                       const char *buffer)
{
    struct text md5 = http_head_find(head, buffer, "content-md5");
    enum s3_error error;

    *request = (struct s3_checksum_request){0};
    if (!text_is_absent(md5) && (http_head_count(head, buffer, "content-md5") > 1 ||
                                 !s3_checksum_expect(&request->md5, S3_CHECKSUM_MD5, md5))) {
        return S3_ERR_INVALID_DIGEST;
    }
    error = read_checksum_header(request, head, buffer);
    if (error == S3_OK) {
        error = read_trailer_name(request, http_head_find(head, buffer, "x-amz-trailer"));
    }
    if (error == S3_OK && request->header.kind != S3_CHECKSUM_NONE && request->trailer != S3_CHECKSUM_NONE) {
        error = S3_ERR_CONFLICTING_CHECKSUMS;
    }
    return error == S3_OK ? read_algorithm(request, head, buffer) : error;
}

size_t s3_checksum_text(enum s3_checksum_kind kind, const uint8_t *digest, uint32_t part_count,
                        char out[S3_CHECKSUM_TEXT_MAX])
{
    size_t len;

    check_kind(kind);
    CHECK(part_count <= 10000);
    len = s3_base64_encode(digest, kind_table[kind].size, out, S3_CHECKSUM_TEXT_MAX);
    if (part_count > 0) {
        len += (size_t)snprintf(out + len, S3_CHECKSUM_TEXT_MAX - len, "-%u", part_count);
    }
    return len;
}
