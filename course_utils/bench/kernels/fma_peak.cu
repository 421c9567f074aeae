// fma_peak.cu — how many fp32 multiply-adds per second the CUDA cores do when nothing else holds them up: eight
// independent chains per thread, operands in registers, one store at the end so that the work cannot be left out.
//
// grid   (any)                         block  (256)
// layout out [gridDim.x · 256], fp32
// shared 0 bytes
// limits a thread does 16 · steps FLOP
constexpr int CHAINS = 8;

extern "C" __global__ void __launch_bounds__(256)
fma_peak(float* out, int steps, float factor) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    float x[CHAINS];
    for (int c = 0; c < CHAINS; c++) x[c] = t + c;
    #pragma unroll 16
    for (int step = 0; step < steps; step++)
        for (int c = 0; c < CHAINS; c++) x[c] = fmaf(x[c], factor, 1.0f);
    float sum = 0;
    for (int c = 0; c < CHAINS; c++) sum += x[c];
    out[t] = sum;
}
