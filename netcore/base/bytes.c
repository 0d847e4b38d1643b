/* SPDX-License-Identifier: Apache-2.0 */
/* bytes: size texts. Pure. */
#include "base/bytes.h"

#include <errno.h>
#include <stdio.h>

struct size_unit {
    const char *name;
    uint64_t factor;
};

static const struct size_unit size_units[] = {
    {"TiB", TIB}, {"GiB", GIB}, {"MiB", MIB}, {"KiB", KIB}, {"B", 1}, {"", 1},
};

int bytes_parse_digits(const char **text, uint64_t *out)
{
    uint64_t value = 0;
    const char *at = *text;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(value, 10U, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value)) {
            return -ERANGE;
        }
    }
    if (at == *text) {
        return -EINVAL;
    }
    *text = at;
    *out = value;
    return 0;
}

int bytes_parse_size(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    const char *at = text;
    int rc = bytes_parse_digits(&at, &value);
    if (rc != 0) {
        return rc;
    }
    for (size_t i = 0; i < ARRAY_COUNT(size_units); i++) {
        if (strcmp(at, size_units[i].name) == 0) {
            if (__builtin_mul_overflow(value, size_units[i].factor, &value)) {
                return -ERANGE;
            }
            *out = value;
            return 0;
        }
    }
    return -EINVAL;
}

const char *bytes_format_size(uint64_t value, char to[BYTES_SIZE_TEXT_MAX])
{
    for (size_t i = 0; i < 4 && value != 0; i++) {
        if (value % size_units[i].factor == 0) {
            snprintf(to, BYTES_SIZE_TEXT_MAX, "%llu%s", (unsigned long long)(value / size_units[i].factor),
                     size_units[i].name);
            return to;
        }
    }
    snprintf(to, BYTES_SIZE_TEXT_MAX, "%llu", (unsigned long long)value);
    return to;
}
