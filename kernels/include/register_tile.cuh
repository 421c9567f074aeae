// register_tile.cuh — fp32 tiles in shared memory, and the pieces of their products that threads
// hold in registers: a number that is read from a tile serves several multiply-adds.
// Options: D, the head dimension; TX, the threads that share a row of a tile.
#pragma once

// This thread's first row and column of a product. Lanes alternate between two rows: 16-byte reads
// along rows and along columns merge in pairs.
__device__ inline int row() { return threadIdx.x % 2 + threadIdx.x / (2 * TX) * 2; }
__device__ inline int column() { return threadIdx.x / 2 % TX; }

// Copies rows `first`, first + 1, ... of a [L, D] matrix to shared memory; zeros past its end.
template <int THREADS, int N, int PITCH>
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
