// causal_mask.cu — hides the keys that come after a query: S becomes −∞ there. L_q may differ from L_k: the last query
// stands at the last key.
//
// grid   (ceil(L_k / 32), ceil(L_q / 8), B · H)      block  (32, 8)
// layout S [B, H, L_q, L_k], fp32, contiguous, changed in place
// shared 0 bytes
// limits L_q up to 524,280; L_q · L_k below 2^31; B · H up to 65535
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void causal_mask(float* S, int L_q, int L_k) {
    S += (long long)blockIdx.z * L_q * L_k;
    const int j = blockIdx.x * blockDim.x + threadIdx.x;   // my key
    const int i = blockIdx.y * blockDim.y + threadIdx.y;   // my query
    if (i >= L_q || j >= L_k) return;
    // BEGIN SOLUTION
    const int last = i + L_k - L_q;   // the last key that query i sees
    if (j > last) S[i * L_k + j] = NEG_INF;
    // END SOLUTION
}
