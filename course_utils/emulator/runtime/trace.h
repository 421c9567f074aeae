// Where accesses come in, for those of the runtime's own that no compiler reports: cp.async.
#pragma once
#include "tracer.h"

void emu_record_access(uintptr_t address, size_t bytes, Access access, uintptr_t counter);   // by the current thread
void emu_record_target(Fiber* f, uintptr_t to);            // of the copy_read that it has just recorded
void emu_find_misaligned(emu_site site, unsigned bytes);   // a cp.async of so many bytes
