// CUDA for g++: one block at a time, every thread a fiber that runs until it must wait for others.
//
// Reported, not survived: threads that miss a barrier or meet at different ones, lanes that a warp operation names in
// vain. Fibers run in the order of a seed (0: by index), and with another seed some atomics let others go first, so a
// missing barrier gives wrong results. Shared memory starts as garbage. Compiled with -fsanitize=address,undefined,
// accesses out of bounds of any memory, and sums that overflow a signed integer, end the process with the line.
#pragma once
#define CUDA_EMULATION 1

#include <cstring>
#include <type_traits>
#include <utility>

#include "race_detector.hpp"

struct uint3 { unsigned x, y, z; };
using dim3 = uint3;

namespace emulation {

constexpr unsigned MAX_FIBERS = 1024;

enum class State { READY, AT_BARRIER, IN_WARP, DONE };

struct Fiber {
    State state;
    unsigned rank;
    uint3 index;
    void* stack_pointer;
    const char* file;  // where it waits
    int line;
    unsigned mask;                 // the lanes it waits for
    unsigned long long value;  // what it shows to others: its warp, or the whole block
};

struct Lanes {
    unsigned long long values[32];
};

struct Launch {
    unsigned grid[3], block[3];
    unsigned long long shared_bytes, seed;
    const unsigned long long* bytes;  // of the array that each argument points to
};

struct Kernel {
    void (*body)(void** arguments);
    void (*add_arrays)(const Launch& launch, void** arguments);  // those that the race detector is to look at
};

// One of each for all kernels of a process, of which one runs at a time.
inline Fiber fibers[MAX_FIBERS];
inline Lanes seen[MAX_FIBERS];  // what the lanes of a fiber's warp showed, where not all of them met
inline Lanes seen_by_all[MAX_FIBERS / 32];  // what all lanes of a warp showed, until all of them meet again
inline unsigned n_fibers;
inline unsigned in_warps[MAX_FIBERS / 32];  // of each warp the lanes that wait for others of it
inline Fiber* current;
inline uint3 block_index, block_size, grid_size;
inline unsigned long long randomness;
inline unsigned char* dynamic_memory;

inline void* dynamic_shared() { return dynamic_memory; }

UNCHECKED inline unsigned random_below(unsigned n) {
    randomness ^= randomness << 13, randomness ^= randomness >> 7, randomness ^= randomness << 17;
    return static_cast<unsigned>((randomness >> 32) * n >> 32);
}

// In `cuda_emulation.cpp`.
void wait();
[[noreturn]] void fail(const char* what);
void barrier(unsigned long long value, const char* file, int line);
const unsigned long long* in_warp(unsigned mask, unsigned long long value, const char* file, int line,
                                  bool is_fence = false);
const char* run(const Launch& launch, const Kernel& kernel, void** arguments);

UNCHECKED inline void let_others_go_first() { if (randomness && random_below(32) == 0) wait(); }

// Arrays that a kernel may not write to are not looked at: what lies in them is the same whenever it is read.
template <class P>
UNCHECKED void add_array(const void* argument, size_t bytes) {
    if constexpr (std::is_pointer_v<P>) {
        using Element = std::remove_pointer_t<P>;
        if (!std::is_const_v<Element>) races::add_array(*static_cast<void* const*>(argument), bytes, alignof(Element));
    }
}

template <class... P, size_t... I>
UNCHECKED void add_arrays(void (*)(P...), const Launch& launch, void** arguments, std::index_sequence<I...>) {
    (add_array<P>(arguments[I], launch.bytes[I]), ...);
}

template <class... P, size_t... I>
UNCHECKED void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
}

template <class... P>
constexpr std::index_sequence_for<P...> places_of(void (*)(P...)) { return {}; }

}  // namespace emulation

#define EMULATED_KERNEL(name)                                                                            \
    extern "C" const char* emulate_##name(const emulation::Launch* launch, void** arguments) {           \
        constexpr auto places = emulation::places_of(name);                                              \
        return emulation::run(*launch, {                                                                 \
            [](void** given) { emulation::call(name, given, decltype(places)()); },                      \
            [](const emulation::Launch& of, void** given) {                                              \
                emulation::add_arrays(name, of, given, decltype(places)());                              \
            },                                                                                           \
        }, arguments);                                                                                   \
    }

#include "cuda_words.hpp"
