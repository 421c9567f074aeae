// pieces.cuh — the keys of a ragged batch in pieces: which block attends which, worked out on the GPU.
//
// All pieces of a sequence have one size, but for its last, and all sequences have the same: a long
// one has more pieces, not longer ones. The size follows from the lengths, so that the batch has
// about as many pieces as are wanted, or it is given, where results must not depend on the batch. A
// sequence without keys has a piece as well, which writes its zeros.
//
// Each warp works this out by itself from the lengths: no launch and no host comes before, and a
// captured graph follows lengths that change in place. Of B sequences there are fewer than B more
// pieces than are wanted.
#pragma once

constexpr unsigned ALL_LANES = 0xffffffff;

// How many keys the sequences of a batch have: `lengths[b]`, kept within the capacity, or, where
// they are not ragged, all the capacity, which is at most 2^30: parts_of adds to it up to as much.
struct Batch {
    const int* lengths;
    int sequences, capacity, ragged;

    __device__ int keys(int b) const {
        return ragged ? min(max(lengths[b], 0), capacity) : capacity;
    }
};

__device__ inline int parts_of(int keys, int size) { return max(1, (keys + size - 1) / size); }

template <class T>
__device__ inline T sum_of_warp(T x) {
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(ALL_LANES, x, other);
    return x;
}

// How the keys are cut: into pieces of `size`, or, where that is 0, of a size with which all sequences
// together have about `wanted`.
struct Cut { int wanted, size; };

__device__ inline int size_of_pieces(const Batch& batch, const Cut& cut) {
    if (cut.size > 0) return cut.size;
    long long keys = 0;
    for (int b = threadIdx.x % 32; b < batch.sequences; b += 32) keys += batch.keys(b);
    return max(1, (int)((sum_of_warp(keys) + cut.wanted - 1) / cut.wanted));
}

// Keys [first, end) of the `keys` of a sequence: its part number `part` of so many, and piece `number`
// of the batch, counted sequence by sequence.
struct Piece { int sequence, keys, first, end, part, parts, number; };

// The number of the first piece of a sequence.
__device__ inline int first_piece_of(const Batch& batch, int size, int sequence) {
    int before = 0;
    for (int b = threadIdx.x % 32; b < sequence; b += 32) before += parts_of(batch.keys(b), size);
    return sum_of_warp(before);
}

// Which piece the block with this number attends; the sequence is −1 where there are fewer. A GPU
// whose last blocks are short ones is done sooner, so those come first that are longer than half of
// a piece. Of a sequence that can be all, or all but the last.
__device__ inline Piece piece_of_batch(const Batch& batch, const Cut& cut, int number) {
    const int size = size_of_pieces(batch, cut), lane = threadIdx.x % 32;
    int left = number;   // pieces from the sequences at hand to this one
    for (int round = 0; round < 2; round++)
        for (int b0 = 0; b0 < batch.sequences; b0 += 32) {   // a lane has a sequence
            const int b = b0 + lane, keys = b < batch.sequences ? batch.keys(b) : 0;
            const int long_ones = (keys + (size - 1) / 2) / size;
            const int short_ones = b < batch.sequences ? parts_of(keys, size) - long_ones : 0;
            const int have = round ? short_ones : long_ones;
            int end = have;   // of these pieces, of this sequence and of those before in these 32
            for (int step = 1; step < 32; step *= 2) {
                const int before = __shfl_up_sync(ALL_LANES, end, step);
                if (lane >= step) end += before;
            }
            const unsigned reached = __ballot_sync(ALL_LANES, left < end);
            if (reached) {
                const int owner = __ffs(reached) - 1;
                const int n = __shfl_sync(ALL_LANES, keys, owner);
                const int before = __shfl_sync(ALL_LANES, end - have, owner);
                const int parts = parts_of(n, size), part = round ? parts - 1 : left - before;
                return {b0 + owner, n, part * size, min(n, (part + 1) * size), part, parts,
                        first_piece_of(batch, size, b0 + owner) + part};
            }
            left -= __shfl_sync(ALL_LANES, end, 31);
        }
    return {-1, 0, 0, 0, 0, 0, number};
}
