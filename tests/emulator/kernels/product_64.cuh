// product_64.cuh - what products of 64 rows by 64 columns by a warpgroup need, of factors in panels of 64 fp16 numbers.
#pragma once
#include "../../nvidia/silicon/mbarrier.cuh"
#include "warpgroup.cuh"

__device__ inline unsigned long long factor(const void* tile, int k) {
    return 64ull << 32 | 1ull << 62 | (at(tile) + 32 * k) / 16;
}
