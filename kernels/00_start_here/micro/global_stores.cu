// global_stores.cu — one store to global memory per thread, the counterparts of global_loads.cu. The
// values are made from the thread's number, so nothing is loaded.
//
// grid   any x                         block  any x, a multiple of 32
// layout out: fp32, long enough for the pattern, contiguous
// shared 0 bytes
// limits none
__device__ int thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void store_float(float* out, int stride, int first) {
    out[first + thread() * stride] = thread();
}

extern "C" __global__ void store_float2(float2* out, int stride) {
    out[thread() * stride] = make_float2(thread(), 1);
}

extern "C" __global__ void store_float4(float4* out, int stride) {
    out[thread() * stride] = make_float4(thread(), 1, 2, 3);
}

// only the first `lanes` lanes of each warp store
extern "C" __global__ void store_some_lanes(float* out, int lanes) {
    if (threadIdx.x % 32 < lanes) out[thread()] = thread();
}
