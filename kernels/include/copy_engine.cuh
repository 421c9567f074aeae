// copy_engine.cuh — Hopper's copy engine (TMA): one thread asks, and a whole tile is copied.
//
// A tensor map, made on the host, says where a tensor [heads, L, D] of 16-bit numbers lies and how
// large a box is: all D columns of some rows of one head. In shared memory a box is a tile as
// warpgroup.cuh has it, panels of 64 columns in 128-byte swizzle; so the map's dimensions are 64
// columns, L rows, D / 64 panels, the heads. Rows from L on come as zeros, and are not written.
// source  PTX ISA, "cp.async.bulk.tensor"; CUDA driver API, "Tensor Map Object Management"
#pragma once
#include "barrier.cuh"

struct alignas(64) TensorMap { unsigned long long words[16]; };

// Starts to copy the box that begins at `row` of a head. Its bytes count at the mbarrier, of which a
// thread must expect them. panel: the first one; not 0 where a row of the map holds more than a tile's
// columns.
__device__ inline void load_box(void* tile, const TensorMap& map, int row, int head,
                                Mbarrier* barrier, int panel = 0) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];"
        :: "r"((unsigned)__cvta_generic_to_shared(tile)), "l"(&map), "r"(0), "r"(row), "r"(panel),
           "r"(head), "r"((unsigned)__cvta_generic_to_shared(barrier)) : "memory");
}

// The other way. What threads have written to the tile must be published before.
__device__ inline void store_box(const TensorMap& map, int row, int head, const void* tile,
                                 int panel = 0) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
        :: "l"(&map), "r"(0), "r"(row), "r"(panel), "r"(head),
           "r"((unsigned)__cvta_generic_to_shared(tile)) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Starts to copy bytes that lie in a row, a multiple of 16, as load_box does.
__device__ inline void load_bytes(void* to, const void* from, int bytes, Mbarrier* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes),
           "r"((unsigned)__cvta_generic_to_shared(barrier)) : "memory");
}

// Starts to add N numbers to sums in global memory, to which other blocks add as well: in an order of
// chance. As with store_box, what threads have written must be published before.
template <int N>
__device__ inline void add_floats(float* sums, const float (&numbers)[N]) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
        :: "l"(sums), "r"((unsigned)__cvta_generic_to_shared(numbers)), "r"(4 * N) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until what this thread stores or adds has been read: its place may be written again.
__device__ inline void wait_for_stores() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Until it is in global memory.
__device__ inline void finish_stores() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
