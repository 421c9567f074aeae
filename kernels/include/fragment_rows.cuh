// fragment_rows.cuh — what a warp does with the rows of a product that it holds in registers.
//
// A product [16, 8 N] is `float (&)[N][4]`, in the layout of mma.sync's D (tensor_core.cuh). Lane
// 4 g + t has two of its rows, r = 0 and 1: row g in registers 0 and 1 of each four, row g + 8 in
// 2 and 3. Of a row it has columns 8 n + 2 t and 8 n + 2 t + 1, and four lanes share the row.
#pragma once
#include "constants.cuh"

// All 16 rows of M products = 0.
template <int M, int N>
__device__ inline void clear(float (&product)[M][N][4]) {
    for (int i = 0; i < M; i++)
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++) product[i][n][e] = 0;
}

// Calls f(m, n, e, row, column) for each number [m][n][e] of M · N products that this lane holds.
template <int M, int N, class F>
__device__ inline void each_of_lane(F f) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int n = 0; n < N; n++)
        #pragma unroll
        for (int m = 0; m < M; m++)
            #pragma unroll
            for (int e = 0; e < 4; e++) f(m, n, e, 16 * m + e / 2 * 8 + g, 8 * n + 2 * t + e % 2);
}

// The highest of `high` and this lane's numbers of row r.
template <int N>
__device__ inline float highest_of_lane(const float (&product)[N][4], int r, float high) {
    for (int n = 0; n < N; n++)
        high = fmaxf(high, fmaxf(product[n][2 * r], product[n][2 * r + 1]));
    return high;
}

// This lane's numbers of row r, times a factor.
template <int N>
__device__ inline void scale_row(float (&product)[N][4], int r, float factor) {
    for (int n = 0; n < N; n++) product[n][2 * r] *= factor, product[n][2 * r + 1] *= factor;
}

// 2^x in one instruction; 0 where that is too small for a normal float. exp2f takes a few more, to get
// those right.
__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// log2(x) in one instruction, for what exp2_approx returns.
__device__ inline float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The highest of the four lanes of a row, and their sum; each of them gets it.
__device__ inline float highest_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ inline float sum_of_row(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}
