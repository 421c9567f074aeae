// copy.cu — the same copy twice: neighbouring threads take neighbouring elements (coalesced), or
// elements `stride` apart, so that whole 32-byte sectors move for the few bytes a warp wants.
// Both touch every element once; only the order differs.
//
// grid   copy (ceil(n / block))  copy_strided (ceil(stride · ceil(n / stride) / block))
// block  any number of threads, 256 is usual
// layout in, out [n], fp32
// shared 0 bytes
// limits any n, any stride ≥ 1; stride 1 is the same as copy
extern "C" __global__ void copy(const float* in, float* out, long long n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}

extern "C" __global__ void copy_strided(const float* in, float* out, long long n, int stride) {
    const long long t = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long steps = (n + stride - 1) / stride;   // elements 0, stride, 2·stride, ... first
    const long long i = t % steps * stride + t / steps;
    if (t < steps * stride && i < n) out[i] = in[i];
}
