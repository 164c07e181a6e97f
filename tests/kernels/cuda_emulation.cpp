// The emulation itself (`cuda_emulation.hpp`): how the threads of a block take turns and wait for each other.
//
// Compiled once and linked to every kernel, whose compilation it would double. It is optimized even under sanitizers,
// where kernels are not: they are to check the kernels, not the emulation.
#include "cuda_emulation.hpp"

#include <string>
#include <utility>
#include <vector>

#include "fiber_switch.hpp"

extern "C" __attribute__((weak)) unsigned char __start_emulated_shared[], __stop_emulated_shared[];

namespace emulation {

namespace {

std::string error;
void (*kernel_body)(void**);
void** kernel_arguments;

std::string place_of(const Fiber& f) { return std::string(f.file) + ":" + std::to_string(f.line); }

// Names are compared by address first: most are of one place, and the address sanitizer takes long over strings.
UNCHECKED bool is_at(const Fiber& f, const char* file, int line) {
    return f.line == line && (f.file == file || !std::strcmp(f.file, file));
}

// What the current thread shows to those it waits for, and where.
UNCHECKED void show(State state, unsigned mask, unsigned long long value, const char* file, int line) {
    current->state = state, current->mask = mask, current->value = value;
    current->file = file, current->line = line;
}

}  // namespace

UNCHECKED __attribute__((always_inline)) inline void wait_here() {
    to_scheduler(&current->stack_pointer, current->rank);
}

UNCHECKED void wait() { wait_here(); }

void fail(const char* what) {
    error = std::string(what) + " (block " + std::to_string(block_index.x) + ", thread " +
            std::to_string(current->rank) + ")";
    for (;;) wait();
}

UNCHECKED void barrier(unsigned long long value, const char* file, int line) {
    show(State::AT_BARRIER, 0, value, file, line);
    wait_here();
}

// All lanes of `mask` show a value and see everybody's; what they do to memory is in order only where it `is_fence`.
UNCHECKED const unsigned long long* in_warp(unsigned mask, unsigned long long value, const char* file, int line,
                                            bool is_fence) {
    const unsigned lane = current->rank % 32;
    Fiber* const warp = current - lane;
    show(State::IN_WARP, mask, value, file, line);
    if (!(mask >> lane & 1)) fail(("a lane is not in its own mask at " + place_of(*current)).c_str());
    if (warp->rank + 31 - __builtin_clz(mask) >= n_fibers)
        fail(("the mask names lanes that the block lacks at " + place_of(*current)).c_str());
    const bool of_all = mask == ~0u;
    const unsigned long long* const found = (of_all ? seen_by_all[warp->rank / 32] : seen[current->rank]).values;
    unsigned& waiting = in_warps[warp->rank / 32];
    waiting |= 1u << lane;
    bool are_here = (waiting & mask) == mask;
    for (unsigned rest = mask; are_here && rest; rest &= rest - 1) {
        const Fiber& other = warp[__builtin_ctz(rest)];
        are_here = other.mask == mask && is_at(other, file, line);
    }
    if (!are_here) {
        wait_here();  // the last to arrive will let this one go
        return found;
    }
    waiting &= ~mask;
    Lanes shown{};
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        Fiber& other = warp[__builtin_ctz(rest)];
        shown.values[__builtin_ctz(rest)] = other.value;
        other.state = State::READY;
    }
    if (of_all) seen_by_all[warp->rank / 32] = shown;
    for (unsigned rest = of_all ? 0 : mask; rest; rest &= rest - 1) seen[warp->rank + __builtin_ctz(rest)] = shown;
    if (is_fence) races::lanes_have_met(warp->rank, mask);
    return found;
}

namespace {

UNCHECKED void fiber_main() {
    kernel_body(kernel_arguments);
    current->state = State::DONE;
    wait();
}

UNCHECKED bool waits_for(const Fiber& f, const Fiber& other) {
    return f.state == State::AT_BARRIER || (f.rank / 32 == other.rank / 32 && (f.mask >> other.rank % 32 & 1));
}

UNCHECKED bool meets(const Fiber& f, const Fiber& other) {
    return f.state == other.state && f.mask == other.mask && is_at(f, other.file, other.line);
}

// Nobody can go on: all threads wait at one barrier, which lets them go, or some wait in vain.
UNCHECKED void release_barrier() {
    const Fiber* first = fibers;
    while (first->state == State::DONE) ++first;
    for (unsigned i = 0; i < n_fibers; ++i) {
        const Fiber& other = fibers[i];
        if (!waits_for(*first, other) || meets(*first, other)) continue;
        error = "divergent: thread " + std::to_string(first->rank) + " waits at " + place_of(*first) + ", thread " +
                std::to_string(i) + (other.state == State::DONE ? " has ended" : " waits at " + place_of(other)) +
                " (block " + std::to_string(block_index.x) + ")";
        return;
    }
    for (unsigned i = 0; i < n_fibers; ++i) fibers[i].state = State::READY;
    races::block_has_met();
}

UNCHECKED uint3 index_in(uint3 size, unsigned i) {
    return {i % size.x, i / size.x % size.y, i / size.x / size.y};
}

UNCHECKED void run_block() {
    static unsigned order[MAX_FIBERS];
    std::memset(in_warps, 0, sizeof in_warps);
    for (unsigned i = 0; i < n_fibers; ++i) {
        fibers[i] = {State::READY, i, index_in(block_size, i), new_stack(i, fiber_main), "", 0, 0, 0};
        order[i] = i;
    }
    for (bool is_done = false; !is_done && error.empty();) {
        if (randomness)
            for (unsigned n = n_fibers; n > 1; --n) {
                const unsigned drawn = random_below(n), last = order[n - 1];
                order[n - 1] = order[drawn], order[drawn] = last;
            }
        bool ran = false;
        is_done = true;
        for (unsigned k = 0; k < n_fibers; ++k) {
            const unsigned i = order[k];
            if (fibers[i].state == State::READY) {
                current = &fibers[i], ran = true;
                races::go_on_as(i);
                to_fiber(fibers[i].stack_pointer, i);
                if (!error.empty()) return;
            }
            is_done = is_done && fibers[i].state == State::DONE;
        }
        if (!ran && !is_done) release_barrier();
    }
}

UNCHECKED void fill_shared_memory(unsigned long long bytes) {
    for (volatile unsigned char* p = __start_emulated_shared; p != __stop_emulated_shared; ++p) *p = 0xA5;
    static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= 16);
    delete[] dynamic_memory;
    dynamic_memory = new unsigned char[bytes];  // exactly: the sanitizer then knows where it ends
    std::memset(dynamic_memory, 0xA5, bytes);
}

}  // namespace

UNCHECKED const char* run(const Launch& launch, const Kernel& kernel, void** arguments) {
    grid_size = {launch.grid[0], launch.grid[1], launch.grid[2]};
    block_size = {launch.block[0], launch.block[1], launch.block[2]};
    n_fibers = block_size.x * block_size.y * block_size.z;
    kernel_body = kernel.body, kernel_arguments = arguments;
    error.clear();
    randomness = launch.seed;
    races::begin_launch();
    kernel.add_arrays(launch, arguments);
    const unsigned n_blocks = grid_size.x * grid_size.y * grid_size.z;
    std::vector<unsigned> order(n_blocks);
    for (unsigned i = 0; i < n_blocks; ++i) order[i] = i;
    if (randomness)
        for (unsigned i = n_blocks; i > 1; --i) std::swap(order[i - 1], order[random_below(i)]);
    enter_stacks();
    for (const unsigned i : order) {
        block_index = index_in(grid_size, i);
        fill_shared_memory(launch.shared_bytes);
        races::begin_block(i, __start_emulated_shared, __stop_emulated_shared - __start_emulated_shared,
                           dynamic_memory, launch.shared_bytes);
        run_block();
        if (!error.empty()) break;
    }
    leave_stacks();
    if (!error.empty()) forget_stacks();
    races::end_launch([](const char* findings) { if (error.empty()) error = findings; });
    return error.empty() ? nullptr : error.c_str();
}

}  // namespace emulation
