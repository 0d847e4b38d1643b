// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF.

#ifndef SERVER_UTF8_H
#define SERVER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/text.h"

// Decodes the first character of text into *code and returns its length in bytes, or 0 (and leaves *code alone) when
// the bytes are not UTF-8 or text is empty.
size_t utf8_take(struct text text, uint32_t *code);
bool utf8_is_valid(struct text text);

// The longest prefix of text of at most max bytes that does not cut a character.
struct text utf8_cut(struct text text, size_t max);

#endif
