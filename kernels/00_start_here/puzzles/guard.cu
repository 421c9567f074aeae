// guard.cu — c = a + b, and the last block has threads without an element.
//
// grid   (ceil(n / threads))           block  (threads)
// layout a, b, c [n], fp32, contiguous
// shared 0 bytes
// limits 1 <= n <= 2^31 - 1024
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    // BEGIN SOLUTION
    if (i < n)
        c[i] = a[i] + b[i];
    // END SOLUTION
}
