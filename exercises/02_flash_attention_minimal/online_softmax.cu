// online_softmax.cu — P = softmax(S) and LSE, row by row: m and l of a row in a single read of S.
// Each thread walks over its own scores, then threads, then warps put together what they found.
//
// grid   (R), a block per row      block (128)
// layout S, P [R, L]  LSE [R], fp32, contiguous
// shared 4 · 8 = 32 bytes, static
// limits any R and L from 1. Scores may be −∞ (hidden keys); a row of nothing but −∞: P = 0 and
//        LSE = −∞
// paper  Online normalizer calculation for softmax (arXiv 1805.02867), Algorithm 3 and §3.1; its d
//        is our l
constexpr int THREADS = 128, WARPS = THREADS / 32;
#define NEG_INF __int_as_float(0xff800000)

// What is known about some scores of a row: their maximum m, and l, the sum of exp(score − m).
// About no score at all: m = −∞ and l = 0.
struct Partial { float m, l; };

// Two lots of scores, put together.
__device__ Partial merge(Partial a, Partial b) {
    Partial whole = {NEG_INF, 0};
    // YOUR CODE HERE
    return whole;
}

extern "C" __global__ void __launch_bounds__(THREADS)
online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ Partial of_warp[WARPS];
    const long long row = blockIdx.x;
    S += row * L, P += row * L;

    // 1. This thread's scores, one after the other.
    Partial known = {NEG_INF, 0};
    for (int j = threadIdx.x; j < L; j += THREADS) {
        // YOUR CODE HERE
    }

    // 2. All lanes of the warp. Afterwards each of them knows the same.
    // YOUR CODE HERE

    // 3. All warps of the block, by way of of_warp. Then each thread knows m and l of the row.
    // YOUR CODE HERE

    // 4. The results: P[j] of this thread's scores (the second and last read of S); LSE[row], once.
    // YOUR CODE HERE
}
