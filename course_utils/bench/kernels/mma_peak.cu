// mma_peak.cu — how many fp16 multiply-adds per second mma.sync gets out of the tensor cores when nothing else holds it
// up: eight independent products of 16 × 8 × 16 per warp, all operands in registers, one store at the end. The operands
// are different numbers in each lane, as in a real product: tensor cores draw less power, and clock higher, on equal ones.
//
// grid   (any)                         block  (256)
// layout out [gridDim.x · 256], fp32
// shared 0 bytes
// limits a warp does 8 · 2 · 16 · 8 · 16 · steps FLOP
// options: -DBF16=0 | -DBF16=1
// arch: sm_80
// source  PTX ISA, "Matrix multiply-accumulate: mma.m16n8k16"
#include "tensor_core.cuh"

constexpr int CHAINS = 8;

// Two numbers between −1 and 1 that differ from lane to lane.
__device__ inline unsigned numbers(int seed) {
    return pack(sinf(seed), cosf(3 * seed + 1));
}

extern "C" __global__ void __launch_bounds__(256)
mma_peak(float* out, int steps) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    float d[CHAINS][4] = {};
    unsigned a[4], b[CHAINS][2];
    for (int i = 0; i < 4; i++) a[i] = numbers(t + i);
    for (int c = 0; c < CHAINS; c++) b[c][0] = numbers(t + 5 * c), b[c][1] = numbers(t - 7 * c);
    #pragma unroll 4
    for (int step = 0; step < steps; step++)
        for (int c = 0; c < CHAINS; c++) mma_16x8x16(d[c], a, b[c][0], b[c][1]);
    float sum = 0;
    for (int c = 0; c < CHAINS; c++) sum += d[c][0] + d[c][1] + d[c][2] + d[c][3];
    out[t] = sum;
}
