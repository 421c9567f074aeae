// last_part.cuh — the block that writes a row's last part merges the row: it takes no other launch.
//
// A block counts itself once its part is written, and learns how many were counted before. So of the
// blocks of a row one finds that all others are done, and merges the row; none waits for another.
// Which one it is depends on the run, but parts are added up in their own order, so the bits do not.
//
// Include after what decode_tile.cuh needs is defined.
#pragma once
#include "decode_tile.cuh"
#include "merge_rows.cuh"

static_assert(WARPS % MERGE_WARPS == 0, "WARPS must be a multiple of 4");

// Orders what this block wrote before a barrier, and what it reads after one, with the counters.
__device__ inline void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ inline bool is_first_thread() { return threadIdx.x == 0 && threadIdx.y == 0; }

// To all threads of a block, what its first one has.
__device__ inline int from_first_thread(int number) {
    __shared__ int told;
    if (is_first_thread()) told = number;
    __syncthreads();
    number = told;
    __syncthreads();   // before another comes in its place
    return number;
}

// One more, by the first thread, for what its block has done before a barrier. Returns how many came
// before.
__device__ inline int arrive(int* counter) {
    fence();
    const int before = atomicAdd(counter, 1);
    fence();
    return before;
}

// Whether all others of the `parts` are written, too, of which this block has written one before a
// barrier. The counter is 0 before the first of them, and again after the last.
__device__ inline bool is_last_part(int* counter, int parts) {
    if (parts == 1) return true;
    const int before = from_first_thread(is_first_thread() ? arrive(counter) : 0);
    if (before < parts - 1) return false;
    if (is_first_thread()) *counter = 0;   // nobody else will come
    return true;
}

// Merges `count` rows of a sequence whose parts are all written.
__device__ inline void merge_rows(const Problem& problem, const Piece& piece, const Rows& which,
                                  int count) {
    __shared__ MergeTeam teams[WARPS / MERGE_WARPS];
    const int rows = problem.group * problem.L_q, team = threadIdx.y / MERGE_WARPS;
    const long long head = (long long)piece.sequence * which.heads + which.head;
    const long long part = (long long)(piece.number - piece.part) * which.heads + which.head;
    for (int n = team; n - team < count; n += WARPS / MERGE_WARPS) {
        const long long row = which.first + n, at = head * rows + row;
        merge_row(teams[team], problem.O_parts, problem.LSE_parts, part * rows + row,
                  (long long)which.heads * rows, n < count ? piece.parts : 0, problem.O + at * D,
                  problem.LSE + at, D);
    }
}

// Attends a piece for the block's rows, and merges them if it is their last. `counters`: one for each
// tile of rows of each key head, [B, gridDim.y, gridDim.x].
template <class StartCopies>
__device__ inline void attend_and_merge(const Problem& problem, const Piece& piece, int* counters,
                                        StartCopies start_copies) {
    attend(problem, piece, start_copies);
    if (piece.parts == 1) return;   // that was the output
    const Rows which = rows_of_block();
    const long long head = (long long)piece.sequence * which.heads + which.head;
    __syncthreads();   // the part is written
    if (is_last_part(counters + head * gridDim.x + blockIdx.x, piece.parts))
        merge_rows(problem, piece, which, min(B_R, problem.group * problem.L_q - which.first));
}
