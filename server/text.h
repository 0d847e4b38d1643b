// SPDX-License-Identifier: Apache-2.0
//
// A borrowed piece of text: pointer and length, never NUL-terminated, never owned.
//
// The protocol parsers return these instead of copies, so a text lives exactly as long as the buffer it points into.
// An absent text has at == NULL; an empty one has at != NULL and len == 0, and parsers keep the two apart
// (`?uploads` and a missing `uploads` mean different operations).

#ifndef SERVER_TEXT_H
#define SERVER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct text {
    const char *at;
    size_t len;
};

// A text over a string literal.
#define TEXT(literal) ((struct text){.at = (literal), .len = sizeof(literal) - 1})

static inline struct text text_of(const char *at, size_t len)
{
    return (struct text){.at = at, .len = len};
}

static inline struct text text_of_string(const char *string)
{
    return (struct text){.at = string, .len = strlen(string)};
}

static inline bool text_is_absent(struct text text)
{
    return text.at == NULL;
}

static inline char text_lower_char(char c)
{
    return (c >= 'A' && c <= 'Z') ? (char)(c + ('a' - 'A')) : c;
}

static inline bool text_equal(struct text a, struct text b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.at, b.at, a.len) == 0);
}

// ASCII case only: header names and tokens, never keys or metadata.
static inline bool text_equal_nocase(struct text a, struct text b)
{
    if (a.len != b.len) {
        return false;
    }
    for (size_t i = 0; i < a.len; i++) {
        if (text_lower_char(a.at[i]) != text_lower_char(b.at[i])) {
            return false;
        }
    }
    return true;
}

static inline bool text_is(struct text text, const char *string)
{
    return text_equal(text, text_of_string(string));
}

static inline bool text_is_nocase(struct text text, const char *string)
{
    return text_equal_nocase(text, text_of_string(string));
}

static inline bool text_starts_with(struct text text, struct text prefix)
{
    return text.len >= prefix.len && (prefix.len == 0 || memcmp(text.at, prefix.at, prefix.len) == 0);
}

static inline bool text_starts_with_nocase(struct text text, struct text prefix)
{
    return text.len >= prefix.len && text_equal_nocase(text_of(text.at, prefix.len), prefix);
}

// Optional white space of RFC 9110 section 5.6.3: space and tab only.
static inline struct text text_trim(struct text text)
{
    while (text.len > 0 && (text.at[0] == ' ' || text.at[0] == '\t')) {
        text.at++;
        text.len--;
    }
    while (text.len > 0 && (text.at[text.len - 1] == ' ' || text.at[text.len - 1] == '\t')) {
        text.len--;
    }
    return text;
}

// Takes everything before the first `separator` off *rest and returns it. When there is no separator left the whole
// remainder is returned and *rest becomes absent, so a loop `while (!text_is_absent(rest))` sees every field once.
static inline struct text text_take_until(struct text *rest, char separator)
{
    struct text head = *rest;
    const char *hit = rest->len > 0 ? memchr(rest->at, separator, rest->len) : NULL;

    if (hit == NULL) {
        *rest = (struct text){0};
        return head;
    }
    head.len = (size_t)(hit - rest->at);
    rest->len -= head.len + 1;
    rest->at = hit + 1;
    return head;
}

// Decimal without sign, spaces or overflow; at least one digit. Leaves *value alone on failure.
static inline bool text_parse_u64(struct text text, uint64_t *value)
{
    uint64_t sum = 0;

    if (text.len == 0 || text.len > 20) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        unsigned digit = (unsigned)(unsigned char)text.at[i] - '0';

        if (digit > 9 || sum > (UINT64_MAX - digit) / 10) {
            return false;
        }
        sum = sum * 10 + digit;
    }
    *value = sum;
    return true;
}

// Value of one hexadecimal digit in either case, or -1.
static inline int text_hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = text_lower_char(c);
    return (c >= 'a' && c <= 'f') ? c - 'a' + 10 : -1;
}

#endif
