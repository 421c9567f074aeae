// tensor_core.cuh — matrix products of 16-bit floats on tensor cores, by mma.sync and ldmatrix.
//
// A warp holds a matrix in fragments, a few registers per lane. With lane = 4 g + t:
//   A [16, 16]  a[0]: row g, columns 2t and 2t+1   a[1]: row g+8   a[2], a[3]: columns + 8
//   B [16, 8]   b0: column g, rows 2t and 2t+1     b1: the same, rows + 8
//   D [16, 8]   d[0], d[1]: row g, columns 2t and 2t+1   d[2], d[3]: row g+8
// An A or B register holds two numbers, a D register one, in fp32. Two neighbouring D, packed in
// pairs, are laid out as one A: P = softmax(Q Kᵀ) can stay in registers for P V.
// source  PTX ISA, "Matrix multiply-accumulate: mma.m16n8k16", "ldmatrix"
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if BF16   // option -DBF16=1
typedef __nv_bfloat16 scalar_t;
#else
typedef __half scalar_t;
#endif

// D += A B
__device__ inline void mma_16x8x16(float (&d)[4], const unsigned (&a)[4],
                                   unsigned b0, unsigned b1) {
#if BF16
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Four 8 × 8 matrices; lane 8 i + r brings the shared-memory address of row r of matrix i. Then
// register i holds row g, columns 2t and 2t+1 of matrix i.
__device__ inline void ldmatrix_x4(unsigned (&matrices)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address) : "memory");
}

// The same, each matrix transposed: register i holds column g, rows 2t and 2t+1 of matrix i.
__device__ inline void ldmatrix_x4_trans(unsigned (&matrices)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address) : "memory");
}

// Two numbers rounded to 16 bits, the first in the lower half.
__device__ inline unsigned pack(float low, float high) {
    unsigned both;
#if BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}
