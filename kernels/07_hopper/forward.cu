// forward.cu — the last rung: FlashAttention-3, forward, without a seam between items.
//
// New against step7: the last product of an item, O += P V, has the first scores of the next item in
// front of it, as every other has the scores of the next tile. So the tensor cores do not wait for the
// first softmax of an item, nor for its O to be written; short rows gain most. It takes a second place
// for Q. For D = 64, where a consumer needs fewer registers, there may be three.
//
// grid   (as many blocks as the GPU has multiprocessors, at most one for each item)
// block  (128 · CONSUMERS + 128): consumers with 64 queries each, a producer
// layout Q, O [heads, L_q, D] through tensor maps with boxes of 64 rows, heads = B·H; K, V
//        [heads / group, L_k, D] with boxes of 128 rows (copy_engine.cuh), fp16 or bf16; LSE
//        [heads, L_q], fp32; query head h reads key head h / group; counter: one int, 0 before the
//        first launch, and 0 again after each
// shared 2 · D·(3·B_R + 4·B_C) + 544·CONSUMERS + 72 bytes, dynamic; B_C = 128,
//        B_R = 64·CONSUMERS
// limits scale > 0; D 64 or 128; CONSUMERS 2, with D = 64 also 3
// options: -DD=64 -DBF16=0 -DCONSUMERS=3 | -DD=64 -DBF16=1 -DCONSUMERS=2 | -DD=64 -DBF16=0 -DCONSUMERS=2 | -DD=64 -DBF16=1 -DCONSUMERS=3 | -DD=128 -DBF16=0 -DCONSUMERS=2 | -DD=128 -DBF16=1 -DCONSUMERS=2
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608)
constexpr int CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int B_R = 64 * CONSUMERS, B_C = 128, BUFFERS = 2;
#include "query_block.cuh"
#include "tile_ring.cuh"
#include "warpgroup_tile.cuh"

constexpr int BESIDE = 6;   // of B_C / 8 = 16: exponentials that run beside O += P V
static_assert(CONSUMERS == 2 || (CONSUMERS == 3 && D == 64), "CONSUMERS is 2, with D = 64 also 3");

struct Shared {
    scalar_t Q[BUFFERS][CONSUMERS][ROWS * D], O[CONSUMERS][ROWS * D];
    scalar_t K[BUFFERS][B_C * D], V[BUFFERS][B_C * D];
    Gate gate_Q[BUFFERS][CONSUMERS], gate_K[BUFFERS], gate_V[BUFFERS];
    int item[BUFFERS];              // what Q is of; −1: there is no more
    float sink[CONSUMER_THREADS];   // see hold()
};
static_assert(sizeof(Shared) == 2 * D * (3 * B_R + 4 * B_C) + 544 * CONSUMERS + 72, "the header");

// Of `at_once` heads at a time, causal: the last queries of each, then those before, and so on;
// otherwise head after head.
__device__ inline Work work_of_item(const Problem& problem, int item) {
    const int blocks = (problem.L_q + B_R - 1) / B_R;
    if (!problem.is_causal) return work_of(problem, item / blocks, item % blocks);
    const int first = item / (problem.at_once * blocks) * problem.at_once;
    const int heads = min(problem.at_once, problem.heads - first), place = item - first * blocks;
    return work_of(problem, first + place % heads, blocks - 1 - place / heads);
}

// One thread of the producer asks for tiles, item after item.
__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& K,
                               const TensorMap& V, unsigned* counter, const Problem& problem,
                               int items) {
    int item = blockIdx.x, round = 0;
    for (int t = 0; item < items; round++) {
        // All blocks together ask `items` times: the counter goes to items − 1, then to 0 again.
        const int next = gridDim.x + atomicInc(counter, items - 1);
        const Work work = work_of_item(problem, item);
        const int kv_head = work.head / problem.group;
        const auto [slot, slot_parity] = place(round);
        for (Gate& gate : shared.gate_Q[slot]) wait_for(&gate.empty, slot_parity ^ 1);
        shared.item[slot] = item;
        for (int w = 0; w < CONSUMERS; w++) {
            const int i_w = work.i0 + w * ROWS;
            fill(shared.Q[slot][w], shared.gate_Q[slot][w], slot_parity, Q, i_w, work.head);
        }
        #pragma unroll 1
        for (int j = work.T_c - 1; j >= 0; j--, t++) {
            const auto [buffer, parity] = place(t);
            fill(shared.K[buffer], shared.gate_K[buffer], parity, K, j * B_C, kv_head);
            fill(shared.V[buffer], shared.gate_V[buffer], parity, V, j * B_C, kv_head);
        }
        item = next;
    }
    const auto [slot, slot_parity] = place(round);
    for (Gate& gate : shared.gate_Q[slot]) wait_for(&gate.empty, slot_parity ^ 1);
    shared.item[slot] = -1;
    for (Gate& gate : shared.gate_Q[slot]) arrive(&gate.full);
}

// O / l and the log-sum-exp of a consumer's item. Its last O must have left before.
__device__ inline void write(Shared& shared, const TensorMap& map, float* LSE, Output& O,
                             const Rows& rows, const Problem& problem, const Work& work, int w) {
    const int i_w = work.i0 + w * ROWS;
    normalize(O, rows, LSE + (long long)work.head * problem.L_q + i_w, problem.L_q - i_w);
    if (threadIdx.x % 128 == 0) wait_for_stores();
    sync_threads(1 + w, 128);
    write_tile(shared.O[w], O);
    publish_tile();
    sync_threads(1 + w, 128);
    if (threadIdx.x % 128 == 0) store_box(map, i_w, work.head, shared.O[w]);
}

// The compiler would move the wait for O up, in front of the exponentials that are to run beside
// O += P V. A store that needs them stops it.
__device__ inline void hold(Shared& shared, const Rows& rows) {
    *(volatile float*)&shared.sink[threadIdx.x] = rows.l[0] + rows.l[1];
}

// The consumers take turns at the tensor cores: while one has its turn, the others compute softmax.
// Named barrier 1 + CONSUMERS + w is consumer w's.
__device__ inline void take_turn(int w) { sync_threads(1 + CONSUMERS + w, 256); }
__device__ inline void pass_turn(int w) {
    arrive_threads(1 + CONSUMERS + (w + 1) % CONSUMERS, 256);
}

// S, which is complete, without what the consumer's queries do not see of tile j.
__device__ inline void mask_tile(Scores& S, const Problem& problem, const Work& work, int j, int w) {
    const int i_w = work.i0 + w * ROWS, shift = problem.L_k - problem.L_q;
    if (j >= whole_tiles(problem, i_w))
        mask(S, i_w, j * B_C, problem.L_k, shift, problem.is_causal);
}

__device__ inline void consume(Shared& shared, const TensorMap& out, float* LSE,
                               const Problem& problem) {
    const int w = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);   // which consumer
    if (w == CONSUMERS - 1) pass_turn(w);   // the first turn is consumer 0's
    Rows rows;
    Output O = {};
    Scores S;
    Weights P;

    // The first tile of all: there is no P V yet to compute beside it.
    int round = 0, t = 0;
    wait_until_full(shared.gate_Q[0][w], 0);
    Work work = work_of_item(problem, shared.item[0]);
    wait_until_full(shared.gate_K[0], 0);
    start_scores(S, shared.Q[0][w], shared.K[0]);
    wait_for_product<0>(S);
    give_back(shared.gate_K[0]);
    mask_tile(S, problem, work, work.T_c - 1, w);
    raise_maximum(rows, S, problem.factor);
    exponentials(S, rows, problem.factor);
    pack_weights(P, S);
    for (;;) {
        const int slot = round % 2;
        for (int j = work.T_c - 2; j >= 0; j--) {   // S of tile j, and P V of the tile before
            const auto [buffer, parity] = place(t);
            const auto [next, next_parity] = place(++t);
            wait_until_full(shared.gate_K[next], next_parity);
            take_turn(w);
            start_scores(S, shared.Q[slot][w], shared.K[next]);
            wait_until_full(shared.gate_V[buffer], parity);
            start_output(O, P, shared.V[buffer]);
            pass_turn(w);
            wait_for_product<1>(S);
            give_back(shared.gate_K[next]);
            mask_tile(S, problem, work, j, w);
            raise_maximum(rows, S, problem.factor);
            exponentials<0, BESIDE>(S, rows, problem.factor);
            hold(shared, rows);
            wait_for_product<0>(O);
            give_back(shared.gate_V[buffer]);
            exponentials<BESIDE, B_C / 8>(S, rows, problem.factor);
            rescale(O, rows);
            pack_weights(P, S);
        }
        give_back(shared.gate_Q[slot][w]);

        // The first tile of the next item, and P V of this one's last.
        const auto [next_slot, slot_parity] = place(++round);
        wait_until_full(shared.gate_Q[next_slot][w], slot_parity);
        if (shared.item[next_slot] < 0) break;
        const Work next_work = work_of_item(problem, shared.item[next_slot]);
        const auto [buffer, parity] = place(t);
        const auto [next, next_parity] = place(++t);
        wait_until_full(shared.gate_K[next], next_parity);
        take_turn(w);
        start_scores(S, shared.Q[next_slot][w], shared.K[next]);
        wait_until_full(shared.gate_V[buffer], parity);
        start_output(O, P, shared.V[buffer]);
        pass_turn(w);
        wait_for_product<0>(S, O);
        give_back(shared.gate_K[next]);
        give_back(shared.gate_V[buffer]);
        write(shared, out, LSE, O, rows, problem, work, w);
        work = next_work, rows = Rows();
        for (auto& part : O)
            for (float& o : part) o = 0;
        mask_tile(S, problem, work, work.T_c - 1, w);
        raise_maximum(rows, S, problem.factor);
        exponentials(S, rows, problem.factor);
        pack_weights(P, S);
    }
    const auto [buffer, parity] = place(t);
    wait_until_full(shared.gate_V[buffer], parity);
    start_output(O, P, shared.V[buffer]);
    wait_for_product<0>(O);
    write(shared, out, LSE, O, rows, problem, work, w);
    if (threadIdx.x % 128 == 0) wait_for_stores();   // shared memory must live as long
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
forward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
        const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O,
        float* LSE, unsigned* counter, int heads, int L_q, int L_k, int group, float scale,
        int is_causal, int at_once) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
        for (auto& gates : shared.gate_Q)
            for (Gate& gate : gates) initialize(gate, 4);
        for (Gate& gate : shared.gate_K) initialize(gate, 4 * CONSUMERS);
        for (Gate& gate : shared.gate_V) initialize(gate, 4 * CONSUMERS);
        publish_barriers();
    }
    __syncthreads();
    const Problem problem = {L_q, L_k, group, is_causal, scale * LOG2_E, heads, at_once};
    const int items = (L_q + B_R - 1) / B_R * heads;
    // A block's threads got 168 registers each, with three consumers 128, and what the producer
    // gives the consumers take.
    if (threadIdx.x >= CONSUMER_THREADS) {
        lower_register_limit<CONSUMERS == 2 ? 40 : 32>();
        if (threadIdx.x == CONSUMER_THREADS) produce(shared, Q, K, V, counter, problem, items);
    } else {
        raise_register_limit<CONSUMERS == 2 ? 232 : 160>();
        consume(shared, O, LSE, problem);
    }
}
