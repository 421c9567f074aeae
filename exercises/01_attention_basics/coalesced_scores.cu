// coalesced_scores.cu — S = scale · Q Kᵀ from Q and K as a projection leaves them: the heads of one
// token side by side. A block turns a 32 × 32 piece of K around in shared memory, and each thread
// keeps four scores, so that a number of K that was fetched once serves four queries.
//
// grid   (ceil(L_k / 32), ceil(L_q / 32), B · H)      block  (32, 8)
// layout Q [B, L_q, H, d]  K [B, L_k, H, d]  S [B, H, L_q, L_k], fp32, contiguous
// shared 4 · 32 · (32 + 33) = 8320 bytes, static
// limits any L_q, L_k and d; B · H and L_q / 32 up to 65535
// paper  FlashAttention (arXiv 2205.14135), Algorithm 0, line 1
#define NEG_INF __int_as_float(0xff800000)
constexpr int TILE = 32, ROWS = 8, PER_THREAD = TILE / ROWS;   // a thread has 4 scores

extern "C" __global__ void __launch_bounds__(TILE * ROWS)
coalesced_scores(const float* Q, const float* K, float* S, int L_q, int L_k, int H, int d,
                 float scale, int is_causal) {
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int j0 = blockIdx.x * TILE, i0 = blockIdx.y * TILE;   // the block's first key and query
    const int b = blockIdx.z / H, h = blockIdx.z % H;
    // Row i of this head's scores begins at S[i · L_k]. What lies beyond L_q or L_k has no score.
    S += (long long)blockIdx.z * L_q * L_k;
    // YOUR CODE HERE
}
