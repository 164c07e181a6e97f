// What the emulation tells the race detector (`race_detector.cpp`), and nothing where kernels are compiled without it.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__) || defined(RACE_DETECTOR)
#define TOLD(...) void __VA_ARGS__;
#else
#define TOLD(...) inline void __VA_ARGS__ {}
#endif

// Of the emulation's own functions: checks of what they access, which is no kernel's memory, would only take time.
#define UNCHECKED __attribute__((no_sanitize("thread", "address", "undefined")))

namespace races {

// A launch begins; then its arrays that the kernel may write to, of elements that are so aligned.
TOLD(begin_launch())
TOLD(add_array(const void* begin, size_t bytes, size_t alignment))

// A block begins, with its shared memory.
TOLD(begin_block(unsigned block, const void* fixed, size_t fixed_bytes, const void* dynamic, size_t dynamic_bytes))

// Accesses are those of the block's thread `rank` from here on.
TOLD(go_on_as(unsigned rank))

// All threads of the block have met in __syncthreads, or lanes of the warp of thread `first` in __syncwarp.
TOLD(block_has_met())
TOLD(lanes_have_met(unsigned first, unsigned mask))

// Accesses between the two are one atomic operation.
TOLD(begin_atomic())
TOLD(end_atomic())

// The launch has ended; `tell` is called with what was found, if anything was: a line each, as `races.py` reads them.
TOLD(end_launch(void (*tell)(const char* findings)))

}  // namespace races
