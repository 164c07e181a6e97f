// Stacks for fibers and the switch between them: a dozen instructions on x86-64, ucontext (30 times slower) elsewhere.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "cuda_emulation.hpp"

#ifndef __x86_64__
#undef EMULATION_BY_UCONTEXT
#define EMULATION_BY_UCONTEXT 1
#endif

#if EMULATION_BY_UCONTEXT
#include <ucontext.h>
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulation {

constexpr size_t STACK_BYTES = 1 << 17, GUARD_BYTES = 1 << 12;
constexpr size_t ALL_STACKS_BYTES = MAX_FIBERS * (STACK_BYTES + GUARD_BYTES);
inline unsigned char* stacks;
inline void* scheduler_stack_pointer;
inline const void* scheduler_stack;  // as the address sanitizer knows it
inline size_t scheduler_stack_bytes;
inline void* scheduler_frames;
inline void (*fiber_entry)();

UNCHECKED inline unsigned char* stack_of(unsigned rank) {
    return stacks + rank * (STACK_BYTES + GUARD_BYTES) + GUARD_BYTES;
}

// Lets fibers run from here on. The address sanitizer takes all their stacks for this thread's: to tell it of each
// switch took a quarter of the time of launches.
UNCHECKED inline void enter_stacks() {
    if (!stacks) {
        constexpr int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS;
        void* const memory = mmap(nullptr, ALL_STACKS_BYTES, access, kind, -1, 0);
        if (memory == MAP_FAILED) __builtin_trap();
        stacks = static_cast<unsigned char*>(memory);
        for (unsigned i = 0; i < MAX_FIBERS; ++i) mprotect(stack_of(i) - GUARD_BYTES, GUARD_BYTES, PROT_NONE);
    }
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&scheduler_frames, stacks, ALL_STACKS_BYTES);
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

UNCHECKED inline void leave_stacks() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(nullptr, scheduler_stack, scheduler_stack_bytes);
    __sanitizer_finish_switch_fiber(scheduler_frames, nullptr, nullptr);
#endif
}

UNCHECKED inline void start_fiber() { fiber_entry(); }

#if EMULATION_BY_UCONTEXT
inline ucontext_t contexts[MAX_FIBERS], scheduler_context;
UNCHECKED inline void to_fiber(void*, unsigned rank) { swapcontext(&scheduler_context, &contexts[rank]); }
UNCHECKED inline void to_scheduler(void**, unsigned rank) { swapcontext(&contexts[rank], &scheduler_context); }
#else
// Saves the stack, and goes on where `to` was saved. Inlined, and without a `ret`: processors foresee where a `ret` goes
// by the calls before it, which are another fiber's here, and each that they foresee wrong takes as long as the rest.
// Code that inlines it must be compiled with -mno-red-zone.
UNCHECKED __attribute__((always_inline)) inline void switch_stacks(void** save, void* to) {
    asm volatile(R"(
        push %%rbp
        push %%rbx
        lea 1f(%%rip), %%rax
        push %%rax
        mov %%rsp, (%0)
        mov %1, %%rsp
        pop %%rax
        jmp *%%rax
    1:  pop %%rbx
        pop %%rbp
    )" : "+D"(save), "+S"(to) : : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory",
       "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
       "xmm13", "xmm14", "xmm15");
}

UNCHECKED __attribute__((always_inline)) inline void to_fiber(void* stack_pointer, unsigned) {
    switch_stacks(&scheduler_stack_pointer, stack_pointer);
}
UNCHECKED __attribute__((always_inline)) inline void to_scheduler(void** save, unsigned) {
    switch_stacks(save, scheduler_stack_pointer);
}
#endif

// A stack on which `entry` begins when first switched to.
UNCHECKED inline void* new_stack(unsigned rank, void (*entry)()) {
    fiber_entry = entry;
#if EMULATION_BY_UCONTEXT
    getcontext(&contexts[rank]);
    contexts[rank].uc_stack.ss_sp = stack_of(rank);
    contexts[rank].uc_stack.ss_size = STACK_BYTES;
    makecontext(&contexts[rank], start_fiber, 0);
    return nullptr;
#else
    void** top = reinterpret_cast<void**>(stack_of(rank) + STACK_BYTES);
    *--top = nullptr;  // where a return of `start_fiber` would go, and the alignment a call leaves
    *--top = reinterpret_cast<void*>(start_fiber);
    return top;
#endif
}

// After fibers were left in the middle: what the address sanitizer knows of their frames is forgotten with them.
UNCHECKED inline void forget_stacks() {
    munmap(stacks, ALL_STACKS_BYTES);
    stacks = nullptr;
}

}  // namespace emulation
