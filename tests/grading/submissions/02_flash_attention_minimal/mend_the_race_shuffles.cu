// The maximum by shuffles and one number per warp; the load as one loop over the tile's floats.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void __launch_bounds__(64)
mend_the_race(const float* Q, const float* K, const float* V, float* O, int L_k, float scale) {
    __shared__ float K_tile[64][65], V_tile[64][64], q[64], P[64], of_warp[2];
    const long long head = (long long)blockIdx.y * gridDim.x + blockIdx.x;
    const int t = threadIdx.x;
    q[t] = Q[head * 64 + t];
    float m = NEG_INF, l = 0, O_t = 0;
    for (int j0 = 0; j0 < L_k; j0 += 64) {
        __syncthreads();   // K, V, P and of_warp are free
        for (int e = t; e < 64 * 64; e += 64) {
            const bool inside = j0 + e / 64 < L_k;
            const long long from = (head * L_k + j0) * 64 + e;
            K_tile[e / 64][e % 64] = inside ? K[from] : 0;
            V_tile[e / 64][e % 64] = inside ? V[from] : 0;
        }
        __syncthreads();
        float s = 0;
        for (int c = 0; c < 64; c++) s += q[c] * K_tile[t][c];
        s = j0 + t < L_k ? s * scale : NEG_INF;
        float m_new = s;
        for (int step = 16; step > 0; step /= 2)
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, step));
        if (t % 32 == 0) of_warp[t / 32] = m_new;
        __syncthreads();
        m_new = fmaxf(m, fmaxf(of_warp[0], of_warp[1]));
        P[t] = expf(s - m_new);
        __syncthreads();
        const float rescale = expf(m - m_new);
        l *= rescale, O_t *= rescale, m = m_new;
        for (int c = 0; c < 64; c++) l += P[c], O_t += P[c] * V_tile[c][t];
    }
    O[head * 64 + t] = O_t / l;
}
