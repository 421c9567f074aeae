// reread.cu — reads the same n elements `passes` times. If they fit the L2 cache, all passes but the
// first are answered by it, and the time tells its bandwidth; if not, every pass goes to HBM.
//
// grid   (blocks), any number          block  (threads), a multiple of 32, such as 512
// layout data [n], sums [blocks · threads], fp32, contiguous, 16-byte aligned; n a multiple of 4
// shared 0 bytes
// limits 4 <= n <= 2^31 - 2^20, blocks · threads <= 2^20
extern "C" __global__ void reread(const float4* data, float* sums, int n, int passes) {
    const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    float sum = 0;   // written in the end, or the compiler would drop the reads
    for (int pass = 0; pass < passes; pass++)
#pragma unroll 4
        for (int i = thread; i < n / 4; i += threads) {
            const float4 v = __ldcg(data + i);   // cached in L2 only: the SM's own L1 is left out
            sum += v.x + v.y + v.z + v.w;
        }
    sums[thread] = sum;
}
