// merge_parts.cuh — attention over disjoint sets of keys becomes attention over all of them:
//   LSE = log Σ exp(LSE_p),  O = Σ exp(LSE_p − LSE) · O_p.
// The same rule joins the warps of a block, the pieces of a sequence and the parts of a caller.
// source  Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023); FlashAttention-2 (arXiv 2307.08691), §3.1
#pragma once
#include "constants.cuh"

// O becomes the merged output of four columns; returns the merged log-sum-exp, −∞ where no part has
// a key. `lse_of(p)` and `o_of(p)` give part p, for p = first, first + step, ... below `parts`. A
// part whose log-sum-exp is −∞ is left out, whatever its output holds: 0 · NaN would be NaN.
template <class LseOf, class OOf>
__device__ inline float merge_parts(float4& O, int first, int parts, int step, LseOf lse_of,
                                    OOf o_of) {
    float m = NEG_INF, l = 0;
    O = make_float4(0, 0, 0, 0);
    for (int p = first; p < parts; p += step) m = fmaxf(m, lse_of(p));
    for (int p = first; p < parts; p += step) {
        const float lse = lse_of(p);
        const float4 o = o_of(p);
        if (lse == NEG_INF) continue;
        const float weight = exp2f((lse - m) * LOG2_E);
        l += weight;
        O.x = fmaf(weight, o.x, O.x), O.y = fmaf(weight, o.y, O.y);
        O.z = fmaf(weight, o.z, O.z), O.w = fmaf(weight, o.w, O.w);
    }
    if (l == 0) return NEG_INF;
    const float share = 1 / l;
    O.x *= share, O.y *= share, O.z *= share, O.w *= share;
    return m + log2f(l) * LN_2;
}
