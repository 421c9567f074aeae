// query_block.cuh — a block's share of dense attention: B_R queries of a head, and the tiles of keys
// that they see.
//
// Include after B_R and B_C are defined.
#pragma once
#include "items.cuh"

// Causal: query i sees the keys up to i + L_k − L_q. factor: scale · log2(e). Where blocks stay, heads
// is how many there are, and at_once how many a causal launch works on at a time.
struct Problem { int L_q, L_k, group, is_causal; float factor; int heads, at_once; };

// The queries from i0 on, and T_c tiles of keys from the first key on.
struct Work { int head, i0, T_c; };

// The work of block i of a head. Queries that see no key visit a tile, too, in which all is masked.
__device__ inline Work work_of(const Problem& problem, int head, int i) {
    const int i0 = i * B_R, seen_by_last = i0 + B_R + problem.L_k - problem.L_q;
    const int end = problem.is_causal ? min(problem.L_k, seen_by_last) : problem.L_k;
    return {head, i0, max(1, (end + B_C - 1) / B_C)};
}

// Causal, the longest rows come first; otherwise head after head.
__device__ inline Work work_of_item(const Problem& problem, int item) {
    const int blocks = blocks_of(problem.L_q);
    if (!problem.is_causal) return work_of(problem, item / blocks, item % blocks);
    const Item next = longest_first(item, blocks, problem.heads, problem.at_once);
    return work_of(problem, next.head, next.block);
}

// How many tiles, from the first on, the queries from i0 on see whole: the others need a mask.
__device__ inline int whole_tiles(const Problem& problem, int i0) {
    const int seen_by_first = max(0, i0 + 1 + problem.L_k - problem.L_q);
    return (problem.is_causal ? min(problem.L_k, seen_by_first) : problem.L_k) / B_C;
}
