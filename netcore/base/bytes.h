/* SPDX-License-Identifier: Apache-2.0 */
/* bytes: unaligned little- and big-endian loads and stores, powers of two, rounding, size texts. Pure. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KIB (1024ULL)
#define MIB (1024ULL * KIB)
#define GIB (1024ULL * MIB)
#define TIB (1024ULL * GIB)

#define ARRAY_COUNT(array) (sizeof(array) / sizeof((array)[0]))

static inline uint16_t bytes_get_be16(const void *from)
{
    const uint8_t *b = from;
    return (uint16_t)((unsigned)b[0] << 8 | b[1]);
}

static inline uint32_t bytes_get_be32(const void *from)
{
    const uint8_t *b = from;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static inline uint64_t bytes_get_be64(const void *from)
{
    return (uint64_t)bytes_get_be32(from) << 32 | bytes_get_be32((const uint8_t *)from + 4);
}

static inline void bytes_put_be16(void *to, uint16_t value)
{
    uint8_t *b = to;
    b[0] = (uint8_t)(value >> 8);
    b[1] = (uint8_t)value;
}

static inline void bytes_put_be32(void *to, uint32_t value)
{
    bytes_put_be16(to, (uint16_t)(value >> 16));
    bytes_put_be16((uint8_t *)to + 2, (uint16_t)value);
}

static inline void bytes_put_be64(void *to, uint64_t value)
{
    bytes_put_be32(to, (uint32_t)(value >> 32));
    bytes_put_be32((uint8_t *)to + 4, (uint32_t)value);
}

static inline uint16_t bytes_get_le16(const void *from)
{
    const uint8_t *b = from;
    return (uint16_t)((unsigned)b[1] << 8 | b[0]);
}

static inline uint32_t bytes_get_le32(const void *from)
{
    const uint8_t *b = from;
    return (uint32_t)b[3] << 24 | (uint32_t)b[2] << 16 | (uint32_t)b[1] << 8 | b[0];
}

static inline uint64_t bytes_get_le64(const void *from)
{
    return (uint64_t)bytes_get_le32((const uint8_t *)from + 4) << 32 | bytes_get_le32(from);
}

static inline void bytes_put_le16(void *to, uint16_t value)
{
    uint8_t *b = to;
    b[0] = (uint8_t)value;
    b[1] = (uint8_t)(value >> 8);
}

static inline void bytes_put_le32(void *to, uint32_t value)
{
    bytes_put_le16(to, (uint16_t)value);
    bytes_put_le16((uint8_t *)to + 2, (uint16_t)(value >> 16));
}

static inline void bytes_put_le64(void *to, uint64_t value)
{
    bytes_put_le32(to, (uint32_t)value);
    bytes_put_le32((uint8_t *)to + 4, (uint32_t)(value >> 32));
}

static inline bool bytes_is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* unit > 0; the caller keeps value below UINT64_MAX - unit. */
static inline uint64_t bytes_round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static inline uint64_t bytes_round_down(uint64_t value, uint64_t unit)
{
    return value / unit * unit;
}

/* Reads decimal digits at *text and moves it behind them. 0; -EINVAL when there are none; -ERANGE on overflow. Both are untouched on
 * failure. */
int bytes_parse_digits(const char **text, uint64_t *out);
/* Reads "64MiB", "128KiB", "4096", "1GiB", "2TiB" (binary units only; a bare number is bytes). 0; -EINVAL for a bad
 * number or unit; -ERANGE on overflow. `*out` is untouched on failure. */
int bytes_parse_size(const char *text, uint64_t *out);
/* Writes the shortest exact form ("128KiB", "4097") into `to` and returns it. */
#define BYTES_SIZE_TEXT_MAX 32
const char *bytes_format_size(uint64_t value, char to[BYTES_SIZE_TEXT_MAX]);

#endif
