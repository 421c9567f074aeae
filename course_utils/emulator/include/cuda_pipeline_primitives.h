#pragma once
#include "cuda_awbarrier_primitives.h"

EMU_INLINE void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0, emu_site site = emu_here()) {
    emu::ptx::copy_async(to, from, (unsigned)bytes, (unsigned)(bytes - zeros), bytes == 16, site);
}
EMU_INLINE void __pipeline_commit() { emu_copy_commit(); }
EMU_INLINE void __pipeline_wait_prior(size_t in_flight) { emu::ptx::copy_wait((unsigned)in_flight); }
EMU_INLINE void __pipeline_arrive_on(__mbarrier_t* barrier, emu_site site = emu_here()) {
    emu_copies_arrive(emu_shared_offset(barrier), true, site);
}
