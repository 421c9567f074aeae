// fragment.cu — C = A B by one mma.sync of one warp: where the numbers lie that it leaves in a lane's registers.
//
// grid   (products)                    block  (32)
// layout A [products, 16, 16]  B [products, 16, 8], fp16, aligned to 16 bytes  C [products, 16, 8], fp32
// shared 768 bytes
// limits none
// arch: sm_80
// source PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type"
#include "tensor_core.cuh"

extern "C" __global__ void fragment(const uint4* A, const uint4* B, float* C) {
    __shared__ uint4 A_tile[16 * 2], B_tile[16];   // a uint4 is 8 numbers: half a row of A, a row of B
    const int lane = threadIdx.x;
    A_tile[lane] = A[32 * blockIdx.x + lane];
    if (lane < 16) B_tile[lane] = B[16 * blockIdx.x + lane];
    C += 16 * 8 * blockIdx.x;
    __syncwarp();
    unsigned a[4], b[4];
    float c[4] = {};
    ldmatrix_x4(a, (unsigned)__cvta_generic_to_shared(A_tile + lane % 16 * 2 + lane / 16));
    ldmatrix_x4_trans(b, (unsigned)__cvta_generic_to_shared(B_tile + lane % 16));
    mma_16x8x16(c, a, b[0], b[1]);
    // BEGIN SOLUTION
    const int row = lane / 4, column = lane % 4 * 2;
    C[row * 8 + column] = c[0];
    C[row * 8 + column + 1] = c[1];
    C[(row + 8) * 8 + column] = c[2];
    C[(row + 8) * 8 + column + 1] = c[3];
    // END SOLUTION
}
