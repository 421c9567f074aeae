// dq_without_atomics.cu — dQ = dS K for one query, a block per tile of 32 keys, broken on purpose: all
// blocks add to the same dQ, and one may overwrite what another has just added. Mended: -DMENDED=1.
//
// grid   (ceil(L_k / 32))              block  (d)
// layout dS [L_k], K [L_k, d], dQ [d] (zeros), fp32, contiguous
// shared 0 bytes
// limits any L_k, d up to 1024
// options: -DMENDED=0 | -DMENDED=1
extern "C" __global__ void add_dq(const float* dS, const float* K, float* dQ, int L_k) {
    const int c = threadIdx.x, j0 = blockIdx.x * 32;   // this thread's column, this block's keys
    float sum = 0;
    for (int j = j0; j < min(j0 + 32, L_k); j++) sum += dS[j] * K[(long long)j * blockDim.x + c];
#if MENDED
    atomicAdd(dQ + c, sum);
#else
    dQ[c] += sum;
#endif
}
