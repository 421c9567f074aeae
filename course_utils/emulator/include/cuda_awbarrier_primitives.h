// An mbarrier in shared memory, by functions.
#pragma once
#include <cuda/std/cstdint>

typedef unsigned long long __mbarrier_t, __mbarrier_token_t;

EMU_INLINE unsigned __mbarrier_maximum_count() { return (1u << 20) - 1; }
EMU_INLINE void __mbarrier_init(__mbarrier_t* barrier, unsigned expected, emu_site site = emu_here()) {
    emu_mbarrier_init(emu_shared_offset(barrier), expected, site);
}
EMU_INLINE void __mbarrier_inval(__mbarrier_t* barrier, emu_site site = emu_here()) {
    emu_mbarrier_invalidate(emu_shared_offset(barrier), site);
}
EMU_INLINE __mbarrier_token_t __mbarrier_arrive(__mbarrier_t* barrier, emu_site site = emu_here()) {
    return emu_mbarrier_arrive(emu_shared_offset(barrier), 1, 0, true, true, site);
}
EMU_INLINE __mbarrier_token_t __mbarrier_arrive_and_drop(__mbarrier_t* barrier, emu_site site = emu_here()) {
    return emu_mbarrier_drop(emu_shared_offset(barrier), 1, true, site);
}
EMU_INLINE unsigned __mbarrier_token_pending_count(__mbarrier_token_t token) { return emu_mbarrier_pending(token); }
EMU_INLINE bool __mbarrier_test_wait_parity(__mbarrier_t* barrier, bool parity, emu_site site = emu_here()) {
    return emu_mbarrier_test(emu_shared_offset(barrier), parity, false, site);
}
EMU_INLINE bool __mbarrier_try_wait_parity(__mbarrier_t* barrier, bool parity, unsigned, emu_site site = emu_here()) {
    return emu_mbarrier_test(emu_shared_offset(barrier), parity, true, site);
}
EMU_INLINE bool __mbarrier_test_wait(__mbarrier_t* barrier, __mbarrier_token_t token, emu_site site = emu_here()) {
    return emu_mbarrier_test(emu_shared_offset(barrier), token >> 63, false, site);
}
EMU_INLINE bool __mbarrier_try_wait(__mbarrier_t* barrier, __mbarrier_token_t token, unsigned, emu_site site = emu_here()) {
    return emu_mbarrier_test(emu_shared_offset(barrier), token >> 63, true, site);
}
