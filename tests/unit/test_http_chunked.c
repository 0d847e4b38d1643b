// SPDX-License-Identifier: Apache-2.0
//
// http_chunked: payload and verdict for good and broken framing, the same for every split of the input, and bounds.

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/http_chunked.h"
#include "server/text.h"

struct result {
    enum http_chunked_status status;
    size_t payload_len;
    size_t consumed;
    char payload[4096];
};

// Feeds one piece; returns false when the body is over, one way or the other.
static bool feed(struct http_chunked *chunked, const char *in, size_t len, struct result *result)
{
    struct http_chunked_span span;

    do {
        result->status = http_chunked_step(chunked, in, len, &span);
        cr_assert_leq(span.skip + span.run, len);
        cr_assert_leq(result->payload_len + span.run, sizeof(result->payload));
        memcpy(result->payload + result->payload_len, in + span.skip, span.run);
        result->payload_len += span.run;
        result->consumed += span.skip + span.run;
        in += span.skip + span.run;
        len -= span.skip + span.run;
    } while (result->status == HTTP_CHUNKED_RUN && len > 0);
    return result->status == HTTP_CHUNKED_MORE || result->status == HTTP_CHUNKED_RUN;
}

static struct result decode(struct text input, size_t piece_len)
{
    struct http_chunked chunked;
    struct result result = {.status = HTTP_CHUNKED_MORE};

    http_chunked_begin(&chunked);
    for (size_t at = 0; at < input.len; at += piece_len) {
        size_t len = input.len - at < piece_len ? input.len - at : piece_len;
        char *piece = malloc(len); // exactly sized, so that a sanitizer sees a read past it

        memcpy(piece, input.at + at, len);
        bool goes_on = feed(&chunked, piece, len, &result);
        free(piece);
        if (!goes_on) {
            break;
        }
    }
    cr_expect_eq(chunked.payload_bytes, result.payload_len);
    if (result.status == HTTP_CHUNKED_RUN) {
        result.status = HTTP_CHUNKED_MORE;
    }
    return result;
}

struct chunked_case {
    const char *input;
    const char *payload;
    enum http_chunked_status status;
    size_t left; // bytes not consumed
};

#define HEX16 "0000000000000005"

static const struct chunked_case cases[] = {
    {"0\r\n\r\n", "", HTTP_CHUNKED_DONE, 0},
    {"5\r\nhello\r\n0\r\n\r\n", "hello", HTTP_CHUNKED_DONE, 0},
    {"5\r\nhello\r\n6\r\n world\r\n00\r\n\r\nGET /", "hello world", HTTP_CHUNKED_DONE, 5},
    {"a;name=value;q=\"x y\"\r\n0123456789\r\n0;last\r\n\r\n", "0123456789", HTTP_CHUNKED_DONE, 0},
    {"A\r\n0123456789\r\n0\r\nX-Trailer: v\r\nother:\r\n\r\n", "0123456789", HTTP_CHUNKED_DONE, 0},
    {HEX16 "\r\nhello\r\n0\r\n\r\n", "hello", HTTP_CHUNKED_DONE, 0},
    {"5\r\nhel", "hel", HTTP_CHUNKED_MORE, 0},
    {"5\r\nhello\r\n0\r\n", "hello", HTTP_CHUNKED_MORE, 0},
    {"0" HEX16 "\r\nhello\r\n0\r\n\r\n", "", HTTP_CHUNKED_BAD, 15},
    {"5\nhello\r\n0\r\n\r\n", "", HTTP_CHUNKED_BAD, 13},
    {"5\r\nhello\n0\r\n\r\n", "hello", HTTP_CHUNKED_BAD, 6},
    {"5\r\nhelloX\r\n0\r\n\r\n", "hello", HTTP_CHUNKED_BAD, 8},
    {"5 \r\nhello\r\n0\r\n\r\n", "", HTTP_CHUNKED_BAD, 15},
    {" 5\r\nhello\r\n", "", HTTP_CHUNKED_BAD, 11},
    {"0x5\r\nhello\r\n", "", HTTP_CHUNKED_BAD, 11},
    {"-5\r\nhello\r\n", "", HTTP_CHUNKED_BAD, 11},
    {"\r\nhello\r\n", "", HTTP_CHUNKED_BAD, 9},
    {";x\r\nhello\r\n", "", HTTP_CHUNKED_BAD, 11},
    {"5;a\001\r\nhello\r\n", "", HTTP_CHUNKED_BAD, 10},
    {"5;a\nhello\r\n", "", HTTP_CHUNKED_BAD, 8},
    {"0\r\n folded: x\r\n\r\n", "", HTTP_CHUNKED_BAD, 14},
    {"0\r\n: x\r\n\r\n", "", HTTP_CHUNKED_BAD, 7},
    {"0\r\nname x\r\n\r\n", "", HTTP_CHUNKED_BAD, 6},
    {"0\r\na: b\n\r\n", "", HTTP_CHUNKED_BAD, 3},
    // A CR must be followed by its LF, wherever it stands.
    {"5\rXhello\r\n0\r\n\r\n", "", HTTP_CHUNKED_BAD, 13},
    {"5;a\rXhello\r\n0\r\n\r\n", "", HTTP_CHUNKED_BAD, 13},
    {"5\r\nhello\rX0\r\n\r\n", "hello", HTTP_CHUNKED_BAD, 6},
    {"0\r\na: b\rX\r\n\r\n", "", HTTP_CHUNKED_BAD, 5},
    {"0\r\n\rX", "", HTTP_CHUNKED_BAD, 1},
    // One byte, then a chunk that would take the sum past 64 bits.
    {"1\r\na\r\nffffffffffffffff\r\nb", "a", HTTP_CHUNKED_BAD, 2},
};

Test(http_chunked, payload_and_verdict_do_not_depend_on_the_split)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct text input = text_of_string(cases[i].input);

        for (size_t piece = 1; piece <= input.len; piece++) {
            struct result result = decode(input, piece);

            cr_expect_eq(result.status, cases[i].status, "case %zu, pieces of %zu", i, piece);
            cr_expect(text_is(text_of(result.payload, result.payload_len), cases[i].payload),
                      "case %zu, pieces of %zu", i, piece);
            cr_expect_eq(input.len - result.consumed, cases[i].left, "case %zu, pieces of %zu: %zu left", i,
                         piece, input.len - result.consumed);
        }
    }
}

Test(http_chunked, long_lines_extensions_and_trailers_are_bounded)
{
    static char input[64 * 1024];
    size_t len = (size_t)sprintf(input, "1;");

    memset(input + len, 'x', HTTP_CHUNKED_LINE_MAX + 1);
    cr_expect_eq(decode(text_of(input, len + HTTP_CHUNKED_LINE_MAX + 1), 1000).status, HTTP_CHUNKED_BAD);

    // Many one-byte chunks with a kilobyte of extension each.
    len = 0;
    for (unsigned i = 0; i < 20; i++) {
        len += (size_t)sprintf(input + len, "1;%0900d\r\nx\r\n", 0);
    }
    cr_expect_eq(decode(text_of(input, len), 1000).status, HTTP_CHUNKED_BAD);

    len = (size_t)sprintf(input, "0\r\n");
    while (len < HTTP_CHUNKED_TRAILER_MAX + 100) {
        len += (size_t)sprintf(input + len, "a: b\r\n");
    }
    cr_expect_eq(decode(text_of(input, len), 1000).status, HTTP_CHUNKED_BAD);
}

Test(http_chunked, bad_and_done_stick)
{
    struct http_chunked chunked;
    struct http_chunked_span span;

    http_chunked_begin(&chunked);
    cr_expect_eq(http_chunked_step(&chunked, "zz", 2, &span), HTTP_CHUNKED_BAD);
    cr_expect_eq(http_chunked_step(&chunked, "0\r\n\r\n", 5, &span), HTTP_CHUNKED_BAD);
    http_chunked_begin(&chunked);
    cr_expect_eq(http_chunked_step(&chunked, "0\r\n\r\n5", 6, &span), HTTP_CHUNKED_DONE);
    cr_expect_eq(span.skip, 5);
    cr_expect_eq(http_chunked_step(&chunked, "5\r\n", 3, &span), HTTP_CHUNKED_DONE);
    cr_expect_eq(span.skip + span.run, 0);
}
