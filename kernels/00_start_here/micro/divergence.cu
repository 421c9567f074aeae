// divergence.cu — a loop that each lane leaves after another number of turns: lane n after n % 8 + 1. The
// warp goes on until its last lane is done, with fewer and fewer lanes taking part.
//
// grid   any x                         block  any x up to 256, a multiple of 32
// layout in [8, grid · block] for the global kernel; out [grid · block], fp32, contiguous
// shared 4 · 8 · 256 = 8192 bytes, static, for the shared kernel
// limits none
__device__ int thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void divergent_global(const float* in, float* out) {
    const int turns = threadIdx.x % 8 + 1;
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < turns; i++) sum += in[i * gridDim.x * blockDim.x + thread()];
    out[thread()] = sum;
}

extern "C" __global__ void divergent_shared(float* out) {
    __shared__ float rows[8][256];
#pragma unroll 1
    for (int i = 0; i < 8; i++) rows[i][threadIdx.x] = i;
    const int turns = threadIdx.x % 8 + 1;
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < turns; i++) sum += rows[i][threadIdx.x];   // each thread reads what it wrote
    out[thread()] = sum;
}
