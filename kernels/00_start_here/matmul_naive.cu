// matmul_naive.cu — C = A B, one thread per element of C. Coalesced, but every element of A is asked
// for N times and every element of B M times, each time from the caches or from HBM.
//
// grid   (ceil(N/32), ceil(M/32))      block  (32, 32)
// layout A [M, K], B [K, N], C [M, N], fp32, contiguous
// shared 0 bytes
// limits 1 <= M <= 32·65535, any K and N >= 1 for which the tensors fit memory
extern "C" __global__ void
matmul_naive(const float* A, const float* B, float* C, int M, int N, int K) {
    const int n = blockIdx.x * 32 + threadIdx.x;   // column of C: differs within a warp
    const int m = blockIdx.y * 32 + threadIdx.y;   // row of C
    if (m >= M || n >= N) return;
    float sum = 0;
    for (int k = 0; k < K; k++)   // a warp reads one word of A, and 32 neighbours of B
        sum += A[(long long)m * K + k] * B[(long long)k * N + n];
    C[(long long)m * N + n] = sum;
}
