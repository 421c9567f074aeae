// turns.cuh — blocks that add to the same numbers take turns, so that sums have the same order, and
// the same bits, in every run.
//
// A counter in global memory, 0 at first, says whose turn it is. A block that waits keeps its
// multiprocessor, so those before it must have begun: blocks begin in the order of their numbers.
// source  PTX ISA, "ld.acquire", "st.release"
#pragma once

__device__ inline int read_turn(const int* counter) {
    int turn;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(turn) : "l"(counter) : "memory");
    return turn;
}

// Until it is turn number `mine`. What those before have written is there.
__device__ inline void wait_for_turn(const int* counter, int mine) {
    while (read_turn(counter) != mine) {}
}

// After what this thread has written in its turn, the next one's begins.
__device__ inline void end_turn(int* counter) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;"
                 :: "l"(counter), "r"(read_turn(counter) + 1) : "memory");
}
