// merge_rows.cuh — MERGE_WARPS warps merge the parts of a row: each has every fourth part, and in the
// end their own results are merged by the same rule.
#pragma once
#include "merge_parts.cuh"
#include "tensor_core.cuh"   // for scalar_t and pack

constexpr int MERGE_WARPS = 4;
constexpr int AT_ONCE = 4;   // parts that a warp reads at a time: it waits once for all of them

struct MergeTeam {   // in shared memory
    float4 O[MERGE_WARPS][32];
    float LSE[MERGE_WARPS];
};

// Four neighbours, to and from fp32.
__device__ inline float4 load(const float* at) { return *reinterpret_cast<const float4*>(at); }

__device__ inline float4 load(const scalar_t* at) {
    const uint2 bits = *reinterpret_cast<const uint2*>(at);
    const scalar_t* of = reinterpret_cast<const scalar_t*>(&bits);
    return make_float4(of[0], of[1], of[2], of[3]);
}

__device__ inline void store(float* at, const float4& x) { *reinterpret_cast<float4*>(at) = x; }

__device__ inline void store(scalar_t* at, const float4& x) {
    *reinterpret_cast<uint2*>(at) = make_uint2(pack(x.x, x.y), pack(x.z, x.w));
}

// One row of O, of `columns`, and its LSE. Part p of it is row `first + p · pitch` of O_parts and
// LSE_parts. All teams of a block come together; one without a row has 0 parts. A block is
// (32, warps): threadIdx.x is the lane, threadIdx.y the warp.
template <class Part, class Out>
__device__ inline void merge_row(MergeTeam& team, const Part* O_parts, const float* LSE_parts,
                                 long long first, long long pitch, int parts, Out* O, float* LSE,
                                 int columns) {
    const int lane = threadIdx.x, warp = threadIdx.y % MERGE_WARPS;
    for (int c0 = 0; c0 < columns; c0 += 128) {   // columns of the team
        const int column = c0 + 4 * lane, column_read = min(column, columns - 4);
        float4 o[1 + AT_ONCE] = {}, merged;
        float lse[1 + AT_ONCE] = {NEG_INF};   // the first is what is merged so far
        for (int p0 = warp; p0 < parts; p0 += AT_ONCE * MERGE_WARPS) {
            #pragma unroll   // no read waits for a choice: past the end, it is the last one's again
            for (int n = 1; n <= AT_ONCE; n++) {
                const int p = min(p0 + (n - 1) * MERGE_WARPS, parts - 1);
                const long long part = first + p * pitch;
                lse[n] = LSE_parts[part], o[n] = load(O_parts + part * columns + column_read);
            }
            #pragma unroll
            for (int n = 1; n <= AT_ONCE; n++)
                if (p0 + (n - 1) * MERGE_WARPS >= parts) lse[n] = NEG_INF;
            lse[0] = merge_parts(merged, 0, 1 + AT_ONCE, 1, [&](int n) { return lse[n]; },
                                 [&](int n) { return o[n]; });
            o[0] = merged;
        }
        team.O[warp][lane] = o[0];
        if (lane == 0) team.LSE[warp] = lse[0];
        __syncthreads();
        if (warp == 0 && parts > 0) {
            lse[0] = merge_parts(merged, 0, MERGE_WARPS, 1, [&](int w) { return team.LSE[w]; },
                                 [&](int w) { return team.O[w][lane]; });
            if (column < columns) store(O + column, merged);
            if (column == 0) *LSE = lse[0];
        }
        __syncthreads();   // before the next columns come in their place
    }
}
