// global_loads.cu — one load from global memory per thread, in every way that changes its cost: how far
// apart neighbouring lanes read, how wide each lane reads, where the first byte lies, how many lanes
// take part. The counters of each pattern are compared with ncu's (tests/emulator).
//
// grid   any x                         block  any x, a multiple of 32
// layout in: fp32 or half2, long enough for the pattern; out: one element per thread; contiguous
// shared 0 bytes
// limits none
#include <cuda_fp16.h>

__device__ int thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

// stride 1 is coalesced, 32 touches a sector per lane, 0 is a broadcast; first = 1 starts misaligned
extern "C" __global__ void load_float(const float* in, float* out, int stride, int first) {
    out[thread()] = in[first + thread() * stride];
}

extern "C" __global__ void load_float2(const float2* in, float2* out, int stride) {
    out[thread()] = in[thread() * stride];
}

extern "C" __global__ void load_float4(const float4* in, float4* out, int stride) {
    out[thread()] = in[thread() * stride];
}

extern "C" __global__ void load_half2(const half2* in, half2* out) { out[thread()] = in[thread()]; }

// only the first `lanes` lanes of each warp load
extern "C" __global__ void load_some_lanes(const float* in, float* out, int lanes) {
    float x = 0;
    if (threadIdx.x % 32 < lanes) x = in[thread()];
    out[thread()] = x;
}

// any pattern: each thread loads the element that its index names
extern "C" __global__ void load_gather(const int* index, const float* in, float* out) {
    out[thread()] = in[index[thread()]];
}
