// tensor_core_tile.cu, written otherwise: fragments by ldmatrix, products by inline PTX, S by way of
// shared memory.
#include <cuda_fp16.h>

constexpr int PITCH = D + 8;

__device__ void copy_rows(__half* tile, const __half* rows, int count) {
    for (int r = 0; r < 16; r++)
        for (int c = threadIdx.x; c < D / 2; c += 32)
            reinterpret_cast<unsigned*>(tile + r * PITCH)[c] =
                r < count ? reinterpret_cast<const unsigned*>(rows + (long long)r * D)[c] : 0u;
}

__device__ void load_four(unsigned (&r)[4], const __half* at) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(at);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

__device__ void add_product(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(32)
tensor_core_tile(const __half* Q, const __half* K, float* S, int L_q, int L_k) {
    __shared__ __align__(16) __half q[16 * PITCH], k[16 * PITCH];
    const int i0 = blockIdx.y * 16, j0 = blockIdx.x * 16, lane = threadIdx.x;
    copy_rows(q, Q + ((long long)blockIdx.z * L_q + i0) * D, L_q - i0);
    copy_rows(k, K + ((long long)blockIdx.z * L_k + j0) * D, L_k - j0);
    __syncwarp();

    // Four 8 × 8 pieces each: of A rows, rows + 8, columns + 8, both; of K columns first.
    const __half *of_Q = q + lane % 16 * PITCH + lane / 16 * 8;
    const __half *of_K = k + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8;
    float sums[8] = {};
    for (int step = 0; step < D / 16; step++) {
        unsigned a[4], b[4];
        load_four(a, of_Q + 16 * step);
        load_four(b, of_K + 16 * step);
        add_product(sums, a, b[0], b[1]);
        add_product(sums + 4, a, b[2], b[3]);
    }

    for (int row = 0; row < 16; row++)
        for (int half = 0; half < 2; half++) {
            if (lane / 4 != row % 8) continue;
            const int i = i0 + row, j = j0 + 8 * half + lane % 4 * 2;
            const float *pair = sums + 4 * half + row / 8 * 2;
            float* to = S + ((long long)blockIdx.z * L_q + i) * L_k + j;
            if (i >= L_q) continue;
            if (j < L_k) to[0] = pair[0];
            if (j + 1 < L_k) to[1] = pair[1];
        }
}
