// step3_producer.cu — FlashAttention forward on Hopper with a producer and consumers.
//
// Step 3 of the ladder. Nobody waits for the whole block any more. Four warps of their own, the
// producer, only ask for tiles, and run ahead as far as buffers are empty; eight, the consumers, only
// compute. They meet at two mbarriers for each buffer (tile_ring.cuh). Registers move from the
// producer, which needs few, to the consumers.
//
// grid   (ceil(L_q / 128), H, B)       block  (384): two consumers with 64 queries each, a producer
// layout Q, O [B·H, L_q, D] through tensor maps with boxes of 64 rows; K, V [B·H / group, L_k, D]
//        with boxes of 128 rows (copy_engine.cuh), fp16 or bf16; LSE [B·H, L_q], fp32; query head h
//        reads key head h / group
// shared 2 · D·(B_R + 4·B_C) + 96 bytes, dynamic; B_R = B_C = 128
// limits scale > 0; D 64 or 128
// options: -DD=64 -DBF16=0 | -DD=64 -DBF16=1 | -DD=128 -DBF16=0 | -DD=128 -DBF16=1
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), §3.1 and Algorithm 1
constexpr int CONSUMERS = 2, CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int B_R = 64 * CONSUMERS, B_C = 128, BUFFERS = 2;
#include "query_block.cuh"
#include "tile_ring.cuh"
#include "warpgroup_tile.cuh"

struct Shared {
    scalar_t Q[CONSUMERS][ROWS * D], K[BUFFERS][B_C * D], V[BUFFERS][B_C * D];
    Gate gate_Q[CONSUMERS], gate_K[BUFFERS], gate_V[BUFFERS];
};
static_assert(sizeof(Shared) == 2 * D * (B_R + 4 * B_C) + 96, "what the header says");

// One thread of the producer asks for tiles, from the last to the first.
__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& K,
                               const TensorMap& V, const Problem& problem, const Work& work) {
    const int kv_head = work.head / problem.group;
    for (int w = 0; w < CONSUMERS; w++)
        fill(shared.Q[w], shared.gate_Q[w], 0, Q, work.i0 + w * ROWS, work.head);
    for (int j = work.T_c - 1, t = 0; j >= 0; j--, t++) {
        const auto [buffer, parity] = place(t);
        fill(shared.K[buffer], shared.gate_K[buffer], parity, K, j * B_C, kv_head);
        fill(shared.V[buffer], shared.gate_V[buffer], parity, V, j * B_C, kv_head);
    }
}

// O / l and the log-sum-exp of a consumer; O leaves through the place of its Q.
__device__ inline void write(Shared& shared, const TensorMap& map, float* LSE, Output& O,
                             const Rows& rows, const Problem& problem, int head, int i_w, int w) {
    normalize(O, rows, LSE + (long long)head * problem.L_q + i_w, problem.L_q - i_w);
    sync_threads(1 + w, 128);   // all four warps are done with Q
    write_tile(shared.Q[w], O);
    publish_tile();
    sync_threads(1 + w, 128);
    if (threadIdx.x % 128 == 0) {
        store_box(map, i_w, head, shared.Q[w]);
        wait_for_stores();   // shared memory must live as long
    }
}

__device__ inline void consume(Shared& shared, const TensorMap& out, float* LSE,
                               const Problem& problem, const Work& work) {
    const int w = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);   // which consumer
    const int i_w = work.i0 + w * ROWS, whole = whole_tiles(problem, i_w);
    const int shift = problem.L_k - problem.L_q;
    Rows rows;
    Output O = {};
    wait_until_full(shared.gate_Q[w], 0);
    for (int j = work.T_c - 1, t = 0; j >= 0; j--, t++) {
        const auto [buffer, parity] = place(t);
        Scores S;
        Weights P;
        wait_until_full(shared.gate_K[buffer], parity);
        start_scores(S, shared.Q[w], shared.K[buffer]);
        wait_for_product<0>(S);
        give_back(shared.gate_K[buffer]);
        if (j >= whole) mask(S, i_w, j * B_C, problem.L_k, shift, problem.is_causal);
        raise_maximum(rows, S, problem.factor);
        exponentials(S, rows, problem.factor);
        rescale(O, rows);
        pack_weights(P, S);
        wait_until_full(shared.gate_V[buffer], parity);
        start_output(O, P, shared.V[buffer]);
        wait_for_product<0>(O);
        give_back(shared.gate_V[buffer]);
    }
    write(shared, out, LSE, O, rows, problem, work.head, i_w, w);
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
step3_producer(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
               const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O,
               float* LSE, int L_q, int L_k, int group, float scale, int is_causal) {
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
    const Work work = work_of(problem, blockIdx.z * gridDim.y + blockIdx.y, blockIdx.x);
    // 384 threads got 168 registers each, and 128 · (168 − 40) = 256 · (232 − 168) move.
    if (threadIdx.x >= CONSUMER_THREADS) {
        lower_register_limit<40>();
        if (threadIdx.x == CONSUMER_THREADS) produce(shared, Q, K, V, problem, work);
    } else {
        raise_register_limit<232>();
        consume(shared, O, LSE, problem, work);
    }
}
