// step6_persistent.cu — FlashAttention forward on Hopper whose blocks stay.
//
// Step 6 of the ladder. A block does not end with its 128 queries: it fetches item after item, as many
// as there are, so that the next item's Q, K and V are on their way while this one's last product runs
// and its O is written. For that O has a place of its own.
//
// grid   (as many blocks as the GPU has multiprocessors, at most one for each item)
// block  (384): two consumers with 64 queries each, a producer
// layout Q, O [heads, L_q, D] through tensor maps with boxes of 64 rows, heads = B·H; K, V
//        [heads / group, L_k, D] with boxes of 128 rows (copy_engine.cuh), fp16 or bf16; LSE
//        [heads, L_q], fp32; query head h reads key head h / group; counter: one int, 0 before the
//        first launch, and 0 again after each
// shared 2 · D·(2·B_R + 4·B_C) + 1144 bytes, dynamic; B_R = B_C = 128
// limits scale > 0; D 64 or 128
// options: -DD=64 -DBF16=0 | -DD=64 -DBF16=1 | -DD=128 -DBF16=0 | -DD=128 -DBF16=1
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), §3.1
constexpr int CONSUMERS = 2, CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int B_R = 64 * CONSUMERS, B_C = 128, BUFFERS = 2;
#include "query_block.cuh"
#include "tile_ring.cuh"
#include "warpgroup_tile.cuh"

struct Shared {
    scalar_t Q[CONSUMERS][ROWS * D], O[CONSUMERS][ROWS * D];
    scalar_t K[BUFFERS][B_C * D], V[BUFFERS][B_C * D];
    Gate gate_Q[CONSUMERS], gate_K[BUFFERS], gate_V[BUFFERS];
    Work work[2];                   // of this round and the next; T_c = 0: there is no more
    float sink[CONSUMER_THREADS];   // see hold()
};
static_assert(sizeof(Shared) == 2 * D * (2 * B_R + 4 * B_C) + 1144, "what the header says");

// One thread of the producer asks for tiles, item after item. The first K comes before Q: its place is
// empty while the consumers still need the last item's Q.
__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& K,
                               const TensorMap& V, unsigned* counter, const Problem& problem,
                               int items) {
    int item = blockIdx.x, round = 0;
    const int blocks = (problem.L_q + B_R - 1) / B_R;   // of a head
    for (int t = 0; item < items; round++) {
        const Work work = work_of(problem, item / blocks, item % blocks);
        const int kv_head = work.head / problem.group;
        shared.work[round % 2] = work;
        for (int j = work.T_c - 1; j >= 0; j--, t++) {
            const auto [buffer, parity] = place(t);
            fill(shared.K[buffer], shared.gate_K[buffer], parity, K, j * B_C, kv_head);
            for (int w = 0; w < CONSUMERS && j == work.T_c - 1; w++)
                fill(shared.Q[w], shared.gate_Q[w], round % 2, Q, work.i0 + w * ROWS, work.head);
            fill(shared.V[buffer], shared.gate_V[buffer], parity, V, j * B_C, kv_head);
        }
        // Late, so that no item waits for this block while others idle. All blocks together ask `items`
        // times: the counter goes to items − 1, then to 0 again.
        item = gridDim.x + atomicInc(counter, items - 1);
    }
    shared.work[round % 2] = Work{};
    for (Gate& gate : shared.gate_Q) {
        wait_for(&gate.empty, round % 2 ^ 1);
        arrive(&gate.full);
    }
}

// O / l and the log-sum-exp of a consumer. Its last O must have left before.
__device__ inline void write(Shared& shared, const TensorMap& map, float* LSE, Output& O,
                             const Rows& rows, const Problem& problem, int head, int i_w, int w) {
    normalize(O, rows, LSE + (long long)head * problem.L_q + i_w, problem.L_q - i_w);
    if (threadIdx.x % 128 == 0) wait_for_stores();
    sync_threads(1 + w, 128);
    write_tile(shared.O[w], O);
    publish_tile();
    sync_threads(1 + w, 128);
    if (threadIdx.x % 128 == 0) store_box(map, i_w, head, shared.O[w]);
}

// The consumers take turns at the tensor cores: while one has its turn, the other computes softmax.
// Named barrier 1 + CONSUMERS + w is consumer w's.
__device__ inline void take_turn(int w) { sync_threads(1 + CONSUMERS + w, 256); }
__device__ inline void pass_turn(int w) {
    arrive_threads(1 + CONSUMERS + (w + 1) % CONSUMERS, 256);
}

__device__ inline void consume(Shared& shared, const TensorMap& out, float* LSE,
                               const Problem& problem) {
    const int w = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);   // which consumer
    const int shift = problem.L_k - problem.L_q;
    if (w == CONSUMERS - 1) pass_turn(w);   // the first turn is consumer 0's
    for (int t = 0, round = 0; ; t++, round++) {
        wait_until_full(shared.gate_Q[w], round % 2);
        const Work work = shared.work[round % 2];
        __syncwarp();   // all lanes have read it, before one of them gives Q back for its warp
        if (work.T_c == 0) break;
        const int i_w = work.i0 + w * ROWS, whole = whole_tiles(problem, i_w);
        Rows rows;
        Output O = {};
        Scores S;
        Weights P;
        // The first tile: there is no P V yet to compute beside it.
        int j = work.T_c - 1;
        const auto [first, first_parity] = place(t);
        wait_until_full(shared.gate_K[first], first_parity);
        start_scores(S, shared.Q[w], shared.K[first]);
        wait_for_product<0>(S);
        give_back(shared.gate_K[first]);
        if (j >= whole) mask(S, i_w, j * B_C, problem.L_k, shift, problem.is_causal);
        raise_maximum(rows, S, problem.factor);
        exponentials(S, rows, problem.factor);
        pack_weights(P, S);

        while (--j >= 0) {   // S of tile j, and P V of the tile before
            const auto [buffer, parity] = place(t);
            const auto [next, next_parity] = place(++t);
            wait_until_full(shared.gate_K[next], next_parity);
            take_turn(w);
            start_scores(S, shared.Q[w], shared.K[next]);
            wait_until_full(shared.gate_V[buffer], parity);
            start_output(O, P, shared.V[buffer]);
            pass_turn(w);
            wait_for_product<1>(S);
            give_back(shared.gate_K[next]);
            if (j >= whole) mask(S, i_w, j * B_C, problem.L_k, shift, problem.is_causal);
            raise_maximum(rows, S, problem.factor);
            hold(shared.sink[threadIdx.x], rows);
            wait_for_product<0>(O);
            give_back(shared.gate_V[buffer]);
            exponentials(S, rows, problem.factor);
            rescale(O, rows);
            pack_weights(P, S);
        }
        give_back(shared.gate_Q[w]);
        const auto [buffer, parity] = place(t);
        wait_until_full(shared.gate_V[buffer], parity);
        start_output(O, P, shared.V[buffer]);
        wait_for_product<0>(O);
        give_back(shared.gate_V[buffer]);
        write(shared, out, LSE, O, rows, problem, work.head, i_w, w);
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();   // shared memory must live as long
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
step6_persistent(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                 const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O,
                 float* LSE, unsigned* counter, int heads, int L_q, int L_k, int group, float scale,
                 int is_causal) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
        for (Gate& gate : shared.gate_Q) initialize(gate, 4);
        for (Gate& gate : shared.gate_K) initialize(gate, 4 * CONSUMERS);
        for (Gate& gate : shared.gate_V) initialize(gate, 4 * CONSUMERS);
        publish_barriers();
    }
    __syncthreads();
    const Problem problem = {L_q, L_k, group, is_causal, scale * LOG2_E};
    const int items = (L_q + B_R - 1) / B_R * heads;
    // 384 threads got 168 registers each, and 128 · (168 − 40) = 256 · (232 − 168) move.
    if (threadIdx.x >= CONSUMER_THREADS) {
        lower_register_limit<40>();
        if (threadIdx.x == CONSUMER_THREADS) produce(shared, Q, K, V, counter, problem, items);
    } else {
        raise_register_limit<232>();
        consume(shared, O, LSE, problem);
    }
}
