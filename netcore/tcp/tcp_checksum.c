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

uint64_t tcp_checksum_add(uint64_t sum, const uint8_t *from, uint32_t len)
{
    /* Two 32-bit halves a word into two sums: neither can carry out within 2^32 words, so the loop has no branch and
     * the compiler may use vector instructions. */
    uint64_t low = 0;
    uint64_t high = 0;
    uint32_t words = len / 8;
    for (uint32_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, from + (size_t)i * 8, 8);
        low += (uint32_t)word;
        high += word >> 32;
    }
    sum = add_carry(sum, low);
    sum = add_carry(sum, high);
    return add_carry(sum, load_tail(from + (size_t)words * 8, len % 8));
}

uint64_t tcp_checksum_copy(uint64_t sum, uint8_t *to, const uint8_t *from, uint32_t len)
{
    /* Two passes over at most one packet: the second finds it in the first-level cache. */
    memcpy(to, from, len);
    return tcp_checksum_add(sum, to, len);
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
