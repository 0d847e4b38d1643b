// SPDX-License-Identifier: Apache-2.0
//
// Request targets to S3 operations; the contract is in s3_target.h.
//
// Order of work: form of the target (origin, absolute, asterisk) -> host -> bucket -> key -> parameters -> operation. Each
// step is one function that returns S3_OK or the error to answer.

#include "server/s3_target.h"

#include <errno.h>

#include "base/bytes.h"
#include "base/check.h"
#include "server/utf8.h"

// Not an operation: the method does not exist for this sub-resource.
#define S3_OP_NONE S3_OP_COUNT

static const struct {
    const char *name;
    enum s3_permission permission;
} op_table[S3_OP_COUNT] = {
#define S3_OP(symbol, name, permission) [S3_OP_##symbol] = {name, S3_PERMISSION_##permission},
#include "server/s3_op.def"
#undef S3_OP
};

struct subresource {
    enum s3_scope scope;
    const char *name;
    enum s3_op get, put, post, delete;
};

static const struct subresource subresource_table[] = {
#define S3_SUBRESOURCE(scope, name, get, put, post, delete)                                                  \
    {S3_SCOPE_##scope, name, S3_OP_##get, S3_OP_##put, S3_OP_##post, S3_OP_##delete},
#include "server/s3_subresource.def"
#undef S3_SUBRESOURCE
};

// Parameters that refine an operation without choosing another one. Those without a value would otherwise pass for an
// unknown sub-resource ("?prefix=" is common).
static const char *const known_modifiers[] = {
    "AWSAccessKeyId",
    "Expires",
    "Signature",
    "allow-unordered",
    "bucket-region",
    "bypass-governance-retention",
    "continuation-token",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "id",
    "key-marker",
    "list-type",
    "marker",
    "max-buckets",
    "max-keys",
    "max-parts",
    "max-uploads",
    "part-number-marker",
    "partNumber",
    "prefix",
    "select-type",
    "start-after",
    "upload-id-marker",
    "version-id-marker",
    "versionId",
    "x-id",
};

const char *s3_op_name(enum s3_op op)
{
    CHECK(op < S3_OP_COUNT);
    return op_table[op].name;
}

enum s3_permission s3_op_permission(enum s3_op op)
{
    CHECK(op < S3_OP_COUNT);
    return op_table[op].permission;
}

// --- decoding

long s3_percent_decode(struct text in, char *out, bool plus_is_space)
{
    size_t len = 0;

    for (size_t i = 0; i < in.len; i++) {
        char c = in.at[i];

        if (c == '%') {
            int high = i + 2 < in.len ? text_hex_digit(in.at[i + 1]) : -1;
            int low = i + 2 < in.len ? text_hex_digit(in.at[i + 2]) : -1;

            if (high < 0 || low < 0) {
                return -EINVAL;
            }
            c = (char)(high << 4 | low);
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        out[len++] = c;
    }
    return (long)len;
}

// Decoded text is laid down in the scratch piece by piece. Decoding never makes text longer and the pieces of a target do
// not overlap, so a scratch as long as the target is enough.
struct scratch {
    char *at;
    size_t left;
};

static bool scratch_decode(struct scratch *scratch, struct text in, bool plus_is_space, struct text *out)
{
    long len;

    CHECK(in.len <= scratch->left);
    len = s3_percent_decode(in, scratch->at, plus_is_space);
    if (len < 0) {
        return false;
    }
    *out = text_of(scratch->at, (size_t)len);
    scratch->at += len;
    scratch->left -= (size_t)len;
    return true;
}

// --- bucket names

static bool is_lower_or_digit(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool looks_like_ipv4(struct text name)
{
    unsigned dots = 0;

    for (size_t i = 0; i < name.len; i++) {
        if (name.at[i] == '.') {
            dots++;
        } else if (name.at[i] < '0' || name.at[i] > '9') {
            return false;
        }
    }
    return dots == 3;
}

static bool ends_with(struct text text, struct text suffix)
{
    return text.len >= suffix.len && text_equal(text_of(text.at + text.len - suffix.len, suffix.len), suffix);
}

// Names S3 keeps for itself: tools treat them specially, so a bucket of that name would not be reachable by them.
static bool is_reserved_name(struct text name)
{
    static const char *const prefixes[] = {"xn--", "sthree-", "amzn-s3-demo-"};
    static const char *const suffixes[] = {"-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"};

    for (size_t i = 0; i < ARRAY_COUNT(prefixes); i++) {
        if (text_starts_with(name, text_of_string(prefixes[i]))) {
            return true;
        }
    }
    for (size_t i = 0; i < ARRAY_COUNT(suffixes); i++) {
        if (ends_with(name, text_of_string(suffixes[i]))) {
            return true;
        }
    }
    return false;
}

bool s3_bucket_name_is_valid(struct text name)
{
    if (name.len < S3_BUCKET_MIN || name.len > S3_BUCKET_MAX) {
        return false;
    }
    for (size_t i = 0; i < name.len; i++) {
        char c = name.at[i];
        bool is_edge = i == 0 || i == name.len - 1;

        if (is_lower_or_digit(c)) {
            continue;
        }
        if (is_edge || (c != '.' && c != '-')) {
            return false;
        }
        if ((c == '.' && !is_lower_or_digit(name.at[i - 1])) || (c == '-' && name.at[i - 1] == '.')) {
            return false;
        }
    }
    return !looks_like_ipv4(name) && !is_reserved_name(name);
}

// --- path, host, bucket and key

// Splits the target of RFC 9112 section 3.2 into authority (absolute-form), path and query.
static enum s3_error split_form(struct s3_target *target, const struct s3_target_input *input)
{
    struct text rest = input->target;
    struct text path;

    target->host = input->host;
    if (rest.len > 0 && memchr(rest.at, '#', rest.len) != NULL) {
        return S3_ERR_INVALID_URI;
    }
    if (text_starts_with_nocase(rest, TEXT("http://")) || text_starts_with_nocase(rest, TEXT("https://"))) {
        size_t scheme = text_lower_char(rest.at[4]) == 's' ? 8 : 7;
        size_t end = scheme;

        while (end < rest.len && rest.at[end] != '/' && rest.at[end] != '?') {
            end++;
        }
        target->host = text_of(rest.at + scheme, end - scheme);
        rest = text_of(rest.at + end, rest.len - end);
    } else if (rest.len == 0 ||
               (rest.at[0] != '/' && !(text_is(rest, "*") && input->method == HTTP_METHOD_OPTIONS))) {
        return S3_ERR_INVALID_URI;
    }
    path = text_take_until(&rest, '?');
    target->query = rest;
    target->path = path.len > 0 ? path : TEXT("/");
    return S3_OK;
}

static struct text host_without_port(struct text host)
{
    for (size_t i = host.len; i > 0; i--) {
        char c = host.at[i - 1];

        if (c == ':') {
            host.len = i - 1;
            break;
        }
        if (c < '0' || c > '9') {
            break;
        }
    }
    if (host.len > 0 && host.at[host.len - 1] == '.') {
        host.len--; // the root label of a fully qualified name
    }
    return host;
}

// The bucket in front of one of our domains, or an absent text for path style.
static struct text bucket_of_host(const struct s3_target *target, const struct s3_target_input *input)
{
    struct text host = host_without_port(target->host);

    for (size_t i = 0; i < input->domain_count; i++) {
        struct text domain = input->domains[i];
        size_t prefix = host.len - domain.len;

        if (host.len > domain.len + 1 && host.at[prefix - 1] == '.' &&
            text_equal_nocase(text_of(host.at + prefix, domain.len), domain)) {
            return text_of(host.at, prefix - 1);
        }
    }
    return (struct text){0};
}

static enum s3_error read_bucket_and_key(struct s3_target *target, const struct s3_target_input *input,
                                         struct scratch *scratch)
{
    struct text rest = target->path;
    struct text raw_key;

    target->bucket = bucket_of_host(target, input);
    target->is_virtual_host = !text_is_absent(target->bucket);
    if (rest.at[0] == '/') {
        rest = text_of(rest.at + 1, rest.len - 1);
    }
    if (!target->is_virtual_host) {
        if (rest.len == 0 || text_is(target->path, "*")) {
            return S3_OK; // service scope
        }
        if (!scratch_decode(scratch, text_take_until(&rest, '/'), false, &target->bucket)) {
            target->bucket = (struct text){0};
            return S3_ERR_INVALID_URI;
        }
    }
    target->scope = S3_SCOPE_BUCKET;
    if (!s3_bucket_name_is_valid(target->bucket)) {
        return S3_ERR_INVALID_BUCKET_NAME;
    }
    raw_key = rest;
    if (raw_key.len == 0) {
        return S3_OK;
    }
    target->scope = S3_SCOPE_OBJECT;
    if (!scratch_decode(scratch, raw_key, false, &target->key) || !utf8_is_valid(target->key)) {
        return S3_ERR_INVALID_URI;
    }
    return target->key.len > S3_KEY_MAX ? S3_ERR_KEY_TOO_LONG : S3_OK;
}

static enum s3_error read_params(struct s3_target *target, struct scratch *scratch)
{
    struct text rest = target->query;

    while (!text_is_absent(rest)) {
        struct text value = text_take_until(&rest, '&');
        struct text name;
        struct s3_param *param = &target->params[target->param_count];

        if (value.len == 0) {
            continue;
        }
        name = text_take_until(&value, '=');
        if (target->param_count == S3_PARAMS_MAX || !scratch_decode(scratch, name, true, &param->name)) {
            return S3_ERR_INVALID_URI;
        }
        param->value = (struct text){0};
        if (!text_is_absent(value) && !scratch_decode(scratch, value, true, &param->value)) {
            return S3_ERR_INVALID_URI;
        }
        target->param_count++;
    }
    return S3_OK;
}

// --- operation

static const struct subresource *subresource_find(enum s3_scope scope, struct text name)
{
    for (size_t i = 0; i < ARRAY_COUNT(subresource_table); i++) {
        if (subresource_table[i].scope == scope && text_is(name, subresource_table[i].name)) {
            return &subresource_table[i];
        }
    }
    return NULL;
}

static bool is_modifier(struct text name)
{
    if (text_starts_with_nocase(name, TEXT("x-amz-")) || text_starts_with(name, TEXT("response-"))) {
        return true;
    }
    for (size_t i = 0; i < ARRAY_COUNT(known_modifiers); i++) {
        if (text_is(name, known_modifiers[i])) {
            return true;
        }
    }
    return false;
}

// A name S3 knows as a sub-resource somewhere, but not in this scope, and one nobody knows that comes without a value,
// both mean something this server cannot do.
static bool is_foreign_subresource(const struct s3_target *target, const struct s3_param *param)
{
    if (is_modifier(param->name)) {
        return false;
    }
    return param->value.len == 0 || subresource_find(S3_SCOPE_BUCKET, param->name) != NULL ||
           (target->scope != S3_SCOPE_OBJECT && subresource_find(S3_SCOPE_OBJECT, param->name) != NULL);
}

// Finds the one sub-resource. *foreign is set when there is one that is not ours.
static enum s3_error find_subresource(struct s3_target *target, const struct subresource **found,
                                      bool *foreign)
{
    for (size_t i = 0; i < target->param_count; i++) {
        const struct s3_param *param = &target->params[i];
        const struct subresource *subresource = subresource_find(target->scope, param->name);

        if (subresource == NULL && is_foreign_subresource(target, param)) {
            *foreign = true;
        }
        if (subresource == NULL || subresource == *found) {
            continue;
        }
        if (*found != NULL) {
            return S3_ERR_INVALID_REQUEST;
        }
        *found = subresource;
        target->subresource = param->name;
    }
    return S3_OK;
}

static enum s3_op op_of_method(const struct subresource *ops, enum http_method method)
{
    switch (method) {
    case HTTP_METHOD_GET:
        return ops->get;
    case HTTP_METHOD_PUT:
        return ops->put;
    case HTTP_METHOD_POST:
        return ops->post;
    case HTTP_METHOD_DELETE:
        return ops->delete;
    default:
        return S3_OP_NONE;
    }
}

static enum s3_op op_of_plain(enum s3_scope scope, enum http_method method)
{
    static const struct subresource plain[] = {
        [S3_SCOPE_SERVICE] = {.get = S3_OP_LIST_BUCKETS, S3_OP_NONE, S3_OP_NONE, S3_OP_NONE},
        [S3_SCOPE_BUCKET] = {.get = S3_OP_LIST_OBJECTS,
                             S3_OP_CREATE_BUCKET,
                             S3_OP_POST_OBJECT,
                             S3_OP_DELETE_BUCKET},
        [S3_SCOPE_OBJECT] = {.get = S3_OP_GET_OBJECT, S3_OP_PUT_OBJECT, S3_OP_NONE, S3_OP_DELETE_OBJECT},
    };

    if (method == HTTP_METHOD_HEAD) {
        return scope == S3_SCOPE_OBJECT   ? S3_OP_HEAD_OBJECT
               : scope == S3_SCOPE_BUCKET ? S3_OP_HEAD_BUCKET
                                          : S3_OP_NONE;
    }
    return op_of_method(&plain[scope], method);
}

static enum s3_error read_part_number(struct s3_target *target)
{
    struct text value = s3_target_param(target, "partNumber");
    uint64_t number;

    if (text_is_absent(value)) {
        return S3_OK;
    }
    if (!text_parse_u64(value, &number) || number < 1 || number > S3_PART_NUMBER_MAX) {
        return S3_ERR_INVALID_PART_NUMBER;
    }
    target->part_number = (uint32_t)number;
    return S3_OK;
}

// The parameters that choose between operations of one method.
static enum s3_error refine_op(struct s3_target *target, bool has_copy_source)
{
    struct text list_type = s3_target_param(target, "list-type");
    struct text version = s3_target_param(target, "versionId");
    enum s3_error error = S3_OK;

    if (target->scope == S3_SCOPE_OBJECT) {
        error = read_part_number(target);
        // There is only the null version of an object.
        if (error == S3_OK && version.len > 0 && !text_is(version, "null")) {
            error = S3_ERR_NOT_FOUND_VERSION;
        }
    }
    if (error != S3_OK) {
        return error;
    }
    if (target->op == S3_OP_LIST_OBJECTS && list_type.len > 0) {
        if (!text_is(list_type, "1") && !text_is(list_type, "2")) {
            return S3_ERR_INVALID_ARGUMENT;
        }
        target->op = text_is(list_type, "2") ? S3_OP_LIST_OBJECTS_V2 : S3_OP_LIST_OBJECTS;
    }
    // A part number and an upload id only make sense together: a part must never overwrite the object itself.
    if ((target->op == S3_OP_PUT_OBJECT && target->part_number != 0) ||
        (target->op == S3_OP_UPLOAD_PART && target->part_number == 0)) {
        return S3_ERR_INVALID_ARGUMENT;
    }
    if (has_copy_source && target->op == S3_OP_PUT_OBJECT) {
        target->op = S3_OP_COPY_OBJECT;
    } else if (has_copy_source && target->op == S3_OP_UPLOAD_PART) {
        target->op = S3_OP_UPLOAD_PART_COPY;
    }
    return S3_OK;
}

static enum s3_error choose_op(struct s3_target *target, const struct s3_target_input *input)
{
    const struct subresource *found = NULL;
    bool foreign = false;
    enum s3_error error;

    if (input->method == HTTP_METHOD_OPTIONS) {
        target->op = S3_OP_PREFLIGHT;
        return S3_OK;
    }
    error = find_subresource(target, &found, &foreign);
    if (error != S3_OK) {
        return error;
    }
    if (foreign) {
        target->op = S3_OP_UNSUPPORTED;
        return S3_OK;
    }
    enum s3_op op =
        found != NULL ? op_of_method(found, input->method) : op_of_plain(target->scope, input->method);
    if (op == S3_OP_NONE) {
        return S3_ERR_METHOD_NOT_ALLOWED;
    }
    target->op = op;
    return refine_op(target, input->has_copy_source);
}

enum s3_error s3_target_parse(struct s3_target *target, const struct s3_target_input *input, char *scratch_at,
                              size_t scratch_size)
{
    struct scratch scratch = {.at = scratch_at, .left = scratch_size};
    enum s3_error error;

    CHECK(scratch_size >= input->target.len);
    memset(target, 0, offsetof(struct s3_target, params));
    error = split_form(target, input);
    if (error == S3_OK) {
        error = read_bucket_and_key(target, input, &scratch);
    }
    if (error == S3_OK) {
        error = read_params(target, &scratch);
    }
    if (error == S3_OK) {
        error = choose_op(target, input);
    }
    return error;
}

struct text s3_target_param(const struct s3_target *target, const char *name)
{
    for (size_t i = 0; i < target->param_count; i++) {
        if (text_is(target->params[i].name, name)) {
            struct text value = target->params[i].value;

            return text_is_absent(value) ? TEXT("") : value;
        }
    }
    return (struct text){0};
}

bool s3_target_has_param(const struct s3_target *target, const char *name)
{
    return !text_is_absent(s3_target_param(target, name));
}

enum s3_error s3_target_parse_copy_source(struct s3_copy_source *source, struct text value, char *scratch_at,
                                          size_t scratch_size)
{
    struct scratch scratch = {.at = scratch_at, .left = scratch_size};
    struct text path, query = value, bucket;

    CHECK(scratch_size >= value.len);
    path = text_take_until(&query, '?');
    if (path.len > 0 && path.at[0] == '/') {
        path = text_of(path.at + 1, path.len - 1);
    }
    // Some clients encode the whole value, the slash included, so the split comes after decoding.
    if (!scratch_decode(&scratch, path, false, &path)) {
        return S3_ERR_COPY_SOURCE_INVALID;
    }
    if (path.len > 0 && path.at[0] == '/') {
        path = text_of(path.at + 1, path.len - 1);
    }
    bucket = text_take_until(&path, '/');
    if (path.len == 0 || !utf8_is_valid(path) || !s3_bucket_name_is_valid(bucket)) {
        return S3_ERR_COPY_SOURCE_INVALID;
    }
    if (path.len > S3_KEY_MAX) {
        return S3_ERR_KEY_TOO_LONG;
    }
    if (!text_is_absent(query) && !text_is(query, "versionId=null")) {
        return S3_ERR_NOT_FOUND_VERSION;
    }
    source->bucket = bucket;
    source->key = path;
    return S3_OK;
}
