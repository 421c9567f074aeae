// async_copy.cuh — cp.async: copies from global to shared memory that run while the thread goes on.
//
// A thread groups the copies it started by commit_copies(); wait_for_copies<N>() waits until at
// most its N newest groups are still on their way. Others see the data after a barrier.
// source  PTX ISA, "cp.async"
#pragma once

// 16 bytes; zeros instead where `inside` is false, and then nothing is read.
__device__ inline void copy_16_bytes_async(void* shared, const void* global, bool inside) {
    const unsigned address = __cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(global), "r"(inside ? 16 : 0) : "memory");
}

// 4 bytes; zeros instead where `inside` is false.
__device__ inline void copy_4_bytes_async(void* shared, const void* global, bool inside) {
    const unsigned address = __cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(address), "l"(global), "r"(inside ? 4 : 0) : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
