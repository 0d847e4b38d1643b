// SPDX-License-Identifier: Apache-2.0
//
// Calendar arithmetic and the date formats of http_date.h.

#include "server/http_date.h"

#include "base/bytes.h"

static const char day_names[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
static const char *const day_names_long[7] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                              "Thursday", "Friday", "Saturday"};
static const char month_names[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

#define SECONDS_PER_DAY 86400
#define UNIX_MIN (-62135596800) // 0001-01-01T00:00:00Z
#define UNIX_MAX 253402300799   // 9999-12-31T23:59:59Z

struct civil {
    int64_t year;
    unsigned month; // 1..12
    unsigned day;   // 1..31
    unsigned hour, minute, second;
    unsigned weekday; // 0 is Sunday
};

// Days since 1970-01-01, counting years from March so that the leap day is the last of its year, in 400-year eras.
static int64_t days_of(int64_t year, unsigned month, unsigned day)
{
    int64_t y = month <= 2 ? year - 1 : year;
    int64_t era = (y >= 0 ? y : y - 399) / 400;
    unsigned year_of_era = (unsigned)(y - era * 400);
    unsigned day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    unsigned day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;

    return era * 146097 + (int64_t)day_of_era - 719468;
}

static struct civil civil_of(int64_t unix_s)
{
    struct civil civil = {0};
    int64_t seconds = unix_s < UNIX_MIN ? UNIX_MIN : unix_s > UNIX_MAX ? UNIX_MAX : unix_s;
    int64_t days = (seconds >= 0 ? seconds : seconds - (SECONDS_PER_DAY - 1)) / SECONDS_PER_DAY;
    unsigned left = (unsigned)(seconds - days * SECONDS_PER_DAY);
    int64_t z = days + 719468;
    int64_t era = (z >= 0 ? z : z - 146096) / 146097;
    unsigned day_of_era = (unsigned)(z - era * 146097);
    unsigned year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    unsigned day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    unsigned m = (5 * day_of_year + 2) / 153;

    civil.day = day_of_year - (153 * m + 2) / 5 + 1;
    civil.month = m < 10 ? m + 3 : m - 9;
    civil.year = (int64_t)year_of_era + era * 400 + (civil.month <= 2);
    civil.hour = left / 3600;
    civil.minute = left / 60 % 60;
    civil.second = left % 60;
    civil.weekday = (unsigned)(((days + 4) % 7 + 7) % 7);
    return civil;
}

static unsigned days_in_month(int64_t year, unsigned month)
{
    static const unsigned char days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    return days[month - 1] + (month == 2 && is_leap);
}

static bool civil_to_unix(const struct civil *civil, int64_t *unix_s)
{
    if (civil->year < 1601 || civil->year > 9999 || civil->month < 1 || civil->month > 12 || civil->day < 1 ||
        civil->day > days_in_month(civil->year, civil->month) || civil->hour > 23 || civil->minute > 59 ||
        civil->second > 60) {
        return false;
    }
    // A leap second is taken as the second after it.
    *unix_s = days_of(civil->year, civil->month, civil->day) * SECONDS_PER_DAY + civil->hour * 3600 +
              civil->minute * 60 + civil->second;
    return true;
}

// --- writing

static char *put_digits(char *at, unsigned value, unsigned count)
{
    for (unsigned i = count; i > 0; i--) {
        at[i - 1] = (char)('0' + value % 10);
        value /= 10;
    }
    return at + count;
}

static char *put_string(char *at, const char *string)
{
    size_t len = strlen(string);

    memcpy(at, string, len);
    return at + len;
}

void http_date_format(int64_t unix_s, char out[HTTP_DATE_SIZE])
{
    struct civil civil = civil_of(unix_s);
    char *at = put_string(out, day_names[civil.weekday]);

    at = put_digits(put_string(at, ", "), civil.day, 2);
    at = put_string(put_string(at, " "), month_names[civil.month - 1]);
    at = put_digits(put_string(at, " "), (unsigned)civil.year, 4);
    at = put_digits(put_string(at, " "), civil.hour, 2);
    at = put_digits(put_string(at, ":"), civil.minute, 2);
    at = put_digits(put_string(at, ":"), civil.second, 2);
    *put_string(at, " GMT") = '\0';
}

void http_date_format_iso(int64_t unix_ns, char out[HTTP_DATE_ISO_SIZE])
{
    int64_t seconds = unix_ns / 1000000000 - (unix_ns % 1000000000 < 0);
    struct civil civil = civil_of(seconds);
    char *at = put_digits(out, (unsigned)civil.year, 4);

    at = put_digits(put_string(at, "-"), civil.month, 2);
    at = put_digits(put_string(at, "-"), civil.day, 2);
    at = put_digits(put_string(at, "T"), civil.hour, 2);
    at = put_digits(put_string(at, ":"), civil.minute, 2);
    at = put_digits(put_string(at, ":"), civil.second, 2);
    at = put_digits(put_string(at, "."), (unsigned)((unix_ns - seconds * 1000000000) / 1000000), 3);
    *put_string(at, "Z") = '\0';
}

void http_date_format_basic(int64_t unix_s, char out[HTTP_DATE_BASIC_SIZE])
{
    struct civil civil = civil_of(unix_s);
    char *at = put_digits(out, (unsigned)civil.year, 4);

    at = put_digits(put_digits(at, civil.month, 2), civil.day, 2);
    at = put_digits(put_string(at, "T"), civil.hour, 2);
    at = put_digits(put_digits(at, civil.minute, 2), civil.second, 2);
    *put_string(at, "Z") = '\0';
}

// --- reading: each take_* moves over the front of *text, or returns false

static bool take_digits(struct text *text, unsigned count, unsigned *value)
{
    unsigned sum = 0;

    if (text->len < count) {
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        unsigned digit = (unsigned)(unsigned char)text->at[i] - '0';

        if (digit > 9) {
            return false;
        }
        sum = sum * 10 + digit;
    }
    *value = sum;
    *text = text_of(text->at + count, text->len - count);
    return true;
}

static bool take(struct text *text, const char *expected)
{
    struct text prefix = text_of_string(expected);

    if (!text_starts_with(*text, prefix)) {
        return false;
    }
    *text = text_of(text->at + prefix.len, text->len - prefix.len);
    return true;
}

static bool take_day_name(struct text *text, bool is_long, unsigned *weekday)
{
    for (unsigned i = 0; i < 7; i++) {
        if (take(text, is_long ? day_names_long[i] : day_names[i])) {
            *weekday = i;
            return true;
        }
    }
    return false;
}

static bool take_month_name(struct text *text, unsigned *month)
{
    for (unsigned i = 0; i < 12; i++) {
        if (take(text, month_names[i])) {
            *month = i + 1;
            return true;
        }
    }
    return false;
}

static bool take_time(struct text *text, struct civil *civil)
{
    return take_digits(text, 2, &civil->hour) && take(text, ":") && take_digits(text, 2, &civil->minute) &&
           take(text, ":") && take_digits(text, 2, &civil->second);
}

static bool parse_imf(struct text text, struct civil *civil)
{
    unsigned year;

    if (!take_day_name(&text, false, &civil->weekday) || !take(&text, ", ") ||
        !take_digits(&text, 2, &civil->day) || !take(&text, " ") || !take_month_name(&text, &civil->month) ||
        !take(&text, " ") || !take_digits(&text, 4, &year) || !take(&text, " ") || !take_time(&text, civil) ||
        !take(&text, " GMT")) {
        return false;
    }
    civil->year = year;
    return text.len == 0;
}

static bool parse_rfc850(struct text text, int64_t now_s, struct civil *civil)
{
    unsigned year;
    int64_t this_year = civil_of(now_s).year;

    if (!take_day_name(&text, true, &civil->weekday) || !take(&text, ", ") ||
        !take_digits(&text, 2, &civil->day) || !take(&text, "-") || !take_month_name(&text, &civil->month) ||
        !take(&text, "-") || !take_digits(&text, 2, &year) || !take(&text, " ") || !take_time(&text, civil) ||
        !take(&text, " GMT")) {
        return false;
    }
    // RFC 9110 section 5.6.7: more than 50 years in the future means the most recent year with these digits.
    civil->year = this_year - this_year % 100 + year;
    if (civil->year > this_year + 50) {
        civil->year -= 100;
    }
    return text.len == 0;
}

static bool parse_asctime(struct text text, struct civil *civil)
{
    unsigned year;

    if (!take_day_name(&text, false, &civil->weekday) || !take(&text, " ") ||
        !take_month_name(&text, &civil->month) || !take(&text, " ") ||
        !(take(&text, " ") ? take_digits(&text, 1, &civil->day) : take_digits(&text, 2, &civil->day)) ||
        !take(&text, " ") || !take_time(&text, civil) || !take(&text, " ") || !take_digits(&text, 4, &year)) {
        return false;
    }
    civil->year = year;
    return text.len == 0;
}

bool http_date_parse(struct text text, int64_t now_s, int64_t *unix_s)
{
    struct civil civil = {0};
    int64_t result;

    if (!parse_imf(text, &civil) && !parse_rfc850(text, now_s, &civil) && !parse_asctime(text, &civil)) {
        return false;
    }
    if (!civil_to_unix(&civil, &result) || civil_of(result - (civil.second == 60)).weekday != civil.weekday) {
        return false;
    }
    *unix_s = result;
    return true;
}

bool http_date_parse_basic(struct text text, int64_t *unix_s)
{
    struct civil civil = {0};
    unsigned year;

    if (!take_digits(&text, 4, &year) || !take_digits(&text, 2, &civil.month) ||
        !take_digits(&text, 2, &civil.day) || !take(&text, "T") || !take_digits(&text, 2, &civil.hour) ||
        !take_digits(&text, 2, &civil.minute) || !take_digits(&text, 2, &civil.second) || !take(&text, "Z") ||
        text.len != 0) {
        return false;
    }
    civil.year = year;
    return civil_to_unix(&civil, unix_s);
}
