// Where accesses come in, for those of the runtime's own that no compiler reports: cp.async, cp.async.bulk.
#pragma once
#include "tracer.h"

void emu_record_access(uintptr_t address, size_t bytes, Access access, uintptr_t counter);   // by the current thread
// Memcheck alone, of what `by` does to global memory. False: it is out of bounds, and that is a finding.
bool emu_check_bounds(uintptr_t address, size_t bytes, bool is_write, emu_by by, uint32_t place);
void emu_record_target(Fiber* f, uintptr_t to);            // of the copy_read that it has just recorded
void emu_find_misaligned(emu_site site, unsigned bytes);   // a cp.async of so many bytes
