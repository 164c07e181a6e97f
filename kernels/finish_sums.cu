// Sums of blocks, and what lies outside of them (wide_sum.cuh), become one exact sum each, in the words that are fetched.
//
// variants: THREADS=256
// usual: THREADS=256
// budget: finish_sums registers=64 shared=24*THREADS/32+4
#include "wide_sum.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr i32 LIMBS = 2048;        // exponents of a float64
constexpr i32 OUTSIDE_WORDS = 34;  // of a sum of any float64, in units of the smallest one
constexpr i32 USED_LIMBS = 8;      // of `specials`

// Adds `high` * 2**26 + `low`, signed, times 2**shift to a number of OUTSIDE_WORDS words, two's complement.
static __device__ __forceinline__ void add_limb(u64* words, u64 high, u64 low, i32 shift) {
    const u64 sign_of_high = 0 - (high >> 63), sign_of_low = 0 - (low >> 63);
    u64 least = high << LOW_BITS, most = high >> (64 - LOW_BITS) | sign_of_high << LOW_BITS;
    least += low;
    most += sign_of_low + (least < low);
    const i32 within = shift % 64;
    const u64 sign = 0 - (most >> 63);
    const u64 parts[3] = {least << within, within ? most << within | least >> (64 - within) : most,
                          within ? sign << within | most >> (64 - within) : sign};
    u64 carry = 0;
    for (i32 word = shift / 64, k = 0; word < OUTSIDE_WORDS; ++word, ++k) {
        const u64 part = k < 3 ? parts[k] : sign, sum = words[word] + part;
        words[word] = sum + carry;
        carry = (sum < part) + (words[word] < carry);
    }
}

// A block finishes a sum of each `n_blocks` blocks, three words of `width`. `limbs`, `specials` : become zeros again. `out`
// : of each sum the three words, OUTSIDE_WORDS of what lay outside, and `specials`.
extern "C" __global__ void __launch_bounds__(THREADS) finish_sums(const u64* __restrict__ sums, i32 n_blocks, i32 width,
                                                                  u64* limbs, u32* specials, u64* out) {
    __shared__ WideSum storage[THREADS / WARP];
    __shared__ u32 seen;
    WideSum sum = {{0, 0, 0}};
    for (i32 block = threadIdx.x; block < n_blocks; block += THREADS) {
        const u64* const own = sums + block * width + 3 * blockIdx.x;
        sum.add(own[0], own[1], own[2]);
    }
    sum = wide_sum_of_block<THREADS>(sum, storage);
    out += blockIdx.x * (3 + OUTSIDE_WORDS + 1);
    limbs += blockIdx.x * 2 * LIMBS;
    if (threadIdx.x == 0) {
        for (i32 k = 0; k < 3; ++k) out[k] = sum.words[k];
        for (i32 k = 0; k < OUTSIDE_WORDS; ++k) out[3 + k] = 0;
        seen = specials[blockIdx.x];
        out[3 + OUTSIDE_WORDS] = seen;
        specials[blockIdx.x] = 0;
    }
    __syncthreads();
    if (!(seen & USED_LIMBS)) return;
    for (i32 begin = 0; begin < LIMBS; begin += THREADS) {  // one after the other those that hold something
        const i32 exponent = begin + static_cast<i32>(threadIdx.x);
        const bool is_used = limbs[2 * exponent] != 0 || limbs[2 * exponent + 1] != 0;
        if (__syncthreads_count(is_used) == 0) continue;
        if (threadIdx.x == 0)
            for (i32 other = begin; other < begin + THREADS; ++other)
                if (limbs[2 * other] != 0 || limbs[2 * other + 1] != 0)
                    add_limb(out + 3, limbs[2 * other], limbs[2 * other + 1], other > 0 ? other - 1 : 0);
        __syncthreads();
        limbs[2 * exponent] = limbs[2 * exponent + 1] = 0;
    }
}
