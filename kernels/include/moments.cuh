// moments.cuh — when parts of a kernel begin and end, as its block 0 sees them.
//
// Include it last. A leader, the first thread of 128, notes the clock of its multiprocessor before
// and after; `site` says of what.
#pragma once

constexpr int LEADERS = 4, MOMENTS = 1024;   // more are not noted
struct Moment { long long begin, end, site; };
__device__ Moment moments[LEADERS][MOMENTS];
__device__ int noted[LEADERS];

__device__ inline int& notes_of_leader() {
    __shared__ int notes[LEADERS];
    return notes[threadIdx.x / 128];
}
__device__ inline bool is_noted() {
    return (blockIdx.x | blockIdx.y | blockIdx.z) == 0 && threadIdx.x % 128 == 0;
}
__device__ inline void begin_notes() { if (is_noted()) notes_of_leader() = 0; }
__device__ inline void note(long long begin, int site) {
    if (!is_noted()) return;
    const long long end = clock64();
    const int n = notes_of_leader()++, leader = threadIdx.x / 128;
    if (n >= MOMENTS) return;
    moments[leader][n] = {begin, end, site};
    noted[leader] = n + 1;
}

// One thread for each leader hands its notes over and forgets them. out [LEADERS, MOMENTS, 3]
__device__ inline void hand_over(long long* out, int* count) {
    const int leader = threadIdx.x;
    count[leader] = noted[leader];
    for (int n = 0; n < noted[leader]; n++) {
        const Moment& moment = moments[leader][n];
        long long* to = out + (leader * MOMENTS + n) * 3;
        to[0] = moment.begin, to[1] = moment.end, to[2] = moment.site;
    }
    noted[leader] = 0;
}
