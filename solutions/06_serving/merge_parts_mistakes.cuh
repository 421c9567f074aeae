// merge_parts_mistakes.cuh — merge_parts.cu with hooks where learners err; the .toml of its name has them.
constexpr int WARPS = 4, MOST_D = 128, MOST_COLUMNS = MOST_D / 32;
__constant__ int D;   // an option of the solution

struct Sum {
    float m, l = 0, O[MOST_COLUMNS] = {};
};

// One more part. o: its output, from the lane's first column on. step: from there to the lane's next one.
__device__ void take(const Variant& variant, Sum& sum, float lse, const float* o, int step) {
    if (lse == NEG_INF && !variant.pulls(EMPTY_TOO)) return;
    const float m = WRONG(NO_MAXIMUM, fmaxf(sum.m, lse), 0), base = m == NEG_INF && variant.pulls(GUARDED) ? 0 : m;
    const float weight = WRONG(AVERAGED, expf(lse - base), 1);
    const float rescale = variant.pulls(AVERAGED) || variant.pulls(NO_MAXIMUM) ? 1 : expf(sum.m - base);
    sum.m = m;
    sum.l = sum.l * WRONG(L_KEPT, rescale, 1) + weight;
    for (int c = 0; c < D / 32; c++) sum.O[c] = sum.O[c] * WRONG(O_KEPT, rescale, 1) + weight * o[step * c];
}

__device__ float finish(const Variant& variant, Sum& sum) {
    const bool empty = WRONG(NAN_DIVISION, WRONG(EMPTY_IF_ZERO, !(sum.l > 0), sum.l == 0), false);
    for (int c = 0; c < D / 32; c++) sum.O[c] = empty ? 0 : sum.O[c] / WRONG(NOT_DIVIDED, sum.l, 1);
    const float log_l = WRONG(LSE_LACKS_LOG, WRONG(LSE_LOG_2, logf(sum.l), log2f(sum.l)), sum.l);
    const float lse = WRONG(LSE_LACKS_M, sum.m, 0) + WRONG(LSE_IS_M, log_l, 0);
    return empty ? WRONG(LSE_EMPTY, NEG_INF, variant.value) : lse;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
merge_parts(const float* O_parts, const float* LSE_parts, float* O, float* LSE, int parts) {
    const Variant variant = variants[variant_number()];
    const int row = blockIdx.x, rows = gridDim.x, lane = threadIdx.x, warp = threadIdx.y, columns = D / 32;
    __shared__ float O_team[WARPS][MOST_D], LSE_team[WARPS];
    const long long output = (long long)variant_number() * rows + row;
    O += output * D, LSE += output;

    const int team = WRONG(ONE_WARP, WARPS, 1);   // so many warps share the parts
    const int end = WRONG(FIRST_PARTS, parts, min(parts, (int)variant.value)) - WRONG(LAST_PART, 0, 1);
    Sum own, all;
    own.m = all.m = WRONG(START, NEG_INF, variant.value);
    for (int p = WRONG(ALL_PARTS, warp, 0); p < end && warp < team; p += WRONG(ALL_PARTS, team, 1)) {
        const int part = p * rows + row, rows_first = row * parts + p;
        const float* o = O_parts + (long long)WRONG(O_ROWS_FIRST, part, rows_first) * D;
        const float lse = LSE_parts[WRONG(LSE_ROWS_FIRST, part, rows_first)];
        if (lse == NEG_INF && variant.pulls(UNTIL_EMPTY)) break;
        take(variant, own, lse, o + WRONG(NEIGHBOURS_READ, lane, lane * columns), WRONG(NEIGHBOURS_READ, 32, 1));
    }

    float merged = finish(variant, own);
    for (int c = 0; c < columns; c++) O_team[warp][lane + 32 * c] = own.O[c];
    if (lane == 0) LSE_team[warp] = merged;
    __syncthreads();
    if (warp > 0) return;
    if (team == 1) all = own;
    for (int w = 0; w < team && team > 1; w++) {
        if (LSE_team[w] == NEG_INF && variant.pulls(UNTIL_EMPTY_WARP)) break;
        take(variant, all, LSE_team[w], O_team[w] + lane, 32);
    }
    if (team > 1) merged = finish(variant, all);

    for (int c = 0; c < columns; c++)
        O[WRONG(NEIGHBOURS_WRITTEN, lane + 32 * c, lane * columns + c)] = all.O[c];
    if (lane == 0) LSE[0] = merged;
}
