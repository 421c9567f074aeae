// matmul_registers.cu — C = A B with a second level of tiles: each thread keeps a 4 × 4 piece of C in
// registers, so that 8 words read from shared memory feed 16 multiply-adds (matmul_tiled.cu: 2 feed 1).
//
// grid   (ceil(N/64), ceil(M/64))      block  (16, 16)
// layout A [M, K], B [K, N], C [M, N], fp32, contiguous
// shared 4 · (64·16 + 16·64) = 8192 bytes, static
// limits 1 <= M <= 64·65535, any K and N >= 1 for which the tensors fit memory
// paper  S. Boehm, "How to Optimize a CUDA Matmul Kernel", 2022, kernel 5
extern "C" __global__ void
matmul_registers(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float tile_A[64][16], tile_B[16][64];   // a warp reads two rows of A: 16 banks apart
    const int tx = threadIdx.x, ty = threadIdx.y, thread = ty * 16 + tx;
    const int n0 = blockIdx.x * 64, m0 = blockIdx.y * 64;   // the block's 64 × 64 piece of C
    float sum[4][4] = {};   // this thread's rows ty + 16·i, columns tx + 16·j of it

    for (int k0 = 0; k0 < K; k0 += 16) {
        // load: four elements of each tile per thread; zeros past the edges add nothing
        for (int e = thread; e < 64 * 16; e += 256) {   // element e of each, row after row
            const int m = m0 + e / 16, k_A = k0 + e % 16, k_B = k0 + e / 64, n = n0 + e % 64;
            tile_A[e / 16][e % 16] = m < M && k_A < K ? A[(long long)m * K + k_A] : 0;
            tile_B[e / 64][e % 64] = n < N && k_B < K ? B[(long long)k_B * N + n] : 0;
        }
        __syncthreads();   // the tiles are complete

        // compute: 4 words of A and 4 of B meet in 16 multiply-adds
        for (int k = 0; k < 16; k++) {
            float a[4], b[4];
            for (int i = 0; i < 4; i++) a[i] = tile_A[ty + 16 * i][k];
            for (int j = 0; j < 4; j++) b[j] = tile_B[k][tx + 16 * j];
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sum[i][j] += a[i] * b[j];
        }
        __syncthreads();   // nobody needs these tiles any more
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
            if (m < M && n < N) C[(long long)m * N + n] = sum[i][j];
        }
}
