// turns.cuh — blocks that add to the same numbers take turns, so that sums have the same order, and
// the same bits, in every run.
//
// A counter in global memory, 0 at first, counts the turns that have ended. A block that waits keeps its
// multiprocessor, so those before it must have begun: GPUs do so, though CUDA does not promise it.
#pragma once

// A thread waits until so many turns have ended. What was written in them is there.
__device__ inline void wait_for_turns(int* counter, int before) {
    while (atomicAdd(counter, 0) < before) {}
    __threadfence();
}

// It ends a turn. What it has written is there for the next one.
__device__ inline void end_turn(int* counter) {
    __threadfence();
    atomicAdd(counter, 1);
}
