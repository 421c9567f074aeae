// one_row.cuh — attention of one query in one thread, key by key: online softmax at its plainest.
//
// Include after D is defined.
#pragma once
#include "constants.cuh"

struct Row {
    float m = NEG_INF, l = 0, O[D] = {};   // the largest score; the sum; O · l
};

// The query meets one more key.
__device__ inline void see(Row& row, const float* q, const float* k, const float* v, float scale) {
    float s = 0;
    for (int c = 0; c < D; c++) s += q[c] * k[c];
    const float m_new = fmaxf(row.m, scale * s);
    const float rescale = expf(row.m - m_new), p = expf(scale * s - m_new);
    row.m = m_new, row.l = row.l * rescale + p;
    for (int c = 0; c < D; c++) row.O[c] = row.O[c] * rescale + p * v[c];
}
