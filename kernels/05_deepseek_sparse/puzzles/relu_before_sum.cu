// relu_before_sum.cu — the lightning indexer's score of a key, I = sum of w · ReLU(q · k) over heads, one thread per
// query and key.
//
// grid   (ceil(T / 32), ceil(S / 8))   block  (32, 8)
// layout q [S, H, d]  k [T, d]  w [S, H]  I [S, T], fp32, contiguous; query t sees the keys up to t + q_start
// shared 0 bytes
// limits any S, T, H and d with S · H · d, T · d and S · T below 2^31
// paper  DeepSeek-V3.2 (arXiv 2512.02556), §2.1
#define NEG_INF __int_as_float(0xff800000)

__device__ float dot(const float* q, const float* k, int d) {
    float sum = 0;
    for (int c = 0; c < d; c++) sum += q[c] * k[c];
    return sum;
}

extern "C" __global__ void relu_before_sum(const float* q, const float* k, const float* w, float* I,
                                           int S, int T, int H, int d, int q_start) {
    const int s = blockIdx.x * blockDim.x + threadIdx.x;   // my key
    const int t = blockIdx.y * blockDim.y + threadIdx.y;   // my query
    if (t >= S || s >= T) return;
    q += t * H * d, w += t * H, k += s * d;                // my query's heads and their weights, my key
    if (s > t + q_start) {                                 // it is not seen
        I[t * T + s] = NEG_INF;
        return;
    }
    // BEGIN SOLUTION
    float sum = 0;
    for (int j = 0; j < H; j++) sum += w[j] * fmaxf(dot(q + j * d, k, d), 0);
    I[t * T + s] = sum;
    // END SOLUTION
}
