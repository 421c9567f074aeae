// split_and_merge.cu — split_keys.cu and merge.cu in one launch: who has a row's last part merges it.
//
// Rung 4. With lengths that differ, pieces end at different times. A second launch begins when the
// last of them has ended, and costs a launch; a long sequence, whose pieces come first, was done long
// before. So whoever finds that its part of a row is the last merges the row, while others go on.
//
// grid   (ceil(group · L_q / B_R), H / group, pieces)       block  (32, WARPS)
// layout as split_keys.cu; counters [B, H / group, grid's x], zeros: of parts that are written. They
//        are zeros again in the end. Launches at the same time must not have the same ones
// shared as packed_heads.cu, dynamic; 516 · WARPS + 4 bytes, static
// limits as split_keys.cu; WARPS a multiple of 4
// options: -DD=64 -DBF16=0 -DB_C=32 -DB_R=16 -DWARPS=8 -DSTAGES=2 | -DD=64 -DBF16=1 -DB_C=32 -DB_R=32 -DWARPS=8 -DSTAGES=2 | -DD=128 -DBF16=0 -DB_C=16 -DB_R=32 -DWARPS=8 -DSTAGES=2 | -DD=128 -DBF16=1 -DB_C=16 -DB_R=16 -DWARPS=8 -DSTAGES=2
// arch: sm_80
// paper  Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023); last block: threadFenceReduction (CUDA samples)
#include "last_part.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
split_and_merge(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
                float* O_parts, float* LSE_parts, int* counters, const int* seq_lens,
                const int* parents, int B, int L, int L_q, int group, float scale, int ragged,
                int tree, int wanted, int size) {
    const Piece piece = piece_of_batch({seq_lens, B, L, ragged}, {wanted, size}, blockIdx.z);
    if (piece.sequence < 0) return;
    attend_and_merge({Q, parents, L_q, group, tree, scale, O, LSE, O_parts, LSE_parts}, piece,
                     counters, copies_of_rows(K, V, L, piece));
}
