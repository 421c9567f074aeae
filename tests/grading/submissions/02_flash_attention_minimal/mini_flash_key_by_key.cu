// Right: every lane has its columns, and sees all keys of the row one by one: no shuffle, no tile of P. O is kept
// divided by l all the time, in the way of a running mean.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void mini_flash(const float* Q, const float* K, const float* V, float* O, float* LSE,
                                      int L_q, int L_k, float scale, int is_causal) {
    __shared__ float S[16][33], values[32][D];
    const size_t head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const int row = threadIdx.x / 8, lane = threadIdx.x % 8, i = blockIdx.x * 16 + row;
    float m = NEG_INF, l = 0, mean[D / 8] = {};
    for (int j0 = 0; j0 < L_k; j0 += 32) {
        for (int e = threadIdx.x; e < 32 * D; e += 128)
            if (j0 + e / D < L_k) values[e / D][e % D] = V[(head * L_k + j0) * D + e];
        for (int e = threadIdx.x; e < 16 * 32; e += 128) {
            const int query = blockIdx.x * 16 + e / 32, j = j0 + e % 32;
            if (query >= L_q || j >= L_k) continue;
            float s = 0;
            for (int d = 0; d < D; d++) s += Q[(head * L_q + query) * D + d] * K[(head * L_k + j) * D + d];
            S[e / 32][e % 32] = s * scale;
        }
        __syncthreads();
        const int here = min(32, L_k - j0), seen = is_causal ? min(here, i + L_k - L_q - j0 + 1) : here;
        for (int k = 0; k < seen && i < L_q; k++) {
            const float s = S[row][k], top = fmaxf(m, s);
            const float before = l * expf(m - top), p = expf(s - top);   // m = −∞ before the first: l is 0
            l = before + p, m = top;
            for (int c = 0; c < D / 8; c++) mean[c] += p / l * (values[k][lane * (D / 8) + c] - mean[c]);
        }
        __syncthreads();
    }
    if (i >= L_q) return;
    for (int c = 0; c < D / 8; c++) O[(head * L_q + i) * D + lane * (D / 8) + c] = mean[c];
    if (lane == 7) LSE[head * L_q + i] = m + logf(l);   // −∞ + log(0) is −∞, too
}
