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

/* x^(8 * 2^i) modulo the polynomial. The 31st square is the first again. Constant, because each checksum block of an upload asks. */
#define SHIFTS 31U
static const uint32_t shifts[SHIFTS] = {
    0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a, 0xb82be955, 0xb8fdb1e7,
    0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a, 0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc,
    0xfe7740e6, 0xf946610b, 0x3c204f8f, 0x538586e3, 0x59726915, 0x734d5309, 0xbc1ac763, 0x7d0722cc,
    0xd289cabe, 0xe94ca9bc, 0x05b74f3f, 0xa51e1f42, 0x40000000, 0x20000000, 0x08000000,
};

/* x^(8 * len) modulo the polynomial. */
static uint32_t crc32c_shift(uint64_t len)
{
    uint32_t result = 1U << 31;
    for (uint32_t i = 0; len != 0; i++, len >>= 1) {
        if ((len & 1U) != 0) {
            result = crc32c_multiply(result, shifts[i % SHIFTS]);
        }
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
