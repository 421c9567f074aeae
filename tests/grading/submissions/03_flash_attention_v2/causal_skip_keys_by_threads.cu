// causal_skip.cu — of a query's four threads, each has the whole query in registers and multiplies it with every fourth
// key. Four weights then go round by shuffles, and each thread adds to its own columns of O.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void __launch_bounds__(4 * B_R)
causal_skip(const float* Q, const float* K, const float* V, float* O, float* LSE,
            int L_q, int L_k, float scale) {
    __shared__ float K_tile[B_C][D + 1], V_tile[B_C][D];
    const int part = threadIdx.x % 4, row = blockIdx.x * B_R + threadIdx.x / 4;
    const size_t query = (size_t)blockIdx.y * L_q + row, first_key = (size_t)blockIdx.y * L_k;
    const int shift = L_k - L_q, block_end = min(L_k, (int)(blockIdx.x + 1) * B_R + shift);

    float q[D], o[D / 4], m = NEG_INF, l = 0;
    for (int d = 0; d < D; d++) q[d] = row < L_q ? Q[query * D + d] : 0;
    for (int d = 0; d < D / 4; d++) o[d] = 0;

    for (int j0 = 0; j0 < block_end; j0 += B_C) {
        for (int e = threadIdx.x; e < B_C * D; e += blockDim.x) {
            const int c = e / D, d = e % D;
            K_tile[c][d] = j0 + c < L_k ? K[(first_key + j0 + c) * D + d] : 0;
            V_tile[c][d] = j0 + c < L_k ? V[(first_key + j0 + c) * D + d] : 0;
        }
        __syncthreads();
        for (int c0 = 0; c0 < B_C; c0 += 4) {
            const int c = c0 + part, j = j0 + c;
            float s = NEG_INF;
            if (c < B_C && j < L_k && j <= row + shift) {
                s = 0;
                for (int d = 0; d < D; d++) s += q[d] * K_tile[c][d];
                s *= scale;
            }
            float largest = fmaxf(s, __shfl_xor_sync(0xffffffff, s, 1));
            largest = fmaxf(m, fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2)));
            const float base = isinf(largest) ? 0 : largest;
            const float p = expf(s - base), rescale = expf(m - base);
            m = largest, l = l * rescale + p;   // l of this thread's keys
            for (int d = 0; d < D / 4; d++) o[d] *= rescale;
            for (int k = 0; k < 4; k++) {
                const float weight = __shfl_sync(0xffffffff, p, k, 4);
                if (c0 + k < B_C)
                    for (int d = 0; d < D / 4; d++) o[d] += weight * V_tile[c0 + k][part + 4 * d];
            }
        }
        __syncthreads();
    }
    l += __shfl_xor_sync(0xffffffff, l, 1);
    l += __shfl_xor_sync(0xffffffff, l, 2);
    if (row < L_q) {
        for (int d = 0; d < D / 4; d++) O[query * D + part + 4 * d] = l == 0 ? 0 : o[d] / l;
        if (part == 0) LSE[query] = m + logf(l);   // −∞ + −∞ for a row without keys
    }
}
