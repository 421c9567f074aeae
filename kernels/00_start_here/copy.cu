// copy.cu — out = in, and neighbouring threads take neighbouring elements: a coalesced access.
// It computes nothing, but one word per thread leaves the memory idle at times (copy_vectors.cu).
//
// grid   (ceil(n / threads))           block  (threads), a multiple of 32, such as 256
// layout in, out [n], fp32, contiguous
// shared 0 bytes
// limits 1 <= n <= 2^31 - 1024
extern "C" __global__ void copy(const float* in, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = in[i];
}
