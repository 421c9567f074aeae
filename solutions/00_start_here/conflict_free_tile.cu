// conflict_free_tile.cu — turns K [.., L, D] into Kᵀ [.., D, L], as a decoding kernel wants its
// keys: coalesced on both sides, and without bank conflicts in between.
//
// grid   (ceil(D / 32), ceil(L / 32), heads)          block  (32, 8): a thread moves four numbers
// layout in [heads, L, D], out [heads, D, L], fp32, contiguous
// shared 4 · 32 · 32 = 4096 bytes, static; with a column of padding 4224
// limits any L and D; heads and L / 32 up to 65535
// paper  M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA blog, 2013
constexpr int TILE = 32, ROWS = 8;

extern "C" __global__ void __launch_bounds__(TILE * ROWS)
conflict_free_tile(const float* in, float* out, int L, int D) {
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int left = blockIdx.x * TILE, top = blockIdx.y * TILE;   // the tile's corner in `in`
    in += (long long)blockIdx.z * L * D, out += (long long)blockIdx.z * L * D;
    // BEGIN SOLUTION
    __shared__ float tile[TILE][TILE];

    // No padding: element (r, c) lies in column c XOR r of row r, so that the 32 elements of a row,
    // and those of a column, are in 32 banks.
    // load: a warp reads 32 neighbours of a row of `in`
    for (int r = ty; r < TILE; r += ROWS)
        if (top + r < L && left + tx < D)
            tile[r][tx ^ r] = in[(long long)(top + r) * D + left + tx];
    __syncthreads();   // a thread writes out what others have loaded

    // write: a warp writes 32 neighbours of a row of `out`, which are column r of the tile
    for (int r = ty; r < TILE; r += ROWS)
        if (left + r < D && top + tx < L)
            out[(long long)(left + r) * L + top + tx] = tile[tx][r ^ tx];
    // END SOLUTION
}
