// copy_vectors.cu — the copy of copy.cu, four elements per thread in one 16-byte access. A warp has
// four times as many bytes under way while it waits, and fewer threads do the work.
//
// grid   (ceil(n / (4 · threads)))     block  (threads), a multiple of 32, such as 256
// layout in, out [n], fp32, contiguous, 16-byte aligned (a whole tensor is)
// shared 0 bytes
// limits 1 <= n <= 2^31 - 4096
extern "C" __global__ void copy_vectors(const float* in, float* out, int n) {
    const int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);   // my first element
    if (i + 4 <= n)
        *reinterpret_cast<float4*>(out + i) = *reinterpret_cast<const float4*>(in + i);
    else
        for (int j = i; j < n; j++) out[j] = in[j];              // fewer than four are left
}
