// e4m3_cache.cu — a cache of half the bytes: keys and values in E4M3, with a scale for each key head.
//   e4m3_cache         split_keys.cu for such a cache
//   e4m3_paged_cache   paged_cache.cu for such a cache, also with its WINDOW=1, SOFTCAP=1 and SINKS=1
// Rung 6. Decode takes as long as its bytes, so a byte a number instead of two is nearly half the
// time, and room for twice the tokens. The tensor cores go on multiplying 16 bits, since queries and
// weights have them: the numbers are widened in registers, on the way from shared memory to the
// products. k_scale is a factor of the scores, v_scale one of the output, so neither costs a
// multiplication for each number. NaN in E4M3 reads as 480 here, in fp16 and in bf16.
//
// grid   (ceil(group · L_q / B_R), H / group, pieces)       block  (32, WARPS)
// layout as split_keys.cu and paged_cache.cu, but K and V a byte a number, and k_scale, v_scale
//        [B, H / group], fp32
// shared 2 · D · B_R + max(2 · WARPS · STAGES · B_C · D, 4 · WARPS · B_R · (D + 9)) bytes, dynamic
// limits as split_keys.cu and paged_cache.cu; B_C 32; k_scale > 0
// options: -DD=64 -DBF16=0 -DB_C=32 -DB_R=16 -DWARPS=8 -DSTAGES=4 | -DD=64 -DBF16=1 -DB_C=32 -DB_R=32 -DWARPS=8 -DSTAGES=4 | -DD=128 -DBF16=0 -DB_C=32 -DB_R=32 -DWARPS=8 -DSTAGES=2 | -DD=128 -DBF16=1 -DB_C=32 -DB_R=16 -DWARPS=8 -DSTAGES=2 | -DD=64 -DBF16=0 -DB_C=32 -DB_R=32 -DWARPS=8 -DSTAGES=4 -DWINDOW=1 | -DD=128 -DBF16=1 -DB_C=32 -DB_R=16 -DWARPS=8 -DSTAGES=2 -DWINDOW=1 -DSOFTCAP=1 -DSINKS=1
// arch: sm_80
// paper  FP8 formats (arXiv 2209.05433); scales by head: FlashAttention-3 (arXiv 2407.08608)
#define CACHE_BITS 8
#include "decode_tile.cuh"
#include "dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
e4m3_cache(const scalar_t* Q, const E4M3* K, const E4M3* V, scalar_t* O, float* LSE,
           float* O_parts, float* LSE_parts, const int* seq_lens, const int* parents, int B, int L,
           int L_q, int group, float scale, int ragged, int tree, int wanted, int size,
           const float* k_scale, const float* v_scale) {
    let_next_begin();   // the merge
    const Piece piece = piece_of_batch({seq_lens, B, L, ragged}, {wanted, size}, blockIdx.z);
    if (piece.sequence < 0) return;
    const int head = piece.sequence * gridDim.y + blockIdx.y;
    attend({Q, parents, L_q, group, tree, scale, O, LSE, O_parts, LSE_parts, UNIT * k_scale[head],
            UNIT * v_scale[head]}, piece, copies_of_rows(K, V, L, piece));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
e4m3_paged_cache(const scalar_t* Q, const E4M3* K, const E4M3* V, scalar_t* O, float* LSE,
                 float* O_parts, float* LSE_parts, const int* seq_lens, const int* parents, int B,
                 int L, int L_q, int group, float scale, int ragged, int tree, int wanted, int size,
                 const float* k_scale, const float* v_scale, const int* block_table, int max_pages,
                 int page_size, int window, float softcap, const float* sinks) {
    let_next_begin();   // the merge
    const Piece piece = piece_of_batch({seq_lens, B, L, ragged}, {wanted, size}, blockIdx.z);
    if (piece.sequence < 0) return;
    const int head = piece.sequence * gridDim.y + blockIdx.y;
    const PageTable table{block_table + (long long)piece.sequence * max_pages, page_size};
    const int skipped = keys_before_window(seq_lens, max_pages * page_size, piece);
    attend({Q, parents, L_q, group, tree, scale, O, LSE, O_parts, LSE_parts, UNIT * k_scale[head],
            UNIT * v_scale[head], window, {softcap, sinks}}, piece,
           copies_of_pages(keys_in_pages(K, V, table, rows_of_block(), piece, skipped)));
}
