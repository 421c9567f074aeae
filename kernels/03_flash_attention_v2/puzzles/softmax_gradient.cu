// softmax_gradient.cu — dS of the softmax in attention's backward pass, one warp per row of 32 scores.
//
// grid   (rows)                        block  (32)
// layout S, dP, dS [rows, 32]  LSE [rows], fp32, contiguous
// shared 0 bytes
// limits none
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 2, lines 11 and 14
extern "C" __global__ void softmax_gradient(const float* S, const float* dP, const float* LSE, float* dS) {
    const int row = blockIdx.x, e = 32 * row + threadIdx.x;
    const float p = expf(S[e] - LSE[row]);   // this lane's weight
    // BEGIN SOLUTION
    float delta = p * dP[e];
    for (int step = 16; step > 0; step /= 2) delta += __shfl_xor_sync(0xffffffff, delta, step);
    dS[e] = p * (dP[e] - delta);
    // END SOLUTION
}
