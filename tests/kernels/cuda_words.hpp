// CUDA's words, in terms of `cuda_emulation.hpp`. A word that is missing does not compile: add it with its meaning.
//
// Not here on purpose: what sm_75 lacks, and 64-bit signed or floating-point shared atomics.
#pragma once

#include <cmath>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#ifdef __SANITIZE_THREAD__
#define __forceinline__ inline __attribute__((always_inline))  // a place in the code then tells all its lines
#else
#define __forceinline__ inline
#endif
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
// Only directly inside kernels: g++ cannot put variables of inline functions and of others into one section.
#define __shared__ static __attribute__((section("emulated_shared")))

#define threadIdx (emulation::current->index)
#define blockIdx (emulation::block_index)
#define blockDim (emulation::block_size)
#define gridDim (emulation::grid_size)
constexpr int warpSize = 32;

#define CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CALLER) { emulation::barrier(0, file, line); }

inline int __syncthreads_count(int value, CALLER) {
    emulation::barrier(value != 0, file, line);
    int n = 0;
    for (unsigned i = 0; i < emulation::n_fibers; ++i) n += static_cast<int>(emulation::fibers[i].value);
    emulation::barrier(value != 0, file, line);  // before anybody shows another value
    return n;
}

inline int __syncthreads_or(int value, CALLER) { return __syncthreads_count(value, file, line) > 0; }
inline int __syncthreads_and(int value, CALLER) {
    return __syncthreads_count(value, file, line) == static_cast<int>(emulation::n_fibers);
}

inline void __syncwarp(unsigned mask = ~0u, CALLER) { emulation::in_warp(mask, 0, file, line, true); }

inline unsigned __ballot_sync(unsigned mask, int value, CALLER) {
    const auto* seen = emulation::in_warp(mask, value != 0, file, line);
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; ++i) bits |= static_cast<unsigned>(seen[i]) << i;
    return bits;
}

inline int __any_sync(unsigned mask, int value, CALLER) { return __ballot_sync(mask, value, file, line) != 0; }
inline int __all_sync(unsigned mask, int value, CALLER) { return __ballot_sync(mask, value, file, line) == mask; }

template <class T>
inline unsigned long long emulated_bits(T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "warp operations take 4 or 8 bytes");
    unsigned long long bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <class T>
unsigned __match_any_sync(unsigned mask, T value, CALLER) {
    const auto* seen = emulation::in_warp(mask, emulated_bits(value), file, line);
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; ++i)
        if (mask >> i & 1 && seen[i] == emulated_bits(value)) bits |= 1u << i;
    return bits;
}

// The value of lane `source` of the caller's group of `width` lanes; its own where `is_inside` is false.
template <class T>
inline T emulated_shuffle(unsigned mask, T value, int source, bool is_inside, int width, const char* file, int line) {
    const auto* seen = emulation::in_warp(mask, emulated_bits(value), file, line);
    if (!is_inside) return value;
    const int lane = static_cast<int>(emulation::current->rank % 32), from = lane / width * width + source;
    if (!(mask >> from & 1)) emulation::fail("a shuffle reads a lane outside its mask");
    T found;
    std::memcpy(&found, &seen[from], sizeof(T));
    return found;
}

inline int emulated_lane(int width) { return static_cast<int>(emulation::current->rank % 32) % width; }

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, CALLER) {
    return emulated_shuffle(mask, value, (source % width + width) % width, true, width, file, line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CALLER) {
    const int source = emulated_lane(width) - static_cast<int>(delta);
    return emulated_shuffle(mask, value, source, source >= 0, width, file, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CALLER) {
    const int source = emulated_lane(width) + static_cast<int>(delta);
    return emulated_shuffle(mask, value, source, source < width, width, file, line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CALLER) {
    const int source = emulated_lane(width) ^ bits;
    return emulated_shuffle(mask, value, source, source < width, width, file, line);
}

#define WORD template <class T> __forceinline__

// Types that CUDA's hardware adds: no signed 64 bits. Signed sums that overflow are for the sanitizer to find.
template <class T, class Change>
__forceinline__ T emulated_atomic(T* place, Change change) {
    emulation::let_others_go_first();
    races::begin_atomic();
    const T old = *place;
    *place = change(old);
    races::end_atomic();
    return old;
}
template <class T> using Same = std::common_type_t<T>;  // keeps an argument out of the deduction of T

WORD T atomicAdd(T* p, Same<T> v) {
    static_assert(!std::is_same_v<T, long long>, "CUDA adds unsigned long long");
    return emulated_atomic(p, [=](T old) { return static_cast<T>(old + v); });
}
WORD T atomicSub(T* p, Same<T> v) { return emulated_atomic(p, [=](T old) { return old - v; }); }
WORD T atomicMin(T* p, Same<T> v) { return emulated_atomic(p, [=](T old) { return v < old ? v : old; }); }
WORD T atomicMax(T* p, Same<T> v) { return emulated_atomic(p, [=](T old) { return v > old ? v : old; }); }
WORD T atomicAnd(T* p, Same<T> v) { return emulated_atomic(p, [=](T old) { return old & v; }); }
WORD T atomicOr(T* p, Same<T> v) { return emulated_atomic(p, [=](T old) { return old | v; }); }
WORD T atomicXor(T* p, Same<T> v) { return emulated_atomic(p, [=](T old) { return old ^ v; }); }
WORD T atomicExch(T* p, Same<T> v) { return emulated_atomic(p, [=](T) { return v; }); }
WORD T atomicCAS(T* p, Same<T> expected, Same<T> v) {
    return emulated_atomic(p, [=](T old) { return old == expected ? v : old; });
}

inline void __threadfence() {}
inline void __threadfence_block() {}
WORD T __ldg(const T* p) { return *p; }
WORD T __ldcs(const T* p) { return *p; }
WORD T __ldcg(const T* p) { return *p; }
WORD void __stcs(T* p, Same<T> v) { *p = v; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(1ull * a * b >> 32); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(((1ull * high << 32) | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(((1ull * high << 32) | low) >> (shift & 31));
}

template <class To, class From>
To emulated_cast(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To out;
    std::memcpy(&out, &value, sizeof(To));
    return out;
}
inline int __float_as_int(float x) { return emulated_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return emulated_cast<unsigned>(x); }
inline float __int_as_float(int x) { return emulated_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return emulated_cast<float>(x); }
inline long long __double_as_longlong(double x) { return emulated_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return emulated_cast<double>(x); }

inline float __fdividef(float x, float y) { return x / y; }  // CUDA's is off by up to 2 units of the last place
inline long long __float2ll_rn(float x) { return std::llrint(x); }
inline int __double2int_rd(double x) { return static_cast<int>(std::floor(x)); }

// Mixed types, as CUDA has them.
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) { return b > a ? b : a; }

#define VECTOR_TYPES(T, base)                                                                               \
    struct alignas(sizeof(base) * 2) T##2 { base x, y; };                                                      \
    struct alignas(sizeof(base) * 4 > 16 ? 16 : sizeof(base) * 4) T##4 { base x, y, z, w; };                   \
    inline T##2 make_##T##2(base x, base y) { return {x, y}; }                                                 \
    inline T##4 make_##T##4(base x, base y, base z, base w) { return {x, y, z, w}; }
VECTOR_TYPES(uchar, unsigned char)
VECTOR_TYPES(short, short)
VECTOR_TYPES(ushort, unsigned short)
VECTOR_TYPES(int, int)
VECTOR_TYPES(uint, unsigned)
VECTOR_TYPES(float, float)
VECTOR_TYPES(longlong, long long)
VECTOR_TYPES(ulonglong, unsigned long long)
VECTOR_TYPES(double, double)
