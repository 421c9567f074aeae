// backward_tiles.cu, written otherwise: the 256 pairs of a tile go to the threads in the order of
// their numbers, and each thread keeps one column of some keys.
constexpr int B_R = 16, B_C = 16, THREADS = 128;
constexpr int MINE = (B_C * D + THREADS - 1) / THREADS;   // numbers of dK, and of dV, of a thread

struct Tiles {
    float K[B_C][D + 1], V[B_C][D + 1], Q[B_R][D + 1], dO[B_R][D + 1], P[B_R][B_C + 1], dS[B_R][B_C + 1];
};

__device__ void copy_rows(float (*tile)[D + 1], const float* rows, int count) {
    for (int c = threadIdx.x; c < 16 * D; c += THREADS) {
        const int r = c / D;
        tile[r][c - r * D] = r < count ? rows[c] : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_tiles(const float* Q, const float* K, const float* V, const float* dO, const float* LSE,
               const float* delta, float* dK, float* dV, int L_q, int L_k, float scale,
               int is_causal) {
    __shared__ Tiles tile;
    const int head = blockIdx.z * gridDim.y + blockIdx.y, j0 = blockIdx.x * B_C;
    const float *Qh = Q + (long long)head * L_q * D, *dOh = dO + (long long)head * L_q * D;
    const long long own = ((long long)head * L_k + j0) * D;
    copy_rows(tile.K, K + own, L_k - j0);
    copy_rows(tile.V, V + own, L_k - j0);
    float of_K[MINE] = {}, of_V[MINE] = {};

    for (int t = (L_q + B_R - 1) / B_R - 1; t >= 0; t--) {   // the last tile first
        const int i0 = t * B_R;
        copy_rows(tile.Q, Qh + (long long)i0 * D, L_q - i0);
        copy_rows(tile.dO, dOh + (long long)i0 * D, L_q - i0);
        __syncthreads();
        for (int pair = threadIdx.x; pair < B_R * B_C; pair += THREADS) {
            const int r = pair / B_C, k = pair % B_C, i = i0 + r, j = j0 + k;
            float P = 0, dS = 0;
            if (i < L_q && j < L_k && !(is_causal && j - i > L_k - L_q)) {
                float S = 0, dP = -delta[head * L_q + i];
                for (int d = D - 1; d >= 0; d--) {
                    S = fmaf(tile.Q[r][d], tile.K[k][d], S);
                    dP = fmaf(tile.dO[r][d], tile.V[k][d], dP);
                }
                P = expf(fmaf(scale, S, -LSE[head * L_q + i]));
                dS = P * dP;
            }
            tile.P[r][k] = P;
            tile.dS[r][k] = dS;
        }
        __syncthreads();
        for (int n = 0; n < MINE; n++) {
            const int e = threadIdx.x + n * THREADS, k = e / D, c = e % D;
            if (k >= B_C) break;
            for (int r = 0; r < B_R; r++) {
                of_V[n] += tile.P[r][k] * tile.dO[r][c];
                of_K[n] += tile.dS[r][k] * tile.Q[r][c];
            }
        }
        __syncthreads();
    }
    for (int n = 0; n < MINE; n++) {
        const int e = threadIdx.x + n * THREADS;
        if (e < B_C * D && e / D < L_k - j0) {
            dK[own + e] = of_K[n] * scale;
            dV[own + e] = of_V[n];
        }
    }
}
