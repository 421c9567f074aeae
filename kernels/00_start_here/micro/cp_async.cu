// cp_async.cu — one asynchronous copy from global to shared memory per lane, of 4, 8 or 16 bytes, through
// L1 (.ca) or around it (.cg); then each lane reads its first word back.
//
// grid   any x                         block  any x up to 256, a multiple of 32
// layout in [grid · block, BYTES / 4] floats; index [block], int32: where each thread's copy goes, in units of
//        BYTES; out [grid · block], fp32; contiguous, aligned to BYTES
// shared 16 · 256 · 2 = 8192 bytes, static
// limits 0 <= index < 512, each only once
// arch: sm_80
// options: -DBYTES=4 | -DBYTES=8 | -DBYTES=16 | -DBYTES=16 -DAROUND_L1
// paper  PTX ISA, "Asynchronous copy: cp.async"
#ifdef AROUND_L1
#define COPY(target, source) \
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" :: "r"(target), "l"(source), "n"(BYTES) : "memory")
#else
#define COPY(target, source) \
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(target), "l"(source), "n"(BYTES) : "memory")
#endif

extern "C" __global__ void copy_async(const float* in, const int* index, float* out) {
    __shared__ __align__(16) float buffer[2 * 256 * BYTES / 4];
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    float* target = buffer + index[threadIdx.x] * (BYTES / 4);
    COPY((unsigned)__cvta_generic_to_shared(target), in + thread * (BYTES / 4));
    asm volatile("cp.async.wait_all;" ::: "memory");
    out[thread] = *target;
}
