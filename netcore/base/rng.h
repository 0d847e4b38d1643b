/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng: randomness as an object, so that a simulation replays from a seed. Not for secrets: keys and request
 * identities that must not be guessed come from getrandom in server/.
 * Generator: xoshiro256** (Blackman and Vigna), seeded by splitmix64.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

struct rng {
    uint64_t state[4];
};

void rng_seed(struct rng *rng, uint64_t seed);
uint64_t rng_u64(struct rng *rng);
/* Uniform in [0, bound); bound > 0. */
uint64_t rng_below(struct rng *rng, uint64_t bound);
/* True with probability numerator / denominator. */
int rng_chance(struct rng *rng, uint64_t numerator, uint64_t denominator);

#endif
