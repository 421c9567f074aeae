// warpgroup_tile.cuh — what a warpgroup does with its 64 queries and a tile of B_C keys.
//
// S, P and O stay in registers, in the layout of fragment_rows.cuh: a lane has two rows, r = 0 and 1.
// Q, K and V are tiles in shared memory, in panels of 64 columns (warpgroup.cuh).
// Include after D and B_C are defined.
// paper  FlashAttention-3 (arXiv 2407.08608), Algorithm 1
#pragma once
#include "fragment_rows.cuh"
#include "model_softmax.cuh"
#include "warpgroup.cuh"

static_assert(D == 64 || D == 128, "D must be 64 or 128");
static_assert(B_C == 64 || B_C == 128, "B_C must be 64 or 128, the columns that a product has");

constexpr int ROWS = 64;   // queries of a warpgroup

typedef float Scores[B_C / 8][4];       // S, then P
typedef unsigned Weights[B_C / 16][4];  // P in 16 bits, the left factor of P V
typedef float Output[D / 8][4];         // O, not yet divided by l

// Of the lane's rows: the maximum m in powers of two, this lane's part of the sum l, and by what O
// has to be multiplied since m rose last.
struct Rows { float m[2] = {NEG_INF, NEG_INF}, l[2] = {}, rescale[2]; };

// One row of registers, as products take it.
template <int N>
__device__ inline float (&flat(float (&d)[N][4]))[4 * N] {
    return reinterpret_cast<float (&)[4 * N]>(d);
}

// Starts S = Q Kᵀ; K has 8 N rows.
template <int N>
__device__ inline void start_scores(float (&S)[N][4], const scalar_t* Q, const scalar_t* K) {
    const unsigned long long q = descriptor(Q), k = descriptor(K);
    wgmma_fence();
    #pragma unroll
    for (int d = 0; d < D; d += 16)
        multiply_transposed(flat(S), moved(q, d / 64 * ROWS * 128 + d % 64 * 2),
                            moved(k, d / 64 * 8 * N * 128 + d % 64 * 2), d > 0);
    wgmma_commit();
}

// Starts O += P V; V has 16 N rows.
template <int N>
__device__ inline void start_output(Output& O, const unsigned (&P)[N][4], const scalar_t* V) {
    const unsigned long long v = descriptor(V, 16 * N * 128);
    wgmma_fence();
    #pragma unroll
    for (int key = 0; key < 16 * N; key += 16)
        multiply(flat(O), P[key / 16], moved(v, key * 128));
    wgmma_commit();
}

// Until at most the N newest products run, this one not among them.
template <int N, int SIZE>
__device__ inline void wait_for_product(float (&product)[SIZE][4]) { wgmma_wait<N>(flat(product)); }

// The warp's first row among the warpgroup's.
__device__ inline int warp_row() { return threadIdx.x % 128 / 32 * 16; }

// S = −∞ where the query does not see the key, or there is none. The warpgroup's first query is i0,
// the tile's first key j0; a causal query i sees the keys up to i + shift.
__device__ inline void mask(Scores& S, int i0, int j0, int L_k, int shift, int is_causal) {
    each_of_lane<1, B_C / 8>([&](int, int n, int e, int row, int column) {
        const int end = is_causal ? min(L_k, i0 + warp_row() + row + shift + 1) : L_k;
        if (j0 + column >= end) S[n][e] = NEG_INF;
    });
}

// What is subtracted from scores of row r. A row that has seen no key has no maximum yet, and
// −∞ − (−∞) is no number.
__device__ inline float base(const Rows& rows, int r) {
    return rows.m[r] == NEG_INF ? 0 : rows.m[r];
}

// m = max(m, rowmax(S)), and l times exp(m_old − m). factor: scale · log2(e). With `more` m is by so
// much less than the maximum, and all weights are 2^more times as large; l is, too.
__device__ inline void raise_maximum(Rows& rows, const Scores& S, float factor, float more = 0) {
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        const float m_old = rows.m[r], high = highest_of_row(highest_of_lane(S, r, NEG_INF));
        rows.m[r] = fmaxf(m_old, high * factor - more);
        rows.rescale[r] = exp2_approx(m_old - base(rows, r));
        rows.l[r] *= rows.rescale[r];
    }
}

// ptxas would move a wait for O up, in front of the new maximum, which is to be found beside
// O += P V. A store to shared memory that needs the maximum stops that.
__device__ inline void hold(float& sink, const Rows& rows) {
    *(volatile float*)&sink = rows.l[0] + rows.l[1];
}

// P = exp(S − m) in place of S, and l += rowsum(P).
__device__ inline void exponentials(Scores& S, Rows& rows, float factor) {
    const float bases[2] = {base(rows, 0), base(rows, 1)};
    #pragma unroll
    for (int n = 0; n < B_C / 8; n++)
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            S[n][e] = exp2_approx(fmaf(S[n][e], factor, -bases[e / 2]));
            rows.l[e / 2] += S[n][e];
        }
}

// O times exp(m_old − m).
__device__ inline void rescale(Output& O, const Rows& rows) {
    #pragma unroll
    for (int r = 0; r < 2; r++) scale_row(O, r, rows.rescale[r]);
}

// Two products of eight columns each, packed in pairs, are one left factor of the next product.
template <int N>
__device__ inline void pack_weights(unsigned (&P)[N / 2][4], const float (&S)[N][4]) {
    #pragma unroll
    for (int n = 0; n < N; n++)
        #pragma unroll
        for (int r = 0; r < 2; r++) P[n / 2][n % 2 * 2 + r] = pack(S[n][2 * r], S[n][2 * r + 1]);
}

// O / l, times the scale of V; 0 for a row that has seen no key, and NaN stays NaN. Writes the
// log-sum-exp of the warpgroup's first `rows_left` rows, `pitch` apart, −∞ for a row that has seen no key.
// With SINKS=1 the sum has the head's sink too, a power of two, and a row without a key has that alone.
__device__ inline void normalize(Output& O, const Rows& rows, float* LSE, int rows_left,
                                 float v_scale = 1, int pitch = 1, float sink = NEG_INF) {
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = warp_row() + 8 * r + threadIdx.x % 32 / 4;
        float m = rows.m[r], l = sum_of_row(rows.l[r]);
        const float factor = SINKS ? v_scale * add_sink(m, l, sink) : v_scale;
        if (threadIdx.x % 4 == 0 && row < rows_left)
            LSE[row * pitch] = l == 0 ? NEG_INF : (m + log2f(l)) * LN_2;
        scale_row(O, r, l == 0 ? 0 : factor / l);
    }
}

// O in 16 bits to a tile in shared memory.
__device__ inline void write_tile(scalar_t* tile, const Output& O) {
    #pragma unroll
    for (int n = 0; n < D / 8; n++)
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = warp_row() + 8 * r + threadIdx.x % 32 / 4;
            unsigned* chunk = reinterpret_cast<unsigned*>(tile + in_panels(ROWS, row, n));
            chunk[threadIdx.x % 4] = pack(O[n][2 * r], O[n][2 * r + 1]);
        }
}
