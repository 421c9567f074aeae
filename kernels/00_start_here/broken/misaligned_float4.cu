// misaligned_float4.cu — the scores of one query and 32 keys, broken on purpose: rows of 33 floats are
// free of bank conflicts, but a float4 must start at a multiple of 16 bytes. Mended: -DPAD=4.
//
// grid   (1)                           block  (32)
// layout q [32], K [32, 32], S [32], fp32, contiguous
// shared 4 · 32 · (32 + PAD) bytes, static
// limits 32 keys, d = 32
// options: -DPAD=1 | -DPAD=4
constexpr int D = 32;

extern "C" __global__ void scores_of_query(const float* q, const float* K, float* S) {
    __shared__ __align__(16) float tile[32][D + PAD];
    const int t = threadIdx.x;
    for (int j = 0; j < 32; j++) tile[j][t] = K[j * D + t];
    __syncthreads();   // the tile is complete
    float s = 0;
    for (int d = 0; d < D; d += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&tile[t][d]);
        s += q[d] * k.x + q[d + 1] * k.y + q[d + 2] * k.z + q[d + 3] * k.w;
    }
    S[t] = s;
}
