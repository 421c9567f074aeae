// transpose_tiled.cu — out = inᵀ by tiles of 32 × 32: a tile is read row by row, turned on the chip,
// and written row by row, so that both sides of the trip to memory are coalesced.
// What is left to pay: the column reads of the tile, 32 lanes in one bank (transpose_padded.cu).
//
// grid   (ceil(cols/32), ceil(rows/32))          block  (32, 32)
// layout in [rows, cols], out [cols, rows], fp32, contiguous
// shared 4 · 32 · 32 = 4096 bytes, static
// limits 1 <= rows <= 32·65535, any cols >= 1 for which the tensors fit memory
// paper  M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA blog, 2013
extern "C" __global__ void
transpose_tiled(const float* in, float* out, int rows, int cols) {
    __shared__ float tile[32][32];
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
