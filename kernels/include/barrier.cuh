// barrier.cuh — barriers for a part of a block, whose warps have different work.
//
// An mbarrier lies in shared memory. A phase of it ends when as many threads have arrived as it was
// initialised for, and as many bytes have come as they expect. Then the next phase begins; a thread
// waits for the end of the newest phase of a parity, which is 0 for the first, then 1, then 0. Of a
// fresh mbarrier parity 1 counts as over.
//
// A named barrier is __syncthreads() of a number of threads: barrier `id`, 1 to 15. With
// arrive_threads a thread counts there and goes on.
// source  PTX ISA, "mbarrier", "bar"
#pragma once

typedef unsigned long long Mbarrier;

__device__ inline void initialize(Mbarrier* barrier, int count) {
    const unsigned address = __cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(address), "r"(count) : "memory");
}
// What a thread has initialised, the copy engine sees; other threads do after __syncthreads().
__device__ inline void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(Mbarrier* barrier) {
    const unsigned address = __cvta_generic_to_shared(barrier);
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }"
                 :: "r"(address) : "memory");
}
// Arrives, and says that so many bytes are to come in this phase.
__device__ inline void arrive_expecting(Mbarrier* barrier, int bytes) {
    const unsigned address = __cvta_generic_to_shared(barrier);
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }"
                 :: "r"(address), "r"(bytes) : "memory");
}
__device__ inline void wait_for(Mbarrier* barrier, int parity) {
    const unsigned address = __cvta_generic_to_shared(barrier);
    asm volatile(
        "{ .reg .pred open; "
        "again: mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1; "
        "@!open bra again; }"
        :: "r"(address), "r"(parity) : "memory");
}

__device__ inline void sync_threads(int id, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}
__device__ inline void arrive_threads(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}
// sync_threads; whether any of them brings `mine`.
__device__ inline bool sync_threads_or(int id, int threads, bool mine) {
    int any;
    asm volatile(
        "{ .reg .pred p, q; setp.ne.b32 p, %3, 0; bar.red.or.pred q, %1, %2, p; "
        "selp.b32 %0, 1, 0, q; }"
        : "=r"(any) : "r"(id), "r"(threads), "r"((int)mine) : "memory");
    return any;
}
