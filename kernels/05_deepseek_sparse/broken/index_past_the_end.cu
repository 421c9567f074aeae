// index_past_the_end.cu — sparse_mla.cu broken on purpose:
// an index is compared with 0 but not with T: the row that it names may lie behind the latent.
// Mended: sparse_mla.cu.
//
// grid   (ceil(H / B_R), S)       block  (32 · WARPS)
//        The blocks of one query are neighbours: what one gathered, the next finds in L2.
// layout query [S, H, D_QK]  latent [T, D_QK]  O [S, H, D_V], 16-bit; LSE [S, H], fp32; indices
//        [S, k], in any order; contiguous, aligned to 16 bytes; t = 0 … S − 1 counts queries,
//        s = 0 … T − 1 latent rows. An index below 0 or from T on is left out, one that stands
//        twice counts twice; without a valid one O = 0, LSE = −∞
// shared 2 · D_QK · (B_R + 2 · B_C) + 136 · B_R + 8 · B_C + 64 · WARPS bytes, dynamic: Q, two
//        tiles of the latent, P, which rows these hold, m, the rescaling factor, maxima by warp
// limits scale > 0; S at most 65535; D_QK, D_V multiples of 64, D_V <= D_QK; D_V / WARPS a power of
//        two, at least 16; B_R and B_C multiples of 16 and of 4 · WARPS, B_R · B_C of 256 · WARPS;
//        16 · WARPS a multiple of B_R; B_C at most 64; WARPS even
// options: -DD_QK=128 -DD_V=64 -DBF16=1 -DB_R=16 -DB_C=32 -DWARPS=2
// arch: sm_80
// paper  DeepSeek-V3.2 (arXiv 2512.02556), §2.1
#include "latent_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
sparse_mla(const scalar_t* query, const scalar_t* latent, const int* indices, scalar_t* O,
           float* LSE, int T, int H, int k, float scale) {
    const int t = blockIdx.y, h = blockIdx.x * B_R;
    const long long row = (long long)t * H + h;
    const int* selected = indices + (long long)t * k;

    attend(query + row * D_QK, latent, O + row * D_V, LSE + row, H - h, k, scale, [=](int i) {
        const int s = selected[i];
        return 0 <= s ? s : -1;
    });
}
