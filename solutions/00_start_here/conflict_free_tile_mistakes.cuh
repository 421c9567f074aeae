// conflict_free_tile_mistakes.cuh — conflict_free_tile.cu with hooks where learners err; the .toml of its name has them.
// Sectors and bank conflicts are counted.
constexpr int TILE = 32, ROWS = 8;

extern "C" __global__ void __launch_bounds__(TILE * ROWS)
conflict_free_tile(const float* in, float* out, int L, int D) {
    const Variant variant = variants[variant_number()];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int left = blockIdx.x * TILE, top = blockIdx.y * TILE;   // the tile's corner in `in`
    const long long size = (long long)L * D, first = WRONG(FIRST_HEAD, blockIdx.z, 0) * size;
    out += ((long long)variant_number() * gridDim.z + blockIdx.z) * size;
    __shared__ float tile[TILE][TILE];

    for (int r = ty; r < TILE; r += ROWS) {
        const long long from = first + (long long)(top + r) * WRONG(ROWS_OF_L, D, L) + left + tx;
        const bool inside = top + r < L && left + tx < D;
        tile[r][tx ^ WRONG(XOR_WITH_TY, r, ty)] = inside ? in[min(from, elements[0] - 1LL)] : 0;
    }
    __syncthreads();

    const int out_top = WRONG(TILE_STAYS, left, top), out_left = WRONG(TILE_STAYS, top, left);
    const int rows = WRONG(SHAPE_OF_IN, D, L), columns = WRONG(SHAPE_OF_IN, L, D);   // of `out`
    for (int r = ty; r < TILE; r += ROWS) {
        const float turned = tile[tx][WRONG(XOR_ON_ONE_SIDE, r ^ WRONG(XOR_WITH_TY, tx, ty), r)];
        if (out_top + r < rows && out_left + tx < columns)
            out[(long long)(out_top + r) * columns + out_left + tx] = WRONG(NOT_TURNED, turned, tile[r][tx ^ r]);
    }
}
