// consumers.cuh — what the consumers of a block do in turn, and how O leaves.
//
// Named barrier 1 + w is for the four warps of consumer w, 1 + CONSUMERS + w for its turn.
// Include after D, B_C, BUFFERS and CONSUMERS are defined.
// paper  FlashAttention-3 (arXiv 2407.08608), §3.1, "pingpong scheduling"
#pragma once
#include "tile_ring.cuh"
#include "warpgroup_tile.cuh"

// The consumers take turns at the tensor cores: while one has its turn, the others compute softmax.
__device__ inline void take_turn(int w) { sync_threads(1 + CONSUMERS + w, 256); }
__device__ inline void pass_turn(int w) {
    arrive_threads(1 + CONSUMERS + (w + 1) % CONSUMERS, 256);
}

// O of consumer w, divided by l, to 64 rows of a head from i_w on, by way of shared.O[w], a tile that
// nothing else needs now. The O before must have left it.
template <class Shared>
__device__ inline void store_output(Shared& shared, const Output& O, const TensorMap& map, int i_w,
                                    int head, int w, int panel = 0) {
    if (threadIdx.x % 128 == 0) wait_for_stores();
    sync_threads(1 + w, 128);
    write_tile(shared.O[w], O);
    publish_tile();
    sync_threads(1 + w, 128);
    if (threadIdx.x % 128 == 0) store_box(map, i_w, head, shared.O[w], panel);
}
