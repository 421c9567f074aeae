// atomics.cu — one atomic addition per thread, to global or shared memory. A table of indices says which
// threads share an address. Where nobody wants the old value, the hardware is asked for a reduction (RED)
// instead of an atomic (ATOM).
//
// grid   any x                         block  any x up to 256, a multiple of 32
// layout index: one int32 per thread, for the shared kernels one per thread of a block; sums: zeros, int32
//        or fp32 as the kernel's name says, as many as there are indices, for the shared kernels one per
//        thread; old: one int32 per thread; contiguous
// shared 4 · 256 = 1024 bytes, static, for the shared kernels
// limits 0 <= index < the number of sums, for the shared kernels < 256
__device__ int thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void reduce_global(const int* index, int* sums) { atomicAdd(sums + index[thread()], 1); }

extern "C" __global__ void reduce_global_float(const int* index, float* sums) {
    atomicAdd(sums + index[thread()], 1.0f);
}

extern "C" __global__ void add_global(const int* index, int* sums, int* old) {
    old[thread()] = atomicAdd(sums + index[thread()], threadIdx.x);
}

template <typename T> __device__ void add_shared(const int* index, T* sums) {
    __shared__ T counters[256];
    counters[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(counters + index[threadIdx.x], static_cast<T>(threadIdx.x));
    __syncthreads();
    sums[thread()] = counters[threadIdx.x];
}

extern "C" __global__ void add_shared_int(const int* index, int* sums) { add_shared(index, sums); }
extern "C" __global__ void add_shared_float(const int* index, float* sums) { add_shared(index, sums); }
