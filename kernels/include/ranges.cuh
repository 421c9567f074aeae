// ranges.cuh — patterns that are arithmetic: which keys a row sees, which tiles a block visits.
//
// With base = i rounded down to a multiple of `step`, row i sees
//   base − left <= j < base + right,  and of the keys j < sinks those before base + right.
// Both ends only grow with i, so the rows of a tile see what lies between the start of the first
// one and the end of the last one.
#pragma once

// Every `dilation`-th position, counted without gaps.
struct ResidueClass {
    int first_key, first_query, keys, queries;   // first rows in memory, and how many there are
    int shift;   // its query 0 is at position `shift` of the class; may be negative
};

// The class of keys c, c + dilation, ...; query r has position r + L_k − L_q.
__device__ inline ResidueClass residue_class(int c, int dilation, int L_q, int L_k) {
    const int first = c - (L_k - L_q), r = (first % dilation + dilation) % dilation;
    return {c, r, (L_k - c + dilation - 1) / dilation, (L_q - r + dilation - 1) / dilation,
            (r - first) / dilation};
}

// Keys [start, end): those that a row sees beside the sinks.
struct Keys { int start, end; };

// i rounded down to a multiple of `step`, also below 0.
__device__ inline int round_down(int i, int step) {
    const int rest = i % step;
    return i - rest - (rest < 0 ? step : 0);
}

// Of row i of the class, which has `keys` keys.
__device__ inline Keys keys_of_row(int i, int left, int right, int step, int keys) {
    const int base = round_down(i, step);
    return {base - left, min(base + right, keys)};
}

// Tiles first ... end − 1, and before them, if there is a gap, tiles 0 ... sinks − 1.
struct TileRange {
    int sinks, first, end;

    __device__ int last() const { return end > first ? end - 1 : before(first); }
    __device__ int before(int tile) const { return (tile == first ? min(first, sinks) : tile) - 1; }
};

__device__ inline TileRange every_tile(int L_k) { return {0, 0, (L_k + B_C - 1) / B_C}; }

__device__ inline TileRange tiles_of(Keys keys, int sinks) {
    const int end = max(0, keys.end), sinks_end = min(sinks, end);
    return {(sinks_end + B_C - 1) / B_C, max(0, keys.start) / B_C, (end + B_C - 1) / B_C};
}
