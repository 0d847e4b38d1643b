// SPDX-License-Identifier: Apache-2.0
//
// Byte ranges; the policy is in http_range.h.

#include "server/http_range.h"

#include "base/check.h"

// "first-last", "first-" or "-suffix", each number absent or digits. A number past 64 bits counts as the largest one:
// it is still well-formed.
struct spec {
    bool has_first, has_last;
    uint64_t first, last;
};

static bool parse_number(struct text text, bool *present, uint64_t *value)
{
    *present = text.len > 0;
    *value = 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.at[i] < '0' || text.at[i] > '9') {
            return false;
        }
    }
    if (text.len > 0 && !text_parse_u64(text, value)) {
        *value = UINT64_MAX;
    }
    return true;
}

static bool parse_spec(struct text value, struct spec *spec)
{
    struct text rest = value;
    struct text unit = text_take_until(&rest, '=');
    struct text first;

    if (text_is_absent(rest) || !text_is_nocase(unit, "bytes")) {
        return false;
    }
    rest = text_trim(rest);
    first = text_take_until(&rest, '-');
    if (text_is_absent(rest) || !parse_number(first, &spec->has_first, &spec->first) ||
        !parse_number(rest, &spec->has_last, &spec->last)) {
        return false;
    }
    return (spec->has_first || spec->has_last) &&
           !(spec->has_first && spec->has_last && spec->last < spec->first);
}

enum http_range_result http_range_parse(struct text value, uint64_t object_size, struct http_range *range)
{
    struct spec spec;

    if (text_is_absent(value) || !parse_spec(value, &spec)) {
        *range = (struct http_range){.first = 0, .len = object_size};
        return HTTP_RANGE_WHOLE;
    }
    if (!spec.has_first) {
        uint64_t len = spec.last < object_size ? spec.last : object_size;

        if (len == 0) {
            return HTTP_RANGE_UNSATISFIABLE;
        }
        *range = (struct http_range){.first = object_size - len, .len = len};
        return HTTP_RANGE_PART;
    }
    if (spec.first >= object_size) {
        return HTTP_RANGE_UNSATISFIABLE;
    }
    if (!spec.has_last || spec.last >= object_size) {
        spec.last = object_size - 1;
    }
    *range = (struct http_range){.first = spec.first, .len = spec.last - spec.first + 1};
    return HTTP_RANGE_PART;
}

bool http_range_parse_copy(struct text value, uint64_t object_size, struct http_range *range)
{
    struct spec spec;

    if (text_is_absent(value) || !parse_spec(value, &spec) || !spec.has_first || !spec.has_last ||
        spec.last >= object_size) {
        return false;
    }
    *range = (struct http_range){.first = spec.first, .len = spec.last - spec.first + 1};
    return true;
}

static char *put_u64(char *at, uint64_t value)
{
    char digits[20];
    unsigned count = 0;

    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    while (count > 0) {
        *at++ = digits[--count];
    }
    return at;
}

_Static_assert(sizeof("bytes -/") + 3 * 20 <= HTTP_RANGE_SIZE, "three 64-bit numbers fit");

size_t http_range_format(struct http_range range, uint64_t object_size, char out[HTTP_RANGE_SIZE])
{
    char *at = out;

    CHECK(range.len > 0);
    CHECK(range.first + range.len <= object_size);
    memcpy(at, "bytes ", 6);
    at = put_u64(at + 6, range.first);
    *at++ = '-';
    at = put_u64(at, range.first + range.len - 1);
    *at++ = '/';
    at = put_u64(at, object_size);
    *at = '\0';
    return (size_t)(at - out);
}

size_t http_range_format_unsatisfied(uint64_t object_size, char out[HTTP_RANGE_SIZE])
{
    char *at = out;

    memcpy(at, "bytes */", 8);
    at = put_u64(at + 8, object_size);
    *at = '\0';
    return (size_t)(at - out);
}
