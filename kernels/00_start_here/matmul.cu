// matmul.cu — C = A B, one thread per element of C, in two ways:
//   matmul_naive  each thread reads its row of A and its column of B from global memory, 2·k floats
//   matmul_tiled  a block stages tiles of A and B in shared memory: each float is read from global
//                 memory once per block instead of once per thread, 32 times less often
//
// grid   (ceil(n / 32), ceil(m / 32))  block  (32, 32)
// layout A [m, k], B [k, n], C [m, n], fp32
// shared 0 and 8192 bytes, static
// limits any m, n, k with ceil(m / 32) ≤ 65535
constexpr int TILE = 32;

extern "C" __global__ void
matmul_naive(const float* A, const float* B, float* C, int m, int n, int k) {
    const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0;
    for (int i = 0; i < k; i++) sum += A[(long long)row * k + i] * B[(long long)i * n + column];
    C[(long long)row * n + column] = sum;
}

extern "C" __global__ void
matmul_tiled(const float* A, const float* B, float* C, int m, int n, int k) {
    __shared__ float A_tile[TILE][TILE], B_tile[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k0 = 0; k0 < k; k0 += TILE) {
        // load: one element of each tile per thread, zeros past the edges
        A_tile[y][x] = row < m && k0 + x < k ? A[(long long)row * k + k0 + x] : 0;
        B_tile[y][x] = column < n && k0 + y < k ? B[(long long)(k0 + y) * n + column] : 0;
        __syncthreads();   // both tiles are complete
        for (int i = 0; i < TILE; i++) sum += A_tile[y][i] * B_tile[i][x];
        __syncthreads();   // everyone is done with them
    }
    if (row < m && column < n) C[(long long)row * n + column] = sum;
}
