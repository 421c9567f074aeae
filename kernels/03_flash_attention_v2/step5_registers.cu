// step5_registers.cu — FlashAttention-2 forward that keeps P in registers.
//
// Step 5 of the ladder. The registers of S, rounded and packed in pairs, are laid out as mma wants
// its left factor: P need not pass through shared memory to change hands. In the profiler: fewer
// requests to shared memory.
//
// grid   (ceil(L_q / B_R), H, B)       block  (32 · WARPS)
// layout Q, O [B, H, L_q, D]  K, V [B, H/group, L_k, D], fp16 or bf16  LSE [B, H, L_q], fp32;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
// shared 2 · D·(B_R + 4·B_C) bytes, dynamic
// limits scale > 0; D 64 or 128; B_C a multiple of 16, B_R of 16·WARPS
// options: -DD=64 -DBF16=0 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=64 -DBF16=1 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=128 -DBF16=0 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=128 -DBF16=1 -DB_R=64 -DB_C=64 -DWARPS=4
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1
constexpr int THREADS = 32 * WARPS;
#include "swizzled_tile.cuh"
#include "fragment_rows.cuh"
constexpr int ROWS = B_R / WARPS, M = ROWS / 16;   // a warp's rows, and its products of 16 rows
constexpr int N = B_C / 8, C = D / 8;              // and of 8 columns, of S and of O
static_assert(16 * M * WARPS == B_R && B_C % 16 == 0, "16 * WARPS must divide B_R, and 16 B_C");

// The shared-memory address of a chunk, for ldmatrix.
__device__ inline unsigned address(const scalar_t* tile, int row, int chunk) {
    return (unsigned)__cvta_generic_to_shared(tile + swizzled(row, chunk));
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

// O += P V: two products of S, packed, are the left factor of one of O
__device__ void accumulate(float (&O)[M][C][4], const float (&P)[M][N][4],
                           const scalar_t* V) {
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < N; n += 2) {
        unsigned p[M][4];
        for (int i = 0; i < M; i++)
            for (int e = 0; e < 4; e++) {   // rows g, g + 8 of 8 keys, then of the next 8 keys
                const float* pair = &P[i][n + e / 2][e % 2 * 2];
                p[i][e] = pack(pair[0], pair[1]);
            }
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
step5_registers(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O,
                float* LSE, int L_q, int L_k, int group, float scale, int is_causal) {
    extern __shared__ uint4 shared_memory[];
    scalar_t* Q_tile = reinterpret_cast<scalar_t*>(shared_memory);
    scalar_t* K_tile = Q_tile + B_R * D;
    scalar_t* V_tile = K_tile + 2 * B_C * D;
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, O += head * L_q * D, LSE += head * L_q;
    K += head / group * L_k * D, V += head / group * L_k * D;
    const int lane = threadIdx.x % 32, row0 = threadIdx.x / 32 * ROWS;
    const int i0 = blockIdx.x * B_R, i_warp = i0 + row0, shift = L_k - L_q;
    const float factor = scale * LOG2_E;

    float O_i[M][C][4] = {}, m[M][2], l[M][2] = {};
    for (int i = 0; i < M; i++) m[i][0] = m[i][1] = NEG_INF;
    load_tile_async<B_R>(Q_tile, Q + (long long)i0 * D, L_q - i0);
    load_tile_async<B_C>(K_tile, K, L_k);
    load_tile_async<B_C>(V_tile, V, L_k);
    commit_copies();
    for (int j0 = 0; j0 < L_k; j0 += B_C) {
        const int now = j0 / B_C % 2 * B_C * D, next = B_C * D - now;   // the buffers of this tile
        wait_for_copies<0>();
        __syncthreads();   // the tiles are there, and all are done with the previous ones
        if (j0 + B_C < L_k) {
            load_tile_async<B_C>(K_tile + next, K + (j0 + B_C) * (long long)D, L_k - j0 - B_C);
            load_tile_async<B_C>(V_tile + next, V + (j0 + B_C) * (long long)D, L_k - j0 - B_C);
            commit_copies();
        }
        float S[M][N][4] = {};
        compute_scores(S, Q_tile + row0 * D, K_tile + now);
        mask(S, i_warp + lane / 4, j0 + lane % 4 * 2, L_k, shift, is_causal);
        softmax(S, O_i, m, l, factor);
        accumulate(O_i, S, V_tile + now);
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
