// merge.cu — parts of an answer become the answer: each part weighs as much as its sum of exp.
//   merge_pieces      the parts that split_keys.cu and its kin have written of each sequence
//   merge_attention   any parts, the same number for each row
// A block has a row, since there are few: its warps share the parts, and each lane has four columns.
// merge_pieces begins while the last pieces are still attended: it finds its parts, and waits for them.
// Without that wait most runs on an H100 were wrong where keys were cut, and every one on the
// emulator right: there a launch begins when the one before has ended.
//
// grid   merge_pieces (H · L_q, B)   merge_attention (rows)       block  (32, 4)
// layout O [B, H, L_q, D], LSE [B, H, L_q]; contiguous, aligned to 16 bytes
//        merge_pieces: O_parts [pieces, H, L_q, D], LSE_parts [pieces, H, L_q]; seq_lens, L, ragged,
//        wanted and size as in split_keys.cu. Rows of a sequence in one piece are left alone.
//        merge_attention: rows = B · H · L_q; O_parts [parts, rows, D], LSE_parts [parts, rows]
//        LSE and LSE_parts fp32; O in 16 bits, or with -DO_BITS=32 in fp32; O_parts by -DPART_BITS
// shared 2064 bytes
// limits D a multiple of 4, an argument; a part whose log-sum-exp is −∞ is left out, whatever it holds
// options: -DBF16=0 -DPART_BITS=32 -DO_BITS=16 | -DBF16=1 -DPART_BITS=32 -DO_BITS=16 | -DBF16=0 -DPART_BITS=32 -DO_BITS=32 | -DBF16=0 -DPART_BITS=16 -DO_BITS=16 | -DBF16=1 -DPART_BITS=16 -DO_BITS=16
// arch: sm_80
// paper  Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023); FlashAttention-2 (arXiv 2307.08691), §3.1
#include "dependent_launch.cuh"
#include "merge_rows.cuh"
#include "pieces.cuh"

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

extern "C" __global__ void __launch_bounds__(32 * MERGE_WARPS)
merge_pieces(const part_t* O_parts, const float* LSE_parts, out_t* O, float* LSE,
             const int* seq_lens, int B, int L, int D, int ragged, int wanted, int size) {
    const Batch batch{seq_lens, B, L, ragged};
    size = size_of_pieces(batch, {wanted, size});
    const int b = blockIdx.y, parts = parts_of(batch.keys(b), size);
    const int first = first_piece_of(batch, size, b);
    const int rows = gridDim.x, row = blockIdx.x;
    const bool whole = parts == 1;   // one block waits all the same
    if (whole && (row > 0 || b > 0)) return;
    wait_for_previous();   // who wrote the parts; nobody there has written lengths
    if (whole) return;
    const long long at = (long long)b * rows + row;
    __shared__ MergeTeam team;
    merge_row(team, O_parts, LSE_parts, (long long)first * rows + row, rows, parts, O + at * D,
              LSE + at, D);
}

extern "C" __global__ void __launch_bounds__(32 * MERGE_WARPS)
merge_attention(const part_t* O_parts, const float* LSE_parts, out_t* O, float* LSE, int parts,
                int D) {
    const long long row = blockIdx.x;
    __shared__ MergeTeam team;
    merge_row(team, O_parts, LSE_parts, row, gridDim.x, parts, O + row * D, LSE + row, D);
}
