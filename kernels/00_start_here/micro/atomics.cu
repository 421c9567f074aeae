// atomics.cu — one atomic addition per thread, to global or shared memory: all lanes to one address, or
// each lane to its own. Where nobody wants the old value, the hardware is asked for a reduction (RED)
// instead of an atomic (ATOM).
//
// grid   any x                         block  any x up to 256, a multiple of 32
// layout sums: int32, zeros, stride · grid · block + 1 elements for the global kernels, grid · block for
//        the shared one; old: one int32 per thread; contiguous
// shared 4 · 256 = 1024 bytes, static, for the shared kernel
// limits stride 0 (one address), or 1 (an address each)
__device__ int thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void reduce_global(int* sums, int stride) { atomicAdd(sums + thread() * stride, 1); }

extern "C" __global__ void add_global(int* sums, int* old, int stride) {
    old[thread()] = atomicAdd(sums + thread() * stride, threadIdx.x);
}

extern "C" __global__ void add_shared(int* sums, int stride) {
    __shared__ int counters[256];
    counters[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(counters + threadIdx.x * stride, threadIdx.x);
    __syncthreads();
    sums[thread()] = counters[threadIdx.x];
}
