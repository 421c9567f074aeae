// copy_strided.cu — the copy of copy.cu in another order: neighbouring threads are `stride` elements
// apart. Each element is still copied once, but each memory transaction carries less of what was asked.
//
// grid   (ceil(stride * ceil(n / stride) / threads))   block  (threads), a multiple of 32
// layout in, out [n], fp32, contiguous; seen as rows of `stride` elements and walked column by column
// shared 0 bytes
// limits n >= 1, stride >= 1, n + stride <= 2^31 - 1024
extern "C" __global__ void copy_strided(const float* in, float* out, int n, int stride) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    const int rows = (n + stride - 1) / stride;    // of `stride` elements; the last may be short
    const int row = t % rows, column = t / rows;   // down a column: thread t + 1 takes the next row,
    const int i = row * stride + column;           // `stride` elements further on
    if (column < stride && i < n)
        out[i] = in[i];
}
