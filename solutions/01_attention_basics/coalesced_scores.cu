// coalesced_scores.cu — S = scale · Q Kᵀ from Q and K as a projection leaves them: the heads of one
// token side by side. A block turns a 32 × 32 piece of K around in shared memory, and each thread
// keeps four scores, so that a number of K that was fetched once serves four queries.
//
// grid   (ceil(L_k / 32), ceil(L_q / 32), B · H)      block  (32, 8)
// layout Q [B, L_q, H, d]  K [B, L_k, H, d]  S [B, H, L_q, L_k], fp32, contiguous
// shared 4 · 32 · (32 + 33) = 8320 bytes, static
// limits any L_q, L_k and d; B · H and L_q / 32 up to 65535
// paper  FlashAttention (arXiv 2205.14135), Algorithm 0, line 1
#define NEG_INF __int_as_float(0xff800000)
constexpr int TILE = 32, ROWS = 8, PER_THREAD = TILE / ROWS;   // a thread has 4 scores

extern "C" __global__ void __launch_bounds__(TILE * ROWS)
coalesced_scores(const float* Q, const float* K, float* S, int L_q, int L_k, int H, int d,
                 float scale, int is_causal) {
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int j0 = blockIdx.x * TILE, i0 = blockIdx.y * TILE;   // the block's first key and query
    const int b = blockIdx.z / H, h = blockIdx.z % H;
    // Row i of this head's scores begins at S[i · L_k]. What lies beyond L_q or L_k has no score.
    S += (long long)blockIdx.z * L_q * L_k;
    // BEGIN SOLUTION
    const long long pitch = (long long)H * d;   // from a token to the next, in floats
    Q += (long long)b * L_q * pitch + h * d, K += (long long)b * L_k * pitch + h * d;

    // One column of padding: a warp reads a column of K_tile, in 32 different banks.
    __shared__ float Q_tile[TILE][TILE], K_tile[TILE][TILE + 1];
    float sum[PER_THREAD] = {};
    for (int c0 = 0; c0 < d; c0 += TILE) {
        // load: the 32 threads of a warp side by side along a row
        const int column = c0 + tx;
        for (int r = ty; r < TILE; r += ROWS) {
            Q_tile[r][tx] = i0 + r < L_q && column < d ? Q[(i0 + r) * pitch + column] : 0;
            K_tile[r][tx] = j0 + r < L_k && column < d ? K[(j0 + r) * pitch + column] : 0;
        }
        __syncthreads();   // both pieces are complete
        // multiply: thread tx has key j0 + tx, and four queries
        for (int c = 0; c < TILE; c++) {
            const float k = K_tile[tx][c];
            for (int r = 0; r < PER_THREAD; r++) sum[r] += Q_tile[ty + r * ROWS][c] * k;
        }
        __syncthreads();   // every thread is done with them
    }
    // write: neighbouring threads hold neighbouring keys, so the stores are side by side as well
    const int j = j0 + tx;
    for (int r = 0; r < PER_THREAD; r++) {
        const int i = i0 + ty + r * ROWS;
        if (i >= L_q || j >= L_k) continue;
        const bool masked = is_causal && j > i + L_k - L_q;   // the last query sees every key
        S[(long long)i * L_k + j] = masked ? NEG_INF : scale * sum[r];
    }
    // END SOLUTION
}
