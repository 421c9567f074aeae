// Neighbouring threads hold neighbouring queries; the scores are turned before the stores.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void __launch_bounds__(256)
coalesced_scores(const float* Q, const float* K, float* S, int L_q, int L_k, int H, int d,
                 float scale, int is_causal) {
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int j0 = blockIdx.x * 32, i0 = blockIdx.y * 32, b = blockIdx.z / H, h = blockIdx.z % H;
    const long long pitch = (long long)H * d;
    Q += (b * L_q * (long long)H + h) * d, K += (b * L_k * (long long)H + h) * d;
    S += (long long)blockIdx.z * L_q * L_k;
    __shared__ float Q_tile[32][33], K_tile[32][33];
    float sum[4] = {};
    for (int c0 = 0; c0 < d; c0 += 32) {
        const int column = c0 + tx;
        for (int r = ty; r < 32; r += 8) {
            Q_tile[r][tx] = i0 + r < L_q && column < d ? Q[(i0 + r) * pitch + column] : 0;
            K_tile[r][tx] = j0 + r < L_k && column < d ? K[(j0 + r) * pitch + column] : 0;
        }
        __syncthreads();
        for (int c = 0; c < 32; c++)
            for (int n = 0; n < 4; n++) sum[n] += Q_tile[tx][c] * K_tile[ty + 8 * n][c];
        __syncthreads();
    }
    const int i = i0 + tx;
    for (int n = 0; n < 4; n++) {
        const int j = j0 + ty + 8 * n;
        Q_tile[ty + 8 * n][tx] = is_causal && j > i + L_k - L_q ? NEG_INF : scale * sum[n];
    }
    __syncthreads();
    for (int r = ty; r < 32; r += 8)
        if (i0 + r < L_q && j0 + tx < L_k) S[(long long)(i0 + r) * L_k + j0 + tx] = Q_tile[tx][r];
}
