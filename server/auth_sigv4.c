// SPDX-License-Identifier: Apache-2.0
//
// Signature Version 4: reading credentials and verifying requests; the contract is in auth_sigv4.h.
//
// The canonical request is never built in memory: it is fed to SHA-256 piece by piece. What may be spelled in two ways,
// the path and the query, is tried in each spelling that differs; a forger gains nothing from four tries at a MAC.

#include "server/auth_sigv4.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"

#define ALGORITHM "AWS4-HMAC-SHA256"
#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// --- reading credentials

// "AKID/20130524/us-east-1/s3/aws4_request". An access key may hold slashes, so it is taken apart from the right.
static bool split_credential(struct auth_sigv4 *auth, struct text credential)
{
    struct text part[4];
    size_t end = credential.len;

    for (unsigned i = 4; i > 0; i--) {
        size_t begin = end;

        while (begin > 0 && credential.at[begin - 1] != '/') {
            begin--;
        }
        if (begin == 0) {
            return false;
        }
        part[i - 1] = text_of(credential.at + begin, end - begin);
        end = begin - 1;
    }
    auth->access_key = text_of(credential.at, end);
    auth->scope = text_of(part[0].at, credential.len - end - 1);
    auth->scope_date = part[0];
    auth->region = part[1];
    return end > 0 && end <= AUTH_ACCESS_KEY_MAX && part[0].len == 8 && part[1].len > 0 &&
           part[1].len <= AUTH_REGION_MAX && text_is(part[2], "s3") && text_is(part[3], "aws4_request") &&
           memchr(credential.at, '\0', credential.len) == NULL;
}

static bool is_signed_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("-_.!#$%&'*+^`|~", c) != NULL);
}

// Lower-case names with ';' between them.
static bool signed_headers_are_valid(struct text list)
{
    unsigned count = 0;

    if (list.len == 0) {
        return false;
    }
    while (!text_is_absent(list)) {
        struct text name = text_take_until(&list, ';');

        if (name.len == 0 || ++count > AUTH_SIGNED_HEADERS_MAX) {
            return false;
        }
        for (size_t i = 0; i < name.len; i++) {
            if (!is_signed_name_byte(name.at[i])) {
                return false;
            }
        }
    }
    return true;
}

static bool signature_is_valid(struct text signature)
{
    uint8_t bytes[32];

    return signature.len == 64 && s3_hex_decode(signature, bytes, sizeof(bytes)) == 32;
}

// What both places of credentials have in common.
static bool fields_are_valid(struct auth_sigv4 *auth, struct text credential)
{
    return !text_is_absent(credential) && split_credential(auth, credential) &&
           signed_headers_are_valid(auth->signed_headers) && signature_is_valid(auth->signature) &&
           text_equal(auth->scope_date, text_of(auth->timestamp.at, 8));
}

static bool take_field(struct text *field, struct text value)
{
    if (!text_is_absent(*field)) {
        return false;
    }
    *field = value;
    return true;
}

// "Credential=..., SignedHeaders=..., Signature=..." with ", " or "," between them (both occur).
static bool split_header(struct auth_sigv4 *auth, struct text rest, struct text *credential)
{
    while (!text_is_absent(rest)) {
        struct text value = text_trim(text_take_until(&rest, ','));
        struct text name = text_take_until(&value, '=');
        bool is_new;

        if (text_is_absent(value)) {
            return false;
        }
        if (text_is(name, "Credential")) {
            is_new = take_field(credential, value);
        } else if (text_is(name, "SignedHeaders")) {
            is_new = take_field(&auth->signed_headers, value);
        } else if (text_is(name, "Signature")) {
            is_new = take_field(&auth->signature, value);
        } else {
            is_new = false;
        }
        if (!is_new) {
            return false;
        }
    }
    return true;
}

// x-amz-date, or the Date header of the few that send none.
static enum s3_error read_header_date(struct auth_sigv4 *auth, const struct http_head *head,
                                      const char *buffer, int64_t now_s)
{
    struct text date = http_head_find(head, buffer, "x-amz-date");

    if (text_is_absent(date)) {
        date = http_head_find(head, buffer, "date");
        if (text_is_absent(date) ||
            (!http_date_parse(date, now_s, &auth->time_s) && !http_date_parse_basic(date, &auth->time_s))) {
            return S3_ERR_MISSING_DATE;
        }
    } else if (!http_date_parse_basic(date, &auth->time_s)) {
        return S3_ERR_MISSING_DATE;
    }
    http_date_format_basic(auth->time_s, auth->timestamp_text);
    auth->timestamp = text_of(auth->timestamp_text, HTTP_DATE_BASIC_SIZE - 1);
    return S3_OK;
}

static enum s3_error read_header(struct auth_sigv4 *auth, const struct http_head *head, const char *buffer,
                                 int64_t now_s)
{
    struct text value = http_head_find(head, buffer, "authorization");
    struct text rest = value, credential = {0};
    struct text algorithm = text_take_until(&rest, ' ');
    enum s3_error error;

    if (text_is(algorithm, "AWS")) {
        return S3_ERR_AUTH_V2;
    }
    if (text_starts_with(algorithm, TEXT("AWS4-ECDSA-"))) {
        return S3_ERR_NOT_IMPLEMENTED;
    }
    if (!text_is(algorithm, ALGORITHM)) {
        return S3_ERR_AUTH_UNSUPPORTED;
    }
    if (text_is_absent(rest) || http_head_count(head, buffer, "authorization") > 1 ||
        !split_header(auth, rest, &credential)) {
        return S3_ERR_AUTH_HEADER_MALFORMED;
    }
    error = read_header_date(auth, head, buffer, now_s);
    if (error != S3_OK) {
        return error;
    }
    auth->scheme = AUTH_SCHEME_HEADER;
    return fields_are_valid(auth, credential) ? S3_OK : S3_ERR_AUTH_HEADER_MALFORMED;
}

static enum s3_error read_query(struct auth_sigv4 *auth, const struct s3_target *target)
{
    struct text algorithm = s3_target_param(target, "X-Amz-Algorithm");
    struct text date = s3_target_param(target, "X-Amz-Date");
    uint64_t expires;

    if (text_starts_with(algorithm, TEXT("AWS4-ECDSA-"))) {
        return S3_ERR_NOT_IMPLEMENTED;
    }
    if (!text_is(algorithm, ALGORITHM) || !http_date_parse_basic(date, &auth->time_s) ||
        !text_parse_u64(s3_target_param(target, "X-Amz-Expires"), &expires) || expires < 1 ||
        expires > AUTH_EXPIRES_MAX_S) {
        return S3_ERR_AUTH_QUERY_MALFORMED;
    }
    auth->expires_s = (uint32_t)expires;
    auth->signed_headers = s3_target_param(target, "X-Amz-SignedHeaders");
    auth->signature = s3_target_param(target, "X-Amz-Signature");
    http_date_format_basic(auth->time_s, auth->timestamp_text);
    auth->timestamp = text_of(auth->timestamp_text, HTTP_DATE_BASIC_SIZE - 1);
    auth->scheme = AUTH_SCHEME_QUERY;
    return fields_are_valid(auth, s3_target_param(target, "X-Amz-Credential")) ? S3_OK
                                                                               : S3_ERR_AUTH_QUERY_MALFORMED;
}

enum s3_error auth_sigv4_read(struct auth_sigv4 *auth, const struct http_head *head, const char *buffer,
                              const struct s3_target *target, struct text region, int64_t now_s)
{
    bool has_header = !text_is_absent(http_head_find(head, buffer, "authorization"));
    bool has_query = s3_target_has_param(target, "X-Amz-Algorithm") ||
                     s3_target_has_param(target, "X-Amz-Signature") ||
                     s3_target_has_param(target, "X-Amz-Credential");

    *auth = (struct auth_sigv4){.scheme = AUTH_SCHEME_NONE};
    if (has_header && has_query) {
        return S3_ERR_AUTH_TWICE;
    }
    if (!has_header && !has_query) {
        bool is_v2 =
            s3_target_has_param(target, "AWSAccessKeyId") || s3_target_has_param(target, "Signature");
        return is_v2 ? S3_ERR_AUTH_V2 : S3_OK;
    }
    enum s3_error error = has_header ? read_header(auth, head, buffer, now_s) : read_query(auth, target);
    if (error == S3_OK && !text_is_absent(region) && !text_equal(auth->region, region)) {
        return has_header ? S3_ERR_AUTH_HEADER_REGION : S3_ERR_AUTH_QUERY_REGION;
    }
    return error;
}

// --- the canonical request, hashed as it is written

struct sink {
    EVP_MD_CTX *hash;
    size_t len;
    char buffer[512];
};

static void sink_flush(struct sink *sink)
{
    CHECK(EVP_DigestUpdate(sink->hash, sink->buffer, sink->len) == 1);
    sink->len = 0;
}

static void sink_byte(struct sink *sink, char c)
{
    if (sink->len == sizeof(sink->buffer)) {
        sink_flush(sink);
    }
    sink->buffer[sink->len++] = c;
}

static void sink_text(struct sink *sink, struct text text)
{
    for (size_t i = 0; i < text.len; i++) {
        sink_byte(sink, text.at[i]);
    }
}

static bool is_unreserved(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

static void sink_encoded(struct sink *sink, char c)
{
    static const char hex[] = "0123456789ABCDEF";
    unsigned char byte = (unsigned char)c;

    if (is_unreserved(c)) {
        sink_byte(sink, c);
        return;
    }
    sink_byte(sink, '%');
    sink_byte(sink, hex[byte >> 4]);
    sink_byte(sink, hex[byte & 15]);
}

// One spelling of what may be spelled in several ways.
struct spelling {
    bool reencode_path;
    bool reencode_query;
};

// Takes one byte off a percent-encoded text that s3_target_parse() has already found to be well-formed.
static char take_decoded(struct text *text)
{
    char c = text->at[0];
    size_t used = 1;

    if (c == '%' && text->len >= 3) {
        c = (char)(text_hex_digit(text->at[1]) * 16 + text_hex_digit(text->at[2]));
        used = 3;
    }
    *text = text_of(text->at + used, text->len - used);
    return c;
}

static void sink_path(struct sink *sink, struct text path, bool reencode)
{
    if (!reencode) {
        sink_text(sink, path);
        return;
    }
    while (path.len > 0) {
        bool is_slash = path.at[0] == '/'; // "%2F" decodes to a slash, too, and SDKs sign it as one
        char c = take_decoded(&path);

        if (is_slash || c == '/') {
            sink_byte(sink, '/');
        } else {
            sink_encoded(sink, c);
        }
    }
}

// --- query

// The parameters in the order of their canonical form. Raw spelling sorts what was received; the other sorts what
// re-encoding gives.
struct query {
    size_t count;
    struct s3_param params[S3_PARAMS_MAX];
};

// The next byte of the encoded form of a decoded text; *position counts encoded bytes within the current character.
struct encoder {
    struct text text;
    unsigned position;
};

static int encoder_next(struct encoder *encoder)
{
    static const char hex[] = "0123456789ABCDEF";
    unsigned char c;
    int next;

    if (encoder->text.len == 0) {
        return -1;
    }
    c = (unsigned char)encoder->text.at[0];
    if (is_unreserved((char)c)) {
        next = c;
        encoder->position = 3;
    } else {
        next = encoder->position == 0 ? '%' : encoder->position == 1 ? hex[c >> 4] : hex[c & 15];
        encoder->position++;
    }
    if (encoder->position == 3) {
        encoder->position = 0;
        encoder->text = text_of(encoder->text.at + 1, encoder->text.len - 1);
    }
    return next;
}

static int compare_encoded(struct text a, struct text b)
{
    struct encoder left = {a, 0}, right = {b, 0};

    for (;;) { // ends with the shorter text at the latest
        int x = encoder_next(&left), y = encoder_next(&right);

        if (x != y || x < 0) {
            return x - y;
        }
    }
}

static int compare_raw(struct text a, struct text b)
{
    size_t shorter = a.len < b.len ? a.len : b.len;
    int order = shorter > 0 ? memcmp(a.at, b.at, shorter) : 0;

    return order != 0 ? order : a.len < b.len ? -1 : a.len > b.len;
}

static bool comes_before(const struct s3_param *a, const struct s3_param *b, bool reencode)
{
    int order = reencode ? compare_encoded(a->name, b->name) : compare_raw(a->name, b->name);

    if (order == 0) {
        order = reencode ? compare_encoded(a->value, b->value) : compare_raw(a->value, b->value);
    }
    return order < 0;
}

static void query_insert(struct query *query, struct s3_param param, bool reencode)
{
    size_t at = query->count;

    CHECK(query->count < S3_PARAMS_MAX); // as many as s3_target_parse() lets through
    while (at > 0 && comes_before(&param, &query->params[at - 1], reencode)) {
        query->params[at] = query->params[at - 1];
        at--;
    }
    query->params[at] = param;
    query->count++;
}

static void query_sort(struct query *query, const struct s3_target *target, bool reencode)
{
    struct text rest = target->query;

    query->count = 0;
    if (reencode) {
        for (size_t i = 0; i < target->param_count; i++) {
            if (!text_is(target->params[i].name, "X-Amz-Signature")) {
                query_insert(query, target->params[i], true);
            }
        }
        return;
    }
    while (!text_is_absent(rest)) {
        struct s3_param param = {.value = text_take_until(&rest, '&')};

        if (param.value.len == 0) {
            continue;
        }
        param.name = text_take_until(&param.value, '=');
        if (!text_is(param.name, "X-Amz-Signature")) {
            query_insert(query, param, false);
        }
    }
}

static void sink_query_text(struct sink *sink, struct text text, bool reencode)
{
    if (!reencode) {
        sink_text(sink, text);
        return;
    }
    for (size_t i = 0; i < text.len; i++) {
        sink_encoded(sink, text.at[i]);
    }
}

static void sink_query(struct sink *sink, const struct s3_target *target, bool reencode)
{
    struct query query;

    query_sort(&query, target, reencode);
    for (size_t i = 0; i < query.count; i++) {
        if (i > 0) {
            sink_byte(sink, '&');
        }
        sink_query_text(sink, query.params[i].name, reencode);
        sink_byte(sink, '='); // also behind a name that had none
        sink_query_text(sink, query.params[i].value, reencode);
    }
}

// --- headers

// Trimmed already; runs of white space become one space.
static void sink_header_value(struct sink *sink, struct text value)
{
    bool was_space = false;

    for (size_t i = 0; i < value.len; i++) {
        bool is_space = value.at[i] == ' ' || value.at[i] == '\t';

        if (!is_space) {
            sink_byte(sink, value.at[i]);
        } else if (!was_space) {
            sink_byte(sink, ' ');
        }
        was_space = is_space;
    }
}

static void sink_headers(struct sink *sink, const struct http_head *head, const char *buffer,
                         struct text names)
{
    while (!text_is_absent(names)) {
        struct text name = text_take_until(&names, ';');
        bool is_first = true;

        sink_text(sink, name);
        sink_byte(sink, ':');
        for (unsigned i = 0; i < head->header_count; i++) {
            if (!text_equal_nocase(http_head_text(buffer, head->headers[i].name), name)) {
                continue;
            }
            if (!is_first) {
                sink_byte(sink, ',');
            }
            sink_header_value(sink, http_head_text(buffer, head->headers[i].value));
            is_first = false;
        }
        sink_byte(sink, '\n');
    }
}

static bool is_signed(struct text names, struct text wanted)
{
    while (!text_is_absent(names)) {
        if (text_equal_nocase(text_take_until(&names, ';'), wanted)) {
            return true;
        }
    }
    return false;
}

// Host and every x-amz- header must be signed: they change what the request does.
static enum s3_error check_signed_headers(const struct auth_sigv4 *auth, const struct http_head *head,
                                          const char *buffer, struct auth_sigv4_check *check)
{
    check->unsigned_header = TEXT("host");
    if (!is_signed(auth->signed_headers, check->unsigned_header)) {
        return S3_ERR_HEADERS_NOT_SIGNED;
    }
    for (unsigned i = 0; i < head->header_count; i++) {
        struct text name = http_head_text(buffer, head->headers[i].name);

        if (text_starts_with_nocase(name, TEXT("x-amz-")) && !is_signed(auth->signed_headers, name)) {
            check->unsigned_header = name;
            return S3_ERR_HEADERS_NOT_SIGNED;
        }
    }
    check->unsigned_header = (struct text){0};
    return S3_OK;
}

// --- verification

struct request {
    const struct auth_sigv4 *auth;
    const struct http_head *head;
    const char *buffer;
    const struct s3_target *target;
    struct text payload; // the last line of the canonical request
};

static void hash_canonical(EVP_MD_CTX *hash, const struct request *request, struct spelling spelling,
                           uint8_t out[32])
{
    struct sink sink = {.hash = hash};

    CHECK(EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1);
    sink_text(&sink, http_head_text(request->buffer, request->head->method_text));
    sink_byte(&sink, '\n');
    sink_path(&sink, request->target->path, spelling.reencode_path);
    sink_byte(&sink, '\n');
    sink_query(&sink, request->target, spelling.reencode_query);
    sink_byte(&sink, '\n');
    sink_headers(&sink, request->head, request->buffer, request->auth->signed_headers);
    sink_byte(&sink, '\n');
    sink_text(&sink, request->auth->signed_headers);
    sink_byte(&sink, '\n');
    sink_text(&sink, request->payload);
    sink_flush(&sink);
    CHECK(EVP_DigestFinal_ex(hash, out, NULL) == 1);
}

static bool signature_fits(EVP_MD_CTX *hash, const struct request *request, struct spelling spelling,
                           const uint8_t key[32])
{
    char to_sign[sizeof(ALGORITHM) + 16 + 1 + AUTH_REGION_MAX + 40 + 1 + 65];
    uint8_t digest[32], wanted[32], given[32];
    struct text parts[] = {TEXT(ALGORITHM "\n"), request->auth->timestamp, TEXT("\n"), request->auth->scope,
                           TEXT("\n")};
    size_t len = 0;
    unsigned mac_len = 32;

    for (unsigned i = 0; i < 5; i++) {
        CHECK(parts[i].len <= sizeof(to_sign) - 65 - len);
        memcpy(to_sign + len, parts[i].at, parts[i].len);
        len += parts[i].len;
    }
    hash_canonical(hash, request, spelling, digest);
    s3_hex_encode(digest, sizeof(digest), to_sign + len);
    len += 64;
    CHECK(HMAC(EVP_sha256(), key, 32, (const unsigned char *)to_sign, len, wanted, &mac_len) != NULL);
    CHECK(s3_hex_decode(request->auth->signature, given, sizeof(given)) == 32);
    return CRYPTO_memcmp(wanted, given, sizeof(wanted)) == 0;
}

static bool any_spelling_fits(const struct request *request, const uint8_t key[32])
{
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    bool fits = false;

    CHECK(hash != NULL); // a few hundred bytes: nothing works without them
    for (unsigned i = 0; i < 4 && !fits; i++) {
        struct spelling spelling = {.reencode_path = (i & 1) != 0, .reencode_query = (i & 2) != 0};

        if (spelling.reencode_query && request->target->param_count == 0) {
            break;
        }
        fits = signature_fits(hash, request, spelling, key);
    }
    EVP_MD_CTX_free(hash);
    return fits;
}

static enum s3_error check_time(const struct auth_sigv4 *auth, const struct auth_sigv4_check *check)
{
    int64_t age = check->now_s - auth->time_s;

    if (auth->scheme == AUTH_SCHEME_HEADER) {
        return age > (int64_t)check->skew_s || -age > (int64_t)check->skew_s ? S3_ERR_REQUEST_TIME_SKEWED
                                                                             : S3_OK;
    }
    if (-age > (int64_t)check->skew_s) {
        return S3_ERR_REQUEST_NOT_YET_VALID;
    }
    return age > (int64_t)auth->expires_s ? S3_ERR_REQUEST_EXPIRED : S3_OK;
}

static enum s3_error payload_line(struct request *request)
{
    bool has_body = request->head->is_chunked || request->head->content_length > 0;

    request->payload = auth_payload_literal(request->head, request->buffer, request->target);
    if (!text_is_absent(request->payload)) {
        return S3_OK;
    }
    if (request->auth->scheme == AUTH_SCHEME_QUERY) {
        request->payload = TEXT("UNSIGNED-PAYLOAD");
        return S3_OK;
    }
    // Old curl sends no such header. Without a body there is only one value it can have signed; with one, nothing would
    // protect the body.
    request->payload = TEXT(EMPTY_SHA256);
    return has_body ? S3_ERR_CONTENT_SHA256_MISSING : S3_OK;
}

static void context_fill(struct auth_sigv4_context *context, const struct auth_sigv4 *auth,
                         const uint8_t key[32])
{
    memcpy(context->signing_key, key, 32);
    for (unsigned i = 0; i < 64; i++) {
        context->seed_signature[i] = text_lower_char(auth->signature.at[i]);
    }
    memcpy(context->timestamp, auth->timestamp.at, sizeof(context->timestamp));
    CHECK(auth->scope.len <= sizeof(context->scope));
    memcpy(context->scope, auth->scope.at, auth->scope.len);
    context->scope_len = (uint32_t)auth->scope.len;
}

enum s3_error auth_sigv4_verify(const struct auth_sigv4 *auth, const struct http_head *head,
                                const char *buffer, const struct s3_target *target,
                                struct auth_sigv4_check *check, struct auth_sigv4_context *context)
{
    struct request request = {.auth = auth, .head = head, .buffer = buffer, .target = target};
    enum s3_error error;

    CHECK(auth->scheme != AUTH_SCHEME_NONE);
    error = check_time(auth, check);
    if (error == S3_OK) {
        error = check_signed_headers(auth, head, buffer, check);
    }
    if (error == S3_OK) {
        error = payload_line(&request);
    }
    if (error != S3_OK) {
        return error;
    }
    if (!any_spelling_fits(&request, check->signing_key)) {
        return S3_ERR_SIGNATURE_MISMATCH;
    }
    context_fill(context, auth, check->signing_key);
    return S3_OK;
}
