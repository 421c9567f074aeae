// transpose.cu — out = inᵀ in three steps. One of the two matrices is always walked down a column:
//   transpose_naive   writes columns straight to global memory: uncoalesced
//   transpose_tiled   turns a tile in shared memory, so that both matrices are walked along rows;
//                     but the 32 elements of a tile's column lie in one bank: a 32-way conflict
//   transpose_padded  one unused column shifts each row by a bank, and the conflict is gone
//
// grid   (ceil(columns / 32), ceil(rows / 32))     block  (32, 32)
// layout in [rows, columns], out [columns, rows], fp32
// shared 0, 4096, 4224 bytes, static
// limits any size with ceil(rows / 32) ≤ 65535
constexpr int TILE = 32;

extern "C" __global__ void transpose_naive(const float* in, float* out, int rows, int columns) {
    const int column = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    if (row < rows && column < columns)
        out[(long long)column * rows + row] = in[(long long)row * columns + column];
}

template <int PITCH>
__device__ void transpose_through(float (&tile)[TILE][PITCH], const float* in, float* out,
                                  int rows, int columns) {
    const int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    const int x = threadIdx.x, y = threadIdx.y;
    if (row0 + y < rows && column0 + x < columns)
        tile[y][x] = in[(long long)(row0 + y) * columns + column0 + x];
    __syncthreads();   // the element that a thread writes was read by another thread
    if (column0 + y < columns && row0 + x < rows)
        out[(long long)(column0 + y) * rows + row0 + x] = tile[x][y];
}

extern "C" __global__ void transpose_tiled(const float* in, float* out, int rows, int columns) {
    __shared__ float tile[TILE][TILE];
    transpose_through(tile, in, out, rows, columns);
}

extern "C" __global__ void transpose_padded(const float* in, float* out, int rows, int columns) {
    __shared__ float tile[TILE][TILE + 1];
    transpose_through(tile, in, out, rows, columns);
}
