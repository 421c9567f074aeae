// range_hopper.cu — range.cu by chapter 07's loop: wgmma, the copy engine, a producer and consumers.
//
// The loop is that of 07_hopper/forward.cu. Three things differ: a block's tiles are those of a range
// (range_block.cuh), a tile needs a mask unless a consumer's rows see all of it, and what each row sees
// waits in shared memory.
//
// Dilated by n, positions fall into n classes (range.cu). Where n divides L_q and L_k, n rows in memory
// are one long row, whose columns c·D … c·D + D − 1 are a row of class c: a tensor map with rows that
// long has the classes side by side, and the copy engine takes a box of one of them.
//
// With TABLE=1 row r sees the keys starts[r] <= j < ends[r], by two arrays, int32 [L_q], that never
// fall. SOFTCAP=1 and SINKS=1 give table_forward a softcap, > 0, and attention sinks
// (model_softmax.cuh): a logit for each of the heads_of_batch query heads of a batch, fp32. Those have no
// keys, while the `sinks` of range_forward do.
//
// grid   (as many blocks as the GPU has multiprocessors, at most one for each item)
// block  (128 · CONSUMERS + 128): consumers with 64 queries each, a producer
// layout Q, O [heads, L_q, D] through tensor maps with boxes of 64 rows, heads = B·H; K, V
//        [heads / group, L_k, D] with boxes of 128 rows (copy_engine.cuh), dilated [.., L / n, n·D]; fp16
//        or bf16; LSE
//        [heads, L_q], fp32; query head h reads key head h / group; query r has position r + L_k − L_q;
//        counter: one int, 0 before the first launch, and 0 again after each
// shared 2 · D·(2·B_R + 4·B_C) + 1040·CONSUMERS + 104 bytes, dynamic; B_R = 64·CONSUMERS, B_C = 128
// limits scale > 0; left, right <= 2^30, which means no end; step >= 1; sinks only with dilation 1 and
//        step 1; D 64 or 128; CONSUMERS 2, with D = 64 also 3; DILATED=0 takes dilation 1 only, and so
//        does TABLE=1, whose numbers are 0 to L_k; dilation divides L_q and L_k; SOFTCAP=1 and SINKS=1
//        with TABLE=1
// options: -DD=64 -DBF16=0 -DCONSUMERS=2 -DTABLE=0 -DDILATED=0 | -DD=64 -DBF16=1 -DCONSUMERS=2 -DTABLE=0 -DDILATED=0 | -DD=64 -DBF16=0 -DCONSUMERS=2 -DTABLE=0 -DDILATED=1 | -DD=64 -DBF16=1 -DCONSUMERS=2 -DTABLE=0 -DDILATED=1 | -DD=64 -DBF16=0 -DCONSUMERS=2 -DTABLE=1 -DDILATED=0 | -DD=64 -DBF16=1 -DCONSUMERS=2 -DTABLE=1 -DDILATED=0 | -DD=64 -DBF16=0 -DCONSUMERS=3 -DTABLE=0 -DDILATED=0 | -DD=64 -DBF16=1 -DCONSUMERS=3 -DTABLE=0 -DDILATED=0 | -DD=64 -DBF16=0 -DCONSUMERS=3 -DTABLE=0 -DDILATED=1 | -DD=64 -DBF16=1 -DCONSUMERS=3 -DTABLE=0 -DDILATED=1 | -DD=128 -DBF16=0 -DCONSUMERS=2 -DTABLE=0 -DDILATED=0 | -DD=128 -DBF16=1 -DCONSUMERS=2 -DTABLE=0 -DDILATED=0 | -DD=128 -DBF16=0 -DCONSUMERS=2 -DTABLE=0 -DDILATED=1 | -DD=128 -DBF16=1 -DCONSUMERS=2 -DTABLE=0 -DDILATED=1 | -DD=128 -DBF16=0 -DCONSUMERS=2 -DTABLE=1 -DDILATED=0 | -DD=128 -DBF16=1 -DCONSUMERS=2 -DTABLE=1 -DDILATED=0 | -DD=64 -DBF16=0 -DCONSUMERS=2 -DTABLE=1 -DDILATED=0 -DSOFTCAP=1 | -DD=64 -DBF16=1 -DCONSUMERS=2 -DTABLE=1 -DDILATED=0 -DSINKS=1 | -DD=64 -DBF16=0 -DCONSUMERS=2 -DTABLE=1 -DDILATED=0 -DSOFTCAP=1 -DSINKS=1 | -DD=128 -DBF16=1 -DCONSUMERS=2 -DTABLE=1 -DDILATED=0 -DSOFTCAP=1 | -DD=128 -DBF16=0 -DCONSUMERS=2 -DTABLE=1 -DDILATED=0 -DSINKS=1 | -DD=128 -DBF16=1 -DCONSUMERS=2 -DTABLE=1 -DDILATED=0 -DSOFTCAP=1 -DSINKS=1
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), Algorithm 2, whose lines the comments name
constexpr int CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int B_R = 64 * CONSUMERS, B_C = 128, BUFFERS = 2;
#include "consumers.cuh"
#include "range_block.cuh"

static_assert(CONSUMERS == 2 || (CONSUMERS == 3 && D == 64), "CONSUMERS is 2, with D = 64 also 3");

struct Shared {
    scalar_t Q[CONSUMERS][ROWS * D], O[CONSUMERS][ROWS * D];
    scalar_t K[BUFFERS][B_C * D], V[BUFFERS][B_C * D];
    Gate gate_Q[CONSUMERS], gate_K[BUFFERS], gate_V[BUFFERS];
    Keys seen[CONSUMERS][ROWS];     // what each row sees, beside the sinks
    Work work[2];                   // of this round and the next
    float sink[CONSUMER_THREADS];   // see hold()
};
static_assert(sizeof(Shared) == 2 * D * (2 * B_R + 4 * B_C) + 1040 * CONSUMERS + 104, "the header");

// One thread of the producer asks for tiles, item after item. The first K comes before Q: its place is
// empty while the consumers still need the last item's Q.
__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& K,
                               const TensorMap& V, unsigned* counter, const Problem& problem,
                               int items) {
    int item = blockIdx.x, round = 0;
    for (int t = 0; item < items; round++, item = next_item(counter, items)) {
        shared.work[round % 2] = work_of_item(problem, item);
        const Work& work = shared.work[round % 2];
        const InMemory from = in_memory(problem, work.head);
        const int kv_head = from.head / problem.group, last = work.tiles.last();
        for (int j = last; j >= 0; j = work.tiles.before(j), t++) {
            const auto [buffer, parity] = place(t);
            fill(shared.K[buffer], shared.gate_K[buffer], parity, K, j * B_C, kv_head,
                 from.panel());
            for (int w = 0; w < CONSUMERS && j == last; w++)
                fill(shared.Q[w], shared.gate_Q[w], round % 2, Q, work.i0 + w * ROWS, from.head,
                     from.panel());
            fill(shared.V[buffer], shared.gate_V[buffer], parity, V, j * B_C, kv_head,
                 from.panel());
        }
    }
    shared.work[round % 2] = Work{};
    for (Gate& gate : shared.gate_Q) fill_with_nothing(gate, round % 2);
}

// scale: the factor of the scores before the cap; heads: query heads of a batch, each with its sink.
struct Model { ModelSoftmax softmax; float scale; int heads; };

__device__ inline void consume(Shared& shared, const TensorMap& out, float* LSE,
                               const Problem& problem, const Model& model) {
    const int w = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);   // which consumer
    const int sinks = sinks_of(problem);
    if (w == CONSUMERS - 1) pass_turn(w);   // the first turn is consumer 0's
    for (int t = 0, round = 0; ; t++, round++) {
        wait_until_full(shared.gate_Q[w], round % 2);                   // line 3
        const Work work = shared.work[round % 2];
        __syncwarp();   // all lanes have read it, before one of them gives Q back for its warp
        if (work.tiles.end == 0) break;
        const int i_w = work.i0 + w * ROWS;
        const Keys top = keys_of(problem, i_w), bottom = keys_of(problem, i_w + ROWS - 1);
        const Keys* seen = shared.seen[w] + warp_row();
        int j = work.tiles.last();
        Rows rows;                                                      // line 2
        Output O = {};
        Scores S;
        Weights P;

        // Tile j, number t of all, whose K is there. The item's first has no P V yet to compute beside.
        auto meet_tile = [&](bool is_first) {
            const int next = place(t).buffer;
            const auto [buffer, parity] = place(t - 1);                 // V of the tile before
            if (!is_first) take_turn(w);
            start_scores(S, shared.Q[w], shared.K[next]);               // lines 4 and 9
            if (!is_first) {
                wait_until_full(shared.gate_V[buffer], parity);         // line 10
                start_output(O, P, shared.V[buffer]);                   // line 11
                pass_turn(w);
            } else {   // while S runs: what each row sees
                if (threadIdx.x % 128 < ROWS)
                    shared.seen[w][threadIdx.x % 128] = keys_of(problem, i_w + threadIdx.x % 128);
                sync_threads(1 + w, 128);
            }
            if (is_first)
                wait_for_product<0>(S);                                 // line 4
            else   // line 12
                wait_for_product<1>(S);
            give_back(shared.gate_K[next]);                             // line 5; of line 15, early
            if (SOFTCAP) cap_scores(S, model.scale / model.softmax.softcap);
            if (!is_whole(top, bottom, sinks, j * B_C)) mask(S, seen, sinks, j * B_C);
            raise_maximum(rows, S, problem.factor);                     // m of lines 6 and 13
            if (!is_first) {
                hold(shared.sink[threadIdx.x], rows);
                wait_for_product<0>(O);                                 // line 14
                give_back(shared.gate_V[buffer]);                       // line 15
            }
            exponentials(S, rows, problem.factor);                      // P, l of lines 6 and 13
            if (!is_first) rescale(O, rows);                            // line 14
            pack_weights(P, S);                                         // line 16
        };
        const auto [first, first_parity] = place(t);
        wait_until_full(shared.gate_K[first], first_parity);            // line 3
        meet_tile(true);
        while ((j = work.tiles.before(j)) >= 0) {                       // line 7, down to the first
            const auto [next, next_parity] = place(++t);                // line 8
            wait_until_full(shared.gate_K[next], next_parity);
            meet_tile(false);
        }
        give_back(shared.gate_Q[w]);
        const auto [buffer, parity] = place(t);
        wait_until_full(shared.gate_V[buffer], parity);                 // line 18
        start_output(O, P, shared.V[buffer]);                           // line 19
        wait_for_product<0>(O);
        give_back(shared.gate_V[buffer]);
        const InMemory to = in_memory(problem, work.head);
        const int pitch = DILATED ? problem.dilation : 1;
        const long long row = ((long long)to.head * problem.L_q + i_w) * pitch + to.residue;
        const float sink = SINKS ? model.softmax.sink(work.head % model.heads) : NEG_INF;
        normalize(O, rows, LSE + row, problem.L_q - i_w, 1, pitch, sink);   // line 20
        store_output(shared, O, out, i_w, to.head, w, to.panel());
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();   // shared memory must live as long
}

__device__ __forceinline__ void
attend(const TensorMap& Q, const TensorMap& K, const TensorMap& V, const TensorMap& O, float* LSE,
       unsigned* counter, const Problem& problem, const Model& model = {}) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
        initialize(shared.gate_Q, 4);
        initialize(shared.gate_K, 4 * CONSUMERS);
        initialize(shared.gate_V, 4 * CONSUMERS);
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMER_THREADS) {                          // line 1: most of the block's registers move from here
        lower_register_limit<CONSUMERS == 2 ? 24 : 32>();
        const int items = blocks_of(problem.L_q) * problem.heads;
        if (threadIdx.x == CONSUMER_THREADS) produce(shared, Q, K, V, counter, problem, items);
    } else {
        raise_register_limit<CONSUMERS == 2 ? 240 : 160>();
        consume(shared, O, LSE, problem, model);
    }
}

#if TABLE
extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
table_forward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
              const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O, float* LSE,
              unsigned* counter, int heads, int L_q, int L_k, int group, float scale, int at_once,
              const int* starts, const int* ends, float softcap, const float* sink_logits,
              int heads_of_batch) {
    const ModelSoftmax softmax = {softcap, sink_logits};
    const float factor = softmax.factor(scale) * LOG2_E;
    attend(Q, K, V, O, LSE, counter,
           {L_q, L_k, group, factor, heads, at_once, 1, {starts, ends}},
           {softmax, scale, heads_of_batch});
}
#else
extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
range_forward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
              const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O, float* LSE,
              unsigned* counter, int heads, int L_q, int L_k, int group, float scale, int at_once,
              int sinks, int left, int right, int step, int dilation) {
    if (!DILATED) dilation = 1;   // known to the compiler
    const Pattern pattern = {sinks, left, right, step};
    attend(Q, K, V, O, LSE, counter, {L_q / dilation, L_k / dilation, group, scale * LOG2_E,
                                     heads * dilation, at_once, dilation, pattern});
}
#endif
