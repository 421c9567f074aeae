// Racecheck of global memory in a kernel that calls a fence, as the tracer calls it.
#pragma once
#include "tracer.h"

Fences* emu_new_fences(Tracer& t);
void emu_start_fences(Fences& f);             // a block starts
void emu_fences_access(Fences& f, uintptr_t address, unsigned log_bytes, Access access, unsigned space, uint32_t place);
void emu_fences_barrier(Fences& f);           // all of the block's threads have come to __syncthreads()
void emu_fences_warp_sync(Fences& f, uint32_t lanes, unsigned warp);
