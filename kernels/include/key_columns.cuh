// key_columns.cuh — the work of a block of a sparse backward pass, and columns that are split.
//
// A column is a tile of keys with all queries that see one of them. A sink or a global token makes
// it as long as the sequence while all others are short, and left whole, it sets the time of
// everything. So it is split, as the forward pass of block_sparse.cu splits long rows. The parts
// need no weights: their dK and dV add up, in a fixed order.
//
// items [n] says what there is to do, long pieces first: (tile of keys, first, end, part), where
// first to end − 1 are queries, or entries of a list. Part −1: the column is not split.
// parts [parts, 2, B, H_k, B_C, D], fp32: what each part has of dK / scale and of dV
// split [m]: (tile of keys, first part, end part, unused)
// Include after D, B_C and THREADS are defined, and tensor_core.cuh.
#pragma once

// DQ_PASS=1: the block leaves dQ to a pass of its own over the rows, without atomics
// (query_gradient_tile.cuh).
#ifndef DQ_PASS
#define DQ_PASS 0
#endif

struct Column {
    int tile, first, end, part;
    long long key_head, all_heads;   // of all batches
};

// The block's. Grid: x counts the items, of each `heads` heads side by side; y the rest of the
// heads; z the batch.
__device__ inline Column column_of_block(const int4* items, int heads) {
    const int4 item = items[blockIdx.x / heads];
    const long long group = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    return {item.x, item.y, item.z, item.w, group * heads + blockIdx.x % heads,
            (long long)gridDim.z * gridDim.y * heads};
}

// What a warp has of dK and dV of 16 keys, from row `row` of the tile on; also rows past the last key:
// merge_parts leaves them out.
__device__ inline void write_part(const float (&dK)[D / 8][4], const float (&dV)[D / 8][4], int row,
                                  float* parts, const Column& column) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const long long size = B_C * D;
    float* part_of_dK = parts + (2 * column.part * column.all_heads + column.key_head) * size;
    float* part_of_dV = part_of_dK + column.all_heads * size;
    #pragma unroll
    for (int half = 0; half < 2; half++)
        #pragma unroll
        for (int c = 0; c < D / 8; c++) {
            const int at = (row + 8 * half + g) * D + 8 * c + 2 * t;
            const float *k = dK[c] + 2 * half, *v = dV[c] + 2 * half;
            *reinterpret_cast<float2*>(part_of_dK + at) = make_float2(k[0], k[1]);
            *reinterpret_cast<float2*>(part_of_dV + at) = make_float2(v[0], v[1]);
        }
}

// dK and dV of the columns that were split; four numbers of each per thread. The grid's x counts
// the columns, of each MERGE_BLOCKS blocks; y the key heads; z the batch.
constexpr int MERGE_BLOCKS = B_C * D / (4 * THREADS);

__device__ inline void merge_parts(const float* parts, const int4* split, scalar_t* dK,
                                   scalar_t* dV, int L_k, float scale) {
    const int4 column = split[blockIdx.x / MERGE_BLOCKS];
    const int at = (blockIdx.x % MERGE_BLOCKS * THREADS + threadIdx.x) * 4;
    const int key = column.x * B_C + at / D;
    if (key >= L_k) return;
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const long long heads = (long long)gridDim.z * gridDim.y, size = B_C * D;

    float4 k = {}, v = {};
    for (int part = column.y; part < column.z; part++) {
        const float* of_part = parts + (2 * part * heads + head) * size + at;
        const float4 dk = *reinterpret_cast<const float4*>(of_part);
        const float4 dv = *reinterpret_cast<const float4*>(of_part + heads * size);
        k.x += dk.x, k.y += dk.y, k.z += dk.z, k.w += dk.w;
        v.x += dv.x, v.y += dv.y, v.z += dv.z, v.w += dv.w;
    }
    const long long to = (head * L_k + key) * D + at % D;
    *reinterpret_cast<uint2*>(dK + to) = make_uint2(pack(scale * k.x, scale * k.y),
                                                    pack(scale * k.z, scale * k.w));
    *reinterpret_cast<uint2*>(dV + to) = make_uint2(pack(v.x, v.y), pack(v.z, v.w));
}
