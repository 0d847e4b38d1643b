// SPDX-License-Identifier: Apache-2.0
//
// s3_error, xml_out and utf8: the error table is sound, bodies are well-formed XML whatever goes into them, and bounded.

#include <criterion/criterion.h>
#include <expat.h>
#include <stdlib.h>

#include "server/s3_error.h"
#include "server/utf8.h"
#include "server/xml_out.h"

static bool is_well_formed(const char *document, size_t len)
{
    XML_Parser parser = XML_ParserCreate(NULL);
    enum XML_Status status = XML_Parse(parser, document, (int)len, 1);

    XML_ParserFree(parser);
    return status == XML_STATUS_OK;
}

static void expect_contains(const char *document, size_t len, const char *part)
{
    cr_expect(memmem(document, len, part, strlen(part)) != NULL, "no %s in %.*s", part, (int)len, document);
}

Test(s3_error, every_row_has_a_code_a_message_and_an_error_status)
{
    for (int error = S3_OK + 1; error < S3_ERROR_COUNT; error++) {
        int status = s3_error_status(error);

        cr_expect(status >= 400 && status <= 599, "%s", s3_error_code(error));
        cr_expect(strlen(s3_error_code(error)) > 0);
        cr_expect(strlen(s3_error_message(error)) > 0);
        cr_expect(s3_error_message(error)[strlen(s3_error_message(error)) - 1] != '.', "%s",
                  s3_error_code(error));
    }
}

Test(s3_error, body_holds_what_clients_look_for)
{
    char out[S3_ERROR_BODY_MAX];
    struct s3_error_body body = {
        .error = S3_ERR_NOT_FOUND_BUCKET,
        .resource = TEXT("/buck<et>/\"k&y'"),
        .request_id = TEXT("0123456789ABCDEF"),
        .host_id = TEXT("demo"),
        .extra = {{"BucketName", TEXT("b")}, {"Absent", {0}}},
    };
    size_t len = s3_error_write(&body, out, sizeof(out));

    cr_assert(is_well_formed(out, len));
    expect_contains(out, len, "<Code>NoSuchBucket</Code>");
    expect_contains(out, len, "<Resource>/buck&lt;et&gt;/&quot;k&amp;y&#39;</Resource>");
    expect_contains(out, len, "<RequestId>0123456789ABCDEF</RequestId>");
    expect_contains(out, len, "<HostId>demo</HostId>");
    expect_contains(out, len, "<BucketName>b</BucketName>");
    cr_expect(memmem(out, len, "Absent", 6) == NULL);
}

Test(s3_error, hostile_texts_stay_bounded_and_well_formed)
{
    static char hostile[20000];
    static char out[S3_ERROR_BODY_MAX];
    struct s3_error_body body = {.error = S3_ERR_INTERNAL, .request_id = TEXT("r"), .host_id = TEXT("h")};

    for (unsigned fill = 0; fill < 256; fill++) {
        memset(hostile, (int)fill, sizeof(hostile));
        body.resource = text_of(hostile, sizeof(hostile));
        for (unsigned i = 0; i < S3_ERROR_EXTRA_MAX; i++) {
            body.extra[i] = (struct s3_error_extra){"Extra", body.resource};
        }
        size_t len = s3_error_write(&body, out, sizeof(out));

        cr_expect(is_well_formed(out, len), "byte %u", fill);
        len = s3_error_write(&body, out, 2048);
        cr_expect(is_well_formed(out, len), "byte %u in a small buffer", fill);
        cr_expect_leq(len, 2048);
    }
}

Test(s3_error, every_refused_head_has_an_s3_form)
{
    static const int statuses[HTTP_HEAD_ERROR_COUNT] = {
        [HTTP_HEAD_ERROR_SYNTAX] = 400,
        [HTTP_HEAD_ERROR_FRAMING] = 400,
        [HTTP_HEAD_ERROR_HOST] = 400,
        [HTTP_HEAD_ERROR_TOO_LARGE] = 400, // S3 has no 431
        [HTTP_HEAD_ERROR_TOO_MANY_HEADERS] = 400,
        [HTTP_HEAD_ERROR_METHOD] = 405,
        [HTTP_HEAD_ERROR_EXPECTATION] = 417,
        [HTTP_HEAD_ERROR_ENCODING] = 501,
        [HTTP_HEAD_ERROR_VERSION] = 505,
    };

    for (int error = HTTP_HEAD_ERROR_NONE + 1; error < HTTP_HEAD_ERROR_COUNT; error++) {
        cr_expect_eq(s3_error_status(s3_error_from_head(error)), statuses[error], "%d", error);
    }
}

static size_t escape(struct text text, char *buffer, size_t size)
{
    struct xml_out out;

    xml_out_begin(&out, buffer, size);
    xml_out_escaped(&out, text);
    return out.len;
}

Test(xml_out, characters_that_xml_cannot_hold_become_the_replacement_character)
{
    char out[64];
    size_t len = escape(text_of("a\0b\x01\xff\xed\xa0\x80\r\n\t\xef\xbf\xbe", 14), out, sizeof(out));
    const char *expected = "a\xef\xbf\xbd"
                           "b\xef\xbf\xbd\xef\xbf\xbd"
                           "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                           "&#13;&#10;&#9;\xef\xbf\xbd";

    cr_expect_eq(len, strlen(expected));
    cr_expect(memcmp(out, expected, len) == 0);
}

Test(xml_out, url_encoding_keeps_slash_and_unreserved_only)
{
    char buffer[64];
    struct xml_out out;

    xml_out_begin(&out, buffer, sizeof(buffer));
    xml_out_url(&out, text_of("a/b c+~\0\xe4", 9));
    cr_expect(text_is(text_of(out.at, out.len), "a/b%20c%2B~%00%E4"));
}

Test(xml_out, a_full_buffer_is_noticed_and_rewound)
{
    char buffer[10];
    struct xml_out out;

    xml_out_begin(&out, buffer, sizeof(buffer));
    xml_out_raw(&out, "12345");
    size_t mark = xml_out_mark(&out);
    xml_out_element(&out, "Tag", TEXT("x"));
    cr_expect(out.is_full);
    cr_expect_leq(out.len, sizeof(buffer));
    xml_out_rewind(&out, mark);
    xml_out_u64(&out, 12345);
    cr_expect_not(out.is_full);
    cr_expect(memcmp(buffer, "1234512345", 10) == 0);
}

Test(utf8, valid_and_invalid_sequences)
{
    static const char *const good[] = {
        "", "a", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"\x80",
                                      "\xc0\xaf",
                                      "\xc1\xbf",
                                      "\xe0\x80\xaf",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xc3",
                                      "\xe2\x82",
                                      "\xff"};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        cr_expect(utf8_is_valid(text_of_string(good[i])), "good %zu", i);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_expect_not(utf8_is_valid(text_of_string(bad[i])), "bad %zu", i);
    }
}

Test(utf8, cutting_never_splits_a_character)
{
    struct text text = TEXT("a\xc3\xa4\xf0\x9f\x98\x80z");
    static const size_t expected[] = {0, 1, 1, 3, 3, 3, 3, 7, 8};

    for (size_t max = 0; max <= 8; max++) {
        cr_expect_eq(utf8_cut(text, max).len, expected[max], "max %zu", max);
    }
}
