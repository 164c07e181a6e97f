// The words of every kernel: integer types, functions for host and device, dynamic shared memory.
//
// Kernels include nothing but headers of this folder, so that NVRTC needs no toolkit headers and the emulation of
// tests/kernels none of CUDA's. `-D` gives what shapes the code; a file's `// variants:` lines say which values.
#pragma once

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xFFFFFFFFu;

#ifdef CUDA_EMULATION
#define SHARED_BY_HOST inline
#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(emulation::dynamic_shared())
#else
// Arithmetic that host and device share, always inlined.
#define SHARED_BY_HOST __host__ __device__ __forceinline__
// Declares `name`, the block's dynamic shared memory; several declarations in a kernel share the same bytes.
#define DYNAMIC_SHARED(type, name)                                        \
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[]; \
    type* const name = reinterpret_cast<type*>(dynamic_shared_bytes)
#endif
