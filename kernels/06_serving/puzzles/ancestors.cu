// ancestors.cu — a tree of guessed tokens behind a context: each sees the context, its ancestors and itself.
//
// grid   (ceil(L_q / threads))         block  (threads), a thread per query
// layout Q, O [L_q, D]  K, V [context + L_q, D], fp32; parents [L_q], less than their index, −1 for a root; contiguous
// shared 0 bytes
// limits (context + L_q) · D below 2^31
// options: -DD=16
// paper  SpecInfer (arXiv 2305.09781), §4
#include "one_row.cuh"

extern "C" __global__ void ancestors(const float* Q, const float* K, const float* V,
                                     const int* parents, float* O, int L_q, int context, float scale) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;   // my query; its key is number context + i
    if (i >= L_q) return;
    Row row;
    for (int j = 0; j < context; j++) see(row, Q + i * D, K + j * D, V + j * D, scale);
    // BEGIN SOLUTION
    for (int t = i; t >= 0; t = parents[t])
        see(row, Q + i * D, K + (context + t) * D, V + (context + t) * D, scale);
    // END SOLUTION
    for (int c = 0; c < D; c++) O[i * D + c] = row.O[c] / row.l;
}
