// transpose_naive.cu — out = inᵀ, one thread per element. The reads are coalesced; the writes of a
// warp cannot be, because neighbours in a row of `in` are `rows` elements apart in `out`.
//
// grid   (ceil(cols/32), ceil(rows/32))          block  (32, 32)
// layout in [rows, cols], out [cols, rows], fp32, contiguous
// shared 0 bytes
// limits 1 <= rows <= 32·65535, any cols >= 1 for which the tensors fit memory
extern "C" __global__ void
transpose_naive(const float* in, float* out, int rows, int cols) {
    const int x = blockIdx.x * 32 + threadIdx.x;   // column of `in`: differs within a warp
    const int y = blockIdx.y * 32 + threadIdx.y;   // row of `in`
    if (x < cols && y < rows)
        out[(long long)x * rows + y] = in[(long long)y * cols + x];
}
