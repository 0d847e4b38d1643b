// SPDX-License-Identifier: Apache-2.0
//
// http_head: what is accepted, what is refused and with which error, and that the split of the input never matters.

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/http_head.h"

struct http_head_case {
    const char *name;
    const char *input;
    enum http_head_error error;
};

static struct http_head head;

static enum http_head_status parse_whole(const char *input, size_t len)
{
    http_head_begin(&head, HTTP_HEAD_LIMIT_DEFAULT);
    return http_head_parse(&head, input, len);
}

static void expect_text(const char *buffer, struct http_head_span span, const char *expected)
{
    struct text text = http_head_text(buffer, span);

    cr_expect(text_is(text, expected), "got \"%.*s\", expected \"%s\"", (int)text.len, text.at, expected);
}

Test(http_head, put_with_body_behind_the_head)
{
    const char *input = "PUT /bucket/a%20key?x=1 HTTP/1.1\r\nHost: h:9000\r\nContent-Length:  5 \r\n"
                        "X-Amz-Meta-A:\t padded value\t \r\nEmpty:\r\n\r\nHELLO";

    cr_assert_eq(parse_whole(input, strlen(input)), HTTP_HEAD_DONE);
    cr_expect_eq(head.method, HTTP_METHOD_PUT);
    expect_text(input, head.method_text, "PUT");
    expect_text(input, head.target, "/bucket/a%20key?x=1");
    cr_expect_eq(head.version_minor, 1);
    cr_expect(head.has_content_length);
    cr_expect_eq(head.content_length, 5);
    cr_expect(head.keep_alive);
    cr_expect_not(head.expects_100);
    cr_expect_str_eq(input + head.head_size, "HELLO");
    cr_assert_eq(head.header_count, 4);
    expect_text(input, head.headers[2].name, "X-Amz-Meta-A");
    expect_text(input, head.headers[2].value, "padded value");
    expect_text(input, head.headers[3].value, "");
    cr_expect(!text_is_absent(http_head_find(&head, input, "empty")));
    cr_expect(text_is_absent(http_head_find(&head, input, "missing")));
}

Test(http_head, chunked_and_expectation_in_any_case)
{
    const char *input =
        "PUT /b/k HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\nexpect: 100-Continue\r\n\r\n";

    cr_assert_eq(parse_whole(input, strlen(input)), HTTP_HEAD_DONE);
    cr_expect(head.is_chunked);
    cr_expect_not(head.has_content_length);
    cr_expect(head.expects_100);
    cr_expect_eq(head.head_size, strlen(input));
}

Test(http_head, http_1_0_ignores_expect_and_closes_by_default)
{
    const char *input = "PUT /b/k HTTP/1.0\r\nContent-Length: 1\r\nExpect: nonsense\r\n\r\n";

    cr_assert_eq(parse_whole(input, strlen(input)), HTTP_HEAD_DONE);
    cr_expect_not(head.expects_100);
    cr_expect_not(head.keep_alive);

    input = "GET / HTTP/1.0\r\nConnection: foo, Keep-Alive\r\n\r\n";
    cr_assert_eq(parse_whole(input, strlen(input)), HTTP_HEAD_DONE);
    cr_expect(head.keep_alive);
}

Test(http_head, connection_close_is_found_in_a_list_and_on_a_second_line)
{
    const char *input = "GET / HTTP/1.1\r\nHost: h\r\nConnection: te\r\nConnection: x ,CLOSE\r\n\r\n";

    cr_assert_eq(parse_whole(input, strlen(input)), HTTP_HEAD_DONE);
    cr_expect_not(head.keep_alive);
}

Test(http_head, pipelined_second_request_is_not_looked_at)
{
    const char *input = "GET /one HTTP/1.1\r\nHost: h\r\n\r\nthis is \0 not HTTP";

    cr_assert_eq(parse_whole(input, strlen(input) + 10), HTTP_HEAD_DONE);
    cr_expect(strncmp(input + head.head_size, "this", 4) == 0);
}

Test(http_head, empty_lines_before_the_request_line_are_skipped)
{
    const char *input = "\r\n\r\nGET /one HTTP/1.1\r\nHost: h\r\n\r\n";

    cr_assert_eq(parse_whole(input, strlen(input)), HTTP_HEAD_DONE);
    expect_text(input, head.target, "/one");
    cr_expect_eq(head.head_size, strlen(input));
}

static const struct http_head_case bad_cases[] = {
    {"length and coding",
     "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
     HTTP_HEAD_ERROR_FRAMING},
    {"coding and length",
     "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
     HTTP_HEAD_ERROR_FRAMING},
    {"two different lengths", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
     HTTP_HEAD_ERROR_FRAMING},
    {"two equal lengths", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
     HTTP_HEAD_ERROR_FRAMING},
    {"length list", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3, 3\r\n\r\n", HTTP_HEAD_ERROR_FRAMING},
    {"signed length", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: +3\r\n\r\n", HTTP_HEAD_ERROR_FRAMING},
    {"negative length", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: -3\r\n\r\n", HTTP_HEAD_ERROR_FRAMING},
    {"hexadecimal length", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x3\r\n\r\n",
     HTTP_HEAD_ERROR_FRAMING},
    {"length beyond 64 bits", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551616\r\n\r\n",
     HTTP_HEAD_ERROR_FRAMING},
    {"two lengths in one value", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3 4\r\n\r\n",
     HTTP_HEAD_ERROR_FRAMING},
    {"empty length", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", HTTP_HEAD_ERROR_FRAMING},
    {"coding twice",
     "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
     HTTP_HEAD_ERROR_FRAMING},
    {"coding on 1.0", "PUT / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
     HTTP_HEAD_ERROR_FRAMING},
    {"other coding", "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n",
     HTTP_HEAD_ERROR_ENCODING},
    {"coding in front", "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
     HTTP_HEAD_ERROR_ENCODING},
    {"lookalike coding", "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n",
     HTTP_HEAD_ERROR_ENCODING},
    {"folded header", "GET / HTTP/1.1\r\nHost: h\r\nA: one\r\n two\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"folded after an empty value", "GET / HTTP/1.1\r\nHost: h\r\nA:\r\n two\r\n\r\n",
     HTTP_HEAD_ERROR_SYNTAX},
    {"fold of nothing", "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n \r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"space before colon", "GET / HTTP/1.1\r\nHost : h\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"space before first header", "GET / HTTP/1.1\r\n Host: h\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"empty header name", "GET / HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"header without colon", "GET / HTTP/1.1\r\nHost: h\r\nabc\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"bare LF", "GET / HTTP/1.1\nHost: h\n\n", HTTP_HEAD_ERROR_SYNTAX},
    {"bare LF at a header", "GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"bare CR in a value", "GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"control in a value", "GET / HTTP/1.1\r\nHost: h\r\nA: b\001c\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"space in the target", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"HTTP/2.0 request", "GET / HTTP/2.0\r\nHost: h\r\n\r\n", HTTP_HEAD_ERROR_VERSION},
    {"HTTP/1.2 request", "GET / HTTP/1.2\r\nHost: h\r\n\r\n", HTTP_HEAD_ERROR_VERSION},
    {"HTTP/0.9 request", "GET /\r\n\r\n", HTTP_HEAD_ERROR_VERSION},
    {"unknown method", "FROBNICATE / HTTP/1.1\r\nHost: h\r\n\r\n", HTTP_HEAD_ERROR_METHOD},
    {"unknown method on 1.0", "FOO /bkt/key HTTP/1.0\r\n", HTTP_HEAD_ERROR_METHOD},
    {"unknown method with every mark of a token", "A1!#$%&'*+-.^_`|~ * HTTP/1.1\r\n", HTTP_HEAD_ERROR_METHOD},
    {"unknown method that begins like one of ours", "GETS / HTTP/1.1\r\n", HTTP_HEAD_ERROR_METHOD},
    {"a method of ours in lower case", "get / HTTP/1.1\r\n", HTTP_HEAD_ERROR_METHOD},
    {"method of another protocol", "PLAY /bkt/key HTTP/1.1\r\nHost: h\r\n\r\n", HTTP_HEAD_ERROR_METHOD},
    {"unknown method behind empty lines", "\r\n\r\nBREW / HTTP/1.1\r\n", HTTP_HEAD_ERROR_METHOD},
    {"unknown method of another version", "FOO / HTTP/2.0\r\n", HTTP_HEAD_ERROR_VERSION},
    {"unknown method without a version", "FOO /\r\n\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"unknown method without a target", "FOO  HTTP/1.1\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"unknown method and two spaces", "FOO  / HTTP/1.1\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"unknown method and a tab", "FOO\t/ HTTP/1.1\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"unknown method, control in the target", "FOO /a\001 HTTP/1.1\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"unknown method, bare LF", "FOO / HTTP/1.1\n", HTTP_HEAD_ERROR_SYNTAX},
    {"unknown method, more behind the version", "FOO / HTTP/1.1 x\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"unknown method, other protocol", "FOO / RTSP/1.0\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"no token for a method", "F(O / HTTP/1.1\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"a colon in the method", "FOO: / HTTP/1.1\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"no method", " / HTTP/1.1\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"endless method", "FOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOOFOO",
     HTTP_HEAD_ERROR_SYNTAX},
    {"a method of ours with a bad version", "GET / HTTX/1.1\r\n", HTTP_HEAD_ERROR_SYNTAX},
    {"TLS hello", "\x16\x03\x01\x02\x00\x01", HTTP_HEAD_ERROR_SYNTAX},
    {"no host", "GET / HTTP/1.1\r\nA: b\r\n\r\n", HTTP_HEAD_ERROR_HOST},
    {"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", HTTP_HEAD_ERROR_HOST},
    {"unknown expectation", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: 200-ok\r\n\r\n",
     HTTP_HEAD_ERROR_EXPECTATION},
    {"two expectations", "PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue, x\r\n\r\n",
     HTTP_HEAD_ERROR_EXPECTATION},
};

Test(http_head, malformed_and_ambiguous_heads_are_refused)
{
    for (size_t i = 0; i < sizeof(bad_cases) / sizeof(bad_cases[0]); i++) {
        const struct http_head_case *c = &bad_cases[i];

        cr_expect_eq(parse_whole(c->input, strlen(c->input)), HTTP_HEAD_BAD, "%s: not refused", c->name);
        cr_expect_eq(head.error, c->error, "%s: error %d, expected %d", c->name, head.error, c->error);
    }
}

Test(http_head, nul_byte_is_refused)
{
    static const char input[] = "GET / HTTP/1.1\r\nHost: h\r\nA: b\0c\r\n\r\n";

    cr_expect_eq(parse_whole(input, sizeof(input) - 1), HTTP_HEAD_BAD);
    cr_expect_eq(head.error, HTTP_HEAD_ERROR_SYNTAX);
}

// A head of exactly `size` bytes, with one long header.
static char *head_of_size(size_t size)
{
    static const char start[] = "GET / HTTP/1.1\r\nHost: h\r\nA: ";
    char *text = malloc(size);

    cr_assert_not_null(text);
    memset(text, 'x', size);
    memcpy(text, start, sizeof(start) - 1);
    memcpy(text + size - 4, "\r\n\r\n", 4);
    return text;
}

Test(http_head, exactly_the_limit_is_accepted_and_one_more_is_not)
{
    char *text = head_of_size(HTTP_HEAD_LIMIT_DEFAULT);

    cr_expect_eq(parse_whole(text, HTTP_HEAD_LIMIT_DEFAULT), HTTP_HEAD_DONE);
    cr_expect_eq(head.head_size, HTTP_HEAD_LIMIT_DEFAULT);
    free(text);
    text = head_of_size(HTTP_HEAD_LIMIT_DEFAULT + 1);
    cr_expect_eq(parse_whole(text, HTTP_HEAD_LIMIT_DEFAULT + 1), HTTP_HEAD_BAD);
    cr_expect_eq(head.error, HTTP_HEAD_ERROR_TOO_LARGE);
    // The verdict must not wait for bytes beyond the limit.
    cr_expect_eq(parse_whole(text, HTTP_HEAD_LIMIT_DEFAULT), HTTP_HEAD_BAD);
    free(text);
}

Test(http_head, header_count_is_bounded)
{
    char text[8192];
    size_t len = (size_t)sprintf(text, "GET / HTTP/1.1\r\nHost: h\r\n");

    for (unsigned i = 1; i < HTTP_HEAD_HEADERS_MAX; i++) {
        len += (size_t)sprintf(text + len, "h%u: %u\r\n", i, i);
    }
    size_t full = len;
    len += (size_t)sprintf(text + len, "\r\n");
    cr_expect_eq(parse_whole(text, len), HTTP_HEAD_DONE);
    cr_expect_eq(head.header_count, HTTP_HEAD_HEADERS_MAX);
    len = full + (size_t)sprintf(text + full, "one: more\r\n\r\n");
    cr_expect_eq(parse_whole(text, len), HTTP_HEAD_BAD);
    cr_expect_eq(head.error, HTTP_HEAD_ERROR_TOO_MANY_HEADERS);
}

// After an error only the verdict is promised: how much of a broken line was recorded may depend on the split.
static bool same_result(const struct http_head *a, const struct http_head *b)
{
    if (a->status != b->status || a->error != b->error || a->status == HTTP_HEAD_BAD) {
        return a->status == b->status && a->error == b->error;
    }
    return a->head_size == b->head_size && a->header_count == b->header_count && a->method == b->method &&
           a->is_chunked == b->is_chunked && a->content_length == b->content_length &&
           a->keep_alive == b->keep_alive && a->expects_100 == b->expects_100 &&
           memcmp(&a->target, &b->target, sizeof(a->target)) == 0 &&
           memcmp(a->headers, b->headers, a->header_count * sizeof(a->headers[0])) == 0;
}

// Shows the input in two pieces cut at `cut`, from two different addresses: the buffer may move between calls.
static void check_cut(const char *name, const char *input, size_t len, size_t cut,
                      const struct http_head *whole)
{
    static struct http_head other;
    char *first = malloc(cut + 1);
    enum http_head_status status;

    memcpy(first, input, cut);
    http_head_begin(&other, HTTP_HEAD_LIMIT_DEFAULT);
    status = http_head_parse(&other, first, cut);
    memset(first, 0, cut + 1);
    free(first);
    if (status == HTTP_HEAD_NEED_MORE) {
        http_head_parse(&other, input, len);
    }
    cr_expect(same_result(&other, whole), "%s: cut at %zu differs", name, cut);
}

static void check_all_cuts(const char *name, const char *input, size_t len)
{
    static struct http_head bytewise;

    parse_whole(input, len);
    for (size_t cut = 0; cut <= len; cut++) {
        check_cut(name, input, len, cut, &head);
    }
    http_head_begin(&bytewise, HTTP_HEAD_LIMIT_DEFAULT);
    for (size_t n = 1; n <= len; n++) {
        if (http_head_parse(&bytewise, input, n) != HTTP_HEAD_NEED_MORE) {
            break;
        }
    }
    cr_expect(same_result(&bytewise, &head), "%s: byte by byte differs", name);
}

Test(http_head, the_split_of_the_input_never_matters)
{
    const char *good =
        "PUT /bucket/key?uploads HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nEmpty:\r\nSpaces:  \r\n"
        "Content-Length: 12\r\nLast:  padded \r\n\r\nbody bytes..";

    check_all_cuts("good", good, strlen(good));
    for (size_t i = 0; i < sizeof(bad_cases) / sizeof(bad_cases[0]); i++) {
        check_all_cuts(bad_cases[i].name, bad_cases[i].input, strlen(bad_cases[i].input));
    }
}
