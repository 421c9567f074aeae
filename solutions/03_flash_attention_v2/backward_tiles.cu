// backward_tiles.cu — dK and dV of attention, tile by tile: a block owns 16 keys and walks over the
// queries. P comes back from Q, K and the saved log-sum-exp; nothing of size L_q · L_k is stored.
//
//   S = scale · Q Kᵀ     P = exp(S − LSE), 0 where a key is hidden     dV = Pᵀ dO
//   dP = dO Vᵀ           dS = P ∘ (dP − Δ), Δ = rowsum(dO ∘ O)         dK = scale · dSᵀ Q
//
// grid   (ceil(L_k / 16), H, B)      block (128): 16 keys of 8 lanes; a key stays in its warp
// layout Q, dO [B, H, L_q, D]  K, V, dK, dV [B, H, L_k, D]  LSE, delta [B, H, L_q], fp32, contiguous;
//        delta is Δ
// shared 4 · (64·(D+1) + 32·17 + 32) bytes, static: 10.5 KiB for D = 32, 18.5 KiB for D = 64
// limits D a multiple of 8, up to 128; any L_q and L_k from 1; H and B up to 65535
// options: -DD=32 | -DD=64
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 2
constexpr int B_R = 16, B_C = 16, LANES = 8, THREADS = B_C * LANES;
constexpr int QUERIES = B_R / LANES, COLS = D / LANES;   // of a lane: queries of a tile, columns
static_assert(D % LANES == 0, "D must be a multiple of 8");

// Padding shifts each row by a bank, so that rows read together do not collide.
struct Tiles {
    float K[B_C][D + 1], V[B_C][D + 1], Q[B_R][D + 1], dO[B_R][D + 1];
    float P[B_C][B_R + 1], dS[B_C][B_R + 1];   // by key, then by query: Pᵀ and dSᵀ
    float LSE[B_R], delta[B_R];
};

// Copies rows `first`, first + 1, ... of a [L, D] matrix to shared memory; zeros past its end.
template <int ROWS, int PITCH>
__device__ void load_tile(float (&tile)[ROWS][PITCH], const float* matrix, int first, int L) {
    for (int e = threadIdx.x; e < ROWS * D; e += THREADS)
        tile[e / D][e % D] = first + e / D < L ? matrix[(long long)first * D + e] : 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_tiles(const float* Q, const float* K, const float* V, const float* dO, const float* LSE,
               const float* delta, float* dK, float* dV, int L_q, int L_k, float scale,
               int is_causal) {
    __shared__ Tiles tile;
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, dO += head * L_q * D, LSE += head * L_q, delta += head * L_q;
    K += head * L_k * D, V += head * L_k * D, dK += head * L_k * D, dV += head * L_k * D;
    const int key = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int j = blockIdx.x * B_C + key;   // this lane's key, shared with seven other lanes

    // The rows of the key, as far as they are known: column lane + c · LANES is at place c.
    float dK_j[COLS] = {}, dV_j[COLS] = {};
    load_tile(tile.K, K, blockIdx.x * B_C, L_k);
    load_tile(tile.V, V, blockIdx.x * B_C, L_k);

    for (int i0 = 0; i0 < L_q; i0 += B_R) {
        // 1. The tile of queries i0, i0 + 1, … to tile.Q, tile.dO, tile.LSE and tile.delta, each
        //    number once in the block, with the barriers that it takes. Past L_q there is nothing.
        // BEGIN SOLUTION
        __syncthreads();   // every thread is done with the previous tile
        load_tile(tile.Q, Q, i0, L_q);
        load_tile(tile.dO, dO, i0, L_q);
        if (threadIdx.x < B_R) {
            const int i = i0 + threadIdx.x;
            tile.LSE[threadIdx.x] = i < L_q ? LSE[i] : 0;
            tile.delta[threadIdx.x] = i < L_q ? delta[i] : 0;
        }
        __syncthreads();
        // END SOLUTION

        // 2. P and dS of the key with queries i0 + lane + n · LANES, to tile.P[key] and tile.dS[key].
        //    P = 0 where query i does not see key j (causal: it sees j <= i + L_k − L_q).
        // BEGIN SOLUTION
        for (int n = 0; n < QUERIES; n++) {
            const int row = lane + n * LANES, i = i0 + row;
            float S = 0, dP = 0;
            for (int d = 0; d < D; d++) {
                S += tile.Q[row][d] * tile.K[key][d];
                dP += tile.dO[row][d] * tile.V[key][d];
            }
            const bool hidden = is_causal && j > i + L_k - L_q;
            const float P = hidden ? 0 : expf(scale * S - tile.LSE[row]);
            tile.P[key][row] = P;
            tile.dS[key][row] = P * (dP - tile.delta[row]);
        }
        __syncwarp();   // P and dS of a key are written and read by the lanes of one warp
        // END SOLUTION

        // 3. dV_j += Pᵀ dO and dK_j += dSᵀ Q: all queries of the tile, this lane's columns.
        // BEGIN SOLUTION
        for (int row = 0; row < B_R; row++) {
            const float P = tile.P[key][row], dS = tile.dS[key][row];
            for (int c = 0; c < COLS; c++) {
                dV_j[c] += P * tile.dO[row][lane + c * LANES];
                dK_j[c] += dS * tile.Q[row][lane + c * LANES];
            }
        }
        // END SOLUTION
    }

    // 4. Rows of dV and dK below L_k; here comes the scale of dK.
    // BEGIN SOLUTION
    for (int c = 0; c < COLS && j < L_k; c++) {
        dV[(long long)j * D + lane + c * LANES] = dV_j[c];
        dK[(long long)j * D + lane + c * LANES] = scale * dK_j[c];
    }
    // END SOLUTION
}
