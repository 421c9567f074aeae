// model_softmax.cuh — what some models add to the softmax. Both are options of the compiler: a kernel
// without them has none of their instructions.
//   SOFTCAP=1  cap · tanh(S / cap) in place of a scaled score S, before the mask (Gemma 2)
//   SINKS=1    a logit for each query head in the sum of exponentials, without a value (gpt-oss): a
//              row need not give all of its weight to its keys
// source  Gemma 2 (arXiv 2408.00118), §2; gpt-oss (arXiv 2508.10925), §2.1
#pragma once
#include "fragment_rows.cuh"

#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef SINKS
#define SINKS 0
#endif

// sink_logits: fp32, one for each query head. Only what the options ask for is read.
struct ModelSoftmax {
    float softcap = 0;
    const float* sink_logits = nullptr;

    // By what scores are multiplied: with a softcap they come as tanh(S / cap).
    __device__ float factor(float scale) const { return SOFTCAP ? softcap : scale; }

    // The sink of a head, as a power of two.
    __device__ float sink(int head) const { return sink_logits[head] * LOG2_E; }
};

// tanh(x), off by some 10^-7. tanh.approx is off by 2^-11 of it: at a cap of 50 that would be 0.02 of a score.
__device__ inline float tanh_of(float x) { return 1 - __fdividef(2, 1 + exp2_approx(2 * LOG2_E * x)); }

// S = tanh(scale / cap · S), of all 16 rows of a product, or of M products.
template <int N>
__device__ inline void cap_scores(float (&S)[N][4], float scale_per_cap) {
    each_of_lane<1, N>([&](int, int n, int e, int, int) { S[n][e] = tanh_of(scale_per_cap * S[n][e]); });
}

template <int M, int N>
__device__ inline void cap_scores(float (&S)[M][N][4], float scale_per_cap) {
    each_of_lane<M, N>([&](int m, int n, int e, int, int) { S[m][n][e] = tanh_of(scale_per_cap * S[m][n][e]); });
}

// A row's m, of powers of two, and its sum l once it has a sink as well: m becomes what both are relative
// to. Returns by what the row's O has to be multiplied for that.
__device__ inline float add_sink(float& m, float& l, float sink) {
    const float m_new = fmaxf(m, sink), base = m_new == NEG_INF ? 0 : m_new;
    const float rescale = exp2_approx(m - base);
    m = m_new, l = l * rescale + exp2_approx(sink - base);
    return rescale;
}
