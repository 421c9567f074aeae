// topk_gather_online.cu — another way: the greatest k times over, and one warp with online softmax.
constexpr int WARPS = THREADS / 32;
constexpr unsigned ALL = 0xffffffff;
#define NEG_INF __int_as_float(0xff800000)
static_assert(D % 32 == 0 && THREADS % 32 == 0 && THREADS >= D, "whole warps; a thread per column");

// Unsigned numbers in the order of the scores: of a negative number all bits are turned round, of
// any other the sign.
__device__ inline unsigned ordered(float score) {
    const unsigned bits = __float_as_uint(score);
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

// Sum over the 32 lanes, which all get it. All lanes of the warp must call it together.
template <class Number>
__device__ inline Number warp_sum(Number x) {
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(ALL, x, other);
    return x;
}

// The greatest over the 32 lanes.
__device__ inline float warp_max(float x) {
    for (int other = 16; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, other));
    return x;
}

// Row blockIdx.x: the indices of its k greatest scores, in any order. Of scores that equal the k-th
// greatest, any will do, but k places are k places. −∞ is never selected: where a row has fewer
// other scores, −1 fills the places that are left, at the end.
extern "C" __global__ void select_topk(const float* scores, int* indices, int T, int k) {
    scores += (long long)blockIdx.x * T, indices += (long long)blockIdx.x * k;
    // Each round takes the next in the order of score, then index: below the one taken last.
    __shared__ unsigned long long best;
    unsigned long long last = ~0ull;
    for (int n = 0; n < k; n++) {
        if (threadIdx.x == 0) best = 0;
        __syncthreads();
        for (int j = threadIdx.x; j < T; j += THREADS) {
            const unsigned long long mine = (unsigned long long)ordered(scores[j]) << 32 | j;
            if (scores[j] != NEG_INF && mine < last) atomicMax(&best, mine);
        }
        __syncthreads();
        last = best;
        if (threadIdx.x == 0) indices[n] = last ? (int)(last & 0xffffffff) : -1;
        if (last == 0) last = 1;   // nothing left: all rounds after give -1
        __syncthreads();
    }
}

// Query blockIdx.x of head blockIdx.y attends to the keys that its row of indices names, in any
// order. An index below 0, or T and more, names no key: nothing is read, nothing is added. A key
// that stands there twice counts twice. Without any key: O = 0 and LSE = −∞.
extern "C" __global__ void gather_attention(const float* Q, const float* K, const float* V,
                                            const int* indices, float* O, float* LSE, int T, int k,
                                            float scale) {
    extern __shared__ float s[];   // k scores, if you want them
    const long long query = (long long)blockIdx.x * gridDim.y + blockIdx.y;   // row of Q, O and LSE
    indices += (long long)blockIdx.x * k;
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    float q[D / 32], o[D / 32] = {}, m = NEG_INF, l = 0;
    for (int c = 0; c < D / 32; c++) q[c] = Q[query * D + lane + 32 * c] * scale;
    for (int n = 0; n < k; n++) {
        const int key = indices[n];
        if (key < 0 || key >= T) continue;
        const long long row = (long long)key * D + lane;
        float score = 0;
        for (int c = 0; c < D / 32; c++) score += q[c] * K[row + 32 * c];
        score = warp_sum(score);
        const float m_new = fmaxf(m, score), rescale = expf(m - m_new), p = expf(score - m_new);
        m = m_new, l = l * rescale + p;
        for (int c = 0; c < D / 32; c++) o[c] = o[c] * rescale + p * V[row + 32 * c];
    }
    for (int c = 0; c < D / 32; c++) O[query * D + lane + 32 * c] = l > 0 ? o[c] / l : 0;
    if (lane == 0) LSE[query] = l > 0 ? m + logf(l) : NEG_INF;
}
