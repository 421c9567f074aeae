// matmul_tiled.cu — C = A B with tiles in shared memory. A block loads 32 × 32 pieces of A and B once
// and uses each element 32 times, so global memory is asked for 32 times less than in matmul_naive.cu.
//
// grid   (ceil(N/32), ceil(M/32))      block  (32, 32)
// layout A [M, K], B [K, N], C [M, N], fp32, contiguous
// shared 2 · 4 · 32 · 32 = 8192 bytes, static
// limits 1 <= M <= 32·65535, any K and N >= 1 for which the tensors fit memory
// paper  CUDA C++ Programming Guide, "Shared Memory"
extern "C" __global__ void
matmul_tiled(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float tile_A[32][32], tile_B[32][32];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int n = blockIdx.x * 32 + tx, m = blockIdx.y * 32 + ty;   // my element of C
    float sum = 0;

    for (int k0 = 0; k0 < K; k0 += 32) {
        // load: each thread brings one element of each tile; zeros past the edges add nothing
        tile_A[ty][tx] = m < M && k0 + tx < K ? A[(long long)m * K + k0 + tx] : 0;
        tile_B[ty][tx] = n < N && k0 + ty < K ? B[(long long)(k0 + ty) * N + n] : 0;
        __syncthreads();   // the tiles are complete

        // compute: 32 multiply-adds per thread, from shared memory alone
        for (int k = 0; k < 32; k++)
            sum += tile_A[ty][k] * tile_B[k][tx];
        __syncthreads();   // nobody needs these tiles any more
    }
    if (m < M && n < N)
        C[(long long)m * N + n] = sum;
}
