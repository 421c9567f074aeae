// merge_parts.cu — attention over disjoint sets of keys becomes attention over all of them.
//
// A part is attention over some of a row's keys: its output O_p and its log-sum-exp LSE_p. Parts
// come from splits of one sequence, from a prefix that many sequences share, from another GPU. A
// part without a key has LSE_p = −∞, and O_p holds anything, NaN too: nobody has written it. A block
// merges the parts of one row. Each of its warps merges every fourth part; then warp 0 merges what
// the warps have, by the same rule.
//
// grid   (rows)   block  (32, WARPS)   lane threadIdx.x owns the columns lane, lane + 32, …
// layout O_parts [parts, rows, D]  LSE_parts [parts, rows]  O [rows, D]  LSE [rows], fp32, contiguous
// shared 4 · (D + 1) · 4 bytes
// limits D a multiple of 32; parts >= 1
// options: -DD=64 | -DD=128
// paper  Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023); FlashAttention-2 (arXiv 2307.08691), §3.1
constexpr int WARPS = 4, COLUMNS = D / 32;   // COLUMNS: of a lane
#define NEG_INF __int_as_float(0xff800000)
static_assert(D % 32 == 0, "each lane has as many columns");

// What a lane has so far: the largest LSE m, the sum l of exp(LSE − m), and for each of its columns
// the sum of exp(LSE − m) · O.
struct Sum {
    float m = NEG_INF, l = 0, O[COLUMNS] = {};
};

// One more part, with its log-sum-exp `lse`; its output in column lane + 32 c is o[32 * c].
__device__ inline void take(Sum& sum, float lse, const float* o) {
    // 1. Add it to m, l and O. A part with lse = −∞ is left out, whatever o holds.
    // YOUR CODE HERE
}

// O becomes the output of all parts together; returns their log-sum-exp.
__device__ inline float finish(Sum& sum) {
    float lse = 0;
    // 2. Without a part, O is 0 and the log-sum-exp −∞.
    // YOUR CODE HERE
    return lse;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
merge_parts(const float* O_parts, const float* LSE_parts, float* O, float* LSE, int parts) {
    const int row = blockIdx.x, rows = gridDim.x, lane = threadIdx.x, warp = threadIdx.y;
    __shared__ float O_team[WARPS][D], LSE_team[WARPS];

    // 3. This warp's parts: warp, warp + WARPS, ... Start the offset of O_parts in 64 bits.
    Sum own;
    // YOUR CODE HERE

    // 4. Each warp leaves its own result in O_team and LSE_team; then warp 0 takes all of them.
    Sum all;
    // YOUR CODE HERE

    if (warp > 0) return;
    const float merged = finish(all);
    for (int c = 0; c < COLUMNS; c++) O[(long long)row * D + lane + 32 * c] = all.O[c];
    if (lane == 0) LSE[row] = merged;
}
