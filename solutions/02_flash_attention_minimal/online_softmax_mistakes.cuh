// online_softmax_mistakes.cuh — online_softmax.cu with hooks where learners err; the .toml of its name has them.
constexpr int THREADS = 128, WARPS = THREADS / 32;

struct Partial { float m, l; };

// level: LOOP, LANES or OF_WARPS, where the two lots of scores are put together; a hook may be for one or two of them.
__device__ Partial merge(const Variant& variant, int level, Partial a, Partial b) {
    const bool here = variant.pulls(level) || variant.pulls(ALL_LEVELS);
    Partial whole = {fmaxf(a.m, b.m), 0};
    if (here && variant.pulls(NEWEST)) whole.m = b.m;
    const float base = whole.m == NEG_INF && !(here && variant.pulls(UNGUARDED)) ? 0 : whole.m;
    float of_a = expf(a.m - base), of_b = expf(b.m - base);
    if (here) {
        if (variant.pulls(INVERSE)) of_a = expf(base - a.m), of_b = expf(base - b.m);
        if (variant.pulls(FIRST_INVERSE)) of_a = expf(base - a.m);
        if (variant.pulls(FIRST_KEPT) || variant.pulls(BOTH_KEPT)) of_a = 1;
        if (variant.pulls(SECOND_KEPT) || variant.pulls(BOTH_KEPT)) of_b = 1;
    }
    whole.l = a.l * of_a + b.l * of_b;
    if (here && variant.pulls(LARGER)) whole.l = b.m > a.m ? b.l : a.l;
    if (here && variant.pulls(LARGER_OR_BOTH)) whole.l = b.m > a.m ? b.l : a.m > b.m ? a.l : a.l + b.l;
    if (here && variant.pulls(NOTHING_YET) && a.l == 0) whole = b;
    return variant.pulls(NO_MAXIMUM) || variant.pulls(FIRST_SCORE) ? Partial{a.m, a.l + b.l} : whole;
}

__device__ float from_lane(const Variant& variant, int down, int half_step, float x, int step) {
    const float up = __shfl_xor_sync(0xffffffff, x, WRONG(half_step, step, step / 2));
    const float below = __shfl_down_sync(0xffffffff, x, step);
    return WRONG(down, up, below);
}

extern "C" __global__ void __launch_bounds__(THREADS)
online_softmax(const float* S, float* P, float* LSE, int L) {
    const Variant variant = variants[variant_number()];
    __shared__ Partial of_warp[WARPS];
    const long long row = blockIdx.x, output = (long long)variant_number() * gridDim.x + row;
    S += row * L, P += output * L, LSE += output;
    const auto score = [&](int j) { return variant.pulls(HIDE_BELOW) && S[j] < variant.value ? NEG_INF : S[j]; };

    const bool fixed = variant.pulls(NO_MAXIMUM) || variant.pulls(FIRST_SCORE);
    Partial known = {WRONG(START, NEG_INF, variant.value), 0};
    if (fixed) known.m = WRONG(NO_MAXIMUM, S[0], 0);
    int end = WRONG(FULL_PIECES, L, L / THREADS * THREADS) - WRONG(LAST_KEY, 0, L > 1 ? 1 : 0);
    end = WRONG(PADDED, end, (L + THREADS - 1) / THREADS * THREADS);
    int turns = (end - (int)threadIdx.x + THREADS - 1) / THREADS;
    if (variant.pulls(WHOLE_TURNS)) turns = turns / (int)variant.value * (int)variant.value;
    for (int turn = 0; turn < turns; turn++) {
        const int j = threadIdx.x + turn * THREADS;
        const float s = j < L ? score(j) : 0;
        known = fixed ? Partial{known.m, known.l + expf(s - known.m)} : merge(variant, LOOP, known, {s, 1});
    }
    const Partial own = known;

    for (int step = WRONG(STEPS_FROM_8, 16, 8); step > WRONG(STEPS_TO_2, 0, 1); step /= 2) {
        const float other_m = from_lane(variant, M_DOWN, -1, known.m, step);
        const float other_l = from_lane(variant, L_DOWN, L_HALF_STEP, known.l, step);
        known = WRONG(LANES_ALONE, merge(variant, LANES, known, {other_m, other_l}), known);
    }

    if (threadIdx.x % 32 == WRONG(LAST_SPEAKS, 0, 31)) of_warp[threadIdx.x / 32] = known;
    __syncthreads();
    Partial whole = of_warp[WRONG(LAST_WARP, 0, WARPS - 1)];
    for (int w = 1; w < WARPS; w++)
        if (!variant.pulls(FIRST_WARP) && !variant.pulls(LAST_WARP)) whole = merge(variant, OF_WARPS, whole, of_warp[w]);
    whole = WRONG(OWN_TWICE, whole, merge(variant, OF_WARPS, known, whole));
    if (!variant.pulls(WARPS_ALONE) && threadIdx.x < WRONG(TOLD, THREADS, variant.value)) known = whole;

    const bool empty = known.l == 0 && !variant.pulls(NAN_DIVISION);
    for (int j = threadIdx.x; j < L; j += THREADS)
        P[j] = empty ? 0 : expf(score(j) - known.m) / WRONG(NOT_DIVIDED, known.l, 1);
    const float m = known.m, l = WRONG(LSE_THREAD_0, known.l, own.l * expf(own.m - m));
    float lse = WRONG(LSE_LACKS_LOG, WRONG(LSE_LOG_2, WRONG(LSE_LOG1P, logf(l), log1pf(l)), log2f(l)), l);
    lse = WRONG(LSE_LACKS_M, m, 0) * WRONG(LSE_M_2, 1, 1.44269504f) + WRONG(LSE_IS_M, WRONG(LSE_MINUS, lse, -lse), 0);
    lse = WRONG(LSE_EXP_M, lse, logf(l * expf(m)));
    if (threadIdx.x == 0) *LSE = empty ? NEG_INF : lse;
}
