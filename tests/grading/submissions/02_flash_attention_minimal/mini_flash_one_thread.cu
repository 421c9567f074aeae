// Right: S of the tile in shared memory, one thread of a row does the statistics, all eight lanes O.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void mini_flash(const float* Q, const float* K, const float* V, float* O, float* LSE,
                                      int L_q, int L_k, float scale, int is_causal) {
    __shared__ float S[16][32], factor[16], sum[16];
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, K += head * L_k * D, V += head * L_k * D, O += head * L_q * D;
    const int row = threadIdx.x / 8, lane = threadIdx.x % 8, i = blockIdx.x * 16 + row;
    float m = NEG_INF, l = 0, out[D / 8] = {};
    for (int j0 = 0; j0 < L_k; j0 += 32) {
        for (int c = lane; c < 32; c += 8) {
            const int j = j0 + c;
            float s = NEG_INF;
            if (i < L_q && j < L_k && !(is_causal && i + L_k - L_q < j)) {
                s = 0;
                for (int d = 0; d < D; d++) s += Q[(long long)i * D + d] * K[(long long)j * D + d];
                s *= scale;
            }
            S[row][c] = s;
        }
        __syncthreads();
        if (lane == 0) {
            float larger = m;
            for (int c = 0; c < 32; c++) larger = fmaxf(larger, S[row][c]);
            factor[row] = m == NEG_INF ? 0 : expf(m - larger);
            m = larger, l *= factor[row];
            for (int c = 0; c < 32; c++) {
                S[row][c] = S[row][c] == NEG_INF ? 0 : expf(S[row][c] - m);
                l += S[row][c];
            }
            sum[row] = l;
        }
        __syncthreads();
        for (int c = 0; c < D / 8; c++) out[c] *= factor[row];
        for (int j = j0; j < min(j0 + 32, L_k); j++)
            for (int c = 0; c < D / 8; c++) out[c] += S[row][j - j0] * V[(long long)j * D + 8 * c + lane];
        __syncthreads();
    }
    if (i >= L_q) return;
    for (int c = 0; c < D / 8; c++) O[(long long)i * D + 8 * c + lane] = sum[row] > 0 ? out[c] / sum[row] : 0;
    if (lane == 0) LSE[head * L_q + i] = l > 0 ? m + logf(l) : NEG_INF;
}
