// vector_add.cu — the first kernel: out = a + b, one thread per element.
//
// grid   (ceil(n / block))             block  any number of threads, 256 is usual
// layout a, b, out [n], fp32
// shared 0 bytes
// limits any n; the threads past the end have nothing to do
extern "C" __global__ void vector_add(const float* a, const float* b, float* out, long long n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
