// tile_products.cuh — what a warp multiplies: tiles in shared memory by tiles or registers.
//
// ldmatrix_x4 brings 16 × 16 numbers of a swizzled tile. `by_rows` and `by_columns` are the
// addresses that a lane gives for those in the tile's corner; `at` moves either of them on.
//                ldmatrix                               ldmatrix_trans
//   by_rows      A: a tile's row is a row of A          two B: a tile's row is a row of B
//   by_columns   two B: a tile's row is a column of B   Aᵀ: a tile's row is a column of A
// Include after D and THREADS are defined.
#pragma once
#include "swizzled_tile.cuh"

__device__ inline unsigned by_rows(const scalar_t* tile) {
    const int lane = threadIdx.x % 32;
    return row_address(tile, lane % 16) ^ lane / 16 * 16;
}

__device__ inline unsigned by_columns(const scalar_t* tile) {
    const int lane = threadIdx.x % 32;
    return row_address(tile, lane % 8 + lane / 16 * 8) ^ lane / 8 % 2 * 16;
}

// `row` is a multiple of 8, `column` of 16: the lane's own chunk, of two, is in the corner already.
// Of an `at` of an `at`, the columns must not share bits.
__device__ inline unsigned at(unsigned corner, int row, int column) {
    return (corner ^ 2 * column) + 2 * D * row;
}

// sum += a Bᵀ; a in registers, [16 M, 16], B by columns, [8 N, 16]. Each B fragment that comes from
// shared memory serves M products: the more rows a warp has, the less it reads.
template <int M, int N>
__device__ inline void multiply_transposed(float (&sum)[M][N][4], const unsigned (&a)[M][4],
                                           unsigned B) {
    #pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned b[4];
        ldmatrix_x4(b, at(B, 8 * n, 0));
        for (int m = 0; m < M; m++) {
            mma_16x8x16(sum[m][n], a[m], b[0], b[1]);
            mma_16x8x16(sum[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

// sum += a B; a in registers, [16 M, 16], B by rows, [16, 8 N].
template <int M, int N>
__device__ inline void multiply(float (&sum)[M][N][4], const unsigned (&a)[M][4], unsigned B) {
    #pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned b[4];
        ldmatrix_x4_trans(b, at(B, 0, 8 * n));
        for (int m = 0; m < M; m++) {
            mma_16x8x16(sum[m][n], a[m], b[0], b[1]);
            mma_16x8x16(sum[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

// D of two neighbouring products, [16, 16], as A of the next product.
__device__ inline void pack_a(unsigned (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack(left[0], left[1]), a[1] = pack(left[2], left[3]);
    a[2] = pack(right[0], right[1]), a[3] = pack(right[2], right[3]);
}

// Adds two neighbours to sums to which other blocks add as well.
__device__ inline void add_pair(float* address, float first, float second) {
#if __CUDA_ARCH__ >= 900   // one instruction for both
    atomicAdd(reinterpret_cast<float2*>(address), make_float2(first, second));
#else
    atomicAdd(address, first);
    atomicAdd(address + 1, second);
#endif
}

// The same of four, aligned to 16 bytes.
__device__ inline void add_four(float* address, float4 four) {
#if __CUDA_ARCH__ >= 900   // one instruction for all
    atomicAdd(reinterpret_cast<float4*>(address), four);
#else
    atomicAdd(address, four.x), atomicAdd(address + 1, four.y);
    atomicAdd(address + 2, four.z), atomicAdd(address + 3, four.w);
#endif
}
