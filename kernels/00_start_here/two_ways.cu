// two_ways.cu — threads go one of two ways, each of `steps` multiply-adds; `run` neighbours go the
// same way. If a warp's threads go different ways, the warp goes both, one after the other, and each
// time the rest of its threads waits: divergence.
//
// grid   (blocks), any number          block  (threads), a multiple of 32
// layout out [blocks · threads], fp32, contiguous
// shared 0 bytes
// limits run >= 1, blocks · threads <= 2^31 - 1
extern "C" __global__ void two_ways(float* out, int steps, int run) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    float x = t % 2 * 0.25f;
    if (t / run % 2 == 0)
        for (int step = 0; step < steps; step++) x = fmaf(x, 0.5f, 0.25f);   // goes to 1/2
    else
        for (int step = 0; step < steps; step++) x = fmaf(x, x, -0.25f);     // stays between -1/4 and 0
    out[t] = x;
}
