// SPDX-License-Identifier: Apache-2.0
//
// Bounded XML text; the contract and the policy for characters XML cannot hold are in xml_out.h.

#include "server/xml_out.h"

#include "server/utf8.h"

static void out_bytes(struct xml_out *out, const char *at, size_t len)
{
    if (out->is_full || len > out->size - out->len) {
        out->is_full = true;
        return;
    }
    memcpy(out->at + out->len, at, len);
    out->len += len;
}

void xml_out_raw(struct xml_out *out, const char *string)
{
    out_bytes(out, string, strlen(string));
}

static const char *entity_of(char c)
{
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    case '\t':
        return "&#9;";
    case '\n':
        return "&#10;";
    case '\r':
        return "&#13;"; // a bare CR would be read back as LF
    default:
        return NULL;
    }
}

// The Char production of XML 1.0 section 2.2.
static bool is_xml_char(uint32_t code)
{
    return code >= 0x20 && code != 0xfffe && code != 0xffff;
}

void xml_out_escaped(struct xml_out *out, struct text text)
{
    size_t i = 0;

    while (i < text.len && !out->is_full) {
        uint32_t code;
        size_t len = utf8_take(text_of(text.at + i, text.len - i), &code);
        const char *entity = entity_of(text.at[i]);

        if (entity != NULL) {
            xml_out_raw(out, entity);
        } else if (len == 0 || !is_xml_char(code)) {
            xml_out_raw(out, "\xef\xbf\xbd"); // U+FFFD
        } else {
            out_bytes(out, text.at + i, len);
        }
        i += len == 0 ? 1 : len;
    }
}

static bool is_unreserved(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '~';
}

void xml_out_url(struct xml_out *out, struct text text)
{
    static const char hex[] = "0123456789ABCDEF";

    for (size_t i = 0; i < text.len && !out->is_full; i++) {
        unsigned char c = (unsigned char)text.at[i];

        if (is_unreserved((char)c) || c == '/') {
            out_bytes(out, text.at + i, 1);
        } else {
            char escape[3] = {'%', hex[c >> 4], hex[c & 15]};

            out_bytes(out, escape, sizeof(escape));
        }
    }
}

void xml_out_u64(struct xml_out *out, uint64_t value)
{
    char digits[20];
    size_t at = sizeof(digits);

    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    out_bytes(out, digits + at, sizeof(digits) - at);
}

static void out_tag(struct xml_out *out, const char *open, const char *tag)
{
    xml_out_raw(out, open);
    xml_out_raw(out, tag);
    xml_out_raw(out, ">");
}

void xml_out_element(struct xml_out *out, const char *tag, struct text text)
{
    out_tag(out, "<", tag);
    xml_out_escaped(out, text);
    out_tag(out, "</", tag);
}

void xml_out_element_u64(struct xml_out *out, const char *tag, uint64_t value)
{
    out_tag(out, "<", tag);
    xml_out_u64(out, value);
    out_tag(out, "</", tag);
}

void xml_out_element_bool(struct xml_out *out, const char *tag, bool value)
{
    xml_out_element(out, tag, value ? TEXT("true") : TEXT("false"));
}
