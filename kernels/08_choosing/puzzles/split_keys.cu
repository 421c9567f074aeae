// split_keys.cu — one query whose keys are split among the blocks: each attends to its part, for a merge by LSE.
//
// grid   (parts)                       block  (d), a thread per column
// layout q [d]  K, V [T, d]  O [parts, d]  LSE [parts], fp32, contiguous; part p has the ceil(T / parts) keys from
//        p · ceil(T / parts) on, or what is left of them
// shared 0 bytes
// limits any T and parts from 1, any d up to 1024 with T · d below 2^31; without a key O = 0 and LSE = −∞
// paper  Flash-Decoding (crfm.stanford.edu/2023/10/12/flashdecoding.html)
#define NEG_INF __int_as_float(0xff800000)

__device__ float dot(const float* q, const float* k, int d) {
    float sum = 0;
    for (int c = 0; c < d; c++) sum += q[c] * k[c];
    return sum;
}

extern "C" __global__ void split_keys(const float* q, const float* K, const float* V, float* O, float* LSE,
                                      int T, int d, float scale) {
    const int part = blockIdx.x, parts = gridDim.x, c = threadIdx.x;   // my part of the keys, my column
    int first = 0, end = T;                                            // keys first … end − 1: all of them
    // BEGIN SOLUTION
    const int keys = (T + parts - 1) / parts;
    first = part * keys;
    end = min(first + keys, T);
    // END SOLUTION
    float m = NEG_INF, l = 0, o = 0;
    for (int s = first; s < end; s++) {                                // online softmax
        const float score = scale * dot(q, K + s * d, d), m_new = fmaxf(m, score);
        const float rescale = expf(m - m_new), p = expf(score - m_new);
        m = m_new, l = l * rescale + p, o = o * rescale + p * V[s * d + c];
    }
    O[part * d + c] = l > 0 ? o / l : 0;
    if (c == 0) LSE[part] = l > 0 ? m + logf(l) : NEG_INF;
}
