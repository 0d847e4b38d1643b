// SPDX-License-Identifier: Apache-2.0
//
// A bounded XML text writer over a caller's buffer.
//
// Writing past the end sets `is_full` and writes nothing more; a caller takes a mark before an element and goes back to
// it when the element did not fit, so a document is always cut between elements. Never allocates.
//
// Policy for bytes that XML 1.0 cannot carry (controls other than tab, LF and CR; U+FFFE, U+FFFF; broken UTF-8): each is
// replaced by U+FFFD, because one such character as a reference makes the whole document unreadable to conforming
// parsers, and one odd key must not hide every other key of a listing. Clients that need the exact bytes ask for
// encoding-type=url, as botocore does on its own. Tab, LF and CR are written as references, so that they survive.

#ifndef SERVER_XML_OUT_H
#define SERVER_XML_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/text.h"

struct xml_out {
    char *at;
    size_t size;
    size_t len;
    bool is_full;
};

static inline void xml_out_begin(struct xml_out *out, char *buffer, size_t size)
{
    *out = (struct xml_out){.at = buffer, .size = size};
}

static inline size_t xml_out_mark(const struct xml_out *out)
{
    return out->len;
}

static inline void xml_out_rewind(struct xml_out *out, size_t mark)
{
    out->len = mark;
    out->is_full = false;
}

void xml_out_raw(struct xml_out *out, const char *string);
void xml_out_escaped(struct xml_out *out, struct text text);

// Percent-encodes as encoding-type=url does: unreserved characters and '/' stay, everything else is %XX.
void xml_out_url(struct xml_out *out, struct text text);
void xml_out_u64(struct xml_out *out, uint64_t value);

// <tag>...</tag> with escaped content. tag must be a plain name from our own code.
void xml_out_element(struct xml_out *out, const char *tag, struct text text);
void xml_out_element_u64(struct xml_out *out, const char *tag, uint64_t value);
void xml_out_element_bool(struct xml_out *out, const char *tag, bool value);

// Largest growth of one byte: '"' becomes "&quot;".
#define XML_OUT_GROWTH_MAX 6u

#endif
