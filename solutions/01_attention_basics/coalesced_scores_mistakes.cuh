// coalesced_scores_mistakes.cuh — coalesced_scores.cu with hooks where learners err; the .toml of its name has them.
constexpr int TILE = 32, ROWS = 8, PER_THREAD = TILE / ROWS;

// Where the block's head begins in Q or K. The hooks are those of one of them. L: rows from a sequence to the next.
__device__ long long start_of_head(const Variant& variant, int first_sequence, int first_head, int L, int H, int d) {
    const int b = blockIdx.z / H, h = blockIdx.z % H;
    const long long row = WRONG(HEADS_FIRST, WRONG(first_sequence, b, 0) * (long long)L * H, blockIdx.z * (long long)L);
    return (row + WRONG(HEADS_FIRST, WRONG(first_head, h, 0), 0)) * d;
}

// So many columns of Q and K are multiplied.
__device__ int columns(const Variant& variant, int d, int is_causal) {
    const int most = min(d, (int)variant.value);
    const int end = WRONG(FIRST_COLUMNS, WRONG(FIRST_COLUMNS_CAUSAL, d, is_causal ? most : d), most);
    return WRONG(WHOLE_PIECES, WRONG(LAST_PIECE_LOST, end, (d - 1) / TILE * TILE), d / TILE * TILE);
}

extern "C" __global__ void __launch_bounds__(TILE * ROWS)
coalesced_scores(const float* Q, const float* K, float* S, int L_q, int L_k, int H, int d,
                 float scale, int is_causal) {
    const Variant variant = variants[variant_number()];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int j0 = blockIdx.x * TILE, i0 = blockIdx.y * TILE;
    S += ((long long)variant_number() * gridDim.z + blockIdx.z) * L_q * L_k;
    const long long pitch = variant.pulls(HEADS_FIRST) || variant.pulls(ROWS_OF_D) ? d : (long long)H * d;
    const long long q0 = start_of_head(variant, Q_OF_SEQUENCE_0, Q_OF_HEAD_0, L_q, H, d);
    const long long k0 = start_of_head(variant, K_OF_SEQUENCE_0, K_OF_HEAD_0, WRONG(K_LIKE_Q, L_k, L_q), H, d);

    __shared__ float Q_tile[TILE][TILE], K_tile[TILE][TILE + 1];
    float sum[PER_THREAD] = {};
    const int end = columns(variant, d, is_causal);
    for (int c0 = 0; c0 < end; c0 += TILE) {
        const int column = c0 + tx;
        const bool there = column < d || variant.pulls(PAST_D);
        for (int r = ty; r < TILE; r += ROWS) {
            const long long q = q0 + (i0 + r) * pitch + column, k = k0 + (j0 + r) * pitch + column;
            Q_tile[r][tx] = i0 + r < L_q && there && q < elements[0] ? Q[q] : 0;
            K_tile[r][tx] = j0 + r < L_k && there && k < elements[1] ? K[k] : 0;
        }
        __syncthreads();
        for (int r = 0; r < PER_THREAD; r++) sum[r] = WRONG(LAST_PIECE, sum[r], 0);
        for (int c = 0; c < TILE; c++) {
            const float k = K_tile[tx][c];
            for (int r = 0; r < PER_THREAD; r++) sum[r] += Q_tile[ty + r * ROWS][c] * k;
        }
        __syncthreads();
    }

    const float by_d = rsqrtf(d);
    scale = WRONG(NO_SCALE, WRONG(SCALE_TWICE, WRONG(OWN_SCALE, scale, by_d), scale * scale), 1);
    scale = WRONG(SCALE_BESIDES, scale, scale * by_d);
    int shift = WRONG(TOP_LEFT, WRONG(OTHER_SIGN, L_k - L_q, L_q - L_k), 0);
    shift += WRONG(NEXT_SEEN, 0, 1) - WRONG(OWN_HIDDEN, 0, 1);
    const int j = j0 + tx;
    for (int r = 0; r < PER_THREAD; r++) {
        const int i = i0 + ty + r * ROWS;
        if (i >= L_q || j >= L_k) continue;
        const bool late = WRONG(PAST_HIDDEN, j > i + shift, j < i + shift);
        const bool masked = WRONG(NO_MASK, is_causal || variant.pulls(ALWAYS_MASKED), false) && late;
        const long long place = WRONG(TRANSPOSED, (long long)i * L_k + j, (long long)j * L_q + i);
        S[place] = masked ? WRONG(HIDDEN_IS_0, NEG_INF, 0) : scale * sum[r];
    }
}
