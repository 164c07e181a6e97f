// Draws as hashes of what they decide: `daskboost/hashing.py` for one id, to the last bit.
#pragma once

#include "types.cuh"

constexpr u64 GOLDEN = 0x9E3779B97F4A7C15ull;

// SplitMix64's finaliser (Steele, Lea and Flood, 2014).
SHARED_BY_HOST u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// The state of a key (`key_state`) with one part more, and the key that a state becomes.
SHARED_BY_HOST u64 with_part(u64 state, u64 part) { return mix(state + GOLDEN + part); }
SHARED_BY_HOST u64 key_of(u64 state) { return mix(state); }

// 64 random bits of an id: a row, a feature.
SHARED_BY_HOST u64 draw(u64 key, u64 id) { return mix(key + id * GOLDEN); }

// Whether a share of ids contains this one: `below` is the share times 2**32, and 2**32 keeps all.
SHARED_BY_HOST bool is_sampled(u64 key, u64 id, u64 below) { return (draw(key, id) >> 32) < below; }
