// SPDX-License-Identifier: Apache-2.0
//
// The checksums clients may ask us to verify and keep: CRC32, CRC32C, CRC64NVME (ISA-L), SHA-1, SHA-256, MD5 (OpenSSL).
//
// Incremental states, S3's names for them, their base64 form, combination over multipart uploads. Pure apart from
// OpenSSL's own allocation in s3_checksum_open() for the three hashes; updating never allocates.
// Digests are in network byte order, as S3's base64 carries them.

#ifndef SERVER_S3_CHECKSUM_H
#define SERVER_S3_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/http_head.h"
#include "server/s3_error.h"
#include "server/text.h"

// The numbers are stored in the index: never renumber.
enum s3_checksum_kind {
    S3_CHECKSUM_NONE = 0,
    S3_CHECKSUM_CRC32 = 1,
    S3_CHECKSUM_CRC32C = 2,
    S3_CHECKSUM_CRC64NVME = 3,
    S3_CHECKSUM_SHA1 = 4,
    S3_CHECKSUM_SHA256 = 5,
    S3_CHECKSUM_MD5 = 6,
    S3_CHECKSUM_COUNT,
};

#define S3_CHECKSUM_SIZE_MAX 32u
#define S3_CHECKSUM_BASE64_MAX 45u // base64 of 32 bytes and the NUL
#define S3_CHECKSUM_HEX_MAX 65u

struct s3_checksum {
    enum s3_checksum_kind kind;
    uint64_t crc;
    void *hash; // EVP_MD_CTX for SHA-1, SHA-256, MD5
};

// "CRC32C", as in x-amz-checksum-algorithm; "x-amz-checksum-crc32c"; digest size in bytes. MD5 has no x-amz- header of
// its own (Content-MD5 carries it). CHECK a kind in (NONE, COUNT).
const char *s3_checksum_name(enum s3_checksum_kind kind);
const char *s3_checksum_header(enum s3_checksum_kind kind);
size_t s3_checksum_size(enum s3_checksum_kind kind);
bool s3_checksum_is_crc(enum s3_checksum_kind kind); // cheap, and combinable over parts

// From "CRC32C" or from "x-amz-checksum-crc32c", any case; S3_CHECKSUM_NONE when unknown.
enum s3_checksum_kind s3_checksum_from_name(struct text name);
enum s3_checksum_kind s3_checksum_from_header(struct text name);

// 0, -ENOMEM, or -ENOTSUP (OpenSSL forbids the hash). After success the caller owes exactly one s3_checksum_close(). A reset makes it ready for new data.
int s3_checksum_open(struct s3_checksum *checksum, enum s3_checksum_kind kind);
void s3_checksum_reset(struct s3_checksum *checksum);
void s3_checksum_update(struct s3_checksum *checksum, const void *data, size_t len);
// Writes the digest (its size is returned) and leaves the state needing a reset.
size_t s3_checksum_final(struct s3_checksum *checksum, uint8_t digest[S3_CHECKSUM_SIZE_MAX]);
void s3_checksum_close(struct s3_checksum *checksum);

// CRCs without a state, for data that is at hand anyway (the storage layer computes CRC32C per block, for example).
uint64_t s3_checksum_crc_update(enum s3_checksum_kind kind, uint64_t crc, const void *data, size_t len);

// CRC of a concatenation from the CRCs of its halves and the length of the second. kind must be a CRC (CHECKed).
uint64_t s3_checksum_crc_combine(enum s3_checksum_kind kind, uint64_t first, uint64_t second,
                                 uint64_t second_len);
uint64_t s3_checksum_crc_from_digest(enum s3_checksum_kind kind, const uint8_t *digest);
void s3_checksum_crc_to_digest(enum s3_checksum_kind kind, uint64_t crc, uint8_t *digest);

// Base64 with padding, strict both ways. decode returns the decoded length or -EINVAL (bad alphabet, padding, non-zero
// spare bits, or more than size bytes).
size_t s3_base64_encode(const void *data, size_t len, char *out,
                        size_t size); // NUL-terminated; CHECKs the size
long s3_base64_decode(struct text in, uint8_t *out, size_t size);
void s3_hex_encode(const void *data, size_t len, char *out); // lower case, NUL-terminated, 2 * len + 1 bytes
long s3_hex_decode(struct text in, uint8_t *out, size_t size);

// A value a client sent for comparison.
struct s3_checksum_expected {
    enum s3_checksum_kind kind; // NONE: nothing to compare
    uint8_t digest[S3_CHECKSUM_SIZE_MAX];
};
// From base64. False (-> INVALID_CHECKSUM, or INVALID_DIGEST for MD5) unless it decodes to exactly the digest's size.
bool s3_checksum_expect(struct s3_checksum_expected *expected, enum s3_checksum_kind kind,
                        struct text base64);
bool s3_checksum_matches(const struct s3_checksum_expected *expected, const uint8_t *digest);

// What a PUT head asks for: the x-amz-checksum-<kind> header, or the trailer announced by x-amz-trailer, or only
// x-amz-sdk-checksum-algorithm / x-amz-checksum-algorithm; and Content-MD5.
struct s3_checksum_request {
    struct s3_checksum_expected header; // kind NONE when no x-amz-checksum- header came
    struct s3_checksum_expected md5;    // kind NONE without Content-MD5
    enum s3_checksum_kind trailer;      // announced trailer; NONE without
    enum s3_checksum_kind algorithm;    // what to compute and store: header, trailer or the named algorithm
};
// A decoder of trailers (auth_chunked.h) hands the trailer's value over; everything else is final here.
// S3_OK, CONFLICTING_CHECKSUMS (two x-amz-checksum- headers, or a header and a trailer), INVALID_CHECKSUM,
// INVALID_DIGEST.
enum s3_error s3_checksum_request_read(struct s3_checksum_request *request, const struct http_head *head,
                                       const char *buffer);

// Composite checksum of a multipart object: the digest of the parts' digests in order. "-N" is appended by the writer.
// Same calling order as above: open(kind), update with each part's digest, final. These helpers write the text form.
#define S3_CHECKSUM_TEXT_MAX (S3_CHECKSUM_BASE64_MAX + 6u)
size_t s3_checksum_text(enum s3_checksum_kind kind, const uint8_t *digest,
                        uint32_t part_count /* 0: not composite */, char out[S3_CHECKSUM_TEXT_MAX]);

#endif
