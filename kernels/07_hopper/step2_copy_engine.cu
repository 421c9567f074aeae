// step2_copy_engine.cu — FlashAttention forward on Hopper whose tiles the copy engine brings.
//
// Step 2 of the ladder. One thread asks for a whole tile and goes on: no addresses to compute, no
// registers, no comparisons with the end. The tile's bytes count at an mbarrier, full, on which all
// others wait. O leaves in the same way, through the place in shared memory where Q was.
//
// grid   (ceil(L_q / 128), H, B)       block  (256): two warpgroups with 64 queries each
// layout Q, O [B·H, L_q, D] through tensor maps with boxes of 64 rows; K, V [B·H / group, L_k, D]
//        with boxes of 128 rows (copy_engine.cuh), fp16 or bf16; LSE [B·H, L_q], fp32; query head h
//        reads key head h / group
// shared 2 · D·(B_R + 4·B_C) + 24 bytes, dynamic; B_R = B_C = 128
// limits scale > 0; D 64 or 128
// options: -DD=64 -DBF16=0 | -DD=64 -DBF16=1 | -DD=128 -DBF16=0 | -DD=128 -DBF16=1
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), §2.2
constexpr int B_R = 128, B_C = 128, THREADS = 256, BUFFERS = 2;
#include "copy_engine.cuh"
#include "warpgroup_tile.cuh"

struct Shared {
    scalar_t Q[B_R / ROWS][ROWS * D], K[BUFFERS][B_C * D], V[BUFFERS][B_C * D];
    Mbarrier full_Q, full[BUFFERS];
};
static_assert(sizeof(Shared) == 2 * D * (B_R + 4 * B_C) + 24, "what the header says");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
step2_copy_engine(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                  const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O,
                  float* LSE, int L_q, int L_k, int group, float scale, int is_causal) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int head = blockIdx.z * gridDim.y + blockIdx.y;
    const int w = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);   // which warpgroup
    const int i0 = blockIdx.x * B_R, i_w = i0 + w * ROWS;          // first query of block, warpgroup
    const int shift = L_k - L_q;
    const float factor = scale * LOG2_E;
    const int keys_end = is_causal ? min(L_k, i0 + B_R + shift) : L_k;   // the last row sees most
    const bool asks = threadIdx.x == 0;
    auto load_keys = [&](int j0, int buffer) {
        arrive_expecting(&shared.full[buffer], sizeof(shared.K[0]) + sizeof(shared.V[0]));
        load_box(shared.K[buffer], K, j0, head / group, &shared.full[buffer]);
        load_box(shared.V[buffer], V, j0, head / group, &shared.full[buffer]);
    };
    if (asks) {
        initialize(&shared.full_Q, 1);
        for (int i = 0; i < BUFFERS; i++) initialize(&shared.full[i], 1);
        publish_barriers();
        arrive_expecting(&shared.full_Q, sizeof(shared.Q));
        for (int half = 0; half < 2; half++)
            load_box(shared.Q[half], Q, i0 + half * ROWS, head, &shared.full_Q);
        if (keys_end > 0) load_keys(0, 0);
    }
    __syncthreads();

    Rows rows;
    Output O_i = {};
    wait_for(&shared.full_Q, 0);
    for (int j0 = 0; j0 < keys_end; j0 += B_C) {
        const int tile = j0 / B_C, buffer = tile % BUFFERS, next = j0 + B_C;
        __syncthreads();   // all are done with the previous tile, whose buffer is the next one's
        if (asks && next < keys_end) load_keys(next, 1 - buffer);
        wait_for(&shared.full[buffer], tile / BUFFERS % 2);
        Scores S;
        Weights P;
        start_scores(S, shared.Q[w], shared.K[buffer]);
        wait_for_product<0>(S);
        if (next > L_k || (is_causal && next - 1 > i_w + shift))
            mask(S, i_w, j0, L_k, shift, is_causal);
        raise_maximum(rows, S, factor);
        exponentials(S, rows, factor);
        rescale(O_i, rows);
        pack_weights(P, S);
        start_output(O_i, P, shared.V[buffer]);
        wait_for_product<0>(O_i);
    }
    normalize(O_i, rows, LSE + (long long)head * L_q + i_w, L_q - i_w);
    sync_threads(1 + w, 128);   // the warpgroup is done with Q
    write_tile(shared.Q[w], O_i);
    publish_tile();
    sync_threads(1 + w, 128);
    if (threadIdx.x % 128 == 0) {
        store_box(O, i_w, head, shared.Q[w]);
        wait_for_stores();   // shared memory must live as long
    }
}
