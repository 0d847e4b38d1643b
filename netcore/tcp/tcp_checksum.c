/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_checksum: the Internet checksum (RFC 1071), pure. Sums are kept in the machine's byte order, because the sum of 16-bit
 * words does not care (RFC 1071 section 2.B), and are folded and swapped once at the end. Must not touch memory past `len`.
 */
#include <string.h>

#include "base/bytes.h"
#include "tcp/tcp_wire.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tcp_checksum_fold swaps; a big-endian machine would not have to"
#endif

static uint64_t add_carry(uint64_t sum, uint64_t value)
{
    sum += value;
    return sum + (sum < value);
}

static uint64_t load_tail(const uint8_t *from, uint32_t len)
{
    uint64_t word = 0;
    for (uint32_t i = 0; i < len; i++) {
        word |= (uint64_t)from[i] << (8 * i);
    }
    return word;
}

static uint64_t load_word(const uint8_t *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof(word));
    return word;
}

uint64_t tcp_checksum_add(uint64_t sum, const uint8_t *from, uint32_t len)
{
    /* Four sums that do not wait for one another: an addition with its carry takes two cycles, four at once hide that. */
    uint64_t sums[4] = {sum, 0, 0, 0};
    while (len >= 32) {
        sums[0] = add_carry(sums[0], load_word(from));
        sums[1] = add_carry(sums[1], load_word(from + 8));
        sums[2] = add_carry(sums[2], load_word(from + 16));
        sums[3] = add_carry(sums[3], load_word(from + 24));
        from += 32;
        len -= 32;
    }
    sum = add_carry(add_carry(sums[0], sums[1]), add_carry(sums[2], sums[3]));
    while (len >= 8) {
        sum = add_carry(sum, load_word(from));
        from += 8;
        len -= 8;
    }
    return add_carry(sum, load_tail(from, len));
}

static uint16_t fold_native(uint64_t sum)
{
    sum = (sum & 0xffffffffU) + (sum >> 32);
    sum = (sum & 0xffffffffU) + (sum >> 32);
    sum = (sum & 0xffffU) + (sum >> 16);
    sum = (sum & 0xffffU) + (sum >> 16);
    return (uint16_t)sum;
}

uint16_t tcp_checksum_fold(uint64_t sum)
{
    return __builtin_bswap16(fold_native(sum));
}

uint64_t tcp_checksum_swap(uint64_t sum)
{
    return __builtin_bswap16(fold_native(sum));
}
