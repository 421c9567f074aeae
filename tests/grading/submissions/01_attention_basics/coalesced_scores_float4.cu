// Loads of four floats where d allows them; the tiles hold columns, so that reads go along a row.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void __launch_bounds__(256)
coalesced_scores(const float* Q, const float* K, float* S, int L_q, int L_k, int H, int d,
                 float scale, int is_causal) {
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int j0 = blockIdx.x * 32, i0 = blockIdx.y * 32, b = blockIdx.z / H, h = blockIdx.z % H;
    const long long pitch = (long long)H * d;
    Q += (b * L_q * (long long)H + h) * d, K += (b * L_k * (long long)H + h) * d;
    S += (long long)blockIdx.z * L_q * L_k;
    __shared__ float Q_tile[32][33], K_tile[32][33];   // [column][row]
    float sum[4] = {};
    const int row = ty * 4 + tx / 8, c = tx % 8 * 4;   // eight threads read 32 floats of a row
    for (int c0 = 0; c0 < d; c0 += 32) {
        float4 q = {}, k = {};   // d a multiple of 4, as in all cases
        if (c0 + c < d && i0 + row < L_q) q = *(const float4*)&Q[(i0 + row) * pitch + c0 + c];
        if (c0 + c < d && j0 + row < L_k) k = *(const float4*)&K[(j0 + row) * pitch + c0 + c];
        __syncthreads();   // every thread is done with the piece before
        const float of_q[4] = {q.x, q.y, q.z, q.w}, of_k[4] = {k.x, k.y, k.z, k.w};
        for (int n = 0; n < 4; n++) Q_tile[c + n][row] = of_q[n], K_tile[c + n][row] = of_k[n];
        __syncthreads();
        for (int n = 0; n < 32; n++)
            for (int r = 0; r < 4; r++) sum[r] += Q_tile[n][ty * 4 + r] * K_tile[n][tx];
    }
    for (int r = 0; r < 4; r++) {
        const int i = i0 + ty * 4 + r, j = j0 + tx;
        if (i < L_q && j < L_k)
            S[(long long)i * L_k + j] = is_causal && j > i + L_k - L_q ? NEG_INF : scale * sum[r];
    }
}
