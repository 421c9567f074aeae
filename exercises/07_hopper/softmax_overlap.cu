// softmax_overlap.cu — FlashAttention forward whose softmax is computed while a product runs.
//
// A warpgroup has 64 queries. S = Q Kᵀ and O += P V are started and then run by themselves, so the
// order in which they are started and waited for decides what the warps can do meanwhile. Tiles
// come through a ring of two buffers (tile_ring.cuh); what is done with them are the verbs of
// warpgroup_tile.cuh.
//
// grid   (ceil(L_q / 64), H)           block  (160): a warpgroup of consumers, a warp of the producer
// layout Q [H, L_q, 64], K and V [H, L_k, 64] through tensor maps with boxes of 64 and 128 rows, fp16;
//        O [H, L_q, 64] and LSE [H, L_q], fp32
// shared 74,320 bytes, dynamic
// limits L_q and L_k at least 1; scale > 0
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), §3.2 and Algorithm 2
constexpr int D = 64, B_C = 128, BUFFERS = 2, CONSUMERS = 128;   // CONSUMERS: threads
#include "tile_ring.cuh"
#include "warpgroup_tile.cuh"

struct Shared {
    scalar_t Q[ROWS * D], K[BUFFERS][B_C * D], V[BUFFERS][B_C * D];
    Gate gate_Q, gate_K[BUFFERS], gate_V[BUFFERS];
    float sink[CONSUMERS];   // see hold() in warpgroup_tile.cuh
};
static_assert(sizeof(Shared) == 74320, "what the header says");

// The producer asks for the tiles of K and V in order.
__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& K,
                               const TensorMap& V, int tiles) {
    fill(shared.Q, shared.gate_Q, 0, Q, blockIdx.x * ROWS, blockIdx.y);
    for (int t = 0; t < tiles; t++) {
        const auto [buffer, parity] = place(t);
        fill(shared.K[buffer], shared.gate_K[buffer], parity, K, t * B_C, blockIdx.y);
        fill(shared.V[buffer], shared.gate_V[buffer], parity, V, t * B_C, blockIdx.y);
    }
}

// The softmax of tile t: S becomes exp(S − m), m and l follow, and rows.rescale says by what O has to
// be multiplied. Keys from L_k on count nothing. O and P are left alone.
__device__ inline void softmax(Shared& shared, Scores& S, Rows& rows, int t, int L_k, float factor) {
    if ((t + 1) * B_C > L_k) mask(S, 0, t * B_C, L_k, 0, 0);
    raise_maximum(rows, S, factor);
    exponentials(S, rows, factor);
    hold(shared.sink[threadIdx.x], rows);
}

// O = the sum of P V over all tiles, not yet divided by l.
__device__ inline void consume(Shared& shared, Output& O, Rows& rows, int tiles, int L_k,
                               float factor) {
    Scores S;
    Weights P;
    wait_until_full(shared.gate_Q, 0);
    // Write the loop over tiles 0, 1, … of these verbs, so that the softmax of each tile but the
    // first one is computed while a product runs:
    //
    //   place(t)                                   tile t's .buffer and .parity
    //   wait_until_full(gate, parity)              shared.gate_K[buffer] and shared.gate_V[buffer]
    //   give_back(gate)                            no product that reads there runs any more
    //   start_scores(S, shared.Q, shared.K[b])     starts S = Q Kᵀ
    //   start_output(O, P, shared.V[b])            starts O += P V
    //   wait_for_product<N>(S)  or  (O)            until at most the N newest products run; behind it
    //                                              the compiler takes S, or O, to be complete
    //   softmax(shared, S, rows, t, L_k, factor)   S = exp(S − m)
    //   rescale(O, rows)                           O times exp(m_old − m)
    //   pack_weights(P, S)                         P = S in 16 bits
    // YOUR CODE HERE
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1)
softmax_overlap(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                const __grid_constant__ TensorMap V, float* O_out, float* LSE, int L_q, int L_k,
                float scale) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
        initialize(shared.gate_Q, 4);
        for (Gate& gate : shared.gate_K) initialize(gate, 4);
        for (Gate& gate : shared.gate_V) initialize(gate, 4);
        publish_barriers();
    }
    __syncthreads();
    const int tiles = (L_k + B_C - 1) / B_C, i0 = blockIdx.x * ROWS;
    if (threadIdx.x == CONSUMERS) produce(shared, Q, K, V, tiles);
    if (threadIdx.x >= CONSUMERS) return;

    Output O = {};
    Rows rows;
    consume(shared, O, rows, tiles, L_k, scale * LOG2_E);
    const long long first = (long long)blockIdx.y * L_q + i0;   // the block's first row
    normalize(O, rows, LSE + first, L_q - i0);
    each_of_lane<1, D / 8>([&](int, int n, int e, int row, int column) {
        if (i0 + warp_row() + row < L_q) O_out[(first + warp_row() + row) * D + column] = O[n][e];
    });
}
