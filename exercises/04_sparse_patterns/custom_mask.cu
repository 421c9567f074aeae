// custom_mask.cu — attention over the kept pairs only: a warp walks the list of keys of its row.
//
// The mask is not here at all. It was turned into lists, CSR rows: the keys that row i keeps are
// indices[indptr[i]] to indices[indptr[i + 1] − 1], in any order. What is not in the list is never
// loaded: that, and not the comparison with −∞, is what a sparse pattern saves.
//
// grid   (ceil(L_q / WARPS), B · H)      block  (32 · WARPS): one warp per row of Q
// layout Q, O [B, H, L_q, D]  K, V [B, H, L_k, D]  LSE [B, H, L_q], fp32, contiguous
//        indptr [L_q + 1], indices [indptr[L_q]], int32; all heads share them
// shared 0 bytes
// limits D 64, 96 or 128; WARPS 2 or 4; every index at least 0 and less than L_k, none twice in a
//        row; a row of any length; scores finite, from −1e20 to 1e20; B · H at most 65535
// options: -DD=64 -DWARPS=4 | -DD=96 -DWARPS=2 | -DD=128 -DWARPS=2
// paper  online softmax: FlashAttention-2 (arXiv 2307.08691), Algorithm 1
constexpr int COLUMNS = D / 32;   // of Q, K, V and O per lane: lane, lane + 32, …
constexpr unsigned ALL = 0xffffffff;
#define NEG_INF __int_as_float(0xff800000)
static_assert(D % 32 == 0, "each lane has as many columns");

// Sum over the 32 lanes, which all get it. All lanes of the warp must call it together.
__device__ inline float warp_sum(float x) {
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(ALL, x, other);
    return x;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
csr_attention(const float* Q, const float* K, const float* V, const int* indptr,
              const int* indices, float* O, float* LSE, int L_q, int L_k, float scale) {
    const int i = blockIdx.x * WARPS + threadIdx.x / 32;   // row of Q, one for the whole warp
    const int lane = threadIdx.x % 32;
    const int head = blockIdx.y;                           // b · H + h

    // What to do: leave if there is no such row; take Q's row into registers; for each key of the
    // list: score, online softmax (m, l, O); divide at the end; write O and LSE (natural logarithm).
    // A row without keys gives O = 0 and LSE = −∞.
    // YOUR CODE HERE
}
