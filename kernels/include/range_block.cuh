// range_block.cuh — a block's share of attention whose rows see ranges of keys: B_R queries of a head, and
// the tiles that they see. What a row sees is said by five numbers or by two arrays (range.cu).
//
// Include after D, B_R, B_C, TABLE and DILATED are defined.
#pragma once
#include "fragment_rows.cuh"
#include "items.cuh"
#include "ranges.cuh"

#if TABLE
struct Pattern { const int *starts, *ends; };
#else
struct Pattern { int sinks, left, right, step; };
#endif

// factor: scale · log2(e). Blocks stay: heads is how many there are, and at_once how many a launch works
// on at a time. Dilated, each head falls into `dilation` classes of L_q queries and L_k keys, and counts
// as that many heads here.
struct Problem { int L_q, L_k, group; float factor; int heads, at_once, dilation; Pattern pattern; };

// The queries from i0 on, and the tiles of keys that they see; none: there is no more work.
struct Work { int head, i0; TileRange tiles; };

// Where a head of the problem lies: dilated, its rows are some columns of the rows of a head in memory.
struct InMemory { int head, residue; __device__ int panel() const { return residue * (D / 64); } };

__device__ inline InMemory in_memory(const Problem& problem, int head) {
    if (!DILATED) return {head, 0};
    return {head / problem.dilation, head % problem.dilation};
}

__device__ inline int sinks_of(const Problem& problem) {
#if TABLE
    return 0;
#else
    return problem.pattern.sinks;
#endif
}

// The keys of a row, beside the sinks; a row behind the last one sees what the last one does.
__device__ inline Keys keys_of(const Problem& problem, int row) {
    const Pattern& pattern = problem.pattern;
    row = min(row, problem.L_q - 1);
#if TABLE
    return {pattern.starts[row], pattern.ends[row]};
#else
    return keys_of_row(row + problem.L_k - problem.L_q, pattern.left, pattern.right, pattern.step,
                       problem.L_k);
#endif
}

// Both ends of what a row sees only grow with the row: the first row and the last decide. A block that
// sees no key visits one tile, which is masked as a whole.
__device__ inline Work work_of_item(const Problem& problem, int item) {
    const auto [head, block] =
        longest_first(item, blocks_of(problem.L_q), problem.heads, problem.at_once);
    const int i0 = block * B_R;
    const Keys seen = {keys_of(problem, i0).start, keys_of(problem, i0 + B_R - 1).end};
    const TileRange tiles = tiles_of(seen, sinks_of(problem));
    return {head, i0, tiles.last() >= 0 ? tiles : TileRange{0, 0, 1}};
}

// Whether all rows between the first, which sees `top`, and the last see all of the tile from key j0 on.
__device__ inline bool is_whole(Keys top, Keys bottom, int sinks, int j0) {
    return j0 + B_C <= top.end && (j0 >= bottom.start || j0 + B_C <= sinks);
}

// S = −∞ where a row does not see the key. seen: what the rows of the warp see; j0: the tile's first key.
template <int N>
__device__ inline void mask(float (&S)[N][4], const Keys* seen, int sinks, int j0) {
    const int g = threadIdx.x % 32 / 4, first_column = j0 + threadIdx.x % 4 * 2;
    #pragma unroll
    for (int r = 0; r < 2; r++) {   // the lane's rows: fragment_rows.cuh
        const int start = seen[g + 8 * r].start - first_column, end = seen[g + 8 * r].end - first_column;
        const int sinks_end = sinks - first_column;
        #pragma unroll
        for (int n = 0; n < N; n++)
            #pragma unroll
            for (int e = 0; e < 2; e++) {
                const int key = 8 * n + e;
                if (key >= end | (key < start & key >= sinks_end)) S[n][2 * r + e] = NEG_INF;
            }
    }
}
