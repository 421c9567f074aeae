// gather.cu — attention to the keys that a list names, one thread per query: each query has a list of its own.
//
// grid   (ceil(S / 64))                block  (64)
// layout Q, O [S, d]  K, V [T, d], fp32; indices [S, k], int32; contiguous. An index below 0 or from T on is no key
// shared 0 bytes
// limits any S, T, k and d with S · d, T · d and S · k below 2^31; without a key O = 0
// paper  DeepSeek-V3.2 (arXiv 2512.02556), §2.1
__device__ float dot(const float* q, const float* k, int d) {
    float sum = 0;
    for (int c = 0; c < d; c++) sum += q[c] * k[c];
    return sum;
}

__device__ void add_key(float score, const float* v, float& m, float& l, float* O, int d) {   // online softmax
    const float m_new = fmaxf(m, score), rescale = expf(m - m_new), p = expf(score - m_new);
    m = m_new, l = l * rescale + p;
    for (int c = 0; c < d; c++) O[c] = O[c] * rescale + p * v[c];
}

extern "C" __global__ void gather(const float* Q, const float* K, const float* V, const int* indices,
                                  float* O, int S, int T, int k, int d, float scale) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;   // my query
    if (t >= S) return;
    Q += t * d, O += t * d, indices += t * k;              // its rows, and its list
    float m = __int_as_float(0xff800000), l = 0;           // −∞, and no weight yet
    for (int c = 0; c < d; c++) O[c] = 0;
    for (int i = 0; i < k; i++) {
        // BEGIN SOLUTION
        const int s = indices[i];
        if (s < 0 || s >= T) continue;
        add_key(scale * dot(Q, K + s * d, d), V + s * d, m, l, O, d);
        // END SOLUTION
    }
    for (int c = 0; c < d; c++) O[c] = l > 0 ? O[c] / l : 0;
}
