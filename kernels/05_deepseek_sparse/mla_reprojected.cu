// mla_reprojected.cu — multi-head latent attention as it is first written down: k = W_UK c and
// v = W_UV c are rebuilt for every query, key and head, and then used once. O is W_UV times what
// mla_dense.cu computes, which has moved W_UK to the query's side of the products and W_UV to the
// output's.
//
// FLOPs of a query, a key and a head: 2 · D_C · (D_NOPE + D_V) to rebuild k and v, and
// 2 · (D_NOPE + D_V) to use them, beside 2 · D_ROPE for the RoPE part. With DeepSeek-V3's sizes
// 262,144 against 512; absorbed, 2 · (D_C + D_ROPE + D_C) = 2,176 do for all.
//
// grid   (H, S)      block  (THREADS)      a block: one head of one query, its keys in turn
// layout q_nope [S, H, D_NOPE], q_rope [S, H, D_ROPE], c [T, D_C], k_rope [T, D_ROPE],
//        W_UK [H, D_NOPE, D_C], W_UV [H, D_V, D_C], O [S, H, D_V], fp32, contiguous;
//        t = 0 … S − 1 counts queries, s = 0 … T − 1 keys; query t sees keys s <= t + T − S; one
//        that sees none gets 0
// shared 4 · THREADS / 32 bytes
// limits S at most 65535; D_V at most THREADS; THREADS a multiple of 32
// options: -DD_NOPE=128 -DD_ROPE=64 -DD_C=512 -DD_V=128 -DTHREADS=128
// paper  DeepSeek-V2 (arXiv 2405.04434), §2.1.2 and appendix C
#include "constants.cuh"
static_assert(THREADS % 32 == 0 && D_V <= THREADS,
              "THREADS must be a multiple of 32, and at least D_V: a thread for each column of O");

// Sum over the block, by way of a number per warp in shared memory; every thread gets it.
__device__ inline float block_sum(float x, float (&of_warp)[THREADS / 32]) {
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(0xffffffff, x, other);
    __syncthreads();   // the last sum has been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (float part : of_warp) sum += part;
    return sum;
}

__device__ inline float dot(const float* a, const float* b, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
mla_reprojected(const float* q_nope, const float* q_rope, const float* c, const float* k_rope,
                const float* W_UK, const float* W_UV, float* O, int S, int T, int H, float scale) {
    __shared__ float of_warp[THREADS / 32];
    const int h = blockIdx.x, t = blockIdx.y, thread = threadIdx.x;
    const long long row = (long long)t * H + h;
    q_nope += row * D_NOPE, q_rope += row * D_ROPE, O += row * D_V;
    W_UK += (long long)h * D_NOPE * D_C, W_UV += (long long)h * D_V * D_C;

    float o = 0, m = NEG_INF, l = 0;   // o: of this thread's column
    for (int s = 0; s <= t + T - S; s++) {
        const float* c_s = c + (long long)s * D_C;
        const float* k_rope_s = k_rope + (long long)s * D_ROPE;

        float share = 0;   // of the score q · k
        for (int n = thread; n < D_NOPE; n += THREADS) {
            const float k = dot(W_UK + n * D_C, c_s, D_C);   // rebuilt
            share += q_nope[n] * k;
        }
        for (int n = thread; n < D_ROPE; n += THREADS) share += q_rope[n] * k_rope_s[n];
        const float score = block_sum(share, of_warp) * scale;

        const float m_new = fmaxf(m, score), rescale = expf(m - m_new), p = expf(score - m_new);
        m = m_new, l = l * rescale + p;
        if (thread < D_V) {
            const float v = dot(W_UV + thread * D_C, c_s, D_C);   // rebuilt
            o = o * rescale + p * v;
        }
    }
    if (thread < D_V) O[thread] = l == 0 ? 0 : o / l;
}
