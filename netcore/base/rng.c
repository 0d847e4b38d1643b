/* SPDX-License-Identifier: Apache-2.0 */
/* rng: xoshiro256** with splitmix64 seeding. */
#include "base/rng.h"

#include "base/check.h"

static uint64_t rotate_left(uint64_t value, int count)
{
    return (value << count) | (value >> (64 - count));
}

void rng_seed(struct rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += 0x9e3779b97f4a7c15ULL;
        uint64_t mixed = seed;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
        rng->state[i] = mixed ^ (mixed >> 31);
    }
}

uint64_t rng_u64(struct rng *rng)
{
    uint64_t *s = rng->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t rng_below(struct rng *rng, uint64_t bound)
{
    CHECK(bound > 0);
    /* The high half of a 128-bit product is uniform enough for tests and jitter: bias is below bound / 2^64. */
    return (uint64_t)(((unsigned __int128)rng_u64(rng) * bound) >> 64);
}

int rng_chance(struct rng *rng, uint64_t numerator, uint64_t denominator)
{
    return rng_below(rng, denominator) < numerator;
}
