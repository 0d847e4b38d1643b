// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 decoding; see utf8.h.

#include "server/utf8.h"

// Length of the sequence a lead byte begins, its payload bits, and the smallest value that needs that length.
struct utf8_lead {
    size_t len;
    uint32_t bits;
    uint32_t min;
};

static struct utf8_lead lead_of(unsigned char c)
{
    if (c < 0x80) {
        return (struct utf8_lead){1, c, 0};
    }
    if (c >= 0xc2 && c <= 0xdf) {
        return (struct utf8_lead){2, c & 0x1fu, 0x80};
    }
    if (c >= 0xe0 && c <= 0xef) {
        return (struct utf8_lead){3, c & 0x0fu, 0x800};
    }
    if (c >= 0xf0 && c <= 0xf4) {
        return (struct utf8_lead){4, c & 0x07u, 0x10000};
    }
    return (struct utf8_lead){0, 0, 0};
}

size_t utf8_take(struct text text, uint32_t *code)
{
    struct utf8_lead lead;

    if (text.len == 0) {
        return 0;
    }
    lead = lead_of((unsigned char)text.at[0]);
    if (lead.len == 0 || lead.len > text.len) {
        return 0;
    }
    for (size_t i = 1; i < lead.len; i++) {
        unsigned char c = (unsigned char)text.at[i];

        if ((c & 0xc0) != 0x80) {
            return 0;
        }
        lead.bits = lead.bits << 6 | (c & 0x3fu);
    }
    if (lead.bits < lead.min || lead.bits > 0x10ffff || (lead.bits >= 0xd800 && lead.bits <= 0xdfff)) {
        return 0;
    }
    *code = lead.bits;
    return lead.len;
}

bool utf8_is_valid(struct text text)
{
    uint32_t code;

    while (text.len > 0) {
        size_t len = utf8_take(text, &code);

        if (len == 0) {
            return false;
        }
        text.at += len;
        text.len -= len;
    }
    return true;
}

struct text utf8_cut(struct text text, size_t max)
{
    if (text.len <= max) {
        return text;
    }
    // At most three continuation bytes belong to the character that is cut.
    for (unsigned back = 0; back < 3 && max > 0 && ((unsigned char)text.at[max] & 0xc0) == 0x80; back++) {
        max--;
    }
    return text_of(text.at, max);
}
