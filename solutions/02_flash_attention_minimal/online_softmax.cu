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
    // BEGIN SOLUTION
    whole.m = fmaxf(a.m, b.m);
    const float base = whole.m == NEG_INF ? 0 : whole.m;   // no score yet: never −∞ − (−∞) = NaN
    whole.l = a.l * expf(a.m - base) + b.l * expf(b.m - base);
    // END SOLUTION
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
        // BEGIN SOLUTION
        known = merge(known, {S[j], 1});   // of a single score: m is the score, l = exp(0)
        // END SOLUTION
    }

    // 2. All lanes of the warp. Afterwards each of them knows the same.
    // BEGIN SOLUTION
    for (int step = 16; step > 0; step /= 2) {
        const float other_m = __shfl_xor_sync(0xffffffff, known.m, step);
        const float other_l = __shfl_xor_sync(0xffffffff, known.l, step);
        known = merge(known, {other_m, other_l});
    }
    // END SOLUTION

    // 3. All warps of the block, by way of of_warp. Then each thread knows m and l of the row.
    // BEGIN SOLUTION
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = known;
    __syncthreads();
    known = of_warp[0];
    for (int w = 1; w < WARPS; w++) known = merge(known, of_warp[w]);
    // END SOLUTION

    // 4. The results: P[j] of this thread's scores (the second and last read of S); LSE[row], once.
    // BEGIN SOLUTION
    const bool empty = known.l == 0;
    for (int j = threadIdx.x; j < L; j += THREADS)
        P[j] = empty ? 0 : expf(S[j] - known.m) / known.l;
    if (threadIdx.x == 0) LSE[row] = empty ? NEG_INF : known.m + logf(known.l);
    // END SOLUTION
}
