// paged_cache.cu — the cache in pages, any page for any part of any sequence: a table says which.
//
// Rung 5. A sequence grows by one key a step, and nobody knows how far. In pages of a fixed size it
// takes what it needs, where there is room, and sequences that begin alike share pages. The kernel
// is split_keys.cu but for one thing: key j is row table[j / page_size] · page_size + j % page_size
// of the pages, and a warp looks up the rows of its next tile while it copies this one. What the
// table says past a sequence's end is never read.
//
// WINDOW=1, SOFTCAP=1 and SINKS=1 give it a window, >= 1, of the keys up to a query's own, a softcap, > 0,
// and attention sinks, fp32 [group · H_kv] (model_softmax.cuh). Keys before every query's window are in no
// piece.
//
// grid   (ceil(group · L_q / B_R), H_kv, pieces)       block  (32, WARPS)
// layout Q, O [B, group · H_kv, L_q, D]  K, V [pages, page_size, H_kv, D], 16-bit; block_table
//        [B, max_pages]; parents [B, L_q], read where `tree` is not 0; seq_lens [B], at most L =
//        max_pages · page_size, but with a window L is no more than window + L_q − 1; contiguous,
//        aligned to 16 bytes; O_parts and LSE_parts as in split_keys.cu
// shared as packed_heads.cu
// limits as split_keys.cu; every page of a key is one of those that there are; all pages together
//        have fewer than 2^31 rows, of any number of bytes; a window with `tree` 0
// options: -DD=64 -DBF16=0 -DB_C=32 -DB_R=16 -DWARPS=8 -DSTAGES=2 | -DD=64 -DBF16=1 -DB_C=32 -DB_R=32 -DWARPS=8 -DSTAGES=2 | -DD=128 -DBF16=0 -DB_C=16 -DB_R=32 -DWARPS=8 -DSTAGES=2 | -DD=128 -DBF16=1 -DB_C=16 -DB_R=16 -DWARPS=8 -DSTAGES=2 | -DD=64 -DBF16=0 -DB_C=32 -DB_R=16 -DWARPS=8 -DSTAGES=2 -DWINDOW=1 | -DD=128 -DBF16=1 -DB_C=16 -DB_R=32 -DWARPS=8 -DSTAGES=2 -DSINKS=1 | -DD=128 -DBF16=0 -DB_C=16 -DB_R=16 -DWARPS=8 -DSTAGES=2 -DSOFTCAP=1 | -DD=64 -DBF16=1 -DB_C=32 -DB_R=32 -DWARPS=8 -DSTAGES=2 -DWINDOW=1 -DSOFTCAP=1 -DSINKS=1
// arch: sm_80
// paper  PagedAttention (arXiv 2309.06180), §4
#include "decode_tile.cuh"
#include "dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
paged_cache(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
            float* O_parts, float* LSE_parts, const int* seq_lens, const int* parents, int B, int L,
            int L_q, int group, float scale, int ragged, int tree, int wanted, int size,
            const int* block_table, int max_pages, int page_size, int window, float softcap,
            const float* sinks) {
    let_next_begin();   // the merge
    const Piece piece = piece_of_batch({seq_lens, B, L, ragged}, {wanted, size}, blockIdx.z);
    if (piece.sequence < 0) return;
    const PageTable table{block_table + (long long)piece.sequence * max_pages, page_size};
    const int skipped = keys_before_window(seq_lens, max_pages * page_size, piece);
    attend({Q, parents, L_q, group, tree, scale, O, LSE, O_parts, LSE_parts, UNIT, UNIT, window,
            {softcap, sinks}}, piece,
           copies_of_pages(keys_in_pages(K, V, table, rows_of_block(), piece, skipped)));
}
