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
constexpr int SCORES = TILE / TX, COLS = D / TX;   // a thread's columns of scores, of a gradient
constexpr float LOG2_E = 1.44269504f;
static_assert(COLS * TX == D && COLS % 4 == 0, "D must be a multiple of 4 * TX");
static_assert(SCORES * TX == TILE && TILE % 4 == 0, "TILE must be a multiple of TX and of 4");
static_assert(ROWS * TY == TILE && THREADS % 32 == 0, "TILE must be a multiple of 32 * ROWS / TX");
static_assert(TX == 8 || TX == 16, "TX must be 8 or 16");

// Padding shifts each row by a few banks, so that rows read together do not collide.
typedef float Matrix[TILE][D + 4];
typedef float Scores[TILE][TILE + TX];
struct Tiles { Matrix Q, K, V, dO; Scores scores; float LSE[TILE], Delta[TILE]; };

__device__ float4& as_float4(float& x) { return reinterpret_cast<float4&>(x); }
// Lanes alternate between two rows: 16-byte reads along rows and along columns merge in pairs.
__device__ int column() { return threadIdx.x / 2 % TX; }
__device__ int row() { return threadIdx.x % 2 + threadIdx.x / (2 * TX) * 2; }

// Copies rows `first`, first + 1, ... of a [L, D] matrix to shared memory; zeros past its end.
__device__ void load_tile(Matrix& tile, const float* matrix, int first, int L) {
    for (int e = threadIdx.x * 4; e < TILE * D; e += THREADS * 4) {
        const float4* source = reinterpret_cast<const float4*>(matrix + (long long)first * D + e);
        as_float4(tile[e / D][e % D]) = first + e / D < L ? *source : make_float4(0, 0, 0, 0);
    }
}

// The same for the two numbers of each query row.
__device__ void load_rows(Tiles& tile, const float* LSE, const float* Delta, int first, int L) {
    for (int e = threadIdx.x; e < TILE; e += THREADS) {
        tile.LSE[e] = first + e < L ? LSE[first + e] : 0;
        tile.Delta[e] = first + e < L ? Delta[first + e] : 0;
    }
}

// sum = A Bᵀ: this thread's rows of A against its rows of B.
__device__ void multiply_transposed(float (&sum)[ROWS][SCORES], Matrix& A, Matrix& B) {
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < SCORES; c++) sum[r][c] = 0;
    #pragma unroll 2
    for (int d = 0; d < D; d += 4) {
        float4 a[ROWS];
        for (int r = 0; r < ROWS; r++) a[r] = as_float4(A[row() + r * TY][d]);
        for (int c = 0; c < SCORES; c++) {
            const float4 b = as_float4(B[column() + c * TX][d]);
            for (int r = 0; r < ROWS; r++) {
                sum[r][c] = fmaf(a[r].x, b.x, sum[r][c]), sum[r][c] = fmaf(a[r].y, b.y, sum[r][c]);
                sum[r][c] = fmaf(a[r].z, b.z, sum[r][c]), sum[r][c] = fmaf(a[r].w, b.w, sum[r][c]);
            }
        }
    }
}

// Stores this thread's piece of a score tile; then sum += tile · B. A row stays within its warp.
__device__ void store_and_multiply(float (&sum)[ROWS][COLS], Scores& tile,
                                   float (&piece)[ROWS][SCORES], Matrix& B) {
    __syncwarp();   // the warp is done with what the tile held before
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < SCORES; c++) tile[row() + r * TY][column() + c * TX] = piece[r][c];
    __syncwarp();
    #pragma unroll 2
    for (int k = 0; k < TILE; k += 4) {
        float4 a[ROWS];
        for (int r = 0; r < ROWS; r++) a[r] = as_float4(tile[row() + r * TY][k]);
        for (int kk = 0; kk < 4; kk++)
            for (int c = 0; c < COLS; c += 4) {
                const float4 b = as_float4(B[k + kk][4 * column() + c * TX]);
                for (int r = 0; r < ROWS; r++) {
                    const float a_k = (&a[r].x)[kk];
                    float* s = &sum[r][c];
                    s[0] = fmaf(a_k, b.x, s[0]), s[1] = fmaf(a_k, b.y, s[1]);
                    s[2] = fmaf(a_k, b.z, s[2]), s[3] = fmaf(a_k, b.w, s[3]);
                }
            }
    }
}

// Writes factor · sum to rows first + row(), ... of a [L, D] matrix.
__device__ void store(float* matrix, float (&sum)[ROWS][COLS], float factor, int first, int L) {
    for (int r = 0; r < ROWS; r++) {
        const int i = first + row() + r * TY;
        for (int c = 0; c < COLS; c++) sum[r][c] *= factor;
        float4* out = reinterpret_cast<float4*>(matrix + (long long)i * D) + column();
        for (int c = 0; c < COLS && i < L; c += 4) out[c * TX / 4] = as_float4(sum[r][c]);
    }
}

// Δ: one thread per row. It adds in the order in which multiply_transposed adds dP up, so that dP − Δ
// cancels exactly where a query sees a single key and O is that row of V.
extern "C" __global__ void __launch_bounds__(THREADS)
backward_delta(const float* O, const float* dO, float* Delta, int L_q) {
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    O += head * L_q * D, dO += head * L_q * D, Delta += head * L_q;
    const int end = min(L_q, (int)(blockIdx.x + 1) * TILE);
    for (int i = blockIdx.x * TILE + threadIdx.x; i < end; i += THREADS) {
        const float4* o = reinterpret_cast<const float4*>(O + (long long)i * D);
        const float4* g = reinterpret_cast<const float4*>(dO + (long long)i * D);
        float sum = 0;
        for (int d = 0; d < D / 4; d++) {
            sum = fmaf(g[d].x, o[d].x, sum), sum = fmaf(g[d].y, o[d].y, sum);
            sum = fmaf(g[d].z, o[d].z, sum), sum = fmaf(g[d].w, o[d].w, sum);
        }
        Delta[i] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_dk_dv(const float* Q, const float* K, const float* V, const float* dO, const float* LSE,
               const float* Delta, float* dK, float* dV, int L_q, int L_k, float scale,
               int is_causal) {
    extern __shared__ float4 shared_memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, dO += head * L_q * D, LSE += head * L_q, Delta += head * L_q;
    K += head * L_k * D, V += head * L_k * D, dK += head * L_k * D, dV += head * L_k * D;
    const int j0 = blockIdx.x * TILE, shift = L_k - L_q;   // causal: i sees j <= i + shift
    const int first = is_causal ? max(j0 - shift, 0) / TILE * TILE : 0;   // earlier rows see no key

    load_tile(tile.K, K, j0, L_k);
    load_tile(tile.V, V, j0, L_k);
    float dK_j[ROWS][COLS] = {}, dV_j[ROWS][COLS] = {};

    for (int i0 = first; i0 < L_q; i0 += TILE) {
        __syncthreads();   // every thread is done with the previous tiles
        load_tile(tile.Q, Q, i0, L_q);
        load_tile(tile.dO, dO, i0, L_q);
        load_rows(tile, LSE, Delta, i0, L_q);
        __syncthreads();

        // Sᵀ and dPᵀ, then Pᵀ and dSᵀ: a row is a key, a column a query
        float P[ROWS][SCORES], dS[ROWS][SCORES];
        multiply_transposed(P, tile.K, tile.Q);
        multiply_transposed(dS, tile.V, tile.dO);
        for (int c = 0; c < SCORES; c++) {
            const int i = i0 + column() + c * TX;
            const float lse = tile.LSE[i - i0], delta = tile.Delta[i - i0];
            for (int r = 0; r < ROWS; r++) {
                const int j = j0 + row() + r * TY;
                const bool masked = i >= L_q || j >= L_k || (is_causal && j > i + shift);
                P[r][c] = masked ? 0 : exp2f(fmaf(P[r][c], scale, -lse) * LOG2_E);
                dS[r][c] = P[r][c] * (dS[r][c] - delta);
            }
        }
        store_and_multiply(dV_j, tile.scores, P, tile.dO);
        store_and_multiply(dK_j, tile.scores, dS, tile.Q);
    }
    store(dV, dV_j, 1, j0, L_k);
    store(dK, dK_j, scale, j0, L_k);
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_dq(const float* Q, const float* K, const float* V, const float* dO, const float* LSE,
            const float* Delta, float* dQ, int L_q, int L_k, float scale, int is_causal) {
    extern __shared__ float4 shared_memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, dO += head * L_q * D, LSE += head * L_q, Delta += head * L_q;
    K += head * L_k * D, V += head * L_k * D, dQ += head * L_q * D;
    const int i0 = blockIdx.x * TILE, shift = L_k - L_q;
    const int keys_end = is_causal ? min(L_k, i0 + TILE + shift) : L_k;

    load_tile(tile.Q, Q, i0, L_q);
    load_tile(tile.dO, dO, i0, L_q);
    load_rows(tile, LSE, Delta, i0, L_q);
    float dQ_i[ROWS][COLS] = {};

    for (int j0 = 0; j0 < keys_end; j0 += TILE) {
        __syncthreads();   // every thread is done with the previous tiles
        load_tile(tile.K, K, j0, L_k);
        load_tile(tile.V, V, j0, L_k);
        __syncthreads();

        // S and dP, then P and dS: a row is a query, a column a key
        float S[ROWS][SCORES], dS[ROWS][SCORES];
        multiply_transposed(S, tile.Q, tile.K);
        multiply_transposed(dS, tile.dO, tile.V);
        for (int r = 0; r < ROWS; r++) {
            const int i = i0 + row() + r * TY;
            const float lse = tile.LSE[i - i0], delta = tile.Delta[i - i0];
            for (int c = 0; c < SCORES; c++) {
                const int j = j0 + column() + c * TX;
                const bool masked = i >= L_q || j >= L_k || (is_causal && j > i + shift);
                const float P = masked ? 0 : exp2f(fmaf(S[r][c], scale, -lse) * LOG2_E);
                dS[r][c] = P * (dS[r][c] - delta);
            }
        }
        store_and_multiply(dQ_i, tile.scores, dS, tile.K);
    }
    store(dQ, dQ_i, scale, i0, L_q);
}
