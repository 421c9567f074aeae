// timestamps.cuh — when parts of a kernel begin and end, as its block 0 sees them.
//
// No kernel includes it: course_utils/launches/timestamps.py does, last, in a copy of a kernel's text. A
// leader, the first thread of 128, notes the clock of its multiprocessor before and after; `site` says of
// what. So that a note costs few cycles, the place of the next is in a register, and it is one store of
// 16 bytes.
#pragma once

constexpr int LEADERS = 4, MOMENTS = 1024;   // of each leader; more are not noted
struct alignas(16) Moment { int begin, end, site, there; };
__device__ Moment moments[LEADERS * MOMENTS];

// Where this thread's first note goes; −1 for a thread that takes none.
__device__ inline int first_note() {
    const bool leads = (blockIdx.x | blockIdx.y | blockIdx.z) == 0 && threadIdx.x % 128 == 0;
    return leads ? threadIdx.x / 128 * MOMENTS : -1;
}
__device__ inline void note(int& next, int begin, int site) {
    const int end = clock();
    if (next < 0) return;
    moments[next++] = {begin, end, site, 1};
    if (next % MOMENTS == 0) next = -1;
}

// One thread for each leader hands its notes over and forgets them. out [LEADERS, MOMENTS, 3]
__device__ inline void hand_over(int* out, int* count) {
    int n = 0;
    for (Moment* at = moments + threadIdx.x * MOMENTS; n < MOMENTS && at[n].there; n++) {
        int* to = out + (threadIdx.x * MOMENTS + n) * 3;
        to[0] = at[n].begin, to[1] = at[n].end, to[2] = at[n].site;
        at[n].there = 0;
    }
    count[threadIdx.x] = n;
}
