// dot_product.cu — S = scale · Q Kᵀ, one thread per score, for every head of a batch.
//
// grid   (ceil(L_k / 32), ceil(L_q / 8), B · H)      block  (32, 8)
// layout Q [B, H, L_q, d]  K [B, H, L_k, d]  S [B, H, L_q, L_k], fp32, contiguous
// shared 0 bytes
// limits L_q up to 524,280; L_q · L_k, L_q · d and L_k · d below 2^31; B · H up to 65535
extern "C" __global__ void dot_product(const float* Q, const float* K, float* S,
                                       int L_q, int L_k, int d, float scale) {
    const long long head = blockIdx.z;
    Q += head * L_q * d, K += head * L_k * d, S += head * L_q * L_k;
    const int j = blockIdx.x * blockDim.x + threadIdx.x;   // my key
    const int i = blockIdx.y * blockDim.y + threadIdx.y;   // my query
    if (i >= L_q || j >= L_k) return;
    // BEGIN SOLUTION
    float sum = 0;
    for (int c = 0; c < d; c++) sum += Q[i * d + c] * K[j * d + c];
    S[i * L_k + j] = scale * sum;
    // END SOLUTION
}
