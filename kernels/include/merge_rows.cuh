// merge_rows.cuh — MERGE_WARPS warps merge the parts of a row: each has every fourth part, and in the
// end their own results are merged by the same rule.
#pragma once
#include "merge_parts.cuh"
#include "tensor_core.cuh"   // for scalar_t and pack

constexpr int MERGE_WARPS = 4;

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
        const int column = c0 + 4 * lane;
        float4 o;
        float lse = merge_parts(
            o, warp, parts, MERGE_WARPS, [=](int p) { return LSE_parts[first + p * pitch]; },
            [=](int p) {
                return column < columns ? load(O_parts + (first + p * pitch) * columns + column)
                                        : float4{};
            });
        team.O[warp][lane] = o;
        if (lane == 0) team.LSE[warp] = lse;
        __syncthreads();
        if (warp == 0 && parts > 0) {
            lse = merge_parts(o, 0, MERGE_WARPS, 1, [&](int w) { return team.LSE[w]; },
                              [&](int w) { return team.O[w][lane]; });
            if (column < columns) store(O + column, o);
            if (column == 0) *LSE = lse;
        }
        __syncthreads();   // before the next columns come in their place
    }
}
