// items.cuh — blocks of threads that stay, and the items of work that they fetch.
//
// An item is a block of B_R queries of a head, or what a kernel calls its jobs.
// Include after B_R is defined.
#pragma once

struct Item { int head, block; };

__device__ inline int blocks_of(int L_q) { return (L_q + B_R - 1) / B_R; }

// Of `at_once` heads at a time: the last queries of each, then those before, and so on, so that the
// longest causal rows come first.
__device__ inline Item longest_first(int item, int blocks, int heads, int at_once) {
    const int first = item / (at_once * blocks) * at_once;
    const int width = min(at_once, heads - first), place = item - first * blocks;
    return {first + place % width, blocks - 1 - place / width};
}

// The block's next item, to be asked for late, so that none waits for this block while others idle. All
// blocks together ask `items` times: the counter goes to items − 1, then to 0 again.
__device__ inline int next_item(unsigned* counter, int items) {
    return gridDim.x + atomicInc(counter, items - 1);
}
