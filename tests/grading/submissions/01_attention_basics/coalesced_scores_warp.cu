// One warp per score: its lanes go along the rows of Q and K and add up by shuffles.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void __launch_bounds__(256)
coalesced_scores(const float* Q, const float* K, float* S, int L_q, int L_k, int H, int d,
                 float scale, int is_causal) {
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int j0 = blockIdx.x * 32, i0 = blockIdx.y * 32, b = blockIdx.z / H, h = blockIdx.z % H;
    const long long pitch = (long long)H * d;
    Q += (b * L_q * (long long)H + h) * d, K += (b * L_k * (long long)H + h) * d;
    S += (long long)blockIdx.z * L_q * L_k;
    for (int i = i0 + ty; i < min(i0 + 32, L_q); i += 8) {
        float mine = 0;
        for (int j = j0; j < min(j0 + 32, L_k); j++) {
            float sum = 0;
            for (int c = tx; c < d; c += 32) sum += Q[i * pitch + c] * K[j * pitch + c];
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
            if (j - j0 == tx) mine = sum;
        }
        const int j = j0 + tx;
        const bool masked = is_causal && j > i + L_k - L_q;
        if (j < L_k) S[(long long)i * L_k + j] = masked ? NEG_INF : scale * mine;
    }
}
