// forward_e4m3.cu — attention in E4M3: products of 8 bits, twice as fast, and what they ask for.
//
// New against forward.cu are three things. Two warps of the producer transpose V on its way to the
// consumers: a product of 8 bits takes it in no other way (e4m3_warpgroup.cuh). Sums have two levels:
// Hopper's sums of 8-bit products keep 14 bits, and what is added to a long one drowns; so P V of a
// tile is a sum T of its own, and O = rescale · O + T is in fp32, no instruction more than O's
// rescaling. And overlap is simpler: twice as fast products leave softmax as the longer part, so
// there are three consumers, each with one product or its softmax at a time, and no turns.
//
// Each head has scales: those of Q and K are part of the factor of the scores, that of V of the last
// division. -DLEVELS=1 sums in O itself, to show what that loses.
//
// The whole is not twice as fast: maxima, exponentials, sums and rounding take as long as before, and
// now most of the time. With D = 64, half of the products and the same softmax, nothing is gained.
//
// grid   (as many blocks as the GPU has multiprocessors, at most one for each item)
// block  (512): three consumers with 64 queries each, a producer
// layout Q [heads, L_q, D], K, V [heads / group, L_k, D], E4M3, through tensor maps with boxes of 64
//        and 128 rows, in D-byte swizzle (copy_engine.cuh); O like Q, bf16, with boxes of 64 rows;
//        heads = B·H; q_scale [heads], k_scale, v_scale [heads / group], LSE [heads, L_q], fp32; query
//        head h reads key head h / group; counter: one int, 0 before the first launch, and 0 again
//        after each
// shared D·(3·B_R + 6·B_C) + 16·CONSUMERS + 128 bytes, dynamic; CONSUMERS = 3, B_R = 192, B_C = 128
// limits scale, q_scale, k_scale > 0 and finite; D 64 or 128
// options: -DD=64 | -DD=128 | -DD=128 -DLEVELS=1
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), §3.3; DeepSeek-V3 (arXiv 2412.19437), §3.3.2
#define BF16 1   // of O
#ifndef LEVELS
#define LEVELS 2
#endif
constexpr int CONSUMERS = 3, TRANSPOSERS = 2, CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int B_R = 64 * CONSUMERS, B_C = 128, BUFFERS = 2;
#include "consumers.cuh"
#include "e4m3_warpgroup.cuh"
#include "query_block.cuh"

struct Shared {
    E4M3 Q[CONSUMERS][ROWS * D];
    scalar_t O[CONSUMERS][ROWS * D];
    E4M3 K[BUFFERS][B_C * D], V_rows[BUFFERS][B_C * D], V[BUFFERS][D * B_C];   // V: transposed
    Gate gate_Q[CONSUMERS], gate_K[BUFFERS], gate_V_rows[BUFFERS], gate_V[BUFFERS];
    Work work[2];          // of this round and the next; T_c = 0: there is no more
    int is_end[BUFFERS];   // there is no tile more, and none in V_rows
};
static_assert(sizeof(Shared) == D * (3 * B_R + 6 * B_C) + 16 * CONSUMERS + 128, "the header");

struct Scales { const float *q, *k, *v; };

// One thread of the producer asks for tiles, item after item. The first K comes before Q: its place is
// empty while the consumers still need the last item's Q.
__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& K,
                               const TensorMap& V, unsigned* counter, const Problem& problem,
                               int items) {
    int item = blockIdx.x, round = 0, t = 0;
    for (; item < items; round++, item = next_item(counter, items)) {
        const Work work = work_of_item(problem, item);
        const int kv_head = work.head / problem.group;
        shared.work[round % 2] = work;
        for (int j = work.T_c - 1; j >= 0; j--, t++) {
            const auto [buffer, parity] = place(t);
            fill(shared.K[buffer], shared.gate_K[buffer], parity, K, j * B_C, kv_head);
            for (int w = 0; w < CONSUMERS && j == work.T_c - 1; w++)
                fill(shared.Q[w], shared.gate_Q[w], round % 2, Q, work.i0 + w * ROWS, work.head);
            fill(shared.V_rows[buffer], shared.gate_V_rows[buffer], parity, V, j * B_C, kv_head);
        }
    }
    shared.work[round % 2] = Work{};
    for (Gate& gate : shared.gate_Q) fill_with_nothing(gate, round % 2);
    const auto [buffer, parity] = place(t);
    wait_for(&shared.gate_V_rows[buffer].empty, parity ^ 1);
    shared.is_end[buffer] = 1;
    arrive(&shared.gate_V_rows[buffer].full);
}

// Warps of the producer transpose V, tile after tile.
__device__ inline void transpose(Shared& shared, int warp) {
    for (int t = 0; ; t++) {
        const auto [buffer, parity] = place(t);
        wait_until_full(shared.gate_V_rows[buffer], parity);
        if (shared.is_end[buffer]) break;
        wait_for(&shared.gate_V[buffer].empty, parity ^ 1);
        #pragma unroll 1
        for (int key = 32 * warp; key < B_C; key += 32 * TRANSPOSERS)
            transpose_keys(shared.V[buffer], shared.V_rows[buffer], key);
        publish_tile();
        __syncwarp();
        give_back(shared.gate_V_rows[buffer]);
        if (threadIdx.x % 32 == 0) arrive(&shared.gate_V[buffer].full);
    }
}

__device__ inline void consume(Shared& shared, const TensorMap& out, float* LSE,
                               const Scales& scales, const Problem& problem) {
    const int w = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);   // which consumer
    const int shift = problem.L_k - problem.L_q;
    for (int t = 0, round = 0; ; round++) {
        wait_until_full(shared.gate_Q[w], round % 2);
        const Work work = shared.work[round % 2];
        __syncwarp();   // all lanes have read it, before one of them gives Q back for its warp
        if (work.T_c == 0) break;
        const int i_w = work.i0 + w * ROWS, whole = whole_tiles(problem, i_w);
        const int kv_head = work.head / problem.group;
        // Never 0, however small the scales: a masked score, −∞, times 0 is no number.
        const float factor =
            fmaxf(problem.factor * scales.q[work.head] * scales.k[kv_head], 1e-37f);
        Rows rows;
        Output O = {}, sum;
        Output& T = LEVELS == 1 ? O : sum;
        Scores S;
        Weights8 P;
        for (int j = work.T_c - 1; j >= 0; j--, t++) {
            const auto [buffer, parity] = place(t);
            wait_until_full(shared.gate_K[buffer], parity);
            start_scores(S, shared.Q[w], shared.K[buffer]);
            wait_for_product<0>(S);
            give_back(shared.gate_K[buffer]);
            if (j >= whole) mask(S, i_w, j * B_C, problem.L_k, shift, problem.is_causal);
            raise_maximum(rows, S, factor, WEIGHT_BITS);
            exponentials(S, rows, factor);
            pack_weights(P, S);
            if (LEVELS == 1) rescale(O, rows);
            wait_until_full(shared.gate_V[buffer], parity);
            start_output(T, P, shared.V[buffer], LEVELS == 1);
            wait_for_product<0>(T);
            give_back(shared.gate_V[buffer]);
            if (LEVELS == 2) add_output(O, rows.rescale, T);
        }
        give_back(shared.gate_Q[w]);
        const long long row = (long long)work.head * problem.L_q + i_w;
        normalize(O, rows, LSE + row, problem.L_q - i_w, scales.v[kv_head]);
        // The compiler must not know which tile O leaves through: it would have all addresses ready
        // before the first tile of keys, in registers that T needs.
        int own = w;
        asm volatile("" : "+r"(own));
        store_output(shared, O, out, i_w, work.head, own);
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();   // shared memory must live as long
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
forward_e4m3(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
             const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O,
             const float* q_scale, const float* k_scale, const float* v_scale, float* LSE,
             unsigned* counter, int heads, int L_q, int L_k, int group, float scale, int is_causal,
             int at_once) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
        initialize(shared.gate_Q, 4);
        initialize(shared.gate_K, 4 * CONSUMERS);
        initialize(shared.gate_V_rows, TRANSPOSERS);
        initialize(shared.gate_V, 4 * CONSUMERS, TRANSPOSERS);
        for (int& is_end : shared.is_end) is_end = 0;
        publish_barriers();
    }
    __syncthreads();
    const Problem problem = {L_q, L_k, group, is_causal, scale * LOG2_E, heads, at_once};
    const int items = (L_q + B_R - 1) / B_R * heads;
    // Of the block's registers, 128 a thread, most move to the consumers.
    if (threadIdx.x >= CONSUMER_THREADS) {
        lower_register_limit<D == 128 ? 32 : 56>();
        const int warp = threadIdx.x % 128 / 32;
        if (threadIdx.x == CONSUMER_THREADS) produce(shared, Q, K, V, counter, problem, items);
        if (warp > 0 && warp <= TRANSPOSERS) transpose(shared, warp - 1);
    } else {
        raise_register_limit<D == 128 ? 160 : 152>();
        consume(shared, O, LSE, {q_scale, k_scale, v_scale}, problem);
    }
}
