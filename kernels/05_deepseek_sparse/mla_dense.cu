// mla_dense.cu — multi-head latent attention in its absorbed form: every query head attends to the
// same latent rows, and a row's first D_V numbers are its value.
//
// The heads of one query are the rows of the matrix products: a tile of the latent is read once for
// B_R heads, and even a single query, as in decoding, leaves no row empty. It leaves most of the GPU
// empty: a query makes ceil(H / B_R) blocks, 2 of 128 heads, as its keys are not split over blocks.
// Line for line sparse_mla.cu, but for the name of a tile's row: here it is the key's own number.
//
// grid   (ceil(H / B_R), S)       block  (32 · WARPS)
// layout query [S, H, D_QK]  latent [T, D_QK]  O [S, H, D_V], 16-bit; LSE [S, H], fp32; contiguous,
//        aligned to 16 bytes; t = 0 … S − 1 counts queries, s = 0 … T − 1 keys. The query is
//        absorbed: W_UKᵀ q_nope, and behind it q_rope. If is_causal, query t sees keys
//        s <= t + T − S; one that sees none gets O = 0, LSE = −∞
// shared 2 · D_QK · (B_R + 2 · B_C) + 136 · B_R + 8 · B_C + 64 · WARPS bytes, dynamic: Q, two
//        tiles of the latent, P, which rows these hold, m, the rescaling factor, maxima by warp
// limits scale > 0; S at most 65535; D_QK, D_V multiples of 64, D_V <= D_QK; D_V / WARPS a power of
//        two, at least 16; B_R and B_C multiples of 16 and of 4 · WARPS, B_R · B_C of 256 · WARPS;
//        16 · WARPS a multiple of B_R; B_C at most 64; WARPS even
// options: -DD_QK=576 -DD_V=512 -DBF16=1 -DB_R=64 -DB_C=64 -DWARPS=8 | -DD_QK=192 -DD_V=128 -DBF16=0 -DB_R=16 -DB_C=32 -DWARPS=2
// arch: sm_80
// paper  DeepSeek-V2 (arXiv 2405.04434), §2.1.2; DeepSeek-V3 (2412.19437), §2.1.1
#include "latent_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
mla_dense(const scalar_t* query, const scalar_t* latent, scalar_t* O, float* LSE,
          int S, int T, int H, float scale, int is_causal) {
    const int t = gridDim.y - 1 - blockIdx.y;   // causal: the longest rows first
    const int h = blockIdx.x * B_R;
    const long long row = (long long)t * H + h;
    const int keys = is_causal ? max(0, t + T - S + 1) : T;

    attend(query + row * D_QK, latent, O + row * D_V, LSE + row, H - h, keys, scale,
           [=](int s) { return s; });
}
