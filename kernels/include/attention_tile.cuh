// attention_tile.cuh — FlashAttention-2 as a warp sees it: its ROWS queries meet B_C keys.
//
// S, P and O live in registers, in the layout of mma.sync's D (tensor_core.cuh). Lane 4 g + t has
// rows 16 i + g and 16 i + g + 8; of S[i][n] keys 8 n + 2 t and 8 n + 2 t + 1, of O[i][c] columns
// 8 c + 2 t and 8 c + 2 t + 1. Four lanes share a row.
// "Line" is a line of Algorithm 1 of FlashAttention-2 (arXiv 2307.08691).
// Include after D, B_C, ROWS and THREADS are defined.
#pragma once
#include "fragment_rows.cuh"
#include "model_softmax.cuh"
#include "tile_products.cuh"

constexpr int M = ROWS / 16, N = B_C / 8;   // products that a warp's rows, a tile's keys take
static_assert(ROWS % 16 == 0, "B_R, or BLOCK, must be a multiple of 16 * WARPS");
static_assert(B_C % 16 == 0, "B_C must be a multiple of 16");

typedef float Scores[M][N][4];

// What a warp carries from tile to tile. m counts in powers of two, and is rescaled to lazily: it is at
// most LAG less than the maximum of scale · log2(e) · S. l is of this lane's keys; the four lanes of a
// row add up at the end.
constexpr float LAG = 8;
struct OnlineSoftmax { float O[M][D / 8][4], m[M][2], l[M][2]; };

// Line 5: O = 0, l = 0, m = −∞.
__device__ inline void initialize(OnlineSoftmax& state) {
    clear(state.O);
    for (int i = 0; i < M; i++)
        for (int r = 0; r < 2; r++) state.m[i][r] = NEG_INF, state.l[i][r] = 0;
}

// Line 8: S = Q Kᵀ; the scale comes in with the exponential, as a part of `factor`.
template <class T> __device__ inline void compute_scores(Scores& S, const scalar_t* Q, const T* K) {
    clear(S);
    #pragma unroll
    for (int d = 0; d < D; d += 16) {
        unsigned q[M][4];   // 16 columns
        for (int i = 0; i < M; i++) ldmatrix_x4(q[i], at(by_rows(Q), 16 * i, d));
        multiply_transposed(S, q, at(by_columns(K), 0, d));
    }
}

// S = −∞ where a row does not see a key: `keys_of(row)` gives a test of keys. Rows count from the
// warp's first, keys from the tile's.
template <class KeysOf>
__device__ inline void mask_scores(Scores& S, KeysOf keys_of) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < M; i++)
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const auto sees = keys_of(16 * i + 8 * r + lane / 4);
            #pragma unroll
            for (int n = 0; n < N; n++)
                for (int e = 0; e < 2; e++)
                    if (!sees(8 * n + lane % 4 * 2 + e)) S[i][n][2 * r + e] = NEG_INF;
        }
}

// The same where a row sees all keys in front of its first hidden one, `first_hidden(row)`. j0 is the
// tile's first key.
template <class FirstHidden>
__device__ inline void mask_from(Scores& S, int j0, FirstHidden first_hidden) {
    mask_scores(S, [=](int row) {
        const int end = first_hidden(row);
        return [=](int key) { return j0 + key < end; };
    });
}

// Lines 9 and 10, what is old: a new maximum m, and l and O times exp(m_old − m). FlashAttention-2
// does that for every tile. This is the lazy rescaling of FlashAttention-4 (arXiv 2603.05451): any m
// gives the same O / l up to rounding, as long as exp(S − m) neither overflows nor vanishes; so the
// warp keeps an old m until exp(S − m) exceeds 2^LAG for some score. Few tiles after the first
// rescale. The vote makes the last bits of a row depend on the warp's other rows.
__device__ inline void update_maximum(OnlineSoftmax& state, const Scores& S, float factor) {
    float highest[M][2];   // of this lane's keys
    bool exceeds = false;
    for (int i = 0; i < M; i++)
        for (int r = 0; r < 2; r++) {
            highest[i][r] = highest_of_lane(S[i], r, NEG_INF);
            exceeds |= highest[i][r] * factor > state.m[i][r] + LAG;
        }
    if (!__any_sync(0xffffffff, exceeds)) return;
    for (int i = 0; i < M; i++)
        for (int r = 0; r < 2; r++) {
            const float m_new = fmaxf(state.m[i][r], highest_of_row(highest[i][r]) * factor);
            // A row without a key yet has m = −∞: never −∞ − (−∞).
            const float rescale = exp2_approx(state.m[i][r] - (m_new == NEG_INF ? 0 : m_new));
            state.m[i][r] = m_new, state.l[i][r] *= rescale;
            scale_row(state.O[i], r, rescale);
        }
}

// Lines 9 and 10, what is new: P = exp(S − m), l += rowsum(P), O += P V, 16 keys at a time, so that
// the exponentials of the next keys run beside the matrix products of these. S becomes P.
template <class T>
__device__ inline void accumulate(OnlineSoftmax& state, Scores& S, const T* V, float factor) {
    #pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned p[M][4];   // 16 keys
        for (int i = 0; i < M; i++) {
            for (int e = 0; e < 8; e++) {
                const int r = e / 2 % 2;
                const float base = state.m[i][r] == NEG_INF ? 0 : state.m[i][r];
                float& s = S[i][n + e / 4][e % 4];
                s = exp2_approx(fmaf(s, factor, -base));
                state.l[i][r] += s;
            }
            pack_a(p[i], S[i][n], S[i][n + 1]);
        }
        multiply(state.O, p, at(by_rows(V), 8 * n, 0));
    }
}

// Lines 12 and 13: O becomes O / l, and m becomes the log-sum-exp, m + log(l) as a natural
// logarithm; 0 and −∞ for a row that saw no key. All lanes of a row have its m. With SINKS=1 the sum
// has the head's sink too, a power of two, and a row without a key has that alone.
__device__ inline void normalize(OnlineSoftmax& state, float sink = NEG_INF) {
    for (int i = 0; i < M; i++)
        for (int r = 0; r < 2; r++) {
            float l = sum_of_row(state.l[i][r]);
            const float rescale = SINKS ? add_sink(state.m[i][r], l, sink) : 1;
            // before m: after it, NVRTC 13.0 writes 8 % more instructions, 3 % slower at D = 128
            const float inverse = l == 0 ? 0 : __fdividef(rescale, l);
            state.m[i][r] = l == 0 ? NEG_INF : (state.m[i][r] + __log2f(l)) * LN_2;
            scale_row(state.O[i], r, inverse);
        }
}

// Lines 14 and 15: writes O and LSE, both normalized, of the warp's first `rows_left` rows. O
// passes through `tile`, ROWS × D of shared memory that is the warp's own, so that a lane writes 16
// bytes at a time. `pitch`: elements from one row of O to the next; LSE has one for each D of them.
__device__ inline void write_rows(const OnlineSoftmax& state, scalar_t* O, float* LSE,
                                  int rows_left, scalar_t* tile, int pitch = D) {
    const int lane = threadIdx.x % 32;
    __syncwarp();   // the warp may just have read Q from there
    #pragma unroll
    for (int i = 0; i < M; i++)
        for (int r = 0; r < 2; r++) {
            const int row = 16 * i + 8 * r + lane / 4;
            if (lane % 4 == 0 && row < rows_left) LSE[row * (pitch / D)] = state.m[i][r];
            for (int c = 0; c < D / 8; c++) {
                const float* o = &state.O[i][c][2 * r];
                unsigned* pair = reinterpret_cast<unsigned*>(tile + swizzled(row, c)) + lane % 4;
                *pair = pack(o[0], o[1]);
            }
        }
    __syncwarp();
    const int chunk = lane % (D / 8);
    #pragma unroll
    for (int row = lane / (D / 8); row < ROWS; row += 32 / (D / 8))
        if (row < rows_left)
            reinterpret_cast<uint4*>(O + row * pitch)[chunk] =
                *reinterpret_cast<const uint4*>(tile + swizzled(row, chunk));
}
