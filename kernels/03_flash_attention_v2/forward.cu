// forward.cu — the last rung: FlashAttention-2, forward, tuned.
//
// New against step6: a warp owns 32 queries again, so that each fragment of K and V from shared
// memory serves two matrix products; tiles as large as 255 registers and, on sm_90, two blocks per
// multiprocessor allow; O is rescaled lazily, as in FlashAttention-4; the exponentials of 16 keys
// run beside the products of others; addresses are one register and one XOR; keys are visited from
// last to first, so that only the first copy looks where they end; a warp leaves out what it does
// not see; the longest blocks start first; O is written 16 bytes at a time.
//
// -DPACKED=1, for few queries: the tiles are those of a whole group of heads, whose queries lie
// behind one another: one matrix [group · L_q, D], whose row r is query r mod L_q of its head.
//
// grid   (ceil(L_q / B_R), H, B)       block  (32 · WARPS)
//        PACKED: (ceil(group · L_q / B_R), H / group, B)
// layout Q, O [B, H, L_q, D]  K, V [B, H / group, L_k, D], 16-bit; LSE [B, H, L_q], fp32;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
// shared 2 · D · (B_R + 4 · B_C) bytes, dynamic: Q, and two tiles of K and of V
// limits scale > 0; D 64 or 128; B_R a multiple of 16 · WARPS, B_C of 16
// options: -DD=64 -DBF16=0 -DB_R=128 -DB_C=128 -DWARPS=4 | -DD=64 -DBF16=1 -DB_R=128 -DB_C=128 -DWARPS=4 | -DD=128 -DBF16=0 -DB_R=128 -DB_C=64 -DWARPS=4 | -DD=128 -DBF16=1 -DB_R=128 -DB_C=64 -DWARPS=4 | -DD=64 -DBF16=0 -DB_R=64 -DB_C=128 -DWARPS=4 -DPACKED=1 | -DD=64 -DBF16=1 -DB_R=128 -DB_C=128 -DWARPS=4 -DPACKED=1 | -DD=128 -DBF16=1 -DB_R=64 -DB_C=64 -DWARPS=4 -DPACKED=1 | -DD=128 -DBF16=0 -DB_R=128 -DB_C=64 -DWARPS=4 -DPACKED=1
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1 and §3.3; lazy rescaling:
//        FlashAttention-4 (arXiv 2603.05451); packing: "PackGQA" in the code of FlashAttention-3
#ifndef PACKED
#define PACKED 0
#endif
constexpr int THREADS = 32 * WARPS, ROWS = B_R / WARPS;
#include "attention_tile.cuh"

struct Tiles { scalar_t Q[B_R * D], K[2][B_C * D], V[2][B_C * D]; };

extern "C" __global__ void __launch_bounds__(THREADS, 2)
forward(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
        int L_q, int L_k, int group, float scale, int is_causal) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);

    // Line 3, in parallel: each block has one tile of queries; if causal, the longest rows first.
    const int i0 = (is_causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * B_R;
    const int head = blockIdx.z * gridDim.y + blockIdx.y, kv_head = PACKED ? head : head / group;
    const int rows = PACKED ? group * L_q : L_q;   // queries of one head, or of a group
    Q += ((long long)head * rows + i0) * D;
    K += (long long)kv_head * L_k * D, V += (long long)kv_head * L_k * D;
    const int row0 = threadIdx.x / 32 * ROWS, i_warp = i0 + row0;   // this warp's first row

    // Which query a row of the warp is, and between which they lie: packed, they count anew with
    // each head.
    auto query = [=](int row) { return PACKED ? (i_warp + row) % L_q : i_warp + row; };
    const int first = PACKED ? 0 : i_warp, last = PACKED ? L_q - 1 : i_warp + ROWS - 1;

    const int shift = L_k - L_q;   // causal: query i sees keys j <= i + shift
    const int keys_end = is_causal && !PACKED ? min(L_k, i0 + B_R + shift) : L_k;
    // A warp without rows has nothing to do, nor has one where none of its rows sees a key.
    const bool idle = i_warp >= rows;
    const float factor = scale * LOG2_E;

    // Line 4, and line 7 for the first tile. The order of the keys is free: from last to first,
    // only the first tile visited can be ragged. Where no key is seen, j < 0. Rows of Q past the
    // end are zeros, computed as any others and never written.
    int j = (keys_end + B_C - 1) / B_C - 1;
    if (j >= 0) {
        load_tile_async<B_R>(tile.Q, Q, rows - i0);
        load_tile_async<B_C>(tile.K[j % 2], K + (long long)j * B_C * D, L_k - j * B_C);
        load_tile_async<B_C>(tile.V[j % 2], V + (long long)j * B_C * D, L_k - j * B_C);
    }
    commit_copies();   // this thread's copies of Q, K and V are one group
    OnlineSoftmax state;
    initialize(state);   // line 5

    for (; j >= 0; j--) {   // line 6
        wait_for_copies<0>();
        __syncthreads();   // tile j is there, and every warp is done with tile j + 1
        if (j > 0) {       // line 7, one tile ahead
            load_tile_async<B_C, false>(tile.K[(j - 1) % 2], K + (long long)(j - 1) * B_C * D);
            load_tile_async<B_C, false>(tile.V[(j - 1) % 2], V + (long long)(j - 1) * B_C * D);
            commit_copies();
        }
        const int j0 = j * B_C;
        if (idle || (is_causal && j0 > last + shift)) continue;

        Scores S;
        compute_scores(S, tile.Q + row0 * D, tile.K[j % 2]);
        if (j0 + B_C > L_k || (is_causal && j0 + B_C - 1 > first + shift))
            mask_from(S, j0, [=](int row) {
                return is_causal ? min(L_k, query(row) + shift + 1) : L_k;
            });
        update_maximum(state, S, factor);
        accumulate(state, S, tile.V[j % 2], factor);
    }
    normalize(state);   // lines 12 to 15
    const long long row = (long long)head * rows + i_warp;
    write_rows(state, O + row * D, LSE + row, rows - i_warp, tile.Q + row0 * D);
}
