// topk_gather.cu — choose k keys for each query, then attend to these only: DeepSeek Sparse
// Attention with everything else taken away.
//
// select_topk finds the k-th greatest score without sorting. A float's bits, turned round the right
// way, are an unsigned number of the same order. So the k-th greatest is found bit by bit, from the
// top: set the bit; if at least k scores are that great or greater, it stays set. 32 rounds of
// counting, whatever the length. Chapter 05's kernel takes 11 bits at a time; the idea is the same.
//
// gather_attention computes softmax attention over the chosen keys of each query.
//
// select_topk
// grid   (S)                             block  (THREADS), one block per row
// layout scores [S, T], fp32, −∞ where the query must not look; indices [S, k], int32
//
// gather_attention
// grid   (S, H)                          block  (THREADS), one block per query and head
// layout Q, O [S, H, D]  K, V [T, D], one for all heads  LSE [S, H], fp32; indices [S, k], int32
//
// shared select_topk: 4 · (THREADS / 32 + 2) bytes, static; gather_attention: 4 · k bytes, dynamic
// limits D 64, 96 or 128; THREADS a multiple of 32 from 64 to 256, at least D; k ≥ 1, in
//        gather_attention at most 12288; T ≥ 1; H at most 65535; no NaN; scale · q · k finite, and above −1e29
// options: -DD=64 -DTHREADS=64 | -DD=96 -DTHREADS=160
// paper  DeepSeek-V3.2 (arXiv 2512.02556), §2.1
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
extern "C" __global__ void __launch_bounds__(THREADS)
select_topk(const float* scores, int* indices, int T, int k) {
    scores += (long long)blockIdx.x * T, indices += (long long)blockIdx.x * k;
    // BEGIN SOLUTION
    __shared__ int counts[WARPS], greater, ties;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) greater = ties = 0;

    // The greatest number that at least k scores reach. If fewer than k scores are not −∞, it ends
    // as the number of −∞ or below, and all the others lie above it.
    unsigned threshold = 0;
    for (unsigned bit = 0x80000000; bit > 0; bit /= 2) {
        int count = 0;
        for (int j = threadIdx.x; j < T; j += THREADS)
            count += ordered(scores[j]) >= (threshold | bit);
        count = warp_sum(count);
        __syncthreads();   // all have read the counts of the round before
        if (lane == 0) counts[warp] = count;
        __syncthreads();
        count = 0;
        for (int w = 0; w < WARPS; w++) count += counts[w];
        if (count >= k) threshold |= bit;
    }
    threshold = max(threshold, ordered(NEG_INF));

    // First those above the threshold, of which there are fewer than k; then, in the places that
    // are left, those equal to it.
    for (int j = threadIdx.x; j < T; j += THREADS)
        if (ordered(scores[j]) > threshold) indices[atomicAdd(&greater, 1)] = j;
    __syncthreads();
    if (threshold > ordered(NEG_INF))
        for (int j = threadIdx.x; j < T; j += THREADS)
            if (ordered(scores[j]) == threshold) {
                const int place = greater + atomicAdd(&ties, 1);
                if (place < k) indices[place] = j;
            }
    __syncthreads();
    for (int n = greater + ties + threadIdx.x; n < k; n += THREADS) indices[n] = -1;
    // END SOLUTION
}

// Query blockIdx.x of head blockIdx.y attends to the keys that its row of indices names, in any
// order. An index below 0, or T and more, names no key: nothing is read, nothing is added. A key
// that stands there twice counts twice. Without any key: O = 0 and LSE = −∞.
extern "C" __global__ void __launch_bounds__(THREADS)
gather_attention(const float* Q, const float* K, const float* V, const int* indices, float* O,
                 float* LSE, int T, int k, float scale) {
    extern __shared__ float s[];   // k scores, if you want them
    const long long query = (long long)blockIdx.x * gridDim.y + blockIdx.y;   // row of Q, O and LSE
    indices += (long long)blockIdx.x * k;
    // BEGIN SOLUTION
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // Scores: a warp per key, so that the lanes read neighbouring columns of its row.
    for (int n = warp; n < k; n += WARPS) {
        const int key = indices[n];
        const bool valid = 0 <= key && key < T;   // the same for all lanes
        float sum = 0;
        if (valid)
            for (int c = lane; c < D; c += 32) sum += Q[query * D + c] * K[(long long)key * D + c];
        sum = warp_sum(sum);
        if (lane == 0) s[n] = valid ? sum * scale : NEG_INF;
    }
    __syncthreads();

    // Softmax: every warp for itself, which saves a barrier.
    float m = NEG_INF, l = 0;
    for (int n = lane; n < k; n += 32) m = fmaxf(m, s[n]);
    m = warp_max(m);
    for (int n = lane; n < k; n += 32) l += m == NEG_INF ? 0 : expf(s[n] - m);   // never −∞ − (−∞)
    l = warp_sum(l);

    // O: a thread per column. The weight of a place without a key would be 0, but there is no V.
    if (threadIdx.x < D) {
        float o = 0;
        for (int n = 0; n < k; n++)
            if (s[n] != NEG_INF) o += expf(s[n] - m) * V[(long long)indices[n] * D + threadIdx.x];
        O[query * D + threadIdx.x] = l == 0 ? 0 : o / l;
    }
    if (threadIdx.x == 0) LSE[query] = l == 0 ? NEG_INF : m + logf(l);
    // END SOLUTION
}
