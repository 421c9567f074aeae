// packed_heads.cu — the query heads of a group are the rows of one tile: K and V are read once.
//
// Rung 2. One query is one row, and a tile of mma.sync has 16: the others may as well be the other
// heads that read the same keys ("PackGQA"). The tensor cores are idle most of the time even so;
// what counts is that the keys come as fast as memory gives them. So each warp streams its own
// tiles, and STAGES of them are on their way at a time. What is left to mend: a block has all keys
// of a sequence, and with few sequences most of the GPU has none.
//
// grid   (ceil(group · L_q / B_R), H / group, B)       block  (32, WARPS)
// layout Q, O [B, H, L_q, D]  K, V [B, H / group, L, D], 16-bit; LSE [B, H, L_q], fp32; seq_lens
//        [B]: how many of the L keys count, all where `ragged` is 0; contiguous, aligned to 16
//        bytes; query head h reads key head h / group; query i sees keys j <= i + keys − L_q
// shared 2 · D · B_R + max(4 · WARPS · STAGES · B_C · D, 4 · WARPS · B_R · (D + 9)) bytes, dynamic:
//        Q, and the warps' tiles of K and V; in their place, at the end, their results
// limits scale > 0; D 64 or 128; B_R and B_C multiples of 16
// options: -DD=64 -DBF16=0 -DB_C=32 -DB_R=16 -DWARPS=8 -DSTAGES=2 | -DD=128 -DBF16=1 -DB_C=16 -DB_R=16 -DWARPS=8 -DSTAGES=2
// arch: sm_80
// paper  GQA (arXiv 2305.13245); packing: "PackGQA" in the code of FlashAttention-3
#include "decode_tile.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
packed_heads(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
             const int* seq_lens, int B, int L, int L_q, int group, float scale, int ragged) {
    const int b = blockIdx.z, keys = Batch{seq_lens, B, L, ragged}.keys(b);
    const Piece all{b, keys, 0, keys, 0, 1, b};
    attend({Q, nullptr, L_q, group, 0, scale, O, LSE, nullptr, nullptr}, all,
           copies_of_rows(K, V, L, all));
}
