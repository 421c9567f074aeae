// shared_heads.cu — one query of H heads over H_kv heads of keys and values, one thread per column of a head.
//
// grid   (H)                           block  (d)
// layout q, O [H, d]  K, V [H_kv, T, d], fp32, contiguous; neighbouring heads of q share a head of K and V
// shared 0 bytes
// limits H a multiple of H_kv; T from 1; any d up to 1024 with H_kv · T · d below 2^31
// paper  GQA (arXiv 2305.13245), §2.2
__device__ float dot(const float* q, const float* k, int d) {
    float sum = 0;
    for (int c = 0; c < d; c++) sum += q[c] * k[c];
    return sum;
}

extern "C" __global__ void shared_heads(const float* q, const float* K, const float* V, float* O,
                                        int H, int H_kv, int T, int d, float scale) {
    const int h = blockIdx.x, c = threadIdx.x;   // my head, my column
    q += h * d;
    // BEGIN SOLUTION
    const int kv = h / (H / H_kv);   // H / H_kv neighbours share one
    K += kv * T * d, V += kv * T * d;
    // END SOLUTION
    float m = __int_as_float(0xff800000), l = 0, o = 0;   // −∞, and no weight yet
    for (int s = 0; s < T; s++) {                         // online softmax
        const float score = scale * dot(q, K + s * d, d), m_new = fmaxf(m, score);
        const float rescale = expf(m - m_new), p = expf(score - m_new);
        m = m_new, l = l * rescale + p, o = o * rescale + p * V[s * d + c];
    }
    O[h * d + c] = o / l;
}
