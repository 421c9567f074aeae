// step4_overlap.cu — FlashAttention forward on Hopper: a warpgroup's softmax runs beside its product.
//
// Step 4 of the ladder. S = Q Kᵀ of the next tile is started in front of O += P V of this one, so
// that the maximum of the next tile is found as soon as S is there, while the tensor cores are busy
// with O: they have no pause between the two products. The exponentials come after both.
//
// grid   (ceil(L_q / 128), H, B)       block  (384): two consumers with 64 queries each, a producer
// layout Q, O [B·H, L_q, D] through tensor maps with boxes of 64 rows; K, V [B·H / group, L_k, D]
//        with boxes of 128 rows (copy_engine.cuh), fp16 or bf16; LSE [B·H, L_q], fp32; query head h
//        reads key head h / group
// shared 2 · D·(B_R + 4·B_C) + 1120 bytes, dynamic; B_R = B_C = 128
// limits scale > 0; D 64 or 128
// options: -DD=64 -DBF16=0 | -DD=64 -DBF16=1 | -DD=128 -DBF16=0 | -DD=128 -DBF16=1
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), §3.2 and Algorithm 2
constexpr int CONSUMERS = 2, CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int B_R = 64 * CONSUMERS, B_C = 128, BUFFERS = 2;
#include "query_block.cuh"
#include "tile_ring.cuh"
#include "warpgroup_tile.cuh"

struct Shared {
    scalar_t Q[CONSUMERS][ROWS * D], K[BUFFERS][B_C * D], V[BUFFERS][B_C * D];
    Gate gate_Q[CONSUMERS], gate_K[BUFFERS], gate_V[BUFFERS];
    float sink[CONSUMER_THREADS];   // see hold()
};
static_assert(sizeof(Shared) == 2 * D * (B_R + 4 * B_C) + 1120, "what the header says");

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
    Scores S;
    Weights P;
    // The first tile: there is no P V yet to compute beside it.
    int j = work.T_c - 1, t = 0;
    wait_until_full(shared.gate_Q[w], 0);
    wait_until_full(shared.gate_K[0], 0);
    start_scores(S, shared.Q[w], shared.K[0]);
    wait_for_product<0>(S);
    give_back(shared.gate_K[0]);
    if (j >= whole) mask(S, i_w, j * B_C, problem.L_k, shift, problem.is_causal);
    raise_maximum(rows, S, problem.factor);
    exponentials(S, rows, problem.factor);
    pack_weights(P, S);

    while (--j >= 0) {   // S of tile j, and P V of the tile before
        const auto [buffer, parity] = place(t);
        const auto [next, next_parity] = place(++t);
        wait_until_full(shared.gate_K[next], next_parity);
        start_scores(S, shared.Q[w], shared.K[next]);
        wait_until_full(shared.gate_V[buffer], parity);
        start_output(O, P, shared.V[buffer]);
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
    const auto [buffer, parity] = place(t);
    wait_until_full(shared.gate_V[buffer], parity);
    start_output(O, P, shared.V[buffer]);
    wait_for_product<0>(O);
    write(shared, out, LSE, O, rows, problem, work.head, i_w, w);
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
step4_overlap(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
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
