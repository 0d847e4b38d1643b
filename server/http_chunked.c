// SPDX-License-Identifier: Apache-2.0
//
// Chunked framing; the contract is in http_chunked.h.
//
//	SIZE --hex--> SIZE --;--> EXTENSION --CR--> SIZE_LF --LF, size > 0--> DATA --all read--> DATA_CR --CR--> DATA_LF --LF--> SIZE
//	     --CR-------------------------------> SIZE_LF --LF, size 0--> TRAILER_START --CR--> END_LF --LF--> DONE
//	TRAILER_START --name--> TRAILER_NAME --:--> TRAILER_VALUE --CR--> TRAILER_LF --LF--> TRAILER_START
//
// framing_byte() takes every arrow but those of DATA. It is strict (CRLF only, no white space around the size): lenient
// line ends in chunk framing have been a way to smuggle requests.

#include "server/http_chunked.h"

#include <stdbool.h>

#include "base/check.h"
#include "server/text.h"

enum {
    STATE_SIZE,
    STATE_EXTENSION,
    STATE_SIZE_LF,
    STATE_DATA,
    STATE_DATA_CR,
    STATE_DATA_LF,
    STATE_TRAILER_START,
    STATE_TRAILER_NAME,
    STATE_TRAILER_VALUE,
    STATE_TRAILER_LF,
    STATE_END_LF,
    STATE_DONE,
    STATE_BAD,
};

#define DIGITS_MAX 16 // a 64-bit size, leading zeros included

void http_chunked_begin(struct http_chunked *chunked)
{
    *chunked = (struct http_chunked){.state = STATE_SIZE};
}

static bool is_field_value_byte(unsigned char c)
{
    return c == '\t' || (c >= 0x20 && c != 0x7f);
}

// The token characters of RFC 9110 section 5.6.2.
static bool is_token_byte(unsigned char c)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
        return true;
    }
    return c != 0 && memchr("!#$%&'*+-.^_`|~", c, 15) != NULL;
}

static int size_byte(struct http_chunked *chunked, unsigned char c)
{
    int digit = text_hex_digit((char)c);

    if (digit >= 0) {
        if (chunked->digits == DIGITS_MAX) {
            return STATE_BAD;
        }
        chunked->digits++;
        chunked->remaining = chunked->remaining << 4 | (unsigned)digit;
        return STATE_SIZE;
    }
    if (chunked->digits == 0) {
        return STATE_BAD;
    }
    if (c == '\r') {
        return STATE_SIZE_LF;
    }
    return c == ';' ? STATE_EXTENSION : STATE_BAD;
}

static int extension_byte(struct http_chunked *chunked, unsigned char c)
{
    chunked->line_len++;
    chunked->extension_bytes++;
    if (chunked->line_len > HTTP_CHUNKED_LINE_MAX || chunked->extension_bytes > HTTP_CHUNKED_EXTENSIONS_MAX) {
        return STATE_BAD;
    }
    if (c == '\r') {
        return STATE_SIZE_LF;
    }
    return is_field_value_byte(c) ? STATE_EXTENSION : STATE_BAD;
}

static int size_end(struct http_chunked *chunked, unsigned char c)
{
    if (c != '\n') {
        return STATE_BAD;
    }
    chunked->digits = 0;
    chunked->line_len = 0;
    // The sum of all chunks must fit 64 bits, so that payload_bytes can be compared with a declared length.
    if (chunked->remaining > UINT64_MAX - chunked->payload_bytes) {
        return STATE_BAD;
    }
    return chunked->remaining > 0 ? STATE_DATA : STATE_TRAILER_START;
}

static int trailer_byte(struct http_chunked *chunked, unsigned char c)
{
    chunked->trailer_bytes++;
    if (chunked->trailer_bytes > HTTP_CHUNKED_TRAILER_MAX) {
        return STATE_BAD;
    }
    switch (chunked->state) {
    case STATE_TRAILER_START:
        if (c == '\r') {
            return STATE_END_LF;
        }
        return is_token_byte(c) ? STATE_TRAILER_NAME : STATE_BAD;
    case STATE_TRAILER_NAME:
        if (c == ':') {
            return STATE_TRAILER_VALUE;
        }
        return is_token_byte(c) ? STATE_TRAILER_NAME : STATE_BAD;
    case STATE_TRAILER_VALUE:
        if (c == '\r') {
            return STATE_TRAILER_LF;
        }
        return is_field_value_byte(c) ? STATE_TRAILER_VALUE : STATE_BAD;
    default:
        return c == '\n' ? STATE_TRAILER_START : STATE_BAD;
    }
}

static int framing_byte(struct http_chunked *chunked, unsigned char c)
{
    switch (chunked->state) {
    case STATE_SIZE:
        return size_byte(chunked, c);
    case STATE_EXTENSION:
        return extension_byte(chunked, c);
    case STATE_SIZE_LF:
        return size_end(chunked, c);
    case STATE_DATA_CR:
        return c == '\r' ? STATE_DATA_LF : STATE_BAD;
    case STATE_DATA_LF:
        return c == '\n' ? STATE_SIZE : STATE_BAD;
    case STATE_END_LF:
        return c == '\n' ? STATE_DONE : STATE_BAD;
    default:
        return trailer_byte(chunked, c);
    }
}

static enum http_chunked_status take_run(struct http_chunked *chunked, size_t len,
                                         struct http_chunked_span *span)
{
    size_t left = len - span->skip;

    span->run = chunked->remaining < left ? (size_t)chunked->remaining : left;
    chunked->remaining -= span->run;
    chunked->payload_bytes += span->run;
    if (chunked->remaining == 0) {
        chunked->state = STATE_DATA_CR;
    }
    return HTTP_CHUNKED_RUN;
}

enum http_chunked_status http_chunked_step(struct http_chunked *chunked, const void *in, size_t len,
                                           struct http_chunked_span *span)
{
    const unsigned char *bytes = in;

    CHECK(chunked->state <= STATE_BAD);
    *span = (struct http_chunked_span){0};
    while (chunked->state != STATE_DONE && chunked->state != STATE_BAD) {
        if (span->skip == len) {
            return HTTP_CHUNKED_MORE;
        }
        if (chunked->state == STATE_DATA) {
            return take_run(chunked, len, span);
        }
        chunked->state = (uint8_t)framing_byte(chunked, bytes[span->skip]);
        if (chunked->state != STATE_BAD) {
            span->skip++;
        }
    }
    return chunked->state == STATE_DONE ? HTTP_CHUNKED_DONE : HTTP_CHUNKED_BAD;
}
