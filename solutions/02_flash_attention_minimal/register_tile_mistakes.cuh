// register_tile_mistakes.cuh — register_tile.cu with hooks where learners err; the .toml of its name has them.
constexpr int TILE = 64, PIECE = 32, SIDE = 8, PER_THREAD = TILE / SIDE, PITCH = PIECE + 4;

__device__ void load_piece(float (&tile)[TILE][PITCH], const float* matrix, int first, int L, int c0, int d) {
    for (int e = threadIdx.y * SIDE + threadIdx.x; e < TILE * PIECE; e += SIDE * SIDE) {
        const int row = first + e / PIECE, column = c0 + e % PIECE;
        tile[e / PIECE][e % PIECE] = row < L && column < d ? matrix[(long long)row * d + column] : 0;
    }
}

extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
register_tile(const float* Q, const float* K, float* S, int L_q, int L_k, int d, float scale) {
    const Variant variant = variants[variant_number()];
    __shared__ __align__(16) float Q_tile[TILE][PITCH], K_tile[TILE][PITCH];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE;
    Q += (long long)blockIdx.z * L_q * d, K += (long long)blockIdx.z * L_k * d;
    S += ((long long)variant_number() * gridDim.z + blockIdx.z) * L_q * L_k;

    // From one query or key of the thread to the next: rows of the tiles, and sums.
    const int of_r = WRONG(ONE_SUM_FOR_QUERIES, 1, 0), of_c = WRONG(ONE_SUM_FOR_KEYS, 1, 0);
    const int next_query = WRONG(FIRST_QUERY, SIDE, 0), next_key = WRONG(FIRST_KEY, SIDE, 0);
    float sum[PER_THREAD][PER_THREAD] = {};
    const int end = WRONG(FIRST_PIECE, WRONG(WHOLE_PIECES, d, d / PIECE * PIECE), min(d, PIECE));
    for (int c0 = 0; c0 < end; c0 += PIECE) {
        load_piece(Q_tile, Q, i0, L_q, c0, d);
        load_piece(K_tile, K, j0, L_k, c0, d);
        __syncthreads();
        for (auto& of_query : sum)
            for (float& one : of_query) one = WRONG(LAST_PIECE, one, 0);
        for (int x = 0; x < PIECE; x += WRONG(FIRST_OF_FOUR, 1, 4)) {
            float q[PER_THREAD];
            for (int r = 0; r < PER_THREAD; r++) q[r] = Q_tile[ty + r * next_query][x];
            for (int c = 0; c < PER_THREAD; c++) {
                const float k = K_tile[tx + c * next_key][x];
                for (int r = 0; r < PER_THREAD; r++) sum[r * of_r][c * of_c] += q[r] * k;
            }
        }
        for (auto& of_query : sum)
            for (float& one : of_query) one *= WRONG(SCALED_EACH_PIECE, 1, scale);
        __syncthreads();
    }

    scale = WRONG(NO_SCALE, WRONG(SCALE_TWICE, WRONG(OWN_SCALE, scale, rsqrtf(d)), scale * scale), 1);
    const int of_keys = WRONG(X_IS_Y, tx, ty), of_queries = WRONG(X_IS_Y, ty, tx);
    for (int r = 0; r < PER_THREAD; r++)
        for (int c = 0; c < PER_THREAD; c++) {
            const int i = i0 + WRONG(QUERIES_SIDE_BY_SIDE, of_queries + r * SIDE, of_queries * PER_THREAD + r);
            const int j = j0 + WRONG(KEYS_SIDE_BY_SIDE, of_keys + c * SIDE, of_keys * PER_THREAD + c);
            if (i < L_q && j < L_k) S[(long long)i * L_k + j] = scale * sum[r * of_r][c * of_c];
        }
}
