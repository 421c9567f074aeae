// register_tile.cuh — fp32 tiles in shared memory, and their products, in registers: a number that is
// read from a tile serves several multiply-adds.
//
// A thread has ROWS rows of a product, every TY-th, and of each row every TX-th column or float4;
// COLS float4s where the product is as wide as D. TX threads share a row.
// Include after D, TX, ROWS, TY, COLS and THREADS are defined.
#pragma once
#include "constants.cuh"

// This thread's first row and column of a product. Lanes alternate between two rows: 16-byte reads
// along rows and along columns merge in pairs.
__device__ inline int row() { return threadIdx.x % 2 + threadIdx.x / (2 * TX) * 2; }
__device__ inline int column() { return threadIdx.x / 2 % TX; }

// Copies rows `first`, first + 1, ... of a [L, D] matrix to shared memory; zeros past its end.
template <int N, int PITCH>
__device__ void load_tile(float4 (&tile)[N][PITCH], const float4* matrix, int first, int L) {
    for (int e = threadIdx.x, d = D / 4; e < N * d; e += THREADS)
        tile[e / d][e % d] = first + e / d < L ? matrix[(long long)first * d + e] : float4{};
}

// sum + a · b, in the order of the components
__device__ inline float add_dot(float sum, const float4& a, const float4& b) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// sum += factor b
__device__ inline void add_scaled(float4& sum, float factor, const float4& b) {
    sum.x = fmaf(factor, b.x, sum.x), sum.y = fmaf(factor, b.y, sum.y);
    sum.z = fmaf(factor, b.z, sum.z), sum.w = fmaf(factor, b.w, sum.w);
}

__device__ inline float4 scaled(float f, float4 x) { return {f * x.x, f * x.y, f * x.z, f * x.w}; }

// S += A Bᵀ, four columns of A and of B at a time.
template <int N, class A_TILE, class B_TILE> __device__ __forceinline__ void
multiply_transposed(float (&S)[ROWS][N], const A_TILE& A, const B_TILE& B) {
    #pragma unroll 2
    for (int d = 0; d < D / 4; d++) {
        float4 a[ROWS];
        for (int r = 0; r < ROWS; r++) a[r] = A[row() + r * TY][d];
        for (int c = 0; c < N; c++) {
            const float4 b = B[column() + c * TX][d];
            for (int r = 0; r < ROWS; r++) S[r][c] = add_dot(S[r][c], a[r], b);
        }
    }
}

// O += A B, four columns of A and four rows of B at a time.
template <class A_TILE, int N, int PITCH> __device__ __forceinline__ void
multiply(float4 (&O)[ROWS][COLS], const A_TILE& A, const float4 (&B)[N][PITCH]) {
    #pragma unroll 2
    for (int k = 0; k < N; k += 4) {
        float4 a[ROWS];
        for (int r = 0; r < ROWS; r++) a[r] = reinterpret_cast<const float4&>(A[row() + r * TY][k]);
        for (int c = 0, x = column(); c < COLS; c++, x += TX) {
            const float4 b[] = {B[k][x], B[k + 1][x], B[k + 2][x], B[k + 3][x]};
            for (int r = 0; r < ROWS; r++) add_scaled(O[r][c], a[r].x, b[0]);
            for (int r = 0; r < ROWS; r++) add_scaled(O[r][c], a[r].y, b[1]);
            for (int r = 0; r < ROWS; r++) add_scaled(O[r][c], a[r].z, b[2]);
            for (int r = 0; r < ROWS; r++) add_scaled(O[r][c], a[r].w, b[3]);
        }
    }
}
