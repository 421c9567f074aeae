// sinks.cu — attention with a sink for each head: a logit in the softmax's sum, without a value. One thread per query.
//
// grid   (ceil(L_q / 64), H)           block  (64)
// layout Q, O [H, L_q, D]  K, V [H, L_k, D]  sink_logits [H]  LSE [H, L_q], fp32, contiguous
// shared 0 bytes
// limits L_q · D and L_k · D below 2^31; H up to 65535
// options: -DD=16
// source gpt-oss (arXiv 2508.10925), §2.1
#include "constants.cuh"

extern "C" __global__ void sinks(const float* Q, const float* K, const float* V, const float* sink_logits,
                                 float* O, float* LSE, int L_q, int L_k, float scale) {
    const long long head = blockIdx.y;
    Q += head * L_q * D, O += head * L_q * D, K += head * L_k * D, V += head * L_k * D;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;   // my query
    if (i >= L_q) return;
    float m = NEG_INF, l = 0, O_i[D] = {};   // m counts in powers of two
    for (int j = 0; j < L_k; j++) {
        float s = 0;
        for (int c = 0; c < D; c++) s += Q[i * D + c] * K[j * D + c];
        s *= scale * LOG2_E;
        const float m_new = fmaxf(m, s), rescale = exp2f(m - m_new), p = exp2f(s - m_new);
        m = m_new, l = l * rescale + p;
        for (int c = 0; c < D; c++) O_i[c] = O_i[c] * rescale + p * V[j * D + c];
    }
    const float sink = sink_logits[head];   // a logit, as scale · q · k is one
    // BEGIN SOLUTION
    const float m_new = fmaxf(m, sink * LOG2_E), rescale = exp2f(m - m_new);
    m = m_new, l = l * rescale + exp2f(sink * LOG2_E - m_new);
    for (int c = 0; c < D; c++) O_i[c] *= rescale;
    // END SOLUTION
    for (int c = 0; c < D; c++) O[i * D + c] = O_i[c] / l;
    LSE[head * L_q + i] = (m + log2f(l)) * LN_2;
}
