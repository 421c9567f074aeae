// A fiber is a stack and a saved stack pointer. Switching costs a dozen instructions, which is what makes a CUDA thread cheap.
#pragma once

// Saves the callee-saved registers on the current stack, stores its pointer in *save, and continues on stack `load`.
extern "C" void emu_switch(void** save, void* load);

// A fresh stack that ends below `top` and enters `entry` at the first switch to it; returns its saved stack pointer.
void* emu_new_stack(char* top, void (*entry)());
