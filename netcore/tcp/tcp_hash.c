/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_hash: SipHash-2-4 (Aumasson and Bernstein, 2012), a keyed hash for short inputs. It places peers in the table, makes
 * initial sequence numbers and SYN cookies; without the key nobody can aim at one bucket or guess a number. Pure.
 */
#include <string.h>

#include "base/bytes.h"
#include "tcp/tcp_int.h"

static uint64_t rotate(uint64_t value, int by)
{
    return value << by | value >> (64 - by);
}

static void sip_rounds(uint64_t v[4], int rounds)
{
    for (int i = 0; i < rounds; i++) {
        v[0] += v[1];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[0] = rotate(v[0], 32);
        v[2] += v[3];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[2] = rotate(v[2], 32);
    }
}

static void sip_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_rounds(v, 2);
    v[0] ^= word;
}

uint64_t tcp_siphash(const uint8_t key[16], const uint8_t *from, uint32_t len)
{
    uint64_t k0 = bytes_get_le64(key);
    uint64_t k1 = bytes_get_le64(key + 8);
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575ULL, k1 ^ 0x646f72616e646f6dULL, k0 ^ 0x6c7967656e657261ULL,
                     k1 ^ 0x7465646279746573ULL};
    uint8_t last[8] = {0};
    uint32_t i = 0;
    for (; i + 8 <= len; i += 8) {
        sip_word(v, bytes_get_le64(from + i));
    }
    memcpy(last, from + i, len - i);
    last[7] = (uint8_t)len;
    sip_word(v, bytes_get_le64(last));
    v[2] ^= 0xff;
    sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
