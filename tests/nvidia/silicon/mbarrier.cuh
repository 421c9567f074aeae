// mbarrier.cuh - what small kernels call an mbarrier by: it lies in shared memory, and `at` gives its address there.
#pragma once
__device__ inline unsigned at(const void* p) { return __cvta_generic_to_shared(p); }
__device__ inline void init(void* bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(bar)), "r"(count) : "memory");
}
__device__ inline unsigned long long arrive(void* bar) {
    unsigned long long state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(bar)) : "memory");
    return state;
}
__device__ inline void arrive_expecting(void* bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(bar)), "r"(bytes) : "memory");
}
__device__ inline void complete(void* bar, int bytes) {
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(at(bar)), "r"(bytes) : "memory");
}
__device__ inline void wait(void* bar, int parity) {
    asm volatile("{ .reg .pred open; again: mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1; "
                 "@!open bra again; }"
                 :: "r"(at(bar)), "r"(parity) : "memory");
}
__device__ inline bool over(void* bar, unsigned long long state) {
    int result;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(result) : "r"(at(bar)), "l"(state) : "memory");
    return result;
}
__device__ inline int over_parity(void* bar, int parity) {
    int result;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(result) : "r"(at(bar)), "r"(parity) : "memory");
    return result;
}
