// The memory that a kernel takes by malloc() or new.
#pragma once
#include "abi.h"

// Whether the kernel has these bytes from malloc(): the sanitizer's question.
bool emu_in_heap(uintptr_t address, size_t bytes);
