// step5_registers.cu — FlashAttention-2 forward that keeps S and P in registers.
//
// Step 5 of the ladder. Each warp owns 16 M rows of Q and meets all keys of the tile ("split Q",
// §3.3), so the S that it needs is the S that it made. Four lanes share a row, and the registers of
// S, packed in pairs, are laid out as mma wants its operand P: no S, no rescale factors in shared
// memory, and one barrier per tile, not three. P = 2^(scale · log2(e) · S − m) is one FMA and one
// instruction for 2^x. In the profiler: fewer stalls at barriers, less traffic in shared memory.
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
constexpr int ROWS = B_R / WARPS, M = ROWS / 16;   // a warp's rows, and its products of 16 rows
constexpr int N = B_C / 8, C = D / 8;              // and of 8 columns, of S and of O
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
#define NEG_INF __int_as_float(0xff800000)
static_assert(16 * M * WARPS == B_R && B_C % 16 == 0, "16 * WARPS must divide B_R, and 16 B_C");

__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The shared-memory address of a chunk, for ldmatrix.
__device__ inline unsigned address(const scalar_t* tile, int row, int chunk) {
    return (unsigned)__cvta_generic_to_shared(tile + swizzled(row, chunk));
}

// S = Q Kᵀ for the warp's rows
__device__ inline void compute_scores(float (&S)[M][N][4], const scalar_t* Q, const scalar_t* K) {
    const int lane = threadIdx.x % 32;
    for (int d = 0; d < D / 16; d++) {
        unsigned q[M][4];
        for (int m = 0; m < M; m++)
            ldmatrix_x4(q[m], address(Q, 16 * m + lane % 16, 2 * d + lane / 16));
        for (int n = 0; n < N; n += 2) {
            unsigned k[4];   // rows of K are columns of Kᵀ: 16 keys
            const int key = 8 * n + lane % 8 + lane / 16 * 8;
            ldmatrix_x4(k, address(K, key, 2 * d + lane / 8 % 2));
            for (int m = 0; m < M; m++) {
                mma_16x8x16(S[m][n], q[m], k[0], k[1]);
                mma_16x8x16(S[m][n + 1], q[m], k[2], k[3]);
            }
        }
    }
}

// S = −∞ where the query may not see the key, or there is none. The lane's first row is i, its
// first column j; a causal query i sees the keys up to i + shift.
__device__ inline void mask(float (&S)[M][N][4], int i, int j, int L_k, int shift, int is_causal) {
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++) {
                const int row = i + 16 * m + e / 2 * 8, column = j + 8 * n + e % 2;
                if (column >= L_k || (is_causal && column > row + shift)) S[m][n][e] = NEG_INF;
            }
}

// Online softmax: raises the maximum m, rescales l and O to it, S becomes P = 2^(factor · S − m).
__device__ inline void softmax(float (&S)[M][N][4], float (&O)[M][C][4], float (&m_i)[M][2],
                               float (&l_i)[M][2], float factor) {
    for (int m = 0; m < M; m++)
        for (int r = 0; r < 2; r++) {
            float top = NEG_INF;
            for (int n = 0; n < N; n++)
                top = fmaxf(top, fmaxf(S[m][n][2 * r], S[m][n][2 * r + 1]));
            for (int x = 1; x < 4; x *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, x));
            const float m_new = fmaxf(m_i[m][r], top * factor);
            const float base = m_new == NEG_INF ? 0 : m_new;   // no key yet: never −∞ − (−∞)
            const float rescale = exp2_approx(m_i[m][r] - base);
            m_i[m][r] = m_new, l_i[m][r] *= rescale;
            for (int c = 0; c < C; c++) O[m][c][2 * r] *= rescale, O[m][c][2 * r + 1] *= rescale;
            for (int n = 0; n < N; n++)
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    S[m][n][e] = exp2_approx(fmaf(S[m][n][e], factor, -base));
                    l_i[m][r] += S[m][n][e];   // this lane's keys; four lanes add up at the end
                }
        }
}

// O += P V: two products of S, packed, are the operand of one of O
__device__ inline void accumulate(float (&O)[M][C][4], const float (&P)[M][N][4],
                                  const scalar_t* V) {
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < N; n += 2) {
        unsigned p[M][4];
        for (int m = 0; m < M; m++)
            for (int i = 0; i < 4; i++) {   // rows g, g + 8 of 8 keys, then of the next 8 keys
                const float* pair = &P[m][n + i / 2][i % 2 * 2];
                p[m][i] = pack(pair[0], pair[1]);
            }
        for (int c = 0; c < C; c += 2) {
            unsigned v[4];   // columns of V: 16 keys, transposed on the way
            ldmatrix_x4_trans(v, address(V, 8 * n + lane % 16, c + lane / 16));
            for (int m = 0; m < M; m++) {
                mma_16x8x16(O[m][c], p[m], v[0], v[1]);
                mma_16x8x16(O[m][c + 1], p[m], v[2], v[3]);
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
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int i0 = blockIdx.x * B_R, i_warp = i0 + warp * ROWS, shift = L_k - L_q;

    float O_i[M][C][4] = {}, m_i[M][2], l_i[M][2] = {};
    for (int m = 0; m < M; m++) m_i[m][0] = m_i[m][1] = NEG_INF;
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
        compute_scores(S, Q_tile + warp * ROWS * D, K_tile + now);
        mask(S, i_warp + lane / 4, j0 + lane % 4 * 2, L_k, shift, is_causal);
        softmax(S, O_i, m_i, l_i, scale * LOG2_E);
        accumulate(O_i, S, V_tile + now);
    }

    // one division per row; a row that saw no key gives 0 and −∞
    for (int m = 0; m < M; m++)
        for (int r = 0; r < 2; r++) {
            const int i = i_warp + 16 * m + 8 * r + lane / 4;
            float l = l_i[m][r];
            for (int x = 1; x < 4; x *= 2) l += __shfl_xor_sync(0xffffffff, l, x);
            const float inverse = l > 0 ? 1 / l : 0;
            if (lane % 4 == 0 && i < L_q) LSE[i] = l > 0 ? (m_i[m][r] + log2f(l)) * LN_2 : NEG_INF;
            for (int c = 0; c < C && i < L_q; c++)
                *reinterpret_cast<unsigned*>(O + i * (long long)D + lane % 4 * 2 + 8 * c) =
                    pack(O_i[m][c][2 * r] * inverse, O_i[m][c][2 * r + 1] * inverse);
        }
}
