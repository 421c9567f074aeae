// cp_async_too_early.cu — the scores of one query and 32 keys, broken on purpose: it waits until at most
// one group of copies is under way, and that one is the tile it reads. Mended: -DIN_FLIGHT=0.
//
// arch: sm_80
// grid   (1)                           block  (128): four threads copy a key, 32 of them score
// layout q [16], K [32, 16], S [32], fp32, contiguous, K aligned to 16 bytes
// shared 4 · 32 · 16 = 2048 bytes, static
// limits 32 keys, d = 16
// options: -DIN_FLIGHT=1 | -DIN_FLIGHT=0
constexpr int D = 16;

extern "C" __global__ void scores_of_query(const float* q, const float* K, float* S) {
    __shared__ __align__(16) float tile[32][D];
    const int t = threadIdx.x;
    const unsigned to = __cvta_generic_to_shared(&tile[t / 4][t % 4 * 4]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(K + t * 4) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group %0;" :: "n"(IN_FLIGHT) : "memory");
    __syncthreads();   // the copies of all threads are complete
    if (t >= 32) return;
    float s = 0;
    for (int d = 0; d < D; d++) s += q[d] * tile[t][d];
    S[t] = s;
}
