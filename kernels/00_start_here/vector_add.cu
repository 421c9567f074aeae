// vector_add.cu — c = a + b, one thread per element: about the smallest kernel there is.
//
// grid   (ceil(n / threads))           block  (threads), a multiple of 32, such as 256
// layout a, b, c [n], fp32, contiguous
// shared 0 bytes
// limits 1 <= n <= 2^31 - 1024
extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;   // my element
    if (i < n)                                             // not past the end
        c[i] = a[i] + b[i];
}
