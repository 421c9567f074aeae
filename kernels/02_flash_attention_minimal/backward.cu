// backward.cu — gradients by recomputation: P comes back tile by tile from Q, K and the saved
// log-sum-exp, so nothing of size L² is ever stored. Three kernels, in this order:
//   backward_delta  Δ = rowsum(dO ∘ O): the paper's D (here D is the head dimension)
//   backward_dk_dv  a block per key tile, loop over query tiles: dV = Pᵀ dO, dK = scale · dSᵀ Q
//   backward_dq     a block per query tile, loop over key tiles: dQ = scale · dS K
// where P = exp(S − LSE), dP = dO Vᵀ, dS = P ∘ (dP − Δ). The paper adds up dQ with atomics in the
// key-tile pass; here S and dP are computed once more instead, and every run gives the same bits.
//
// grid   (ceil(L_q / TILE), H, B); for backward_dk_dv (ceil(L_k / TILE), H, B)
// block  (TILE / ROWS * TX)
// layout Q, O, dO, dQ [B, H, L_q, D]  K, V, dK, dV [B, H, L_k, D]  LSE, Delta [B, H, L_q], fp32,
//        contiguous, matrices aligned to 16 bytes
// shared 4 · (4·TILE·(D+4) + TILE·(TILE+TX) + 2·TILE) bytes, dynamic; backward_delta none
// limits TX threads share a row: 8 or 16; D a multiple of 4·TX, TILE of TX and of 32·ROWS/TX
// options: -DD=32 -DTILE=64 -DTX=8 -DROWS=4 | -DD=64 -DTILE=64 -DTX=16 -DROWS=8 | -DD=64 -DTILE=32 -DTX=16 -DROWS=4 | -DD=128 -DTILE=32 -DTX=16 -DROWS=4 | -DD=128 -DTILE=16 -DTX=16 -DROWS=2
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 2
constexpr int TY = TILE / ROWS, THREADS = TX * TY;
constexpr int SCORES = TILE / TX, COLS = D / 4 / TX;   // a thread's scores; float4s of a gradient
#include "register_tile.cuh"

static_assert(COLS * TX * 4 == D, "D must be a multiple of 4 * TX");
static_assert(SCORES * TX == TILE && TILE % 4 == 0, "TILE must be a multiple of TX and of 4");
static_assert(ROWS * TY == TILE && THREADS % 32 == 0, "TILE must be a multiple of 32 * ROWS / TX");
static_assert(TX == 8 || TX == 16, "TX must be 8 or 16");

// Padding shifts each row by a few banks, so that rows read together do not collide.
typedef float4 Matrix[TILE][D / 4 + 1];
typedef float Scores[TILE][TILE + TX];
struct Tiles { Matrix Q, K, V, dO; Scores scores; float LSE[TILE], Delta[TILE]; };

// The number of each query row, of `first`, first + 1, ...; 0 past the end.
__device__ void load_row_numbers(float (&tile)[TILE], const float* numbers, int first, int L) {
    for (int e = threadIdx.x; e < TILE; e += THREADS) tile[e] = first + e < L ? numbers[first + e] : 0;
}

// sum += A B. A is a tile of scores, of which this thread has a piece; a row stays within its warp.
__device__ void add_product(float4 (&sum)[ROWS][COLS], Scores& tile,
                            const float (&A)[ROWS][SCORES], const Matrix& B) {
    __syncwarp();   // the warp is done with what the tile held before
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < SCORES; c++) tile[row() + r * TY][column() + c * TX] = A[r][c];
    __syncwarp();
    multiply(sum, tile, B);
}

// Writes factor · sum to rows first + row(), ... of a [L, D] matrix.
__device__ void store(float4* matrix, const float4 (&sum)[ROWS][COLS], float factor, int first,
                      int L) {
    for (int r = 0; r < ROWS; r++) {
        const int i = first + row() + r * TY;
        float4* out = matrix + (long long)i * (D / 4) + column();
        for (int c = 0; c < COLS && i < L; c++) out[c * TX] = scaled(factor, sum[r][c]);
    }
}

// Δ: one thread per row. It adds in the order in which multiply_transposed adds dP up, so that dP − Δ
// cancels exactly where a query sees a single key and O is that row of V.
extern "C" __global__ void __launch_bounds__(THREADS)
backward_delta(const float4* O, const float4* dO, float* Delta, int L_q) {
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    O += head * L_q * D / 4, dO += head * L_q * D / 4, Delta += head * L_q;
    const int end = min(L_q, (int)(blockIdx.x + 1) * TILE);
    for (int i = blockIdx.x * TILE + threadIdx.x; i < end; i += THREADS) {
        const long long at = (long long)i * (D / 4);
        float sum = 0;
        for (int d = 0; d < D / 4; d++) sum = add_dot(sum, dO[at + d], O[at + d]);
        Delta[i] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_dk_dv(const float4* Q, const float4* K, const float4* V, const float4* dO,
               const float* LSE, const float* Delta, float4* dK, float4* dV, int L_q, int L_k,
               float scale, int is_causal) {
    extern __shared__ float4 shared_memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D / 4, dO += head * L_q * D / 4, LSE += head * L_q, Delta += head * L_q;
    K += head * L_k * D / 4, V += head * L_k * D / 4;
    dK += head * L_k * D / 4, dV += head * L_k * D / 4;
    const int j0 = blockIdx.x * TILE, shift = L_k - L_q;   // causal: i sees j <= i + shift
    const int first = is_causal ? max(j0 - shift, 0) / TILE * TILE : 0;   // earlier rows see no key

    load_tile(tile.K, K, j0, L_k);
    load_tile(tile.V, V, j0, L_k);
    float4 dK_j[ROWS][COLS] = {}, dV_j[ROWS][COLS] = {};

    for (int i0 = first; i0 < L_q; i0 += TILE) {
        __syncthreads();   // every thread is done with the previous tiles
        load_tile(tile.Q, Q, i0, L_q);
        load_tile(tile.dO, dO, i0, L_q);
        load_row_numbers(tile.LSE, LSE, i0, L_q);
        load_row_numbers(tile.Delta, Delta, i0, L_q);
        __syncthreads();

        // Sᵀ and dPᵀ, then Pᵀ and dSᵀ: a row is a key, a column a query
        float St[ROWS][SCORES] = {}, Pt[ROWS][SCORES], dPt[ROWS][SCORES] = {}, dSt[ROWS][SCORES];
        multiply_transposed(St, tile.K, tile.Q);
        multiply_transposed(dPt, tile.V, tile.dO);
        for (int c = 0; c < SCORES; c++) {
            const int i = i0 + column() + c * TX;
            const float lse = tile.LSE[i - i0], delta = tile.Delta[i - i0];
            for (int r = 0; r < ROWS; r++) {
                const int j = j0 + row() + r * TY;
                const bool masked = i >= L_q || j >= L_k || (is_causal && j > i + shift);
                Pt[r][c] = masked ? 0 : exp2f(fmaf(St[r][c], scale, -lse) * LOG2_E);
                dSt[r][c] = Pt[r][c] * (dPt[r][c] - delta);
            }
        }
        add_product(dV_j, tile.scores, Pt, tile.dO);
        add_product(dK_j, tile.scores, dSt, tile.Q);
    }
    store(dV, dV_j, 1, j0, L_k);
    store(dK, dK_j, scale, j0, L_k);
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_dq(const float4* Q, const float4* K, const float4* V, const float4* dO, const float* LSE,
            const float* Delta, float4* dQ, int L_q, int L_k, float scale, int is_causal) {
    extern __shared__ float4 shared_memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D / 4, dO += head * L_q * D / 4, LSE += head * L_q, Delta += head * L_q;
    K += head * L_k * D / 4, V += head * L_k * D / 4, dQ += head * L_q * D / 4;
    const int i0 = blockIdx.x * TILE, shift = L_k - L_q;
    const int keys_end = is_causal ? min(L_k, i0 + TILE + shift) : L_k;

    load_tile(tile.Q, Q, i0, L_q);
    load_tile(tile.dO, dO, i0, L_q);
    load_row_numbers(tile.LSE, LSE, i0, L_q);
    load_row_numbers(tile.Delta, Delta, i0, L_q);
    float4 dQ_i[ROWS][COLS] = {};

    for (int j0 = 0; j0 < keys_end; j0 += TILE) {
        __syncthreads();   // every thread is done with the previous tiles
        load_tile(tile.K, K, j0, L_k);
        load_tile(tile.V, V, j0, L_k);
        __syncthreads();

        // S and dP, then P and dS: a row is a query, a column a key
        float S[ROWS][SCORES] = {}, dP[ROWS][SCORES] = {}, dS[ROWS][SCORES];
        multiply_transposed(S, tile.Q, tile.K);
        multiply_transposed(dP, tile.dO, tile.V);
        for (int r = 0; r < ROWS; r++) {
            const int i = i0 + row() + r * TY;
            const float lse = tile.LSE[i - i0], delta = tile.Delta[i - i0];
            for (int c = 0; c < SCORES; c++) {
                const int j = j0 + column() + c * TX;
                const bool masked = i >= L_q || j >= L_k || (is_causal && j > i + shift);
                const float P = masked ? 0 : exp2f(fmaf(S[r][c], scale, -lse) * LOG2_E);
                dS[r][c] = P * (dP[r][c] - delta);
            }
        }
        add_product(dQ_i, tile.scores, dS, tile.K);
    }
    store(dQ, dQ_i, scale, i0, L_q);
}
