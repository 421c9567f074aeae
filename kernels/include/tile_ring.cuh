// tile_ring.cuh — how a producer hands tiles to consumers: buffers in a ring, each with two mbarriers.
//
// full ends a phase when a tile's bytes have come, empty when all warps of the consumers are done
// with the tile. Use number t = 0, 1, … of the ring is of buffer t mod BUFFERS, in phase
// t / BUFFERS of its mbarriers, of which parity is the last bit.
// Include after BUFFERS is defined.
// paper  FlashAttention-3 (arXiv 2407.08608), §3.1
#pragma once
#include "copy_engine.cuh"

struct Gate { Mbarrier full, empty; };
struct Place { int buffer, parity; };

__device__ inline Place place(int t) { return {t % BUFFERS, t / BUFFERS % 2}; }

// fillers: threads that arrive at `full` for each tile; the copy engine's asker is one.
__device__ inline void initialize(Gate& gate, int warps, int fillers = 1) {
    initialize(&gate.full, fillers);
    initialize(&gate.empty, warps);
}

template <int N>
__device__ inline void initialize(Gate (&gates)[N], int warps, int fillers = 1) {
    for (Gate& gate : gates) initialize(gate, warps, fillers);
}

// The producer asks for a box as soon as its place is empty; the first time it is.
template <class T, int N>
__device__ inline void fill(T (&tile)[N], Gate& gate, int parity, const TensorMap& map, int row,
                            int head, int panel = 0) {
    wait_for(&gate.empty, parity ^ 1);
    arrive_expecting(&gate.full, sizeof(tile));
    load_box(tile, map, row, head, &gate.full, panel);
}

// The same without a box: consumers who find the place full look elsewhere for what that means.
__device__ inline void fill_with_nothing(Gate& gate, int parity) {
    wait_for(&gate.empty, parity ^ 1);
    arrive(&gate.full);
}

// A consumer waits for what was asked for, and gives the place back. Its warp has waited for the
// products that read there.
__device__ inline void wait_until_full(Gate& gate, int parity) { wait_for(&gate.full, parity); }
__device__ inline void give_back(Gate& gate) {
    if (threadIdx.x % 32 == 0) arrive(&gate.empty);
}
