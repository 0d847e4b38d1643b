// SPDX-License-Identifier: Apache-2.0
//
// Dates of HTTP (RFC 9110 section 5.6.7) and of S3 (ISO 8601, basic and extended), to and from seconds since 1970.
//
// Pure arithmetic on the proleptic Gregorian calendar; no time zone but UTC, no locale, no clock. Years 1601 to 9999.

#ifndef SERVER_HTTP_DATE_H
#define SERVER_HTTP_DATE_H

#include <stdbool.h>
#include <stdint.h>

#include "server/text.h"

#define HTTP_DATE_SIZE 30       // "Sun, 06 Nov 1994 08:49:37 GMT" and the NUL
#define HTTP_DATE_ISO_SIZE 25   // "1994-11-06T08:49:37.000Z" and the NUL
#define HTTP_DATE_BASIC_SIZE 17 // "19941106T084937Z" and the NUL

// Values outside 0001..9999 are clamped, so a broken clock or record cannot overrun the buffers.
void http_date_format(int64_t unix_s, char out[HTTP_DATE_SIZE]);
void http_date_format_iso(int64_t unix_ns, char out[HTTP_DATE_ISO_SIZE]);
void http_date_format_basic(int64_t unix_s, char out[HTTP_DATE_BASIC_SIZE]);

// IMF-fixdate, RFC 850 and asctime forms. now_s only settles the century of RFC 850's two-digit year (a date more than
// 50 years ahead is taken as past). False, with *unix_s untouched, on anything else, a wrong day name included.
bool http_date_parse(struct text text, int64_t now_s, int64_t *unix_s);

// "YYYYMMDDTHHMMSSZ" only, as SigV4 has it.
bool http_date_parse_basic(struct text text, int64_t *unix_s);

#endif
