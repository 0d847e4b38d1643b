/* SPDX-License-Identifier: Apache-2.0 */
/* object: freeing a looked-up object, and the arithmetic of checksums over concatenated payload. */
#include "storage/object.h"

#include <stdlib.h>

#include "base/check.h"

void object_free(struct store_object *object)
{
    if (object == NULL) {
        return;
    }
    CHECK(object->magic == OBJECT_MAGIC);
    object->magic = 0;
    /* All checksum lists are one allocation, which the first piece's list begins. */
    if (object->piece_count > 0) {
        free((void *)(uintptr_t)object->pieces[0].extent.checksums);
    }
    free(object->pieces);
    free(object->parts);
    free(object);
}

/* CRC32C works on polynomials over GF(2), reflected: bit 31 is x^0. Appending n zero bytes multiplies by x^(8n) mod p. */
#define POLYNOMIAL 0x82f63b78U

static uint32_t multiply_mod_p(uint32_t a, uint32_t b)
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

uint32_t object_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b)
{
    uint32_t power = 1U << 23;  /* x^8: one byte of zeros */
    uint32_t factor = 1U << 31; /* x^0 */
    for (uint64_t n = length_b; n != 0; n >>= 1) {
        if ((n & 1U) != 0) {
            factor = multiply_mod_p(factor, power);
        }
        power = multiply_mod_p(power, power);
    }
    return multiply_mod_p(factor, crc_a) ^ crc_b;
}
