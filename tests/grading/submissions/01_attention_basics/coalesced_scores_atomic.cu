// As coalesced_scores_naive.cu, with atomic functions in the place of loads: they do not hide from the counters.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void __launch_bounds__(256)
coalesced_scores(const float* Q, const float* K, float* S, int L_q, int L_k, int H, int d,
                 float scale, int is_causal) {
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int j0 = blockIdx.x * 32, i0 = blockIdx.y * 32, b = blockIdx.z / H, h = blockIdx.z % H;
    const long long pitch = (long long)H * d;
    Q += (b * L_q * (long long)H + h) * d, K += (b * L_k * (long long)H + h) * d;
    S += (long long)blockIdx.z * L_q * L_k;
    const int j = j0 + tx;
    for (int i = i0 + ty; i < min(i0 + 32, L_q); i += 8) {
        if (j >= L_k) return;
        float sum = 0;
        for (int c = 0; c < d; c++)
            sum += atomicAdd((float*)&Q[i * pitch + c], 0.f) * atomicAdd((float*)&K[j * pitch + c], 0.f);
        S[(long long)i * L_k + j] = is_causal && j > i + L_k - L_q ? NEG_INF : scale * sum;
    }
}
