#pragma once
#include "cuda_awbarrier_primitives.h"

namespace nvcuda { namespace experimental {

class awbarrier {
    __mbarrier_t word;
    friend class pipeline;

public:
    class arrival_token {
        __mbarrier_token_t state;
        friend class awbarrier;

    public:
        arrival_token() = default;
        EMU_INLINE arrival_token(__mbarrier_token_t state) : state(state) {}
        EMU_INLINE unsigned pending_count() const { return __mbarrier_token_pending_count(state); }
    };
    awbarrier() = default;
    awbarrier(const awbarrier&) = delete;
    friend EMU_INLINE void init(awbarrier* b, unsigned expected, emu_site site = emu_here()) { __mbarrier_init(&b->word, expected, site); }
    friend EMU_INLINE void inval(awbarrier* b, emu_site site = emu_here()) { __mbarrier_inval(&b->word, site); }
    EMU_INLINE arrival_token arrive(emu_site site = emu_here()) { return __mbarrier_arrive(&word, site); }
    EMU_INLINE arrival_token arrive_and_drop(emu_site site = emu_here()) { return __mbarrier_arrive_and_drop(&word, site); }
    EMU_INLINE bool timed_wait(arrival_token token, unsigned, emu_site site = emu_here()) {
        return __mbarrier_test_wait(&word, token.state, site);
    }
    EMU_INLINE bool timed_wait_parity(bool parity, unsigned, emu_site site = emu_here()) {
        return __mbarrier_test_wait_parity(&word, parity, site);
    }
    EMU_INLINE void wait(arrival_token token, emu_site site = emu_here()) { __mbarrier_try_wait(&word, token.state, 0, site); }
    EMU_INLINE void arrive_and_wait(emu_site site = emu_here()) { wait(arrive(site), site); }
    static constexpr EMU_INLINE unsigned max() { return (1u << 20) - 1; }
};

} }  // namespace nvcuda::experimental
