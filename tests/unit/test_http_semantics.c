// SPDX-License-Identifier: Apache-2.0
//
// http_date, http_range and http_cond: dates both ways, ranges as S3 answers them, preconditions in the order of RFC 9110.

#include <criterion/criterion.h>
#include <stdio.h>
#include <time.h>

#include "server/http_cond.h"
#include "server/http_date.h"
#include "server/http_range.h"

#define NOV_1994 784111777 // Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110

Test(http_date, formats_of_the_rfc_example)
{
    char date[HTTP_DATE_SIZE], iso[HTTP_DATE_ISO_SIZE], basic[HTTP_DATE_BASIC_SIZE];

    http_date_format(NOV_1994, date);
    cr_expect_str_eq(date, "Sun, 06 Nov 1994 08:49:37 GMT");
    http_date_format_iso(NOV_1994 * INT64_C(1000000000) + 7654321, iso);
    cr_expect_str_eq(iso, "1994-11-06T08:49:37.007Z");
    http_date_format_basic(NOV_1994, basic);
    cr_expect_str_eq(basic, "19941106T084937Z");
    http_date_format_iso(-1, iso);
    cr_expect_str_eq(iso, "1969-12-31T23:59:59.999Z");
}

Test(http_date, all_three_forms_are_read)
{
    static const char *const forms[] = {"Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT",
                                        "Sun Nov  6 08:49:37 1994"};

    for (size_t i = 0; i < 3; i++) {
        int64_t seconds = 0;

        cr_expect(http_date_parse(text_of_string(forms[i]), 1000000000, &seconds), "%s", forms[i]);
        cr_expect_eq(seconds, NOV_1994, "%s", forms[i]);
    }
}

Test(http_date, two_digit_years_more_than_fifty_years_ahead_are_past)
{
    int64_t seconds = 0;

    // From 2001 on, 51 is 2051 (50 years ahead) and 52 is 1952.
    cr_expect(http_date_parse(TEXT("Friday, 06-Jan-51 00:00:00 GMT"), 1000000000, &seconds));
    cr_expect_eq(seconds, 2556576000);
    cr_expect(http_date_parse(TEXT("Sunday, 06-Jan-52 00:00:00 GMT"), 1000000000, &seconds));
    cr_expect_lt(seconds, 0);
}

Test(http_date, what_is_not_a_date_is_refused)
{
    static const char *const bad[] = {"",
                                      "Mon, 06 Nov 1994 08:49:37 GMT",
                                      "Sun, 6 Nov 1994 08:49:37 GMT",
                                      "Sun, 06 Nov 1994 08:49:37",
                                      "Sun, 06 Nov 1994 08:49:37 UTC",
                                      "Sun, 06 Nov 1994 24:00:00 GMT",
                                      "Sun, 06 Nov 1994 08:60:00 GMT",
                                      "Sun, 30 Feb 1994 08:49:37 GMT",
                                      "sun, 06 nov 1994 08:49:37 gmt",
                                      "Sun, 06 Nov 1994 08:49:37 GMT ",
                                      "Sun, 00 Nov 1994 08:49:37 GMT",
                                      "784111777"};
    int64_t seconds = 42;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_expect_not(http_date_parse(text_of_string(bad[i]), 0, &seconds), "%s", bad[i]);
        cr_expect_not(http_date_parse_basic(text_of_string(bad[i]), &seconds), "%s", bad[i]);
    }
    cr_expect_eq(seconds, 42);
}

Test(http_date, the_basic_iso_form_is_read)
{
    int64_t seconds = 0;

    cr_expect(http_date_parse_basic(TEXT("19941106T084937Z"), &seconds));
    cr_expect_eq(seconds, NOV_1994);
    cr_expect_not(http_date_parse_basic(TEXT("19941106T084937"), &seconds));
    cr_expect_not(http_date_parse_basic(TEXT("19941306T084937Z"), &seconds));
}

// Against the C library, over 8,000 years in steps that hit every day of the week, month length and leap rule.
Test(http_date, formats_agree_with_the_c_library_and_read_back)
{
    for (int64_t seconds = -11644473600; seconds < 253402300800; seconds += 86400 * 11 + 12347) {
        char ours[HTTP_DATE_SIZE], theirs[64];
        time_t t = (time_t)seconds;
        struct tm tm;
        int64_t back = 0;

        strftime(theirs, sizeof(theirs), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&t, &tm));
        http_date_format(seconds, ours);
        cr_assert_str_eq(ours, theirs);
        cr_assert(http_date_parse(text_of_string(ours), 0, &back), "%s", ours);
        cr_assert_eq(back, seconds);
    }
}

struct range_case {
    const char *value;
    uint64_t size;
    enum http_range_result result;
    uint64_t first, len;
};

Test(http_range, one_range_or_the_whole)
{
    static const struct range_case cases[] = {
        {NULL, 100, HTTP_RANGE_WHOLE, 0, 100},
        {"bytes=0-9", 100, HTTP_RANGE_PART, 0, 10},
        {"bytes=0-0", 100, HTTP_RANGE_PART, 0, 1},
        {"Bytes=5-", 100, HTTP_RANGE_PART, 5, 95},
        {"bytes=-5", 100, HTTP_RANGE_PART, 95, 5},
        {"bytes=-500", 100, HTTP_RANGE_PART, 0, 100},
        {"bytes=99-", 100, HTTP_RANGE_PART, 99, 1},
        {"bytes=90-200", 100, HTTP_RANGE_PART, 90, 10},
        {"bytes=0-99999999999999999999999999", 100, HTTP_RANGE_PART, 0, 100},
        {"bytes=100-", 100, HTTP_RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=99999999999999999999999999-", 100, HTTP_RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=-0", 100, HTTP_RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=0-", 0, HTTP_RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=-1", 0, HTTP_RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=9-0", 100, HTTP_RANGE_WHOLE, 0, 100},
        {"bytes=0-9,20-29", 100, HTTP_RANGE_WHOLE, 0, 100},
        {"bytes=-", 100, HTTP_RANGE_WHOLE, 0, 100},
        {"bytes=", 100, HTTP_RANGE_WHOLE, 0, 100},
        {"bytes=a-b", 100, HTTP_RANGE_WHOLE, 0, 100},
        {"bytes=1-2-3", 100, HTTP_RANGE_WHOLE, 0, 100},
        {"bytes=+1-2", 100, HTTP_RANGE_WHOLE, 0, 100},
        {"bytes = 1-2", 100, HTTP_RANGE_WHOLE, 0, 100},
        {"lines=1-2", 100, HTTP_RANGE_WHOLE, 0, 100},
        {"1-2", 100, HTTP_RANGE_WHOLE, 0, 100},
        {"", 100, HTTP_RANGE_WHOLE, 0, 100},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct range_case *c = &cases[i];
        struct http_range range = {0};
        struct text value = c->value != NULL ? text_of_string(c->value) : (struct text){0};

        cr_expect_eq(http_range_parse(value, c->size, &range), c->result, "%s", c->value);
        cr_expect_eq(range.first, c->first, "%s", c->value);
        cr_expect_eq(range.len, c->len, "%s", c->value);
    }
}

// Every range over a small object, against a byte-by-byte definition.
Test(http_range, agrees_with_counting_bytes)
{
    char text[32];

    for (unsigned size = 0; size < 6; size++) {
        for (unsigned first = 0; first < 8; first++) {
            for (unsigned last = first; last < 8; last++) {
                struct http_range range = {0};
                unsigned count = 0;

                for (unsigned i = first; i <= last && i < size; i++) {
                    count++;
                }
                snprintf(text, sizeof(text), "bytes=%u-%u", first, last);
                enum http_range_result result = http_range_parse(text_of_string(text), size, &range);
                cr_expect_eq(result, count > 0 ? HTTP_RANGE_PART : HTTP_RANGE_UNSATISFIABLE);
                cr_expect_eq(range.len, count);
            }
        }
    }
}

Test(http_range, copy_ranges_must_be_exact)
{
    struct http_range range = {0};

    cr_expect(http_range_parse_copy(TEXT("bytes=5-99"), 100, &range));
    cr_expect_eq(range.first, 5);
    cr_expect_eq(range.len, 95);
    cr_expect_not(http_range_parse_copy(TEXT("bytes=5-100"), 100, &range));
    cr_expect_not(http_range_parse_copy(TEXT("bytes=5-"), 100, &range));
    cr_expect_not(http_range_parse_copy(TEXT("bytes=-5"), 100, &range));
    cr_expect_not(http_range_parse_copy(TEXT("5-9"), 100, &range));
}

Test(http_range, content_range_values)
{
    char out[HTTP_RANGE_SIZE];
    struct http_range range = {.first = 1, .len = UINT64_MAX - 1};

    cr_expect_eq(http_range_format((struct http_range){0, 10}, 100, out), 13);
    cr_expect_str_eq(out, "bytes 0-9/100");
    http_range_format(range, UINT64_MAX, out);
    cr_expect_str_eq(out, "bytes 1-18446744073709551614/18446744073709551615");
    http_range_format_unsatisfied(0, out);
    cr_expect_str_eq(out, "bytes */0");
}

static const struct http_cond_object object = {.exists = true, .etag = {"abc", 3}, .modified_s = NOV_1994};
static const struct http_cond_object missing = {.exists = false};

#define BEFORE TEXT("Sun, 06 Nov 1994 08:49:36 GMT")
#define SAME TEXT("Sun, 06 Nov 1994 08:49:37 GMT")

static enum http_cond_result get(struct http_cond cond)
{
    return http_cond_evaluate(&cond, &object, true, NOV_1994);
}

Test(http_cond, if_match)
{
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("\"abc\"")}), HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("abc")}), HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("\"x\", \"a,b\" ,\"abc\"")}), HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("*")}), HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("\"x\"")}), HTTP_COND_FAILED);
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("W/\"abc\"")}), HTTP_COND_FAILED);
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("")}), HTTP_COND_FAILED);
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("\"ab")}), HTTP_COND_FAILED);
    struct http_cond star = {.if_match = TEXT("*")};
    cr_expect_eq(http_cond_evaluate(&star, &missing, false, 0), HTTP_COND_FAILED);
}

Test(http_cond, if_none_match)
{
    struct http_cond cond = {.if_none_match = TEXT("W/\"abc\"")};

    cr_expect_eq(get(cond), HTTP_COND_NOT_MODIFIED);
    cr_expect_eq(http_cond_evaluate(&cond, &object, false, 0), HTTP_COND_FAILED);
    cr_expect_eq(http_cond_evaluate_copy(&cond, &object, 0), HTTP_COND_FAILED);
    cr_expect_eq(http_cond_evaluate(&cond, &missing, true, 0), HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_none_match = TEXT("\"x\"")}), HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_none_match = TEXT("*")}), HTTP_COND_NOT_MODIFIED);
}

Test(http_cond, dates)
{
    cr_expect_eq(get((struct http_cond){.if_modified_since = SAME}), HTTP_COND_NOT_MODIFIED);
    cr_expect_eq(get((struct http_cond){.if_modified_since = BEFORE}), HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_modified_since = TEXT("rubbish")}), HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_unmodified_since = SAME}), HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_unmodified_since = BEFORE}), HTTP_COND_FAILED);
}

Test(http_cond, tags_win_over_dates)
{
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("\"abc\""), .if_unmodified_since = BEFORE}),
                 HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_none_match = TEXT("\"x\""), .if_modified_since = SAME}),
                 HTTP_COND_PROCEED);
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("\"abc\""), .if_none_match = TEXT("\"abc\"")}),
                 HTTP_COND_NOT_MODIFIED);
    cr_expect_eq(get((struct http_cond){.if_match = TEXT("\"x\""), .if_none_match = TEXT("\"abc\"")}),
                 HTTP_COND_FAILED);
}

Test(http_cond, if_range)
{
    struct http_cond cond = {.if_range = TEXT("\"abc\"")};

    cr_expect(http_cond_range_allowed(&cond, &object, 0));
    cond.if_range = TEXT("W/\"abc\"");
    cr_expect_not(http_cond_range_allowed(&cond, &object, 0));
    cond.if_range = SAME;
    cr_expect(http_cond_range_allowed(&cond, &object, 0));
    cond.if_range = BEFORE;
    cr_expect_not(http_cond_range_allowed(&cond, &object, 0));
    cond.if_range = (struct text){0};
    cr_expect(http_cond_range_allowed(&cond, &object, 0));
}

Test(http_cond, conditional_writes)
{
    struct text etag = {0};
    struct http_cond cond = {0};

    cr_expect_eq(http_cond_for_put(&cond, &etag), HTTP_COND_PUT_ALWAYS);
    cond.if_none_match = TEXT(" *");
    cr_expect_eq(http_cond_for_put(&cond, &etag), HTTP_COND_PUT_IF_ABSENT);
    cond.if_none_match = TEXT("\"abc\"");
    cr_expect_eq(http_cond_for_put(&cond, &etag), HTTP_COND_PUT_REFUSED);
    cond = (struct http_cond){.if_match = TEXT("\"abc\"")};
    cr_expect_eq(http_cond_for_put(&cond, &etag), HTTP_COND_PUT_IF_ETAG);
    cr_expect(text_is(etag, "abc"));
    cond.if_match = TEXT("*");
    cr_expect_eq(http_cond_for_put(&cond, &etag), HTTP_COND_PUT_IF_EXISTS);
    cond.if_match = TEXT("\"a\", \"b\"");
    cr_expect_eq(http_cond_for_put(&cond, &etag), HTTP_COND_PUT_REFUSED);
    cond.if_match = TEXT("W/\"a\"");
    cr_expect_eq(http_cond_for_put(&cond, &etag), HTTP_COND_PUT_REFUSED);
}

Test(http_cond, headers_are_collected_with_and_without_prefix)
{
    static struct http_head head;
    const char *input =
        "PUT /b/k HTTP/1.1\r\nHost: h\r\nIf-Match: one\r\nX-Amz-Copy-Source-If-Match: two\r\n\r\n";
    struct http_cond cond;

    http_head_begin(&head, HTTP_HEAD_LIMIT_DEFAULT);
    cr_assert_eq(http_head_parse(&head, input, strlen(input)), HTTP_HEAD_DONE);
    http_cond_from_head(&cond, &head, input, "");
    cr_expect(text_is(cond.if_match, "one"));
    cr_expect(text_is_absent(cond.if_range));
    http_cond_from_head(&cond, &head, input, "x-amz-copy-source-");
    cr_expect(text_is(cond.if_match, "two"));
}
