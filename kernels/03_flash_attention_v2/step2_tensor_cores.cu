// step2_tensor_cores.cu — FlashAttention-2 forward with both products on tensor cores.
//
// Step 2 of the ladder. mma.sync multiplies 16 × 16 by 16 × 8 numbers in one instruction of a warp,
// and ldmatrix brings its operands from shared memory; tensor cores do about ten times the work of
// the CUDA cores. A warp has 16 M rows, of which four lanes share one each. A tile has 64 queries,
// and its rows no padding any more; all else is as before. In the profiler: the tensor pipe works,
// but waits for shared memory: rows of a tile begin in the same bank, and each ldmatrix takes
// eight turns for one.
//
// grid   (ceil(L_q / B_R), H, B)       block  (32 · WARPS)
// layout Q, O [B, H, L_q, D]  K, V [B, H/group, L_k, D], fp16 or bf16  LSE [B, H, L_q], fp32;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
// shared 4 · D·(B_R + B_C) bytes, dynamic
// limits scale > 0; D 64 or 128; B_C a multiple of 16, B_R of 16·WARPS, B_C <= D
// options: -DD=64 -DBF16=0 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=64 -DBF16=1 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=128 -DBF16=0 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=128 -DBF16=1 -DB_R=64 -DB_C=64 -DWARPS=4
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1
constexpr int THREADS = 32 * WARPS;
#include "tensor_core.cuh"
#include "fragment_rows.cuh"
constexpr int ROWS = B_R / WARPS, M = ROWS / 16;   // a warp's rows, and its products of 16 rows
constexpr int N = B_C / 8, C = D / 8;              // and of 8 columns, of S and of O
static_assert(16 * M * WARPS == B_R && B_C % 16 == 0, "16 * WARPS must divide B_R, and 16 B_C");
static_assert(B_C <= D, "B_C <= D must hold: a row of P has the room of a row of Q");

// Index of the first element of a chunk: row after row.
__device__ inline int place(int row, int chunk) { return row * D + chunk * 8; }

// Copies ROWS rows of a matrix to shared memory; zeros from row `rows_left` on.
template <int ROWS>
__device__ void load_tile(scalar_t* tile, const scalar_t* matrix, int rows_left) {
    #pragma unroll
    for (int e = threadIdx.x; e < ROWS * D / 8; e += THREADS) {
        const int row = e / (D / 8), chunk = e % (D / 8);
        *reinterpret_cast<uint4*>(tile + place(row, chunk)) =
            row < rows_left ? reinterpret_cast<const uint4*>(matrix)[e] : make_uint4(0, 0, 0, 0);
    }
}

// The same as a shared-memory address, for ldmatrix.
__device__ inline unsigned address(const scalar_t* tile, int row, int chunk) {
    return (unsigned)__cvta_generic_to_shared(tile + place(row, chunk));
}

// S = Q Kᵀ for the warp's rows
__device__ void compute_scores(float (&S)[M][N][4], const scalar_t* Q, const scalar_t* K) {
    const int lane = threadIdx.x % 32;
    for (int d = 0; d < D / 16; d++) {
        unsigned q[M][4];
        for (int i = 0; i < M; i++)
            ldmatrix_x4(q[i], address(Q, 16 * i + lane % 16, 2 * d + lane / 16));
        for (int n = 0; n < N; n += 2) {
            unsigned k[4];   // rows of K are columns of Kᵀ: 16 keys
            const int key = 8 * n + lane % 8 + lane / 16 * 8;
            ldmatrix_x4(k, address(K, key, 2 * d + lane / 8 % 2));
            for (int i = 0; i < M; i++) {
                mma_16x8x16(S[i][n], q[i], k[0], k[1]);
                mma_16x8x16(S[i][n + 1], q[i], k[2], k[3]);
            }
        }
    }
}

// S = −∞ where the query may not see the key, or there is none. The lane's first query is i0, its
// first key j0; a causal query i sees the keys up to i + shift.
__device__ void mask(float (&S)[M][N][4], int i0, int j0, int L_k, int shift, int is_causal) {
    for (int i = 0; i < M; i++)
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++) {
                const int query = i0 + 16 * i + e / 2 * 8, key = j0 + 8 * n + e % 2;
                if (key >= L_k || (is_causal && key > query + shift)) S[i][n][e] = NEG_INF;
            }
}

// Online softmax: raises the maximum m, rescales l and O to it, S becomes P = exp(scale · (S − m)).
__device__ void softmax(float (&S)[M][N][4], float (&O)[M][C][4], float (&m)[M][2],
                        float (&l)[M][2], float factor) {
    for (int i = 0; i < M; i++)
        for (int r = 0; r < 2; r++) {
            const float m_new = highest_of_row(highest_of_lane(S[i], r, m[i][r]));
            const float base = m_new == NEG_INF ? 0 : m_new;   // no key yet: never −∞ − (−∞)
            const float rescale = exp2f((m[i][r] - base) * factor);
            m[i][r] = m_new, l[i][r] *= rescale;
            scale_row(O[i], r, rescale);
            for (int n = 0; n < N; n++)
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    S[i][n][e] = exp2f((S[i][n][e] - base) * factor);
                    l[i][r] += S[i][n][e];   // this lane's keys; four lanes add up at the end
                }
        }
}

// Rounds P to 16 bits and writes the warp's rows of it to shared memory.
__device__ void write_weights(scalar_t* P, const float (&S)[M][N][4]) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < M; i++)
        for (int n = 0; n < N; n++)
            for (int r = 0; r < 2; r++) {
                scalar_t* chunk = P + place(16 * i + 8 * r + lane / 4, n);
                reinterpret_cast<unsigned*>(chunk)[lane % 4] =
                    pack(S[i][n][2 * r], S[i][n][2 * r + 1]);
            }
}

// O += P V
__device__ void accumulate(float (&O)[M][C][4], const scalar_t* P, const scalar_t* V) {
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < N; n += 2) {
        unsigned p[M][4];
        for (int i = 0; i < M; i++)
            ldmatrix_x4(p[i], address(P, 16 * i + lane % 16, n + lane / 16));
        for (int c = 0; c < C; c += 2) {
            unsigned v[4];   // columns of V: 16 keys, transposed on the way
            ldmatrix_x4_trans(v, address(V, 8 * n + lane % 16, c + lane / 16));
            for (int i = 0; i < M; i++) {
                mma_16x8x16(O[i][c], p[i], v[0], v[1]);
                mma_16x8x16(O[i][c + 1], p[i], v[2], v[3]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
step2_tensor_cores(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O,
                   float* LSE, int L_q, int L_k, int group, float scale, int is_causal) {
    extern __shared__ uint4 shared_memory[];
    scalar_t* Q_tile = reinterpret_cast<scalar_t*>(shared_memory);
    scalar_t* K_tile = Q_tile + B_R * D;
    scalar_t* V_tile = K_tile + B_C * D;
    scalar_t* P_tile = V_tile + B_C * D;   // [B_R, D], of which B_C columns are used
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, O += head * L_q * D, LSE += head * L_q;
    K += head / group * L_k * D, V += head / group * L_k * D;
    const int lane = threadIdx.x % 32, row0 = threadIdx.x / 32 * ROWS;
    const int i0 = blockIdx.x * B_R, i_warp = i0 + row0, shift = L_k - L_q;
    const float factor = scale * LOG2_E;

    float O_i[M][C][4] = {}, m[M][2], l[M][2] = {};
    for (int i = 0; i < M; i++) m[i][0] = m[i][1] = NEG_INF;
    load_tile<B_R>(Q_tile, Q + (long long)i0 * D, L_q - i0);
    for (int j0 = 0; j0 < L_k; j0 += B_C) {
        __syncthreads();   // all are done with the previous K and V
        load_tile<B_C>(K_tile, K + (long long)j0 * D, L_k - j0);
        load_tile<B_C>(V_tile, V + (long long)j0 * D, L_k - j0);
        __syncthreads();   // the tiles are there
        float S[M][N][4] = {};
        compute_scores(S, Q_tile + row0 * D, K_tile);
        mask(S, i_warp + lane / 4, j0 + lane % 4 * 2, L_k, shift, is_causal);
        softmax(S, O_i, m, l, factor);
        write_weights(P_tile + row0 * D, S);
        __syncwarp();   // a row of P is written and read by one warp
        accumulate(O_i, P_tile + row0 * D, V_tile);
    }

    // one division per row; a row that saw no key gives 0 and −∞
    for (int i = 0; i < M; i++)
        for (int r = 0; r < 2; r++) {
            const int query = i_warp + 16 * i + 8 * r + lane / 4;
            const float sum = sum_of_row(l[i][r]), inverse = sum > 0 ? 1 / sum : 0;
            if (lane % 4 == 0 && query < L_q)
                LSE[query] = sum > 0 ? fmaf(m[i][r], scale, logf(sum)) : NEG_INF;
            for (int c = 0; c < C && query < L_q; c++)
                *reinterpret_cast<unsigned*>(O + query * (long long)D + lane % 4 * 2 + 8 * c) =
                    pack(O_i[i][c][2 * r] * inverse, O_i[i][c][2 * r + 1] * inverse);
        }
}
