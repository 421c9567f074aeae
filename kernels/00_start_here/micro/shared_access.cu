// shared_access.cu — one access to shared memory per lane, 4, 8 or 16 bytes wide. A table of indices says
// which element each lane takes, so that one kernel serves every pattern: neighbours, strides,
// broadcast, pairs of lanes on one element. The rest of each kernel has no conflicts.
//
// grid   any x                         block  (32): one warp
// layout index [32], int32; out [grid, 32] of the width's type for a read; for a write the array's
//        elements 0, 32, 64, ... of all lanes: [grid, 1024] floats; contiguous
// shared 16 · 1024 = 16384 bytes, static
// limits 0 <= index < 1024
constexpr int ELEMENTS = 1024;

template <typename T> __device__ T value(int i);
template <> __device__ float value<float>(int i) { return i; }
template <> __device__ float2 value<float2>(int i) { return make_float2(i, 1); }
template <> __device__ float4 value<float4>(int i) { return make_float4(i, 1, 2, 3); }

template <typename T> __device__ void read(const int* index, T* out) {
    __shared__ T array[ELEMENTS];
#pragma unroll 1
    for (int i = threadIdx.x; i < ELEMENTS; i += 32) array[i] = value<T>(i);
    __syncwarp();
    out[blockIdx.x * 32 + threadIdx.x] = array[index[threadIdx.x]];
}

template <typename T> __device__ void write(const int* index, float* out) {
    __shared__ T array[ELEMENTS];
#pragma unroll 1
    for (int i = threadIdx.x; i < ELEMENTS; i += 32) array[i] = value<T>(0);
    __syncwarp();
    array[index[threadIdx.x]] = value<T>(threadIdx.x);
    __syncwarp();
    const float* words = reinterpret_cast<const float*>(array);
#pragma unroll 1
    for (int i = threadIdx.x; i < ELEMENTS; i += 32) out[blockIdx.x * ELEMENTS + i] = words[i];
}

extern "C" __global__ void read_float(const int* index, float* out) { read<float>(index, out); }
extern "C" __global__ void read_float2(const int* index, float2* out) { read<float2>(index, out); }
extern "C" __global__ void read_float4(const int* index, float4* out) { read<float4>(index, out); }
extern "C" __global__ void write_float(const int* index, float* out) { write<float>(index, out); }
extern "C" __global__ void write_float2(const int* index, float* out) { write<float2>(index, out); }
extern "C" __global__ void write_float4(const int* index, float* out) { write<float4>(index, out); }
