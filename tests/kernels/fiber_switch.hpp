// Stacks for fibers and the switch between them: a dozen instructions on x86-64, ucontext (30 times slower) elsewhere.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "cuda_emulation.hpp"

#ifndef __x86_64__
#undef EMULATION_BY_UCONTEXT
#define EMULATION_BY_UCONTEXT 1
#endif

#if !EMULATION_BY_UCONTEXT
// Saves the caller's registers and stack, and goes on where `to` was saved.
extern "C" __attribute__((visibility("hidden"))) void emulation_switch(void** save, void* to);
asm(R"(
    .text
    .globl emulation_switch
    .hidden emulation_switch
    .type emulation_switch, @function
emulation_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size emulation_switch, .-emulation_switch
)");
#else
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
UNCHECKED inline void to_fiber(void* stack_pointer, unsigned) {
    emulation_switch(&scheduler_stack_pointer, stack_pointer);
}
UNCHECKED inline void to_scheduler(void** save, unsigned) { emulation_switch(save, scheduler_stack_pointer); }
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
    return top - 6;  // the registers that the switch restores, whatever they hold
#endif
}

// After fibers were left in the middle: what the address sanitizer knows of their frames is forgotten with them.
UNCHECKED inline void forget_stacks() {
    munmap(stacks, ALL_STACKS_BYTES);
    stacks = nullptr;
}

}  // namespace emulation
