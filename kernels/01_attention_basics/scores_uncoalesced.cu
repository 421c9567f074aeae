// scores_uncoalesced.cu — S = scale · Q Kᵀ, one thread per score, written the obvious way.
// The 32 threads of a warp hold one query and 32 neighbouring keys, so that each load of K
// touches 32 rows: 32 sectors for 32 floats. An honest first version, and a slow one;
// scores.cu puts the loads of K right.
//
// grid   (ceil(L_k / 32) · ceil(L_q / 32), H, B)
// block  (32, 32): x runs over keys, y over queries
// layout Q [B, H, L_q, d]  K [B, H, L_k, d]  S [B, H, L_q, L_k], fp32, contiguous
// shared 0 bytes
// limits any L_q, L_k and d; H and B up to 65535
// paper  FlashAttention (arXiv 2205.14135), Algorithm 0, line 1
#include "constants.cuh"

extern "C" __global__ void __launch_bounds__(1024)
scores_uncoalesced(const float* Q, const float* K, float* S, int L_q, int L_k, int d,
                   float scale, int is_causal) {
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * d, K += head * L_k * d, S += head * L_q * L_k;
    const int tiles = (L_k + 31) / 32;   // tiles of 32 keys in a row of S
    const int j = blockIdx.x % tiles * 32 + threadIdx.x;   // this thread's key
    const int i = blockIdx.x / tiles * 32 + threadIdx.y;   // this thread's query
    if (i >= L_q || j >= L_k) return;

    float sum = 0;
    for (int c = 0; c < d; c++)   // K: neighbouring threads are d floats apart
        sum += Q[(long long)i * d + c] * K[(long long)j * d + c];

    const bool masked = is_causal && j > i + L_k - L_q;   // the last query sees every key
    S[(long long)i * L_k + j] = masked ? NEG_INF : scale * sum;
}
