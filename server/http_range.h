// SPDX-License-Identifier: Apache-2.0
//
// Range requests (RFC 9110 section 14) as S3 answers them: one byte range, or the whole object.
//
// Policy: a header that is malformed, uses another unit, or asks for several ranges is ignored and the whole object is
// sent with 200, as the RFC allows and S3 does. Only a well-formed single range past the end is unsatisfiable (416).

#ifndef SERVER_HTTP_RANGE_H
#define SERVER_HTTP_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/text.h"

enum http_range_result {
    HTTP_RANGE_WHOLE,         // 200 with everything
    HTTP_RANGE_PART,          // 206 with *range
    HTTP_RANGE_UNSATISFIABLE, // 416 InvalidRange, with http_range_format_unsatisfied()
};

struct http_range {
    uint64_t first;
    uint64_t len; // at least 1
};

// value may be absent. object_size is the size of what is being ranged over. *range is set for WHOLE (0, object_size)
// and for PART; untouched when unsatisfiable. An empty object satisfies no range.
enum http_range_result http_range_parse(struct text value, uint64_t object_size, struct http_range *range);

// x-amz-copy-source-range: exactly "bytes=first-last" with both ends, last inside the object. False if not.
bool http_range_parse_copy(struct text value, uint64_t object_size, struct http_range *range);

#define HTTP_RANGE_SIZE 80 // longest Content-Range value and the NUL

// "bytes 0-9/100" and "bytes */100". Return the length without the NUL.
size_t http_range_format(struct http_range range, uint64_t object_size, char out[HTTP_RANGE_SIZE]);
size_t http_range_format_unsatisfied(uint64_t object_size, char out[HTTP_RANGE_SIZE]);

#endif
