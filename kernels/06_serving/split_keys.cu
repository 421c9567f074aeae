// split_keys.cu — split-KV: the keys of a sequence are cut into pieces, and blocks share them.
//
// Rung 3. One sequence and eight key heads are eight blocks, on a GPU that has places for 132. So the
// keys are cut as well, and each block attends one piece. What it finds is a part of the answer, in
// fp32 with its log-sum-exp, and merge.cu adds the parts up. A sequence that is one piece needs no
// merge: its block writes the output. pieces.cuh says who has which piece: with lengths that
// differ, the long sequences have more of them.
//
// grid   (ceil(group · L_q / B_R), H / group, pieces)       block  (32, WARPS)
//        pieces: as many as there can be; a block beyond those that there are does nothing
// layout Q, O [B, H, L_q, D]  K, V [B, H / group, L, D], 16-bit; LSE [B, H, L_q], fp32; seq_lens
//        [B]: how many of the L keys count, all where `ragged` is 0; parents [B, L_q], read where
//        `tree` is not 0; contiguous, aligned to 16 bytes; query head h reads key head h / group
//        O_parts [pieces, H, L_q, D], LSE_parts [pieces, H, L_q], fp32: of the sequences that have
//        several pieces
// shared as packed_heads.cu
// limits scale > 0; D 64 or 128; B_R and B_C multiples of 16; L_q at most 31; entries of parents
//        are less than their index; L at most 2^30
// options: -DD=64 -DBF16=0 -DB_C=32 -DB_R=16 -DWARPS=8 -DSTAGES=2 | -DD=64 -DBF16=1 -DB_C=32 -DB_R=32 -DWARPS=8 -DSTAGES=2 | -DD=128 -DBF16=0 -DB_C=16 -DB_R=32 -DWARPS=8 -DSTAGES=2 | -DD=128 -DBF16=1 -DB_C=16 -DB_R=16 -DWARPS=8 -DSTAGES=2
// arch: sm_80
// paper  Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023); trees: SpecInfer (arXiv 2305.09781)
#include "decode_tile.cuh"
#include "dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
split_keys(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
           float* O_parts, float* LSE_parts, const int* seq_lens, const int* parents, int B, int L,
           int L_q, int group, float scale, int ragged, int tree, int wanted, int size) {
    let_next_begin();   // the merge
    const Piece piece = piece_of_batch({seq_lens, B, L, ragged}, {wanted, size}, blockIdx.z);
    if (piece.sequence < 0) return;
    attend({Q, parents, L_q, group, tree, scale, O, LSE, O_parts, LSE_parts}, piece,
           copies_of_rows(K, V, L, piece));
}
