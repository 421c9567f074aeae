// mini_flash.cu — FlashAttention forward: eight lanes share a query row. Each of them scores every
// eighth key of a tile, and keeps every eighth column of O. S and P never reach global memory.
//
// grid   (ceil(L_q / 16), H, B)      block (128): 16 rows of 8 lanes; a row stays in its warp
// layout Q, O [B, H, L_q, D]  K, V [B, H, L_k, D]  LSE [B, H, L_q], fp32, contiguous
// shared 4 · (48·(D+1) + 32·D + 16·40) bytes, static: 12.7 KiB for D = 32, 22.7 KiB for D = 64
// limits D a multiple of 8, up to 128; any L_q and L_k from 1; H and B up to 65535
// options: -DD=32 | -DD=64
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1
constexpr int B_R = 16, B_C = 32, LANES = 8, THREADS = B_R * LANES;
constexpr int KEYS = B_C / LANES, COLS = D / LANES;   // of a lane: keys of a tile, columns of O
#define NEG_INF __int_as_float(0xff800000)
static_assert(D % LANES == 0, "D must be a multiple of 8");

// Padding shifts each row by a few banks, so that rows read together do not collide.
struct Tiles { float Q[B_R][D + 1], K[B_C][D + 1], V[B_C][D], P[B_R][B_C + LANES]; };

// Copies rows `first`, first + 1, ... of a [L, D] matrix to shared memory; zeros past its end.
template <int ROWS, int PITCH>
__device__ void load_tile(float (&tile)[ROWS][PITCH], const float* matrix, int first, int L) {
    for (int e = threadIdx.x; e < ROWS * D; e += THREADS)
        tile[e / D][e % D] = first + e / D < L ? matrix[(long long)first * D + e] : 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
mini_flash(const float* Q, const float* K, const float* V, float* O, float* LSE,
           int L_q, int L_k, float scale, int is_causal) {
    __shared__ Tiles tile;
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, O += head * L_q * D, LSE += head * L_q;
    K += head * L_k * D, V += head * L_k * D;
    const int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int i = blockIdx.x * B_R + row;   // this lane's query, shared with seven other lanes

    // What is known of the row so far. O_i[c] is column lane + c · LANES, not yet divided by l.
    float m = NEG_INF, l = 0, O_i[COLS] = {};
    load_tile(tile.Q, Q, blockIdx.x * B_R, L_q);

    for (int j0 = 0; j0 < L_k; j0 += B_C) {
        __syncthreads();   // every thread is done with the previous K and V
        load_tile(tile.K, K, j0, L_k);
        load_tile(tile.V, V, j0, L_k);
        __syncthreads();

        // 1. Scores of the row with keys j0 + lane + k · LANES of the tile; −∞ for a key that query
        //    i does not see (causal: it sees j <= i + L_k − L_q), or that is past the last one.
        float S[KEYS] = {};
        // BEGIN SOLUTION
        for (int d = 0; d < D; d++) {
            const float q = tile.Q[row][d];   // read once for all keys of the lane
            for (int k = 0; k < KEYS; k++) S[k] += q * tile.K[lane + k * LANES][d];
        }
        for (int k = 0; k < KEYS; k++) {
            const int j = j0 + lane + k * LANES;
            const bool hidden = j >= L_k || (is_causal && j > i + L_k - L_q);
            S[k] = hidden ? NEG_INF : scale * S[k];
        }
        // END SOLUTION

        // 2. Online softmax: the maximum so far over all eight lanes; l and O_i rescaled to it;
        //    P = exp(S − m) to tile.P[row], and into l.
        // BEGIN SOLUTION
        float m_new = m;
        for (int k = 0; k < KEYS; k++) m_new = fmaxf(m_new, S[k]);
        for (int step = LANES / 2; step > 0; step /= 2)
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, step));
        const float base = m_new == NEG_INF ? 0 : m_new;   // no key yet: never −∞ − (−∞) = NaN
        const float rescale = expf(m - base);
        m = m_new;
        l *= rescale;
        for (int c = 0; c < COLS; c++) O_i[c] *= rescale;
        for (int k = 0; k < KEYS; k++) {
            const float p = expf(S[k] - base);
            l += p;   // of this lane's keys; the lanes add up once, at the end
            tile.P[row][lane + k * LANES] = p;
        }
        __syncwarp();   // P of a row is written and read by the lanes of one warp
        // END SOLUTION

        // 3. O_i += P V: all keys of the tile, this lane's columns.
        // BEGIN SOLUTION
        for (int j = 0; j < B_C; j++) {
            const float p = tile.P[row][j];
            for (int c = 0; c < COLS; c++) O_i[c] += p * tile.V[j][lane + c * LANES];
        }
        // END SOLUTION
    }

    // 4. The whole l; O = O_i / l and LSE = m + log(l), for rows below L_q. A row that saw no key
    //    gives 0 and −∞.
    // BEGIN SOLUTION
    for (int step = LANES / 2; step > 0; step /= 2) l += __shfl_xor_sync(0xffffffff, l, step);
    const float inverse = l > 0 ? 1 / l : 0;
    for (int c = 0; c < COLS && i < L_q; c++)
        O[(long long)i * D + lane + c * LANES] = O_i[c] * inverse;
    if (lane == 0 && i < L_q) LSE[i] = l > 0 ? m + logf(l) : NEG_INF;
    // END SOLUTION
}
