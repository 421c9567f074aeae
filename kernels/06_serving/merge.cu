// merge.cu — parts of an answer become the answer: each part weighs as much as its sum of exp.
//   merge_pieces      the parts that split_keys.cu and its kin have written of each sequence
//   merge_attention   any parts, the same number for each row
// A block has a row, since there are few: its warps share the parts, each lane has four columns,
// and in the end the warps' own results are merged by the same rule.
//
// grid   merge_pieces (H · L_q, B)   merge_attention (rows)       block  (32, WARPS)
// layout O [B, H, L_q, D], LSE [B, H, L_q]; contiguous, aligned to 16 bytes
//        merge_pieces: O_parts [pieces, H, L_q, D], LSE_parts [pieces, H, L_q]; seq_lens, L, ragged,
//        wanted and size as in split_keys.cu. Rows of a sequence in one piece are left alone.
//        merge_attention: rows = B · H · L_q; O_parts [parts, rows, D], LSE_parts [parts, rows]
//        LSE and LSE_parts fp32; O in 16 bits, or with -DO_BITS=32 in fp32; O_parts by -DPART_BITS
// shared 16 · 32 · WARPS + 4 · WARPS bytes
// limits D a multiple of 4, an argument; a part whose log-sum-exp is −∞ is left out, whatever it holds
// options: -DBF16=0 -DPART_BITS=32 -DO_BITS=16 -DWARPS=4 | -DBF16=1 -DPART_BITS=32 -DO_BITS=16 -DWARPS=4 | -DBF16=0 -DPART_BITS=32 -DO_BITS=32 -DWARPS=4 | -DBF16=0 -DPART_BITS=16 -DO_BITS=16 -DWARPS=4 | -DBF16=1 -DPART_BITS=16 -DO_BITS=16 -DWARPS=4
// arch: sm_80
// paper  Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023); FlashAttention-2 (arXiv 2307.08691), §3.1
#include "merge_parts.cuh"
#include "pieces.cuh"
#include "tensor_core.cuh"   // for scalar_t and pack

#if PART_BITS == 32
typedef float part_t;
#else
typedef scalar_t part_t;
#endif
#if O_BITS == 32
typedef float out_t;
#else
typedef scalar_t out_t;
#endif

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

// One row of O, and its LSE. Part p of it is row `first + p · pitch` of O_parts and LSE_parts.
__device__ inline void merge_row(const part_t* O_parts, const float* LSE_parts, long long first,
                                 long long pitch, int parts, out_t* O, float* LSE, int D) {
    __shared__ float4 O_warps[WARPS][32];
    __shared__ float LSE_warps[WARPS];
    const int lane = threadIdx.x, warp = threadIdx.y;
    for (int c0 = 0; c0 < D; c0 += 128) {   // columns of the block
        const int column = c0 + 4 * lane;
        float4 o;
        float lse = merge_parts(
            o, warp, parts, WARPS, [=](int p) { return LSE_parts[first + p * pitch]; },
            [=](int p) {
                return column < D ? load(O_parts + (first + p * pitch) * D + column) : float4{};
            });
        O_warps[warp][lane] = o;
        if (lane == 0) LSE_warps[warp] = lse;
        __syncthreads();
        if (warp == 0) {
            lse = merge_parts(o, 0, WARPS, 1, [&](int w) { return LSE_warps[w]; },
                              [&](int w) { return O_warps[w][lane]; });
            if (column < D) store(O + column, o);
            if (column == 0) *LSE = lse;
        }
        __syncthreads();   // before the next columns come in their place
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
merge_pieces(const part_t* O_parts, const float* LSE_parts, out_t* O, float* LSE,
             const int* seq_lens, int B, int L, int D, int ragged, int wanted, int size) {
    const Batch batch{seq_lens, B, L, ragged};
    size = size_of_pieces(batch, {wanted, size});
    const int b = blockIdx.y, parts = parts_of(batch.keys(b), size);
    if (parts == 1) return;
    const int rows = gridDim.x, row = blockIdx.x;
    const long long first = (long long)first_piece_of(batch, size, b) * rows + row;
    const long long at = (long long)b * rows + row;
    merge_row(O_parts, LSE_parts, first, rows, parts, O + at * D, LSE + at, D);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
merge_attention(const part_t* O_parts, const float* LSE_parts, out_t* O, float* LSE, int parts,
                int D) {
    const long long row = blockIdx.x;
    merge_row(O_parts, LSE_parts, row, gridDim.x, parts, O + row * D, LSE + row, D);
}
