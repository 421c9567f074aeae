// shared_access.cu — one access to shared memory per lane, 2, 4, 8 or 16 bytes wide. A table of indices
// says which element each lane takes, so that one kernel serves every pattern: neighbours, strides,
// broadcast, pairs of lanes on one element, random ones. The rest of each kernel has no conflicts.
//
// grid   any x                         block  (32): one warp
// layout index [32], int32, -1: the lane takes no part; out [grid, 32] of the width's type for a read; for
//        a write the whole array: [grid, 1024] words of 4 bytes or [grid, 512] for halves; contiguous
// shared 16 · 1024 = 16384 bytes, static
// limits index < 1024
#include <cuda_fp16.h>

constexpr int ELEMENTS = 1024;

template <typename T> __device__ T value(int i);
template <> __device__ half value<half>(int i) { return __int2half_rn(i); }
template <> __device__ half2 value<half2>(int i) { return __floats2half2_rn(i, 1); }
template <> __device__ float value<float>(int i) { return i; }
template <> __device__ float2 value<float2>(int i) { return make_float2(i, 1); }
template <> __device__ float4 value<float4>(int i) { return make_float4(i, 1, 2, 3); }

template <typename T> __device__ void read(const int* index, T* out) {
    __shared__ T array[ELEMENTS];
#pragma unroll 1
    for (int i = threadIdx.x; i < ELEMENTS; i += 32) array[i] = value<T>(i);
    __syncwarp();
    const int i = index[threadIdx.x];
    if (i >= 0) out[blockIdx.x * 32 + threadIdx.x] = array[i];
}

template <typename T> __device__ void write(const int* index, float* out) {
    __shared__ __align__(16) T array[ELEMENTS];   // which is also read as floats
    constexpr int WORDS = sizeof(T) < 4 ? ELEMENTS / 2 : ELEMENTS;
#pragma unroll 1
    for (int i = threadIdx.x; i < ELEMENTS; i += 32) array[i] = value<T>(0);
    __syncwarp();
    const int i = index[threadIdx.x];
    if (i >= 0) array[i] = value<T>(threadIdx.x);
    __syncwarp();
    const float* words = reinterpret_cast<const float*>(array);
#pragma unroll 1
    for (int i = threadIdx.x; i < WORDS; i += 32) out[blockIdx.x * WORDS + i] = words[i];
}

extern "C" __global__ void read_half(const int* index, half* out) { read<half>(index, out); }
extern "C" __global__ void read_half2(const int* index, half2* out) { read<half2>(index, out); }
extern "C" __global__ void read_float(const int* index, float* out) { read<float>(index, out); }
extern "C" __global__ void read_float2(const int* index, float2* out) { read<float2>(index, out); }
extern "C" __global__ void read_float4(const int* index, float4* out) { read<float4>(index, out); }
extern "C" __global__ void write_half(const int* index, float* out) { write<half>(index, out); }
extern "C" __global__ void write_half2(const int* index, float* out) { write<half2>(index, out); }
extern "C" __global__ void write_float(const int* index, float* out) { write<float>(index, out); }
extern "C" __global__ void write_float2(const int* index, float* out) { write<float2>(index, out); }
extern "C" __global__ void write_float4(const int* index, float* out) { write<float4>(index, out); }
