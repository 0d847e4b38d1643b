// SPDX-License-Identifier: Apache-2.0
//
// The aws-chunked decoder; the contract is in auth_chunked.h.
//
//	SIZE --line complete, size > 0--> DATA --all read--> DATA_END --CRLF--> SIZE
//	SIZE --line complete, size 0, no trailers in this form--> END --CRLF--> DONE
//	SIZE --line complete, size 0, form with trailers--------> TRAILER --empty line--> DONE, or AGAIN --CRLF--> DONE
//
// Lines are collected in a small buffer (line_byte()), so that a line cut anywhere by the network is handled in one place:
// size_line() and trailer_line(). Payload is only looked at to hash it.

#include "server/auth_chunked.h"

#include <errno.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"

#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define SIZE_DIGITS_MAX 16

enum {
    STATE_SIZE,
    STATE_DATA,
    STATE_DATA_END, // the CRLF behind a chunk
    STATE_END,      // the CRLF behind the last chunk of a form without trailers
    STATE_TRAILER,
    STATE_AGAIN, // complete; one more CRLF may follow
    STATE_DONE,
    STATE_BAD,
};

static bool is_signed(const struct auth_chunked *chunked)
{
    return chunked->info.payload != AUTH_PAYLOAD_UNSIGNED_TRAILER;
}

static bool has_trailers(const struct auth_chunked *chunked)
{
    return chunked->info.payload != AUTH_PAYLOAD_SIGNED_CHUNKS;
}

int auth_chunked_begin(struct auth_chunked *chunked, const struct auth_payload_info *info,
                       const struct auth_sigv4_context *context)
{
    CHECK(auth_payload_is_streaming(info->payload));
    memset(chunked, 0, sizeof(*chunked));
    chunked->info = *info;
    chunked->state = STATE_SIZE;
    chunked->is_verified = context != NULL && is_signed(chunked);
    if (!chunked->is_verified) {
        return 0;
    }
    chunked->context = *context;
    return s3_checksum_open(&chunked->hash, S3_CHECKSUM_SHA256);
}

void auth_chunked_end(struct auth_chunked *chunked)
{
    if (chunked->hash.kind != S3_CHECKSUM_NONE) {
        s3_checksum_close(&chunked->hash);
    }
    OPENSSL_cleanse(&chunked->context, sizeof(chunked->context));
    chunked->state = STATE_BAD;
}

// Returns false, so that callers can end with it.
static bool fail(struct auth_chunked *chunked, enum s3_error error)
{
    chunked->error = error;
    chunked->state = STATE_BAD;
    return false;
}

// --- signatures

struct to_sign {
    size_t len;
    char at[512];
};

static void to_sign_add(struct to_sign *to_sign, struct text text)
{
    CHECK(text.len <= sizeof(to_sign->at) - to_sign->len);
    memcpy(to_sign->at + to_sign->len, text.at, text.len);
    to_sign->len += text.len;
}

// Checks the signature of what was just read: kind, what comes before the last hash, and the hash. On success it becomes
// the one the next signature builds on.
static bool signature_fits(struct auth_chunked *chunked, struct text kind, struct text before_hash,
                           const uint8_t digest[32])
{
    struct auth_sigv4_context *context = &chunked->context;
    struct to_sign to_sign = {0};
    char hex[S3_CHECKSUM_HEX_MAX];
    uint8_t wanted[32], given[32];
    unsigned len = sizeof(wanted);

    s3_hex_encode(digest, 32, hex);
    to_sign_add(&to_sign, kind);
    to_sign_add(&to_sign, TEXT("\n"));
    to_sign_add(&to_sign, text_of(context->timestamp, sizeof(context->timestamp)));
    to_sign_add(&to_sign, TEXT("\n"));
    to_sign_add(&to_sign, text_of(context->scope, context->scope_len));
    to_sign_add(&to_sign, TEXT("\n"));
    to_sign_add(&to_sign, text_of(context->seed_signature, sizeof(context->seed_signature)));
    to_sign_add(&to_sign, TEXT("\n"));
    to_sign_add(&to_sign, before_hash);
    to_sign_add(&to_sign, text_of(hex, 64));
    CHECK(HMAC(EVP_sha256(), context->signing_key, 32, (const unsigned char *)to_sign.at, to_sign.len, wanted,
               &len) != NULL);
    if (s3_hex_decode(text_of(chunked->signature, 64), given, sizeof(given)) != 32 ||
        CRYPTO_memcmp(wanted, given, sizeof(wanted)) != 0) {
        return fail(chunked, S3_ERR_SIGNATURE_MISMATCH);
    }
    s3_hex_encode(wanted, 32, hex);
    memcpy(context->seed_signature, hex, 64);
    return true;
}

static bool chunk_signature_fits(struct auth_chunked *chunked)
{
    uint8_t digest[S3_CHECKSUM_SIZE_MAX];

    if (!chunked->is_verified) {
        return true;
    }
    s3_checksum_final(&chunked->hash, digest);
    s3_checksum_reset(&chunked->hash);
    return signature_fits(chunked, TEXT("AWS4-HMAC-SHA256-PAYLOAD"), TEXT(EMPTY_SHA256 "\n"), digest);
}

static bool trailer_signature_fits(struct auth_chunked *chunked)
{
    uint8_t digest[32];

    if (!chunked->is_verified) {
        return true;
    }
    CHECK(EVP_Digest(chunked->trailer_text, chunked->trailer_text_len, digest, NULL, EVP_sha256(), NULL) ==
          1);
    return signature_fits(chunked, TEXT("AWS4-HMAC-SHA256-TRAILER"), TEXT(""), digest);
}

// --- lines

static bool parse_size(struct text digits, uint64_t *size)
{
    uint64_t sum = 0;

    if (digits.len == 0 || digits.len > SIZE_DIGITS_MAX) {
        return false;
    }
    for (size_t i = 0; i < digits.len; i++) {
        int digit = text_hex_digit(digits.at[i]);

        if (digit < 0) {
            return false;
        }
        sum = sum << 4 | (unsigned)digit;
    }
    *size = sum;
    return true;
}

static bool take_signature(struct auth_chunked *chunked, struct text hex)
{
    uint8_t bytes[32];

    if (hex.len != 64 || s3_hex_decode(hex, bytes, sizeof(bytes)) != 32) {
        return false;
    }
    memcpy(chunked->signature, hex.at, 64);
    return true;
}

// "hex" or "hex;chunk-signature=...", without its CRLF.
static bool size_line(struct auth_chunked *chunked, struct text line)
{
    struct text extension = line;
    struct text digits = text_take_until(&extension, ';');
    struct text prefix = TEXT("chunk-signature=");
    uint64_t size;

    if (!parse_size(digits, &size)) {
        return fail(chunked, S3_ERR_INCOMPLETE_BODY);
    }
    if (is_signed(chunked)) {
        if (text_is_absent(extension) || !text_starts_with(extension, prefix) ||
            !take_signature(chunked, text_of(extension.at + prefix.len, extension.len - prefix.len))) {
            return fail(chunked, S3_ERR_INCOMPLETE_BODY);
        }
    } else if (!text_is_absent(extension)) {
        return fail(chunked, S3_ERR_INCOMPLETE_BODY);
    }
    // More than was declared; refused before its bytes are taken.
    if (size > chunked->info.decoded_length - chunked->payload_bytes) {
        return fail(chunked, S3_ERR_INCOMPLETE_BODY);
    }
    if (size > 0 && chunked->had_short_chunk) {
        return fail(chunked, S3_ERR_INVALID_CHUNK_SIZE);
    }
    chunked->had_short_chunk = is_signed(chunked) && size < AUTH_CHUNKED_SIZE_MIN;
    chunked->remaining = size;
    if (size > 0) {
        chunked->state = STATE_DATA;
        return true;
    }
    if (chunked->payload_bytes != chunked->info.decoded_length) {
        return fail(chunked, S3_ERR_INCOMPLETE_BODY);
    }
    chunked->state = has_trailers(chunked) ? STATE_TRAILER : STATE_END;
    return chunk_signature_fits(chunked);
}

static bool finish(struct auth_chunked *chunked)
{
    if (chunked->info.trailer != S3_CHECKSUM_NONE && chunked->trailer.kind == S3_CHECKSUM_NONE) {
        return fail(chunked, S3_ERR_MALFORMED_TRAILER); // announced, but it did not come
    }
    chunked->state = STATE_DONE;
    return true;
}

// The body may end here.
static bool is_complete(const struct auth_chunked *chunked)
{
    return chunked->state == STATE_DONE || (chunked->state == STATE_AGAIN && chunked->line_len == 0);
}

static bool trailer_checksum(struct auth_chunked *chunked, struct text name, struct text value)
{
    enum s3_checksum_kind kind = s3_checksum_from_header(name);

    if (kind == S3_CHECKSUM_NONE) {
        return true; // some other trailer: signed or not, nothing here depends on it
    }
    // Only what the head announced, and only once.
    if (kind != chunked->info.trailer || chunked->trailer.kind != S3_CHECKSUM_NONE) {
        return fail(chunked, S3_ERR_MALFORMED_TRAILER);
    }
    return s3_checksum_expect(&chunked->trailer, kind, value) || fail(chunked, S3_ERR_INVALID_CHECKSUM);
}

// The canonical form that the trailer signature covers: "name:value\n" for each.
static bool trailer_text_add(struct auth_chunked *chunked, struct text name, struct text value)
{
    char *at = chunked->trailer_text + chunked->trailer_text_len;

    if (name.len + value.len + 2 > sizeof(chunked->trailer_text) - chunked->trailer_text_len) {
        return fail(chunked, S3_ERR_MALFORMED_TRAILER);
    }
    for (size_t i = 0; i < name.len; i++) {
        *at++ = text_lower_char(name.at[i]);
    }
    *at++ = ':';
    memcpy(at, value.at, value.len);
    at += value.len;
    *at++ = '\n';
    chunked->trailer_text_len = (uint32_t)(at - chunked->trailer_text);
    return true;
}

static bool empty_trailer_line(struct auth_chunked *chunked)
{
    if (chunked->info.payload != AUTH_PAYLOAD_SIGNED_TRAILER) {
        if (!finish(chunked)) {
            return false;
        }
        // minio-go closes the documentation's "value\n" with two empty lines, others with one.
        chunked->state = chunked->had_bare_lf ? STATE_AGAIN : STATE_DONE;
        return true;
    }
    if (chunked->has_trailer_signature) {
        return finish(chunked);
    }
    // The documentation shows "value\n\r\n" in front of the signature, and some clients follow it to the letter: one empty
    // line there is not the end.
    if (chunked->had_empty_line || chunked->trailer_count == 0) {
        return fail(chunked, S3_ERR_MALFORMED_TRAILER);
    }
    chunked->had_empty_line = true;
    return true;
}

static bool trailer_line(struct auth_chunked *chunked, struct text line)
{
    struct text value = line;
    struct text name = text_take_until(&value, ':');

    if (line.len == 0) {
        return empty_trailer_line(chunked);
    }
    value = text_trim(value);
    if (text_is_absent(value) || name.len == 0 || ++chunked->trailer_count > AUTH_CHUNKED_TRAILERS_MAX) {
        return fail(chunked, S3_ERR_MALFORMED_TRAILER);
    }
    if (!text_is_nocase(name, "x-amz-trailer-signature")) {
        // The signature closes the list.
        return chunked->has_trailer_signature || chunked->had_empty_line
                   ? fail(chunked, S3_ERR_MALFORMED_TRAILER)
                   : trailer_text_add(chunked, name, value) && trailer_checksum(chunked, name, value);
    }
    if (chunked->info.payload != AUTH_PAYLOAD_SIGNED_TRAILER || chunked->has_trailer_signature ||
        !take_signature(chunked, value)) {
        return fail(chunked, S3_ERR_MALFORMED_TRAILER);
    }
    chunked->has_trailer_signature = true;
    return trailer_signature_fits(chunked);
}

// A complete line, without its LF.
static bool line_end(struct auth_chunked *chunked)
{
    struct text line = text_of(chunked->line, chunked->line_len);
    bool has_cr = line.len > 0 && line.at[line.len - 1] == '\r';

    chunked->line_len = 0;
    if (has_cr) {
        line.len--;
    }
    if (chunked->state == STATE_TRAILER) {
        chunked->had_bare_lf = chunked->had_bare_lf || !has_cr;
        return trailer_line(chunked, line);
    }
    if (!has_cr) {
        return fail(chunked, S3_ERR_INCOMPLETE_BODY);
    }
    if (chunked->state == STATE_SIZE) {
        return size_line(chunked, line);
    }
    if (line.len != 0) {
        return fail(chunked, S3_ERR_INCOMPLETE_BODY);
    }
    if (chunked->state == STATE_END || chunked->state == STATE_AGAIN) {
        return finish(chunked);
    }
    CHECK(chunked->state == STATE_DATA_END);
    chunked->state = STATE_SIZE;
    return true;
}

static bool line_byte(struct auth_chunked *chunked, char c)
{
    if (c == '\n') {
        return line_end(chunked);
    }
    // Behind a chunk there is CR LF and nothing else; saying so at once keeps a wrong size from eating payload as a line.
    bool is_line = chunked->state == STATE_SIZE || chunked->state == STATE_TRAILER;
    size_t max = is_line ? sizeof(chunked->line) : 1;

    if (chunked->line_len == max || (!is_line && c != '\r')) {
        return fail(chunked,
                    chunked->state == STATE_TRAILER ? S3_ERR_MALFORMED_TRAILER : S3_ERR_INCOMPLETE_BODY);
    }
    chunked->line[chunked->line_len++] = c;
    return true;
}

// --- stepping

static enum auth_chunked_status take_run(struct auth_chunked *chunked, const char *in, size_t len,
                                         struct http_chunked_span *span)
{
    size_t left = len - span->skip;

    span->run = chunked->remaining < left ? (size_t)chunked->remaining : left;
    if (chunked->is_verified) {
        s3_checksum_update(&chunked->hash, in + span->skip, span->run);
    }
    chunked->remaining -= span->run;
    chunked->payload_bytes += span->run;
    if (chunked->remaining > 0) {
        return AUTH_CHUNKED_RUN;
    }
    chunked->state = STATE_DATA_END;
    if (!chunk_signature_fits(chunked)) {
        span->run = 0; // what is not genuine is not handed out
        return AUTH_CHUNKED_BAD;
    }
    return AUTH_CHUNKED_RUN;
}

enum auth_chunked_status auth_chunked_step(struct auth_chunked *chunked, const void *in, size_t len,
                                           struct http_chunked_span *span)
{
    const char *bytes = in;

    CHECK(chunked->state <= STATE_BAD);
    *span = (struct http_chunked_span){0};
    while (chunked->state != STATE_DONE && chunked->state != STATE_BAD) {
        if (span->skip == len) {
            return is_complete(chunked) ? AUTH_CHUNKED_DONE : AUTH_CHUNKED_MORE;
        }
        if (chunked->state == STATE_DATA) {
            return take_run(chunked, bytes, len, span);
        }
        if (line_byte(chunked, bytes[span->skip])) {
            span->skip++;
        }
    }
    return chunked->state == STATE_DONE ? AUTH_CHUNKED_DONE : AUTH_CHUNKED_BAD;
}

enum s3_error auth_chunked_finish(const struct auth_chunked *chunked)
{
    if (is_complete(chunked)) {
        return S3_OK;
    }
    return chunked->state == STATE_BAD ? chunked->error : S3_ERR_INCOMPLETE_BODY;
}
