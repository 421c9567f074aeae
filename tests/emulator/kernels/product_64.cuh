// product_64.cuh - a product of 64 rows by 64 columns by a warpgroup, of factors in panels of 64 fp16 numbers.
#pragma once
#include "../../../course_utils/nvidia/silicon/mbarrier.cuh"
#include "warpgroup.cuh"

// D [64, 64] = A Bᵀ, or += with `add`: A and B [64, 16] in shared memory.
__device__ inline void multiply_transposed(float (&d)[32], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; " WGMMA(64) "{" D_32 "}, %32, %33, p, 1, 1, 0, 0; }"
                 : REGISTERS_32(d) : "l"(a), "l"(b), "r"(add));
}
__device__ inline unsigned long long factor(const void* tile, int k) {
    return 64ull << 32 | 1ull << 62 | (at(tile) + 32 * k) / 16;
}
