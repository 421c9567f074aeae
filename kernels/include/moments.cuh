// moments.cuh — when parts of a kernel begin and end, as its block 0 sees them.
//
// Include it last. A leader, the first thread of 128, notes the clock of its multiprocessor before
// and after; `site` says of what. A note costs some dozen cycles, so it is one store of 16 bytes, and
// where it goes waits in shared memory.
#pragma once

constexpr int LEADERS = 4, MOMENTS = 1024;   // more are not noted
struct alignas(16) Moment { int begin, end, site, more; };
__device__ Moment moments[LEADERS][MOMENTS];
__device__ int noted[LEADERS];

__device__ inline int& notes_of_leader() {
    __shared__ int notes[LEADERS];
    return notes[threadIdx.x / 128];
}
__device__ inline bool takes_notes() {
    return (blockIdx.x | blockIdx.y | blockIdx.z) == 0 && threadIdx.x % 128 == 0;
}
__device__ inline void begin_notes() { if (takes_notes()) notes_of_leader() = 0; }
__device__ inline void note(int begin, int site) {
    const int end = clock();
    if (!takes_notes()) return;
    const int n = notes_of_leader();
    if (n == MOMENTS) return;
    moments[threadIdx.x / 128][n] = {begin, end, site, 0};
    notes_of_leader() = n + 1;
    noted[threadIdx.x / 128] = n + 1;
}

// One thread for each leader hands its notes over and forgets them. out [LEADERS, MOMENTS, 3]
__device__ inline void hand_over(int* out, int* count) {
    const int leader = threadIdx.x;
    count[leader] = noted[leader];
    for (int n = 0; n < noted[leader]; n++) {
        const Moment moment = moments[leader][n];
        int* to = out + (leader * MOMENTS + n) * 3;
        to[0] = moment.begin, to[1] = moment.end, to[2] = moment.site;
    }
    noted[leader] = 0;
}
