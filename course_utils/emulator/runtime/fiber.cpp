#include "fiber.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)

asm(R"(
.text
.globl emu_switch
.type emu_switch,@function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch,.-emu_switch
)");

void* emu_new_stack(char* top, void (*entry)()) {
    void** sp = (void**)((uintptr_t)top & ~(uintptr_t)15);
    *--sp = nullptr;          // the frame that `entry` would return to; keeps the stack aligned as after a call
    *--sp = (void*)entry;
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    return sp;
}

#elif defined(__aarch64__)

asm(R"(
.text
.globl emu_switch
.type emu_switch,%function
emu_switch:
    hint 34                  // bti c: where branches are protected, a call by address lands nowhere else
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emu_switch,.-emu_switch
)");

void* emu_new_stack(char* top, void (*entry)()) {
    char* sp = (char*)((uintptr_t)top & ~(uintptr_t)15) - 160;
    memset(sp, 0, 160);
    *(void**)(sp + 88) = (void*)entry;   // x30, the link register
    return sp;
}

#else
#error "the emulator runs on x86-64 and aarch64"
#endif
