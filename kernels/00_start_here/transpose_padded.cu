// transpose_padded.cu — transpose_tiled.cu with one unused column. Rows of 33 words shift every row
// by one bank, so the 32 elements of a column lie in 32 different banks.
//
// grid   (ceil(cols/32), ceil(rows/32))          block  (32, 32)
// layout in [rows, cols], out [cols, rows], fp32, contiguous
// shared 4 · 32 · 33 = 4224 bytes, static
// limits 1 <= rows <= 32·65535, any cols >= 1 for which the tensors fit memory
// paper  M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA blog, 2013
extern "C" __global__ void
transpose_padded(const float* in, float* out, int rows, int cols) {
    __shared__ float tile[32][32 + 1];
    const int left = blockIdx.x * 32, top = blockIdx.y * 32;   // the tile's corner in `in`

    // load: a warp reads 32 neighbours of one row of `in`
    int x = left + threadIdx.x, y = top + threadIdx.y;
    if (x < cols && y < rows)
        tile[threadIdx.y][threadIdx.x] = in[(long long)y * cols + x];
    __syncthreads();   // a thread writes out what another one loaded

    // write: a warp writes 32 neighbours of one row of `out`, which were a column of the tile
    x = top + threadIdx.x, y = left + threadIdx.y;             // column and row of `out`
    if (x < rows && y < cols)
        out[(long long)y * rows + x] = tile[threadIdx.x][threadIdx.y];
}
