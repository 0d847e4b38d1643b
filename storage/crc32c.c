/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c: the checksum of payload blocks, by ISA-L, and its combination from parts. Pure. */
#include <isa-l/crc.h>

#include "base/peek.h"
#include "storage/extent.h"

/* The reflected Castagnoli polynomial. */
#define POLYNOMIAL 0x82f63b78U

uint32_t crc32c_update(uint32_t crc, const void *data, uint64_t len)
{
    const uint8_t *at = data;
    crc = ~crc;
    while (len > 0) {
        uint32_t step = len < PEEK_MAX ? (uint32_t)len : PEEK_MAX;
        /* ISA-L's function does not write through the pointer; its prototype merely lacks the const. */
        crc = crc32_iscsi((unsigned char *)(uintptr_t)peek_at(at, step), (int)step, crc);
        at += step;
        len -= step;
    }
    return ~crc;
}

/* a * b modulo the polynomial, bits reflected (bit 31 is x^0). */
static uint32_t crc32c_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
        if ((a & bit) != 0) {
            product ^= b;
        }
        b = (b & 1U) != 0 ? (b >> 1) ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^(8 * len) modulo the polynomial, by squaring. */
static uint32_t crc32c_shift(uint64_t len)
{
    uint32_t power = 1U << 23; /* x^8: one byte */
    uint32_t result = 1U << 31;
    for (; len != 0; len >>= 1) {
        if ((len & 1U) != 0) {
            result = crc32c_multiply(result, power);
        }
        power = crc32c_multiply(power, power);
    }
    return result;
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b)
{
    if (len_b == 0) {
        return crc_a;
    }
    return crc32c_multiply(crc32c_shift(len_b), crc_a) ^ crc_b;
}
