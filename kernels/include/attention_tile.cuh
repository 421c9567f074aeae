// attention_tile.cuh — FlashAttention-2 as a warp sees it: its ROWS queries meet B_C keys.
//
// S, P and O live in registers, in the layout of mma.sync's D (tensor_core.cuh). Lane 4 g + t has
// rows 16 m + g and 16 m + g + 8; of S[m][n] keys 8 n + 2 t and 8 n + 2 t + 1, of O[m][c] columns
// 8 c + 2 t and 8 c + 2 t + 1. Four lanes share a row.
// "Line" is a line of Algorithm 1 of FlashAttention-2 (arXiv 2307.08691).
// Include after D, B_C, ROWS and THREADS are defined.
#pragma once
#include "tile_products.cuh"

constexpr int M = ROWS / 16, N = B_C / 8;   // products that a warp's rows, a tile's keys take
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
#define NEG_INF __int_as_float(0xff800000)
static_assert(ROWS % 16 == 0 && B_C % 16 == 0, "whole matrix products");

typedef float Scores[M][N][4];

// What a warp carries from tile to tile. m counts in powers of two: m = max · scale · log2(e).
// l holds the sums of this lane's keys; the four lanes of a row add up at the end.
struct OnlineSoftmax { float O[M][D / 8][4], m[M][2], l[M][2]; };

// Line 5: O = 0, l = 0, m = −∞.
__device__ inline void initialize(OnlineSoftmax& state) {
    for (int m = 0; m < M; m++)
        for (int r = 0; r < 2; r++) {
            state.m[m][r] = NEG_INF, state.l[m][r] = 0;
            for (int c = 0; c < D / 8; c++) state.O[m][c][2 * r] = state.O[m][c][2 * r + 1] = 0;
        }
}

// Line 8: S = Q Kᵀ.
__device__ inline void compute_scores(Scores& S, const scalar_t* Q, const scalar_t* K) {
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) S[m][n][0] = S[m][n][1] = S[m][n][2] = S[m][n][3] = 0;
    #pragma unroll
    for (int d = 0; d < D; d += 16) {
        unsigned q[M][4];   // 16 columns
        for (int m = 0; m < M; m++) ldmatrix_x4(q[m], at(by_rows(Q), 16 * m, d));
        multiply_transposed(S, q, at(by_columns(K), 0, d));
    }
}

// S = −∞ where `visible(row, key)` is false; rows count from the warp's first, keys from the
// tile's.
template <typename Visible>
__device__ inline void mask_scores(Scores& S, Visible visible) {
    const int lane = threadIdx.x % 32, row = lane / 4, key = lane % 4 * 2;
    #pragma unroll
    for (int m = 0; m < M; m++)
        #pragma unroll
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++)
                if (!visible(16 * m + row + e / 2 * 8, 8 * n + key + e % 2)) S[m][n][e] = NEG_INF;
}

// Line 9, first half: the new maximum m; l and O are rescaled to it. Any m gives the same O, as
// long as exp(S − m) neither overflows nor vanishes. So the warp keeps an old m until exp(S − m)
// exceeds 2^8 for some score: P stays below that, and few tiles after the first rescale O.
__device__ inline void update_maximum(OnlineSoftmax& state, const Scores& S, float factor) {
    float highest[M][2];   // of this lane's keys
    bool exceeds = false;
    for (int m = 0; m < M; m++)
        for (int r = 0; r < 2; r++) {
            float& high = highest[m][r] = NEG_INF;
            for (int n = 0; n < N; n++)
                high = fmaxf(high, fmaxf(S[m][n][2 * r], S[m][n][2 * r + 1]));
            exceeds |= high * factor > state.m[m][r] + 8;
        }
    if (!__any_sync(0xffffffff, exceeds)) return;
    for (int m = 0; m < M; m++)
        for (int r = 0; r < 2; r++) {
            float high = highest[m][r];
            high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
            high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
            const float m_new = fmaxf(state.m[m][r], high * factor);
            // A row without a key yet has m = −∞: never −∞ − (−∞).
            const float rescale = exp2_approx(state.m[m][r] - (m_new == NEG_INF ? 0 : m_new));
            state.m[m][r] = m_new, state.l[m][r] *= rescale;
            for (int c = 0; c < D / 8; c++)
                state.O[m][c][2 * r] *= rescale, state.O[m][c][2 * r + 1] *= rescale;
        }
}

// Line 9, second half, and line 10: P = exp(S − m), l += rowsum(P), O += P V, 16 keys at a time, so
// that the exponentials of the next keys run beside the matrix products of these. S becomes P.
__device__ inline void accumulate(OnlineSoftmax& state, Scores& S, const scalar_t* V,
                                  float factor) {
    #pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned p[M][4];   // 16 keys
        for (int m = 0; m < M; m++) {
            for (int e = 0; e < 8; e++) {
                const int r = e / 2 % 2;
                const float base = state.m[m][r] == NEG_INF ? 0 : state.m[m][r];
                float& s = S[m][n + e / 4][e % 4];
                s = exp2_approx(fmaf(s, factor, -base));
                state.l[m][r] += s;
            }
            pack_a(p[m], S[m][n], S[m][n + 1]);
        }
        multiply(state.O, p, at(by_rows(V), 8 * n, 0));
    }
}

// Lines 12 to 15: O / l and LSE = m + log(l) of the warp's first `rows_left` rows; 0 and −∞ for a
// row that saw no key. O passes through `tile`, ROWS × D of shared memory that is the warp's own,
// so that a lane writes 16 bytes at a time.
__device__ inline void write_rows(const OnlineSoftmax& state, scalar_t* O, float* LSE,
                                  int rows_left, scalar_t* tile) {
    const int lane = threadIdx.x % 32;
    __syncwarp();   // the warp may just have read Q from there
    #pragma unroll
    for (int m = 0; m < M; m++)
        for (int r = 0; r < 2; r++) {
            float l = state.l[m][r];
            l += __shfl_xor_sync(0xffffffff, l, 1);
            l += __shfl_xor_sync(0xffffffff, l, 2);
            const float inverse = l > 0 ? __fdividef(1, l) : 0;
            const int row = 16 * m + 8 * r + lane / 4;
            if (lane % 4 == 0 && row < rows_left)
                LSE[row] = l > 0 ? (state.m[m][r] + __log2f(l)) * LN_2 : NEG_INF;
            for (int c = 0; c < D / 8; c++) {
                const float* o = &state.O[m][c][2 * r];
                unsigned* pair = reinterpret_cast<unsigned*>(tile + swizzled(row, c)) + lane % 4;
                *pair = pack(o[0] * inverse, o[1] * inverse);
            }
        }
    __syncwarp();
    const int chunk = lane % (D / 8);
    #pragma unroll
    for (int row = lane / (D / 8); row < ROWS; row += 32 / (D / 8))
        if (row < rows_left)
            reinterpret_cast<uint4*>(O)[row * (D / 8) + chunk] =
                *reinterpret_cast<const uint4*>(tile + swizzled(row, chunk));
}
