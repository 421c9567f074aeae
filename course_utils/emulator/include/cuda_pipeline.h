#pragma once
#include "cuda_awbarrier.h"
#include "cuda_pipeline_primitives.h"

namespace nvcuda { namespace experimental {

class pipeline {
    size_t batches = 0;

public:
    pipeline() = default;
    pipeline(const pipeline&) = delete;
    EMU_INLINE size_t commit() { return __pipeline_commit(), batches++; }
    EMU_INLINE void commit_and_wait() { commit(), wait_prior<0>(); }
    EMU_INLINE void wait(size_t batch) { __pipeline_wait_prior(batches > batch ? batches - batch : 0); }
    template <unsigned in_flight> EMU_INLINE void wait_prior() { __pipeline_wait_prior(in_flight); }
    EMU_INLINE void arrive_on(awbarrier& barrier, emu_site site = emu_here()) { __pipeline_arrive_on(&barrier.word, site); }
};
template <size_t count, class T> EMU_INLINE auto segment(T* from) -> T(*)[count] { return (T(*)[count])from; }
template <class T> EMU_INLINE void memcpy_async(T& to, const T& from, pipeline&, emu_site site = emu_here()) {
    if constexpr (sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16) __pipeline_memcpy_async(&to, &from, sizeof(T), 0, site);
    else to = from;
}
template <class T, size_t to_count, size_t from_count>
EMU_INLINE void memcpy_async(T (*to)[to_count], const T (*from)[from_count], pipeline&, emu_site site = emu_here()) {
    __pipeline_memcpy_async(to, from, sizeof(*to), sizeof(*to) - sizeof(*from), site);
}

} }  // namespace nvcuda::experimental
